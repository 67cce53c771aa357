//! Pausing a run or a scope, and what else holds tasks back meanwhile.

use cis_core::error::ErrorCode;
use cis_core::id::{RunKey, Scope};
use cis_core::retry::Failure;
use cis_core::run::{RunStatus, StopReason};
use cis_core::task::TaskStatus;
use cis_store::port::{Answer, Ending};

use crate::fixture::{World, code, name, names};
use crate::support::{dag, failed, report, retry, task, with};

/// More than any chunk of any step.
const WIDE: u32 = 3_000;

fn pause(w: &World, run: RunKey, paused: bool) -> Answer<RunStatus> {
    w.ask(|store| store.pause_run(run, paused, None, w.now))
}

pub(crate) fn nothing_more_of_a_paused_run_is_claimed(w: &mut World) {
    let run = w.go(&dag("d", vec![task("a", &[]), task("b", &[0]), task("c", &[])]));
    let a = w.take(1).remove(0);
    assert_eq!(pause(w, run, true).unwrap(), RunStatus::Running);
    // At once, whether the step has got anywhere or not.
    assert!(w.take(9).is_empty());
    w.work_off();
    // What was live goes on, and what it makes ready waits, also when it could be claimed as it becomes ready.
    let advanced = w.advance(vec![report(&a, Ending::Succeeded, w.now)], Some(w.claim(9))).unwrap();
    assert!(advanced.claimed.is_empty());
    assert_eq!(w.story(run), "running: completed ready ready");
    w.reopen();
    assert!(w.take(9).is_empty(), "it is as durable as anything");
    assert_eq!(pause(w, run, false).unwrap(), RunStatus::Running);
    w.work_off();
    assert_eq!(names(&w.take(9)), ["c", "b"]);
}

pub(crate) fn pausing_again_changes_nothing(w: &mut World) {
    let run = w.go(&dag("d", vec![task("a", &[])]));
    for paused in [false, true, true, false, false] {
        assert_eq!(pause(w, run, paused).unwrap(), RunStatus::Queued);
    }
    // Changing one's mind before the first step has begun leaves one step.
    assert!(!w.work().more);
    w.end(&w.take_one(), Ending::Succeeded);
    for paused in [true, false] {
        assert_eq!(code(pause(w, run, paused)), ErrorCode::InvalidTransition);
        assert_eq!(code(pause(w, RunKey(77), paused)), ErrorCode::NotFound);
    }
}

pub(crate) fn a_paused_run_can_be_stopped(w: &mut World) {
    let mut wide = dag("d", (0..5).map(|n| task(&format!("t{n}"), &[])).collect());
    wide.max_parallel = Some(2);
    let run = w.go(&wide);
    let live = w.take(1).remove(0);
    pause(w, run, true).unwrap();
    assert_eq!(w.stop(run, StopReason::Cancel), RunStatus::Cancelling);
    w.work_off();
    assert_eq!(code(pause(w, run, false)), ErrorCode::InvalidTransition);
    w.end(&live, Ending::Stopped);
    assert_eq!(w.count(run, TaskStatus::Cancelled), 5);
}

/// Places are taken and given up as ever; what has one is not claimed before its run goes on.
pub(crate) fn a_pause_and_a_window(w: &mut World) {
    let mut dag = dag("d", ["a", "b", "c", "e"].map(|id| task(id, &[])).to_vec());
    dag.max_parallel = Some(2);
    let run = w.go(&dag);
    let a = w.take(1).remove(0);
    pause(w, run, true).unwrap();
    w.work_off();
    w.end(&a, Ending::Succeeded);
    assert!(w.take(9).is_empty());
    pause(w, run, false).unwrap();
    w.work_off();
    assert_eq!(names(&w.take(9)), ["b", "c"]);
    assert!(w.take(9).is_empty(), "the window is full");
}

pub(crate) fn a_pause_and_a_backoff(w: &mut World) {
    let again = |id: &str| with(task(id, &[]), |more| more.retry = Some(retry(1, 50)));
    let run = w.go(&dag("d", vec![again("a"), again("b")]));
    let live = w.take(9);
    w.end(&live[0], failed(Failure::Exit(1)));
    pause(w, run, true).unwrap();
    w.work_off();
    w.end(&live[1], failed(Failure::Exit(1)));
    w.sweep_after(50);
    assert!(w.take(9).is_empty(), "over, but paused");
    pause(w, run, false).unwrap();
    w.work_off();
    assert_eq!(names(&w.take(9)), ["a", "b"]);
}

/// However much is paused, whoever comes next finds its work; and changing one's mind half way leaves nothing behind.
pub(crate) fn a_large_pause_across_restarts(w: &mut World) {
    let tasks = std::iter::once(task("first", &[])).chain((1..WIDE).map(|n| task(&format!("t{n}"), &[0])));
    let mut large = dag("large", tasks.collect());
    large.priority = 9;
    let large = w.go(&large);
    w.work_off();
    w.end(&w.take_one(), Ending::Succeeded);
    // Paused while its tasks are still being told.
    pause(w, large, true).unwrap();
    while w.work().more {
        w.reopen();
    }
    assert_eq!(w.count(large, TaskStatus::Ready), WIDE as usize - 1);
    w.go(&dag("small", vec![task("a", &[]), task("b", &[])]));
    assert_eq!(names(&w.take(1)), ["a"]);
    pause(w, large, false).unwrap();
    assert!(w.work().more);
    pause(w, large, true).unwrap();
    w.work_off();
    assert_eq!(names(&w.take(9)), ["b"]);
    pause(w, large, false).unwrap();
    w.work_off();
    assert_eq!(w.take(WIDE).len(), WIDE as usize - 1);
}

pub(crate) fn a_run_paused_before_it_is_all_there(w: &mut World) {
    let run = w.go(&dag("d", (0..WIDE).map(|n| task(&format!("t{n}"), &[])).collect()));
    let some = w.take(3);
    pause(w, run, true).unwrap();
    w.work_off();
    assert!(w.take(9).is_empty());
    pause(w, run, false).unwrap();
    w.work_off();
    assert_eq!(w.take(WIDE).len() + some.len(), WIDE as usize);
}

pub(crate) fn nothing_of_a_paused_scope_is_claimed(w: &mut World) {
    let (ours, theirs): (Scope, Scope) = ("project-a".parse().unwrap(), "project-b".parse().unwrap());
    let in_scope = |id: &str, scope: &Scope| {
        let mut dag = dag(id, vec![task(id, &[]), task("then", &[0])]);
        dag.scope = scope.clone();
        dag
    };
    w.go(&in_scope("ours", &ours));
    let pause = |w: &World, paused| w.ask(|store| store.pause_scope(ours.clone(), paused, w.now)).unwrap();
    assert!(pause(w, true) && !pause(w, true));
    w.go(&in_scope("theirs", &theirs));
    let first = w.take_one();
    assert_eq!(name(&first), "theirs");
    w.reopen();
    // Runs that come later are paused as well.
    w.go(&in_scope("later", &ours));
    assert!(w.take(9).is_empty());
    assert!(pause(w, false) && !pause(w, false));
    assert_eq!(names(&w.take(9)), ["ours", "later"]);
}
