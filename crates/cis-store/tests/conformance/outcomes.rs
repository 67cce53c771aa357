//! How an end spreads: `run_if`, `when`, policies.

use cis_core::dag::{Dag, Policy, RunIf};
use cis_core::retry::Failure;
use cis_core::task::TaskStatus;
use cis_store::port::{Ending, StartRun};
use serde_json::json;

use crate::fixture::{World, name, names};
use crate::support::{dag, failed, handing_on, report, task, with};

fn fails(bad: &'static str) -> impl Fn(&str) -> Ending {
    move |id| if id == bad { failed(Failure::Exit(1)) } else { Ending::Succeeded }
}

pub(crate) fn dependents_are_claimed_in_the_same_transaction(w: &mut World) {
    let run = w.go(&dag("d", vec![task("a", &[]), task("b", &[0]), task("c", &[0, 1])]));
    let a = w.take_one();
    let next = w.advance(vec![report(&a, Ending::Succeeded, w.now)], Some(w.claim(9))).unwrap();
    assert_eq!(names(&next.claimed), ["b"]);
    assert!(next.ended.is_empty());
    let b = &next.claimed[0];
    let next = w.advance(vec![report(b, Ending::Succeeded, w.now)], Some(w.claim(9))).unwrap();
    let last = w.end(&next.claimed[0], Ending::Succeeded);
    assert_eq!(last.ended.iter().map(|run| run.key).collect::<Vec<_>>(), [run]);
}

/// Four outcomes of `a`, and what each rule makes of them in `b`; `c` depends on `b` with the same rule.
pub(crate) fn rules_over_every_outcome(w: &mut World) {
    let outcomes = [
        ("completed", Ending::Succeeded, "true"),
        ("failed", failed(Failure::Exit(1)), "true"),
        ("timed_out", failed(Failure::Timeout), "true"),
        ("skipped", Ending::Succeeded, "false"),
    ];
    let rules = [
        (
            RunIf::AllSuccess,
            ["completed completed", "skipped skipped", "skipped skipped", "completed completed"],
        ),
        (RunIf::AllDone, ["completed completed"; 4]),
        (RunIf::OneFailed, ["skipped skipped", "completed skipped", "completed skipped", "skipped skipped"]),
        (
            RunIf::NoneFailed,
            ["completed completed", "skipped completed", "skipped completed", "completed completed"],
        ),
    ];
    for (rule, expected) in rules {
        for ((a, ending, when), expected) in outcomes.iter().zip(expected) {
            let mut tasks = vec![task("a", &[]), task("b", &[0]), task("c", &[1])];
            tasks[0] = with(tasks[0].clone(), |more| more.when = Some((*when).to_owned()));
            (tasks[1].run_if, tasks[2].run_if) = (rule, rule);
            let run = w.go(&dag(&format!("{}-{a}", rule.word()), tasks));
            w.play(|id| if id == "a" { ending.clone() } else { Ending::Succeeded });
            let story = w.story(run);
            assert!(story.ends_with(&format!(": {a} {expected}")), "{rule:?} after {a}: {story}");
        }
    }
}

pub(crate) fn skips_cascade(w: &mut World) {
    //  a ─ b ─ c ─ d(all_done)      e ─ f
    let mut tasks = vec![
        task("a", &[]),
        task("b", &[0]),
        task("c", &[1]),
        task("d", &[2]),
        task("e", &[]),
        task("f", &[4]),
    ];
    tasks[3].run_if = RunIf::AllDone;
    let run = w.go(&dag("d", tasks));
    w.play(fails("a"));
    assert_eq!(w.story(run), "failed: failed skipped skipped completed completed completed");
    let sight = w.look(run);
    assert_eq!(sight.tasks[1].cause.as_deref(), Some("`a` did not complete"));
    assert_eq!(sight.tasks[2].cause.as_deref(), Some("`b` did not complete"));
}

pub(crate) fn when_decides(w: &mut World) {
    for (when, story) in [
        ("params.go", "completed: completed completed"),
        ("not params.go", "completed: skipped completed"),
        ("params.nope.at.all", "failed: skipped skipped"),
    ] {
        let first = with(task("a", &[]), |more| more.when = Some(when.to_owned()));
        let declares = [("go".to_owned(), json!(false))].into();
        let dag = dag(&format!("d{}", when.len()), vec![first, task("b", &[0])]);
        let definition = w.confirmed(&Dag { params: declares, ..dag });
        let params = [("go".to_owned(), json!(true))].into_iter().collect();
        let request = StartRun { params, ..w.request(definition) };
        let run = w.start(&request).unwrap().key;
        w.play(|_| Ending::Succeeded);
        assert_eq!(w.story(run), story, "{when}");
    }
}

pub(crate) fn when_sees_outputs(w: &mut World) {
    let when = |id: &str, text: &str| with(task(id, &[0]), |more| more.when = Some(text.to_owned()));
    let tasks = vec![
        task("a", &[]),
        when("many", "tasks.a.outputs.rows > 2"),
        when("few", "tasks.a.outputs.rows <= 2"),
    ];
    let run = w.go(&dag("d", tasks));
    let a = w.take_one();
    w.advance(vec![handing_on(report(&a, Ending::Succeeded, w.now), json!({"rows": 3}))], None).unwrap();
    assert_eq!(w.story(run), "running: completed ready skipped");
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.story(run), "completed: completed completed skipped");
}

pub(crate) fn all_success_counts_every_failure(w: &mut World) {
    let mut tasks = vec![task("a", &[]), task("b", &[])];
    tasks[0].debt_ignorable = true;
    let run = w.go(&dag("d", tasks));
    w.play(fails("a"));
    assert_eq!(w.story(run), "failed: failed completed");
}

pub(crate) fn first_success_stops_the_rest(w: &mut World) {
    let mut dag =
        dag("d", vec![task("a", &[]), task("b", &[0]), task("c", &[]), task("e", &[]), task("f", &[3])]);
    dag.policy = Policy::FirstSuccess;
    dag.max_parallel = Some(3);
    let run = w.go(&dag);
    let live = w.take(9);
    assert_eq!(names(&live), ["a", "c", "e"]);
    // `a` is not the end of anything; `c` is.
    w.end(&live[0], Ending::Succeeded);
    assert_eq!(w.story(run), "running: completed ready running running pending");
    let advanced = w.end(&live[1], Ending::Succeeded);
    assert!(advanced.more_work);
    assert_eq!(w.story(run), "cancelling: completed ready completed running pending");
    assert!(w.take(9).is_empty());
    assert_eq!(w.work_off(), 1);
    assert_eq!(w.story(run), "cancelling: completed cancelled completed cancelling cancelled");
    w.end(&live[2], Ending::Stopped);
    assert_eq!(w.story(run), "completed: completed cancelled completed cancelled cancelled");
}

pub(crate) fn first_success_needs_one(w: &mut World) {
    let mut two = dag("two", vec![task("a", &[]), task("b", &[])]);
    two.policy = Policy::FirstSuccess;
    let run = w.go(&two);
    w.play(|_| failed(Failure::Exit(1)));
    assert_eq!(w.story(run), "failed: failed failed");
    let mut one = dag("one", vec![task("a", &[]), task("b", &[])]);
    one.policy = Policy::FirstSuccess;
    let run = w.go(&one);
    let live = w.take(9);
    w.end(&live[0], failed(Failure::Exit(1)));
    // The last one: there is nothing left to stop.
    assert!(!w.end(&live[1], Ending::Succeeded).more_work);
    assert_eq!(name(&live[1]), "b");
    assert_eq!(w.story(run), "completed: failed completed");
}

pub(crate) fn debts_are_not_failures(w: &mut World) {
    for (bad, status) in [("a", "completed"), ("b", "failed")] {
        let mut dag = dag(bad, vec![task("a", &[]), task("b", &[])]);
        dag.policy = Policy::AllowDebt;
        dag.tasks[0].debt_ignorable = true;
        let run = w.go(&dag);
        w.play(fails(bad));
        assert_eq!(w.look(run).status.word(), status);
        assert_eq!(w.count(run, TaskStatus::Failed), 1);
    }
}
