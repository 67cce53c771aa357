//! What stays of runs that were pruned: that they were, and how they ended. So a run is never silently unknown, and
//! whoever asks again for what once made it is told of the same one.

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, RunId, RunKey, Scope};
use cis_core::run::RunStatus;
use cis_core::source::Timestamp;
use rusqlite::{OptionalExtension, Row, params};
use serde_json::json;

use super::reader::Reader;
use super::tx::{Tx, no_run, parsed};
use crate::port::{Answer, RunRef, StoreError};

/// What stays of a run that was pruned.
#[derive(Debug, Clone)]
pub struct Tombstone {
    pub run: RunRef,
    pub ended_at: Timestamp,
    pub pruned_at: Timestamp,
}

const TOMBSTONE: &str =
    "SELECT r.run_key, r.run_id, d.dag_id, d.scope, r.number, r.status, r.ended_at, r.pruned_at
     FROM pruned_runs r JOIN dags d USING (dag_key)";

impl Tombstone {
    /// What whoever asks for the run is told.
    pub fn refusal(&self) -> Refusal {
        let Self { run, ended_at, pruned_at } = self;
        let label = format!("{}#{}", run.dag_id, run.number);
        let why = format!(
            "`{label}` was pruned on {}; it {} on {}",
            pruned_at.day(),
            ended(run.status),
            ended_at.day()
        );
        Refusal::new(ErrorCode::Gone, why)
            .hint("its tasks, logs and events are gone; a backup from before may have them")
            .details(json!({"run": label, "run_id": run.run_id, "status": run.status, "ended_at": ended_at,
                            "pruned_at": pruned_at}))
    }
}

fn ended(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Completed => "completed",
        RunStatus::Failed => "failed",
        RunStatus::TimedOut => "timed out",
        _ => "was cancelled",
    }
}

impl Reader {
    /// The run with this id, if it was pruned.
    pub fn pruned_by_id(&self, run_id: RunId) -> Answer<Option<Tombstone>> {
        self.one(&format!("{TOMBSTONE} WHERE r.run_id = ?1"), [run_id.to_string()], tombstone)
    }

    /// The run with this number, if it was pruned.
    pub fn pruned_by_number(&self, dag: i64, number: i64) -> Answer<Option<Tombstone>> {
        self.one(&format!("{TOMBSTONE} WHERE r.dag_key = ?1 AND r.number = ?2"), [dag, number], tombstone)
    }

    /// The run with this key, if it was pruned.
    pub fn pruned(&self, key: RunKey) -> Answer<Option<Tombstone>> {
        self.one(&format!("{TOMBSTONE} WHERE r.run_key = ?1"), [key.0], tombstone)
    }
}

/// The same for an operation.
pub(super) fn find(tx: &Tx<'_>, key: RunKey) -> Answer<Option<Tombstone>> {
    let mut statement = tx.conn.prepare_cached(&format!("{TOMBSTONE} WHERE r.run_key = ?1"))?;
    Ok(statement.query_row(params![key.0], tombstone).optional()?)
}

/// Why there is no such run.
pub(super) fn missing(tx: &Tx<'_>, key: RunKey) -> StoreError {
    match find(tx, key) {
        Ok(Some(tombstone)) => tombstone.refusal().into(),
        Ok(None) => no_run(key),
        Err(failure) => failure,
    }
}

/// A run, whether it was pruned or not.
pub(super) fn reference(tx: &mut Tx<'_>, key: RunKey) -> Answer<RunRef> {
    match find(tx, key)? {
        Some(tombstone) => Ok(tombstone.run),
        None => Ok(tx.run(key)?.reference()),
    }
}

fn tombstone(row: &Row<'_>) -> rusqlite::Result<Tombstone> {
    Ok(Tombstone { run: run_ref(row)?, ended_at: Timestamp(row.get(6)?), pruned_at: Timestamp(row.get(7)?) })
}

/// Key, id, name, scope, number and status.
pub(super) fn run_ref(row: &Row<'_>) -> rusqlite::Result<RunRef> {
    let (dag_id, scope): (DagId, Scope) =
        (parsed(row, 2, |text| text.parse().ok())?, parsed(row, 3, |text| text.parse().ok())?);
    Ok(RunRef {
        key: RunKey(row.get(0)?),
        run_id: parsed(row, 1, |text| text.parse().ok())?,
        dag_id,
        scope,
        number: row.get(4)?,
        status: parsed(row, 5, RunStatus::from_word)?,
    })
}
