//! Tasks that wait for a person, with what that person has to know.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use cis_core::dag::{Dag, Kind};
use cis_core::id::{DagId, ExecutionId, RunId, Scope, TaskId, TaskIx};
use cis_core::review::ReviewId;
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use rusqlite::{OptionalExtension, Row};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::reader::{Reader, RunLine, TaskLine};
use super::tx::parsed;
use crate::port::Answer;

/// A task that waits for a decision.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WaitingLine {
    /// What to decide about it by.
    pub review_id: ReviewId,
    #[serde(skip, default = "no_execution")]
    pub execution: ExecutionId,
    pub dag_id: DagId,
    pub scope: Scope,
    pub run_id: RunId,
    /// `backup#42`.
    pub run: String,
    pub task_id: TaskId,
    /// What people see of it: its `name`, else its id.
    pub title: String,
    /// What it does once approved; `approval`: nothing but that.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// What approving takes, and of which type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub input: BTreeMap<String, String>,
    pub published_by: String,
    /// Who started its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<String>,
    /// What its run was given, defaults included.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    pub waiting_since: Timestamp,
    /// If nobody has answered by then…
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_by: Option<Timestamp>,
    /// … this happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<String>,
}

/// A line that comes from another machine is known by its run and its task.
fn no_execution() -> ExecutionId {
    ExecutionId(0)
}

/// Where a line's task is defined.
struct Place {
    definition: i64,
    ix: TaskIx,
}

const WAITING_SQL: &str = "
    SELECT d.dag_id, d.scope, r.run_id, r.number, t.task_id, f.created_by, t.asked_at, t.answer_deadline,
           r.definition_key, t.execution_id - r.first_execution, t.execution_id, t.review_id, t.status,
           r.created_by, r.params_json";

const NAMES_SQL: &str = "JOIN dag_runs r USING (run_key)
     JOIN dags d USING (dag_key) JOIN dag_definitions f USING (definition_key)";

impl Reader {
    /// Tasks after `after` that wait for a person, in the order they were made: at most `limit` of those in scopes
    /// that `sees` lets through.
    pub fn waiting(
        &self,
        sees: impl Fn(&Scope) -> bool,
        after: ExecutionId,
        limit: usize,
    ) -> Answer<Vec<WaitingLine>> {
        let mut statement = self.conn.prepare_cached(&format!(
            "{WAITING_SQL} FROM task_executions t INDEXED BY tasks_waiting {NAMES_SQL}
             WHERE t.status = 'waiting' AND r.status IN ('queued', 'running') AND t.execution_id > ?1
             ORDER BY t.execution_id"
        ))?;
        let mut rows = statement.query([after.0])?;
        // Many tasks that wait are often of one DAG.
        let mut definitions: BTreeMap<i64, Dag> = BTreeMap::new();
        let mut found = Vec::new();
        while let Some(row) = rows.next()?.filter(|_| found.len() < limit) {
            let (mut line, place) = waiting_line(row)?;
            if !sees(&line.scope) {
                continue;
            }
            let dag = match definitions.entry(place.definition) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.definition(place.definition)?),
            };
            describe(&mut line, dag, place.ix);
            found.push(line);
        }
        Ok(found)
    }

    /// The task that a review id is about, whether it still waits or not, and how it stands.
    pub(super) fn waiting_review(&self, id: ReviewId) -> Answer<Option<(WaitingLine, TaskStatus)>> {
        let sql = format!("{WAITING_SQL} FROM task_executions t {NAMES_SQL} WHERE t.review_id = ?1");
        let read = |row: &Row<'_>| Ok((waiting_line(row)?, parsed(row, 12, TaskStatus::from_word)?));
        let Some(((mut line, place), status)) = self.one(&sql, [id.to_string()], read)? else {
            return Ok(None);
        };
        describe(&mut line, &self.definition(place.definition)?, place.ix);
        Ok(Some((line, status)))
    }

    /// The task of a run with this id.
    pub fn task_named(&self, run: &RunLine, task: &str) -> Answer<Option<TaskLine>> {
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

fn waiting_line(row: &Row<'_>) -> rusqlite::Result<(WaitingLine, Place)> {
    let dag_id: DagId = parsed(row, 0, |t| t.parse().ok())?;
    let task_id: TaskId = parsed(row, 4, |t| t.parse().ok())?;
    let line = WaitingLine {
        review_id: parsed(row, 11, |t| t.parse().ok())?,
        execution: ExecutionId(row.get(10)?),
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
        params: parsed(row, 14, |t| serde_json::from_str(t).ok())?,
        waiting_since: Timestamp(row.get(6)?),
        answer_by: row.get::<_, Option<i64>>(7)?.map(Timestamp),
        on_timeout: None,
    };
    Ok((line, Place { definition: row.get(8)?, ix: TaskIx(row.get(9)?) }))
}

/// What the definition says of the question.
fn describe(line: &mut WaitingLine, dag: &Dag, ix: TaskIx) {
    let Some(task) = dag.tasks.get(ix.index()) else { return };
    (line.title, line.kind) = (task.title().to_owned(), task.kind.word().to_owned());
    if let Kind::Approval(approval) = &task.kind {
        line.prompt.clone_from(&approval.prompt);
        line.input =
            approval.input.iter().map(|(name, kind)| (name.clone(), kind.word().to_owned())).collect();
        line.on_timeout = line.answer_by.map(|_| approval.on_timeout.word().to_owned());
    }
}
