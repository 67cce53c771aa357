//! Large steps: creating, stopping or telling a hundred thousand tasks. The intent is committed first, as a row
//! in `steps`; then it is worked off in chunks, so that no transaction holds the writer for long, and a crash in
//! between loses nothing.

use cis_core::id::{ExecutionId, Fence, RunKey, TaskIx, Version};
use cis_core::readiness::{self, Dependencies, Impact, Verdict};
use cis_core::task::{TaskMove, TaskStatus};
use rusqlite::{OptionalExtension, params};
use serde_json::json;

use super::events::Told;
use super::tasks::{self, TaskRow};
use super::tx::{Tx, parsed};
use super::{pause, runs};
use crate::port::{Answer, Fate, Worked};

/// How much of a large step is done at once, and of an epoch granted.
#[derive(Debug, Clone, Copy)]
pub struct Chunks {
    /// Rows touched per chunk. Small steps share one, so that thousands of them do not cost thousands of commits.
    pub rows: usize,
    /// Dependents told of an end inside the transaction that recorded it; the rest is a step of its own.
    pub told_at_once: usize,
    /// Fences granted in one epoch, at most as many as it has.
    pub fences: u32,
}

impl Default for Chunks {
    /// A few milliseconds each.
    fn default() -> Self {
        Self { rows: 1_000, told_at_once: 512, fences: Fence::COUNT_MAX }
    }
}

pub(super) struct Step {
    key: i64,
    pub(super) run: RunKey,
    kind: String,
    task: Option<TaskIx>,
    impact: Option<Impact>,
    pub(super) cursor: usize,
}

/// See [`crate::Store::work`].
pub(super) fn work(tx: &mut Tx<'_>) -> Answer<Worked> {
    let mut budget = tx.memory.chunks.rows;
    while budget > 0 {
        let Some(step) = next(tx, None)? else { break };
        // A step that finds nothing to do has cost something too.
        budget = chunk(tx, &step, budget)?.min(budget - 1);
    }
    let more = under_way(tx)?;
    Ok(Worked {
        more,
        stop: std::mem::take(&mut tx.stop),
        ended: std::mem::take(&mut tx.ended),
        next_due: tx.next_due,
    })
}

/// One chunk of `run`'s own steps, for an operation that has just added one.
pub(super) fn work_on_run(tx: &mut Tx<'_>, run: RunKey) -> Answer<()> {
    match next(tx, Some(run))? {
        Some(step) => chunk(tx, &step, tx.memory.chunks.rows).map(drop),
        None => Ok(()),
    }
}

/// Are tasks of `run` still to be created?
pub(super) fn creating(tx: &Tx<'_>, run: RunKey) -> Answer<bool> {
    Ok(tx
        .conn
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM steps WHERE run_key = ?1 AND kind = 'create')")?
        .query_row([run.0], |row| row.get(0))?)
}

/// Are there steps left?
pub(super) fn under_way(tx: &mut Tx<'_>) -> Answer<bool> {
    if let Some(known) = tx.memory.steps {
        return Ok(known);
    }
    let mut statement = tx.conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM steps)")?;
    let found = statement.query_row([], |row| row.get(0))?;
    tx.memory.steps = Some(found);
    Ok(found)
}

pub(super) fn add_create(tx: &mut Tx<'_>, run: RunKey) -> Answer<()> {
    add(tx, run, "create", None, None, 0)
}

pub(super) fn add_stop(tx: &mut Tx<'_>, run: RunKey) -> Answer<()> {
    add(tx, run, "stop", None, None, 0)
}

pub(super) fn add_pause(tx: &mut Tx<'_>, run: RunKey) -> Answer<()> {
    add(tx, run, "pause", None, None, 0)
}

pub(super) fn add_spread(
    tx: &mut Tx<'_>,
    run: RunKey,
    task: TaskIx,
    impact: Impact,
    from: usize,
) -> Answer<()> {
    add(tx, run, "spread", Some(task), Some(impact), from)
}

fn add(
    tx: &mut Tx<'_>,
    run: RunKey,
    kind: &str,
    task: Option<TaskIx>,
    impact: Option<Impact>,
    at: usize,
) -> Answer<()> {
    let impact = impact.map(|impact| match impact {
        Impact::Fine => "fine",
        Impact::Failed => "failed",
        Impact::Blocked => "blocked",
    });
    tx.conn
        .prepare_cached(
            "INSERT INTO steps (run_key, kind, task_ix, impact, cursor) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![run.0, kind, task.map(|ix| ix.0), impact, at])?;
    tx.memory.steps = Some(true);
    Ok(())
}

/// The oldest step under way: a run is created before it is stopped.
fn next(tx: &Tx<'_>, run: Option<RunKey>) -> Answer<Option<Step>> {
    Ok(tx
        .conn
        .prepare_cached(
            "SELECT step_key, run_key, kind, task_ix, impact, cursor FROM steps
             WHERE ?1 IS NULL OR run_key = ?1 ORDER BY step_key LIMIT 1",
        )?
        .query_row([run.map(|run| run.0)], |row| {
            Ok(Step {
                key: row.get(0)?,
                run: RunKey(row.get(1)?),
                kind: row.get(2)?,
                task: row.get::<_, Option<u32>>(3)?.map(TaskIx),
                impact: row.get::<_, Option<String>>(4)?.as_deref().map(|word| match word {
                    "fine" => Impact::Fine,
                    "failed" => Impact::Failed,
                    _ => Impact::Blocked,
                }),
                cursor: row.get(5)?,
            })
        })
        .optional()?)
}

/// Works on `step` while there is `budget`; answers what is left of it.
fn chunk(tx: &mut Tx<'_>, step: &Step, budget: usize) -> Answer<usize> {
    let left = match (step.kind.as_str(), step.task, step.impact) {
        ("create", ..) => create(tx, step, budget)?,
        ("spread", Some(task), Some(impact)) => {
            // What is left after this chunk becomes a step of its own.
            done(tx, step)?;
            tasks::spread(tx, step.run, task, impact, 1, step.cursor, budget)?
        }
        ("pause", ..) => pause::chunk(tx, step, budget)?,
        _ => stop(tx, step, budget)?,
    };
    // The next step may be about the same tasks.
    tasks::write_fresh(tx)?;
    runs::end_if_over(tx, step.run)?;
    Ok(left)
}

pub(super) fn done(tx: &mut Tx<'_>, step: &Step) -> Answer<()> {
    tx.conn.prepare_cached("DELETE FROM steps WHERE step_key = ?1")?.execute([step.key])?;
    tx.memory.steps = None;
    Ok(())
}

pub(super) fn advance_to(tx: &Tx<'_>, step: &Step, cursor: usize) -> Answer<()> {
    tx.conn
        .prepare_cached("UPDATE steps SET cursor = ?2 WHERE step_key = ?1")?
        .execute(params![step.key, cursor])?;
    Ok(())
}

/// Creates task rows in two passes over the definition: first those that wait for others or will not run, then
/// those that wait for nothing. So whatever can start finds all that depends on it, and all that was carried over
/// to it, already there.
fn create(tx: &mut Tx<'_>, step: &Step, mut budget: usize) -> Answer<usize> {
    let plan_len = tx.run(step.run)?.definition().plan.len();
    let mut cursor = step.cursor;
    while cursor < 2 * plan_len && budget > 0 {
        let ix = TaskIx(u32::try_from(cursor % plan_len).unwrap_or(u32::MAX));
        let waits = waits_for(tx, step.run, ix)?;
        let can_start = waits == 0 && tx.run(step.run)?.fate(ix) == Fate::Run;
        if can_start == (cursor >= plan_len) {
            create_task(tx, step.run, ix, waits)?;
            budget -= 1;
        }
        cursor += 1;
    }
    if cursor < 2 * plan_len {
        advance_to(tx, step, cursor)?
    } else {
        done(tx, step)?
    }
    Ok(budget)
}

/// How many dependencies of a task this run itself will run.
fn waits_for(tx: &mut Tx<'_>, run: RunKey, ix: TaskIx) -> Answer<u32> {
    let row = tx.run(run)?;
    let depends_on = row.definition().plan.depends_on(ix);
    if row.fate(ix) != Fate::Run {
        return Ok(0);
    }
    if row.fates.is_none() {
        return Ok(u32::try_from(depends_on.len()).unwrap_or(u32::MAX));
    }
    let waits = depends_on.iter().filter(|before| row.fate(**before) == Fate::Run).count();
    Ok(u32::try_from(waits).unwrap_or(u32::MAX))
}

fn create_task(tx: &mut Tx<'_>, run: RunKey, ix: TaskIx, waits: u32) -> Answer<()> {
    let row = tx.run(run)?;
    let (definition, scope, execution) = (row.definition().clone(), row.scope.clone(), row.execution(ix));
    let (fate, run_priority, stopping) = (row.fate(ix), row.priority, row.is_stopping());
    let (resumed_from, task) = (row.resumed_from, &definition.dag.tasks[ix.index()]);
    let queue = tx.queue(task.kind.word(), scope.as_str(), &task.more().needs)?;
    let queue = if tx.run(run)?.paused { -queue } else { queue };
    // With nothing to wait for, its rule may still say no: one that asks for a failure finds none.
    let verdict = readiness::verdict(task.run_if, Dependencies { left: waits, ..Dependencies::default() });
    let can_start = fate == Fate::Run && waits == 0 && !stopping;
    let ready = can_start && verdict == Verdict::Go && task.more().when.is_none() && !task.needs_person();
    let (status, cause) = match fate {
        Fate::Carry => (TaskStatus::Completed, Some("carried over")),
        Fate::Leave => (TaskStatus::Skipped, Some("not selected")),
        Fate::Run if ready => (TaskStatus::Ready, None),
        Fate::Run => (TaskStatus::Pending, None),
    };
    let hold = if ready { tasks::enter_window(tx, run)? } else { 0 };
    // No event of its own makes it ready, but the one that created its run.
    let order = if ready { tx.run(run)?.first_position } else { 0 };
    let deadline = if ready { tasks::queue_deadline(tx, run, ix, tx.now)? } else { None };
    let completed_at = status.is_terminal().then_some(tx.now.0);
    tx.conn
        .prepare_cached(
            "INSERT INTO task_executions (execution_id, run_key, task_id, status, deps_left, hold, queue_key,
                                          priority, ready_order, queue_deadline, cause, completed_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?
        .execute(params![
            execution.0,
            run.0,
            task.id.as_str(),
            status.word(),
            waits,
            hold,
            queue,
            run_priority.saturating_add(task.priority),
            order,
            deadline.map(|t| t.0),
            cause,
            completed_at,
        ])?;
    if fate == Fate::Carry {
        carry_outputs(tx, execution, resumed_from, ix)?;
    }
    if can_start && !ready {
        let row = TaskRow { execution, run, ix, status, version: Version(1) };
        let impact = match verdict {
            Verdict::Skip(why) => Some(tasks::skip(tx, row, why, &tasks::skip_cause(why, task.id.as_str()))?),
            _ => tasks::release(tx, row)?,
        };
        if let Some(impact) = impact {
            let budget = tx.memory.chunks.told_at_once;
            tasks::spread(tx, run, ix, impact, 1, 0, budget)?;
        }
    }
    Ok(())
}

fn carry_outputs(tx: &Tx<'_>, execution: ExecutionId, from: Option<RunKey>, ix: TaskIx) -> Answer<()> {
    tx.conn
        .prepare_cached(
            "UPDATE task_executions SET (outputs_json, exit_code, started_at, completed_at, output, error) =
                 (SELECT outputs_json, exit_code, started_at, completed_at, output, error FROM task_executions
                  WHERE execution_id = (SELECT first_execution + ?3 FROM dag_runs WHERE run_key = ?2))
             WHERE execution_id = ?1",
        )?
        .execute(params![execution.0, from.map(|run| run.0), ix.0])?;
    Ok(())
}

/// Cancels what has not started and asks what has to stop.
fn stop(tx: &mut Tx<'_>, step: &Step, budget: usize) -> Answer<usize> {
    let row = tx.run(step.run)?;
    let (first, last) =
        (row.first.0, row.first.0 + i64::try_from(row.definition().plan.len()).unwrap_or(0) - 1);
    let from = first + i64::try_from(step.cursor).unwrap_or(0);
    let tasks: Vec<(TaskRow, Option<Fence>)> = tx
        .conn
        .prepare_cached(
            "SELECT execution_id, status, version, fence FROM task_executions
             WHERE execution_id BETWEEN ?1 AND ?2 AND status IN ('pending', 'waiting', 'ready', 'running')
             ORDER BY execution_id LIMIT 0 + ?3",
        )?
        .query_map(params![from, last, budget], |row| {
            let execution = ExecutionId(row.get(0)?);
            let ix = TaskIx(u32::try_from(execution.0 - first).unwrap_or(u32::MAX));
            let status = parsed(row, 1, TaskStatus::from_word)?;
            let task = TaskRow { execution, run: step.run, ix, status, version: Version(row.get(2)?) };
            Ok((task, row.get::<_, Option<i64>>(3)?.map(Fence)))
        })?
        .collect::<Result<_, _>>()?;
    for (task, fence) in &tasks {
        match fence {
            Some(fence) if task.status == TaskStatus::Running => {
                tasks::move_task(tx, *task, TaskMove::Cancel, Told::default())?;
                tx.stop.push((task.execution, *fence));
            }
            _ => {
                let why = json!({"cause": "run is stopping"});
                tasks::move_task(tx, *task, TaskMove::RunStops, Told::data(&why))?;
                let row = tx.run(step.run)?;
                row.tasks_left -= 1;
                row.cancelled += 1;
            }
        }
    }
    match tasks.last() {
        Some((last, _)) if tasks.len() == budget => advance_to(tx, step, last.ix.index() + 1)?,
        _ => done(tx, step)?,
    }
    Ok(budget - tasks.len())
}
