//! Tests of what the writer keeps of definitions and runs.

use cis_core::dag::plan::Plan;
use cis_core::dag::{self, Dag, Defaults, Format};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Revision;
use cis_core::source::Timestamp;
use serde_json::{Map, json};

use super::*;
use crate::port::{Answer, IdempotencyKey, Publish, Settle, StartRun};
use crate::sqlite::reserve::Reserve;
use crate::sqlite::steps::Chunks;
use crate::sqlite::tx::Tx;
use crate::sqlite::writer::Writer;
use crate::sqlite::{definitions, keys, migrate, runs};

const NOW: Timestamp = Timestamp(1_000_000);

fn writer(dir: &tempfile::TempDir) -> Writer {
    let conn = migrate::open(&dir.path().join("dag.db"), Default::default()).unwrap();
    Writer::start(conn, Chunks::default(), Reserve::none()).unwrap()
}

fn small(id: &str) -> Dag {
    let text = json!({"dag_id": id, "params": {"p": ""}, "tasks": [{"id": "a", "command": "true"}]});
    dag::parse(text.to_string().as_bytes(), Format::Json, &Defaults::default()).unwrap().dag
}

/// Publishes a DAG of this name; answers its key.
fn publish(tx: &mut Tx<'_>, id: &str) -> Answer<i64> {
    let dag = small(id);
    let request = Publish {
        key: None,
        content_hash: dag::content_hash(&dag).to_string(),
        dag: Arc::new(dag),
        new_revision: false,
        by: "ann".into(),
        by_proven: true,
        now: NOW,
        expires_at: None,
    };
    Ok(definitions::publish(tx, &request, None)?.definition)
}

fn refuse<T>() -> Answer<T> {
    Err(Refusal::new(ErrorCode::InvalidTransition, "on purpose").into())
}

#[tokio::test(flavor = "current_thread")]
async fn refused_operations_leave_definitions_parsed() {
    let dir = tempfile::tempdir().unwrap();
    let writer = writer(&dir);
    let key = writer.call(NOW, |tx| publish(tx, "d")).await.unwrap();
    let parsed = writer.call(NOW, move |tx| tx.definition(key)).await.unwrap();
    // Alone, with a key, and with others in one batch.
    assert!(writer.call(NOW, |_| refuse::<()>()).await.is_err());
    let keyed = IdempotencyKey { caller: "ann".into(), key: "k".into(), request_hash: "0".repeat(64) };
    let once = writer.call(NOW, move |tx| keys::once(tx, Some(&keyed), |_| refuse::<()>()));
    assert!(once.await.unwrap().answer.is_err());
    let (one, two) = tokio::join!(
        writer.call(NOW, |_| refuse::<()>()),
        writer.call(NOW, move |tx| {
            tx.definition(key)?;
            refuse::<()>()
        }),
    );
    assert!(one.is_err() && two.is_err());
    let again = writer.call(NOW, move |tx| tx.definition(key)).await.unwrap();
    assert!(Arc::ptr_eq(&parsed, &again), "it was parsed again");
}

#[tokio::test(flavor = "current_thread")]
async fn definition_of_an_undone_publication_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let writer = writer(&dir);
    let undone = |tx: &mut Tx<'_>| {
        let key = publish(tx, "undone")?;
        tx.definition(key)?;
        refuse::<()>()
    };
    // Its key is the next one's, whether it was alone, had a key of its own, or had neighbours in its batch.
    assert!(writer.call(NOW, undone).await.is_err());
    assert!(writer.call(NOW, |tx| tx.definition(1)).await.is_err(), "it is remembered");
    let alone = writer.call(NOW, |tx| publish(tx, "alone")).await.unwrap();
    let keyed = IdempotencyKey { caller: "ann".into(), key: "k".into(), request_hash: "0".repeat(64) };
    let once = writer.call(NOW, move |tx| keys::once(tx, Some(&keyed), undone));
    assert!(once.await.unwrap().answer.is_err());
    assert!(writer.call(NOW, |tx| tx.definition(2)).await.is_err(), "it is remembered");
    let keyed = writer.call(NOW, |tx| publish(tx, "keyed")).await.unwrap();
    assert_eq!((alone, keyed), (1, 2));
    let (before, refused, after) = tokio::join!(
        writer.call(NOW, |tx| publish(tx, "before")),
        writer.call(NOW, undone),
        writer.call(NOW, |tx| publish(tx, "after")),
    );
    assert!(refused.is_err());
    for (key, id) in
        [(alone, "alone"), (keyed, "keyed"), (before.unwrap(), "before"), (after.unwrap(), "after")]
    {
        let found = writer.call(NOW, move |tx| tx.definition(key)).await.unwrap();
        assert_eq!(found.dag.dag_id.as_str(), id);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn undone_removal_leaves_the_definition_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let writer = writer(&dir);
    let key = writer.call(NOW, |tx| publish(tx, "d")).await.unwrap();
    let undone = writer.call(NOW, move |tx| {
        tx.memory.definitions.remove(&key);
        // What is read meanwhile is what the operation has made of it.
        let gone = Definition {
            key,
            revision: Revision(1),
            dag: Arc::new(small("gone")),
            plan: Plan::new(&small("gone")),
        };
        tx.remember_definition(Arc::new(gone), 1);
        refuse::<()>()
    });
    assert!(undone.await.is_err());
    let found = writer.call(NOW, move |tx| tx.definition(key)).await.unwrap();
    assert_eq!(found.dag.dag_id.as_str(), "d");
}

#[test]
fn definitions_are_kept_within_bounds_and_the_oldest_go_first() {
    let mut cache = DefinitionCache::default();
    let definition = |key| {
        let dag = small("d");
        Arc::new(Definition { key, revision: Revision(1), plan: Plan::new(&dag), dag: Arc::new(dag) })
    };
    let third = DEFINITIONS_BYTES_MAX / 3;
    for key in 1..=3 {
        assert_eq!(cache.insert(definition(key), third), [0; 0]);
    }
    assert!(cache.get(1).is_some());
    assert_eq!(cache.insert(definition(4), third), [2]);
    assert_eq!(cache.insert(definition(5), DEFINITIONS_BYTES_MAX), [3, 1, 4]);
    // One that is too large alone is kept until there is another.
    assert_eq!(cache.insert(definition(6), DEFINITIONS_BYTES_MAX + 1), [5]);
    assert!(cache.contains(6));
    assert_eq!(cache.insert(definition(7), 1), [6]);
    assert_eq!(cache.bytes, 1);
    for key in 8..=8 + DEFINITIONS_MAX as i64 {
        cache.insert(definition(key), 1);
    }
    assert_eq!((cache.parsed.len(), cache.bytes), (DEFINITIONS_MAX, DEFINITIONS_MAX));
}

#[tokio::test(flavor = "current_thread")]
async fn runs_are_kept_within_bounds_and_only_with_their_definitions() {
    let dir = tempfile::tempdir().unwrap();
    let writer = writer(&dir);
    let key = writer.call(NOW, |tx| publish(tx, "d")).await.unwrap();
    let content_hash = dag::content_hash(&small("d")).to_string();
    let confirm = Settle { definition: key, content_hash, confirm: true, by: "bea".into(), now: NOW };
    writer.call(NOW, move |tx| definitions::settle(tx, &confirm)).await.unwrap();
    let each = 200 << 10;
    for run in 0..RUNS_BYTES_MAX / each + 10 {
        let params = Map::from_iter([("p".to_owned(), "x".repeat(each).into())]);
        let request = StartRun {
            key: None,
            run_id: format!("{run:032x}").parse().unwrap(),
            definition: key,
            params,
            max_parallel: None,
            attached: false,
            at_node: false,
            traceparent: None,
            fates: None,
            resumed_from: None,
            by_confirmation: false,
            by: "ann".into(),
            by_proven: true,
            now: NOW,
        };
        writer.call(NOW, move |tx| runs::start(tx, &request, None)).await.unwrap();
        let bytes = writer.call(NOW, |tx| Ok(tx.memory.runs.bytes)).await.unwrap();
        assert!((each..RUNS_BYTES_MAX + 2 * each).contains(&bytes), "{bytes}");
    }
    // A large definition takes the place of the one they have.
    let left = writer.call(NOW, |tx| {
        let dag = small("large");
        let large = Definition { key: -1, revision: Revision(1), plan: Plan::new(&dag), dag: Arc::new(dag) };
        tx.remember_definition(Arc::new(large), DEFINITIONS_BYTES_MAX);
        Ok((tx.memory.runs.rows.len(), tx.memory.runs.bytes))
    });
    assert_eq!(left.await.unwrap(), (0, 0));
}
