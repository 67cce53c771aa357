//! Decisions by name, and requests that are done once.

use cis_core::error::ErrorCode;
use cis_core::id::Scope;
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use cis_store::port::{
    Answer, CoordinatorStore as _, Decide, Decided, Ending, IdempotencyKey, Once, Publish, RevisionStatus,
    StartRun, StopRun, StoreError,
};

use crate::fixture::{World, code};
use crate::leases::{self, external};
use crate::support::{self, dag, run_id, task};

pub(crate) fn decide(w: &World, id: &str, by: &str, run: u64) -> Decide {
    Decide {
        key: None,
        scope: Scope::global(),
        dag_id: id.parse().unwrap(),
        content_hash: None,
        review: None,
        confirm: true,
        note: None,
        by: by.to_owned(),
        self_confirm: false,
        run_id: run_id(run),
        traceparent: None,
        now: w.now,
    }
}

fn ask(w: &World, request: Decide) -> Answer<Decided> {
    w.ask(|store| store.decide(request))?.plain()
}

fn key(name: &str, request: &str) -> Option<IdempotencyKey> {
    Some(IdempotencyKey { caller: "ann".into(), key: name.into(), request_hash: request.into() })
}

pub(crate) fn a_confirmation_starts_one_run(w: &mut World) {
    w.publish(&dag("d", vec![task("a", &[])])).unwrap();
    let first = ask(w, decide(w, "d", "bea", 1)).unwrap();
    assert!(first.changed && first.status == RevisionStatus::Confirmed);
    let again = ask(w, decide(w, "d", "carl", 2)).unwrap();
    assert!(!again.changed);
    assert_eq!(again.run.unwrap().run_id, first.run.unwrap().run_id);
    assert_eq!(code(ask(w, decide(w, "e", "bea", 3))), ErrorCode::NotFound);
    assert_eq!(
        code(ask(w, Decide { confirm: false, ..decide(w, "d", "bea", 4) })),
        ErrorCode::InvalidTransition
    );
}

pub(crate) fn publishers_do_not_confirm_their_own(w: &mut World) {
    let published = support::publish(&dag("d", vec![task("a", &[])]), w.now);
    let by = published.by.clone();
    w.ask(|store| store.publish(published)).unwrap().plain().unwrap();
    assert_eq!(code(ask(w, decide(w, "d", &by, 1))), ErrorCode::Forbidden);
    let may = Decide { self_confirm: true, ..decide(w, "d", &by, 1) };
    assert!(ask(w, may).unwrap().run.is_some());
}

pub(crate) fn owners_alone_confirm_what_was_published_without_proof(w: &mut World) {
    let did = |id: &str| Publish {
        by: "did:cis:a:1".into(),
        by_proven: false,
        ..support::publish(&dag(id, vec![task("a", &[])]), w.now)
    };
    w.ask(|store| store.publish(did("d"))).unwrap().plain().unwrap();
    // Neither an approver nor a token of the identity that was said.
    for by in ["bea", "did:cis:a:1"] {
        assert_eq!(code(ask(w, decide(w, "d", by, 1))), ErrorCode::Forbidden, "{by}");
    }
    let owner = Decide { self_confirm: true, ..decide(w, "d", "bea", 1) };
    assert!(ask(w, owner).unwrap().run.is_some());
    // Any approver may turn it down.
    w.ask(|store| store.publish(did("e"))).unwrap().plain().unwrap();
    let reject = Decide { confirm: false, ..decide(w, "e", "bea", 2) };
    assert_eq!(ask(w, reject).unwrap().status, RevisionStatus::Rejected);
}

pub(crate) fn publishing_again_neither_proves_nor_disproves_the_first_publisher(w: &mut World) {
    let publish = |id: &str, by_proven| {
        let by = if by_proven { "ann".into() } else { "did:cis:a:1".into() };
        let request = Publish { by, by_proven, ..support::publish(&dag(id, vec![task("a", &[])]), w.now) };
        w.ask(|store| store.publish(request)).unwrap().plain().unwrap().created
    };
    assert!(publish("said-first", false) && !publish("said-first", true));
    assert_eq!(code(ask(w, decide(w, "said-first", "bea", 1))), ErrorCode::Forbidden);
    assert!(publish("proven-first", true) && !publish("proven-first", false));
    assert_eq!(code(ask(w, decide(w, "proven-first", "ann", 2))), ErrorCode::Forbidden);
    assert!(ask(w, decide(w, "proven-first", "bea", 2)).unwrap().run.is_some());
    // Asked for anew after a rejection, it is its new publisher's.
    assert!(publish("rejected", true));
    ask(w, Decide { confirm: false, ..decide(w, "rejected", "bea", 3) }).unwrap();
    assert!(publish("rejected", false));
    let hash = support::publish(&dag("rejected", vec![task("a", &[])]), w.now).content_hash;
    let which = Decide { content_hash: Some(hash), ..decide(w, "rejected", "bea", 4) };
    assert_eq!(code(ask(w, which)), ErrorCode::Forbidden);
}

pub(crate) fn a_second_revision_is_decided_by_its_content(w: &mut World) {
    w.publish(&dag("d", vec![task("a", &[])])).unwrap();
    let two = Publish { new_revision: true, ..support::publish(&dag("d", vec![task("b", &[])]), w.now) };
    let two = w.ask(|store| store.publish(two)).unwrap().plain().unwrap();
    assert_eq!(code(ask(w, decide(w, "d", "bea", 1))), ErrorCode::ValidationFailed);
    let which = Decide { content_hash: Some(two.content_hash), ..decide(w, "d", "bea", 1) };
    assert_eq!(ask(w, which).unwrap().revision, two.revision);
}

pub(crate) fn a_key_is_answered_the_same(w: &mut World) {
    let one = dag("d", vec![task("a", &[])]);
    let publish = |key| Publish { key, ..support::publish(&one, w.now) };
    let first = w.ask(|store| store.publish(publish(key("k", "r")))).unwrap();
    assert!(!first.replayed && first.answer.as_ref().unwrap().created);
    let again = w.ask(|store| store.publish(publish(key("k", "r")))).unwrap();
    // Not `already_exists`: it is the answer to the same request.
    assert_eq!(again, Once { answer: first.answer, replayed: true });
    assert_eq!(
        code(w.ask(|store| store.publish(publish(key("k", "other"))))),
        ErrorCode::DuplicateIdempotencyKey
    );
    let sibling = IdempotencyKey { caller: "bob".into(), ..key("k", "other").unwrap() };
    assert!(!w.ask(|store| store.publish(publish(Some(sibling)))).unwrap().replayed);
}

pub(crate) fn a_refusal_is_kept_and_what_it_did_is_not(w: &mut World) {
    let by = support::publish(&dag("d", vec![task("a", &[])]), w.now).by;
    w.publish(&dag("d", vec![task("a", &[])])).unwrap();
    let request = |may| Decide { key: key("k", "r"), self_confirm: may, ..decide(w, "d", &by, 1) };
    let forbidden = w.ask(|store| store.decide(request(false))).unwrap();
    assert_eq!(forbidden.answer.as_ref().unwrap_err().code, ErrorCode::Forbidden);
    let again = w.ask(|store| store.decide(request(true))).unwrap();
    assert_eq!(again, Once { answer: forbidden.answer, replayed: true });
    // The run it would have had is not there.
    assert!(ask(w, decide(w, "d", "bea", 1)).unwrap().changed);
}

pub(crate) fn refusals_of_what_may_become_right_are_not_kept(w: &mut World) {
    let request = || Decide { key: key("k", "r"), ..decide(w, "d", "bea", 1) };
    assert_eq!(code(w.ask(|store| store.decide(request()))), ErrorCode::NotFound);
    w.publish(&dag("d", vec![task("a", &[])])).unwrap();
    let long = Decide { note: Some("x".repeat(10_000)), ..request() };
    assert_eq!(code(w.ask(|store| store.decide(long))), ErrorCode::ValidationFailed);
    assert_eq!(w.home.number("SELECT count(*) FROM idempotency_keys"), 0);
    let done = w.ask(|store| store.decide(request())).unwrap();
    assert!(!done.replayed && done.answer.unwrap().changed);
    assert!(w.ask(|store| store.decide(request())).unwrap().replayed, "and is then done once");
}

const DAY: i64 = 24 * 60 * 60 * 1_000;

/// As many keys as one caller may have.
const KEYS_MAX: i64 = 100_000;

/// `ann` has used so many keys already, just now.
fn use_keys(w: &World, count: i64) {
    w.home.execute(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
         INSERT INTO idempotency_keys SELECT 'ann', 'used ' || i, 'r', '{{}}', {} FROM n",
        w.now.0
    ));
}

pub(crate) fn one_caller_has_so_many_keys_and_no_more(w: &mut World) {
    use_keys(w, KEYS_MAX - 1);
    let publish = |w: &World, id: &str, key| {
        let request = Publish { key, ..support::publish(&dag(id, vec![task("a", &[])]), w.now) };
        w.ask(|store| store.publish(request))
    };
    assert!(!publish(w, "last", key("last", "r")).unwrap().replayed);
    for id in ["beyond", "once-more"] {
        let refused = match publish(w, id, key(id, "r")) {
            Err(StoreError::Refused(refused)) => refused,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused.code, ErrorCode::QuotaExceeded);
        assert!(refused.hint.unwrap().contains("without a key"));
    }
    // What was answered is answered again; without a key, or as another caller, everything goes on.
    assert!(publish(w, "last", key("last", "r")).unwrap().replayed);
    publish(w, "beyond", None).unwrap();
    let other = IdempotencyKey { caller: "bob".into(), ..key("beyond", "r").unwrap() };
    publish(w, "beyond", Some(other)).unwrap();
    // The same to a writer that has just begun.
    w.reopen();
    assert_eq!(code(publish(w, "beyond", key("beyond", "r"))), ErrorCode::QuotaExceeded);
    // After a day there is room again, though no sweep has come by.
    w.now = Timestamp(w.now.0 + DAY);
    assert!(!publish(w, "beyond", key("beyond", "r")).unwrap().replayed);
}

pub(crate) fn results_are_recorded_whatever_keys_their_worker_has(w: &mut World) {
    let run = w.go(&dag("d", vec![external("a", &[], &[]), external("b", &[], &[])]));
    let held = leases::claim(w, "ann");
    use_keys(w, KEYS_MAX);
    for held in &held {
        let request = || leases::concluding(w, held, "ann", Ending::Succeeded, key("done", "r"));
        for _ in 0..2 {
            let told = w.ask(|store| store.conclude(request())).unwrap();
            assert!(!told.replayed, "it was kept");
            assert_eq!(told.answer.unwrap().status, TaskStatus::Completed);
        }
    }
    assert_eq!(w.story(run), "completed: completed completed");
}

pub(crate) fn keys_are_forgotten_one_sweep_after_another(w: &mut World) {
    use_keys(w, 1_200);
    assert_eq!(w.sweep_after(DAY - 1).next_due, None);
    assert_eq!(w.sweep_after(1).next_due, Some(w.now));
    assert_eq!(w.sweep_after(0).next_due, Some(w.now));
    assert_eq!(w.home.number("SELECT count(*) FROM idempotency_keys"), 200);
    assert_eq!(w.sweep_after(0).next_due, None);
    assert_eq!(w.home.number("SELECT count(*) FROM idempotency_keys"), 0);
}

pub(crate) fn a_run_is_started_and_stopped_once(w: &mut World) {
    let definition = w.confirmed(&dag("d", vec![task("a", &[])]));
    let mut start = || StartRun { key: key("k", "r"), ..w.request(definition) };
    let (one, two) = (start(), start());
    let first = w.ask(|store| store.start_run(one)).unwrap();
    // Another run id, but the same request.
    let again = w.ask(|store| store.start_run(two)).unwrap();
    assert_eq!(again, Once { answer: first.answer.clone(), replayed: true });
    let run = first.answer.unwrap();
    let stop = |name, request| {
        let request = StopRun {
            key: key(name, request),
            run: run.key,
            reason: StopReason::Cancel,
            by: None,
            now: w.now,
        };
        w.ask(|store| store.stop_run(request))
    };
    assert_eq!(code(stop("k", "s")), ErrorCode::DuplicateIdempotencyKey);
    let stopped = stop("s", "s").unwrap();
    assert_eq!(stopped, Once { answer: Ok(RunStatus::Cancelled), replayed: false });
    assert!(stop("s", "s").unwrap().replayed);
    // What was refused for its own faults is done once they are gone.
    let wrong = StartRun { key: key("w", "r"), max_parallel: Some(0), ..w.request(definition) };
    assert_eq!(code(w.ask(|store| store.start_run(wrong))), ErrorCode::ValidationFailed);
    let right = StartRun { key: key("w", "r"), ..w.request(definition) };
    assert!(!w.ask(|store| store.start_run(right)).unwrap().replayed);
}

pub(crate) fn an_answer_is_kept_for_a_day(w: &mut World) {
    let one = dag("d", vec![task("a", &[])]);
    let publish = |now| Publish { key: key("k", "r"), ..support::publish(&one, now) };
    w.ask(|store| store.publish(publish(w.now))).unwrap();
    w.sweep_after(23 * 60 * 60 * 1_000);
    assert!(w.ask(|store| store.publish(publish(w.now))).unwrap().replayed);
    w.sweep_after(60 * 60 * 1_000);
    assert!(!w.ask(|store| store.publish(publish(w.now))).unwrap().replayed);
}
