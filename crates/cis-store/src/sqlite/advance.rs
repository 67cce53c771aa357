//! Recording how attempts ended: stale fences change nothing, everything else is one decision, one guarded
//! update and one event; what it makes ready can be claimed in the same transaction.

use cis_core::error::Refusal;
use cis_core::id::{RunKey, TaskIx, Version};
use cis_core::retry::{self, Decision, Failure, Tries};
use cis_core::source::Millis;
use cis_core::task::{TaskMove, TaskStatus};
use rusqlite::{OptionalExtension, params};
use serde_json::{Map, Value, json};

use super::causes::cut_cause;
use super::events::Told;
use super::reserve::LOOK_AGAIN;
use super::tasks::{self, Live, TaskRow};
use super::tx::{Tx, parsed};
use super::{claim, fences, steps};
use crate::port::{Advance, Advanced, Answer, Ending, Recorded, Report};

/// Why an attempt ended whose holder released it.
const GIVEN_BACK: &str = "given back";

/// See [`crate::Store::advance`].
pub(super) fn advance(tx: &mut Tx<'_>, request: &Advance) -> Answer<Advanced> {
    // First of all: whoever may not claim hears it whatever there is to claim, and nothing has changed.
    if let Some(claim) = &request.claim {
        fences::check_life(tx, claim.epoch)?;
    }
    let mut recorded = Vec::with_capacity(request.reports.len());
    for report in &request.reports {
        if report.ending != Ending::Succeeded || !tasks::joins(tx, report.execution)? {
            tasks::tell_ending(tx)?;
        }
        recorded.push(record(tx, report, None)?);
    }
    tasks::tell_ending(tx)?;
    let full = tx.memory.full;
    let claimed = match &request.claim {
        // There may be room by then.
        Some(claim) if full && claim.limit > 0 => {
            tx.due(tx.now.after(LOOK_AGAIN));
            Vec::new()
        }
        Some(claim) if claim.limit > 0 => claim::claim(tx, claim, None)?,
        _ => Vec::new(),
    };
    Ok(Advanced {
        recorded,
        claimed,
        ended: std::mem::take(&mut tx.ended),
        stop: std::mem::take(&mut tx.stop),
        next_due: tx.next_due,
        more_work: steps::under_way(tx)?,
        full,
    })
}

/// Records how one attempt ended, by the word of a holder outside or of the node itself; its dependents are told by
/// [`tasks::tell_ending`].
pub(super) fn record(tx: &mut Tx<'_>, report: &Report, by: Option<&str>) -> Answer<Recorded> {
    let Some(mut live) = live(tx, report)? else { return Ok(Recorded::Stale) };
    let overtaken = live.task.status == TaskStatus::Running && report.ending != Ending::Succeeded;
    if overtaken && tx.run(live.task.run)?.is_stopping() {
        // The run's stop has been committed but has not got to this task yet.
        live.task.status = tasks::move_task(tx, live.task, TaskMove::Cancel, Told::default())?;
        live.task.version.0 += 1;
    }
    let judged = judge(tx, &live, report)?;
    let status = write(tx, &live, report, judged, by)?;
    let (run, ix) = (live.task.run, live.task.ix);
    if status.is_terminal() {
        tasks::leave_window(tx, run)?;
        tasks::ended(tx, run, ix, status)?;
    } else if judged.wait > Millis(0) {
        tasks::leave_window(tx, run)?;
    }
    Ok(Recorded::Now(status))
}

/// The attempt the report is about, if its fence still holds.
fn live(tx: &mut Tx<'_>, report: &Report) -> Answer<Option<Live>> {
    if let Some(live) = tx.memory.live.remove(&report.execution)
        && live.fence == report.fence
    {
        return Ok(Some(live));
    }
    let row = tx
        .conn
        .prepare_cached(
            "SELECT run_key, status, version, attempt, free_tries FROM task_executions
             WHERE execution_id = ?1 AND fence = ?2 AND status IN ('running', 'cancelling')",
        )?
        .query_row(params![report.execution.0, report.fence.0], |row| {
            let status = parsed(row, 1, TaskStatus::from_word)?;
            Ok((RunKey(row.get(0)?), status, Version(row.get(2)?), row.get(3)?, row.get(4)?))
        })
        .optional()?;
    let Some((run, status, version, attempt, free_tries)) = row else { return Ok(None) };
    let ix: TaskIx = tx.run(run)?.ix(report.execution);
    let task = TaskRow { execution: report.execution, run, ix, status, version };
    Ok(Some(Live { task, fence: report.fence, attempt, free_tries }))
}

/// What follows from how an attempt ended.
#[derive(Clone, Copy)]
struct Judged {
    step: TaskMove,
    /// Before another try.
    wait: Millis,
    /// Another try that uses up none.
    free: bool,
}

impl From<TaskMove> for Judged {
    fn from(step: TaskMove) -> Self {
        Self { step, wait: Millis(0), free: false }
    }
}

fn judge(tx: &mut Tx<'_>, live: &Live, report: &Report) -> Answer<Judged> {
    let stopping = live.task.status == TaskStatus::Cancelling;
    let failure = match &report.ending {
        Ending::Succeeded => return Ok(TaskMove::Succeed.into()),
        Ending::Stopped | Ending::Released if stopping => return Ok(TaskMove::Stopped.into()),
        Ending::Released => Failure::Released,
        // Stopped though nobody asked: someone else ended it.
        Ending::Stopped => Failure::Interrupted,
        Ending::Failed { failure: Failure::Exit(_) | Failure::Broken, .. } if stopping => {
            return Ok(TaskMove::Fail.into());
        }
        Ending::Failed { .. } if stopping => return Ok(TaskMove::Stopped.into()),
        Ending::Failed { failure, .. } => *failure,
    };
    let definition = tx.run(live.task.run)?.definition().clone();
    let task = &definition.dag.tasks[live.task.ix.index()];
    let tries = Tries { begun: live.attempt, free: live.free_tries };
    let retry = task.more().retry.as_ref();
    Ok(match retry::decide(retry, task.idempotent, tries, failure, report.random) {
        Decision::TryAgain { wait, free } => Judged { step: TaskMove::TryAgain, wait, free },
        Decision::Failed => TaskMove::Fail.into(),
        Decision::TimedOut => TaskMove::TimeOut.into(),
    })
}

fn write(
    tx: &mut Tx<'_>,
    live: &Live,
    report: &Report,
    judged: Judged,
    by: Option<&str>,
) -> Answer<TaskStatus> {
    let (task, Judged { step, wait, free }) = (live.task, judged);
    let to = task.status.after(step).map_err(Refusal::from)?;
    let again = to == TaskStatus::Ready;
    let not_before = (again && wait > Millis(0)).then(|| tx.now.after(wait));
    if let Some(at) = not_before {
        tx.due(at);
    }
    let order = if again { tx.next_position()? } else { 0 };
    // Nobody can claim it before its backoff is over, so nobody is late before that.
    let claimable_at = not_before.unwrap_or(tx.now);
    let deadline = if again { tasks::queue_deadline(tx, task.run, task.ix, claimable_at)? } else { None };
    // `+status`: SQLite would otherwise weigh the bound status against the partial indexes, and compile the
    // statement anew for every value.
    let changed = tx
        .conn
        .prepare_cached(
            "UPDATE task_executions SET status = ?4, version = version + 1, completed_at = ?5, exit_code = ?6,
                    output = ?7, error = ?8, outputs_json = ?9, log_bytes = ?10, log_cut_bytes = ?11,
                    started_at = ?12, cause = ?13, hold = ?14, not_before = ?15, free_tries = free_tries + ?16,
                    ready_order = CASE WHEN ?4 = 'ready' THEN ?17 ELSE ready_order END, queue_deadline = ?18
             WHERE execution_id = ?1 AND +status = ?2 AND version = ?3 AND fence = ?19",
        )?
        .execute(params![
            task.execution.0,
            task.status.word(),
            task.version.0,
            to.word(),
            to.is_terminal().then_some(report.ended_at.0),
            report.exit_code,
            non_empty(&report.output),
            non_empty(&report.error),
            report.outputs.as_ref().map(Value::to_string),
            stored_bytes(report.log_bytes),
            stored_bytes(report.log_cut_bytes),
            report.started_at.map(|t| t.0),
            cause(report),
            if not_before.is_some() { 2 } else { 0 },
            not_before.map(|t| t.0),
            free,
            order,
            deadline.map(|t| t.0),
            report.fence.0,
        ])?;
    tasks::guarded(changed, task)?;
    let data = event_data(live, report, not_before.map(|t| t.0));
    let told = Told { data: data.as_ref(), actor: by };
    tx.event(task.run, Some(task.ix), Version(task.version.0 + 1), step.word(), to.word(), told)?;
    Ok(to)
}

/// As many as a column holds: a damaged log may claim any length, and must not keep its task from ending.
fn stored_bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Why it did not succeed, in words.
pub(super) fn cause(report: &Report) -> Option<String> {
    match &report.ending {
        Ending::Succeeded => None,
        Ending::Stopped => Some("stopped".to_owned()),
        Ending::Released => Some(GIVEN_BACK.to_owned()),
        Ending::Failed { failure, why } => Some(why.clone().unwrap_or_else(|| match failure {
            Failure::Exit(code) => format!("exit {code}"),
            Failure::Broken => "could not be started".to_owned(),
            Failure::Timeout => "ran over its time".to_owned(),
            Failure::LeaseLost => "its holder's lease ran out".to_owned(),
            Failure::Interrupted => "interrupted".to_owned(),
            Failure::Released => GIVEN_BACK.to_owned(),
        })),
    }
}

/// What the event says beyond the move; nothing for a plain success, which is most of them.
fn event_data(live: &Live, report: &Report, not_before: Option<i64>) -> Option<Value> {
    let mut data = Map::new();
    if let Some(cause) = cause(report) {
        data.insert("attempt".into(), json!(live.attempt));
        data.insert("cause".into(), json!(cut_cause(cause)));
    }
    if let Some(code) = report.exit_code.filter(|code| *code != 0) {
        data.insert("exit_code".into(), json!(code));
    }
    if let Some(at) = not_before {
        data.insert("not_before".into(), json!(at));
    }
    (!data.is_empty()).then_some(Value::Object(data))
}
