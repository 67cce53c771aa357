//! One coordinator after another.

use cis_core::error::ErrorCode;
use cis_core::id::Epoch;
use cis_core::run::StopReason;
use cis_core::source::{BootTime, Millis};
use cis_core::task::TaskStatus;
use cis_store::port::{Claim, CoordinatorStore as _, Ending, Recorded};
use serde_json::json;

use crate::fixture::{World, code, name, names};
use crate::home::FENCES;
use crate::support::{dag, handing_on, report, task, with};

pub(crate) fn a_new_life_finds_what_is_live(w: &mut World) {
    let asks =
        with(task("b", &[0]), |more| drop(more.env.insert("X".into(), "{{ tasks.a.outputs.n }}".into())));
    let run = w.go(&dag("d", vec![task("a", &[]), asks]));
    let other = w.go(&dag("other", vec![task("c", &[])]));
    let claimed = w.take(9);
    let outcome = handing_on(report(&claimed[0], Ending::Succeeded, w.now), json!({"n": 1}));
    w.advance(vec![outcome], None).unwrap();
    let b = w.take_one();
    w.stop(other, StopReason::Cancel);
    w.work_off();
    let opening = w.reopen();
    assert!(opening.epoch > b.fence.epoch());
    assert_eq!(opening.unfinished.iter().map(|run| run.run.key).collect::<Vec<_>>(), [run, other]);
    let live: Vec<_> = opening.live.iter().map(|live| (name(&live.claim), live.fence, live.status)).collect();
    assert_eq!(live, [("c", claimed[1].fence, TaskStatus::Cancelling), ("b", b.fence, TaskStatus::Running)]);
    // Everything it needs to start it, should nobody have.
    assert_eq!(opening.live[1].claim.upstream.get("a"), Some(&json!({"n": 1})));
    assert_eq!(opening.live[1].claim.attempt, 1);
    // Their outcomes are as good as before.
    assert_eq!(w.end(&b, Ending::Succeeded).recorded, [Recorded::Now(TaskStatus::Completed)]);
    assert_eq!(w.end(&claimed[1], Ending::Stopped).recorded, [Recorded::Now(TaskStatus::Cancelled)]);
    assert!(w.reopen().unfinished.is_empty());
}

pub(crate) fn an_old_life_may_claim_no_more(w: &mut World) {
    let old = w.claim(1);
    w.opening();
    assert_eq!(code(w.advance(Vec::new(), Some(old.clone()))), ErrorCode::LeaseExpired);
    w.go(&dag("d", vec![task("a", &[])]));
    assert_eq!(code(w.advance(Vec::new(), Some(old))), ErrorCode::LeaseExpired);
    assert_eq!(names(&w.take(9)), ["a"]);
}

/// Found by the simulation: it had looked at the clock before somebody set that back.
pub(crate) fn an_old_life_calls_nothing_overdue(w: &mut World) {
    let mut waits = dag("d", vec![task("a", &[])]);
    waits.timeout = Some(Millis(60_000));
    let run = w.go(&waits);
    w.take_one();
    let (old, later) = (w.epoch, w.now.after(Millis(3_600_000)));
    w.opening();
    let swept = w.ask(|store| store.sweep(old, later, BootTime(later.0)));
    assert_eq!(code(swept), ErrorCode::LeaseExpired);
    assert_eq!(w.story(run), "running: running");
}

pub(crate) fn nobody_claims_before_a_life_begins(w: &mut World) {
    w.go(&dag("d", vec![task("a", &[])]));
    let current = w.epoch;
    w.reopen_quietly();
    for epoch in [Epoch(0), current] {
        let claim = Claim { epoch, ..w.claim(1) };
        assert_eq!(code(w.advance(Vec::new(), Some(claim))), ErrorCode::LeaseExpired);
    }
    w.opening();
    assert_eq!(names(&w.take(9)), ["a"]);
}

pub(crate) fn fences_grow_across_lives(w: &mut World) {
    w.go(&dag("d", (0..6).map(|n| task(&format!("t{n}"), &[])).collect()));
    let mut last = None;
    for _ in 0..3 {
        for claim in w.take(2) {
            assert!(Some(claim.fence) > last);
            last = Some(claim.fence);
        }
        w.reopen();
    }
}

/// A life is known by the epoch it began with, however many it took for its fences; a new one begins above all of them.
pub(crate) fn fences_grow_over_epochs_that_are_used_up(w: &mut World) {
    let count = 3 * FENCES + 1;
    w.go(&dag("d", (0..2 * count).map(|n| task(&format!("t{n}"), &[])).collect()));
    let (life, mut last) = (w.epoch, None);
    for _ in 0..count {
        for claim in w.take(1) {
            assert!(Some(claim.fence) > last);
            last = Some(claim.fence);
        }
    }
    assert_eq!(last.map(|fence| fence.epoch()), Some(Epoch(life.0 + 3)), "it took three more");
    w.reopen();
    assert_eq!(w.epoch, Epoch(life.0 + 4));
    for claim in w.take(count) {
        assert!(Some(claim.fence) > last);
        last = Some(claim.fence);
    }
}
