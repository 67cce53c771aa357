//! The judge is given what must not be, one thing at a time, and must find each; and nothing where there is nothing.

use std::time::Duration;

use super::super::attack::plan::Tally;
use super::super::callers::GoodRun;
use super::*;

fn sample(seconds: u64) -> Sample {
    Sample {
        at: Duration::from_secs(seconds),
        memory_kib: 60 << 10,
        memory_peak_kib: 80 << 10,
        descriptors: 50,
        cpu_ticks: 100,
        disk_bytes: 1 << 20,
    }
}

fn call(kind: &'static str, ms: u64) -> Call {
    Call { kind, took: Duration::from_millis(ms), refusal: None }
}

fn sound() -> Evidence {
    let tally = Tally { connections: 1, requests: 1, bytes: 1 };
    let report = Report {
        attacks: attack::names().map(|name| (name.to_owned(), tally)).collect(),
        calls: CALLS.iter().map(|call| (call.name.to_owned(), 1)).collect(),
    };
    let run = GoodRun { dag: "d".to_owned(), run: "r".to_owned(), status: "completed".to_owned() };
    let calls = vec![call("status", 3), call("claim, waiting up to 1 s", 1_000)];
    let notes = Notes { calls, runs: vec![run], leases: 1, ..Notes::default() };
    Evidence {
        before: sample(0),
        under_siege: vec![sample(1), sample(2)],
        idle_after: Some(Duration::from_secs(2)),
        not_idle: String::new(),
        notes,
        report,
        judges_latency: true,
    }
}

fn found(change: impl FnOnce(&mut Evidence)) -> String {
    let mut evidence = sound();
    change(&mut evidence);
    violations(&evidence).join("\n")
}

#[test]
fn sound_evidence_has_no_violation() {
    assert_eq!(found(|_| ()), "");
}

#[test]
fn memory_descriptors_and_disk_beyond_their_bounds_are_found() {
    // The peak that the kernel remembers counts, though no look fell on it.
    let memory = found(|evidence| evidence.under_siege[0].memory_peak_kib = MEMORY_MAX_KIB + 1);
    assert!(memory.contains("MiB of memory"), "{memory}");
    let descriptors = found(|evidence| evidence.under_siege[1].descriptors = DESCRIPTORS_MAX + 1);
    assert!(descriptors.contains("descriptors"), "{descriptors}");
    let disk = found(|evidence| evidence.under_siege[1].disk_bytes = (2 << 20) + DISK_GROWTH_MAX);
    assert!(disk.contains("data directory grew"), "{disk}");
    let unmeasured = found(|evidence| evidence.under_siege.clear());
    assert!(unmeasured.contains("nothing was measured"), "{unmeasured}");
}

#[test]
fn lost_leases_failed_runs_and_refusals_are_found() {
    let lease = found(|evidence| evidence.notes.leases_lost.push("worker-1".to_owned()));
    assert!(lease.contains("a lease was lost"), "{lease}");
    for status in ["failed", "running", "unknown"] {
        let run = found(|evidence| evidence.notes.runs[0].status = status.to_owned());
        assert!(run.contains("a run did not complete"), "{run}");
    }
    let refused = found(|evidence| evidence.notes.calls[0].refusal = Some("429".to_owned()));
    assert!(refused.contains("a good caller was refused: 429"), "{refused}");
    let missed = found(|evidence| evidence.notes.missing.push("an event was not told".to_owned()));
    assert!(missed.contains("an event was not told"), "{missed}");
}

#[test]
fn a_node_that_does_not_rest_is_found() {
    let restless = found(|evidence| {
        evidence.idle_after = None;
        evidence.not_idle = "3 requests under way".to_owned();
    });
    assert!(restless.contains("3 requests under way"), "{restless}");
}

#[test]
fn what_keeps_a_node_busy_is_named() {
    let (before, last) = (sample(0), sample(10));
    let now = Sample { at: Duration::from_secs(11), ..last };
    assert!(busy_with(&before, &last, &now, 0).is_empty());
    let busy = [
        (Sample { cpu_ticks: last.cpu_ticks + 50, ..now }, 0, "50 % of a processor"),
        (Sample { descriptors: 500, ..now }, 0, "descriptors"),
        (Sample { memory_kib: 500 << 10, ..now }, 0, "memory"),
        (now, 3, "3 requests"),
    ];
    for (now, under_way, word) in busy {
        let said = busy_with(&before, &last, &now, under_way);
        assert!(said.len() == 1 && said[0].contains(word), "{said:?}");
    }
}

#[test]
fn slow_answers_are_found_where_latency_is_judged_and_waits_are_none() {
    let slow = |evidence: &mut Evidence| {
        evidence.notes.calls.extend((0..50).map(|_| call("status", 251)));
        evidence.notes.calls.extend((0..50).map(|_| call("status, waiting up to 2 s", 2_000)));
    };
    assert!(found(slow).contains("took up to 251 ms"));
    let unjudged = found(|evidence| {
        slow(evidence);
        evidence.judges_latency = false;
    });
    assert_eq!(unjudged, "");
    // One in a hundred may.
    let few = found(|evidence| {
        evidence.notes.calls = (0..99).map(|_| call("status", 1)).chain([call("status", 9_999)]).collect();
    });
    assert_eq!(few, "");
}

#[test]
fn attackers_and_callers_that_do_nothing_are_found() {
    for name in attack::names() {
        let idle = found(|evidence| {
            evidence.report.attacks.remove(name);
        });
        assert!(idle.contains(name), "{idle}");
    }
    let uncalled = found(|evidence| {
        evidence.report.calls.remove("PublishDag");
    });
    assert!(uncalled.contains("PublishDag"), "{uncalled}");
    let callers = found(|evidence| evidence.notes.runs.clear());
    assert!(callers.contains("no runs"), "{callers}");
}
