//! A new file is what all migrations together make of an empty one, and files of other versions are refused in words
//! that tell what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::{Path, PathBuf};

use cis_core::review::{ReviewId, ReviewKind};
use cis_store::StoreError;
use cis_store::sqlite::{Durability, Reader, SqliteStore};
use rusqlite::Connection;

fn created(dir: &Path) -> PathBuf {
    let file = dir.join("dag.db");
    SqliteStore::open(&file, Durability::Process).expect("a store").close();
    file
}

fn schema(file: &Path) -> String {
    let conn = Connection::open(file).unwrap();
    let mut statement =
        conn.prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name").unwrap();
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    rows.map(|sql| sql.unwrap() + ";\n").collect()
}

fn set_version(file: &Path, version: u32) {
    Connection::open(file).unwrap().pragma_update(None, "user_version", version).unwrap();
}

fn version(file: &Path) -> u32 {
    Connection::open(file).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

fn words<T>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Database(why)) => why,
        Err(other) => panic!("not a failure of the database: {other}"),
        Ok(_) => panic!("opened"),
    }
}

/// Every migration there is, in order.
fn migrations() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sqlite/schema");
    let mut paths: Vec<PathBuf> = dir.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| !path.ends_with("whole.sql"));
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// An empty file after these migrations, one after the other.
fn migrated(file: &Path, migrations: &[String]) {
    let conn = Connection::open(file).unwrap();
    for sql in migrations {
        conn.execute_batch(sql).unwrap();
    }
    conn.pragma_update(None, "user_version", migrations.len()).unwrap();
}

fn counters(file: &Path) -> Vec<(String, i64)> {
    let conn = Connection::open(file).unwrap();
    let mut statement = conn.prepare("SELECT name, value FROM counters ORDER BY name").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn a_new_file_is_what_migrations_make_of_an_empty_one() {
    let dir = support::dir();
    let (new, old) = (created(dir.path()), dir.path().join("old.db"));
    migrated(&old, &migrations());
    let found = schema(&old);
    assert!(schema(&new) == found, "if this is meant, put it into whole.sql:\n{found}");
    assert_eq!(counters(&new), counters(&old));
    assert_eq!(version(&new), version(&old));
}

/// One task in each state there has always been.
const TASKS: &str = "INSERT INTO task_executions (run_key, task_id, status, deps_left, queue_key, priority, fence, holder)
    SELECT 1, value, value, 0, 1, 0, 1, 'local' FROM json_each('[\"pending\", \"ready\", \"running\", \"cancelling\",
        \"completed\", \"failed\", \"cancelled\", \"timed_out\", \"skipped\"]')";

fn answers(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_file_of_any_version_is_brought_up_to_date() {
    let (dir, migrations) = (support::dir(), migrations());
    let new = created(dir.path());
    for applied in 1..migrations.len() {
        let old = support::dir();
        migrated(&old.path().join("dag.db"), &migrations[..applied]);
        Connection::open(old.path().join("dag.db")).unwrap().execute(TASKS, []).unwrap();
        let old = created(old.path());
        assert_eq!((version(&old), schema(&old)), (version(&new), schema(&new)), "from {applied}");
        let conn = Connection::open(&old).unwrap();
        // It asks every row what the checks say now.
        assert_eq!(answers(&conn, "PRAGMA integrity_check"), ["ok"], "from {applied}");
        let kept = answers(&conn, "SELECT status FROM task_executions WHERE status = task_id");
        assert_eq!(kept.len(), 9, "from {applied}: {kept:?}");
    }
}

/// A DAG with a revision of each status, and a run of one of them with a task that waits and one that does not.
const WAITING: &str = "
    INSERT INTO dags VALUES (1, 'global', 'd', 2, 1, 1, 0);
    INSERT INTO dag_definitions (definition_key, dag_key, revision, content_hash, tasks_json, tasks_count, status, created_by,
        created_at, updated_at) VALUES (1, 1, 1, printf('%064d', 1), '{}', 2, 'confirmed', 'ann', 5, 5),
                                       (2, 1, 2, printf('%064d', 2), '{}', 2, 'pending', 'ann', 5, 5);
    INSERT INTO dag_runs (run_key, run_id, dag_key, definition_key, number, status, params_json, priority, attached, created_by,
        created_at, first_position, first_execution, tasks_total, tasks_left)
        VALUES (1, '00000000-0000-0000-0000-000000000001', 1, 1, 1, 'running', '{}', 0, 0, 'ann', 5, 1, 1, 2, 2);
    INSERT INTO task_executions (execution_id, run_key, task_id, status, deps_left, queue_key, priority, asked_at)
        VALUES (1, 1, 'a', 'waiting', 0, 1, 0, 6), (2, 1, 'b', 'ready', 0, 1, 0, NULL);";

#[test]
fn what_waited_before_there_were_review_ids_gets_one() {
    let (dir, migrations) = (support::dir(), migrations());
    let file = dir.path().join("dag.db");
    migrated(&file, &migrations[..10]);
    Connection::open(&file).unwrap().execute_batch(WAITING).unwrap();
    created(dir.path());
    let ids = || {
        let conn = Connection::open(&file).unwrap();
        let sql = "SELECT coalesce(review_id, '') FROM dag_definitions
                   UNION ALL SELECT coalesce(review_id, '') FROM task_executions";
        answers(&conn, sql).into_iter().map(|id| id.parse::<ReviewId>().ok()).collect::<Vec<_>>()
    };
    let given = ids();
    let kinds: Vec<_> = given.iter().map(|id| id.map(ReviewId::kind)).collect();
    assert_eq!(kinds, [None, Some(ReviewKind::Revision), Some(ReviewKind::Task), None]);
    created(dir.path());
    assert_eq!(ids(), given, "and keeps it");
}

#[test]
fn every_store_draws_a_secret_of_its_own_and_keeps_it() {
    let (one, two) = (support::dir(), support::dir());
    let secret = |file: &Path| answers(&Connection::open(file).unwrap(), "SELECT hex(value) FROM secrets");
    let first = secret(&created(one.path()));
    assert_eq!((first.len(), first[0].len()), (1, 64));
    assert_ne!(first, secret(&created(two.path())));
    assert_eq!(first, secret(&created(one.path())));
}

/// What it builds one for is built anew for every row that is written.
#[test]
fn no_check_takes_a_table_to_look_things_up_in() {
    let dir = support::dir();
    let conn = Connection::open(created(dir.path())).unwrap();
    let mut tables = conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    for table in tables.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap) {
        let mut plan = conn.prepare(&format!("EXPLAIN INSERT INTO \"{table}\" DEFAULT VALUES")).unwrap();
        let steps = plan.query_map([], |row| row.get::<_, String>(1)).unwrap();
        let steps: Vec<String> = steps.map(Result::unwrap).collect();
        assert!(!steps.iter().any(|step| step == "OpenEphemeral"), "{table}: {steps:?}");
    }
}

#[test]
fn opening_again_migrates_nothing() {
    let dir = support::dir();
    let file = created(dir.path());
    let (version_before, before) = (version(&file), schema(&file));
    created(dir.path());
    assert_eq!((version(&file), schema(&file)), (version_before, before));
}

#[test]
fn a_newer_file_is_refused() {
    let dir = support::dir();
    let file = created(dir.path());
    let newer = version(&file) + 1;
    set_version(&file, newer);
    let told = words(SqliteStore::open(&file, Durability::Process));
    assert!(told.contains(&format!("schema version {newer} is newer")), "{told}");
    assert!(told.contains("use the newer program"), "{told}");
    let told = words(Reader::open(&file));
    assert!(told.contains(&format!("schema version {newer}")) && told.contains("newer program"), "{told}");
    assert_eq!(version(&file), newer, "and left as it is");
}

#[test]
fn an_older_file_is_read_only_after_a_write_has_migrated_it() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    set_version(&file, 0);
    let told = words(Reader::open(&file));
    assert!(told.contains("schema version 0") && told.contains("bring it up to date"), "{told}");
    created(dir.path());
    Reader::open(&file).expect("up to date now");
}

#[test]
fn reading_makes_no_file() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    words(Reader::open(&file));
    assert!(!file.exists());
}
