//! Notices on their way out: kept in the transaction of the event they are about, until somebody was told or it was
//! given up. Without anybody who wants them there are none.

use cis_core::id::Position;
use cis_core::notice::{Occasion, Way};
use cis_core::run::RunStatus;
use cis_core::source::{Millis, Timestamp};
use cis_core::task::TaskStatus;
use rusqlite::{Params, Row, params};
use serde::Serialize;

use super::events::Event;
use super::log::{LINE_COLUMNS, LINE_SQL, NAMES_SQL, event_row};
use super::reader::Reader;
use super::tx::{Tx, parsed};
use crate::port::{Answer, RevisionStatus, Tried};

/// Before it is told that something waits: most of what is decided at once was not worth telling, such as the
/// confirmation of a `cis run` that follows on its publication.
const BREATH: Millis = Millis(1_000);

/// How long it can be looked up that a notice was given up.
const KEPT: Millis = Millis(30 * 24 * 60 * 60 * 1_000);

/// Somebody to be told, by one way, of one event.
#[derive(Debug, Clone, Serialize)]
pub struct Notice {
    pub way: Way,
    pub occasion: Occasion,
    /// How often it was tried in vain.
    pub tries: u32,
    /// When it is tried next; never, once it was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_up_at: Option<Timestamp>,
    /// What the last try came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Is what it is about still as the event left it?
    pub stands: bool,
    pub event: cis_api::event::Event,
}

/// Keeps a notice of `event`, if anybody wants one.
pub(super) fn keep(tx: &Tx<'_>, event: &Event) -> Answer<()> {
    let wanted = &tx.memory.wanted;
    let Some(occasion) = occasion(event).filter(|occasion| wanted.on.contains(occasion)) else {
        return Ok(());
    };
    let due_at = if occasion == Occasion::Waiting { tx.now.after(BREATH) } else { tx.now };
    for way in &wanted.by {
        tx.conn
            .prepare_cached("INSERT INTO outbox (position, way, occasion, due_at) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![event.position, way.word(), occasion.word(), due_at.0])?;
    }
    Ok(())
}

fn occasion(event: &Event) -> Option<Occasion> {
    match (event.run, event.task) {
        (Some(_), Some(_)) => TaskStatus::from_word(event.status).and_then(Occasion::of_task),
        (Some(_), None) => RunStatus::from_word(event.status).and_then(Occasion::of_run),
        (None, _) => (event.status == RevisionStatus::Pending.word()).then_some(Occasion::Waiting),
    }
}

/// See [`crate::Store::settle_notice`].
pub(super) fn settle(tx: &Tx<'_>, position: Position, way: Way, tried: &Tried) -> Answer<()> {
    let (due_at, given_up_at, problem) = match tried {
        Tried::Given => {
            tx.conn
                .prepare_cached("DELETE FROM outbox WHERE position = ?1 AND way = ?2")?
                .execute(params![position.0, way.word()])?;
            return Ok(());
        }
        Tried::Again { at, problem } => (Some(at.0), None, problem),
        Tried::GivenUp { problem } => (None, Some(tx.now.0), problem),
    };
    tx.conn
        .prepare_cached(
            "UPDATE outbox SET tries = tries + 1, due_at = ?3, given_up_at = ?4, problem = ?5
             WHERE position = ?1 AND way = ?2 AND due_at IS NOT NULL",
        )?
        .execute(params![position.0, way.word(), due_at, given_up_at, problem])?;
    // Here, where one is added, so that they stay few.
    tx.conn
        .prepare_cached("DELETE FROM outbox WHERE given_up_at <= ?1")?
        .execute([tx.now.0.saturating_sub(KEPT.0.cast_signed())])?;
    Ok(())
}

impl Reader {
    /// What is to be told by `way` at `now`, the longest due first, at most `limit`.
    pub fn due_notices(&self, way: Way, now: Timestamp, limit: u32) -> Answer<Vec<Notice>> {
        self.notices_of(
            "WHERE due_at IS NOT NULL AND way = ?1 AND due_at <= ?2 ORDER BY due_at, position LIMIT 0 + ?3",
            params![way.word(), now.0, limit],
        )
    }

    /// What was not told yet, and what was given up, the latest first, at most `limit`.
    pub fn notices(&self, limit: u32) -> Answer<Vec<Notice>> {
        self.notices_of("ORDER BY position DESC, way LIMIT 0 + ?1", params![limit])
    }

    /// When the next notice by `way` is due.
    pub fn next_notice(&self, way: Way) -> Answer<Option<Timestamp>> {
        let mut statement = self
            .conn
            .prepare_cached("SELECT min(due_at) FROM outbox WHERE due_at IS NOT NULL AND way = ?1")?;
        let due: Option<i64> = statement.query_row([way.word()], |row| row.get(0))?;
        Ok(due.map(Timestamp))
    }

    fn notices_of(&self, which: &str, values: impl Params) -> Answer<Vec<Notice>> {
        let mut statement = self.conn.prepare_cached(&format!(
            "{LINE_SQL}, o.way, o.occasion, o.tries, o.due_at, o.given_up_at, o.problem,
                    e.version = coalesce(f.version, CASE WHEN e.task_ix IS NULL THEN r.version ELSE t.version END)
             FROM outbox o JOIN events e USING (position) {NAMES_SQL} {which}"
        ))?;
        Ok(statement.query_map(values, notice)?.collect::<Result<_, _>>()?)
    }
}

fn notice(row: &Row<'_>) -> rusqlite::Result<Notice> {
    let from = LINE_COLUMNS;
    Ok(Notice {
        event: event_row(row)?,
        way: parsed(row, from, Way::from_word)?,
        occasion: parsed(row, from + 1, Occasion::from_word)?,
        tries: row.get(from + 2)?,
        due_at: row.get::<_, Option<i64>>(from + 3)?.map(Timestamp),
        given_up_at: row.get::<_, Option<i64>>(from + 4)?.map(Timestamp),
        problem: row.get(from + 5)?,
        stands: row.get(from + 6)?,
    })
}
