//! Where a store under test lives, and how to look into it from outside.

use std::path::PathBuf;

use cis_api::event::Event;
use cis_core::event::{EventName, Subject};
use cis_core::id::{ExecutionId, Fence, Position, RunKey};
use cis_core::review::ReviewId;
use cis_core::run::RunStatus;
use cis_core::task::TaskStatus;
use cis_store::{Chunks, Durability, Reader, SqliteStore, check};
use rusqlite::{Connection, Row};
use serde_json::Value;
use tempfile::TempDir;

use crate::support;

/// Fences that a store under test grants in one epoch: few, so that every case goes from one to the next.
pub(crate) const FENCES: u32 = 5;

/// A directory with one SQLite file.
pub(crate) struct Home {
    dir: TempDir,
}

/// A run as readers see it.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) status: RunStatus,
    pub(crate) tasks: Vec<TaskSight>,
}

/// A task as readers see it.
#[derive(Debug)]
pub(crate) struct TaskSight {
    pub(crate) execution: ExecutionId,
    pub(crate) status: TaskStatus,
    pub(crate) attempt: u32,
    pub(crate) cause: Option<String>,
    pub(crate) outputs: Option<Value>,
}

/// An event as followers hear it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Heard {
    pub(crate) name: EventName,
    pub(crate) subject: Subject,
    pub(crate) actor: Option<String>,
    pub(crate) claim: Option<(String, Fence)>,
}

impl Heard {
    /// `run.created d#1 by ann`.
    pub(crate) fn line(&self) -> String {
        let by = self.actor.as_ref().map_or(String::new(), |actor| format!(" by {actor}"));
        format!("{} {}{by}", self.name, self.subject)
    }
}

impl Home {
    /// A new, empty place.
    pub(crate) fn new() -> Self {
        Self { dir: support::dir() }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("dag.db")
    }

    /// For what has no short word here.
    pub(crate) fn reader(&self) -> Reader {
        Reader::open(&self.file()).expect("a reader")
    }

    /// Opens the store there; what was acknowledged before is still in it.
    pub(crate) fn open(&self) -> SqliteStore {
        let chunks = Chunks { fences: FENCES, ..Chunks::default() };
        SqliteStore::open_in_chunks(&self.file(), Durability::Process, chunks).expect("a store")
    }

    /// A run as readers see it.
    pub(crate) fn look(&self, run: RunKey) -> Sight {
        let reader = self.reader();
        let line = reader.run(run).expect("a run line").expect("a run");
        let tasks = reader.tasks(&line, &[], u32::MAX).expect("its tasks").into_iter();
        let tasks = tasks.map(|task| TaskSight {
            execution: task.execution_id,
            status: task.status,
            attempt: task.attempt,
            cause: task.shown.cause,
            outputs: task.shown.outputs,
        });
        Sight { status: line.status, tasks: tasks.collect() }
    }

    /// Is there such a run?
    pub(crate) fn knows(&self, run: RunKey) -> bool {
        self.reader().run(run).expect("a look").is_some()
    }

    /// The review ids of a run's tasks that wait for a person.
    pub(crate) fn reviews(&self, run: RunKey) -> Vec<ReviewId> {
        let reader = self.reader();
        let line = reader.run(run).expect("a run line").expect("a run");
        let tasks = reader.tasks(&line, &[], u32::MAX).expect("its tasks");
        tasks.iter().filter_map(|task| task.review_id).collect()
    }

    /// Is there anything with this review id?
    pub(crate) fn knows_review(&self, id: ReviewId) -> bool {
        self.reader().review(id).expect("a look").is_some()
    }

    /// The event log as followers read it.
    pub(crate) fn log(&self) -> Vec<Heard> {
        let events = self.reader().log(Position(0), u32::MAX).expect("the log");
        let heard = |event: Event| Heard {
            name: event.name,
            subject: event.subject,
            actor: event.actor,
            claim: event.holder.zip(event.fence),
        };
        events.into_iter().map(heard).collect()
    }

    /// What is held, oldest claim first: its kind and key, its fence and its holder's identity.
    pub(crate) fn leases(&self) -> Vec<(String, i64, Fence, String)> {
        let conn = Connection::open(self.file()).expect("the file");
        let sql = "SELECT subject_kind, subject_key, fence, identity FROM leases ORDER BY fence";
        let mut statement = conn.prepare(sql).expect("leases");
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, Fence(row.get(2)?), row.get(3)?));
        statement.query_map([], read).expect("leases").collect::<Result<_, _>>().expect("leases")
    }

    /// Writes to the file behind the store's back.
    pub(crate) fn execute(&self, sql: &str) {
        Connection::open(self.file()).expect("the file").execute_batch(sql).expect("a statement");
    }

    /// What a query answers with one number.
    pub(crate) fn number(&self, sql: &str) -> i64 {
        Connection::open(self.file())
            .expect("the file")
            .query_row(sql, [], |row| row.get(0))
            .expect("a number")
    }

    /// Every invariant that does not hold.
    pub(crate) fn violations(&self) -> Vec<String> {
        check::violations(&self.reader()).expect("a check")
    }
}
