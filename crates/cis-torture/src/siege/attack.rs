//! The attackers: a process of their own with a few dozen threads, each of which does one bad thing until the time is over.
//! They take what they get, whatever it is; it is the process that started them that judges.
//!
//! | module | what it does |
//! |---|---|
//! | `idle` | connections that say nothing, or half of it; connections that come and go |
//! | `slow` | asks for giant answers and does not read them, or a byte at a time; many requests and no reading |
//! | `flood` | every call of the table, with good and bad bodies |
//! | `answers` | asks for giant answers and reads them |
//! | `bodies` | giant, deep and unfinished bodies |
//! | `logs` | pieces of a log: tiny, large, in the wrong place |
//! | `claims` | claims, writes a log, releases, claims again; reports on tasks of a large run that it does not hold |
//! | `publish` | definitions without end |
//! | `waiters` | long polls and followers, as many as it gets |
//! | `tokens` | wrong tokens |

mod answers;
mod bodies;
mod claims;
mod flood;
mod idle;
mod line;
mod logs;
pub(super) mod plan;
mod publish;
mod slow;
mod tokens;
mod waiters;

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};

use crate::chance::Chance;
use crate::clock::{Stopwatch, pause};
use plan::{Plan, Report, Tally};

/// The lowest priority there is.
const NICE: i32 = 19;

/// One kind of attack: its name, by how many threads, and what each of them does until the time is over.
struct Attack {
    name: &'static str,
    threads: u64,
    run: fn(&Attacker<'_>, Chance),
}

const ATTACKS: &[Attack] = &[
    Attack { name: "idle connections", threads: 1, run: idle::hold_idle },
    Attack { name: "half-open requests", threads: 1, run: idle::hold_half_open },
    Attack { name: "reconnect storm", threads: 3, run: idle::reconnect },
    Attack { name: "slow readers", threads: 1, run: slow::read_slowly },
    Attack { name: "pipelining without reading", threads: 1, run: slow::pipeline_without_reading },
    Attack { name: "flood of every call", threads: 6, run: flood::make_every_call },
    Attack { name: "giant answers", threads: 4, run: answers::read_giants },
    Attack { name: "giant bodies", threads: 6, run: bodies::send_giants },
    Attack { name: "log flood, tiny pieces", threads: 2, run: logs::write_tiny_pieces },
    Attack { name: "log flood, large pieces", threads: 2, run: logs::write_large_pieces },
    Attack { name: "claim and release", threads: 2, run: claims::claim_and_release },
    Attack { name: "reports with wrong fences", threads: 4, run: claims::report_wrongly },
    Attack { name: "publish flood", threads: 3, run: publish::publish },
    Attack { name: "long-poll hoarding", threads: 1, run: waiters::hoard },
    Attack { name: "wrong tokens", threads: 2, run: tokens::guess },
];

/// How many kinds of attack there are; each must have done something.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ATTACKS.iter().map(|attack| attack.name)
}

/// What every thread of an attack has.
struct Attacker<'a> {
    plan: &'a Plan,
    watch: Stopwatch,
    connections: AtomicU64,
    requests: AtomicU64,
    bytes: AtomicU64,
    calls: Mutex<BTreeMap<String, u64>>,
}

impl<'a> Attacker<'a> {
    fn new(plan: &'a Plan, watch: Stopwatch) -> Self {
        let (connections, requests, bytes) = Default::default();
        Self { plan, watch, connections, requests, bytes, calls: Mutex::default() }
    }

    fn goes_on(&self) -> bool {
        self.watch.elapsed() < Duration::from_secs(self.plan.seconds)
    }

    /// Counts a request and what was sent for it.
    fn count(&self, bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn count_call(&self, name: &str) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls.entry(name.to_owned()).or_default() += 1;
    }

    fn tally(&self) -> Tally {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Tally {
            connections: read(&self.connections),
            requests: read(&self.requests),
            bytes: read(&self.bytes),
        }
    }
}

/// Reads the plan from stdin, attacks for as long as it says, and writes the report to stdout. Ends at once when stdin does: so
/// attackers do not outlive the process that started them.
pub(super) fn run() -> Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let plan: Plan = serde_json::from_str(&line).context("the plan is not readable")?;
    if plan.is_nice {
        setpriority_process(None, NICE)?;
    }
    // Attackers need thousands of descriptors; a shell gives fewer.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    std::thread::spawn(|| {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let report = attack(&plan);
    writeln!(io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

fn attack(plan: &Plan) -> Report {
    let watch = Stopwatch::start();
    let attackers: Vec<Attacker<'_>> = ATTACKS.iter().map(|_| Attacker::new(plan, watch)).collect();
    std::thread::scope(|scope| {
        for (nth, (attack, attacker)) in ATTACKS.iter().zip(&attackers).enumerate() {
            for thread in 0..attack.threads {
                let chance = Chance::new(plan.seed).fork(nth as u64 * 100 + thread + 1);
                scope.spawn(move || (attack.run)(attacker, chance));
            }
        }
    });
    let mut report = Report::default();
    for (attack, attacker) in ATTACKS.iter().zip(&attackers) {
        report.attacks.insert(attack.name.to_owned(), attacker.tally());
        let calls = attacker.calls.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, count) in &*calls {
            *report.calls.entry(name.clone()).or_default() += count;
        }
    }
    report
}

/// Between two blows of one thread, where they would otherwise keep a core of the attackers busy.
fn breathe() {
    pause(Duration::from_millis(2));
}
