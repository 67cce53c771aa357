//! The event log as followers read it: every event in order, with the names of what it is about.

use cis_api::event::Event;
use cis_core::event::{EventName, Subject};
use cis_core::id::{DagId, Fence, Position};
use cis_core::source::Timestamp;
use rusqlite::{Row, params};
use serde_json::{Map, Value, json};

use super::reader::Reader;
use super::tx::parsed;
use crate::port::Answer;

/// What the data of a claim from outside has whose it is by; told beside the rest, not in it.
pub(super) const HOLDER: &str = "holder";
pub(super) const FENCE: &str = "fence";

/// An event with the names of what it is about, from `events e`.
pub(super) const LINE_SQL: &str = "SELECT e.position, e.at, d.dag_id, d.scope, coalesce(r.run_id, p.run_id), coalesce(r.number, p.number), t.task_id, e.step, e.status, e.version, e.data, e.actor";
/// How many columns that are.
pub(super) const LINE_COLUMNS: usize = 12;
pub(super) const NAMES_SQL: &str = "LEFT JOIN dag_runs r ON r.run_key = e.run_key
     LEFT JOIN pruned_runs p ON r.run_key IS NULL AND p.run_key = e.run_key
     LEFT JOIN prunings g ON g.run_key = p.run_key
     LEFT JOIN dag_definitions f ON f.definition_key = e.definition_key
     JOIN dags d ON d.dag_key = coalesce(r.dag_key, p.dag_key, f.dag_key)
     LEFT JOIN task_executions t ON t.execution_id = coalesce(r.first_execution, g.first_execution) + e.task_ix";

impl Reader {
    /// The events after `after`, in order, at most `limit`. Below [`Reader::log_floor`] some are gone.
    pub fn log(&self, after: Position, limit: u32) -> Answer<Vec<Event>> {
        let mut statement = self.conn.prepare_cached(&format!(
            "{LINE_SQL} FROM events e {NAMES_SQL} WHERE e.position > ?1 ORDER BY e.position LIMIT 0 + ?2"
        ))?;
        Ok(statement.query_map(params![after.0, limit], event_row)?.collect::<Result<_, _>>()?)
    }

    /// The last event's position.
    pub fn last_position(&self) -> Answer<Position> {
        let mut statement = self.conn.prepare_cached("SELECT coalesce(max(position), 0) FROM events")?;
        Ok(statement.query_row([], |row| row.get(0).map(Position))?)
    }
}

pub(super) fn event_row(row: &Row<'_>) -> rusqlite::Result<Event> {
    let run_id: Option<String> = row.get(4)?;
    let (task_id, status): (Option<String>, String) = (row.get(6)?, row.get(8)?);
    let (dag_id, run_number): (DagId, Option<i64>) = (parsed(row, 2, |t| t.parse().ok())?, row.get(5)?);
    let subject = match (run_number, &task_id) {
        (Some(number), Some(task)) => Subject::task(&dag_id, number, task),
        (Some(number), None) => Subject::run(&dag_id, number),
        (None, _) => Subject::dag(&dag_id),
    };
    let name = parsed(row, 7, |step| EventName::of(subject.kind, step, &status))?;
    let Detail { actor, holder, fence, data } = detail(row, 10, name)?;
    Ok(Event {
        name,
        subject,
        actor,
        holder,
        fence,
        position: Position(row.get(0)?),
        at: Timestamp(row.get(1)?),
        dag_id,
        scope: parsed(row, 3, |t| t.parse().ok())?,
        run_id: run_id.and_then(|text| text.parse().ok()),
        run_number,
        task_id,
        step: row.get(7)?,
        status,
        version: row.get(9)?,
        data,
    })
}

/// What an event says beyond its move.
#[derive(Debug, Default)]
pub(super) struct Detail {
    pub(super) actor: Option<String>,
    pub(super) holder: Option<String>,
    pub(super) fence: Option<Fence>,
    pub(super) data: Value,
}

/// What is stored of it in two columns from `first` on: data and actor.
pub(super) fn detail(row: &Row<'_>, first: usize, name: EventName) -> rusqlite::Result<Detail> {
    let (data, actor): (Option<String>, Option<String>) = (row.get(first)?, row.get(first + 1)?);
    let Some(data) = data else { return Ok(Detail { actor, ..Detail::default() }) };
    let mut data: Value = serde_json::from_str(&data).unwrap_or_default();
    // Times are stored as numbers.
    for time in ["not_before", "ended_at"] {
        if let Some(at) = data.get_mut(time)
            && let Some(ms) = at.as_i64()
        {
            *at = json!(Timestamp(ms));
        }
    }
    // Versions that had no column for it told here who published, decided and approved; and of what has expired, that
    // `cis` did it.
    let by = data.get("by").and_then(Value::as_str).filter(|_| name != EventName::DagExpired);
    let actor = actor.or_else(|| by.map(ToOwned::to_owned));
    let mut take = |key| data.as_object_mut().and_then(|data| data.remove(key));
    let holder = take(HOLDER).and_then(|holder| holder.as_str().map(ToOwned::to_owned));
    let fence = take(FENCE).and_then(|fence| fence.as_i64()).map(Fence);
    let data = if data.as_object().is_some_and(Map::is_empty) { Value::Null } else { data };
    Ok(Detail { actor, holder, fence, data })
}
