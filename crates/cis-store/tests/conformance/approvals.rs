//! Tasks that wait for a person.

use cis_core::dag::{Approval, Dag, InputType, OnTimeout, RunIf, Task};
use cis_core::error::ErrorCode;
use cis_core::id::{ExecutionId, RunKey};
use cis_core::retry::Failure;
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::{Millis, Timestamp};
use cis_core::task::TaskStatus;
use cis_store::port::{Answer, Approve, Approved, Ending, Fate, IdempotencyKey, Once, Publish, StartRun};
use serde_json::{Map, Value, json};

use crate::fixture::{World, code, names};
use crate::support::{self, confirmed, dag, question, task, with};

/// `bea` says yes or no to a task of `run`.
fn request(w: &World, run: RunKey, ix: usize, approve: bool) -> Approve {
    support::approve(w.look(run).tasks[ix].execution, approve, w.now)
}

fn ask(w: &World, request: Approve) -> Answer<Approved> {
    w.ask(|store| store.approve(request))?.plain()
}

fn approve(w: &World, run: RunKey, ix: usize) -> Answer<Approved> {
    ask(w, request(w, run, ix, true))
}

fn reject(w: &World, run: RunKey, ix: usize) -> Answer<Approved> {
    ask(w, request(w, run, ix, false))
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().expect("an object")
}

fn plain(id: &str, after: &[u32]) -> Task {
    question(id, after, Approval::default())
}

/// Asks for a region, and hands it on.
fn gated() -> Dag {
    let asks = Approval { input: [("region".into(), InputType::String)].into(), ..Approval::default() };
    let reads = with(task("ship", &[0]), |more| {
        drop(more.env.insert("TO".into(), "{{ tasks.ask.outputs.region }}".into()));
    });
    dag("d", vec![question("ask", &[], asks), reads])
}

/// A question that runs out after 10 ms, and what needs it.
fn impatient(on_timeout: OnTimeout) -> Dag {
    let asks = question("ask", &[], Approval { on_timeout, ..Approval::default() });
    let asks = with(asks, |more| more.timeout = Some(Millis(10)));
    dag("d", vec![asks, task("needs", &[0]), Task { run_if: RunIf::NoneFailed, ..task("goes", &[0]) }])
}

pub(crate) fn a_confirmed_task_waits_and_then_runs(w: &mut World) {
    let tried = with(confirmed(task("b", &[0])), |more| more.retry = Some(support::retry(1, 0)));
    let run = w.go(&dag("d", vec![task("a", &[]), tried, task("c", &[1])]));
    assert_eq!(w.story(run), "queued: ready pending pending");
    let a = w.take_one();
    let ended = w.advance(vec![support::report(&a, Ending::Succeeded, w.now)], Some(w.claim(9))).unwrap();
    assert!(ended.claimed.is_empty());
    assert_eq!(w.story(run), "running: completed waiting pending");
    let told = approve(w, run, 1).unwrap();
    assert!(told.approved && told.changed && told.status == TaskStatus::Ready);
    assert_eq!((told.task_id.as_str(), told.by.as_str(), told.outputs), ("b", "bea", None));
    let b = w.take_one();
    assert_eq!(w.story(run), "running: completed running pending");
    // Trying again is no new question.
    w.end(&b, support::failed(Failure::Exit(1)));
    assert_eq!(w.story(run), "running: completed ready pending");
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.story(run), "completed: completed completed completed");
}

pub(crate) fn an_approval_completes_with_what_was_given(w: &mut World) {
    let run = w.go(&gated());
    assert_eq!(w.story(run), "running: waiting pending");
    let input = object(json!({"region": "eu"}));
    let told = ask(w, Approve { input: input.clone(), ..request(w, run, 0, true) }).unwrap();
    assert_eq!((told.status, told.outputs), (TaskStatus::Completed, Some(input)));
    let ship = w.take_one();
    assert_eq!(ship.upstream.get("ask"), Some(&json!({"region": "eu"})));
    w.end(&ship, Ending::Succeeded);
    assert_eq!(w.story(run), "completed: completed completed");
}

pub(crate) fn a_rejection_fails_and_spreads(w: &mut World) {
    let cleans = Task { run_if: RunIf::OneFailed, ..task("clean", &[0]) };
    let run = w.go(&dag("d", vec![confirmed(task("a", &[])), task("b", &[0]), cleans]));
    let told = ask(w, Approve { note: Some("too late".into()), ..request(w, run, 0, false) }).unwrap();
    assert_eq!((told.approved, told.status), (false, TaskStatus::Failed));
    assert_eq!(w.story(run), "running: failed skipped ready");
    assert_eq!(w.look(run).tasks[0].cause.as_deref(), Some("rejected by bea: too late"));
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.story(run), "failed: failed skipped completed");
    // With nothing left to do, the run is over by the decision itself.
    let last = w.go(&dag("e", vec![plain("a", &[])]));
    assert_eq!(reject(w, last, 0).unwrap().run.status, RunStatus::Failed);
}

pub(crate) fn the_same_decision_is_the_same_answer(w: &mut World) {
    let run = w.go(&dag("d", vec![confirmed(task("a", &[])), plain("b", &[])]));
    let first = approve(w, run, 0).unwrap();
    let again = |by: &str| ask(w, Approve { by: by.into(), ..request(w, run, 0, true) }).unwrap();
    assert_eq!(again("carl"), Approved { changed: false, ..first.clone() });
    // However far the task has got, and whoever asks: also somebody who could not have decided.
    let a = w.take_one();
    assert_eq!(again("ann").status, TaskStatus::Ready);
    w.end(&a, Ending::Succeeded);
    assert_eq!(again("bea").by, "bea");
    let refused = reject(w, run, 1).unwrap();
    assert_eq!(reject(w, run, 1).unwrap(), Approved { changed: false, ..refused });
    assert_eq!(w.story(run), "failed: completed failed");
}

pub(crate) fn another_decision_comes_too_late(w: &mut World) {
    let run = w.go(&gated());
    let with =
        |region: &str| Approve { input: object(json!({"region": region})), ..request(w, run, 0, true) };
    ask(w, with("eu")).unwrap();
    assert_eq!(code(reject(w, run, 0)), ErrorCode::InvalidTransition);
    assert_eq!(code(ask(w, with("us"))), ErrorCode::InvalidTransition);
    assert_eq!(w.look(run).tasks[0].outputs, Some(json!({"region": "eu"})));
    let other = w.go(&dag("e", vec![confirmed(task("a", &[])), task("b", &[])]));
    reject(w, other, 0).unwrap();
    assert_eq!(code(approve(w, other, 0)), ErrorCode::InvalidTransition);
    assert_eq!(w.story(other), "running: failed ready");
}

pub(crate) fn only_what_waits_is_decided_about(w: &mut World) {
    let run = w.go(&dag("d", vec![task("a", &[]), confirmed(task("b", &[0]))]));
    assert_eq!(code(approve(w, run, 0)), ErrorCode::InvalidTransition);
    assert_eq!(code(approve(w, run, 1)), ErrorCode::InvalidTransition);
    assert_eq!(code(reject(w, run, 1)), ErrorCode::InvalidTransition);
    let nowhere = Approve { execution: ExecutionId(999), ..request(w, run, 0, true) };
    assert_eq!(code(ask(w, nowhere)), ErrorCode::NotFound);
    assert_eq!(w.story(run), "queued: ready pending");
}

pub(crate) fn what_does_not_fit_changes_nothing(w: &mut World) {
    let run = w.go(&gated());
    for input in [json!({}), json!({"region": 1}), json!({"region": "eu", "more": 1})] {
        let wrong = Approve { input: object(input), ..request(w, run, 0, true) };
        assert_eq!(code(ask(w, wrong)), ErrorCode::ValidationFailed);
    }
    let noted = Approve { note: Some("x".repeat(5_000)), ..request(w, run, 0, false) };
    assert_eq!(code(ask(w, noted)), ErrorCode::ValidationFailed);
    let other = w.go(&dag("e", vec![confirmed(task("a", &[]))]));
    let given = Approve { input: object(json!({"a": 1})), ..request(w, other, 0, true) };
    assert_eq!(code(ask(w, given)), ErrorCode::ValidationFailed);
    assert_eq!(
        (w.story(run), w.story(other)),
        ("running: waiting pending".into(), "running: waiting".into())
    );
}

pub(crate) fn publishers_do_not_approve_their_own(w: &mut World) {
    // `ann` publishes everything here.
    let run = w.go(&dag("d", vec![plain("a", &[]), plain("b", &[]), plain("c", &[])]));
    let own = |ix, approve| Approve { by: "ann".into(), ..request(w, run, ix, approve) };
    assert_eq!(code(ask(w, own(0, true))), ErrorCode::Forbidden);
    ask(w, Approve { self_confirm: true, ..own(0, true) }).unwrap();
    // Saying no to oneself is no danger to anybody.
    ask(w, own(1, false)).unwrap();
    assert_eq!(w.story(run), "running: completed failed waiting");
}

pub(crate) fn owners_alone_approve_what_was_published_without_proof(w: &mut World) {
    let asks = dag("d", vec![plain("a", &[]), plain("b", &[])]);
    let said = Publish { by_proven: false, ..support::publish(&asks, w.now) };
    w.ask(|store| store.publish(said)).unwrap().plain().unwrap();
    let run = w.go(&asks);
    assert_eq!(code(ask(w, request(w, run, 0, true))), ErrorCode::Forbidden);
    ask(w, Approve { self_confirm: true, ..request(w, run, 0, true) }).unwrap();
    ask(w, request(w, run, 1, false)).unwrap();
    assert_eq!(w.story(run), "failed: completed failed");
}

pub(crate) fn starter_of_a_run_does_not_approve_its_tasks(w: &mut World) {
    let definition = w.confirmed(&dag("d", vec![plain("a", &[]), plain("b", &[])]));
    // A confirmation starts a run too, but chooses nothing: `bea`, who confirmed, may approve.
    let by = |by: &str, by_proven, request: StartRun| StartRun { by: by.into(), by_proven, ..request };
    let confirmed = StartRun { by_confirmation: true, ..by("bea", true, w.request(definition)) };
    let run = w.start(&confirmed).unwrap().key;
    approve(w, run, 0).unwrap();
    let own = by("bea", true, w.request(definition));
    let run = w.start(&own).unwrap().key;
    assert_eq!(code(approve(w, run, 0)), ErrorCode::Forbidden);
    ask(w, Approve { by: "cleo".into(), ..request(w, run, 0, true) }).unwrap();
    ask(w, Approve { self_confirm: true, ..request(w, run, 1, true) }).unwrap();
    // Of a starter that proved nothing, no name tells who it is.
    let said = by("did:cis:a:1", false, w.request(definition));
    let run = w.start(&said).unwrap().key;
    assert_eq!(code(approve(w, run, 0)), ErrorCode::Forbidden);
    ask(w, Approve { self_confirm: true, ..request(w, run, 0, true) }).unwrap();
    reject(w, run, 1).unwrap();
}

pub(crate) fn waiting_takes_no_place(w: &mut World) {
    let tasks = vec![confirmed(task("a", &[])), plain("b", &[]), task("c", &[]), task("e", &[2])];
    let run = w.go(&Dag { max_parallel: Some(1), ..dag("d", tasks) });
    let c = w.take_one();
    assert_eq!(c.task().id.as_str(), "c");
    w.end(&c, Ending::Succeeded);
    w.end(&w.take_one(), Ending::Succeeded);
    assert_eq!(w.story(run), "running: waiting waiting completed completed");
}

pub(crate) fn an_approved_task_waits_for_its_place(w: &mut World) {
    let late = with(confirmed(task("a", &[])), |more| more.queue_timeout = Some(Millis(10)));
    let run = w.go(&Dag { max_parallel: Some(1), ..dag("d", vec![late, task("b", &[])]) });
    let b = w.take_one();
    // Its time in the queue begins when it may be claimed.
    w.sweep_after(100);
    approve(w, run, 0).unwrap();
    assert_eq!(w.story(run), "running: ready running");
    assert!(w.take(9).is_empty());
    w.end(&b, Ending::Succeeded);
    assert_eq!(names(&w.take(9)), ["a"]);
}

pub(crate) fn nobody_answers(w: &mut World) {
    for (action, then) in [
        (OnTimeout::Fail, "timed_out skipped skipped"),
        (OnTimeout::Skip, "skipped skipped ready"),
        (OnTimeout::Approve, "completed ready ready"),
    ] {
        let definition = w.confirmed(&Dag { dag_id: action.word().parse().unwrap(), ..impatient(action) });
        let started = w.request(definition);
        let run = w.start(&started).unwrap().key;
        assert_eq!(w.sweep_after(9).next_due, Some(Timestamp(w.now.0 + 1)));
        assert_eq!(w.story(run), "running: waiting pending pending");
        w.sweep_after(1);
        let status = if action == OnTimeout::Fail { "failed" } else { "running" };
        assert_eq!(w.story(run), format!("{status}: {then}"));
        let cause = (action != OnTimeout::Approve).then_some("nobody answered in time");
        assert_eq!(w.look(run).tasks[0].cause.as_deref(), cause);
        // Whoever comes now is too late, whatever it says.
        assert_eq!(code(approve(w, run, 0)), ErrorCode::InvalidTransition);
        w.play(|_| Ending::Succeeded);
        assert!(w.look(run).status.is_terminal());
    }
}

pub(crate) fn an_answer_in_time_ends_the_wait(w: &mut World) {
    let run = w.go(&impatient(OnTimeout::Fail));
    w.sweep_after(9);
    approve(w, run, 0).unwrap();
    assert_eq!(w.sweep_after(100).next_due, None);
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.story(run), "completed: completed completed completed");
}

pub(crate) fn a_stop_cancels_what_waits(w: &mut World) {
    let run = w.go(&impatient(OnTimeout::Approve));
    assert_eq!(w.stop(run, StopReason::Cancel), RunStatus::Cancelling);
    // The stop is committed, though it has not got to the task yet.
    assert_eq!(code(approve(w, run, 0)), ErrorCode::InvalidTransition);
    w.sweep_after(20);
    assert_eq!(w.story(run), "cancelling: waiting pending pending");
    w.work_off();
    assert_eq!(w.story(run), "cancelled: cancelled cancelled cancelled");
    assert_eq!(code(reject(w, run, 0)), ErrorCode::InvalidTransition);
}

pub(crate) fn the_run_has_begun_when_a_person_is_asked(w: &mut World) {
    let asking = Dag {
        queue_timeout: Some(Millis(10)),
        timeout: Some(Millis(50)),
        ..dag("d", vec![plain("a", &[]), task("b", &[0])])
    };
    let run = w.go(&asking);
    assert_eq!(w.sweep_after(49).next_due, Some(Timestamp(w.now.0 + 1)));
    assert_eq!(w.story(run), "running: waiting pending");
    w.sweep_after(1);
    w.work_off();
    assert_eq!(w.story(run), "timed_out: cancelled cancelled");
}

pub(crate) fn a_run_that_begins_in_a_sweep_is_not_late_in_it(w: &mut World) {
    let late = with(task("a", &[]), |more| more.queue_timeout = Some(Millis(10)));
    let asks = Task { run_if: RunIf::AllDone, ..plain("b", &[0]) };
    let run = w.go(&Dag { queue_timeout: Some(Millis(10)), ..dag("d", vec![late, asks]) });
    // Both have waited too long; but the end of the one lets a person be asked, and the run has begun.
    assert!(!w.sweep_after(10).more_work);
    assert_eq!(w.story(run), "running: timed_out waiting");
}

pub(crate) fn a_decision_with_a_key_is_done_once(w: &mut World) {
    let run = w.go(&dag("d", vec![plain("a", &[])]));
    let key = |request: &str| {
        Some(IdempotencyKey { caller: "bea".into(), key: "k".into(), request_hash: request.into() })
    };
    let keyed = |approve, hash| Approve { key: key(hash), ..request(w, run, 0, approve) };
    let first = w.ask(|store| store.approve(keyed(true, "yes"))).unwrap();
    assert!(!first.replayed);
    let again = w.ask(|store| store.approve(keyed(true, "yes"))).unwrap();
    assert_eq!(again, Once { answer: first.answer, replayed: true });
    assert_eq!(code(w.ask(|store| store.approve(keyed(false, "no")))), ErrorCode::DuplicateIdempotencyKey);
}

pub(crate) fn a_new_life_finds_what_waits(w: &mut World) {
    let run = w.go(&dag("d", vec![confirmed(task("a", &[])), plain("b", &[])]));
    let opening = w.reopen();
    assert_eq!(opening.unfinished.len(), 1);
    assert_eq!(w.story(run), "running: waiting waiting");
    approve(w, run, 1).unwrap();
    w.reopen();
    assert!(!approve(w, run, 1).unwrap().changed);
    approve(w, run, 0).unwrap();
    w.end(&w.take_one(), Ending::Succeeded);
    assert_eq!(w.story(run), "completed: completed completed");
}

pub(crate) fn a_resumed_run_carries_the_answer(w: &mut World) {
    let definition = w.confirmed(&gated());
    let started = w.request(definition);
    let first = w.start(&started).unwrap().key;
    ask(w, Approve { input: object(json!({"region": "eu"})), ..request(w, first, 0, true) }).unwrap();
    w.end(&w.take_one(), support::failed(Failure::Exit(1)));
    let (fates, resumed_from) = (Some(vec![Fate::Carry, Fate::Run]), Some(first));
    let resumed = StartRun { fates, resumed_from, ..w.request(definition) };
    w.start(&resumed).unwrap();
    assert_eq!(w.take_one().upstream.get("ask"), Some(&json!({"region": "eu"})));
}

pub(crate) fn many_tasks_wait_behind_one_answer(w: &mut World) {
    let mut tasks = vec![plain("ask", &[])];
    tasks.extend((0..3_000).map(|n| task(&format!("t{n}"), &[0])));
    let run = w.go(&dag("d", tasks));
    w.work_off();
    assert_eq!(w.count(run, TaskStatus::Pending), 3_000);
    approve(w, run, 0).unwrap();
    w.play(|_| Ending::Succeeded);
    assert_eq!(w.look(run).status, RunStatus::Completed);
}

pub(crate) fn pages_of_waiting_tasks_are_in_order_whatever_their_definitions(w: &mut World) {
    // Three prompts make a page. Runs of the two definitions come by turns.
    let prompt = |id: &str| format!("{id} {}", "x".repeat(300 << 10));
    let asks = |id: &str| Approval { prompt: Some(prompt(id)), ..Approval::default() };
    let definitions = ["d", "e"].map(|id| w.confirmed(&dag(id, vec![question("ask", &[], asks(id))])));
    for definition in definitions.into_iter().cycle().take(6) {
        let request = w.request(definition);
        w.start(&request).unwrap();
    }
    let reader = w.home.reader();
    let (mut after, mut told, mut pages) = (ExecutionId(0), Vec::new(), Vec::new());
    loop {
        let (page, more) = reader.waiting(|_| true, after, 100).unwrap();
        pages.push(page.len());
        after = page.last().unwrap().key;
        told.extend(page.into_iter().map(|line| (line.run.clone(), line.shown.prompt.unwrap())));
        if !more {
            break;
        }
    }
    let expected: Vec<_> =
        (1..=3).flat_map(|n| ["d", "e"].map(|id| (format!("{id}#{n}"), prompt(id)))).collect();
    assert!(told == expected, "{:?}", told.iter().map(|(run, _)| run).collect::<Vec<_>>());
    assert_eq!(pages, [3, 3]);
    let (page, more) = reader.waiting(|scope| scope.as_str() == "elsewhere", ExecutionId(0), 1).unwrap();
    assert!(page.is_empty() && !more);
}
