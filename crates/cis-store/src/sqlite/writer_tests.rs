//! Tests of the writer.

use std::time::Duration;

use super::*;

const NOW: Timestamp = Timestamp(0);

fn insert(tx: &mut Tx<'_>, n: i64) -> Answer<usize> {
    Ok(tx.conn.execute("INSERT INTO t VALUES (?1)", [n])?)
}

fn told<T: fmt::Debug>(answer: Answer<T>) -> String {
    match answer {
        Err(StoreError::Database(why)) => why,
        other => panic!("not a failure of the database: {other:?}"),
    }
}

/// A writer on a table of its own, and another connection to the same file.
fn writer(dir: &tempfile::TempDir) -> (Writer, Connection) {
    let open = || Connection::open(dir.path().join("t.db")).unwrap();
    let (conn, other) = (open(), open());
    conn.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (n INTEGER PRIMARY KEY CHECK (n > 0))")
        .unwrap();
    conn.busy_timeout(Duration::ZERO).unwrap();
    (Writer::start(conn, Chunks::default(), Reserve::none()).unwrap(), other)
}

#[tokio::test(flavor = "current_thread")]
async fn a_batch_that_cannot_begin_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, other) = writer(&dir);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(told(writer.call(NOW, |tx| insert(tx, 1)).await).contains("locked"));
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(writer.call(NOW, |tx| insert(tx, 1)).await.unwrap(), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_batch_that_is_lost_costs_no_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, other) = writer(&dir);
    // The transaction is gone under it, or no longer what it was: nobody is told of a write that is not there.
    for end in ["ROLLBACK", "RELEASE op"] {
        let lost = writer.call(NOW, move |tx| {
            insert(tx, 1)?;
            Ok(tx.conn.execute_batch(end)?)
        });
        let why = told(lost.await);
        assert!(why.contains("no such savepoint") || why.contains("no transaction"), "{why}");
        let rows: i64 = other.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0);
    }
    assert_eq!(writer.call(NOW, |tx| insert(tx, 2)).await.unwrap(), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn what_fails_undoes_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, other) = writer(&dir);
    let (one, bad, two) = tokio::join!(
        writer.call(NOW, |tx| insert(tx, 1)),
        writer.call(NOW, |tx| insert(tx, 2).and_then(|_| insert(tx, -1))),
        writer.call(NOW, |tx| insert(tx, 3)),
    );
    assert!(one.is_ok() && two.is_ok());
    assert!(told(bad).contains("CHECK"));
    let sum: i64 = other.query_row("SELECT sum(n) FROM t", [], |row| row.get(0)).unwrap();
    assert_eq!(sum, 4);
}

#[tokio::test(flavor = "current_thread")]
async fn what_was_undone_is_not_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let conn = crate::sqlite::migrate::open(&dir.path().join("dag.db"), Default::default()).unwrap();
    let writer = Writer::start(conn, Chunks::default(), Reserve::none()).unwrap();
    let undone = writer.call(NOW, |tx| {
        tx.queue("shell", "global", &[])?;
        Err::<(), _>(StoreError::Closed)
    });
    assert!(undone.await.is_err());
    // The key it had is free again, and now somebody else's.
    let (other, first) = writer
        .call(NOW, |tx| Ok((tx.queue("skill", "global", &[])?, tx.queue("shell", "global", &[])?)))
        .await
        .unwrap();
    assert_ne!(other, first);
}

#[tokio::test(flavor = "current_thread")]
async fn a_long_reader_lets_the_log_grow_and_it_is_cut_back_after() {
    use crate::sqlite::migrate::{LOG_BYTES, open, open_read_only};
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dag.db");
    let writer =
        Writer::start(open(&file, Default::default()).unwrap(), Chunks::default(), Reserve::none()).unwrap();
    let large = |n: u64| {
        let sql = "INSERT INTO idempotency_keys VALUES ('c', ?1, 'h', printf('%.*c', 1 << 20, 'x'), 0)";
        writer.call(NOW, move |tx| Ok(tx.conn.execute(sql, [n.to_string()])?))
    };
    let length = || std::fs::metadata(dir.path().join("dag.db-wal")).unwrap().len();
    large(0).await.unwrap();
    let reader = open_read_only(&file).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM idempotency_keys").unwrap();
    let megabytes = LOG_BYTES >> 20;
    for n in 1..=megabytes {
        large(n).await.unwrap();
    }
    assert!(length() > LOG_BYTES, "{}", length());
    drop(reader);
    // Before long one is folded back with all that was before it, and the next begins the log anew.
    for n in 1..=6 {
        large(megabytes + n).await.unwrap();
    }
    assert_eq!(length(), LOG_BYTES);
    writer.close();
}

/// Whoever waits for a writer that is no more is told so, whichever thread it was.
#[tokio::test(flavor = "current_thread")]
async fn a_panic_costs_the_store_and_nobody_waits_for_it() {
    for here in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (writer, other) = writer(&dir);
        writer.call(NOW, |tx| insert(tx, 1)).await.unwrap();
        let struck = if here { writer.clone().here() } else { writer.clone() };
        let panics = tokio::spawn(async move { struck.call(NOW, panicking).await });
        match panics.await {
            Ok(answer) => assert!(matches!(answer, Err(StoreError::Lost(_))), "{answer:?}"),
            Err(e) => assert!(here && e.is_panic()),
        }
        for writer in [writer.clone(), writer.clone().here()] {
            let told = writer.call(NOW, |tx| insert(tx, 3)).await;
            assert!(matches!(&told, Err(StoreError::Lost(why)) if why.contains("panicked")), "{told:?}");
        }
        assert!(matches!(writer.lost().await, StoreError::Lost(_)));
        writer.close();
        let rows: i64 = other.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 1);
    }
}

fn panicking(tx: &mut Tx<'_>) -> Answer<usize> {
    insert(tx, 2)?;
    panic!("on purpose")
}
