//! A new file is what all migrations together make of an empty one, and files of other versions are refused in words
//! that tell what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::{Path, PathBuf};

use cis_core::dag::{Kind, Task};
use cis_core::id::Position;
use cis_core::review::{ReviewId, ReviewKind};
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_store::StoreError;
use cis_store::port::{
    Advance, Claim, ClaimWork, Conclude, CoordinatorStore as _, Ending, Held, Holding, Settle,
};
use cis_store::{Durability, Reader, SqliteStore, check};
use rusqlite::Connection;
use serde_json::json;
use support::earlier::{migrated, migrations, written_by};
use support::{dag, publish, report, run_id, start, task, with};

const NOW: Timestamp = Timestamp(1_000_000);

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
fn what_waited_before_there_were_quotas_is_counted() {
    let (dir, migrations) = (support::dir(), migrations());
    let file = dir.path().join("dag.db");
    migrated(&file, &migrations[..14]);
    // The run was started by a confirmation of `bea`, so it counts for the publisher.
    let confirmed = "UPDATE dag_runs SET created_by = 'bea';
        INSERT INTO dag_confirmations VALUES (1, printf('%064d', 1), 'confirmed', 'bea', 6, 1, NULL);";
    Connection::open(&file).unwrap().execute_batch(&format!("{WAITING}{confirmed}")).unwrap();
    created(dir.path());
    let conn = Connection::open(&file).unwrap();
    let pending = "SELECT created_by || stored_bytes FROM dag_definitions INDEXED BY definitions_pending
                   WHERE status = 'pending'";
    assert_eq!(answers(&conn, pending), ["ann2"]);
    assert_eq!(answers(&conn, "SELECT counts_for FROM dag_runs WHERE completed_at IS NULL"), ["ann"]);
}

/// The version before leases of anything and actors of events.
const BEFORE_ACTORS: usize = 13;

#[test]
fn run_in_flight_of_the_version_before_goes_on_with_its_leases() {
    let (dir, runtime) = (support::dir(), support::runtime());
    let file = dir.path().join("dag.db");
    let claiming = |epoch| Claim {
        epoch,
        holder: "local".into(),
        limit: 1,
        kinds: vec!["shell"],
        scopes: None,
        capabilities: Vec::new(),
    };
    let holding = |held: &Held| Holding {
        execution: held.claim.execution,
        fence: held.claim.fence,
        identity: "ann".into(),
        scopes: None,
        now: NOW,
        since_boot: BootTime(NOW.0),
    };
    let (own, held) = runtime.block_on(async {
        let store = SqliteStore::open(&file, Durability::Process).unwrap();
        let epoch = store.open_epoch(NOW, support::boot(NOW)).await.unwrap().epoch;
        let external = |id| Task { kind: Kind::External { input: Box::new(json!({})) }, ..task(id, &[]) };
        let timed = with(external("timed"), |more| more.timeout = Some(Millis(50_000)));
        let request =
            publish(&dag("d", vec![task("own", &[]), external("held"), timed, task("last", &[0, 1])]), NOW);
        let published = store.publish(request).await.unwrap().plain().unwrap();
        let (definition, content_hash) = (published.definition, published.content_hash);
        let settle = Settle { definition, content_hash, confirm: true, by: "bea".into(), now: NOW };
        store.settle(settle).await.unwrap();
        store.start_run(start(definition, run_id(1), NOW)).await.unwrap().plain().unwrap();
        let advance = Advance { reports: vec![], claim: Some(claiming(epoch)), now: NOW };
        let own = store.advance(advance).await.unwrap().claimed.remove(0);
        let claim = ClaimWork {
            claim_id: Some("one".into()),
            identity: "ann".into(),
            worker: "ann's laptop".into(),
            limit: 9,
            scopes: None,
            capabilities: Vec::new(),
            term: Millis(10_000),
            now: NOW,
            since_boot: BootTime(NOW.0),
        };
        let held = store.claim_work(claim).await.unwrap();
        store.close();
        (own, held)
    });
    written_by(BEFORE_ACTORS, &file);
    let leases = |file: &Path, key: &str| {
        let conn = Connection::open(file).unwrap();
        let sql = format!(
            "SELECT json_array({key}, fence, identity, term_ms, boot_id, expires, deadline) FROM leases ORDER BY fence"
        );
        answers(&conn, &sql)
    };
    let before = leases(&file, "execution_id");
    assert_eq!((version(&file), before.len()), (13, 2));

    let store = SqliteStore::open(&file, Durability::Process).unwrap();
    assert_eq!(leases(&file, "subject_key"), before);
    let reader = Reader::open(&file).unwrap();
    assert_eq!(check::violations(&reader).unwrap(), [""; 0]);
    runtime.block_on(async {
        let opening = store.open_epoch(NOW, support::boot(NOW)).await.unwrap();
        assert_eq!(opening.live.iter().map(|live| live.fence).collect::<Vec<_>>(), [own.fence]);
        let beat = store.heartbeat(holding(&held[0]), None).await.unwrap();
        assert_eq!((beat.expires, beat.cancel), (BootTime(NOW.0 + 10_000), false));
        let conclude = |held: &Held| Conclude {
            key: None,
            holding: holding(held),
            ending: Ending::Succeeded,
            exit_code: None,
            error: String::new(),
            outputs: None,
            output: String::new(),
            log_bytes: 0,
            random: 0,
        };
        store.conclude(conclude(&held[0])).await.unwrap().plain().unwrap();
        let reports = vec![report(&own, Ending::Succeeded, NOW)];
        let advance = Advance { reports, claim: Some(claiming(opening.epoch)), now: NOW };
        let last = store.advance(advance).await.unwrap().claimed.remove(0);
        let reports = vec![report(&last, Ending::Succeeded, NOW)];
        store.advance(Advance { reports, claim: None, now: NOW }).await.unwrap();
        // The other one says nothing more: it is found when its lease has run out.
        let later = BootTime(NOW.0 + 10_000);
        let swept = store.sweep(opening.epoch, NOW, later).await.unwrap();
        assert!(swept.ended.is_empty());
    });
    assert_eq!(leases(&file, "subject_key"), [""; 0]);
    assert_eq!(check::violations(&reader).unwrap(), [""; 0]);
    let log = reader.log(Position(0), 100).unwrap();
    let told = |line: &cis_api::event::Event| {
        let by = line.actor.as_ref().map_or(String::new(), |actor| format!(" by {actor}"));
        format!("{} {}{by}", line.name, line.subject)
    };
    assert_eq!(
        log.iter().map(told).collect::<Vec<_>>(),
        [
            // What the version before wrote: who published and decided is among the rest of it.
            "dag.published d by ann",
            "dag.confirmed d by bea",
            "run.created d#1",
            "task.claimed d#1/own",
            "run.started d#1",
            "task.claimed d#1/held",
            "task.claimed d#1/timed",
            // And this one.
            "task.completed d#1/held by ann",
            "task.completed d#1/own",
            "task.ready d#1/last",
            "task.claimed d#1/last",
            "task.completed d#1/last",
            "task.retrying d#1/timed",
        ]
    );
    drop(reader);
    store.close();
}

#[test]
fn event_is_about_one_subject_of_any_kind() {
    let dir = support::dir();
    let conn = Connection::open(created(dir.path())).unwrap();
    let add = |columns: &str, values: &str| {
        let sql = format!(
            "INSERT INTO events (version, step, status, at, {columns}) VALUES (1, 's', 's', 1, {values})"
        );
        conn.execute(&sql, []).is_ok()
    };
    assert!(add("run_key", "1") && add("run_key, task_ix", "1, 0") && add("definition_key", "1"));
    assert!(add("subject_key", "1"));
    assert!(!add("task_ix", "1") && !add("run_key, definition_key", "1, 1"));
    assert!(!add("run_key, subject_key", "1, 1") && !add("definition_key, subject_key", "1, 1"));
}

#[test]
fn leases_are_found_by_index() {
    let dir = support::dir();
    let conn = Connection::open(created(dir.path())).unwrap();
    for (sql, index) in [
        (
            "DELETE FROM leases WHERE subject_kind = 'task' AND subject_key = 1 AND fence = 1",
            "USING PRIMARY KEY",
        ),
        (
            "SELECT 1 FROM task_executions t INDEXED BY tasks_live CROSS JOIN leases l
                 ON l.subject_kind = 'task' AND l.subject_key = t.execution_id WHERE t.run_key = 1
                 AND t.status IN ('running', 'cancelling')",
            "SEARCH l USING PRIMARY KEY (subject_kind=? AND subject_key=?)",
        ),
        (
            "SELECT min(expires) FROM leases WHERE subject_kind = 'task'",
            "USING COVERING INDEX leases_expiring (subject_kind=?)",
        ),
        (
            "SELECT min(deadline) FROM leases WHERE subject_kind = 'task' AND deadline IS NOT NULL",
            "USING COVERING INDEX leases_overdue (subject_kind=? AND deadline>?)",
        ),
    ] {
        let mut plan = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = plan.query_map([], |row| row.get::<_, String>(3)).unwrap();
        let steps: Vec<String> = steps.map(Result::unwrap).collect();
        assert!(steps.iter().any(|step| step.contains(index)), "{sql}: {steps:?}");
    }
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
    let outdated = Reader::open(&file).unwrap_err();
    assert!(Reader::is_outdated(&outdated), "{outdated}");
    let told = cis_core::error::Refusal::from(outdated);
    assert!(told.message.contains("earlier version (schema 0)"), "{told}");
    assert!(told.hint.unwrap().contains("brings it up to date"));
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
