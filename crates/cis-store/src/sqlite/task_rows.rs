//! Tasks as they are read: one with all that is known of it, several without their large values.

use cis_api::task::{ElidedValues, TaskSummary};
use cis_core::id::{ExecutionId, TaskIx, Version};
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use rusqlite::{Row, params};

use super::causes::cut_cause;
use super::reader::{Reader, decision_line, review_id, row_bytes, text_bytes};
use super::tx::parsed;
use crate::port::Answer;
use crate::rows::{RunRow, TaskRow};

// Decisions are looked for only where a person was asked: most tasks never are.
macro_rules! task_sql {
    ($cause:literal, $values:literal, $sizes:literal) => {
        concat!(
            "SELECT execution_id, task_id, status, version, attempt, claimed_at, started_at, completed_at, not_before,
           exit_code, ",
            $cause,
            ", ",
            $values,
            ", log_bytes, log_cut_bytes, asked_at,
           iif(status = 'waiting', review_id, NULL),
           CASE WHEN asked_at IS NOT NULL THEN (SELECT d.decided_by FROM task_decisions d
                                                WHERE d.execution_id = task_executions.execution_id) END,
           CASE WHEN asked_at IS NOT NULL THEN (SELECT d.decided_at FROM task_decisions d
                                                WHERE d.execution_id = task_executions.execution_id) END,
           CASE WHEN asked_at IS NOT NULL THEN (SELECT d.note FROM task_decisions d
                                                WHERE d.execution_id = task_executions.execution_id) END, ",
            $sizes,
            " FROM task_executions"
        )
    };
}

/// One task, with all that is known of it.
pub(super) const WHOLE_TASK_SQL: &str = task_sql!("cause", "output, error, outputs_json", "NULL, NULL, NULL");

/// A task among others: values over 4,096 bytes are not even read, only how large they are; nor is more of a cause than
/// [`cut_cause`] cuts off.
pub(super) const TASK_SQL: &str = task_sql!(
    "substr(cause, 1, 1025)",
    "iif(octet_length(output) <= 4096, output, NULL), iif(octet_length(error) <= 4096, error, NULL),
     iif(octet_length(outputs_json) <= 4096, outputs_json, NULL)",
    "iif(octet_length(output) > 4096, octet_length(output), NULL),
     iif(octet_length(error) > 4096, octet_length(error), NULL),
     iif(octet_length(outputs_json) > 4096, octet_length(outputs_json), NULL)"
);

/// Where the cause of a task and its values stand in its row; the sizes of values, where they are left out, follow in the same
/// order.
const CAUSE: usize = 10;
const OUTPUT: usize = 11;
const ERROR: usize = 12;
const OUTPUTS: usize = 13;
const SIZES: usize = 21;

impl Reader {
    /// The first tasks of a run, at most `limit`. Of those that do not fit `bytes_max` any more with their causes and values,
    /// the values are left out.
    pub fn first_tasks(&self, run: &RunRow, limit: u32, bytes_max: usize) -> Answer<Vec<TaskRow>> {
        let (first, last) = (run.first_execution.0, run.first_execution.0 + i64::from(run.total) - 1);
        let sql =
            format!("{TASK_SQL} WHERE execution_id BETWEEN ?1 AND ?2 ORDER BY execution_id LIMIT 0 + ?3");
        let mut told = 0;
        self.collect(&sql, params![first, last, limit], |row| {
            told += row_bytes(row, CAUSE..=OUTPUTS)?;
            let mut task = task_row(row, run)?;
            if told > bytes_max {
                elide_values(row, run, &mut task.shown)?;
            }
            Ok(task)
        })
    }
}

/// What of a task was too large to be read among others.
fn elided(row: &Row<'_>, run: &RunRow, task_id: &str) -> rusqlite::Result<Option<ElidedValues>> {
    let size = |value: usize| row.get::<_, Option<u64>>(SIZES + value - OUTPUT);
    let (output_bytes, error_bytes, outputs_bytes) = (size(OUTPUT)?, size(ERROR)?, size(OUTPUTS)?);
    if output_bytes.or(error_bytes).or(outputs_bytes).is_none() {
        return Ok(None);
    }
    let get = task_call(run, task_id);
    Ok(Some(ElidedValues { output_bytes, error_bytes, outputs_bytes, get }))
}

/// The call that answers with this task alone. A task's id needs no escaping.
fn task_call(run: &RunRow, task_id: &str) -> String {
    format!("/api/v1/runs/{}/tasks?task={task_id}", run.run_id)
}

/// Leaves the values of a task out.
fn elide_values(row: &Row<'_>, run: &RunRow, task: &mut TaskSummary) -> rusqlite::Result<()> {
    let size =
        |column| Ok::<_, rusqlite::Error>(Some(text_bytes(row, column)? as u64).filter(|size| *size > 0));
    let sizes = (size(OUTPUT)?, size(ERROR)?, size(OUTPUTS)?);
    if sizes == (None, None, None) {
        return Ok(());
    }
    let get = || task_call(run, &task.task_id);
    let elided = task.elided.take();
    let mut elided = elided.unwrap_or_else(|| ElidedValues {
        output_bytes: None,
        error_bytes: None,
        outputs_bytes: None,
        get: get(),
    });
    elided.output_bytes = elided.output_bytes.or(sizes.0);
    elided.error_bytes = elided.error_bytes.or(sizes.1);
    elided.outputs_bytes = elided.outputs_bytes.or(sizes.2);
    (task.output, task.error, task.outputs, task.elided) = (None, None, None, Some(elided));
    Ok(())
}

/// A row of [`TASK_SQL`].
pub(super) fn task_row(row: &Row<'_>, run: &RunRow) -> rusqlite::Result<TaskRow> {
    let mut task = whole_task_row(row, run)?;
    task.shown.cause = task.shown.cause.map(cut_cause);
    Ok(task)
}

/// A row of [`WHOLE_TASK_SQL`].
pub(super) fn whole_task_row(row: &Row<'_>, run: &RunRow) -> rusqlite::Result<TaskRow> {
    let time = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(Timestamp));
    let execution: i64 = row.get(0)?;
    let task_id: String = row.get(1)?;
    let shown = TaskSummary {
        elided: elided(row, run, &task_id)?,
        execution_id: ExecutionId(execution),
        task_id,
        status: parsed(row, 2, TaskStatus::from_word)?,
        version: Version(row.get(3)?),
        attempt: row.get(4)?,
        claimed_at: time(5)?,
        started_at: time(6)?,
        completed_at: time(7)?,
        not_before: time(8)?,
        exit_code: row.get(9)?,
        cause: row.get(CAUSE)?,
        output: row.get(OUTPUT)?,
        error: row.get(ERROR)?,
        outputs: row.get::<_, Option<String>>(OUTPUTS)?.and_then(|text| serde_json::from_str(&text).ok()),
        log_bytes: row.get(14)?,
        log_cut_bytes: row.get(15)?,
        asked_at: time(16)?,
        review_id: review_id(row, 17)?,
        decision: decision_line(row, 18)?,
    };
    Ok(TaskRow { key: TaskIx(u32::try_from(execution - run.first_execution.0).unwrap_or(u32::MAX)), shown })
}
