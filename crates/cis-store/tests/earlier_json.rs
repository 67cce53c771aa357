//! JSON that earlier versions stored is read, and told as this version tells it: they wrote times as numbers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use cis_core::id::{Position, Scope};
use cis_core::retry::Failure;
use cis_core::source::Timestamp;
use cis_store::port::{Advance, Claim, CoordinatorStore as _, Decide, IdempotencyKey, Settle};
use cis_store::{Durability, Reader, SqliteStore};
use rusqlite::Connection;
use serde_json::json;
use support::{dag, failed, publish, report, retry, run_id, start, task, with};
use tempfile::TempDir;

const NOW: Timestamp = Timestamp(1_700_000_000_123);

fn opened() -> (TempDir, SqliteStore, Connection) {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    let store = SqliteStore::open(&file, Durability::Process).unwrap();
    let behind = Connection::open(&file).unwrap();
    (dir, store, behind)
}

#[test]
fn kept_answer_with_a_numeric_time_is_replayed_as_the_same_answer() {
    let (_dir, store, behind) = opened();
    let decide = || Decide {
        key: Some(IdempotencyKey { caller: "bea".into(), key: "k".into(), request_hash: "r".into() }),
        scope: Scope::global(),
        dag_id: "d".parse().unwrap(),
        content_hash: None,
        review: None,
        confirm: true,
        note: None,
        by: "bea".into(),
        self_confirm: false,
        run_id: run_id(1),
        traceparent: None,
        now: NOW,
    };
    support::runtime().block_on(async {
        store.publish(publish(&dag("d", vec![task("a", &[])]), NOW)).await.unwrap();
        let first = store.decide(decide()).await.unwrap();
        let sql = "UPDATE idempotency_keys SET answer = replace(answer, '\"2023-11-14T22:13:20.123Z\"', '1700000000123')
                   WHERE answer LIKE '%2023%'";
        assert_eq!(behind.execute(sql, []).unwrap(), 1, "times are kept as text");
        let again = store.decide(decide()).await.unwrap();
        assert!(again.replayed);
        assert_eq!(again.answer.unwrap(), first.answer.unwrap());
    });
}

#[test]
fn time_of_the_next_try_is_told_as_text_however_it_is_stored() {
    let (dir, store, behind) = opened();
    let tried_again = with(task("a", &[]), |more| more.retry = Some(retry(1, 877)));
    support::runtime().block_on(async {
        let epoch = store.open_epoch(NOW, support::boot(NOW)).await.unwrap().epoch;
        let request = publish(&dag("d", vec![tried_again]), NOW);
        let published = store.publish(request).await.unwrap().plain().unwrap();
        let (definition, content_hash) = (published.definition, published.content_hash);
        let settle = Settle { definition, content_hash, confirm: true, by: "bea".into(), now: NOW };
        store.settle(settle).await.unwrap();
        store.start_run(start(definition, run_id(1), NOW)).await.unwrap().plain().unwrap();
        let claim = Claim {
            epoch,
            holder: "local".into(),
            limit: 1,
            kinds: vec!["shell"],
            scopes: None,
            capabilities: Vec::new(),
        };
        let advance = |reports, claim| store.advance(Advance { reports, claim, now: NOW });
        let claimed = advance(vec![], Some(claim)).await.unwrap().claimed;
        advance(vec![report(&claimed[0], failed(Failure::Exit(1)), NOW)], None).await.unwrap();
    });
    let reader = Reader::open(&dir.path().join("dag.db")).unwrap();
    for stored in ["1700000001000", "\"2023-11-14T22:13:21.000Z\""] {
        let sql =
            "UPDATE events SET data = json_set(data, '$.not_before', json(?1)) WHERE step = 'try_again'";
        assert_eq!(behind.execute(sql, [stored]).unwrap(), 1);
        let log = reader.log(Position(0), 100).unwrap();
        let last = log.last().unwrap();
        assert_eq!(
            (last.step.as_str(), &last.data["not_before"]),
            ("try_again", &json!("2023-11-14T22:13:21.000Z"))
        );
        let run = reader.runs(None, 1).unwrap().remove(0);
        let (events, _) = reader.events(&run, Position(0), 100).unwrap();
        assert_eq!(events.last().unwrap().data, last.data);
    }
}
