//! Tasks that somebody outside holds: claims under a lease, what holders say of them, and what they come to.
//!
//! Whatever is said of an attempt must come from its holder, with its fence, while the lease lives; otherwise nothing
//! changes. The lease's clock is the time since boot: no clock that people set ends a lease or keeps it alive.

use std::sync::Arc;

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{ExecutionId, Fence, RunKey, Scope};
use cis_core::retry::Failure;
use cis_core::run::RunStatus;
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_core::task::TaskStatus;
use rusqlite::{OptionalExtension, Row, params};
use serde_json::{Value, json};

use super::reader::Reader;
use super::tx::{Tx, is_stopping, parsed};
use super::{advance, claim, keys, tasks, tombstones};
use crate::port::{
    Answer, Boot, Claim, ClaimWork, Claimed, Conclude, Concluded, Ending, Heartbeat, Held, Holding, Note,
    Progress, Recorded, Report, StoreError,
};

/// Notes kept per attempt; older ones make room.
const NOTES_MAX: i64 = 50;

/// What a claimer is told of the notes before it: the latest that come to so much.
const HANDOFF_BYTES_MAX: usize = 64 << 10;

/// Leases ended by one sweep; if there are more, the next sweep is due at once.
const SWEEP_MAX: i64 = 500;

/// A task as its holder's words need it.
struct Task {
    task_id: String,
    status: TaskStatus,
    fence: Option<Fence>,
    holder: Option<String>,
    claimed_at: Option<Timestamp>,
    /// Is its run being stopped, or over?
    run_stops: bool,
}

/// When a lease ended whose fence was numbered anew: before any boot.
const RENUMBERED: i64 = -1;

/// A lease that is alive.
struct Lease {
    term: Millis,
    expires: BootTime,
}

/// The first coordinator of a boot gives every lease a fresh term: nobody could renew it while the machine was off.
/// Answers how many there were.
pub(super) fn renew_after_boot(tx: &mut Tx<'_>, boot: &Boot) -> Answer<usize> {
    tx.memory.boot_id = boot.id.clone();
    Ok(tx
        .conn
        .prepare_cached("UPDATE leases SET boot_id = ?1, expires = ?2 + term_ms WHERE boot_id <> ?1")?
        .execute(params![boot.id, boot.now.0])?)
}

/// See [`crate::Store::claim_work`].
pub(super) fn claim_work(tx: &mut Tx<'_>, request: &ClaimWork) -> Answer<Vec<Held>> {
    let known = match &request.claim_id {
        Some(id) => keys::claimed(tx, &request.identity, id)?,
        None => None,
    };
    if let Some(attempts) = known {
        let again = attempts.into_iter().map(|(execution, fence)| still_held(tx, execution, fence, request));
        return Ok(again.collect::<Answer<Vec<_>>>()?.into_iter().flatten().collect());
    }
    tx.room()?;
    let fences = tx.memory.fences.ok_or(StoreError::Closed)?;
    let claim = Claim {
        epoch: fences.life,
        holder: request.worker.clone(),
        limit: request.limit,
        kinds: vec!["external"],
        scopes: request.scopes.clone(),
        capabilities: request.capabilities.clone(),
    };
    let claimed = claim::claim(tx, &claim, Some(&request.identity))?;
    let held = claimed.into_iter().map(|claim| lease_out(tx, claim, request)).collect::<Answer<Vec<_>>>()?;
    if let Some(id) = request.claim_id.as_ref().filter(|_| !held.is_empty()) {
        let attempts: Vec<_> = held.iter().map(|held| (held.claim.execution, held.claim.fence)).collect();
        keys::keep_claimed(tx, &request.identity, id, &attempts)?;
    }
    Ok(held)
}

fn lease_out(tx: &mut Tx<'_>, claim: Arc<Claimed>, request: &ClaimWork) -> Answer<Held> {
    let expires = request.since_boot.after(request.term);
    let deadline = claim.task().more().timeout.map(|limit| tx.now.after(limit));
    tx.conn.prepare_cached("INSERT INTO leases VALUES ('task', ?1, ?2, ?3, ?4, ?5, ?6, ?7)")?.execute(
        params![
            claim.execution.0,
            claim.fence.0,
            request.identity,
            request.term.0,
            tx.memory.boot_id,
            expires.0,
            deadline.map(|t| t.0)
        ],
    )?;
    let handoff = notes(tx, claim.execution, claim.fence)?;
    Ok(Held { claim, term: request.term, expires, handoff })
}

/// An attempt that was claimed before, if it is still held and in the scopes of the one who asks now: another token of
/// the same identity may see less than the one that claimed it.
fn still_held(
    tx: &mut Tx<'_>,
    execution: ExecutionId,
    fence: Fence,
    request: &ClaimWork,
) -> Answer<Option<Held>> {
    let row = tx
        .conn
        .prepare_cached(
            "SELECT t.run_key, t.attempt, l.term_ms, l.expires
             FROM leases l JOIN task_executions t ON t.execution_id = l.subject_key
             WHERE l.subject_kind = 'task' AND l.subject_key = ?1 AND l.fence = ?2",
        )?
        .query_row(params![execution.0, fence.0], |row| {
            Ok((RunKey(row.get(0)?), row.get(1)?, Millis(row.get(2)?), BootTime(row.get(3)?)))
        })
        .optional()?;
    let Some((run, attempt, term, expires)) = row else { return Ok(None) };
    let claimed_of = tx.peek(run)?;
    if request.scopes.as_ref().is_some_and(|scopes| !scopes.contains(&claimed_of.scope)) {
        return Ok(None);
    }
    let ix = claimed_of.ix(execution);
    let claim = Arc::new(claim::claimed(tx, run, execution, ix, fence, attempt)?);
    Ok(Some(Held { claim, term, expires, handoff: notes(tx, execution, fence)? }))
}

/// What the holders before `fence` noted.
fn notes(tx: &Tx<'_>, execution: ExecutionId, fence: Fence) -> Answer<Vec<Note>> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT fence, holder, at, percent, note FROM notes WHERE execution_id = ?1 AND fence < ?2
         ORDER BY fence DESC, number DESC LIMIT 0 + ?3",
    )?;
    let mut rows = statement.query(params![execution.0, fence.0, NOTES_MAX])?;
    let (mut notes, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let note = note(row, 0)?;
        bytes += note.note.as_ref().map_or(0, String::len);
        if bytes > HANDOFF_BYTES_MAX {
            break;
        }
        notes.push(note);
    }
    notes.reverse();
    Ok(notes)
}

fn note(row: &Row<'_>, from: usize) -> rusqlite::Result<Note> {
    Ok(Note {
        attempt_fence: Fence(row.get(from)?),
        holder: row.get(from + 1)?,
        at: Timestamp(row.get(from + 2)?),
        percent: row.get(from + 3)?,
        note: row.get(from + 4)?,
    })
}

/// See [`crate::Store::heartbeat`].
pub(super) fn heartbeat(tx: &mut Tx<'_>, holding: &Holding, term: Option<Millis>) -> Answer<Heartbeat> {
    let task = task(tx, holding)?;
    let lease = lease(tx, holding, &task)?;
    let cancel = task.status == TaskStatus::Cancelling || task.run_stops;
    if cancel {
        return Ok(Heartbeat { expires: lease.expires, term: lease.term, cancel });
    }
    let term = term.unwrap_or(lease.term);
    let expires = holding.since_boot.after(term);
    tx.conn
        .prepare_cached(
            "UPDATE leases SET expires = ?3, term_ms = ?4
             WHERE subject_kind = 'task' AND subject_key = ?1 AND fence = ?2",
        )?
        .execute(params![holding.execution.0, holding.fence.0, expires.0, term.0])?;
    Ok(Heartbeat { expires, term, cancel })
}

/// See [`crate::Store::note_progress`].
pub(super) fn note_progress(tx: &mut Tx<'_>, holding: &Holding, said: &Progress) -> Answer<()> {
    let task = task(tx, holding)?;
    lease(tx, holding, &task)?;
    tx.room()?;
    let (execution, fence) = (holding.execution.0, holding.fence.0);
    let last: i64 = tx
        .conn
        .prepare_cached("SELECT coalesce(max(number), 0) FROM notes WHERE execution_id = ?1 AND fence = ?2")?
        .query_row([execution, fence], |row| row.get(0))?;
    tx.conn.prepare_cached("INSERT INTO notes VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?.execute(params![
        execution,
        fence,
        last + 1,
        task.holder,
        tx.now.0,
        said.percent,
        said.note
    ])?;
    tx.conn
        .prepare_cached("DELETE FROM notes WHERE execution_id = ?1 AND fence = ?2 AND number <= ?3")?
        .execute([execution, fence, last + 1 - NOTES_MAX])?;
    if last == 0 {
        forget_older_notes(tx, execution, fence)?;
    }
    Ok(())
}

/// Removes notes of holders before `fence` that are not handed on any more: what a task keeps is bounded however often
/// it is given back. Earlier holders say nothing more, so the first note of each holder is the time to do it.
fn forget_older_notes(tx: &Tx<'_>, execution: i64, fence: i64) -> Answer<()> {
    tx.conn
        .prepare_cached(
            "DELETE FROM notes WHERE execution_id = ?1 AND (fence, number) <=
             (SELECT fence, number FROM notes WHERE execution_id = ?1 AND fence < ?2
              ORDER BY fence DESC, number DESC LIMIT 1 OFFSET ?3)",
        )?
        .execute([execution, fence, NOTES_MAX])?;
    Ok(())
}

/// See [`crate::Store::conclude`].
pub(super) fn conclude(tx: &mut Tx<'_>, request: &Conclude) -> Answer<Concluded> {
    let holding = &request.holding;
    let found = task(tx, holding)?;
    let report = Report {
        execution: holding.execution,
        fence: holding.fence,
        ending: request.ending.clone(),
        started_at: found.claimed_at,
        ended_at: tx.now,
        exit_code: request.exit_code,
        output: request.output.clone(),
        error: request.error.clone(),
        log_bytes: request.log_bytes,
        log_cut_bytes: 0,
        outputs: request.outputs.clone(),
        random: request.random,
    };
    let status = match lease(tx, holding, &found) {
        Ok(_) => end(tx, &report, Some(&holding.identity))?,
        Err(_) if is_repeated(tx, &found, &report, &holding.identity)? => found.status,
        Err(refused) => return Err(refused),
    };
    let (execution, ended) = (holding.execution, std::mem::take(&mut tx.ended));
    Ok(Concluded { execution, task_id: found.task_id, status, ended, next_due: tx.next_due })
}

/// Was this very result recorded already, from this identity, and has nothing happened since?
fn is_repeated(tx: &Tx<'_>, task: &Task, report: &Report, identity: &str) -> Answer<bool> {
    if task.fence != Some(report.fence) || task.status.is_live() {
        return Ok(false);
    }
    type Kept = (Option<String>, Option<String>, Option<i32>, Option<String>);
    let kept: Kept = tx
        .conn
        .prepare_cached(
            "SELECT last_identity, cause, exit_code, outputs_json FROM task_executions WHERE execution_id = ?1",
        )?
        .query_row([report.execution.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    let outputs = report.outputs.as_ref().map(Value::to_string);
    Ok(kept == (Some(identity.to_owned()), advance::cause(report), report.exit_code, outputs))
}

/// Ends an attempt and its lease, by the word of its holder or because time is over.
fn end(tx: &mut Tx<'_>, report: &Report, by: Option<&str>) -> Answer<TaskStatus> {
    let identity: Option<String> = tx
        .conn
        .prepare_cached(
            "DELETE FROM leases WHERE subject_kind = 'task' AND subject_key = ?1 AND fence = ?2 RETURNING identity",
        )?
        .query_row([report.execution.0, report.fence.0], |row| row.get(0))
        .optional()?;
    let recorded = advance::record(tx, report, by)?;
    tx.conn
        .prepare_cached("UPDATE task_executions SET last_identity = ?2 WHERE execution_id = ?1")?
        .execute(params![report.execution.0, identity])?;
    tasks::tell_ending(tx)?;
    match recorded {
        Recorded::Now(status) => Ok(status),
        Recorded::Stale => {
            Err(StoreError::Database(format!("a lease of {} without its task", report.execution)))
        }
    }
}

/// The task that is spoken of, if the speaker may know of it. By its rows alone: a refusal reads no definition, which may be
/// tens of MiB.
fn task(tx: &Tx<'_>, holding: &Holding) -> Answer<Task> {
    let row = tx
        .conn
        .prepare_cached(
            "SELECT t.run_key, t.task_id, t.status, t.fence, t.holder, t.claimed_at, d.scope, r.status
             FROM task_executions t LEFT JOIN dag_runs r USING (run_key) LEFT JOIN dags d USING (dag_key)
             WHERE t.execution_id = ?1",
        )?
        .query_row([holding.execution.0], |row| {
            let run = match row.get::<_, Option<String>>(6)? {
                Some(scope) => Some((scope, parsed(row, 7, RunStatus::from_word)?)),
                None => None,
            };
            let task = Task {
                task_id: row.get(1)?,
                status: parsed(row, 2, TaskStatus::from_word)?,
                fence: row.get::<_, Option<i64>>(3)?.map(Fence),
                holder: row.get(4)?,
                claimed_at: row.get::<_, Option<i64>>(5)?.map(Timestamp),
                run_stops: run.as_ref().is_none_or(|(_, status)| is_stopping(*status)),
            };
            Ok((task, RunKey(row.get(0)?), run.map(|(scope, _)| scope)))
        })
        .optional()?;
    let sees =
        |scope: &str| holding.scopes.as_ref().is_none_or(|all| all.iter().any(|s| s.as_str() == scope));
    match row {
        Some((task, _, Some(scope))) if sees(&scope) => Ok(task),
        // Rows of a pruned run's tasks go after its own.
        Some((_, run, None)) => match tombstones::find(tx, run)? {
            Some(tombstone) if sees(tombstone.run.scope.as_str()) => Err(tombstone.refusal().into()),
            _ => Err(no_task(holding.execution).into()),
        },
        _ => Err(no_task(holding.execution).into()),
    }
}

/// The speaker's lease, if it is alive.
fn lease(tx: &Tx<'_>, holding: &Holding, task: &Task) -> Answer<Lease> {
    let row = tx
        .conn
        .prepare_cached(
            "SELECT identity, term_ms, expires FROM leases
             WHERE subject_kind = 'task' AND subject_key = ?1 AND fence = ?2",
        )?
        .query_row([holding.execution.0, holding.fence.0], |row| {
            Ok((
                row.get::<_, String>(0)?,
                Lease { term: Millis(row.get(1)?), expires: BootTime(row.get(2)?) },
            ))
        })
        .optional()?;
    match row {
        Some((identity, _)) if identity != holding.identity && !cis_fail::is_broken("lease.holder") => {
            let details =
                json!({"task_id": task.task_id, "executor": task.holder, "claimed_at": task.claimed_at});
            Err(held_by_other(&task.task_id).details(details).into())
        }
        Some((_, lease)) if lease.expires > holding.since_boot || cis_fail::is_broken("lease.expires") => {
            Ok(lease)
        }
        _ => {
            let details = json!({"task_id": task.task_id, "current_status": task.status});
            Err(over(&task.task_id).details(details).into())
        }
    }
}

/// Ends the attempts whose lease, or whose own time, has run out.
pub(super) fn expire(tx: &mut Tx<'_>, since_boot: BootTime) -> Answer<()> {
    let lost = "SELECT subject_key, fence FROM leases INDEXED BY leases_expiring
                WHERE subject_kind = 'task' AND expires <= ?1 ORDER BY expires LIMIT 0 + ?2";
    end_all(tx, lost, since_boot.0, SWEEP_MAX, &failed(Failure::LeaseLost))?;
    let late = "SELECT subject_key, fence FROM leases INDEXED BY leases_overdue
                WHERE subject_kind = 'task' AND deadline IS NOT NULL AND deadline <= ?1 ORDER BY deadline LIMIT 0 + ?2";
    end_all(tx, late, tx.now.0, SWEEP_MAX, &failed(Failure::Timeout))
}

/// Gives back what was held when the migration `fences` numbered fences anew: no holder knows the new number. It counts
/// as any release does.
pub(super) fn release_renumbered(tx: &mut Tx<'_>) -> Answer<()> {
    let renumbered = "SELECT subject_key, fence FROM leases INDEXED BY leases_expiring
                      WHERE subject_kind = 'task' AND expires = ?1 ORDER BY fence LIMIT 0 + ?2";
    end_all(tx, renumbered, RENUMBERED, i64::MAX, &Ending::Released)
}

fn failed(failure: Failure) -> Ending {
    Ending::Failed { failure, why: None }
}

fn end_all(tx: &mut Tx<'_>, due: &str, until: i64, at_most: i64, ending: &Ending) -> Answer<()> {
    let due: Vec<(ExecutionId, Fence)> = tx
        .conn
        .prepare_cached(due)?
        .query_map(params![until, at_most], |row| Ok((ExecutionId(row.get(0)?), Fence(row.get(1)?))))?
        .collect::<Result<_, _>>()?;
    for (execution, fence) in due {
        let report = Report {
            execution,
            fence,
            ending: ending.clone(),
            started_at: None,
            ended_at: tx.now,
            exit_code: None,
            output: String::new(),
            error: String::new(),
            log_bytes: 0,
            log_cut_bytes: 0,
            outputs: None,
            // Nobody else's lease ends at the same fence: that spreads retries well enough.
            random: fence.0.cast_unsigned(),
        };
        end(tx, &report, None)?;
    }
    Ok(())
}

/// When the next lease, or the next holder's time, runs out.
pub(super) fn next_due(tx: &Tx<'_>, since_boot: BootTime) -> Answer<Option<Timestamp>> {
    let (expires, deadline): (Option<i64>, Option<i64>) = tx
        .conn
        .prepare_cached(
            "SELECT (SELECT min(expires) FROM leases WHERE subject_kind = 'task'),
                    (SELECT min(deadline) FROM leases WHERE subject_kind = 'task' AND deadline IS NOT NULL)",
        )?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let expires = expires.map(|at| tx.now.after(BootTime(at).since(since_boot)));
    Ok([expires, deadline.map(Timestamp)].into_iter().flatten().min())
}

/// An attempt that somebody outside holds.
#[derive(Debug, Clone, Copy)]
pub struct AttemptLine {
    pub execution: ExecutionId,
    pub fence: Fence,
    pub run: RunKey,
    pub attempt: u32,
}

/// Ready tasks of one queue that others may claim.
#[derive(Debug, Clone)]
pub struct Offer {
    pub scope: Scope,
    pub needs: Vec<String>,
    pub tasks: u32,
}

impl Reader {
    /// The attempt, if it is the speaker's and its lease lives.
    pub fn attempt(&self, holding: &Holding) -> Answer<AttemptLine> {
        let row = self
            .conn
            .prepare_cached(
                "SELECT t.run_key, t.attempt, t.task_id, d.scope, l.identity, l.expires
                 FROM task_executions t JOIN dag_runs r USING (run_key) JOIN dags d USING (dag_key)
                 LEFT JOIN leases l ON l.subject_kind = 'task' AND l.subject_key = t.execution_id AND l.fence = ?2
                 WHERE t.execution_id = ?1",
            )?
            .query_row([holding.execution.0, holding.fence.0], |row| {
                let Holding { execution, fence, .. } = *holding;
                let line = AttemptLine { execution, fence, run: RunKey(row.get(0)?), attempt: row.get(1)? };
                let scope: Scope = parsed(row, 3, |text| text.parse().ok())?;
                let lease = row.get::<_, Option<String>>(4)?.zip(row.get::<_, Option<i64>>(5)?);
                Ok((line, row.get::<_, String>(2)?, scope, lease))
            })
            .optional()?;
        let sees = |scope: &Scope| holding.scopes.as_ref().is_none_or(|scopes| scopes.contains(scope));
        match row {
            Some((line, task_id, scope, lease)) if sees(&scope) => match lease {
                Some((identity, _)) if identity != holding.identity => Err(held_by_other(&task_id).into()),
                Some((_, expires)) if expires > holding.since_boot.0 => Ok(line),
                _ => Err(over(&task_id).into()),
            },
            _ => Err(no_task(holding.execution).into()),
        }
    }

    /// What the holders of a run's tasks said last of how far they are.
    pub fn progress(&self, run: RunKey) -> Answer<Vec<(ExecutionId, Note)>> {
        // `CROSS JOIN`: what is live of this run first; SQLite would begin with every lease there is.
        let mut statement = self.conn.prepare_cached(
            "SELECT n.execution_id, n.fence, n.holder, n.at, n.percent, n.note
             FROM task_executions t INDEXED BY tasks_live
             CROSS JOIN leases l ON l.subject_kind = 'task' AND l.subject_key = t.execution_id
             JOIN notes n ON n.execution_id = t.execution_id AND n.fence = l.fence
             WHERE t.run_key = ?1 AND t.status IN ('running', 'cancelling')
               AND n.number = (SELECT max(number) FROM notes m
                               WHERE m.execution_id = n.execution_id AND m.fence = n.fence)",
        )?;
        let notes = statement.query_map([run.0], |row| Ok((ExecutionId(row.get(0)?), note(row, 1)?)))?;
        Ok(notes.collect::<Result<_, _>>()?)
    }

    /// What others may claim, at most `limit` tasks counted per queue.
    pub fn offers(&self, limit: u32) -> Answer<Vec<Offer>> {
        let mut statement = self.conn.prepare_cached(
            "SELECT scope, needs, (SELECT count(*) FROM
                 (SELECT 1 FROM task_executions t INDEXED BY tasks_claimable
                  WHERE t.queue_key = q.queue_key AND status = 'ready' AND hold = 0 LIMIT 0 + ?1))
             FROM queues q
             WHERE kind = 'external' AND scope NOT IN (SELECT scope FROM paused_scopes)",
        )?;
        let offers = statement.query_map([limit], |row| {
            let needs: String = row.get(1)?;
            Ok(Offer {
                scope: parsed(row, 0, |text| text.parse().ok())?,
                needs: needs.split_ascii_whitespace().map(ToOwned::to_owned).collect(),
                tasks: row.get(2)?,
            })
        })?;
        Ok(offers.collect::<Result<_, _>>()?)
    }
}

fn no_task(execution: ExecutionId) -> Refusal {
    Refusal::new(ErrorCode::NotFound, format!("no task {execution}"))
}

fn held_by_other(task_id: &str) -> Refusal {
    Refusal::new(ErrorCode::AlreadyClaimed, format!("`{task_id}` is held by somebody else"))
        .details(json!({"task_id": task_id}))
}

fn over(task_id: &str) -> Refusal {
    Refusal::new(ErrorCode::LeaseExpired, format!("this claim of `{task_id}` is over: nothing was changed"))
        .hint("stop working on it; claim again for something to do")
        .details(json!({"task_id": task_id}))
}
