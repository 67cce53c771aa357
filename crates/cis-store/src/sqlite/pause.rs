//! Pausing: nothing more of a run, or of a scope, is claimed; what is live goes on.
//!
//! A claim must not look past what is paused, however much that is. A paused scope's queues are not read at all. The
//! tasks of a paused run stand in the negative of their queue, which nobody reads; a step moves them there, and back,
//! so what becomes ready meanwhile is there already. Whatever else holds a task back (a full window, a backoff) goes
//! its own way, paused or not.

use std::collections::BTreeSet;

use cis_core::id::{RunKey, Scope};
use cis_core::run::{RunMove, RunStatus};
use rusqlite::params;

use super::events::Told;
use super::steps::{self, Step};
use super::tx::Tx;
use crate::port::Answer;

/// See [`crate::Store::pause_run`].
pub(super) fn run(tx: &mut Tx<'_>, run: RunKey, paused: bool, by: Option<&str>) -> Answer<RunStatus> {
    let row = tx.run(run)?;
    if row.paused == paused && !row.is_stopping() {
        return Ok(row.status);
    }
    row.paused = paused;
    let step = if paused { RunMove::Pause } else { RunMove::Unpause };
    let status = tx.move_run(run, step, Told::default().by(by))?;
    // One that is still at it would go on the same way: its run has changed its mind, and tasks are to follow anew.
    tx.conn.prepare_cached("DELETE FROM steps WHERE run_key = ?1 AND kind = 'pause'")?.execute([run.0])?;
    steps::add_pause(tx, run)?;
    Ok(status)
}

/// Works on a step: brings tasks that may yet be claimed to where their run says. Answers what is left of the budget.
pub(super) fn chunk(tx: &mut Tx<'_>, step: &Step, budget: usize) -> Answer<usize> {
    let row = tx.run(step.run)?;
    let (first, paused) = (row.first.0, row.paused);
    let last = first + i64::try_from(row.definition().plan.len()).unwrap_or(0) - 1;
    let from = first + i64::try_from(step.cursor).unwrap_or(0);
    let tasks: Vec<i64> = tx
        .conn
        .prepare_cached(
            "SELECT execution_id FROM task_executions
             WHERE execution_id BETWEEN ?1 AND ?2 AND status IN ('pending', 'waiting', 'ready', 'running')
             ORDER BY execution_id LIMIT 0 + ?3",
        )?
        .query_map(params![from, last, budget], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let Some(reached) = tasks.last() else {
        steps::done(tx, step)?;
        return Ok(budget);
    };
    let sign = if paused { -1 } else { 1 };
    tx.conn
        .prepare_cached(
            "UPDATE task_executions SET queue_key = ?3 * abs(queue_key)
             WHERE execution_id BETWEEN ?1 AND ?2 AND status IN ('pending', 'waiting', 'ready', 'running')",
        )?
        .execute(params![from, reached, sign])?;
    if tasks.len() == budget {
        steps::advance_to(tx, step, usize::try_from(reached + 1 - first).unwrap_or(usize::MAX))?;
    } else {
        steps::done(tx, step)?;
    }
    Ok(budget - tasks.len())
}

/// See [`crate::Store::pause_scope`].
pub(super) fn scope(tx: &mut Tx<'_>, scope: &Scope, paused: bool) -> Answer<bool> {
    let changed = if paused {
        let mut insert = tx
            .conn
            .prepare_cached("INSERT INTO paused_scopes VALUES (?1, ?2) ON CONFLICT (scope) DO NOTHING")?;
        insert.execute(params![scope.as_str(), tx.now.0])?
    } else {
        tx.conn.prepare_cached("DELETE FROM paused_scopes WHERE scope = ?1")?.execute([scope.as_str()])?
    };
    tx.memory.paused_scopes = None;
    // A status says whether its scope is paused.
    tx.memory.changed.everything();
    Ok(changed == 1)
}

/// Scopes nothing is claimed from.
pub(super) fn scopes(tx: &mut Tx<'_>) -> Answer<BTreeSet<String>> {
    if tx.memory.paused_scopes.is_none() {
        let mut statement = tx.conn.prepare_cached("SELECT scope FROM paused_scopes")?;
        let all = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        tx.memory.paused_scopes = Some(all);
    }
    // Hardly ever more than none.
    Ok(tx.memory.paused_scopes.clone().unwrap_or_default())
}
