//! A node under siege: attackers do all that a caller with a token, or none, can do to use up what there is for all, while twenty
//! callers behave well and must not notice.
//!
//! ```text
//!   attackers (a process of their own) ──┐
//!                                        ├── HTTP ──► cis node ──► cis runner ──► tasks
//!   20 good callers ──► their own notes ─┘       │
//!                                                └ /proc, data directory         judge: reads the notes and these
//! ```
//!
//! The same seed gives the same choices of every attacker. When they land among the threads of a real machine is not controlled.
//!
//! | module | what lives there |
//! |---|---|
//! | `attack` | the attackers, one file per family |
//! | `callers` | the good callers, and what they write down |
//! | `material` | what is there before, for the attackers to ask for |
//! | `sample` | what node and runner use |
//! | `judge` | what must hold |

mod attack;
mod callers;
mod judge;
mod material;
mod sample;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::json;

use crate::chance::Chance;
use crate::clock::{Stopwatch, eventually, pause};
use crate::crash::victim::{Victim, program_beside_us};
use crate::crash::wire::{Request, Wire};
use crate::{Dose, Finding};
use attack::plan::{Plan, Report, SCOPE};
use callers::followers::Follower;
use callers::{Caller, Course, FOLLOWERS, Notes, PUBLISHERS, READERS, WORKERS};
use judge::{Evidence, IDLE_WITHIN};
use sample::{Sample, Sampler};

/// Tasks that the runner runs at once.
const SLOTS: u32 = 8;

/// Between two looks at memory and descriptors.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Attackers that have not ended so long after their time are killed.
const ATTACKERS_OVERTIME: Duration = Duration::from_secs(30);

/// What followers were not told so long after the last run was over counts as not told.
const TOLD_WITHIN: Duration = Duration::from_secs(30);

/// For as many seconds as there are rounds, or until the time is over. How long calls take is told and not judged.
pub fn run(dose: &Dose) -> Result<Finding> {
    besiege(dose, false)
}

/// The same with the attackers at the lowest priority, and how long calls take is judged.
pub fn record(dose: &Dose) -> Result<Finding> {
    besiege(dose, true)
}

/// The attackers' own process: reads its plan from stdin.
pub fn attack() -> Result<()> {
    attack::run()
}

fn besiege(dose: &Dose, is_record: bool) -> Result<Finding> {
    let rounds = Duration::from_secs(dose.rounds.min(1 << 32));
    let time = dose.time.map_or(rounds, |time| time.min(rounds));
    let mut victim = Victim::start(SLOTS)?;
    let evidence = gather(&mut victim, dose.seed, time, is_record);
    let (mut finding, wrong) = match &evidence {
        Ok(evidence) => {
            let (counts, lines) = (judge::counts(evidence), judge::lines(evidence));
            (Finding { counts, lines, ..Finding::default() }, judge::violations(evidence))
        }
        Err(e) => (Finding::default(), vec![format!("{e:#}")]),
    };
    if !wrong.is_empty() {
        let place = victim.keep().display();
        finding
            .violations
            .extend(wrong.into_iter().map(|what| format!("seed {}, {place}: {what}", dose.seed)));
    }
    Ok(finding)
}

fn gather(victim: &mut Victim, seed: u64, time: Duration, is_record: bool) -> Result<Evidence> {
    let material = material::make(victim)?;
    let token = |identity: &str, preset: &str| victim.token_for(&json!({"identity": identity, "as": preset}));
    let plan = Plan {
        node: victim.address()?,
        seed,
        seconds: time.as_secs(),
        is_nice: is_record,
        agent: victim.token_for(&json!({"identity": "attacking agent", "as": "agent", "scopes": [SCOPE]}))?,
        reader: token("attacking reader", "reader")?,
        material,
    };
    let sampler = Sampler {
        watch: Stopwatch::start(),
        node: victim.pid()?,
        runner: victim.runner().context("there is no runner")?,
        data: victim.data(),
    };
    let mut evidence = Evidence { judges_latency: is_record, ..Evidence::default() };
    let under_way_before = under_way(victim)?;
    evidence.before = sampler.look()?;
    let tokens = Tokens::of(victim)?;
    let (notes, report, samples) = under_siege(&plan, &tokens, &sampler, time)?;
    (evidence.notes, evidence.report, evidence.under_siege) = (notes, report, samples);
    (evidence.idle_after, evidence.not_idle) =
        wait_idle(victim, &sampler, &evidence.before, under_way_before)?;
    victim.must_live()?;
    Ok(evidence)
}

/// One identity for each good caller.
#[derive(Debug)]
struct Tokens {
    owner: String,
    workers: Vec<String>,
    publishers: Vec<String>,
    readers: Vec<String>,
    followers: Vec<String>,
    person: String,
}

impl Tokens {
    fn of(victim: &Victim) -> Result<Self> {
        let some = |what: &str, preset: &str, count: usize| -> Result<Vec<String>> {
            let one = |nth| victim.token_for(&json!({"identity": format!("{what}-{nth}"), "as": preset}));
            (0..count).map(one).collect()
        };
        Ok(Self {
            owner: victim.token("owner of good DAGs")?,
            workers: some("worker", "agent", WORKERS)?,
            publishers: some("publisher", "agent", PUBLISHERS)?,
            readers: some("reader", "reader", READERS)?,
            followers: some("follower", "reader", FOLLOWERS)?,
            person: victim.token_for(&json!({"identity": "person", "as": "reader"}))?,
        })
    }
}

/// Attackers and good callers at once; over when both are.
fn under_siege(
    plan: &Plan,
    tokens: &Tokens,
    sampler: &Sampler,
    time: Duration,
) -> Result<(Notes, Report, Vec<Sample>)> {
    let followers = tokens.followers.iter().enumerate().map(|(nth, token)| {
        let query = if nth % 2 == 0 { "" } else { "?type=run.completed" };
        Follower::connect(plan.node, token, query)
    });
    let followers: Vec<Follower> = followers.collect::<Result<_, _>>()?;
    let course =
        Course { node: plan.node, watch: Stopwatch::start(), time, publishers: AtomicUsize::new(PUBLISHERS) };
    let is_over = AtomicBool::new(false);
    let attackers = Attackers::start(plan)?;
    thread::scope(|scope| {
        for follower in &followers {
            scope.spawn(|| follower.follow());
        }
        let callers = send_callers(scope, plan.seed, &course, tokens);
        let samples = scope.spawn(|| {
            let mut samples = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                match sampler.look() {
                    Ok(sample) => samples.push(sample),
                    Err(_) => break,
                }
                pause(LOOK_EVERY);
            }
            samples
        });
        let mut notes = Notes::default();
        let mut failed = None;
        for caller in callers {
            match caller.join().map_err(|_| anyhow!("a good caller panicked")).flatten() {
                Ok(more) => notes.extend(more),
                Err(e) => failed = Some(e),
            }
        }
        let report = attackers.finish(&course);
        is_over.store(true, Ordering::Relaxed);
        notes.missing.extend(end_followers(&followers, &notes));
        let samples = samples.join().map_err(|_| anyhow!("the looks panicked"))?;
        failed.map_or(Ok(()), Err)?;
        Ok((notes, report?, samples))
    })
}

fn send_callers<'s>(
    scope: &'s Scope<'s, '_>,
    seed: u64,
    course: &'s Course,
    tokens: &'s Tokens,
) -> Vec<ScopedJoinHandle<'s, Result<Notes>>> {
    let chance = |family: u64, nth: usize| Chance::new(seed).fork(10_000 * family + nth as u64);
    let caller =
        |what: &str, nth: usize, token: &String| Caller::new(format!("{what}-{nth}"), course, token.clone());
    let mut callers = Vec::new();
    for (nth, token) in tokens.workers.iter().enumerate() {
        let (caller, chance) = (caller("worker", nth, token), chance(1, nth));
        callers.push(scope.spawn(move || Ok(callers::workers::run(caller, chance))));
    }
    for (nth, token) in tokens.publishers.iter().enumerate() {
        let (caller, chance) = (caller("publisher", nth, token), chance(2, nth));
        callers.push(scope.spawn(move || Ok(callers::publishers::run(caller, &tokens.owner, chance))));
    }
    for (nth, token) in tokens.readers.iter().enumerate() {
        let (caller, chance) = (caller("reader", nth, token), chance(3, nth));
        callers.push(scope.spawn(move || Ok(callers::readers::run(caller, nth == 0, chance))));
    }
    callers.push(scope.spawn(|| callers::cli::run(course, &tokens.person)));
    callers
}

/// Waits until all are told of all completed runs, and hangs up. Answers what they missed.
fn end_followers(followers: &[Follower], notes: &Notes) -> Vec<String> {
    let completed = || notes.runs.iter().filter(|run| run.status == "completed").map(|run| run.run.as_str());
    eventually(TOLD_WITHIN, || {
        followers.iter().all(|follower| follower.missing(completed()) == 0).then_some(())
    });
    let mut wrong = Vec::new();
    for (nth, follower) in followers.iter().enumerate() {
        let missing = follower.missing(completed());
        if missing > 0 {
            wrong.push(format!("follower-{nth} was not told of {missing} runs that completed"));
        }
        if let Some(why) = follower.hang_up() {
            wrong.push(format!("a good caller was refused: follower-{nth} was dropped: {why}"));
        }
    }
    wrong
}

/// Until the node uses no more than before, or the time for that is over: then why it does not count as idle.
fn wait_idle(
    victim: &Victim,
    sampler: &Sampler,
    before: &Sample,
    under_way_before: u64,
) -> Result<(Option<Duration>, String)> {
    let (watch, mut last, mut why) = (Stopwatch::start(), sampler.look()?, String::new());
    while watch.elapsed() < IDLE_WITHIN {
        // Long enough to tell an idle processor from a busy one.
        pause(Duration::from_secs(1));
        let now = sampler.look()?;
        let under_way = under_way(victim)?.saturating_sub(under_way_before);
        let busy = judge::busy_with(before, &last, &now, under_way);
        if busy.is_empty() {
            return Ok((Some(watch.elapsed()), String::new()));
        }
        (last, why) = (now, busy.join(", "));
    }
    Ok((None, why))
}

/// Requests that the node says are under way, the one that asks included.
fn under_way(victim: &Victim) -> Result<u64> {
    let token = std::fs::read_to_string(victim.data().join("admin.token"))?;
    let (status, page) = Wire::open(victim.address()?)?.exchange(token.trim(), &Request::get("/metrics"))?;
    ensure!(status == 200, "the node does not tell its metrics: {status}");
    let page = String::from_utf8(page)?;
    let lines = page.lines().filter(|line| line.starts_with("cis_http_requests_under_way{"));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(counts.sum::<f64>() as u64)
}

/// The attackers' process; killed if it is still there when this goes.
#[derive(Debug)]
struct Attackers(Child);

impl Attackers {
    fn start(plan: &Plan) -> Result<Self> {
        let mut program = Command::new(program_beside_us("cis-torture")?);
        program.arg("attack").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut attackers = Self(program.spawn()?);
        let stdin = attackers.0.stdin.as_mut().context("no stdin")?;
        writeln!(stdin, "{}", serde_json::to_string(plan)?)?;
        Ok(attackers)
    }

    /// Waits for their report.
    fn finish(mut self, course: &Course) -> Result<Report> {
        let stdout = self.0.stdout.take().context("no stdout")?;
        let patience = (course.time + ATTACKERS_OVERTIME).saturating_sub(course.watch.elapsed());
        let ended = eventually(patience, || self.0.try_wait().ok().flatten());
        ensure!(ended.is_some(), "the attackers do not end");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        serde_json::from_str(&line)
            .with_context(|| format!("the attackers ended without a report, {ended:?}"))
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
