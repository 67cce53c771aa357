//! The decision after an attempt, and backoff.

use cis_core::retry::{Failure, Retry};
use cis_core::source::{Millis, Timestamp};
use cis_core::task::TaskStatus;
use cis_store::port::{Ending, Recorded};

use crate::fixture::{World, name};
use crate::support::{dag, failed, retry, task, with};

fn retried(id: &str, rule: Retry) -> cis_core::dag::Task {
    with(task(id, &[]), |more| more.retry = Some(rule))
}

pub(crate) fn a_backoff_is_over_when_it_is_swept(w: &mut World) {
    let run = w.go(&dag("d", vec![retried("a", retry(1, 50))]));
    let first = w.take_one();
    let advanced = w.end(&first, failed(Failure::Exit(1)));
    assert_eq!(advanced.recorded, [Recorded::Now(TaskStatus::Ready)]);
    assert_eq!(advanced.next_due, Some(Timestamp(w.now.0 + 50)));
    assert!(w.take(9).is_empty());
    w.sweep_after(49);
    assert!(w.take(9).is_empty());
    assert_eq!(w.sweep_after(1).next_due, None);
    let second = w.take_one();
    assert!(second.fence > first.fence);
    w.end(&second, failed(Failure::Exit(1)));
    assert_eq!(w.story(run), "failed: failed");
    assert_eq!(w.look(run).tasks[0].attempt, 2);
}

pub(crate) fn only_some_exit_codes_are_worth_it(w: &mut World) {
    let rule = Retry { on_exit_codes: vec![75], ..retry(9, 0) };
    let run = w.go(&dag("d", vec![retried("a", rule)]));
    w.end(&w.take_one(), failed(Failure::Exit(75)));
    // What is no exit at all is worth it whatever the codes.
    w.end(&w.take_one(), failed(Failure::Broken));
    w.end(&w.take_one(), failed(Failure::Exit(1)));
    assert_eq!(w.story(run), "failed: failed");
    assert_eq!(w.look(run).tasks[0].attempt, 3);
}

pub(crate) fn a_timeout_is_a_decision_too(w: &mut World) {
    let run = w.go(&dag("d", vec![retried("a", retry(1, 0))]));
    let again = w.end(&w.take_one(), failed(Failure::Timeout)).recorded;
    assert_eq!(again, [Recorded::Now(TaskStatus::Ready)]);
    w.end(&w.take_one(), failed(Failure::Timeout));
    assert_eq!(w.story(run), "failed: timed_out");
}

pub(crate) fn idempotent_interruptions_are_free(w: &mut World) {
    let mut tasks = vec![retried("a", retry(1, 0))];
    tasks[0].idempotent = true;
    let run = w.go(&dag("d", tasks));
    for ending in [failed(Failure::Interrupted), Ending::Stopped, failed(Failure::Interrupted)] {
        w.end(&w.take_one(), ending);
    }
    w.end(&w.take_one(), failed(Failure::Exit(1)));
    w.end(&w.take_one(), failed(Failure::Exit(1)));
    assert_eq!(w.story(run), "failed: failed");
    assert_eq!(w.look(run).tasks[0].attempt, 5);
}

pub(crate) fn other_interruptions_use_up_tries(w: &mut World) {
    let run = w.go(&dag("d", vec![retried("a", retry(1, 0))]));
    w.end(&w.take_one(), failed(Failure::Interrupted));
    w.end(&w.take_one(), failed(Failure::Interrupted));
    assert_eq!(w.story(run), "failed: failed");
}

pub(crate) fn a_backoff_frees_its_place(w: &mut World) {
    let mut dag = dag("d", vec![retried("a", retry(3, 50)), task("b", &[]), task("c", &[])]);
    dag.max_parallel = Some(1);
    let run = w.go(&dag);
    w.end(&w.take_one(), failed(Failure::Exit(1)));
    let b = w.take_one();
    assert_eq!(name(&b), "b");
    // The wait is over, but the place is taken.
    w.sweep_after(50);
    assert!(w.take(9).is_empty());
    w.end(&b, Ending::Succeeded);
    // `c` was ready before `a` was ready again.
    let c = w.take_one();
    assert_eq!(name(&c), "c");
    w.end(&c, Ending::Succeeded);
    w.end(&w.take_one(), Ending::Succeeded);
    assert_eq!(w.story(run), "completed: completed completed completed");
}

/// A task that may not be claimed yet is not one that nobody wants.
pub(crate) fn waiting_for_a_claim_begins_after_the_backoff(w: &mut World) {
    let patient = with(retried("a", retry(1, 50)), |more| more.queue_timeout = Some(Millis(10)));
    let run = w.go(&dag("d", vec![patient]));
    w.end(&w.take_one(), failed(Failure::Exit(1)));
    w.sweep_after(49);
    assert_eq!(w.story(run), "running: ready");
    w.sweep_after(1);
    assert_eq!(w.story(run), "running: ready");
    w.sweep_after(10);
    assert_eq!(w.story(run), "failed: timed_out");
}
