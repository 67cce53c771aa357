//! The event log as followers read it: every event in order, with the names of what it is about.

use cis_core::event::{EventName, SubjectKind};
use cis_core::id::{DagId, Position, RunId, Scope};
use cis_core::source::Timestamp;
use rusqlite::{Row, params};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::reader::Reader;
use super::tx::parsed;
use crate::port::Answer;

/// One event, by the names people and machines use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogLine {
    pub position: Position,
    pub at: Timestamp,
    pub dag_id: DagId,
    pub scope: Scope,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_number: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// What happened.
    #[serde(rename = "type")]
    pub name: EventName,
    /// The move of the lifecycle that it was.
    pub step: String,
    pub status: String,
    pub version: i64,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// An event with the names of what it is about, from `events e`.
pub(super) const LINE_SQL: &str = "SELECT e.position, e.at, d.dag_id, d.scope, coalesce(r.run_id, p.run_id), coalesce(r.number, p.number), t.task_id, e.step, e.status, e.version, e.data";
pub(super) const NAMES_SQL: &str = "LEFT JOIN dag_runs r ON r.run_key = e.run_key
     LEFT JOIN pruned_runs p ON r.run_key IS NULL AND p.run_key = e.run_key
     LEFT JOIN prunings g ON g.run_key = p.run_key
     LEFT JOIN dag_definitions f ON f.definition_key = e.definition_key
     JOIN dags d ON d.dag_key = coalesce(r.dag_key, p.dag_key, f.dag_key)
     LEFT JOIN task_executions t ON t.execution_id = coalesce(r.first_execution, g.first_execution) + e.task_ix";

impl LogLine {
    /// What it is about, as people name it: `backup`, `backup#3`, `backup#3/dump`.
    pub fn subject(&self) -> String {
        match (&self.run_number, &self.task_id) {
            (Some(number), Some(task)) => format!("{}#{number}/{task}", self.dag_id),
            (Some(number), None) => format!("{}#{number}", self.dag_id),
            (None, _) => self.dag_id.to_string(),
        }
    }

    /// In the shape of a CloudEvent.
    pub fn cloud_event(&self) -> Value {
        json!({"specversion": "1.0", "id": self.position.to_string(), "source": "cis", "type": self.name.cloud_event_type(),
               "subject": self.subject(), "data": self})
    }
}

impl Reader {
    /// The events after `after`, in order, at most `limit`. Below [`Reader::log_floor`] some are gone.
    pub fn log(&self, after: Position, limit: u32) -> Answer<Vec<LogLine>> {
        let mut statement = self.conn.prepare_cached(&format!(
            "{LINE_SQL} FROM events e {NAMES_SQL} WHERE e.position > ?1 ORDER BY e.position LIMIT 0 + ?2"
        ))?;
        Ok(statement.query_map(params![after.0, limit], log_line)?.collect::<Result<_, _>>()?)
    }

    /// The last event's position.
    pub fn last_position(&self) -> Answer<Position> {
        let mut statement = self.conn.prepare_cached("SELECT coalesce(max(position), 0) FROM events")?;
        Ok(statement.query_row([], |row| row.get(0).map(Position))?)
    }
}

pub(super) fn log_line(row: &Row<'_>) -> rusqlite::Result<LogLine> {
    let run_id: Option<String> = row.get(4)?;
    let (task_id, status): (Option<String>, String) = (row.get(6)?, row.get(8)?);
    let kind = match (&task_id, &run_id) {
        (Some(_), _) => SubjectKind::Task,
        (None, Some(_)) => SubjectKind::Run,
        (None, None) => SubjectKind::Dag,
    };
    Ok(LogLine {
        name: parsed(row, 7, |step| EventName::of(kind, step, &status))?,
        position: Position(row.get(0)?),
        at: Timestamp(row.get(1)?),
        dag_id: parsed(row, 2, |t| t.parse().ok())?,
        scope: parsed(row, 3, |t| t.parse().ok())?,
        run_id: run_id.and_then(|text| text.parse().ok()),
        run_number: row.get(5)?,
        task_id,
        step: row.get(7)?,
        status,
        version: row.get(9)?,
        data: told_data(row.get(10)?),
    })
}

/// What an event says beyond its move, as readers are told it. Its times are stored as numbers.
pub(super) fn told_data(stored: Option<String>) -> Value {
    let mut data = stored.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null);
    for time in ["not_before", "ended_at"] {
        if let Some(at) = data.get_mut(time)
            && let Some(ms) = at.as_i64()
        {
            *at = json!(Timestamp(ms));
        }
    }
    data
}
