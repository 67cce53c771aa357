//! Deadlines, and the clock on the wall. They are kept by it, as people read them; but somebody may set it, and that is no
//! time gone by. So it is noted when the machine was started, by that clock. Where an operation finds another answer than
//! the one before it, it first moves every deadline that is still open by as much.
//!
//! Across a restart of the machine only the wall knows how long it was off: then nothing is moved.

use cis_core::source::{Clock, Millis, Timestamp};
use rusqlite::{OptionalExtension, params};

use super::tx::Tx;
use crate::port::{Answer, Boot};

/// By how much the clocks may drift apart before that counts as set. What lies between a caller's look at the one and ours
/// at the other is less, or does no harm: a deadline is moved there and back.
const DRIFT: Millis = Millis(1_000);

/// Every deadline that may still be open, and what is kept for a span of time.
const DEADLINES: [&str; 8] = [
    "UPDATE leases SET deadline = deadline + ?1 WHERE deadline IS NOT NULL",
    "UPDATE task_executions SET not_before = not_before + ?1 WHERE status = 'ready' AND hold = 2",
    "UPDATE task_executions SET queue_deadline = queue_deadline + ?1
     WHERE status = 'ready' AND queue_deadline IS NOT NULL",
    "UPDATE task_executions SET answer_deadline = answer_deadline + ?1
     WHERE status = 'waiting' AND answer_deadline IS NOT NULL",
    "UPDATE dag_runs SET deadline = deadline + ?1 WHERE completed_at IS NULL AND deadline IS NOT NULL",
    "UPDATE dag_definitions SET expires_at = expires_at + ?1 WHERE status = 'pending' AND expires_at IS NOT NULL",
    "UPDATE outbox SET due_at = due_at + ?1 WHERE due_at IS NOT NULL",
    "UPDATE idempotency_keys SET created_at = created_at + ?1",
];

/// When an operation is asked for, and when the machine was started: both by the wall, the second if that can be told.
#[derive(Debug, Clone, Copy)]
pub(super) struct When {
    pub(super) now: Timestamp,
    pub(super) started_at: Option<Timestamp>,
}

impl When {
    /// It is `now` for a caller who tells the time by `clock`.
    pub(super) fn new(now: Timestamp, clock: Option<&dyn Clock>) -> Self {
        let started_at = clock.map(|clock| Timestamp(now.0.saturating_sub(clock.since_boot().0)));
        Self { now, started_at }
    }
}

/// A coordinator's life begins, in this boot of the machine.
pub(super) fn begin(tx: &mut Tx<'_>, boot: &Boot) -> Answer<()> {
    let Some(started_at) = tx.started_at else { return Ok(()) };
    let sql = "SELECT started_at FROM clock WHERE boot_id = ?1";
    let known = tx.conn.query_row(sql, [&boot.id], |row| row.get(0).map(Timestamp)).optional()?;
    if let Some(before) = known {
        return follow(tx, before, started_at);
    }
    tx.conn.execute("INSERT OR REPLACE INTO clock VALUES (1, ?1, ?2)", params![boot.id, started_at.0])?;
    tx.memory.started_at = Some(started_at);
    Ok(())
}

/// Before an operation: follows the clock, if it was set since the one before.
pub(super) fn keep(tx: &mut Tx<'_>) -> Answer<()> {
    // Before a life has begun, the boot may be another one.
    let Some((started_at, _)) = tx.started_at.zip(tx.memory.fences) else { return Ok(()) };
    let before = match tx.memory.started_at {
        Some(before) => before,
        None => tx.conn.query_row("SELECT started_at FROM clock", [], |row| row.get(0).map(Timestamp))?,
    };
    follow(tx, before, started_at)
}

fn follow(tx: &mut Tx<'_>, before: Timestamp, now: Timestamp) -> Answer<()> {
    if now.since(before).max(before.since(now)) <= DRIFT {
        tx.memory.started_at = Some(before);
        return Ok(());
    }
    for sql in DEADLINES {
        tx.conn.execute(sql, [now.0 - before.0])?;
    }
    tx.conn.execute("UPDATE clock SET started_at = ?1", [now.0])?;
    // Rows of runs are remembered with their deadlines.
    tx.memory.runs.clear();
    tx.memory.started_at = Some(now);
    Ok(())
}
