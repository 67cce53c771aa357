//! Order, filters, windows, fences.

use cis_core::dag::{Kind, SkillCall};
use cis_core::error::ErrorCode;
use cis_core::id::{Epoch, Fence, Scope};
use cis_core::retry::Failure;
use cis_core::run::StopReason;
use cis_core::source::Millis;
use cis_store::port::{Claim, Ending, Recorded};
use serde_json::json;

use crate::fixture::{World, code, name, names};
use crate::support::{dag, failed, handing_on, report, task, with};

pub(crate) fn priority_first_then_ready_order(w: &mut World) {
    let mut tasks = vec![task("a", &[]), task("b", &[]), task("c", &[]), task("d", &[])];
    tasks[2].priority = 5;
    tasks[3].priority = -1;
    w.go(&dag("first", tasks));
    let mut urgent = dag("second", vec![task("e", &[]), task("f", &[])]);
    urgent.priority = 3;
    urgent.tasks[1].priority = 2;
    w.go(&urgent);
    assert_eq!(names(&w.take(3)), ["c", "f", "e"]);
    assert_eq!(names(&w.take(10)), ["a", "b", "d"]);
}

pub(crate) fn the_lowest_priority_is_last(w: &mut World) {
    let mut tasks = vec![task("last", &[]), task("middle", &[]), task("first", &[])];
    (tasks[0].priority, tasks[2].priority) = (i32::MIN, i32::MAX);
    w.go(&dag("d", tasks));
    assert_eq!(names(&w.take(10)), ["first", "middle", "last"]);
}

/// A task that goes back to ready stands behind what was ready before.
pub(crate) fn what_is_ready_later_comes_later(w: &mut World) {
    let mut tasks = vec![task("early", &[])];
    tasks[0].idempotent = true;
    w.go(&dag("one", tasks));
    let early = w.take_one();
    w.go(&dag("two", vec![task("x", &[]), task("y", &[])]));
    w.end(&early, failed(Failure::Interrupted));
    assert_eq!(names(&w.take(10)), ["x", "y", "early"]);
}

pub(crate) fn kinds_and_scopes_are_filters(w: &mut World) {
    let mut tasks = vec![task("shell", &[]), task("skill", &[])];
    tasks[1].kind = Kind::Skill(Box::new(SkillCall { skill: "echo".into(), input: json!({}) }));
    w.go(&dag("ours", tasks.clone()));
    let mut theirs = dag("theirs", tasks);
    theirs.scope = "user-x".parse().unwrap();
    w.go(&theirs);
    let scopes = Some(vec!["user-x".parse::<Scope>().unwrap()]);
    let taken = |claim: Claim| {
        let claimed = w.advance(Vec::new(), Some(claim)).unwrap().claimed;
        claimed.iter().map(|c| format!("{}/{}", c.run.definition.dag.dag_id, name(c))).collect::<Vec<_>>()
    };
    assert_eq!(taken(Claim { kinds: vec![], ..w.claim(9) }), [""; 0]);
    assert_eq!(taken(Claim { scopes: Some(vec![]), ..w.claim(9) }), [""; 0]);
    assert_eq!(taken(Claim { kinds: vec!["skill"], scopes: scopes.clone(), ..w.claim(9) }), ["theirs/skill"]);
    assert_eq!(taken(Claim { kinds: vec!["skill"], ..w.claim(9) }), ["ours/skill"]);
    assert_eq!(taken(Claim { scopes, ..w.claim(9) }), ["theirs/shell"]);
    assert_eq!(taken(w.claim(0)), [""; 0]);
    assert_eq!(taken(w.claim(9)), ["ours/shell"]);
}

/// Also by what is recorded in the same breath.
pub(crate) fn what_has_just_become_ready_is_filtered_too(w: &mut World) {
    let mut tasks = vec![task("first", &[]), task("shell", &[0]), task("skill", &[0])];
    tasks[2].kind = Kind::Skill(Box::new(SkillCall { skill: "echo".into(), input: json!({}) }));
    w.go(&dag("d", tasks));
    let first = w.take_one();
    let claim = Claim { kinds: vec!["shell"], ..w.claim(9) };
    let advanced = w.advance(vec![report(&first, Ending::Succeeded, w.now)], Some(claim)).unwrap();
    assert_eq!(names(&advanced.claimed), ["shell"]);
    assert_eq!(names(&w.take(9)), ["skill"]);
}

pub(crate) fn a_window_never_holds_more_than_it_may(w: &mut World) {
    let mut dag = dag("d", (0..7).map(|n| task(&format!("t{n}"), &[])).collect());
    dag.max_parallel = Some(2);
    let run = w.go(&dag);
    let mut live = w.take(10);
    let mut seen = Vec::new();
    while let Some(claim) = live.pop() {
        assert!(live.len() < 2);
        seen.push(name(&claim).to_owned());
        assert!(w.take(10).is_empty(), "the window is full");
        let ending = if seen.len() % 2 == 0 { Ending::Succeeded } else { failed(Failure::Exit(1)) };
        w.end(&claim, ending);
        live.extend(w.take(10));
    }
    seen.sort();
    assert_eq!(seen.len(), 7);
    assert!(w.story(run).starts_with("failed"));
}

pub(crate) fn a_window_lets_in_the_most_urgent(w: &mut World) {
    let mut tasks: Vec<_> = ["a", "b", "c", "d"].map(|id| task(id, &[])).to_vec();
    (tasks[2].priority, tasks[3].priority) = (1, 9);
    let mut dag = dag("d", tasks);
    dag.max_parallel = Some(1);
    w.go(&dag);
    let mut order = Vec::new();
    while let Some(claim) = w.take(10).pop() {
        order.push(name(&claim).to_owned());
        w.end(&claim, Ending::Succeeded);
    }
    assert_eq!(order, ["d", "c", "a", "b"]);
}

/// Whether they wait for nothing or for the same, and whoever stands first in the file.
pub(crate) fn a_window_lets_in_the_most_urgent_of_those_that_come_at_once(w: &mut World) {
    let mut tasks = vec![task("gate", &[])];
    tasks.extend((0..6).map(|n| cis_core::dag::Task { priority: n, ..task(&format!("t{n}"), &[0]) }));
    let mut dag = dag("d", tasks);
    dag.max_parallel = Some(2);
    w.go(&dag);
    let gate = w.take_one();
    let advanced = w.advance(vec![report(&gate, Ending::Succeeded, w.now)], Some(w.claim(9))).unwrap();
    assert_eq!(names(&advanced.claimed), ["t5", "t4"]);
    w.end(&advanced.claimed[1], Ending::Succeeded);
    assert_eq!(names(&w.take(9)), ["t3"]);
}

/// Two tasks of a window of one give up waiting in the same sweep; the third must still get its place.
pub(crate) fn a_place_given_up_in_a_sweep_is_free_again(w: &mut World) {
    let impatient = |id: &str| with(task(id, &[]), |more| more.queue_timeout = Some(Millis(10)));
    let mut dag = dag("d", vec![impatient("a"), impatient("b"), task("c", &[]), task("e", &[])]);
    dag.max_parallel = Some(1);
    let run = w.go(&dag);
    w.sweep_after(10);
    assert_eq!(w.story(run), "queued: timed_out timed_out ready ready");
    let c = w.take_one();
    w.end(&c, Ending::Succeeded);
    let e = w.take_one();
    assert_eq!((name(&c), name(&e)), ("c", "e"));
}

pub(crate) fn stopping_runs_keep_nobody_from_work(w: &mut World) {
    let mut doomed = dag("doomed", (0..20).map(|n| task(&format!("t{n}"), &[])).collect());
    doomed.priority = 9;
    let doomed = w.go(&doomed);
    w.go(&dag("other", vec![task("a", &[]), task("b", &[])]));
    w.stop(doomed, StopReason::Cancel);
    assert_eq!(names(&w.take(1)), ["a"]);
    w.work_off();
    assert_eq!(names(&w.take(1)), ["b"]);
}

pub(crate) fn a_stale_fence_changes_nothing(w: &mut World) {
    let mut tasks = vec![task("a", &[])];
    tasks[0].idempotent = true;
    let run = w.go(&dag("d", tasks));
    let first = w.take_one();
    w.end(&first, failed(Failure::Interrupted));
    let stale = |w: &World| w.end(&first, Ending::Succeeded).recorded == [Recorded::Stale];
    assert!(stale(w), "nobody holds it");
    let second = w.take_one();
    assert!(second.fence > first.fence && second.attempt == 2);
    assert!(stale(w), "somebody else holds it");
    let mut made_up = report(&second, Ending::Succeeded, w.now);
    made_up.fence = Fence(second.fence.0 + 1);
    assert_eq!(w.advance(vec![made_up], None).unwrap().recorded, [Recorded::Stale]);
    assert_eq!(w.story(run), "running: running");
    w.end(&second, Ending::Succeeded);
    assert_eq!(w.end(&second, failed(Failure::Exit(1))).recorded, [Recorded::Stale], "it is over");
    assert_eq!(w.story(run), "completed: completed");
}

pub(crate) fn a_refused_claim_is_told_whatever_is_ready(w: &mut World) {
    let run = w.go(&dag("d", vec![task("a", &[])]));
    let claim = w.take_one();
    let strange = Claim { epoch: Epoch(w.epoch.0 + 1), ..w.claim(1) };
    let reports = vec![report(&claim, Ending::Succeeded, w.now)];
    assert_eq!(code(w.advance(reports, Some(strange))), ErrorCode::LeaseExpired);
    // Nothing changed, so the outcome can still be recorded.
    assert_eq!(w.story(run), "running: running");
    w.end(&claim, Ending::Succeeded);
}

pub(crate) fn outputs_reach_those_who_ask(w: &mut World) {
    let asks =
        |id: &str, text: &str| with(task(id, &[0]), |more| drop(more.env.insert("X".into(), text.into())));
    w.go(&dag("d", vec![task("a", &[]), asks("b", "{{ tasks.a.outputs.rows }}"), asks("c", "plain")]));
    let a = w.take_one();
    let outcome = handing_on(report(&a, Ending::Succeeded, w.now), json!({"rows": 3}));
    let claimed = w.advance(vec![outcome], Some(w.claim(9))).unwrap().claimed;
    assert_eq!(names(&claimed), ["b", "c"]);
    assert_eq!(claimed[0].upstream.get("a"), Some(&json!({"rows": 3})));
    assert!(claimed[1].upstream.is_empty());
}

pub(crate) fn the_environment_of_a_dag_may_ask_too(w: &mut World) {
    let mut dag = dag("d", vec![task("a", &[]), task("b", &[0])]);
    dag.env.insert("X".into(), "{{ tasks.a.outputs.rows if tasks.a else 0 }}".into());
    w.go(&dag);
    let a = w.take_one();
    w.advance(vec![handing_on(report(&a, Ending::Succeeded, w.now), json!({"rows": 3}))], None).unwrap();
    assert_eq!(w.take_one().upstream.get("a"), Some(&json!({"rows": 3})));
}
