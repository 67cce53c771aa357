//! A row that is not what the store remembers is not written over: its guards in SQL are asked, not only its memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::sync::Arc;

use cis_core::retry::Failure;
use cis_core::run::StopReason;
use cis_core::source::Timestamp;
use cis_store::port::{
    Advance, Answer, Claim, Claimed, CoordinatorStore as _, Ending, Recorded, RunRef, Settle, Started,
    StopRun, StoreError,
};
use cis_store::{Durability, SqliteStore};
use rusqlite::Connection;
use support::{dag, failed, publish, report, run_id, start, task};

const NOW: Timestamp = Timestamp(1_000_000);

/// A store with one task under way, and somebody who writes to its file behind its back.
struct Bed {
    store: SqliteStore,
    behind: Connection,
    claim: Arc<Claimed>,
    run: RunRef,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let (dir, runtime) = (support::dir(), support::runtime());
        let file = dir.path().join("dag.db");
        let store = SqliteStore::open(&file, Durability::Process).unwrap();
        let (run, claim) = runtime.block_on(begin(&store));
        Self { store, behind: Connection::open(&file).unwrap(), claim, run, runtime, _dir: dir }
    }

    /// Changes the task's row as no store does.
    fn meddle(&self, set: &str) {
        let sql = format!("UPDATE task_executions SET {set} WHERE execution_id = ?1");
        assert_eq!(self.behind.execute(&sql, [self.claim.execution.0]).unwrap(), 1);
    }

    fn end(&self, ending: Ending) -> Answer<Recorded> {
        let reports = vec![report(&self.claim, ending, NOW)];
        let advanced =
            self.runtime.block_on(self.store.advance(Advance { reports, claim: None, now: NOW }))?;
        Ok(advanced.recorded[0])
    }

    /// `status version started_at` as they stand in the row.
    fn row(&self) -> String {
        let sql = "SELECT status || ' ' || version || ' ' || coalesce(started_at, '-') FROM task_executions WHERE execution_id = ?1";
        self.behind.query_row(sql, [self.claim.execution.0], |row| row.get(0)).unwrap()
    }
}

async fn begin(store: &SqliteStore) -> (RunRef, Arc<Claimed>) {
    let epoch = store.open_epoch(NOW, support::boot(NOW)).await.unwrap().epoch;
    let published =
        store.publish(publish(&dag("d", vec![task("a", &[])]), NOW)).await.unwrap().plain().unwrap();
    let (definition, content_hash) = (published.definition, published.content_hash);
    let settle = Settle { definition, content_hash, confirm: true, by: "bea".into(), now: NOW };
    store.settle(settle).await.unwrap();
    let run = store.start_run(start(definition, run_id(1), NOW)).await.unwrap().plain().unwrap();
    while store.work(NOW).await.unwrap().more {}
    let (scopes, capabilities) = (None, Vec::new());
    let claim = Claim { epoch, holder: "local".into(), limit: 1, kinds: vec!["shell"], scopes, capabilities };
    let request = Advance { reports: vec![], claim: Some(claim), now: NOW };
    (run, store.advance(request).await.unwrap().claimed.remove(0))
}

fn is_refused(answer: &Answer<Recorded>) -> bool {
    matches!(answer, Err(StoreError::Database(why)) if why.contains("any more"))
}

#[test]
fn an_attempt_is_recorded_in_the_row_it_was_claimed_in() {
    for meddled in ["version = version + 1", "status = 'cancelling'", "fence = fence + 1"] {
        let bed = Bed::new();
        bed.meddle(meddled);
        let before = bed.row();
        assert!(is_refused(&bed.end(Ending::Succeeded)), "{meddled}");
        assert_eq!(bed.row(), before, "{meddled}");
    }
    assert!(matches!(Bed::new().end(Ending::Succeeded), Ok(Recorded::Now(_))));
}

/// A stop that was committed and has not got to the task moves it first, and then records how it ended.
#[test]
fn a_task_is_moved_from_where_it_stood() {
    for (meddled, moves) in
        [("version = version + 1", false), ("status = 'cancelling'", false), ("cause = 'x'", true)]
    {
        let bed = Bed::new();
        let stop = StopRun { key: None, run: bed.run.key, reason: StopReason::Cancel, by: None, now: NOW };
        bed.runtime.block_on(bed.store.stop_run(stop)).unwrap();
        bed.meddle(meddled);
        let before = bed.row();
        let ended = bed.end(failed(Failure::Interrupted));
        assert_eq!(is_refused(&ended), !moves, "{meddled}: {ended:?}");
        assert_eq!(bed.row() == before, !moves, "{meddled}");
    }
}

#[test]
fn only_the_attempt_that_runs_is_noted_as_started() {
    let bed = Bed::new();
    let note = |fence| {
        let started = vec![Started { execution: bed.claim.execution, fence, at: NOW }];
        bed.runtime.block_on(bed.store.note_started(started, NOW)).unwrap();
    };
    let mut stale = bed.claim.fence;
    stale.0 -= 1;
    note(stale);
    assert!(bed.row().ends_with(" -"), "{}", bed.row());
    bed.meddle("status = 'failed', completed_at = 1");
    note(bed.claim.fence);
    assert!(bed.row().ends_with(" -"), "{}", bed.row());
    bed.meddle("status = 'running', completed_at = NULL");
    note(bed.claim.fence);
    assert!(bed.row().ends_with("1000000"), "{}", bed.row());
}

/// People who read the log see at which try a task is; of a first one there is nothing to say.
#[test]
fn a_claim_says_which_attempt_it_is_from_the_second_on() {
    let bed = Bed::new();
    bed.meddle("status = 'ready', attempt = 1");
    let epoch = bed.runtime.block_on(bed.store.open_epoch(NOW, support::boot(NOW))).unwrap().epoch;
    let (scopes, capabilities) = (None, Vec::new());
    let claim = Claim { epoch, holder: "local".into(), limit: 1, kinds: vec!["shell"], scopes, capabilities };
    let request = Advance { reports: vec![], claim: Some(claim), now: NOW };
    assert_eq!(bed.runtime.block_on(bed.store.advance(request)).unwrap().claimed.len(), 1);
    let sql = "SELECT coalesce(data, '-') FROM events WHERE step = 'claim' ORDER BY position";
    let mut statement = bed.behind.prepare(sql).unwrap();
    let told: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(told, ["-", r#"{"attempt":2}"#]);
}
