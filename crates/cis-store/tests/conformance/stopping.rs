//! Cancel, and its races.

use cis_core::error::ErrorCode;
use cis_core::id::RunKey;
use cis_core::retry::Failure;
use cis_core::run::{RunStatus, StopReason};
use cis_core::task::TaskStatus;
use cis_store::port::{CoordinatorStore as _, Ending, Recorded, StopRun};

use crate::fixture::{World, code};
use crate::support::{dag, failed, retry, task, with};

pub(crate) fn a_queued_run_is_cancelled_at_once(w: &mut World) {
    let run = w.go(&dag("d", vec![task("a", &[]), task("b", &[0])]));
    assert_eq!(w.stop(run, StopReason::Cancel), RunStatus::Cancelled);
    assert!(w.take(9).is_empty());
    assert_eq!(w.work_off(), 0);
    assert_eq!(w.story(run), "cancelled: cancelled cancelled");
}

pub(crate) fn a_running_run_waits_for_its_attempts(w: &mut World) {
    let mut dag = dag("d", vec![task("a", &[]), task("b", &[]), task("c", &[]), task("e", &[0])]);
    dag.max_parallel = Some(2);
    let run = w.go(&dag);
    let live = w.take(9);
    assert_eq!(w.stop(run, StopReason::OwnerGone), RunStatus::Cancelling);
    let worked = w.work();
    let mut asked: Vec<_> = worked.stop.iter().map(|(execution, _)| *execution).collect();
    asked.sort();
    assert_eq!(asked, [live[0].execution, live[1].execution]);
    assert_eq!(w.story(run), "cancelling: cancelling cancelling cancelled cancelled");
    w.end(&live[0], Ending::Stopped);
    assert!(w.take(9).is_empty());
    w.end(&live[1], failed(Failure::LeaseLost));
    assert_eq!(w.story(run), "cancelled: cancelled cancelled cancelled cancelled");
}

pub(crate) fn a_cancel_that_stops_nothing_is_a_completion(w: &mut World) {
    for worked in [false, true] {
        let run = w.go(&dag(if worked { "late" } else { "later" }, vec![task("a", &[])]));
        let a = w.take_one();
        w.stop(run, StopReason::Cancel);
        if worked {
            w.work_off();
        }
        w.end(&a, Ending::Succeeded);
        w.work_off();
        assert_eq!(w.story(run), "completed: completed");
    }
}

pub(crate) fn a_failure_during_a_cancel_is_a_failure(w: &mut World) {
    let run = w.go(&dag("d", vec![task("a", &[])]));
    let a = w.take_one();
    w.stop(run, StopReason::Cancel);
    w.work_off();
    w.end(&a, failed(Failure::Exit(3)));
    assert_eq!(w.story(run), "failed: failed");
}

/// The stop is committed, its chunk has not come to the task, and the task's end is already told.
pub(crate) fn reports_may_overtake_the_stop(w: &mut World) {
    let run = w.go(&dag(
        "d",
        ["a", "b", "c"].map(|id| task(id, &[])).into_iter().chain([task("e", &[0])]).collect(),
    ));
    let live = w.take(9);
    w.stop(run, StopReason::Cancel);
    w.end(&live[0], Ending::Succeeded);
    assert_eq!(w.end(&live[1], Ending::Stopped).recorded, [Recorded::Now(TaskStatus::Cancelled)]);
    assert_eq!(w.end(&live[2], failed(Failure::Exit(1))).recorded, [Recorded::Now(TaskStatus::Failed)]);
    assert_eq!(w.story(run), "cancelling: completed cancelled failed pending");
    assert_eq!(w.work_off(), 0);
    assert_eq!(w.story(run), "cancelled: completed cancelled failed cancelled");
}

pub(crate) fn nothing_is_retried_while_stopping(w: &mut World) {
    let mut again = with(task("a", &[]), |more| more.retry = Some(retry(9, 50)));
    again.idempotent = true;
    let tasks = vec![again.clone(), cis_core::dag::Task { id: "b".parse().unwrap(), ..again.clone() }, {
        cis_core::dag::Task { id: "c".parse().unwrap(), ..again }
    }];
    let run = w.go(&dag("d", tasks));
    let live = w.take(9);
    // `c` waits for its backoff when the run is stopped.
    w.end(&live[2], failed(Failure::Exit(1)));
    w.stop(run, StopReason::Cancel);
    w.end(&live[0], failed(Failure::Interrupted));
    w.sweep_after(50);
    w.work_off();
    w.end(&live[1], failed(Failure::Timeout));
    assert_eq!(w.story(run), "cancelled: cancelled cancelled cancelled");
}

pub(crate) fn stopping_again_changes_nothing(w: &mut World) {
    let run = w.go(&dag("d", vec![task("a", &[])]));
    let a = w.take_one();
    w.stop(run, StopReason::Cancel);
    assert_eq!(w.stop(run, StopReason::Timeout), RunStatus::Cancelling);
    w.work_off();
    w.end(&a, Ending::Stopped);
    assert_eq!(w.stop(run, StopReason::Cancel), RunStatus::Cancelled);
    assert_eq!(w.work_off(), 0);
    assert_eq!(w.story(run), "cancelled: cancelled");
}

pub(crate) fn a_run_that_is_not_there(w: &mut World) {
    let request = StopRun { key: None, run: RunKey(77), reason: StopReason::Cancel, by: None, now: w.now };
    assert_eq!(code(w.ask(|store| store.stop_run(request))), ErrorCode::NotFound);
}
