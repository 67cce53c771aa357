//! Decisions by name, and requests that are done once.

use cis_core::error::ErrorCode;
use cis_core::id::Scope;
use cis_core::run::{RunStatus, StopReason};
use cis_store::port::{
    Answer, CoordinatorStore as _, Decide, Decided, IdempotencyKey, Once, Publish, RevisionStatus, StartRun,
    StopRun,
};

use crate::fixture::{World, code};
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
    let request = |by: &str| Decide { key: key("k", "r"), ..decide(w, "d", by, 1) };
    let missing = w.ask(|store| store.decide(request("bea"))).unwrap();
    assert_eq!(missing.answer.as_ref().unwrap_err().code, ErrorCode::NotFound);
    w.publish(&dag("d", vec![task("a", &[])])).unwrap();
    let again = w.ask(|store| store.decide(request("bea"))).unwrap();
    assert_eq!(again, Once { answer: missing.answer, replayed: true });
    // The run it would have had is not there.
    assert!(ask(w, decide(w, "d", "bea", 1)).unwrap().changed);
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
    // What was refused stays refused.
    let wrong = StartRun { key: key("w", "r"), max_parallel: Some(0), ..w.request(definition) };
    let refused = w.ask(|store| store.start_run(wrong)).unwrap();
    assert_eq!(refused.answer.as_ref().unwrap_err().code, ErrorCode::ValidationFailed);
    let right = StartRun { key: key("w", "r"), ..w.request(definition) };
    assert_eq!(w.ask(|store| store.start_run(right)).unwrap(), Once { replayed: true, ..refused });
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
