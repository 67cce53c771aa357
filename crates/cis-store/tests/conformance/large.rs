//! Steps too large for one transaction, also across a restart.

use cis_core::dag::{Dag, Policy, RunIf, Task};
use cis_core::retry::Failure;
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::Millis;
use cis_core::task::TaskStatus;
use cis_store::port::{Ending, Fate, StartRun};
use serde_json::json;

use crate::fixture::{World, name};
use crate::support::{dag, failed, handing_on, report, task, with};

/// More than any chunk of any step.
const WIDE: u32 = 3_000;

/// `first` → `WIDE` tasks → `last`.
fn fan() -> Dag {
    let middle = (0..WIDE).map(|n| task(&format!("m{n}"), &[0]));
    let mut tasks: Vec<Task> = std::iter::once(task("first", &[])).chain(middle).collect();
    let all: Vec<u32> = (1..=WIDE).collect();
    tasks.push(task("last", &all));
    dag("fan", tasks)
}

/// Works off what is under way, with the store going away and coming back after every chunk.
fn work_across_restarts(w: &mut World) -> usize {
    let mut chunks = 1;
    while w.work().more {
        w.reopen();
        chunks += 1;
    }
    w.reopen();
    chunks
}

pub(crate) fn a_fan_out_and_back(w: &mut World) {
    let run = w.go(&fan());
    w.work_off();
    let first = w.take_one();
    let advanced = w.end(&first, Ending::Succeeded);
    assert!(advanced.more_work, "not all of it in one transaction");
    // What has been told can start before the rest is told.
    let some = w.take(10);
    assert_eq!(some.len(), 10);
    let reports = some.iter().map(|claim| report(claim, Ending::Succeeded, w.now)).collect();
    w.advance(reports, None).unwrap();
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.look(run).status, RunStatus::Completed);
    assert_eq!(w.count(run, TaskStatus::Completed), WIDE as usize + 2);
}

pub(crate) fn a_fan_out_across_restarts(w: &mut World) {
    let run = w.go(&fan());
    assert!(work_across_restarts(w) > 2);
    let first = w.take_one();
    w.end(&first, failed(Failure::Exit(1)));
    assert!(work_across_restarts(w) > 2);
    assert_eq!(w.look(run).status, RunStatus::Failed);
    assert_eq!(w.count(run, TaskStatus::Skipped), WIDE as usize + 1);
}

pub(crate) fn a_cancel_across_restarts(w: &mut World) {
    let run = w.go(&fan());
    w.work_off();
    w.end(&w.take_one(), Ending::Succeeded);
    let live = w.take(100);
    // Stopped while its dependents are still being told.
    w.stop(run, StopReason::Cancel);
    assert!(work_across_restarts(w) > 2);
    assert_eq!(w.count(run, TaskStatus::Cancelling), 100);
    assert_eq!(w.reopen().live.len(), 100);
    let reports = live.iter().map(|claim| report(claim, Ending::Stopped, w.now)).collect();
    w.advance(reports, None).unwrap();
    assert_eq!(w.look(run).status, RunStatus::Cancelled);
    assert_eq!(w.count(run, TaskStatus::Cancelled), WIDE as usize + 1);
}

/// `WIDE` tasks that wait for nothing, some of which have begun when the rest is not there yet.
fn half_created(
    w: &mut World,
    dag: &Dag,
) -> (cis_core::id::RunKey, std::sync::Arc<cis_store::port::Claimed>) {
    let run = w.go(dag);
    while w.take(0).is_empty() && w.look(run).tasks.len() < 1_500 {
        w.work();
    }
    assert!(w.look(run).tasks.len() < WIDE as usize);
    let mut claimed = w.take(1);
    (run, claimed.pop().expect("something that can start"))
}

fn wide(name: &str) -> Dag {
    dag(name, (0..WIDE).map(|n| task(&format!("t{n}"), &[])).collect())
}

pub(crate) fn a_cancel_before_it_is_all_there(w: &mut World) {
    let (run, claim) = half_created(w, &wide("d"));
    assert_eq!(w.stop(run, StopReason::Cancel), RunStatus::Cancelling);
    // In the middle of it everything still adds up.
    w.work();
    assert_eq!(w.home.violations(), [""; 0]);
    work_across_restarts(w);
    w.end(&claim, Ending::Stopped);
    assert_eq!(w.look(run).status, RunStatus::Cancelled);
    assert_eq!(w.count(run, TaskStatus::Cancelled), WIDE as usize);
}

pub(crate) fn a_timeout_before_it_is_all_there(w: &mut World) {
    let mut dag = wide("d");
    dag.queue_timeout = Some(Millis(10));
    let run = w.go(&dag);
    assert!(w.sweep_after(10).more_work);
    assert_eq!(w.look(run).status, RunStatus::TimedOut);
    work_across_restarts(w);
    assert_eq!(w.count(run, TaskStatus::Cancelled), WIDE as usize);
}

pub(crate) fn a_chain_of_skips(w: &mut World) {
    let links =
        (0..WIDE).map(|n| task(&format!("t{n}"), &n.checked_sub(1).map_or(vec![], |before| vec![before])));
    let run = w.go(&dag("chain", links.collect()));
    w.work_off();
    w.end(&w.take_one(), failed(Failure::Exit(1)));
    assert!(work_across_restarts(w) > 2);
    assert_eq!(w.look(run).status, RunStatus::Failed);
    assert_eq!(w.count(run, TaskStatus::Skipped), WIDE as usize - 1);
}

/// The budget of a transaction runs out while many skipped tasks have their own dependents to tell.
pub(crate) fn wide_layers_of_skips(w: &mut World) {
    let width = 400;
    let mut tasks = vec![task("root", &[])];
    tasks.extend((0..width).map(|n| task(&format!("a{n}"), &[0])));
    tasks.extend((0..width).map(|n| task(&format!("b{n}"), &[1 + n, 1 + (n + 1) % width])));
    for n in 0..width {
        let mut end = task(&format!("c{n}"), &[1 + width + n]);
        end.run_if = if n % 2 == 0 { RunIf::AllDone } else { RunIf::NoneFailed };
        tasks.push(end);
    }
    let run = w.go(&dag("layers", tasks.into_iter().map(sorted).collect()));
    w.work_off();
    w.end(&w.take_one(), failed(Failure::Exit(1)));
    assert!(work_across_restarts(w) > 1);
    assert_eq!(w.count(run, TaskStatus::Skipped), 2 * width as usize);
    assert_eq!(w.count(run, TaskStatus::Ready), width as usize);
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.look(run).status, RunStatus::Failed);
}

/// Dependencies are sorted in a definition.
fn sorted(mut task: Task) -> Task {
    task.depends_on.sort();
    task
}

pub(crate) fn a_first_success_while_others_are_told(w: &mut World) {
    let middle = (0..WIDE).map(|n| task(&format!("m{n}"), &[0]));
    let mut dag = dag("race", std::iter::once(task("first", &[])).chain(middle).collect());
    dag.policy = Policy::FirstSuccess;
    let run = w.go(&dag);
    w.work_off();
    w.end(&w.take_one(), Ending::Succeeded);
    let live = w.take(3);
    assert!(w.end(&live[1], Ending::Succeeded).more_work);
    assert_eq!(w.look(run).status, RunStatus::Cancelling);
    work_across_restarts(w);
    w.end(&live[0], Ending::Stopped);
    w.end(&live[2], Ending::Succeeded);
    assert_eq!(w.look(run).status, RunStatus::Completed);
    assert_eq!(w.count(run, TaskStatus::Completed), 3);
    assert_eq!(w.count(run, TaskStatus::Cancelled), WIDE as usize - 2);
}

pub(crate) fn a_window_over_a_fan_out(w: &mut World) {
    let mut dag = fan();
    dag.max_parallel = Some(2);
    dag.tasks[2_000].priority = 1;
    let run = w.go(&dag);
    work_across_restarts(w);
    w.end(&w.take_one(), Ending::Succeeded);
    let mut live = w.take(100);
    assert_eq!(live.len(), 2, "the window holds while the rest is told");
    work_across_restarts(w);
    assert!(w.take(100).is_empty());
    // The most urgent of those held back is let in first, whichever chunk told it.
    w.end(&live.remove(0), Ending::Succeeded);
    let next = w.take(100);
    assert_eq!(next.iter().map(|claim| name(claim)).collect::<Vec<_>>(), ["m1999"]);
    w.stop(run, StopReason::Cancel);
    w.work_off();
    for claim in live.iter().chain(&next) {
        w.end(claim, Ending::Stopped);
    }
    assert_eq!(w.look(run).status, RunStatus::Cancelled);
}

/// What a task hands on is there for the first that can start, however many tasks are carried over with it.
pub(crate) fn a_large_run_carried_over(w: &mut World) {
    let asks = with(task("asks", &[WIDE]), |more| {
        drop(more.env.insert("X".into(), "{{ tasks.gives.outputs.n }}".into()))
    });
    let mut tasks = vec![asks];
    tasks.extend((1..WIDE).map(|n| task(&format!("t{n}"), &[])));
    tasks.push(task("gives", &[]));
    let definition = w.confirmed(&dag("d", tasks));
    let request = w.request(definition);
    let first = w.start(&request).unwrap().key;
    w.work_off();
    let claimed = w.take(WIDE);
    let reports =
        claimed.iter().map(|claim| handing_on(report(claim, Ending::Succeeded, w.now), json!({"n": 7})));
    w.advance(reports.collect(), None).unwrap();
    w.end(&w.take_one(), failed(Failure::Exit(1)));
    let mut fates = vec![Fate::Carry; WIDE as usize + 1];
    fates[0] = Fate::Run;
    let resumed = StartRun { fates: Some(fates), resumed_from: Some(first), ..w.request(definition) };
    let second = w.start(&resumed).unwrap().key;
    let mut taken = w.take(9);
    while taken.is_empty() {
        w.work();
        taken = w.take(9);
    }
    assert_eq!(taken[0].upstream.get("gives"), Some(&json!({"n": 7})));
    w.end(&taken[0], Ending::Succeeded);
    w.work_off();
    assert_eq!(w.look(second).status, RunStatus::Completed);
    assert_eq!(w.count(second, TaskStatus::Completed), WIDE as usize + 1);
}

/// A run is not over before all its tasks are there to be seen.
pub(crate) fn a_large_run_of_nothing_to_do(w: &mut World) {
    let definition = w.confirmed(&wide("d"));
    let request = StartRun { fates: Some(vec![Fate::Leave; WIDE as usize]), ..w.request(definition) };
    let run = w.start(&request).unwrap();
    assert_eq!(run.status, RunStatus::Queued);
    work_across_restarts(w);
    assert_eq!(w.look(run.key).status, RunStatus::Completed);
    assert_eq!(w.count(run.key, TaskStatus::Skipped), WIDE as usize);
}
