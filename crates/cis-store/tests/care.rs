//! What a store is asked by whoever looks after it: every lie in it is found, a copy is one moment of it, a damaged file
//! is named as such and left as it is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Epoch, Position};
use cis_core::retry::Failure;
use cis_core::run::StopReason;
use cis_core::source::Timestamp;
use cis_store::check::{self, Check};
use cis_store::port::{Advance, Advanced, Claim, CoordinatorStore as _, Ending, Settle, StopRun};
use cis_store::{Copy, Durability, Label, Moment, Reader, SqliteStore};
use cis_store::{StoreError, port};
use rusqlite::Connection;
use support::{dag, failed, publish, report, retry, run_id, start, task, with};

const NOW: Timestamp = Timestamp(1_000_000);

fn open(file: &Path) -> SqliteStore {
    SqliteStore::open(file, Durability::Process).unwrap()
}

async fn begin(store: &SqliteStore) -> Epoch {
    store.open_epoch(NOW, support::boot(NOW)).await.unwrap().epoch
}

/// Publishes, confirms and starts; answers the run.
async fn go(store: &SqliteStore, id: &str, tasks: Vec<cis_core::dag::Task>, n: u64) -> port::RunRef {
    let published = store.publish(publish(&dag(id, tasks), NOW)).await.unwrap().plain().unwrap();
    let (definition, content_hash) = (published.definition, published.content_hash);
    let settle = Settle { definition, content_hash, confirm: true, by: "bea".into(), now: NOW };
    store.settle(settle).await.unwrap();
    store.start_run(start(definition, run_id(n), NOW)).await.unwrap().plain().unwrap()
}

async fn claim(store: &SqliteStore, epoch: Epoch, limit: u32) -> Advanced {
    let (holder, kinds, scopes, capabilities) = ("local".into(), vec!["shell"], None, Vec::new());
    let claim = Claim { epoch, holder, limit, kinds, scopes, capabilities };
    store.advance(Advance { reports: Vec::new(), claim: Some(claim), now: NOW }).await.unwrap()
}

async fn end(store: &SqliteStore, claimed: &port::Claimed, ending: Ending) {
    let reports = vec![report(claimed, ending, NOW)];
    store.advance(Advance { reports, claim: None, now: NOW }).await.unwrap();
}

/// A store in which something of everything has happened: a run that completed, one on its second try, one that was
/// stopped, one whose task has not begun, and a revision nobody confirmed.
fn eventful(file: &Path) {
    let store = open(file);
    support::runtime().block_on(async {
        let epoch = begin(&store).await;
        go(&store, "done", vec![task("a", &[]), task("b", &[0])], 1).await;
        for _ in 0..2 {
            let claimed = claim(&store, epoch, 1).await.claimed;
            end(&store, &claimed[0], Ending::Succeeded).await;
        }
        go(&store, "again", vec![with(task("a", &[]), |more| more.retry = Some(retry(3, 0)))], 2).await;
        let claimed = claim(&store, epoch, 1).await.claimed;
        end(&store, &claimed[0], failed(Failure::Exit(1))).await;
        claim(&store, epoch, 1).await;
        let stopped = go(&store, "stopped", vec![task("a", &[])], 3).await.key;
        store
            .stop_run(StopRun { key: None, run: stopped, reason: StopReason::Cancel, by: None, now: NOW })
            .await
            .unwrap();
        while store.work(NOW).await.unwrap().more {}
        go(&store, "later", vec![task("a", &[])], 4).await;
        store.publish(publish(&dag("asked", vec![task("a", &[])]), NOW)).await.unwrap();
    });
    store.close();
}

#[test]
fn whatever_the_rows_say_beyond_the_events_is_found() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    eventful(&file);
    assert_eq!(check::violations(&Reader::open(&file).unwrap()).unwrap(), [""; 0]);
    for (lie, told) in [
        ("UPDATE dag_runs SET version = 9 WHERE run_key = 1", "done#1: events say completed (version 3"),
        ("UPDATE dag_runs SET started_at = 5 WHERE run_key = 1", "the row completed (version 3, started 5,"),
        ("UPDATE dag_runs SET completed_at = 5 WHERE run_key = 1", "over 5)"),
        ("UPDATE dag_runs SET stop_reason = 'timeout' WHERE run_key = 3", "stopped by timeout"),
        ("UPDATE dag_runs SET status = 'running' WHERE run_key = 4", "later#1: events say queued"),
        ("UPDATE task_executions SET attempt = 3 WHERE run_key = 2", "again#1, task 0: events say running"),
        ("UPDATE task_executions SET version = 1 WHERE run_key = 2", "again#1, task 0"),
        ("UPDATE task_executions SET status = 'pending' WHERE run_key = 4", "events say ready"),
        ("DELETE FROM task_executions WHERE run_key = 4", "0 tasks have rows"),
        ("DELETE FROM events WHERE run_key = 2 AND step = 'try_again'", "again#1: event"),
        ("DELETE FROM events WHERE run_key = 3 AND step = 'create'", "run 3 was never created"),
        ("DELETE FROM events WHERE run_key = 4", "no event tells of run 4"),
        ("UPDATE events SET run_key = 77 WHERE run_key = 4", "there is no run 77"),
        ("UPDATE dag_definitions SET status = 'expired' WHERE status = 'pending'", "revision 5: events say"),
        ("DELETE FROM events WHERE definition_key = 5", "revision 5: events say None"),
        (
            "UPDATE events SET step = 'confirm' WHERE definition_key = 5",
            "revision 5 is pending at version 1 by `confirm`",
        ),
        (
            "UPDATE events SET step = 'reject' WHERE definition_key = 4 AND step = 'confirm'",
            "revision 4 is confirmed at version 2 by `reject`, after pending at version 1",
        ),
        ("UPDATE events SET definition_key = 77 WHERE definition_key = 5", "there is no revision 77"),
    ] {
        let copy = dir.path().join("lying.db");
        std::fs::copy(&file, &copy).unwrap();
        let changed = Connection::open(&copy).unwrap().execute(lie, []).unwrap();
        let found = Check::Events.violations(&Reader::open(&copy).unwrap()).unwrap();
        assert!(changed > 0 && found.iter().any(|line| line.contains(told)), "{lie}: {found:#?}");
    }
}

/// Publishes until it is told to stop; answers how many were acknowledged.
fn publisher(store: SqliteStore, enough: Arc<AtomicBool>, acknowledged: Arc<AtomicU64>) {
    support::runtime().block_on(async {
        let mut n = 0;
        while !enough.load(Ordering::SeqCst) {
            go(&store, &format!("d{n}"), vec![task("a", &[])], 1_000 + n).await;
            n += 1;
            acknowledged.store(n, Ordering::SeqCst);
        }
    });
}

#[test]
fn a_copy_taken_under_load_is_one_moment_and_holds_all_that_was_acknowledged_before() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    let store = open(&file);
    support::runtime().block_on(begin(&store));
    let (enough, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = std::thread::spawn({
        let (store, enough, acknowledged) = (store.clone(), enough.clone(), acknowledged.clone());
        move || publisher(store, enough, acknowledged)
    });
    let mut taken = Vec::new();
    while taken.len() < 5 {
        let before = acknowledged.load(Ordering::SeqCst);
        if before < 20 * (taken.len() as u64 + 1) {
            std::thread::yield_now();
            continue;
        }
        let moment = Moment::of(&file).unwrap();
        let position = moment.reader().last_position().unwrap();
        // The writer goes on while a moment is held.
        let held_at = acknowledged.load(Ordering::SeqCst);
        while acknowledged.load(Ordering::SeqCst) < held_at + 5 {
            std::thread::yield_now();
        }
        let copy = dir.path().join(format!("copy{}", taken.len()));
        let label = Label { taken_at: NOW, position, version: "1".into() };
        drop(moment.copy_to(&copy, &label).unwrap());
        taken.push((copy, before, held_at, position));
    }
    enough.store(true, Ordering::SeqCst);
    load.join().unwrap();
    store.close();
    for (copy, before, held_at, position) in taken {
        let reader = Reader::open(&copy).unwrap();
        assert_eq!(check::violations(&reader).unwrap(), [""; 0]);
        let runs = reader.runs(None, u32::MAX).unwrap().len() as u64;
        // The one that was under way may be in it or not.
        assert!((before..=held_at + 1).contains(&runs), "{before} <= {runs} <= {held_at}");
        assert_eq!(reader.last_position().unwrap(), position);
        assert_eq!(Copy::open(&copy).unwrap().label().unwrap().unwrap().position, position);
    }
}

#[test]
fn a_copy_becomes_a_store_again_that_gives_out_no_fence_twice() {
    let dir = support::dir();
    let (file, copy) = (dir.path().join("dag.db"), dir.path().join("copy"));
    eventful(&file);
    let label = Label { taken_at: NOW, position: Position(1), version: "1".into() };
    let mut taken = Moment::of(&file).unwrap().copy_to(&copy, &label).unwrap();
    taken
        .add_files([("node.key".to_owned(), b"key".to_vec()), ("logs/1/1.1.log".to_owned(), vec![0; 9_999])])
        .unwrap();
    drop(taken);
    let back = Copy::open(&copy).unwrap();
    let mut files = Vec::new();
    back.files(|name, content| {
        files.push((name.to_owned(), content.len()));
        Ok(())
    })
    .unwrap();
    assert_eq!(files, [("logs/1/1.1.log".to_owned(), 9_999), ("node.key".to_owned(), 3)]);
    back.into_store(Epoch(5_000)).unwrap();
    assert_eq!(check::violations(&Reader::open(&copy).unwrap()).unwrap(), [""; 0]);
    let store = open(&copy);
    let (epoch, claimed) = support::runtime().block_on(async {
        let epoch = begin(&store).await;
        (epoch, claim(&store, epoch, 9).await.claimed)
    });
    assert_eq!(epoch, Epoch(5_001));
    assert!(!claimed.is_empty() && claimed.iter().all(|claim| claim.fence.epoch() == epoch));
    store.close();
    let again = Copy::open(&copy).unwrap();
    assert_eq!(again.label().unwrap(), None, "nothing of the copy is left in it");
}

#[test]
fn a_store_that_is_shut_takes_on_nothing_and_lets_end_what_runs() {
    let dir = support::dir();
    let store = open(&dir.path().join("dag.db"));
    support::runtime().block_on(async {
        let epoch = begin(&store).await;
        go(&store, "d", vec![task("a", &[]), task("b", &[])], 1).await;
        let claimed = claim(&store, epoch, 1).await.claimed;
        store.shut(Refusal::new(ErrorCode::DatabaseDamaged, "no more"));
        let refused = store.publish(publish(&dag("e", vec![task("a", &[])]), NOW)).await;
        assert!(matches!(refused, Err(StoreError::Refused(no)) if no.code == ErrorCode::DatabaseDamaged));
        assert!(store.start_run(start(1, run_id(2), NOW)).await.is_err());
        assert!(claim(&store, epoch, 1).await.claimed.is_empty());
        end(&store, &claimed[0], Ending::Succeeded).await;
    });
    store.close();
    let reader = Reader::open(&dir.path().join("dag.db")).unwrap();
    let run = reader.runs(None, 1).unwrap().remove(0);
    assert_eq!((run.completed, run.left), (1, 1));
}

fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    // What readers share is made anew whenever one comes, and so is an empty log.
    let files = files.filter(|path| !path.to_string_lossy().ends_with("-shm"));
    let read = files.map(|path| (path.clone(), std::fs::read(path).unwrap()));
    let mut contents: Vec<_> = read.filter(|(_, bytes)| !bytes.is_empty()).collect();
    contents.sort();
    contents
}

/// Overwrites the first page.
fn scribble(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[..4096].fill(b'x');
    std::fs::write(file, bytes).unwrap();
}

fn halve(file: &Path) {
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.set_len(file.metadata().unwrap().len() / 4096 / 2 * 4096).unwrap();
}

fn replace_by_text(file: &Path) {
    std::fs::write(file, "not a database at all\n".repeat(1_000)).unwrap();
}

fn replace_by_anothers(file: &Path) {
    std::fs::remove_file(file).unwrap();
    Connection::open(file)
        .unwrap()
        .execute_batch("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)")
        .unwrap();
}

#[test]
fn a_damaged_file_is_named_as_such_and_left_as_it_is() {
    for damage in [scribble, halve, replace_by_text, replace_by_anothers] {
        let dir = support::dir();
        let file = dir.path().join("dag.db");
        eventful(&file);
        damage(&file);
        let before = contents(dir.path());
        let written = SqliteStore::open(&file, Durability::Process);
        assert!(matches!(written, Err(StoreError::Damaged(_))), "{written:?}");
        let read = Reader::open(&file).and_then(|reader| check::violations(&reader));
        assert!(matches!(read, Err(StoreError::Damaged(_))), "{read:?}");
        assert!(contents(dir.path()) == before, "changed by opening it");
    }
}

#[test]
fn a_value_that_means_nothing_is_damage() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    eventful(&file);
    Connection::open(&file).unwrap().execute("UPDATE dag_runs SET params_json = 'what?'", []).unwrap();
    let read = Reader::open(&file).unwrap().runs(None, 9);
    assert!(matches!(&read, Err(StoreError::Damaged(why)) if why.contains("what?")), "{read:?}");
    let told = Refusal::from(read.unwrap_err());
    assert_eq!(told.code, ErrorCode::DatabaseDamaged);
    assert!(told.hint.unwrap().contains("cis doctor"));
}

#[test]
fn a_quick_check_finds_what_opening_does_not_and_can_be_stopped() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    eventful(&file);
    let conn = Connection::open(&file).unwrap();
    conn.execute_batch(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 20000)
         INSERT INTO idempotency_keys SELECT 'ann', n, n, 'needle', 0 FROM n; PRAGMA wal_checkpoint(TRUNCATE)",
    )
    .unwrap();
    drop(conn);
    let quick = |stop: bool| check::quick(Reader::open(&file).unwrap(), Arc::new(AtomicBool::new(stop)));
    assert_eq!(quick(false).unwrap(), [""; 0]);
    assert!(matches!(quick(true), Err(StoreError::Database(why)) if why.contains("interrupted")));

    let mut bytes = std::fs::read(&file).unwrap();
    let pages = bytes.chunks_exact_mut(4096).skip(1);
    let page = pages.rev().find(|page| page.windows(6).any(|word| word == b"needle")).unwrap();
    page.fill(0xff);
    std::fs::write(&file, bytes).unwrap();
    open(&file).close();
    let found = quick(false);
    assert!(
        found.as_ref().map_or_else(|e| matches!(e, StoreError::Damaged(_)), |f| !f.is_empty()),
        "{found:?}"
    );
}
