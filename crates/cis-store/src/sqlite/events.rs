//! Events as they are written: rows of `events`, several with one statement. Reading them is [`super::log`]'s.

use cis_core::source::Timestamp;
use rusqlite::{Connection, ToSql};
use serde_json::Value;

use crate::port::Answer;

/// A row of `events`, but for its time.
pub(super) struct Event {
    pub(super) position: i64,
    pub(super) run: Option<i64>,
    pub(super) task: Option<u32>,
    pub(super) definition: Option<i64>,
    pub(super) version: i64,
    pub(super) step: &'static str,
    pub(super) status: &'static str,
    pub(super) data: Option<String>,
    /// The identity that asked for it. Of most there is none.
    pub(super) actor: Option<String>,
}

/// What an event says beyond its move.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told<'t> {
    pub(super) data: Option<&'t Value>,
    /// The identity that asked for this very change; nothing where the node itself did it, or it followed from another.
    pub(super) actor: Option<&'t str>,
}

impl<'t> Told<'t> {
    /// Nothing but this.
    pub(super) fn data(data: &'t Value) -> Self {
        Self { data: Some(data), actor: None }
    }

    /// The same, caused by `actor`.
    pub(super) fn by(self, actor: Option<&'t str>) -> Self {
        Self { actor, ..self }
    }
}

/// Writes events of one moment with one statement.
pub(super) fn write(conn: &Connection, now: Timestamp, events: &[Event]) -> Answer<()> {
    if events.is_empty() {
        return Ok(());
    }
    // The loop's own events name nobody, and bind nothing for it.
    let named = events.iter().any(|event| event.actor.is_some());
    let (column, row) = match named {
        true => (", actor", "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
        false => ("", "(?, ?, ?, ?, ?, ?, ?, ?, ?)"),
    };
    let rows = vec![row; events.len()].join(", ");
    let mut statement = conn.prepare_cached(&format!(
        "INSERT INTO events (position, run_key, task_ix, definition_key, version, step, status, at, data{column})
         VALUES {rows}"
    ))?;
    let mut values: Vec<&dyn ToSql> = Vec::with_capacity(10 * events.len());
    for event in events {
        let Event { position, run, task, definition, version, step, status, data, actor } = event;
        let row: [&dyn ToSql; 9] = [position, run, task, definition, version, step, status, &now.0, data];
        values.extend(row);
        if named {
            values.push(actor);
        }
    }
    statement.execute(values.as_slice())?;
    Ok(())
}
