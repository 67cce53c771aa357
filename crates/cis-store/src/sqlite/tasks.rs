//! How one task moves: each move guarded in SQL by the status it starts from, each with its event; and how the
//! end of one spreads to those that wait for it.

use std::collections::{BTreeMap, VecDeque};

use cis_core::dag::Policy;
use cis_core::error::Refusal;
use cis_core::id::{ExecutionId, Fence, RunKey, TaskIx, Version};
use cis_core::readiness::{self, Dependencies, Impact, Skip, Verdict};
use cis_core::run::StopReason;
use cis_core::source::Timestamp;
use cis_core::task::{TaskMove, TaskStatus};
use cis_core::template::{self, Scene};
use rusqlite::{OptionalExtension, params};
use serde_json::{Value, json};

use super::events::Told;
use super::tx::Tx;
use super::{approvals, runs, steps};
use crate::port::{Answer, Started, StoreError};

/// A task's row, as far as moving it needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskRow {
    pub(super) execution: ExecutionId,
    pub(super) run: RunKey,
    pub(super) ix: TaskIx,
    pub(super) status: TaskStatus,
    pub(super) version: Version,
}

/// A task whose dependencies are met: ready as far as its event goes, and still as it was in its row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fresh {
    pub(super) task: TaskRow,
    pub(super) deps: Dependencies,
    pub(super) queue: i64,
    pub(super) priority: i32,
    pub(super) ready_order: i64,
    pub(super) queue_deadline: Option<Timestamp>,
}

impl Fresh {
    /// Is `next` its neighbour in all that is written of it?
    fn is_followed_by(&self, next: &Self) -> bool {
        next.task.execution.0 == self.task.execution.0 + 1
            && next.ready_order == self.ready_order + 1
            && next.task.version == self.task.version
            && (next.deps, next.queue_deadline) == (self.deps, self.queue_deadline)
    }
}

/// An attempt that somebody holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    pub(super) task: TaskRow,
    pub(super) fence: Fence,
    pub(super) attempt: u32,
    pub(super) free_tries: u32,
}

/// Tasks that ended alike and have the same dependents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    run: RunKey,
    /// One of them.
    ix: TaskIx,
    impact: Impact,
    /// How many they are.
    together: u32,
}

/// The guarded move itself: status and version, nothing else, and its event.
pub(super) fn move_task(
    tx: &mut Tx<'_>,
    task: TaskRow,
    step: TaskMove,
    told: Told<'_>,
) -> Answer<TaskStatus> {
    let to = task.status.after(step).map_err(Refusal::from)?;
    tx.memory.live.remove(&task.execution);
    let completed_at = to.is_terminal().then_some(tx.now.0);
    // `+status`: see `advance::write`.
    let changed = tx
        .conn
        .prepare_cached(
            "UPDATE task_executions SET status = ?4, version = version + 1, hold = 0, completed_at = ?5
             WHERE execution_id = ?1 AND +status = ?2 AND version = ?3",
        )?
        .execute(params![task.execution.0, task.status.word(), task.version.0, to.word(), completed_at])?;
    guarded(changed, task)?;
    tx.event(task.run, Some(task.ix), Version(task.version.0 + 1), step.word(), to.word(), told)?;
    Ok(to)
}

/// A guard that lets nothing through means this operation looked at something else than it now finds.
pub(super) fn guarded(changed: usize, task: TaskRow) -> Answer<()> {
    if changed == 1 {
        return Ok(());
    }
    Err(StoreError::Database(format!("task {} is not {} any more", task.execution, task.status)))
}

/// A pending task whose dependencies are met: ready, waiting for a person, or skipped if its `when` says so.
pub(super) fn release(tx: &mut Tx<'_>, task: TaskRow) -> Answer<Option<Impact>> {
    let definition = tx.run(task.run)?.definition().clone();
    let released = &definition.dag.tasks[task.ix.index()];
    let go = |tx: &mut Tx<'_>| match released.needs_person() {
        true => approvals::ask(tx, task),
        false => make_ready(tx, task, TaskMove::DependenciesMet, Told::default()),
    };
    let Some(when) = &released.more().when else {
        return go(tx).map(|()| None);
    };
    let scene = scene(tx, task.run, task.ix)?;
    match template::holds(when, &scene) {
        Ok(true) => go(tx).map(|()| None),
        Ok(false) => skip(tx, task, Skip::ByChoice, &format!("`when` is false: {when}")).map(Some),
        Err(e) => {
            // A `when` that cannot be answered is a fault of the definition: the run must not end well.
            tx.run(task.run)?.failed += 1;
            skip(tx, task, Skip::ByFailure, &format!("`when` failed: {e}")).map(Some)
        }
    }
}

/// A task that may be claimed from now on, as far as its run has a place for it.
pub(super) fn make_ready(tx: &mut Tx<'_>, task: TaskRow, step: TaskMove, told: Told<'_>) -> Answer<()> {
    let hold = enter_window(tx, task.run)?;
    let (order, deadline) = say_ready(tx, task, step, told)?;
    // `+status`: see `advance::write`.
    let changed = tx
        .conn
        .prepare_cached(
            "UPDATE task_executions SET status = 'ready', version = version + 1, hold = ?3, ready_order = ?4,
                    queue_deadline = ?5
             WHERE execution_id = ?1 AND +status = ?6 AND version = ?2 AND deps_left = 0",
        )?
        .execute(params![
            task.execution.0,
            task.version.0,
            hold,
            order,
            deadline.map(|t| t.0),
            task.status.word()
        ])?;
    guarded(changed, task)
}

/// The event of a task that becomes ready; answers its place in the ready order and until when it may wait.
fn say_ready(
    tx: &mut Tx<'_>,
    task: TaskRow,
    step: TaskMove,
    told: Told<'_>,
) -> Answer<(i64, Option<Timestamp>)> {
    let to = task.status.after(step).map_err(Refusal::from)?;
    let order = tx.next_position()?;
    let deadline = queue_deadline(tx, task.run, task.ix, tx.now)?;
    let version = Version(task.version.0 + 1);
    tx.event(task.run, Some(task.ix), version, step.word(), to.word(), told)?;
    Ok((order, deadline))
}

/// Writes tasks that became ready in this operation and were not claimed by it: neighbours with one statement.
pub(super) fn write_fresh(tx: &mut Tx<'_>) -> Answer<()> {
    let fresh = std::mem::take(&mut tx.fresh);
    for group in fresh.chunk_by(|one, next| one.is_followed_by(next)) {
        let [Fresh { task, deps, ready_order, queue_deadline, .. }, ..] = group else { continue };
        let changed = tx
            .conn
            .prepare_cached(
                "UPDATE task_executions SET status = 'ready', version = version + 1, deps_left = 0,
                        deps_failed = ?4, deps_blocked = ?5, ready_order = ?6 + execution_id - ?1, queue_deadline = ?7
                 WHERE execution_id BETWEEN ?1 AND ?2 AND status = 'pending' AND version = ?3 AND deps_left > 0",
            )?
            .execute(params![
                task.execution.0,
                group.last().map(|last| last.task.execution.0),
                task.version.0,
                deps.failed,
                deps.blocked,
                ready_order,
                queue_deadline.map(|t| t.0)
            ])?;
        guarded(usize::from(changed == group.len()), *task)?;
    }
    Ok(())
}

/// When a task that may be claimed from `from` on gives up waiting for it.
pub(super) fn queue_deadline(
    tx: &mut Tx<'_>,
    run: RunKey,
    ix: TaskIx,
    from: Timestamp,
) -> Answer<Option<Timestamp>> {
    let limit = tx.run(run)?.definition().dag.tasks[ix.index()].more().queue_timeout;
    let deadline = limit.map(|limit| from.after(limit));
    if let Some(at) = deadline {
        tx.due(at);
    }
    Ok(deadline)
}

/// A task of `run` may be claimed from now on, as far as there is a place for it; answers its hold. Where places are limited
/// it waits for one, and [`fill_windows`] gives them to the most urgent, not to who came first.
pub(super) fn enter_window(tx: &mut Tx<'_>, run: RunKey) -> Answer<u8> {
    if tx.run(run)?.max_parallel.is_none() {
        return Ok(0);
    }
    tx.crowd(run);
    Ok(1)
}

/// Gives a place back.
pub(super) fn leave_window(tx: &mut Tx<'_>, run: RunKey) -> Answer<()> {
    let row = tx.run(run)?;
    if row.max_parallel.is_some() {
        row.window = row.window.saturating_sub(1);
        tx.crowd(run);
    }
    Ok(())
}

/// Gives places that are free to the best of the tasks that wait for one.
pub(super) fn fill_windows(tx: &mut Tx<'_>) -> Answer<()> {
    for run in std::mem::take(&mut tx.crowded) {
        let row = tx.run(run)?;
        let free =
            if row.is_stopping() { 0 } else { row.max_parallel.unwrap_or(0).saturating_sub(row.window) };
        let let_in = tx
            .conn
            .prepare_cached(
                "UPDATE task_executions SET hold = 0 WHERE execution_id IN
                     (SELECT execution_id FROM task_executions INDEXED BY tasks_held
                      WHERE run_key = ?1 AND status = 'ready' AND hold = 1
                      ORDER BY priority DESC, ready_order, execution_id LIMIT 0 + ?2)",
            )?
            .execute(params![run.0, free])?;
        tx.run(run)?.window += u32::try_from(let_in).unwrap_or(u32::MAX);
    }
    Ok(())
}

/// Skips a pending task, or one nobody answered for, with the cause; answers what that means to its dependents.
pub(super) fn skip(tx: &mut Tx<'_>, task: TaskRow, skip: Skip, cause: &str) -> Answer<Impact> {
    let step = if task.status == TaskStatus::Waiting { TaskMove::SkipByDefault } else { TaskMove::Skip };
    move_task(tx, task, step, Told::data(&json!({"cause": cause})))?;
    tx.conn
        .prepare_cached("UPDATE task_executions SET cause = ?2 WHERE execution_id = ?1")?
        .execute(params![task.execution.0, cause])?;
    let run = tx.run(task.run)?;
    run.skipped += 1;
    run.tasks_left -= 1;
    Ok(readiness::impact(TaskStatus::Skipped, Some(skip)))
}

/// Counts a task that has just ended; its dependents are told by [`tell_ending`].
pub(super) fn ended(tx: &mut Tx<'_>, run: RunKey, ix: TaskIx, status: TaskStatus) -> Answer<()> {
    let row = tx.run(run)?;
    let definition = row.definition().clone();
    let ignorable =
        definition.dag.policy == Policy::AllowDebt && definition.dag.tasks[ix.index()].debt_ignorable;
    row.tasks_left -= 1;
    match status {
        TaskStatus::Completed => row.completed += 1,
        TaskStatus::Cancelled => row.cancelled += 1,
        _ if ignorable => row.debts += 1,
        _ => row.failed += 1,
    }
    let is_sink = definition.plan.dependents(ix).is_empty();
    if is_sink && status == TaskStatus::Completed {
        row.sinks_completed += 1;
        let enough =
            definition.dag.policy == Policy::FirstSuccess && !row.is_stopping() && row.tasks_left > 0;
        if enough {
            runs::stop(tx, run, StopReason::FirstSuccess, None)?;
        }
    }
    let impact = readiness::impact(status, None);
    tx.ending = match tx.ending {
        Some(before) => Some(Ending { together: before.together + 1, ..before }),
        None => Some(Ending { run, ix, impact, together: 1 }),
    };
    Ok(())
}

/// Would the success of `execution` tell the same tasks the same as those whose end is still to be told? The tasks of
/// a layer do: they count down together.
pub(super) fn joins(tx: &mut Tx<'_>, execution: ExecutionId) -> Answer<bool> {
    let Some(Ending { run, ix, impact: Impact::Fine, .. }) = tx.ending else { return Ok(false) };
    let budget = tx.memory.chunks.told_at_once;
    let row = tx.run(run)?;
    let (other, plan) = (row.ix(execution), &row.definition().plan);
    let dependents = plan.dependents(ix);
    Ok(other.index() < plan.len() && dependents.len() <= budget && plan.dependents(other) == dependents)
}

/// Tells the dependents of the tasks that have just ended.
pub(super) fn tell_ending(tx: &mut Tx<'_>) -> Answer<()> {
    let Some(Ending { run, ix, impact, together }) = tx.ending.take() else { return Ok(()) };
    let budget = tx.memory.chunks.told_at_once;
    spread(tx, run, ix, impact, together, 0, budget)?;
    runs::end_if_over(tx, run)
}

/// Tells the dependents of `ix`, from the `from`th on, how it and others like it (`together` in all) ended; and
/// theirs, where that ends them too. Once `budget` of them have been told, the rest is left to steps. Answers what is
/// left of the budget.
pub(super) fn spread(
    tx: &mut Tx<'_>,
    run: RunKey,
    ix: TaskIx,
    impact: Impact,
    together: u32,
    from: usize,
    mut budget: usize,
) -> Answer<usize> {
    let row = tx.run(run)?;
    let (definition, first) = (row.definition().clone(), row.first.0);
    let mut queue = VecDeque::from([(ix, impact, together, from)]);
    while let Some((ix, impact, together, from)) = queue.pop_front() {
        // A run that is stopping cancels whatever waits; nobody needs to be told.
        if tx.run(run)?.is_stopping() {
            return Ok(budget);
        }
        let children = &definition.plan.dependents(ix)[from..];
        let now = &children[..children.len().min(budget)];
        for (low, high) in ranges(now) {
            for last in tell(tx, run, first + i64::from(low), first + i64::from(high), impact, together)? {
                let (child, task) = (last.task, &definition.dag.tasks[last.task.ix.index()]);
                let verdict = readiness::verdict(task.run_if, last.deps);
                let windowed = tx.run(run)?.max_parallel.is_some();
                let plain = task.more().when.is_none() && !task.needs_person();
                if verdict == Verdict::Go && plain && !windowed {
                    let (ready_order, queue_deadline) =
                        say_ready(tx, child, TaskMove::DependenciesMet, Told::default())?;
                    tx.fresh.push(Fresh { ready_order, queue_deadline, ..last });
                    continue;
                }
                count_down(tx, &last)?;
                let next = match verdict {
                    Verdict::Wait => None,
                    Verdict::Go => release(tx, child)?,
                    Verdict::Skip(why) => {
                        let cause = skip_cause(why, definition.dag.tasks[ix.index()].id.as_str());
                        Some(skip(tx, child, why, &cause)?)
                    }
                };
                queue.extend(next.map(|impact| (child.ix, impact, 1, 0)));
            }
        }
        budget -= now.len();
        if now.len() < children.len() {
            steps::add_spread(tx, run, ix, impact, from + now.len())?;
        }
    }
    Ok(budget)
}

/// What a task that is skipped for `why` is told, where `before` was the last to end before it.
pub(super) fn skip_cause(why: Skip, before: &str) -> String {
    match why {
        Skip::ByFailure => format!("`{before}` did not complete"),
        Skip::ByChoice => "its `run_if` asks for a failure, and there was none".to_owned(),
    }
}

/// Neighbouring ids as inclusive ranges: one statement each.
fn ranges(sorted: &[TaskIx]) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for ix in sorted {
        match ranges.last_mut() {
            Some((_, high)) if *high + 1 == ix.0 => *high = ix.0,
            _ => ranges.push((ix.0, ix.0)),
        }
    }
    ranges
}

/// Counts `ended` dependencies down in every pending task of a range; answers those that have none left, whose rows
/// are left to the caller.
fn tell(tx: &mut Tx<'_>, run: RunKey, low: i64, high: i64, impact: Impact, ended: u32) -> Answer<Vec<Fresh>> {
    let first = tx.run(run)?.first;
    let failed = if impact == Impact::Failed { ended } else { 0 };
    let blocked = if impact == Impact::Blocked { ended } else { 0 };
    let mut statement = tx.conn.prepare_cached(
        "SELECT execution_id, version, deps_failed, deps_blocked, queue_key, priority FROM task_executions
         WHERE execution_id BETWEEN ?1 AND ?2 AND status = 'pending' AND deps_left = ?3",
    )?;
    let mut rows = statement.query(params![low, high, ended])?;
    let mut last = Vec::new();
    while let Some(row) = rows.next()? {
        let execution = ExecutionId(row.get(0)?);
        let ix = TaskIx(u32::try_from(execution.0 - first.0).unwrap_or(u32::MAX));
        last.push(Fresh {
            task: TaskRow { execution, run, ix, status: TaskStatus::Pending, version: Version(row.get(1)?) },
            deps: Dependencies {
                left: 0,
                failed: row.get::<_, u32>(2)? + failed,
                blocked: row.get::<_, u32>(3)? + blocked,
            },
            queue: row.get(4)?,
            priority: row.get(5)?,
            ready_order: 0,
            queue_deadline: None,
        });
    }
    let told = i64::try_from(last.len()).unwrap_or(i64::MAX);
    if told <= high - low {
        tx.conn
            .prepare_cached(
                "UPDATE task_executions SET deps_left = deps_left - ?5, deps_failed = deps_failed + ?3,
                        deps_blocked = deps_blocked + ?4
                 WHERE execution_id BETWEEN ?1 AND ?2 AND status = 'pending' AND deps_left > ?5",
            )?
            .execute(params![low, high, failed, blocked, ended])?;
    }
    Ok(last)
}

/// Writes that the last dependency of a task has ended.
fn count_down(tx: &Tx<'_>, Fresh { task, deps, .. }: &Fresh) -> Answer<()> {
    let changed = tx
        .conn
        .prepare_cached(
            "UPDATE task_executions SET deps_left = 0, deps_failed = ?3, deps_blocked = ?4
             WHERE execution_id = ?1 AND version = ?2 AND deps_left > 0",
        )?
        .execute(params![task.execution.0, task.version.0, deps.failed, deps.blocked])?;
    guarded(changed, *task)
}

/// What the templates and the `when` of a task see.
pub(super) fn scene(tx: &mut Tx<'_>, run: RunKey, ix: TaskIx) -> Answer<Scene> {
    let tasks = upstream_outputs(tx, run, ix)?
        .into_iter()
        .map(|(id, outputs)| (id, json!({"outputs": outputs})))
        .collect::<serde_json::Map<_, _>>();
    let row = tx.run(run)?;
    Ok(Scene {
        params: row.info.params.clone(),
        tasks: Value::Object(tasks),
        dag_id: row.definition().dag.dag_id.to_string(),
        run_id: row.info.run_id.to_string(),
    })
}

/// The outputs of every task before `ix`; empty ones for those that wrote none.
pub(super) fn upstream_outputs(tx: &mut Tx<'_>, run: RunKey, ix: TaskIx) -> Answer<BTreeMap<String, Value>> {
    let row = tx.run(run)?;
    let (definition, first) = (row.definition().clone(), row.first.0);
    let mut outputs = BTreeMap::new();
    for before in definition.plan.upstream(ix) {
        let stored: Option<String> = tx
            .conn
            .prepare_cached("SELECT outputs_json FROM task_executions WHERE execution_id = ?1")?
            .query_row([first + i64::from(before.0)], |row| row.get(0))
            .optional()?
            .flatten();
        let value = stored.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_else(|| json!({}));
        outputs.insert(definition.dag.tasks[before.index()].id.to_string(), value);
    }
    Ok(outputs)
}

/// See [`crate::Store::note_started`].
pub(super) fn note_started(tx: &mut Tx<'_>, started: &[Started]) -> Answer<()> {
    for Started { execution, fence: Fence(fence), at } in started {
        let run = tx
            .conn
            .prepare_cached(
                "UPDATE task_executions SET started_at = ?3
                 WHERE execution_id = ?1 AND fence = ?2 AND status IN ('running', 'cancelling') RETURNING run_key",
            )?
            .query_row(params![execution.0, fence, at.0], |row| row.get(0))
            .optional()?;
        if let Some(run) = run {
            tx.changes(RunKey(run))?;
        }
    }
    Ok(())
}
