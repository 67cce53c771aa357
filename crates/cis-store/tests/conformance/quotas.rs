//! How much one identity may have waiting.

use cis_core::dag::stored;
use cis_core::error::ErrorCode;
use cis_core::source::Timestamp;
use cis_store::port::{
    Answer, Decide, Decided, Ending, IdempotencyKey, Once, Publish, Published, Quotas, RevisionStatus,
    RunRef, StartRun,
};

use crate::fixture::{World, code};
use crate::once::decide;
use crate::support::{self, dag, task};

const FEW: Quotas = Quotas { pending: 2, pending_bytes: 1 << 20, unfinished_runs: 2 };

fn named(id: &str, now: Timestamp) -> Publish {
    support::publish(&dag(id, vec![task("a", &[])]), now)
}

fn publish_within(w: &World, quotas: Quotas, request: Publish) -> Answer<Published> {
    w.ask(|store| async move { store.clone().within(Some(quotas)).publish(request).await })?.plain()
}

fn publish(w: &World, id: &str) -> Answer<Published> {
    publish_within(w, FEW, named(id, w.now))
}

fn start(w: &World, request: StartRun) -> Answer<RunRef> {
    w.ask(|store| async move { store.clone().within(Some(FEW)).start_run(request).await })?.plain()
}

fn confirm(w: &World, request: Decide) -> Answer<Decided> {
    w.ask(|store| async move { store.clone().within(Some(FEW)).decide(request).await })?.plain()
}

pub(crate) fn publishing_is_refused_at_the_limit_of_pending_revisions(w: &mut World) {
    let first = publish(w, "one").unwrap();
    publish(w, "two").unwrap();
    let refused = match publish(w, "three") {
        Err(cis_store::StoreError::Refused(refused)) => refused,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    assert_eq!(
        refused.details,
        serde_json::json!({"setting": "node.pending_max", "identity": "ann", "limit": 2, "count": 2})
    );
    // What is there already is answered as ever, and another identity has places of its own.
    assert!(!publish(w, "one").unwrap().created);
    let other = Publish { by: "cleo".into(), ..named("four", w.now) };
    assert!(publish_within(w, FEW, other).unwrap().created);
    // A place is free again with each decision.
    w.settle(&first, false).unwrap();
    publish(w, "three").unwrap();
    assert_eq!(code(publish(w, "five")), ErrorCode::QuotaExceeded);
    // The same to a writer that has just begun.
    w.reopen();
    assert_eq!(code(publish(w, "five")), ErrorCode::QuotaExceeded);
    // Without quotas nothing is refused.
    w.publish(&dag("five", vec![task("a", &[])])).unwrap();
}

pub(crate) fn an_expired_revision_frees_its_place(w: &mut World) {
    let expires_at = Some(Timestamp(w.now.0 + 10));
    for id in ["one", "two"] {
        publish_within(w, FEW, Publish { expires_at, ..named(id, w.now) }).unwrap();
    }
    assert_eq!(code(publish(w, "three")), ErrorCode::QuotaExceeded);
    w.sweep_after(10);
    publish(w, "three").unwrap();
}

pub(crate) fn publishing_is_refused_at_the_limit_of_pending_bytes(w: &mut World) {
    let small = Quotas { pending_bytes: 200, ..FEW };
    // One of about 70 bytes fits, one of over 200 does not.
    let first = publish_within(w, small, named("one", w.now)).unwrap();
    let long = dag("two", vec![task(&"a".repeat(60), &[]), task(&"b".repeat(60), &[])]);
    let bytes = stored::to_stored(&long).len() as u64;
    assert!(bytes > 200);
    let long = || support::publish(&long, w.now);
    assert_eq!(code(publish_within(w, small, long())), ErrorCode::QuotaExceeded);
    w.settle(&first, true).unwrap();
    let larger = Quotas { pending_bytes: bytes, ..FEW };
    publish_within(w, larger, long()).unwrap();
    assert_eq!(code(publish_within(w, larger, named("three", w.now))), ErrorCode::QuotaExceeded);
}

pub(crate) fn starting_is_refused_at_the_limit_of_unfinished_runs(w: &mut World) {
    let definition = w.confirmed(&dag("d", vec![task("a", &[])]));
    let first = w.request(definition);
    start(w, first.clone()).unwrap();
    let second = w.request(definition);
    start(w, second).unwrap();
    let third = w.request(definition);
    assert_eq!(code(start(w, third.clone())), ErrorCode::QuotaExceeded);
    // The same run again is the same run, and another identity has places of its own.
    start(w, first).unwrap();
    let other = StartRun { by: "cleo".into(), ..w.request(definition) };
    start(w, other).unwrap();
    let claim = w.take(1).remove(0);
    w.end(&claim, Ending::Succeeded);
    start(w, third).unwrap();
    let fourth = w.request(definition);
    assert_eq!(code(start(w, fourth.clone())), ErrorCode::QuotaExceeded);
    w.start(&fourth).unwrap();
}

pub(crate) fn a_confirmed_run_counts_for_its_publisher(w: &mut World) {
    for (id, run) in [("one", 901), ("two", 902), ("three", 903)] {
        w.publish(&dag(id, vec![task("a", &[])])).unwrap();
        let decided = confirm(w, decide(w, id, "bea", run));
        if id == "three" {
            assert_eq!(code(decided), ErrorCode::QuotaExceeded);
        } else {
            decided.unwrap();
        }
    }
    // The confirmer has runs of its own to start, and what was refused goes on waiting.
    let waiting = w.publish(&dag("three", vec![task("a", &[])])).unwrap();
    assert_eq!(waiting.status, RevisionStatus::Pending);
    let definition = w.publish(&dag("one", vec![task("a", &[])])).unwrap().definition;
    let own = StartRun { by: "bea".into(), ..w.request(definition) };
    start(w, own).unwrap();
    // Rejecting starts nothing, and asks for no place.
    confirm(w, Decide { confirm: false, ..decide(w, "three", "bea", 904) }).unwrap();
}

pub(crate) fn a_refusal_for_a_quota_is_not_kept_under_a_key(w: &mut World) {
    let first = publish(w, "one").unwrap();
    publish(w, "two").unwrap();
    let key = IdempotencyKey { caller: "ann".into(), key: "k".into(), request_hash: "0".repeat(64) };
    let keyed = || Publish { key: Some(key.clone()), ..named("three", w.now) };
    let ask = |request| w.ask(|store| async move { store.clone().within(Some(FEW)).publish(request).await });
    assert_eq!(code(ask(keyed()).and_then(Once::plain)), ErrorCode::QuotaExceeded);
    w.settle(&first, true).unwrap();
    let done = ask(keyed()).unwrap();
    assert!(!done.replayed && done.answer.unwrap().created);
    assert!(ask(keyed()).unwrap().replayed, "and is then done once");
}
