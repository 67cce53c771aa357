//! Worlds that are made up from a seed, thousands of them: coordinator, store, runner, workers and clients on a machine
//! whose clocks and connections do as chance says.
//!
//! ```text
//!   clients, workers ──► store (real) ◄── coordinator (real) ── pipe ──► runner (made up) ──► processes (made up)
//!                                              ▲
//!               clocks, chance, faults (made up) ── what happens next is one draw after the other
//! ```
//!
//! One thread does everything, one thing at a time, so a seed is a world: the same one every time, to the last event. What
//! a coordinator does may be cut off, or overtaken by others, before and after every operation of its store and whenever
//! it waits.
//!
//! | module | what lives there |
//! |---|---|
//! | `world` | what there is, what happens next, and the calm at the end |
//! | `weather` | what goes wrong |
//! | `machine`, `paced` | the coordinator's surroundings: clocks, chance, pipes; its store, at a pace |
//! | `node` | a coordinator's life, and how others reach it |
//! | `runner` | a runner by the protocol, and the processes |
//! | `worker`, `client` | those outside |
//! | `sketch` | DAGs, and what their author knows of them |
//! | `judge` | what was promised |
//! | `trace` | what happened |

mod client;
mod judge;
mod machine;
mod node;
mod paced;
mod runner;
mod sketch;
mod trace;
mod weather;
mod worker;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use weather::Fault;
use world::World;

use crate::clock::Stopwatch;
use crate::{Dose, Finding, place};

/// Worlds of a processor that went wrong before there is nothing more to learn.
const WRONG_MAX: usize = 5;

/// What came of a world.
#[derive(Debug)]
struct Verdict {
    hash: u64,
    tally: Tally,
    wrong: Vec<String>,
    last_steps: String,
}

/// What happened in worlds, counted.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    lives: u64,
    runs: u64,
    events: u64,
    processes: u64,
    deaths: u64,
    replaced: u64,
    handed_over: u64,
    runner_deaths: u64,
    disconnects: u64,
    clocks_set: u64,
    sleeps: u64,
    restarts: u64,
}

impl Tally {
    fn count(&mut self, fault: &Fault) {
        match fault {
            Fault::CoordinatorDies => self.deaths += 1,
            Fault::CoordinatorReplaced => self.replaced += 1,
            // Counted when it has: it may refuse.
            Fault::CoordinatorHandsOver => {}
            Fault::RunnerDies(_) => self.runner_deaths += 1,
            Fault::BothDie(_) => {
                self.deaths += 1;
                self.runner_deaths += 1;
            }
            Fault::Disconnect => self.disconnects += 1,
            Fault::ClockSet(_) => self.clocks_set += 1,
            Fault::Sleep(_) => self.sleeps += 1,
            Fault::Restart { .. } => self.restarts += 1,
        }
    }

    fn add(&mut self, other: &Self) {
        let Self { lives, runs, events, processes, deaths, replaced, handed_over, .. } = other;
        let Self { runner_deaths, disconnects, clocks_set, sleeps, restarts, .. } = other;
        self.lives += lives;
        self.runs += runs;
        self.events += events;
        self.processes += processes;
        self.deaths += deaths;
        self.replaced += replaced;
        self.handed_over += handed_over;
        self.runner_deaths += runner_deaths;
        self.disconnects += disconnects;
        self.clocks_set += clocks_set;
        self.sleeps += sleeps;
        self.restarts += restarts;
    }
}

/// Lives one world per round; the first has the dose's seed, each later one the next. They know nothing of each other, so
/// every processor lives one at a time.
pub fn run(dose: &Dose) -> anyhow::Result<Finding> {
    let (watch, begun) = (Stopwatch::start(), AtomicU64::new(0));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let shares: Vec<Share> = thread::scope(|scope| {
        let living: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| Share::live(dose, &watch, &begun))).collect();
        let ended = living.into_iter().map(|share| share.join());
        ended
            .map(|share| share.map_err(|_| anyhow::anyhow!("a world panicked"))?)
            .collect::<anyhow::Result<_>>()
    })?;
    let (mut tally, mut worlds, mut wrong) = (Tally::default(), 0, Vec::new());
    for share in shares {
        tally.add(&share.tally);
        worlds += share.worlds;
        wrong.extend(share.wrong);
    }
    wrong.sort_unstable_by_key(|(seed, _)| *seed);
    let violations = wrong.iter().map(|(seed, verdict)| told(*seed, verdict)).collect();
    let counts = vec![
        ("worlds", worlds),
        ("worlds per second", watch.per_second(worlds)),
        ("runs", tally.runs),
        ("events", tally.events),
        ("processes", tally.processes),
        ("lives of coordinators", tally.lives),
        ("coordinators killed", tally.deaths),
        ("coordinators replaced that went on", tally.replaced),
        ("coordinators that handed over", tally.handed_over),
        ("runners killed", tally.runner_deaths),
        ("connections broken", tally.disconnects),
        ("clocks set", tally.clocks_set),
        ("suspends", tally.sleeps),
        ("restarts of the machine", tally.restarts),
    ];
    Ok(Finding { counts, violations, ..Finding::default() })
}

/// The worlds one processor lives.
#[derive(Debug, Default)]
struct Share {
    worlds: u64,
    tally: Tally,
    wrong: Vec<(u64, Verdict)>,
}

impl Share {
    fn live(dose: &Dose, watch: &Stopwatch, begun: &AtomicU64) -> anyhow::Result<Self> {
        let mut share = Self::default();
        while share.wrong.len() < WRONG_MAX {
            let world = begun.fetch_add(1, Ordering::Relaxed);
            if !watch.lets(world, dose) {
                break;
            }
            let seed = dose.seed.wrapping_add(world);
            let verdict = live(seed)?;
            share.worlds += 1;
            share.tally.add(&verdict.tally);
            if !verdict.wrong.is_empty() {
                share.wrong.push((seed, verdict));
            }
        }
        Ok(share)
    }
}

/// The same without one of [`cis_fail::GUARDS`], until that shows; answers in which world it did.
pub fn control(dose: &Dose, guard: &'static str) -> anyhow::Result<Option<u64>> {
    for seed in dose.seed..dose.seed.saturating_add(dose.rounds) {
        if !cis_fail::without(guard, || live(seed))?.wrong.is_empty() {
            return Ok(Some(seed));
        }
    }
    Ok(None)
}

/// What a world comes down to: a number that differs if anything in it does.
pub fn fingerprint(seed: u64) -> anyhow::Result<u64> {
    Ok(live(seed)?.hash)
}

fn live(seed: u64) -> anyhow::Result<Verdict> {
    World::live(seed, place()?.path())
}

/// What went wrong, how it came to it, and how to see it again.
fn told(seed: u64, verdict: &Verdict) -> String {
    let Verdict { wrong, last_steps, .. } = verdict;
    format!(
        "seed {seed}: {}\n   again: `cargo xtask torture --only sim --seed {seed}`, its first world; this one's last steps:\
         \n      {last_steps}",
        wrong.join("\n   and: ")
    )
}
