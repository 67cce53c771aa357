//! What becomes due: backoffs that are over, tasks and runs that waited or ran too long, questions and requests nobody
//! decided about. Each has an index of its own that holds only what is still waiting, so a sweep costs what it does.

use cis_core::id::{Epoch, ExecutionId, RunKey, Version};
use cis_core::run::StopReason;
use cis_core::source::{BootTime, Timestamp};
use cis_core::task::{TaskMove, TaskStatus};
use rusqlite::params;

use super::events::Told;
use super::tasks::{self, TaskRow};
use super::tx::Tx;
use super::{approvals, definitions, fences, keys, leases, runs, steps};
use crate::port::{Answer, Swept};

/// Due things handled per sweep; if there are more, the next sweep is due at once.
const SWEEP_MAX: usize = 500;

/// See [`crate::Store::sweep`].
pub(super) fn sweep(tx: &mut Tx<'_>, epoch: Epoch, since_boot: BootTime) -> Answer<Swept> {
    fences::check_life(tx, epoch)?;
    end_backoffs(tx)?;
    leases::expire(tx, since_boot)?;
    time_out_waiting_tasks(tx)?;
    answer_for_nobody(tx)?;
    time_out_runs(tx)?;
    expire_requests(tx)?;
    let more_keys = keys::forget_old(tx)?;
    // Deadlines that were met must not be found again.
    tx.finish()?;
    let due = [next_due(tx)?, leases::next_due(tx, since_boot)?, more_keys.then_some(tx.now)];
    Ok(Swept {
        ended: std::mem::take(&mut tx.ended),
        next_due: due.into_iter().flatten().min(),
        more_work: steps::under_way(tx)?,
    })
}

fn due_tasks(tx: &Tx<'_>, sql: &str) -> Answer<Vec<(ExecutionId, RunKey, Version, u8)>> {
    Ok(tx
        .conn
        .prepare_cached(sql)?
        .query_map(params![tx.now.0, SWEEP_MAX], |row| {
            Ok((ExecutionId(row.get(0)?), RunKey(row.get(1)?), Version(row.get(2)?), row.get(3)?))
        })?
        .collect::<Result<_, _>>()?)
}

/// No state changes: a ready task becomes claimable, if its run has a place for it.
fn end_backoffs(tx: &mut Tx<'_>) -> Answer<()> {
    let due = due_tasks(
        tx,
        "SELECT execution_id, run_key, version, hold FROM task_executions INDEXED BY tasks_backing_off
         WHERE status = 'ready' AND hold = 2 AND not_before <= ?1 ORDER BY not_before LIMIT 0 + ?2",
    )?;
    for (execution, run, ..) in due {
        let hold = tasks::enter_window(tx, run)?;
        tx.conn
            .prepare_cached("UPDATE task_executions SET hold = ?2, not_before = NULL WHERE execution_id = ?1 AND hold = 2")?
            .execute(params![execution.0, hold])?;
    }
    Ok(())
}

fn time_out_waiting_tasks(tx: &mut Tx<'_>) -> Answer<()> {
    let due = due_tasks(
        tx,
        "SELECT execution_id, run_key, version, hold FROM task_executions INDEXED BY tasks_queue_due
         WHERE status = 'ready' AND queue_deadline <= ?1 ORDER BY queue_deadline LIMIT 0 + ?2",
    )?;
    for (execution, run, version, hold) in due {
        if tx.run(run)?.is_stopping() {
            continue;
        }
        let ix = tx.run(run)?.ix(execution);
        let task = TaskRow { execution, run, ix, status: TaskStatus::Ready, version };
        tasks::move_task(tx, task, TaskMove::QueueTimeout, Told::default())?;
        tx.conn
            .prepare_cached(
                "UPDATE task_executions SET cause = 'nobody claimed it in time' WHERE execution_id = ?1",
            )?
            .execute([execution.0])?;
        if hold == 0 {
            tasks::leave_window(tx, run)?;
        }
        tasks::ended(tx, run, ix, TaskStatus::TimedOut)?;
        tasks::tell_ending(tx)?;
    }
    Ok(())
}

/// Whoever was asked has not answered: the definition says what that means.
fn answer_for_nobody(tx: &mut Tx<'_>) -> Answer<()> {
    let due = due_tasks(
        tx,
        "SELECT execution_id, run_key, version, hold FROM task_executions INDEXED BY tasks_waiting
         WHERE status = 'waiting' AND answer_deadline <= ?1 ORDER BY answer_deadline LIMIT 0 + ?2",
    )?;
    for (execution, run, version, _) in due {
        if !tx.run(run)?.is_stopping() {
            approvals::no_answer(tx, execution, run, version)?;
        }
    }
    Ok(())
}

fn time_out_runs(tx: &mut Tx<'_>) -> Answer<()> {
    let due: Vec<RunKey> = tx
        .conn
        .prepare_cached(
            "SELECT run_key FROM dag_runs INDEXED BY runs_due
             WHERE completed_at IS NULL AND deadline <= ?1 ORDER BY deadline LIMIT 0 + ?2",
        )?
        .query_map(params![tx.now.0, SWEEP_MAX], |row| row.get(0).map(RunKey))?
        .collect::<Result<_, _>>()?;
    let now = tx.now;
    for run in due {
        // By its row as it is now: it may have begun in this very sweep, and have another deadline since.
        if tx.run(run)?.deadline.is_some_and(|deadline| deadline <= now) {
            runs::stop(tx, run, StopReason::Timeout, None)?;
        }
    }
    Ok(())
}

fn expire_requests(tx: &mut Tx<'_>) -> Answer<()> {
    let due: Vec<(i64, i64)> = tx
        .conn
        .prepare_cached(
            "SELECT definition_key, version FROM dag_definitions INDEXED BY definitions_expiring
             WHERE status = 'pending' AND expires_at <= ?1 ORDER BY expires_at LIMIT 0 + ?2",
        )?
        .query_map(params![tx.now.0, SWEEP_MAX], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (definition, version) in due {
        definitions::expire(tx, definition, version)?;
    }
    Ok(())
}

/// The earliest deadline of all that is still waiting.
fn next_due(tx: &Tx<'_>) -> Answer<Option<Timestamp>> {
    let due: Option<i64> = tx
        .conn
        .prepare_cached(
            "SELECT min(due) FROM (
                 SELECT min(not_before) AS due FROM task_executions WHERE status = 'ready' AND hold = 2
                 UNION ALL SELECT min(queue_deadline) FROM task_executions
                           WHERE status = 'ready' AND queue_deadline IS NOT NULL
                 UNION ALL SELECT min(answer_deadline) FROM task_executions
                           WHERE status = 'waiting' AND answer_deadline IS NOT NULL
                 UNION ALL SELECT min(deadline) FROM dag_runs WHERE completed_at IS NULL AND deadline IS NOT NULL
                 UNION ALL SELECT min(expires_at) FROM dag_definitions
                           WHERE status = 'pending' AND expires_at IS NOT NULL)",
        )?
        .query_row([], |row| row.get(0))?;
    Ok(due.map(Timestamp))
}
