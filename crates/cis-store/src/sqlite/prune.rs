//! Pruning: runs that are over and that nothing needs any more make room, a chunk at a time.
//!
//! ```text
//!   dag_runs ── one commit ──► pruned_runs (stays), prunings (what is left to do), an event that says so
//!   prunings ── in chunks ───► events, tasks, decisions, notes are removed
//!            ── files gone ──► forgotten
//! ```
//!
//! With the first commit the run is gone for everybody. What is left of it is in nobody's way and is found again after a
//! kill. Its events go before its tasks, so that the log tells everything above its floor to the last.

use cis_core::event::{PRUNE, PRUNED};
use cis_core::id::{ExecutionId, Position, RunKey, Version};
use rusqlite::{OptionalExtension, Row, params};
use serde_json::json;

use super::events::Told;
use super::reader::Reader;
use super::tombstones;
use super::tx::{Tx, parsed};
use crate::port::{Answer, Bare, Prune, Pruned, RunRef};

/// Runs looked at by one chunk, whether they may go or not.
const LOOK_MAX: i64 = 1_000;

/// Runs that go with one chunk: a row or two each.
const RUNS_MAX: u32 = 50;

/// Runs that may go: over, and old enough (?1), and not of the latest so many of their DAG (?2). Nobody is still to be
/// told of their end, nothing is still to be done about their tasks, and nobody carries anything over from them.
const PRUNABLE: &str = "FROM dag_runs r JOIN dags d USING (dag_key)
     WHERE r.completed_at < ?1 AND r.number <= d.runs - ?2
       AND NOT EXISTS (SELECT 1 FROM steps s WHERE s.run_key = r.run_key)
       AND NOT EXISTS (SELECT 1 FROM dag_runs c INDEXED BY runs_resuming
                       WHERE c.resumed_from = r.run_key AND c.completed_at IS NULL)
       AND r.run_key NOT IN (SELECT e.run_key FROM outbox o JOIN events e USING (position)
                             WHERE o.due_at IS NOT NULL AND e.run_key IS NOT NULL)";

const RUN_REF: &str = "r.run_key, r.run_id, d.dag_id, d.scope, r.number, r.status";

/// See [`crate::Store::prune`].
pub(super) fn prune(tx: &mut Tx<'_>, request: &Prune) -> Answer<Pruned> {
    forget(tx, &request.cleared)?;
    let budget = (tx.memory.chunks.rows / 2).max(1);
    if remove_events(tx, budget)? || remove_tasks(tx, budget)? {
        return Ok(Pruned { runs: Vec::new(), bare: bare(tx)?, after: request.after, more: true });
    }
    let bare = bare(tx)?;
    if request.limit == 0 {
        return Ok(Pruned { runs: Vec::new(), bare, after: request.after, more: false });
    }
    let runs = take(tx, request)?;
    let after = RunKey(request.after.0 + LOOK_MAX);
    let (after, more) = match runs.last() {
        Some(last) => (last.key, true),
        None => (after, is_beyond(tx, after)?),
    };
    Ok(Pruned { runs, bare, after, more })
}

/// Of these even the files are gone.
fn forget(tx: &Tx<'_>, cleared: &[RunKey]) -> Answer<()> {
    for run in cleared {
        tx.conn
            .prepare_cached(
                "DELETE FROM prunings
                 WHERE run_key = ?1 AND next_position > last_position AND next_execution > last_execution",
            )?
            .execute([run.0])?;
    }
    Ok(())
}

/// Looks at `budget` events from where the first of those to go may be; false if there are none.
fn remove_events(tx: &mut Tx<'_>, budget: usize) -> Answer<bool> {
    let (from, to): (Option<i64>, Option<i64>) = tx
        .conn
        .prepare_cached(
            "SELECT min(next_position), max(last_position) FROM prunings WHERE next_position <= last_position",
        )?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(from), Some(to)) = (from, to) else { return Ok(false) };
    let seen: Option<i64> = tx
        .conn
        .prepare_cached(
            "SELECT max(position) FROM
                 (SELECT position FROM events WHERE position BETWEEN ?1 AND ?2 ORDER BY position LIMIT 0 + ?3)",
        )?
        .query_row(params![from, to, budget], |row| row.get(0))?;
    let seen = seen.unwrap_or(to);
    let removed: Vec<i64> = tx
        .conn
        .prepare_cached(
            "DELETE FROM events WHERE position BETWEEN ?1 AND ?2 AND step <> 'prune'
                 AND run_key IN (SELECT run_key FROM prunings) RETURNING position",
        )?
        .query_map([from, seen], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    tx.conn
        .prepare_cached("UPDATE prunings SET next_position = ?1 + 1 WHERE next_position <= ?1")?
        .execute([seen])?;
    let Some(highest) = removed.iter().max() else { return Ok(true) };
    // Notices that were given up are told of by their events.
    tx.conn
        .prepare_cached(
            "DELETE FROM outbox WHERE position BETWEEN ?1 AND ?2
                 AND NOT EXISTS (SELECT 1 FROM events e WHERE e.position = outbox.position)",
        )?
        .execute([from, seen])?;
    tx.conn
        .prepare_cached("UPDATE counters SET value = max(value, ?1) WHERE name = 'log_floor'")?
        .execute([highest])?;
    Ok(true)
}

/// Removes `budget` tasks; false if there are none.
fn remove_tasks(tx: &mut Tx<'_>, budget: usize) -> Answer<bool> {
    let (mut left, mut removed) = (i64::try_from(budget).unwrap_or(i64::MAX), false);
    while let Some((run, from, last)) = next_tasks(tx)?.filter(|_| left > 0) {
        let to = last.min(from.saturating_add(left - 1));
        for table in ["task_decisions", "notes", "task_executions"] {
            tx.conn
                .prepare_cached(&format!("DELETE FROM {table} WHERE execution_id BETWEEN ?1 AND ?2"))?
                .execute([from, to])?;
        }
        tx.conn
            .prepare_cached("UPDATE prunings SET next_execution = ?2 + 1 WHERE run_key = ?1")?
            .execute([run, to])?;
        (left, removed) = (left - (to + 1 - from), true);
    }
    Ok(removed)
}

/// The next run that has tasks left: the first of them, and the last.
fn next_tasks(tx: &Tx<'_>) -> Answer<Option<(i64, i64, i64)>> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT run_key, next_execution, last_execution FROM prunings
         WHERE next_execution <= last_execution ORDER BY run_key LIMIT 1",
    )?;
    Ok(statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?)
}

/// Runs of which nothing is left but files.
fn bare(tx: &Tx<'_>) -> Answer<Vec<Bare>> {
    let mut statement = tx.conn.prepare_cached(&format!(
        "{BARE} WHERE next_position > last_position AND next_execution > last_execution ORDER BY run_key"
    ))?;
    Ok(statement.query_map([], bare_run)?.collect::<Result<_, _>>()?)
}

const BARE: &str =
    "SELECT run_key, run_id, first_execution, last_execution FROM prunings JOIN pruned_runs USING (run_key)";

fn bare_run(row: &Row<'_>) -> rusqlite::Result<Bare> {
    Ok(Bare {
        run: RunKey(row.get(0)?),
        run_id: parsed(row, 1, |text| text.parse().ok())?,
        first: ExecutionId(row.get(2)?),
        last: ExecutionId(row.get(3)?),
    })
}

/// Makes an end of the oldest runs that may go.
fn take(tx: &mut Tx<'_>, request: &Prune) -> Answer<Vec<RunRef>> {
    let sql = format!(
        "SELECT {RUN_REF} {PRUNABLE} AND r.run_key > ?3 AND r.run_key <= ?3 + ?4 ORDER BY r.run_key LIMIT 0 + ?5"
    );
    let runs: Vec<RunRef> = tx
        .conn
        .prepare_cached(&sql)?
        .query_map(
            params![request.before.0, request.keep, request.after.0, LOOK_MAX, RUNS_MAX.min(request.limit)],
            tombstones::run_ref,
        )?
        .collect::<Result<_, _>>()?;
    for run in &runs {
        bury(tx, run)?;
    }
    Ok(runs)
}

/// From here on, a run is a tombstone.
fn bury(tx: &mut Tx<'_>, run: &RunRef) -> Answer<()> {
    let key = run.key.0;
    tx.conn
        .prepare_cached(
            "INSERT INTO pruned_runs SELECT run_key, run_id, dag_key, number, status, completed_at, ?2
             FROM dag_runs WHERE run_key = ?1",
        )?
        .execute([key, tx.now.0])?;
    tx.conn
        .prepare_cached(
            "INSERT INTO prunings SELECT run_key, first_position, last_position, first_execution, first_execution,
                    first_execution + tasks_total - 1
             FROM dag_runs WHERE run_key = ?1",
        )?
        .execute([key])?;
    let (dag, version, ended_at): (i64, i64, i64) = tx
        .conn
        .prepare_cached("DELETE FROM dag_runs WHERE run_key = ?1 RETURNING dag_key, version, completed_at")?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    tx.conn
        .prepare_cached(
            "UPDATE dags SET latest_run =
                 (SELECT run_key FROM dag_runs r WHERE r.dag_key = dags.dag_key ORDER BY number DESC LIMIT 1)
             WHERE dag_key = ?1 AND latest_run = ?2",
        )?
        .execute([dag, key])?;
    tx.memory.runs.remove(&run.key);
    tx.memory.changed.dag(run.dag_id.as_str());
    let data = json!({"was": run.status.word(), "ended_at": ended_at});
    tx.event(run.key, None, Version(version + 1), PRUNE, PRUNED, Told::data(&data))
}

/// Is there a run after this one?
fn is_beyond(tx: &Tx<'_>, after: RunKey) -> Answer<bool> {
    let mut statement =
        tx.conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM dag_runs WHERE run_key > ?1)")?;
    Ok(statement.query_row([after.0], |row| row.get(0))?)
}

impl Reader {
    /// Runs that a prune would make an end of now, the oldest first.
    pub fn prunable(&self, request: &Prune) -> Answer<Vec<RunRef>> {
        let sql = format!("SELECT {RUN_REF} {PRUNABLE} ORDER BY r.run_key");
        self.collect(&sql, params![request.before.0, request.keep], tombstones::run_ref)
    }

    /// Pruned runs of which something may be left, if only files.
    pub fn half_pruned(&self) -> Answer<Vec<Bare>> {
        self.collect(&format!("{BARE} ORDER BY run_key"), [], bare_run)
    }

    /// Up to here the log may have gaps: events of runs that were pruned. Whoever has heard everything up to here, or
    /// further, misses nothing.
    pub fn log_floor(&self) -> Answer<Position> {
        let mut statement =
            self.conn.prepare_cached("SELECT value FROM counters WHERE name = 'log_floor'")?;
        Ok(statement.query_row([], |row| row.get(0).map(Position))?)
    }

    /// How many bytes of the database are in use, and how many are free for what comes.
    pub fn room(&self) -> Answer<(u64, u64)> {
        let ask = |name: &str| self.conn.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
        let (size, pages, free) = (ask("page_size")?, ask("page_count")?, ask("freelist_count")?);
        Ok(((pages - free.min(pages)) * size, free * size))
    }
}
