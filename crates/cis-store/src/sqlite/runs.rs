//! Creating, stopping and ending runs, and what a new coordinator finds.

use std::sync::Arc;

use cis_core::dag::params::filled;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::event::CREATE;
use cis_core::id::{ExecutionId, Fence, RunId, RunKey};
use cis_core::policy::{self, Tally};
use cis_core::run::{RunMove, RunStatus, StopReason};
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use rusqlite::{OptionalExtension, params};
use serde_json::{Value, json};

use super::events::Told;
use super::tx::{Tx, parsed};
use super::{claim, clock, fences, leases, quotas, steps, tombstones};
use crate::port::{
    Answer, Boot, Definition, Fate, LiveAttempt, Opening, Quotas, RevisionStatus, RunRef, StartRun,
    Unfinished,
};

/// See [`crate::Store::open_epoch`].
pub(super) fn open_epoch(tx: &mut Tx<'_>, boot: &Boot) -> Answer<Opening> {
    let epoch = fences::begin(tx)?;
    clock::begin(tx, boot)?;
    leases::release_renumbered(tx)?;
    let renewed = leases::renew_after_boot(tx, boot)?;
    let keys: Vec<RunKey> = tx
        .conn
        .prepare_cached("SELECT run_key FROM dag_runs INDEXED BY runs_unfinished WHERE completed_at IS NULL ORDER BY run_key")?
        .query_map([], |row| row.get(0).map(RunKey))?
        .collect::<Result<_, _>>()?;
    let unfinished = keys
        .into_iter()
        // To look at: there may be more of them than are kept in mind.
        .map(|key| tx.peek(key).map(|row| Unfinished { run: row.reference(), attached: row.info.attached }))
        .collect::<Answer<_>>()?;
    let live = live_attempts(tx)?;
    Ok(Opening { epoch, live, unfinished, renewed })
}

/// Those that this machine's runner has or should have; what others hold is theirs.
fn live_attempts(tx: &mut Tx<'_>) -> Answer<Vec<LiveAttempt>> {
    let rows: Vec<(ExecutionId, Fence, RunKey, TaskStatus, Timestamp, u32)> = tx
        .conn
        .prepare_cached(
            "SELECT execution_id, fence, run_key, status, claimed_at, attempt
             FROM task_executions INDEXED BY tasks_live WHERE status IN ('running', 'cancelling')
               AND NOT EXISTS (SELECT 1 FROM leases WHERE subject_kind = 'task' AND subject_key = execution_id)
             ORDER BY fence",
        )?
        .query_map([], |row| {
            let status = parsed(row, 3, TaskStatus::from_word)?;
            let claimed_at = Timestamp(row.get(4)?);
            Ok((
                ExecutionId(row.get(0)?),
                Fence(row.get(1)?),
                RunKey(row.get(2)?),
                status,
                claimed_at,
                row.get(5)?,
            ))
        })?
        .collect::<Result<_, _>>()?;
    rows.into_iter()
        .map(|(execution, fence, run, status, claimed_at, attempt)| {
            let ix = tx.run(run)?.ix(execution);
            let claim = Arc::new(claim::claimed(tx, run, execution, ix, fence, attempt)?);
            Ok(LiveAttempt { execution, fence, run, status, claimed_at, claim })
        })
        .collect()
}

/// See [`crate::Store::start_run`].
pub(super) fn start(tx: &mut Tx<'_>, request: &StartRun, quotas: Option<Quotas>) -> Answer<RunRef> {
    if let Some(existing) = existing(tx, request)? {
        return tombstones::reference(tx, existing);
    }
    tx.room()?;
    // First: what was rejected may have no definition any more.
    let dag_key = confirmed_dag(tx, request.definition)?;
    let definition = tx.definition(request.definition)?;
    check_fit(tx, request, &definition)?;
    let params = filled(&definition.dag, &request.params)?;
    let identity = counts_for(tx, request)?;
    quotas::check_runs(tx, quotas, &identity)?;
    let key = insert(tx, request, &definition, dag_key, &params, &identity)?;
    tx.memory.usage.add_run(&identity);
    if request.by_confirmation {
        tx.conn
            .prepare_cached("UPDATE dag_confirmations SET run_key = ?2 WHERE definition_key = ?1")?
            .execute(params![request.definition, key.0])?;
    }
    let by = Told::default().by(Some(&request.by));
    tx.event(key, None, cis_core::id::Version(1), CREATE, RunStatus::Queued.word(), by)?;
    steps::add_create(tx, key)?;
    steps::work_on_run(tx, key)?;
    Ok(tx.run(key)?.reference())
}

/// The identity that a new run counts for: who starts it. Confirming is clearing a queue of requests, so what is started by
/// that counts for who asked for it.
fn counts_for(tx: &Tx<'_>, request: &StartRun) -> Answer<String> {
    if !request.by_confirmation {
        return Ok(request.by.clone());
    }
    let sql = "SELECT created_by FROM dag_definitions WHERE definition_key = ?1";
    Ok(tx.conn.prepare_cached(sql)?.query_row([request.definition], |row| row.get(0))?)
}

/// The run that an earlier, identical request made.
fn existing(tx: &Tx<'_>, request: &StartRun) -> Answer<Option<RunKey>> {
    let by_id = find(tx, request.run_id)?;
    if by_id.is_some() || !request.by_confirmation {
        return Ok(by_id);
    }
    let key: Option<i64> = tx
        .conn
        .prepare_cached("SELECT run_key FROM dag_confirmations WHERE definition_key = ?1")?
        .query_row([request.definition], |row| row.get(0))
        .optional()?
        .flatten();
    Ok(key.map(RunKey))
}

fn find(tx: &Tx<'_>, run_id: RunId) -> Answer<Option<RunKey>> {
    Ok(tx
        .conn
        .prepare_cached(
            "SELECT run_key FROM dag_runs WHERE run_id = ?1
             UNION ALL SELECT run_key FROM pruned_runs WHERE run_id = ?1",
        )?
        .query_row([run_id.to_string()], |row| row.get(0).map(RunKey))
        .optional()?)
}

/// Nothing runs that was not confirmed.
fn confirmed_dag(tx: &Tx<'_>, definition: i64) -> Answer<i64> {
    let (dag_key, status) = tx
        .conn
        .prepare_cached("SELECT dag_key, status FROM dag_definitions WHERE definition_key = ?1")?
        .query_row([definition], |row| Ok((row.get(0)?, parsed(row, 1, RevisionStatus::from_word)?)))
        .optional()?
        .ok_or_else(|| Refusal::new(ErrorCode::NotFound, format!("no definition {definition}")))?;
    match status {
        RevisionStatus::Confirmed => Ok(dag_key),
        RevisionStatus::Pending => {
            Err(Refusal::new(ErrorCode::AwaitingConfirmation, "nobody has confirmed this revision yet")
                .into())
        }
        gone => Err(Refusal::new(ErrorCode::InvalidTransition, format!("this revision is {}", gone.word()))
            .hint("publish it again to open a new request")
            .into()),
    }
}

/// Can this definition be run as the request says?
fn check_fit(tx: &Tx<'_>, request: &StartRun, definition: &Definition) -> Answer<()> {
    let refuse = |why: String| Err(Refusal::new(ErrorCode::ValidationFailed, why).into());
    if request.max_parallel == Some(0) {
        return refuse("`max_parallel` must be at least 1".to_owned());
    }
    let Some(fates) = &request.fates else { return Ok(()) };
    let tasks = definition.dag.tasks.len();
    if fates.len() != tasks {
        return refuse(format!("{} fates for {tasks} tasks", fates.len()));
    }
    if !fates.contains(&Fate::Carry) {
        return Ok(());
    }
    let resumed: Option<i64> = tx
        .conn
        .prepare_cached("SELECT definition_key FROM dag_runs WHERE run_key = ?1")?
        .query_row([request.resumed_from.map(|run| run.0)], |row| row.get(0))
        .optional()?;
    if let Some(pruned) = request.resumed_from.map(|run| tombstones::find(tx, run)).transpose()?.flatten() {
        return Err(pruned.refusal().into());
    }
    if resumed != Some(definition.key) {
        return refuse("tasks can be carried over only from a run of the same revision".to_owned());
    }
    Ok(())
}

fn insert(
    tx: &mut Tx<'_>,
    request: &StartRun,
    definition: &Definition,
    dag_key: i64,
    params: &Value,
    counts_for: &str,
) -> Answer<RunKey> {
    let total = definition.dag.tasks.len();
    let first: i64 = tx
        .conn
        .prepare_cached(
            "UPDATE counters SET value = value + ?1 WHERE name = 'next_execution' RETURNING value - ?1",
        )?
        .query_row([total], |row| row.get(0))?;
    let number: i64 = tx
        .conn
        .prepare_cached("UPDATE dags SET runs = runs + 1, updated_at = ?2 WHERE dag_key = ?1 RETURNING runs")?
        .query_row(params![dag_key, tx.now.0], |row| row.get(0))?;
    let counts = Counts::of(request.fates.as_deref(), definition);
    let deadline = definition.dag.queue_timeout.map(|limit| tx.now.after(limit));
    if let Some(at) = deadline {
        tx.due(at);
    }
    let position = tx.next_position()?;
    tx.conn
        .prepare_cached(
            // No key is ever given twice: what was pruned is still spoken of by its own.
            "INSERT INTO dag_runs (run_key, run_id, dag_key, definition_key, number, status, params_json, priority,
                 max_parallel, attached, resumed_from, fates, created_by, created_at, deadline, first_position,
                 first_execution, tasks_total, tasks_left, completed, skipped, sinks_completed, at_node, traceparent,
                 starter_proven, counts_for)
             VALUES (1 + max(coalesce((SELECT max(run_key) FROM dag_runs), 0),
                             coalesce((SELECT max(run_key) FROM pruned_runs), 0)), ?1, ?2, ?3, ?4, 'queued', ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
                 ?20, ?21, ?22, ?23, ?24)",
        )?
        .execute(params![
            request.run_id.to_string(),
            dag_key,
            request.definition,
            number,
            params.to_string(),
            definition.dag.priority,
            request.max_parallel.or(definition.dag.max_parallel),
            request.attached,
            request.resumed_from.map(|run| run.0),
            request.fates.as_deref().map(fates_text),
            request.by,
            tx.now.0,
            deadline.map(|t| t.0),
            position,
            first,
            total,
            counts.run,
            counts.carried,
            counts.left,
            counts.carried_sinks,
            request.at_node,
            request.traceparent,
            request.by_proven,
            counts_for,
        ])?;
    let key = tx.conn.last_insert_rowid();
    tx.conn
        .prepare_cached("UPDATE dags SET latest_run = ?2 WHERE dag_key = ?1")?
        .execute(params![dag_key, key])?;
    Ok(RunKey(key))
}

/// How many tasks of a new run have which fate.
#[derive(Default)]
struct Counts {
    run: usize,
    carried: usize,
    left: usize,
    carried_sinks: usize,
}

impl Counts {
    fn of(fates: Option<&[Fate]>, definition: &Definition) -> Self {
        let Some(fates) = fates else {
            return Self { run: definition.dag.tasks.len(), ..Self::default() };
        };
        let mut counts = Self::default();
        for (ix, fate) in definition.plan.tasks().zip(fates) {
            match fate {
                Fate::Run => counts.run += 1,
                Fate::Leave => counts.left += 1,
                Fate::Carry => {
                    counts.carried += 1;
                    counts.carried_sinks += usize::from(definition.plan.dependents(ix).is_empty());
                }
            }
        }
        counts
    }
}

fn fates_text(fates: &[Fate]) -> String {
    fates
        .iter()
        .map(|fate| match fate {
            Fate::Run => 'r',
            Fate::Carry => 'c',
            Fate::Leave => 'l',
        })
        .collect()
}

/// See [`crate::Store::stop_run`]: commits the reason, and leaves the tasks to a step of its own.
pub(super) fn stop(tx: &mut Tx<'_>, run: RunKey, reason: StopReason, by: Option<&str>) -> Answer<RunStatus> {
    let row = tx.run(run)?;
    if row.is_stopping() {
        return Ok(row.status);
    }
    let step = match (row.status, reason) {
        (RunStatus::Queued, StopReason::Timeout) => RunMove::QueueTimeout,
        (RunStatus::Queued, _) => RunMove::Cancel,
        (_, reason) => reason.step(),
    };
    row.stop = Some(reason);
    row.deadline = None;
    let status = tx.move_run(run, step, Told::data(&json!({"reason": reason.word()})).by(by))?;
    steps::add_stop(tx, run)?;
    Ok(status)
}

/// Ends a run none of whose tasks is left.
pub(super) fn end_if_over(tx: &mut Tx<'_>, run: RunKey) -> Answer<()> {
    let row = tx.run(run)?;
    if row.tasks_left > 0 || row.status.is_terminal() || steps::creating(tx, run)? {
        return Ok(());
    }
    let row = tx.run(run)?;
    let tally = Tally {
        failed: row.failed,
        debts: row.debts,
        cancelled: row.cancelled,
        sinks_completed: row.sinks_completed,
    };
    let step = policy::ending(row.definition().dag.policy, tally, row.stop);
    let data = json!({"completed": row.completed, "failed": row.failed + row.debts, "cancelled": row.cancelled,
                      "skipped": row.skipped});
    tx.move_run(run, step, Told::data(&data))?;
    Ok(())
}
