//! Tasks that wait for a person, with what that person has to know.

use std::collections::BTreeMap;

use cis_api::review::WaitingTask;
use cis_core::dag::{Dag, Kind};
use cis_core::id::{DagId, ExecutionId, Scope, TaskId, TaskIx};
use cis_core::review::ReviewId;
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use rusqlite::{OptionalExtension, Row};

use super::reader::{PAGE_BYTES_MAX, Reader, text_bytes};
use super::tx::parsed;
use crate::port::Answer;
use crate::rows::{RunRow, TaskRow, WaitingRow};

/// Where a line's task is defined.
struct Place {
    definition: i64,
    ix: TaskIx,
}

const WAITING_SQL: &str = "
    SELECT d.dag_id, d.scope, r.run_id, r.number, t.task_id, f.created_by, t.asked_at, t.answer_deadline,
           r.definition_key, t.execution_id - r.first_execution, t.execution_id, t.review_id, t.status,
           r.created_by, r.params_json";

/// Where what its run was given stands in a row.
const PARAMS: usize = 14;

const NAMES_SQL: &str = "JOIN dag_runs r USING (run_key)
     JOIN dags d USING (dag_key) JOIN dag_definitions f USING (definition_key)";

impl Reader {
    /// Tasks after `after` that wait for a person, in the order they were made: a page of at most `limit` of those in
    /// scopes that `sees` lets through, and whether there are more.
    pub fn waiting(
        &self,
        sees: impl Fn(&Scope) -> bool,
        after: ExecutionId,
        limit: usize,
    ) -> Answer<(Vec<WaitingRow>, bool)> {
        let mut statement = self.conn.prepare_cached(&format!(
            "{WAITING_SQL} FROM task_executions t INDEXED BY tasks_waiting {NAMES_SQL}
             WHERE t.status = 'waiting' AND r.status IN ('queued', 'running') AND t.execution_id > ?1
             ORDER BY t.execution_id"
        ))?;
        let mut rows = statement.query([after.0])?;
        let (mut found, mut places, mut bytes, mut more) = (Vec::new(), Vec::new(), 0, false);
        while let Some(row) = rows.next()? {
            let (line, place) = waiting_line(row)?;
            if !sees(&line.scope) {
                continue;
            }
            if found.len() >= limit || bytes >= PAGE_BYTES_MAX {
                more = true;
                break;
            }
            bytes += text_bytes(row, PARAMS)?;
            found.push(line);
            places.push(place);
        }
        let described = self.describe_all(&mut found, &places, bytes)?;
        more |= described < found.len();
        found.truncate(described);
        Ok((found, more))
    }

    /// Adds what definitions say of the questions, until a page has enough text; answers how many lines from the first on have
    /// it. One definition after another: each is parsed once, and only one is held at a time, as each may be tens of MiB.
    fn describe_all(&self, lines: &mut [WaitingRow], places: &[Place], mut bytes: usize) -> Answer<usize> {
        let mut described = vec![false; lines.len()];
        for first in 0..lines.len() {
            if described[first] {
                continue;
            }
            if first > 0 && bytes >= PAGE_BYTES_MAX {
                return Ok(first);
            }
            let dag = self.definition(places[first].definition)?;
            for ix in first..lines.len() {
                if places[ix].definition != places[first].definition
                    || (ix > first && bytes >= PAGE_BYTES_MAX)
                {
                    continue;
                }
                describe(&mut lines[ix].shown, &dag, places[ix].ix);
                bytes += lines[ix].prompt.as_ref().map_or(0, String::len);
                described[ix] = true;
            }
        }
        Ok(lines.len())
    }

    /// The task that a review id is about, whether it still waits or not, and how it stands.
    pub(super) fn waiting_review(&self, id: ReviewId) -> Answer<Option<(WaitingRow, TaskStatus)>> {
        let sql = format!("{WAITING_SQL} FROM task_executions t {NAMES_SQL} WHERE t.review_id = ?1");
        let read = |row: &Row<'_>| Ok((waiting_line(row)?, parsed(row, 12, TaskStatus::from_word)?));
        let Some(((mut line, place), status)) = self.one(&sql, [id.to_string()], read)? else {
            return Ok(None);
        };
        describe(&mut line.shown, &self.definition(place.definition)?, place.ix);
        Ok(Some((line, status)))
    }

    /// The task of a run with this id.
    pub fn task_named(&self, run: &RunRow, task: &str) -> Answer<Option<TaskRow>> {
        let (first, last) = (run.first_execution.0, run.first_execution.0 + i64::from(run.total) - 1);
        let mut statement = self.conn.prepare_cached(
            "SELECT execution_id FROM task_executions WHERE execution_id BETWEEN ?1 AND ?2 AND task_id = ?3",
        )?;
        let found: Option<i64> = statement.query_row((first, last, task), |row| row.get(0)).optional()?;
        match found.map(ExecutionId) {
            Some(execution) => self.task(run, TaskIx(u32::try_from(execution.0 - first).unwrap_or(u32::MAX))),
            None => Ok(None),
        }
    }
}

fn waiting_line(row: &Row<'_>) -> rusqlite::Result<(WaitingRow, Place)> {
    let dag_id: DagId = parsed(row, 0, |t| t.parse().ok())?;
    let task_id: TaskId = parsed(row, 4, |t| t.parse().ok())?;
    let shown = WaitingTask {
        review_id: parsed(row, 11, |t| t.parse().ok())?,
        scope: parsed(row, 1, |t| t.parse().ok())?,
        run_id: parsed(row, 2, |t| t.parse().ok())?,
        run: format!("{dag_id}#{}", row.get::<_, i64>(3)?),
        dag_id,
        title: task_id.to_string(),
        task_id,
        kind: String::new(),
        prompt: None,
        input: BTreeMap::new(),
        published_by: row.get(5)?,
        started_by: row.get(13)?,
        params: parsed(row, PARAMS, |t| serde_json::from_str(t).ok())?,
        waiting_since: Timestamp(row.get(6)?),
        answer_by: row.get::<_, Option<i64>>(7)?.map(Timestamp),
        on_timeout: None,
    };
    let line = WaitingRow { key: ExecutionId(row.get(10)?), shown };
    Ok((line, Place { definition: row.get(8)?, ix: TaskIx(row.get(9)?) }))
}

/// What the definition says of the question.
fn describe(line: &mut WaitingTask, dag: &Dag, ix: TaskIx) {
    let Some(task) = dag.tasks.get(ix.index()) else { return };
    (line.title, line.kind) = (task.title().to_owned(), task.kind.word().to_owned());
    if let Kind::Approval(approval) = &task.kind {
        line.prompt.clone_from(&approval.prompt);
        line.input =
            approval.input.iter().map(|(name, kind)| (name.clone(), kind.word().to_owned())).collect();
        line.on_timeout = line.answer_by.map(|_| approval.on_timeout.word().to_owned());
    }
}
