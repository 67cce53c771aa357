//! What must hold under siege. Judged by what the kernel says of node and runner, and by what callers wrote down; of the node's own
//! word only that no request is under way when all is over.

use std::collections::BTreeMap;
use std::time::Duration;

use cis_api::calls::CALLS;

use super::attack;
use super::attack::plan::Report;
use super::callers::{Call, Notes};
use super::sample::Sample;

/// Node and runner together.
const MEMORY_MAX_KIB: u64 = 256 << 10;

/// Of node and runner together: what the node keeps for connections without a token (256), the attackers' connections with one
/// (about 1,400), good callers, the store, the runner and its tasks. The attackers hold 2,600 connections if they are let.
const DESCRIPTORS_MAX: u64 = 2_048;

/// So much may be added to the data directory: 256 MiB of logs (24 tasks each of the two stocks), 64 MiB of revisions that wait, each
/// kept in two forms, 128 MiB of the database's log, and what good callers and events leave.
const DISK_GROWTH_MAX: u64 = 768 << 20;

/// After the last attacker has gone.
pub(super) const IDLE_WITHIN: Duration = Duration::from_secs(30);

/// What an idle node may use more than before the attack.
const IDLE_MEMORY_KIB: u64 = 64 << 10;
const IDLE_DESCRIPTORS: u64 = 32;

/// Hundredths of one processor.
const IDLE_CPU_PERCENT: u64 = 5;

/// Of the calls of good callers that do not wait on purpose, 99 of 100; judged where the attackers have the lowest priority.
const P99_MAX: Duration = Duration::from_millis(250);

/// As many of one kind of violation are told.
const TOLD: usize = 5;

/// All that is judged.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Before the attack, with everything the attackers will ask for already there.
    pub(super) before: Sample,
    pub(super) under_siege: Vec<Sample>,
    /// How long it took to be idle again; none if it was not within [`IDLE_WITHIN`], and then why.
    pub(super) idle_after: Option<Duration>,
    pub(super) not_idle: String,
    pub(super) notes: Notes,
    pub(super) report: Report,
    pub(super) judges_latency: bool,
}

/// What keeps a node from counting as idle.
pub(super) fn busy_with(before: &Sample, last: &Sample, now: &Sample, under_way: u64) -> Vec<String> {
    let mut busy = Vec::new();
    let passed = u64::try_from((now.at - last.at).as_millis() / 10).unwrap_or(u64::MAX);
    let percent = (now.cpu_ticks - last.cpu_ticks) * 100 / passed.max(1);
    if percent > IDLE_CPU_PERCENT {
        busy.push(format!("{percent} % of a processor in use"));
    }
    if under_way > 0 {
        busy.push(format!("{under_way} requests under way"));
    }
    if now.descriptors > before.descriptors + IDLE_DESCRIPTORS {
        busy.push(format!("{} descriptors, {} before", now.descriptors, before.descriptors));
    }
    if now.memory_kib > before.memory_kib + IDLE_MEMORY_KIB {
        busy.push(format!("{} MiB of memory, {} before", now.memory_kib >> 10, before.memory_kib >> 10));
    }
    busy
}

/// Everything that must not be.
pub(super) fn violations(evidence: &Evidence) -> Vec<String> {
    let mut wrong = resources(evidence);
    let notes = &evidence.notes;
    wrong.extend(first(notes.leases_lost.iter().map(|lost| format!("a lease was lost: {lost}"))));
    let failed = notes.runs.iter().filter(|run| run.status != "completed");
    wrong.extend(first(
        failed.map(|run| format!("a run did not complete: {} ({}) is {}", run.dag, run.run, run.status)),
    ));
    let refused = notes.calls.iter().filter_map(|call| call.refusal.as_ref());
    wrong.extend(first(refused.map(|why| format!("a good caller was refused: {why}"))));
    wrong.extend(first(notes.missing.iter().cloned()));
    if evidence.idle_after.is_none() {
        let (within, why) = (IDLE_WITHIN.as_secs(), &evidence.not_idle);
        wrong.push(format!("not idle within {within} s after the attack: {why}"));
    }
    if evidence.judges_latency {
        let p99 = at(&taken(notes.calls.iter().filter(|call| is_measured(call))), 990);
        if p99 > P99_MAX {
            wrong.push(format!("99 of 100 calls of good callers took up to {} ms", p99.as_millis()));
        }
    }
    wrong.extend(idle_attackers(&evidence.report));
    wrong.extend(idle_callers(notes));
    wrong
}

fn resources(evidence: &Evidence) -> Vec<String> {
    let mut wrong = Vec::new();
    let most = |of: fn(&Sample) -> u64| evidence.under_siege.iter().map(of).max().unwrap_or(0);
    let memory = most(|sample| sample.memory_peak_kib);
    if memory > MEMORY_MAX_KIB {
        wrong.push(format!("node and runner had {} MiB of memory", memory >> 10));
    }
    let descriptors = most(|sample| sample.descriptors);
    if descriptors > DESCRIPTORS_MAX {
        wrong.push(format!("node and runner had {descriptors} descriptors"));
    }
    let growth = most(|sample| sample.disk_bytes).saturating_sub(evidence.before.disk_bytes);
    if growth > DISK_GROWTH_MAX {
        wrong.push(format!("the data directory grew by {} MiB", growth >> 20));
    }
    if evidence.under_siege.is_empty() {
        wrong.push("nothing was measured".to_owned());
    }
    wrong
}

/// A siege whose attackers do nothing shows nothing.
fn idle_attackers(report: &Report) -> Vec<String> {
    let did = |name: &str| report.attacks.get(name).is_some_and(|tally| tally.connections > 0);
    let idle = attack::names().filter(|name| !did(name));
    let uncalled = CALLS.iter().filter(|call| !report.calls.contains_key(call.name));
    let idle = idle.map(|name| format!("the attackers did nothing: {name}"));
    idle.chain(uncalled.map(|call| format!("the attackers never called `{}`", call.name))).collect()
}

/// And so does one without callers.
fn idle_callers(notes: &Notes) -> Vec<String> {
    let mut wrong = Vec::new();
    for (count, what) in
        [(notes.calls.len(), "calls"), (notes.runs.len(), "runs"), (notes.leases as usize, "leases")]
    {
        if count == 0 {
            wrong.push(format!("good callers had no {what}"));
        }
    }
    wrong
}

fn first(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut told: Vec<String> = all.collect();
    let more = told.len().saturating_sub(TOLD);
    told.truncate(TOLD);
    if let (Some(last), 1..) = (told.last_mut(), more) {
        *last += &format!(" (and {more} more)");
    }
    told
}

/// Does its time say something of the node? Not where a call waits on purpose, nor where a process is started for it.
fn is_measured(call: &Call) -> bool {
    !call.kind.contains("waiting") && call.kind != "cis"
}

fn taken<'c>(calls: impl Iterator<Item = &'c Call>) -> Vec<Duration> {
    let mut taken: Vec<Duration> = calls.map(|call| call.took).collect();
    taken.sort_unstable();
    taken
}

/// The time that so many of a thousand calls did not take longer than.
fn at(sorted: &[Duration], of_thousand: usize) -> Duration {
    let place = (sorted.len() * of_thousand).div_ceil(1000).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

/// How long the calls of good callers took, by kind, and what was used.
pub(super) fn lines(evidence: &Evidence) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<28} {:>8} {:>9} {:>9} {:>9}",
        "good callers", "calls", "p50 ms", "p99 ms", "max ms"
    )];
    let mut kinds: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in &evidence.notes.calls {
        kinds.entry(call.kind).or_default().push(call);
    }
    let measured = evidence.notes.calls.iter().filter(|call| is_measured(call)).collect();
    for (kind, calls) in kinds.into_iter().chain([("all that do not wait", measured)]) {
        let taken = taken(calls.into_iter());
        let ms = |of_thousand| at(&taken, of_thousand).as_secs_f64() * 1000.0;
        lines.push(format!(
            "{kind:<28} {:>8} {:>9.1} {:>9.1} {:>9.1}",
            taken.len(),
            ms(500),
            ms(990),
            ms(1000)
        ));
    }
    lines.push(format!("{:<28} {:>11} {:>9} {:>9}", "attackers", "connections", "requests", "MiB sent"));
    for (name, tally) in &evidence.report.attacks {
        lines.push(format!(
            "{name:<28} {:>11} {:>9} {:>9}",
            tally.connections,
            tally.requests,
            tally.bytes >> 20
        ));
    }
    lines
}

/// What was measured, for a record.
pub(super) fn counts(evidence: &Evidence) -> Vec<(&'static str, u64)> {
    let most = |of: fn(&Sample) -> u64| evidence.under_siege.iter().map(of).max().unwrap_or(0);
    let notes = &evidence.notes;
    let refusals = notes.calls.iter().filter(|call| call.refusal.is_some()).count() as u64;
    let completed = notes.runs.iter().filter(|run| run.status == "completed").count() as u64;
    let growth = most(|sample| sample.disk_bytes).saturating_sub(evidence.before.disk_bytes);
    vec![
        ("MiB of memory at most, node and runner", most(|sample| sample.memory_peak_kib) >> 10),
        ("MiB of memory before", evidence.before.memory_kib >> 10),
        ("descriptors at most", most(|sample| sample.descriptors)),
        ("descriptors before", evidence.before.descriptors),
        ("MiB added to the data directory", growth >> 20),
        ("calls of good callers", notes.calls.len() as u64),
        ("of these refused", refusals),
        ("leases", notes.leases),
        ("of these lost", notes.leases_lost.len() as u64),
        ("runs", notes.runs.len() as u64),
        ("of these completed", completed),
        ("seconds until idle", evidence.idle_after.unwrap_or(IDLE_WITHIN).as_secs()),
        ("requests of attackers", evidence.report.attacks.values().map(|tally| tally.requests).sum()),
    ]
}

#[cfg(test)]
mod tests;
