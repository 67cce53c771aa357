//! Taking ready tasks: the heads of the queues a claimant may take from, merged by priority and ready order.
//!
//! Only claimable tasks are in the index a claim reads, one stretch of it per queue, so neither finished tasks
//! nor ready ones the claimant may not take cost it anything.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use cis_core::dag::{Dag, Task};
use cis_core::error::Refusal;
use cis_core::id::{ExecutionId, Fence, RunKey, Scope, TaskIx, Version};
use cis_core::run::RunMove;
use cis_core::task::{TaskMove, TaskStatus};
use cis_core::template::is_template;
use rusqlite::params;
use serde_json::{Value, json};

use super::events::Told;
use super::memory::QueueName;
use super::tasks::{self, Fresh, Live, TaskRow};
use super::tx::Tx;
use super::{fences, log, pause};
use crate::port::{Answer, Claim, Claimed};

/// Ready tasks of stopping and paused runs that one claim looks past in one queue. They are on their way out of it, so a
/// claim that meets more of them finds less than there is, but not for long.
const PASSED_MAX: u32 = 1_000;

/// What workers are told with one claim: once the tasks come to so much, it takes no more.
const CLAIM_BYTES_MAX: usize = 1 << 20;

/// A task that may be claimed.
struct Candidate {
    task: TaskRow,
    attempt: u32,
    free_tries: u32,
    priority: i32,
    ready_order: i64,
    /// It became ready in this very operation, and its row does not say so yet.
    fresh: Option<Fresh>,
}

/// Claims up to `claim.limit` tasks; `by` is the identity that does, if it is not the node itself.
pub(super) fn claim(tx: &mut Tx<'_>, claim: &Claim, by: Option<&str>) -> Answer<Vec<Arc<Claimed>>> {
    tasks::fill_windows(tx)?;
    let (mut candidates, queues) = (Vec::new(), matching_queues(tx, claim)?);
    for queue in &queues {
        heads(tx, *queue, claim.limit, &mut candidates)?;
    }
    for fresh in std::mem::take(&mut tx.fresh) {
        if queues.contains(&fresh.queue) && tx.run(fresh.task.run)?.lets_start() {
            let Fresh { task, priority, ready_order, .. } = fresh;
            let (attempt, free_tries, fresh) = (0, 0, Some(fresh));
            candidates.push(Candidate { task, attempt, free_tries, priority, ready_order, fresh });
        } else {
            tx.fresh.push(fresh);
        }
    }
    candidates.sort_by_key(|c| (Reverse(c.priority), c.ready_order, c.task.execution));
    let left = candidates.split_off(candidates.len().min(claim.limit as usize));
    tx.fresh.extend(left.into_iter().filter_map(|candidate| candidate.fresh));
    let (mut taken, mut bytes) = (Vec::with_capacity(candidates.len()), 0);
    for candidate in candidates {
        if bytes >= CLAIM_BYTES_MAX {
            tx.fresh.extend(candidate.fresh);
            continue;
        }
        let claimed = take(tx, &candidate, claim, by)?;
        // What the coordinator claims for its own runner is not sent anywhere.
        if by.is_some() {
            bytes += told_bytes(&claimed);
        }
        taken.push(claimed);
    }
    Ok(taken)
}

/// How much a worker is told of a claim, about.
fn told_bytes(claimed: &Claimed) -> usize {
    let input = claimed.task().kind.input().map_or(0, value_bytes);
    value_bytes(&claimed.run.params) + input + claimed.upstream.values().map(value_bytes).sum::<usize>()
}

fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_bytes).sum(),
        Value::Object(items) => items.iter().map(|(name, item)| name.len() + value_bytes(item)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

fn matching_queues(tx: &mut Tx<'_>, claim: &Claim) -> Answer<Vec<i64>> {
    let paused = pause::scopes(tx)?;
    // As sets: there may be thousands of queues, and a claim may name a hundred of each.
    let capabilities: HashSet<&str> = claim.capabilities.iter().map(String::as_str).collect();
    let scopes: Option<HashSet<&str>> =
        claim.scopes.as_ref().map(|scopes| scopes.iter().map(Scope::as_str).collect());
    let may = |name: &QueueName| {
        claim.kinds.contains(&name.kind.as_str())
            && scopes.as_ref().is_none_or(|scopes| scopes.contains(name.scope.as_str()))
            && !paused.contains(&name.scope)
            && name.needs.split_ascii_whitespace().all(|need| capabilities.contains(need))
    };
    let queues = tx.queues()?.iter();
    Ok(queues.filter(|(name, _)| may(name)).map(|(_, key)| *key).collect())
}

/// The first `limit` tasks of a queue that may be started. Starting one whose run is stopping would be for nothing,
/// one whose run is paused too soon.
fn heads(tx: &mut Tx<'_>, queue: i64, limit: u32, into: &mut Vec<Candidate>) -> Answer<()> {
    let conn = tx.conn;
    // The queue stands in the text, and there is no limit (the index gives rows in order, one by one): SQLite
    // plans with the values of bound parameters, and would compile the statement anew for every claim.
    let mut statement = conn.prepare_cached(&format!(
        "SELECT execution_id, run_key, version, attempt, priority, ready_order, free_tries
         FROM task_executions INDEXED BY tasks_claimable
         WHERE queue_key = {queue} AND status = 'ready' AND hold = 0
         ORDER BY priority DESC, ready_order"
    ))?;
    let mut rows = statement.query([])?;
    let enough = into.len() + limit as usize;
    let mut passed = 0;
    while into.len() < enough && passed <= PASSED_MAX {
        let Some(row) = rows.next()? else { break };
        let run = RunKey(row.get(1)?);
        if !tx.run(run)?.lets_start() {
            passed += 1;
            continue;
        }
        let execution = ExecutionId(row.get(0)?);
        let (ix, version) = (tx.run(run)?.ix(execution), Version(row.get(2)?));
        into.push(Candidate {
            task: TaskRow { execution, run, ix, status: TaskStatus::Ready, version },
            attempt: row.get(3)?,
            priority: row.get(4)?,
            ready_order: row.get(5)?,
            free_tries: row.get(6)?,
            fresh: None,
        });
    }
    Ok(())
}

fn take(tx: &mut Tx<'_>, candidate: &Candidate, claim: &Claim, by: Option<&str>) -> Answer<Arc<Claimed>> {
    let task = TaskRow { status: TaskStatus::Ready, ..candidate.task };
    let to = task.status.after(TaskMove::Claim).map_err(Refusal::from)?;
    let (fence, attempt) = (fences::grant(tx, claim.epoch)?, candidate.attempt + 1);
    let changed = match candidate.fresh {
        None => tx
            .conn
            .prepare_cached(
                "UPDATE task_executions SET status = 'running', version = version + 1, attempt = ?3, fence = ?4,
                        holder = ?5, claimed_at = ?6, started_at = NULL, not_before = NULL
                 WHERE execution_id = ?1 AND status = 'ready' AND hold = 0 AND version = ?2",
            )?
            .execute(params![task.execution.0, task.version.0, attempt, fence.0, claim.holder, tx.now.0])?,
        Some(Fresh { deps, ready_order, queue_deadline, .. }) => tx
            .conn
            .prepare_cached(
                "UPDATE task_executions SET status = 'running', version = version + 2, attempt = ?3, fence = ?4,
                        holder = ?5, claimed_at = ?6, deps_left = 0, deps_failed = ?7, deps_blocked = ?8,
                        ready_order = ?9, queue_deadline = ?10
                 WHERE execution_id = ?1 AND status = 'pending' AND version = ?2 AND deps_left > 0",
            )?
            .execute(params![
                task.execution.0,
                task.version.0,
                attempt,
                fence.0,
                claim.holder,
                tx.now.0,
                deps.failed,
                deps.blocked,
                ready_order,
                queue_deadline.map(|t| t.0),
            ])?,
    };
    tasks::guarded(changed, task)?;
    let (ix, moves) = (task.ix, if candidate.fresh.is_some() { 2 } else { 1 });
    let version = Version(task.version.0 + moves);
    // A first attempt is what a claim means; only later ones need a word.
    let mut data = (attempt > 1).then(|| json!({"attempt": attempt}));
    // And only of a claim from outside is it worth a word whose it is.
    if by.is_some() {
        let data = data.get_or_insert_with(|| json!({}));
        (data[log::HOLDER], data[log::FENCE]) = (json!(claim.holder), json!(fence));
    }
    let told = Told { data: data.as_ref(), actor: by };
    tx.event(task.run, Some(ix), version, TaskMove::Claim.word(), to.word(), told)?;
    let live = TaskRow { status: to, version, ..task };
    tx.memory
        .live
        .insert(task.execution, Live { task: live, fence, attempt, free_tries: candidate.free_tries });
    begin_run(tx, task.run)?;
    Ok(Arc::new(claimed(tx, task.run, task.execution, ix, fence, attempt)?))
}

/// The first claim of a run, or the first question to a person, starts it, and its clock.
pub(super) fn begin_run(tx: &mut Tx<'_>, run: RunKey) -> Answer<()> {
    let now = tx.now;
    let row = tx.run(run)?;
    if row.started_at.is_some() {
        return Ok(());
    }
    row.started_at = Some(now);
    row.deadline = row.definition().dag.timeout.map(|limit| now.after(limit));
    let deadline = row.deadline;
    tx.move_run(run, RunMove::Start, Told::default())?;
    if let Some(at) = deadline {
        tx.due(at);
    }
    Ok(())
}

/// Everything the holder of a claim needs to know.
pub(super) fn claimed(
    tx: &mut Tx<'_>,
    run: RunKey,
    execution: ExecutionId,
    task: TaskIx,
    fence: Fence,
    attempt: u32,
) -> Answer<Claimed> {
    let info = tx.run(run)?.info.clone();
    let dag = &info.definition.dag;
    let wants_outputs = uses_templates(dag, &dag.tasks[task.index()]);
    let upstream = if wants_outputs { tasks::upstream_outputs(tx, run, task)? } else { Default::default() };
    Ok(Claimed { execution, fence, attempt, task, run: info, upstream })
}

fn uses_templates(dag: &Dag, task: &Task) -> bool {
    let in_input = task.kind.input().is_some_and(|input| is_template(&input.to_string()));
    in_input || dag.env.values().chain(task.more().env.values()).any(|text| is_template(text))
}
