//! Deadlines, and the clock on the wall. They are kept by it, as people read them; but somebody may set it, and that is no
//! time gone by. So it is noted when the machine was started, by that clock. Where an operation finds another answer than
//! the one before it, it first moves every deadline that is still open by as much.
//!
//! Across a restart of the machine only the wall knows how long it was off: then nothing is moved.

use cis_core::source::{Clock, Millis, Timestamp};
use rusqlite::{OptionalExtension, Row, params};

use super::tx::Tx;
use crate::port::{Answer, Boot};

/// By how much the clocks may drift apart before that counts as set.
const DRIFT: Millis = Millis(1_000);

/// Every deadline that may still be open.
const DEADLINES: [&str; 7] = [
    "UPDATE leases SET deadline = deadline + ?1 WHERE deadline IS NOT NULL",
    "UPDATE task_executions SET not_before = not_before + ?1 WHERE status = 'ready' AND hold = 2",
    "UPDATE task_executions SET queue_deadline = queue_deadline + ?1
     WHERE status = 'ready' AND queue_deadline IS NOT NULL",
    "UPDATE task_executions SET answer_deadline = answer_deadline + ?1
     WHERE status = 'waiting' AND answer_deadline IS NOT NULL",
    "UPDATE dag_runs SET deadline = deadline + ?1 WHERE completed_at IS NULL AND deadline IS NOT NULL",
    "UPDATE dag_definitions SET expires_at = expires_at + ?1 WHERE status = 'pending' AND expires_at IS NOT NULL",
    "UPDATE outbox SET due_at = due_at + ?1 WHERE due_at IS NOT NULL",
];

/// When an operation is asked for, and when the machine was started: both by the wall, the second if that can be told.
#[derive(Debug, Clone, Copy)]
pub(super) struct When {
    pub(super) now: Timestamp,
    pub(super) started_at: Option<Timestamp>,
}

impl When {
    /// What `clock` says, both at once: what its caller read may be old. Without a clock, what the caller says.
    pub(super) fn new(now: Timestamp, clock: Option<&dyn Clock>) -> Self {
        let Some(clock) = clock else { return Self { now, started_at: None } };
        let now = clock.now();
        Self { now, started_at: Some(Timestamp(now.0.saturating_sub(clock.since_boot().0))) }
    }
}

/// What is noted of the clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Noted {
    started_at: Timestamp,
    moved: i64,
}

/// A coordinator's life begins, in this boot of the machine.
pub(super) fn begin(tx: &mut Tx<'_>, boot: &Boot) -> Answer<()> {
    let Some(started_at) = tx.started_at else { return Ok(()) };
    // A boot without a name may be any.
    if let Some(before) = noted(tx, &boot.id)?.filter(|_| !boot.id.is_empty()) {
        return follow(tx, before, started_at);
    }
    let sql = "INSERT INTO clock (one, boot_id, started_at) VALUES (1, ?1, ?2)
               ON CONFLICT DO UPDATE SET boot_id = ?1, started_at = ?2";
    tx.conn.execute(sql, params![boot.id, started_at.0])?;
    tx.memory.clock = noted(tx, &boot.id)?;
    Ok(())
}

/// Before an operation: follows the clock, if it was set since the one before.
pub(super) fn keep(tx: &mut Tx<'_>) -> Answer<()> {
    // Before a life has begun, the boot may be another one.
    let Some((started_at, _)) = tx.started_at.zip(tx.memory.fences) else { return Ok(()) };
    let before = match tx.memory.clock {
        None => noted(tx, &tx.memory.boot_id)?,
        known => known,
    };
    before.map_or(Ok(()), |before| follow(tx, before, started_at))
}

/// The present moment by a clock that goes on when the one on the wall is set. It is good for spans of time only.
pub(super) fn unmoved(tx: &Tx<'_>) -> Answer<Timestamp> {
    let noted = match tx.memory.clock {
        None => tx.conn.query_row("SELECT started_at, moved FROM clock", [], read).optional()?,
        known => known,
    };
    Ok(Timestamp(tx.now.0 - noted.unwrap_or_default().moved))
}

fn noted(tx: &Tx<'_>, boot_id: &str) -> Answer<Option<Noted>> {
    let sql = "SELECT started_at, moved FROM clock WHERE boot_id = ?1";
    Ok(tx.conn.query_row(sql, [boot_id], read).optional()?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Noted> {
    Ok(Noted { started_at: Timestamp(row.get(0)?), moved: row.get(1)? })
}

fn follow(tx: &mut Tx<'_>, before: Noted, started_at: Timestamp) -> Answer<()> {
    let by = started_at.0 - before.started_at.0;
    if by.unsigned_abs() <= DRIFT.0 || cis_fail::is_broken("clock.follow") {
        tx.memory.clock = Some(before);
        return Ok(());
    }
    for sql in DEADLINES {
        tx.conn.execute(sql, [by])?;
    }
    let noted = Noted { started_at, moved: before.moved + by };
    tx.conn.execute("UPDATE clock SET started_at = ?1, moved = ?2", params![started_at.0, noted.moved])?;
    // Rows of runs are remembered with their deadlines.
    tx.memory.runs.clear();
    tx.memory.clock = Some(noted);
    Ok(())
}
