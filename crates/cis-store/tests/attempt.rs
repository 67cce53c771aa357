//! Who may add to the log of an attempt: its holder, with its fence, while the lease lives, within the scopes it sees.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use cis_core::dag::{Kind, Task};
use cis_core::error::ErrorCode;
use cis_core::id::{Fence, Scope};
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_store::port::{ClaimWork, CoordinatorStore as _, Holding, Settle, StoreError};
use cis_store::{Durability, Reader, SqliteStore};
use serde_json::json;
use support::{dag, publish, run_id, start, task};

const NOW: Timestamp = Timestamp(1_000_000);
const TERM: Millis = Millis(10_000);

/// A task that ann holds, and what she says of it.
async fn held(store: &SqliteStore) -> Holding {
    let task = Task { kind: Kind::External { input: Box::new(json!({})) }, ..task("a", &[]) };
    store.open_epoch(NOW, support::boot(NOW)).await.unwrap();
    let published = store.publish(publish(&dag("d", vec![task]), NOW)).await.unwrap().plain().unwrap();
    let (definition, content_hash) = (published.definition, published.content_hash);
    let settle = Settle { definition, content_hash, confirm: true, by: "bea".into(), now: NOW };
    store.settle(settle).await.unwrap();
    store.start_run(start(definition, run_id(1), NOW)).await.unwrap().plain().unwrap();
    while store.work(NOW).await.unwrap().more {}
    let (identity, since_boot) = ("ann".to_owned(), BootTime(NOW.0));
    let request = ClaimWork {
        claim_id: None,
        identity: identity.clone(),
        worker: identity.clone(),
        limit: 1,
        scopes: None,
        capabilities: Vec::new(),
        term: TERM,
        now: NOW,
        since_boot,
    };
    let held = store.claim_work(request).await.unwrap().remove(0);
    let (execution, fence) = (held.claim.execution, held.claim.fence);
    Holding { execution, fence, identity, scopes: None, now: NOW, since_boot }
}

#[test]
fn only_its_holder_is_heard_of_an_attempt() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    let store = SqliteStore::open(&file, Durability::Process).unwrap();
    let ann = support::runtime().block_on(held(&store));
    let reader = Reader::open(&file).unwrap();
    let ask = |change: fn(&mut Holding)| {
        let mut holding = ann.clone();
        change(&mut holding);
        reader.attempt(&holding).map(|line| (line.execution, line.fence, line.attempt))
    };
    let code = |change| match ask(change) {
        Err(StoreError::Refused(refusal)) => refusal.code,
        other => panic!("not a refusal: {other:?}"),
    };
    assert_eq!(ask(|_| ()).unwrap(), (ann.execution, ann.fence, 1));
    assert!(ask(|said| said.scopes = Some(vec![Scope::global()])).is_ok());
    assert!(ask(|said| said.since_boot.0 += TERM.0.cast_signed() - 1).is_ok());
    assert_eq!(code(|said| said.since_boot.0 += TERM.0.cast_signed()), ErrorCode::LeaseExpired);
    assert_eq!(code(|said| said.since_boot.0 += 10 * TERM.0.cast_signed()), ErrorCode::LeaseExpired);
    assert_eq!(code(|said| said.fence = Fence(said.fence.0 - 1)), ErrorCode::LeaseExpired);
    assert_eq!(code(|said| said.identity = "bob".into()), ErrorCode::AlreadyClaimed);
    assert_eq!(code(|said| said.scopes = Some(vec!["user-bob".parse().unwrap()])), ErrorCode::NotFound);
    assert_eq!(code(|said| said.execution.0 += 1), ErrorCode::NotFound);
}
