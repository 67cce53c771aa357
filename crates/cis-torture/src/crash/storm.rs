//! Many clients with mixed load, while node, runner or both are killed at random moments and at every named point.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use cis_fail::POINTS;

use super::check;
use super::client::{Client, Storm};
use super::evidence::Evidence;
use super::record::{Entry, Kill};
use super::victim::{PATIENCE, Victim, kills_runner};
use super::{conclude, count, wrong_in_the_end};
use crate::chance::Chance;
use crate::clock::{Stopwatch, eventually, pause};
use crate::{Dose, Finding};

const CLIENTS: usize = 12;
pub(super) const SLOTS: u32 = 8;

/// The file to which tasks write that they began and ended.
const RAN: &str = "ran";

/// Between two blows the node serves this long, at most.
const CALM_MS: u64 = 120;

/// A node that is killed while it starts lives this long, at most.
const START_MS: u64 = 40;

/// What is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    Node,
    Runner,
    Both,
    /// The node, and the next one so long after it was started.
    Twice(Duration),
    /// Whoever comes by this point.
    At(&'static str),
}

/// The blows of a seed: every other one at a named point, each of them once before any comes again.
#[derive(Debug)]
struct Blows {
    chance: Chance,
    points: Vec<&'static str>,
    nth: usize,
}

impl Blows {
    fn of(seed: u64) -> Self {
        Self { chance: Chance::new(seed), points: Vec::new(), nth: 0 }
    }

    /// How long to wait, and what comes then.
    fn next(&mut self) -> (Duration, Blow) {
        self.nth += 1;
        let wait = Duration::from_millis(self.chance.below(CALM_MS));
        if self.nth.is_multiple_of(2) {
            if self.points.is_empty() {
                self.points = POINTS.to_vec();
                self.chance.shuffle(&mut self.points);
            }
            return (wait, self.points.pop().map_or(Blow::Node, Blow::At));
        }
        let blow = match self.chance.below(100) {
            0..60 => Blow::Node,
            60..75 => Blow::Runner,
            75..90 => Blow::Both,
            _ => Blow::Twice(Duration::from_millis(self.chance.below(START_MS))),
        };
        (wait, blow)
    }
}

/// What the killer counts.
#[derive(Debug, Default)]
struct Toll {
    kills: Vec<Kill>,
    points: usize,
    missed: usize,
    while_starting: usize,
}

/// Kills the node until it has died `rounds` times or the time is over, and judges what is left.
pub fn run(dose: &Dose) -> Result<Finding> {
    let mut victim = Victim::start(SLOTS)?;
    let mut toll = Toll::default();
    let (raged, entries) =
        with_clients(&mut victim, dose.seed, |victim, storm| rage(victim, storm, dose, &mut toll))?;
    let judged = raged.and_then(|()| judge(&mut victim, entries, &toll.kills));
    let told = |(evidence, wrong)| (told(&evidence, &toll), wrong);
    let (mut finding, wrong) = judged.map_or_else(|e| (Finding::default(), vec![format!("{e:#}")]), told);
    conclude(&mut finding, dose.seed, wrong, &mut victim);
    Ok(finding)
}

/// Many clients go about their business while `meanwhile` does what it does; then what they began comes to its end. What
/// it came to, and what they wrote down.
pub(super) fn with_clients<T>(
    victim: &mut Victim,
    seed: u64,
    meanwhile: impl FnOnce(&mut Victim, &Storm<'_>) -> Result<T>,
) -> Result<(Result<T>, Vec<Entry>)> {
    let ran = victim.path(RAN);
    let tokens = (0..CLIENTS).map(|n| victim.token(&format!("client-{n}"))).collect::<Result<Vec<_>>>()?;
    let door = victim.door();
    let storm = Storm {
        door: &door,
        watch: Stopwatch::start(),
        ran: &ran,
        calming: AtomicBool::new(false),
        over: AtomicBool::new(false),
        under_way: AtomicUsize::new(0),
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = tokens
            .into_iter()
            .enumerate()
            .map(|(n, token)| {
                let client = Client::new(&storm, n, token, Chance::new(seed).fork(n as u64));
                scope.spawn(move || client.live())
            })
            .collect();
        let done = meanwhile(victim, &storm);
        storm.calming.store(true, Ordering::Relaxed);
        let calm = || (done.is_err() || storm.under_way.load(Ordering::Relaxed) == 0).then_some(());
        // What does not end by then is stuck: the judge will say which.
        let _ = eventually(PATIENCE, calm);
        storm.over.store(true, Ordering::Relaxed);
        let lived = clients.into_iter().map(|client| client.join().map_err(|_| anyhow!("a client panicked")));
        let entries = lived.collect::<Result<Vec<Vec<Entry>>>>()?;
        Ok((done, entries.concat()))
    })
}

/// What there is to judge by, and what is wrong.
pub(super) fn judge(
    victim: &mut Victim,
    entries: Vec<Entry>,
    kills: &[Kill],
) -> Result<(Evidence, Vec<String>)> {
    victim.must_live()?;
    let mut evidence = Evidence { entries, kills: kills.to_vec(), ..Evidence::default() };
    let mut wrong = wrong_in_the_end(victim)?;
    // Where no task wrote, there is none; what completed all the same will be missed.
    evidence.read_lines(&std::fs::read_to_string(victim.path(RAN)).unwrap_or_default());
    evidence.read_store(&victim.data().join("dag.db"))?;
    wrong.extend(check::violations(&evidence));
    Ok((evidence, wrong))
}

/// Blow after blow, the node up again after each.
fn rage(victim: &mut Victim, storm: &Storm<'_>, dose: &Dose, toll: &mut Toll) -> Result<()> {
    let mut blows = Blows::of(dose.seed);
    while storm.watch.lets(toll.kills.iter().filter(|kill| kill.node).count() as u64, dose) {
        let (wait, blow) = blows.next();
        pause(wait);
        victim.must_live()?;
        strike(victim, storm, blow, toll)?;
    }
    Ok(())
}

/// One blow. What it leaves without a node gets a new one.
fn strike(victim: &mut Victim, storm: &Storm<'_>, blow: Blow, toll: &mut Toll) -> Result<()> {
    let (at, life) = (storm.watch.elapsed(), victim.lives());
    let (mut node, mut runner) = (true, false);
    match blow {
        Blow::Node => victim.fall()?,
        Blow::Runner => (node, runner) = (false, victim.kill_runner()),
        Blow::Both => {
            runner = victim.kill_runner();
            victim.fall()?;
        }
        Blow::Twice(after) => {
            victim.fall()?;
            victim.rise_and_fall(after)?;
            toll.while_starting += 1;
        }
        Blow::At(point) => return strike_at(victim, storm, point, toll),
    }
    toll.kills.push(Kill { at, life, node, runner });
    if node { victim.rise() } else { Ok(()) }
}

fn strike_at(victim: &mut Victim, storm: &Storm<'_>, point: &'static str, toll: &mut Toll) -> Result<()> {
    let (life, runner) = (victim.lives(), kills_runner(point));
    victim.arm(point)?;
    // Passed only by a runner that starts.
    if point.ends_with("_rewrite") {
        let at = storm.watch.elapsed();
        toll.kills.push(Kill { at, life, node: false, runner: victim.kill_runner() });
    }
    if !victim.struck(point)? {
        toll.missed += 1;
        return Ok(());
    }
    toll.points += 1;
    toll.kills.push(Kill { at: storm.watch.elapsed(), life, node: !runner, runner });
    if runner { Ok(()) } else { victim.rise() }
}

fn told(evidence: &Evidence, toll: &Toll) -> Finding {
    let Evidence { entries, kills, runs, lines, .. } = evidence;
    let mut finding = Finding::default();
    let of = |which: fn(&Kill) -> bool| kills.iter().filter(|kill| which(kill)).count();
    count(&mut finding, "node killed", of(|kill| kill.node) + toll.while_starting);
    count(&mut finding, "… of these while it started", toll.while_starting);
    count(&mut finding, "runner killed", of(|kill| kill.runner));
    count(&mut finding, "kills at a named point", toll.points);
    count(&mut finding, "named points that nobody came by in time", toll.missed);
    count(&mut finding, "kills between a request and its answer", cut(entries, kills));
    count(&mut finding, "requests", entries.len());
    count(&mut finding, "… acknowledged", entries.iter().filter(|entry| entry.told().is_some()).count());
    count(&mut finding, "… without an answer", entries.iter().filter(|entry| entry.is_unanswered()).count());
    count(&mut finding, "claims won", entries.iter().map(|entry| entry.claimed().count()).sum());
    count(&mut finding, "runs", runs.len());
    count(&mut finding, "attempts of shell tasks", lines.iter().filter(|line| line.began).count());
    finding
}

/// Kills that fell while some write had been sent and not been answered.
fn cut(entries: &[Entry], kills: &[Kill]) -> usize {
    let unanswered: Vec<&Entry> = entries.iter().filter(|entry| entry.is_unanswered()).collect();
    let is_cut = |kill: &&Kill| match kill.node {
        true => unanswered.iter().any(|entry| entry.was_cut_by(kill)),
        false => entries.iter().any(|entry| entry.was_cut_by(kill)),
    };
    kills.iter().filter(is_cut).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_blows_and_every_point_its_turn() {
        let blows = |seed| {
            let mut blows = Blows::of(seed);
            (0..4 * POINTS.len()).map(|_| blows.next()).collect::<Vec<_>>()
        };
        assert_eq!(blows(7), blows(7));
        assert_ne!(blows(7), blows(8));
        for point in POINTS {
            assert_eq!(blows(7).iter().filter(|(_, blow)| *blow == Blow::At(point)).count(), 2, "{point}");
        }
    }
}
