//! Runs that carry tasks over, or leave them out.

use cis_core::dag::RunIf;
use cis_core::retry::Failure;
use cis_store::port::{Ending, Fate, StartRun};
use serde_json::json;

use crate::fixture::{World, names};
use crate::support::{dag, failed, handing_on, report, task, with};

pub(crate) fn completed_tasks_are_carried_with_their_outputs(w: &mut World) {
    let asks =
        with(task("b", &[0]), |more| drop(more.env.insert("X".into(), "{{ tasks.a.outputs.n }}".into())));
    let definition = w.confirmed(&dag("d", vec![task("a", &[]), asks, task("c", &[1])]));
    let request = w.request(definition);
    let first = w.start(&request).unwrap().key;
    let a = w.take_one();
    w.advance(vec![handing_on(report(&a, Ending::Succeeded, w.now), json!({"n": 7}))], None).unwrap();
    w.end(&w.take_one(), failed(Failure::Exit(1)));
    assert_eq!(w.story(first), "failed: completed failed skipped");
    let resumed = StartRun {
        fates: Some(vec![Fate::Carry, Fate::Run, Fate::Run]),
        resumed_from: Some(first),
        ..w.request(definition)
    };
    let second = w.start(&resumed).unwrap().key;
    assert_eq!(w.story(second), "queued: completed ready pending");
    let b = w.take_one();
    assert_eq!(b.upstream.get("a"), Some(&json!({"n": 7})));
    w.end(&b, Ending::Succeeded);
    w.end(&w.take_one(), Ending::Succeeded);
    assert_eq!(w.story(second), "completed: completed completed completed");
    assert_eq!(w.story(first), "failed: completed failed skipped");
}

pub(crate) fn tasks_left_out_let_their_dependents_go(w: &mut World) {
    let definition =
        w.confirmed(&dag("d", vec![task("a", &[]), task("b", &[0]), task("c", &[1]), task("e", &[])]));
    let fates = Some(vec![Fate::Leave, Fate::Run, Fate::Leave, Fate::Leave]);
    let request = StartRun { fates, ..w.request(definition) };
    let run = w.start(&request).unwrap().key;
    assert_eq!(w.story(run), "queued: skipped ready skipped skipped");
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.story(run), "completed: skipped completed skipped skipped");
}

/// What cleans up after a failure has nothing to do where all before it is carried over, left out, or nothing.
pub(crate) fn a_rule_that_asks_for_a_failure_finds_none(w: &mut World) {
    let mut tasks =
        vec![task("a", &[]), task("clean", &[0]), task("after", &[1]), task("alone", &[]), task("b", &[])];
    (tasks[1].run_if, tasks[3].run_if) = (RunIf::OneFailed, RunIf::OneFailed);
    let definition = w.confirmed(&dag("d", tasks));
    let request = w.request(definition);
    let first = w.start(&request).unwrap().key;
    w.play(|id| if id == "b" { failed(Failure::Exit(1)) } else { Ending::Succeeded });
    assert_eq!(w.story(first), "failed: completed skipped completed skipped failed");
    let resumed = StartRun {
        fates: Some(vec![Fate::Carry, Fate::Run, Fate::Run, Fate::Run, Fate::Run]),
        resumed_from: Some(first),
        ..w.request(definition)
    };
    let second = w.start(&resumed).unwrap().key;
    assert_eq!(w.story(second), "queued: completed skipped ready skipped ready");
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.story(second), "completed: completed skipped completed skipped completed");
}

/// A file may list a task before what it depends on.
pub(crate) fn when_sees_carried_outputs_wherever_they_stand(w: &mut World) {
    let picky = with(task("b", &[1]), |more| more.when = Some("tasks.a.outputs.n == 7".into()));
    let definition = w.confirmed(&dag("d", vec![picky, task("a", &[])]));
    let request = w.request(definition);
    let first = w.start(&request).unwrap().key;
    let a = w.take_one();
    w.advance(vec![handing_on(report(&a, Ending::Succeeded, w.now), json!({"n": 7}))], None).unwrap();
    w.end(&w.take_one(), failed(Failure::Exit(1)));
    let resumed = StartRun {
        fates: Some(vec![Fate::Run, Fate::Carry]),
        resumed_from: Some(first),
        ..w.request(definition)
    };
    let second = w.start(&resumed).unwrap().key;
    assert_eq!(w.story(second), "queued: ready completed");
    assert_eq!(names(&w.take(9)), ["b"]);
}

pub(crate) fn nothing_left_to_run_is_a_completion(w: &mut World) {
    let definition = w.confirmed(&dag("d", vec![task("a", &[]), task("b", &[0])]));
    let request = StartRun { fates: Some(vec![Fate::Leave, Fate::Leave]), ..w.request(definition) };
    let run = w.start(&request).unwrap();
    assert_eq!(w.story(run.key), "completed: skipped skipped");
}
