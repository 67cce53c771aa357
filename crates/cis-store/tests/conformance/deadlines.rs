//! What becomes due.

use cis_core::run::RunStatus;
use cis_core::source::{Millis, Timestamp};
use cis_store::port::Ending;

use crate::fixture::World;
use crate::support::{dag, task, with};

pub(crate) fn a_task_nobody_claims_times_out(w: &mut World) {
    let impatient = with(task("a", &[]), |more| more.queue_timeout = Some(Millis(10)));
    let run = w.go(&dag("d", vec![impatient, task("b", &[0]), task("c", &[])]));
    assert_eq!(w.sweep_after(9).next_due, Some(Timestamp(w.now.0 + 1)));
    w.sweep_after(1);
    assert_eq!(w.story(run), "queued: timed_out skipped ready");
    assert_eq!(w.look(run).tasks[0].cause.as_deref(), Some("nobody claimed it in time"));
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.story(run), "failed: timed_out skipped completed");
}

pub(crate) fn a_run_nobody_begins_times_out(w: &mut World) {
    let mut dag = dag("d", vec![task("a", &[]), task("b", &[0])]);
    dag.queue_timeout = Some(Millis(10));
    let run = w.go(&dag);
    let swept = w.sweep_after(10);
    assert!(swept.more_work);
    assert_eq!(
        swept.ended.iter().map(|ended| (ended.key, ended.status)).collect::<Vec<_>>(),
        [(run, RunStatus::TimedOut)]
    );
    assert!(w.take(9).is_empty());
    w.work_off();
    assert_eq!(w.story(run), "timed_out: cancelled cancelled");
}

pub(crate) fn a_run_over_its_time_is_stopped(w: &mut World) {
    let mut dag = dag("d", vec![task("a", &[]), task("b", &[0])]);
    dag.timeout = Some(Millis(10));
    let run = w.go(&dag);
    // Its time runs from its start, not from its creation.
    assert_eq!(w.sweep_after(50).next_due, None);
    let a = w.take_one();
    w.sweep_after(9);
    assert_eq!(w.story(run), "running: running pending");
    assert!(w.sweep_after(1).more_work);
    assert_eq!(w.work_off(), 1);
    assert_eq!(w.story(run), "cancelling: cancelling cancelled");
    assert_eq!(w.end(&a, Ending::Stopped).ended.len(), 1);
    assert_eq!(w.story(run), "timed_out: cancelled cancelled");
}

pub(crate) fn a_claim_in_time_ends_the_wait(w: &mut World) {
    let impatient = with(task("a", &[]), |more| more.queue_timeout = Some(Millis(10)));
    let mut dag = dag("d", vec![impatient]);
    dag.queue_timeout = Some(Millis(10));
    let run = w.go(&dag);
    let a = w.take_one();
    assert_eq!(w.sweep_after(100).next_due, None);
    assert_eq!(w.story(run), "running: running");
    w.end(&a, Ending::Succeeded);
}
