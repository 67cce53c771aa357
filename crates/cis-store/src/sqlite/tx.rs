//! One operation's view of the store: the run rows it has loaded (written back once, at the end), the events it
//! writes, and what it found out on the way that its caller must hear.

use std::collections::BTreeMap;
use std::sync::Arc;

use cis_core::dag::plan::Plan;
use cis_core::dag::stored;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, ExecutionId, Fence, Revision, RunId, RunKey, Scope, TaskIx, Version};
use cis_core::run::{RunMove, RunStatus, StopReason};
use cis_core::source::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use super::clock::When;
use super::events::{self, Event, Told};
use super::memory::{Memory, QueueName};
use super::outbox;
use super::tasks::{self, Ending, Fresh};
use super::tombstones;
use crate::port::{Answer, Definition, Fate, RunInfo, RunRef, StoreError};

/// Events written by one statement.
const EVENTS_MAX: usize = 8;

/// A run's row, as far as operations need it.
#[derive(Debug, Clone)]
pub(super) struct RunRow {
    pub(super) info: Arc<RunInfo>,
    pub(super) scope: Scope,
    pub(super) status: RunStatus,
    pub(super) version: Version,
    pub(super) stop: Option<StopReason>,
    pub(super) priority: i32,
    pub(super) max_parallel: Option<u32>,
    pub(super) fates: Option<Arc<str>>,
    pub(super) first: ExecutionId,
    /// The event that created it.
    pub(super) first_position: i64,
    pub(super) resumed_from: Option<RunKey>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) completed_at: Option<Timestamp>,
    pub(super) deadline: Option<Timestamp>,
    pub(super) tasks_left: u32,
    pub(super) completed: u32,
    pub(super) failed: u32,
    pub(super) debts: u32,
    pub(super) cancelled: u32,
    pub(super) skipped: u32,
    pub(super) sinks_completed: u32,
    pub(super) window: u32,
    pub(super) paused: bool,
    /// The identity it counts for; none of a run that was over when there were no quotas yet.
    counts_for: Option<Box<str>>,
    /// How long what it was given is, as it is stored: parameters and fates.
    pub(super) given_bytes: usize,
    /// The version it was last read or written with: the guard of the write.
    loaded: Version,
}

impl RunRow {
    pub(super) fn definition(&self) -> &Arc<Definition> {
        &self.info.definition
    }

    pub(super) fn execution(&self, ix: TaskIx) -> ExecutionId {
        ExecutionId(self.first.0 + i64::from(ix.0))
    }

    pub(super) fn ix(&self, execution: ExecutionId) -> TaskIx {
        TaskIx(u32::try_from(execution.0 - self.first.0).unwrap_or(u32::MAX))
    }

    pub(super) fn fate(&self, ix: TaskIx) -> Fate {
        match self.fates.as_deref().and_then(|fates| fates.as_bytes().get(ix.index())) {
            Some(b'c') => Fate::Carry,
            Some(b'l') => Fate::Leave,
            _ => Fate::Run,
        }
    }

    /// Is it being stopped, or over?
    pub(super) fn is_stopping(&self) -> bool {
        is_stopping(self.status)
    }

    /// May tasks of it be started?
    pub(super) fn lets_start(&self) -> bool {
        !self.paused && !self.is_stopping()
    }

    pub(super) fn reference(&self) -> RunRef {
        RunRef {
            key: self.info.key,
            run_id: self.info.run_id,
            dag_id: self.info.definition.dag.dag_id.clone(),
            scope: self.scope.clone(),
            number: self.info.number,
            status: self.status,
        }
    }
}

/// Is a run with this status being stopped, or over?
pub(super) fn is_stopping(status: RunStatus) -> bool {
    !matches!(status, RunStatus::Queued | RunStatus::Running)
}

/// One operation under way.
pub(super) struct Tx<'a> {
    pub(super) conn: &'a Connection,
    pub(super) memory: &'a mut Memory,
    pub(super) now: Timestamp,
    /// When the machine was started, by the clock that says it is `now`; unknown, if nobody said which that is.
    pub(super) started_at: Option<Timestamp>,
    /// Runs it has asked for: what has to be written back.
    touched: Vec<RunKey>,
    /// Runs that ended in this operation.
    pub(super) ended: Vec<RunRef>,
    /// Live attempts whose run is stopping.
    pub(super) stop: Vec<(ExecutionId, Fence)>,
    pub(super) next_due: Option<Timestamp>,
    /// Tasks that have just ended, and whose dependents are still to be told.
    pub(super) ending: Option<Ending>,
    /// Tasks that became ready in this operation and are not written yet: most are claimed before it ends.
    pub(super) fresh: Vec<Fresh>,
    /// Runs whose places have been given back, or are waited for, in this operation.
    pub(super) crowded: Vec<RunKey>,
    /// Events that are not written yet: several go with one statement.
    events: Vec<Event>,
}

impl<'a> Tx<'a> {
    pub(super) fn new(conn: &'a Connection, memory: &'a mut Memory, when: When) -> Self {
        memory.begin_operation();
        Self {
            conn,
            memory,
            now: when.now,
            started_at: when.started_at,
            touched: Vec::new(),
            ended: Vec::new(),
            stop: Vec::new(),
            next_due: None,
            ending: None,
            fresh: Vec::new(),
            crowded: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Forgets everything the operation has done so far; its caller undoes it in the database.
    pub(super) fn undo(&mut self) {
        self.memory.undo_operation();
        self.touched.clear();
        self.ended.clear();
        self.stop.clear();
        self.next_due = None;
        self.ending = None;
        self.fresh.clear();
        self.crowded.clear();
        self.events.clear();
    }

    /// Something must be swept no later than `at`.
    pub(super) fn due(&mut self, at: Timestamp) {
        self.next_due = Some(self.next_due.map_or(at, |due| due.min(at)));
    }

    /// Who gets the places of `run` is to be settled before anything is claimed.
    pub(super) fn crowd(&mut self, run: RunKey) {
        if !self.crowded.contains(&run) {
            self.crowded.push(run);
        }
    }

    /// Refuses new work where there is no room for it. What was asked before is answered before this is asked.
    pub(super) fn room(&self) -> Answer<()> {
        if self.memory.full { Err(StoreError::Full) } else { Ok(()) }
    }

    /// Notes that a run, or a task of it, has moved.
    pub(super) fn event(
        &mut self,
        run: RunKey,
        task: Option<TaskIx>,
        version: Version,
        step: &'static str,
        status: &'static str,
        told: Told<'_>,
    ) -> Answer<()> {
        let (run, task, data) = (Some(run.0), task.map(|ix| ix.0), told.data.map(Value::to_string));
        let (position, version, actor) =
            (self.next_position()?, version.0, told.actor.map(ToOwned::to_owned));
        self.add_event(Event { position, run, task, definition: None, version, step, status, data, actor })
    }

    /// Notes that a revision has moved.
    pub(super) fn definition_event(
        &mut self,
        key: i64,
        version: i64,
        step: &'static str,
        status: &'static str,
        told: Told<'_>,
    ) -> Answer<()> {
        let (definition, data) = (Some(key), told.data.map(Value::to_string));
        let actor = told.actor.map(ToOwned::to_owned);
        let (position, run, task) = (self.next_position()?, None, None);
        self.add_event(Event { position, run, task, definition, version, step, status, data, actor })
    }

    fn add_event(&mut self, event: Event) -> Answer<()> {
        self.memory.position = Some(event.position);
        if !self.memory.wanted.by.is_empty() {
            outbox::keep(self, &event)?;
        }
        self.events.push(event);
        if self.events.len() == EVENTS_MAX { self.write_events() } else { Ok(()) }
    }

    fn write_events(&mut self) -> Answer<()> {
        events::write(self.conn, self.now, &std::mem::take(&mut self.events))
    }

    /// The position the next event will have. A task that becomes ready by that event takes it for its place in
    /// the ready order: behind everything that was ready before.
    pub(super) fn next_position(&mut self) -> Answer<i64> {
        let last = match self.memory.position {
            Some(last) => last,
            None => self
                .conn
                .prepare_cached("SELECT coalesce(max(position), 0) FROM events")?
                .query_row([], |row| row.get(0))?,
        };
        self.memory.position = Some(last);
        Ok(last + 1)
    }

    /// The row of `run`. Whoever asks for it means to change it; an extra write of equal values does no harm.
    pub(super) fn run(&mut self, key: RunKey) -> Answer<&mut RunRow> {
        if !self.touched.contains(&key) {
            self.changes(key)?;
            self.touched.push(key);
        }
        self.memory.runs.get_mut(key).ok_or_else(|| no_run(key))
    }

    /// Says that what is told of a run changes.
    pub(super) fn changes(&mut self, key: RunKey) -> Answer<()> {
        self.load(key)?;
        let Memory { runs, changed, definitions, .. } = &mut *self.memory;
        if let Some(row) = runs.get(key) {
            let definition = row.definition();
            changed.dag(definition.dag.dag_id.as_str());
            // What its runs use is not what makes room.
            definitions.get(definition.key);
        }
        Ok(())
    }

    /// The row of `run`, to look at.
    pub(super) fn peek(&mut self, key: RunKey) -> Answer<&RunRow> {
        self.load(key)?;
        self.memory.runs.get(key).ok_or_else(|| no_run(key))
    }

    fn load(&mut self, key: RunKey) -> Answer<()> {
        if self.memory.runs.contains(key) {
            return Ok(());
        }
        if self.memory.runs.is_full() {
            self.memory.runs.retain(|run, _| self.touched.contains(&run));
        }
        let row = self.load_run(key)?;
        self.memory.runs.insert(key, row);
        Ok(())
    }

    /// Moves a run by `step`, with its event.
    pub(super) fn move_run(&mut self, key: RunKey, step: RunMove, told: Told<'_>) -> Answer<RunStatus> {
        let now = self.now;
        let row = self.run(key)?;
        let to = row.status.after(step).map_err(Refusal::from)?;
        row.status = to;
        row.version.0 += 1;
        // What is on its way to its end waits for nobody.
        row.paused &= !row.is_stopping();
        if to.is_terminal() {
            row.completed_at = Some(now);
            row.window = 0;
        }
        let (version, reference) = (row.version, row.reference());
        let counts_for = row.counts_for.take_if(|_| to.is_terminal());
        if let Some(identity) = counts_for {
            self.memory.usage.remove_run(&identity);
        }
        self.event(key, None, version, step.word(), to.word(), told)?;
        if to.is_terminal() {
            self.ended.push(reference);
        }
        Ok(to)
    }

    /// Writes what is not written yet, and keeps the rows of runs that go on.
    pub(super) fn finish(&mut self) -> Answer<()> {
        tasks::fill_windows(self)?;
        tasks::write_fresh(self)?;
        self.write_events()?;
        for key in std::mem::take(&mut self.touched) {
            let Some(mut row) = self.memory.runs.remove(&key) else { continue };
            let changed =
                if row.version == row.loaded { self.write_counts(&row)? } else { self.write_run(&row)? };
            if changed != 1 {
                return Err(no_run(key));
            }
            row.loaded = row.version;
            let Memory { runs, definitions, .. } = &mut *self.memory;
            if !row.status.is_terminal() && !runs.is_full() && definitions.contains(row.definition().key) {
                runs.insert(key, row);
            }
        }
        Ok(())
    }

    /// Most operations only count tasks. Leaving out the columns that indexes look at saves a page write each.
    fn write_counts(&self, row: &RunRow) -> Answer<usize> {
        let mut statement = self.conn.prepare_cached(
            "UPDATE dag_runs SET tasks_left = ?3, completed = ?4, failed = ?5, debts = ?6, cancelled = ?7,
                    skipped = ?8, sinks_completed = ?9, window = ?10, last_position = coalesce(?11, last_position)
             WHERE run_key = ?1 AND version = ?2",
        )?;
        Ok(statement.execute(params![
            row.info.key.0,
            row.version.0,
            row.tasks_left,
            row.completed,
            row.failed,
            row.debts,
            row.cancelled,
            row.skipped,
            row.sinks_completed,
            row.window,
            self.memory.position,
        ])?)
    }

    fn write_run(&self, row: &RunRow) -> Answer<usize> {
        let mut statement = self.conn.prepare_cached(
            "UPDATE dag_runs SET status = ?3, version = ?4, stop_reason = ?5, started_at = ?6,
                    completed_at = ?7, deadline = ?8, paused = ?9
             WHERE run_key = ?1 AND version = ?2",
        )?;
        statement.execute(params![
            row.info.key.0,
            row.loaded.0,
            row.status.word(),
            row.version.0,
            row.stop.map(StopReason::word),
            row.started_at.map(|t| t.0),
            row.completed_at.map(|t| t.0),
            row.deadline.map(|t| t.0),
            row.paused,
        ])?;
        self.write_counts(row)
    }

    fn load_run(&mut self, key: RunKey) -> Answer<RunRow> {
        let conn = self.conn;
        let info = self.run_info(key)?;
        let row = conn
            .prepare_cached(
                // One table by its key: SQLite need not plan, so it never compiles this anew (see `claim::heads`).
                "SELECT run_key, status, version, stop_reason, priority, max_parallel, fates, first_execution,
                        resumed_from, started_at, completed_at, deadline, tasks_left, completed, failed, debts,
                        cancelled, skipped, sinks_completed, window, first_position, paused, counts_for,
                        octet_length(params_json) + coalesce(octet_length(fates), 0)
                 FROM dag_runs WHERE run_key = ?1",
            )?
            .query_row([key.0], |row| {
                Ok(RunRow {
                    scope: info.definition.dag.scope.clone(),
                    info,
                    status: parsed(row, 1, RunStatus::from_word)?,
                    version: Version(row.get(2)?),
                    stop: row.get::<_, Option<String>>(3)?.as_deref().and_then(StopReason::from_word),
                    priority: row.get(4)?,
                    max_parallel: row.get(5)?,
                    fates: row.get::<_, Option<String>>(6)?.map(Into::into),
                    first: ExecutionId(row.get(7)?),
                    resumed_from: row.get::<_, Option<i64>>(8)?.map(RunKey),
                    started_at: row.get::<_, Option<i64>>(9)?.map(Timestamp),
                    completed_at: row.get::<_, Option<i64>>(10)?.map(Timestamp),
                    deadline: row.get::<_, Option<i64>>(11)?.map(Timestamp),
                    tasks_left: row.get(12)?,
                    completed: row.get(13)?,
                    failed: row.get(14)?,
                    debts: row.get(15)?,
                    cancelled: row.get(16)?,
                    skipped: row.get(17)?,
                    sinks_completed: row.get(18)?,
                    window: row.get(19)?,
                    first_position: row.get(20)?,
                    paused: row.get(21)?,
                    counts_for: row.get::<_, Option<String>>(22)?.map(Into::into),
                    given_bytes: row.get(23)?,
                    loaded: Version(row.get(2)?),
                })
            })
            .optional()?;
        row.ok_or_else(|| no_run(key))
    }

    fn run_info(&mut self, key: RunKey) -> Answer<Arc<RunInfo>> {
        let (definition, info_of) = self
            .conn
            .prepare_cached(
                "SELECT definition_key, run_id, number, attached, params_json, at_node, traceparent, max_parallel
                 FROM dag_runs WHERE run_key = ?1",
            )?
            .query_row([key.0], |row| {
                let run_id: RunId = parsed(row, 1, |text| text.parse().ok())?;
                let params: Value = parsed(row, 4, |text| serde_json::from_str(text).ok())?;
                let (number, attached, at_node, traceparent) =
                    (row.get(2)?, row.get(3)?, row.get(5)?, row.get(6)?);
                let max_parallel = row.get(7)?;
                let info_of = move |definition| RunInfo {
                    key,
                    run_id,
                    number,
                    attached,
                    at_node,
                    traceparent,
                    max_parallel,
                    params,
                    definition,
                };
                Ok((row.get::<_, i64>(0)?, info_of))
            })
            .optional()?
            .ok_or_else(|| tombstones::missing(self, key))?;
        let definition = self.definition(definition)?;
        Ok(Arc::new(info_of(definition)))
    }

    /// A definition, parsed once.
    pub(super) fn definition(&mut self, key: i64) -> Answer<Arc<Definition>> {
        if let Some(definition) = self.memory.definitions.get(key) {
            return Ok(definition);
        }
        let (dag_id, scope, revision, text) = self
            .conn
            .prepare_cached(
                "SELECT d.dag_id, d.scope, f.revision, f.tasks_json
                 FROM dag_definitions f JOIN dags d USING (dag_key) WHERE definition_key = ?1",
            )?
            .query_row([key], |row| {
                let dag_id: DagId = parsed(row, 0, |text| text.parse().ok())?;
                let scope: Scope = parsed(row, 1, |text| text.parse().ok())?;
                Ok((dag_id, scope, Revision(row.get(2)?), row.get::<_, String>(3)?))
            })
            .optional()?
            .ok_or_else(|| Refusal::new(ErrorCode::NotFound, format!("no definition {key}")))?;
        let mut dag = stored::from_stored(&text)
            .map_err(|e| StoreError::Database(format!("definition {key} does not read back: {e}")))?;
        (dag.dag_id, dag.scope) = (dag_id, scope);
        let plan = Plan::new(&dag);
        let definition = Arc::new(Definition { key, revision, dag: Arc::new(dag), plan });
        self.remember_definition(definition.clone(), text.len());
        Ok(definition)
    }

    /// Keeps a definition whose stored text has so many bytes. Others may make room for it, and with them their runs, but for
    /// those that are still to be written: what is dropped only costs a parse.
    pub(super) fn remember_definition(&mut self, definition: Arc<Definition>, bytes: usize) {
        let evicted = self.memory.definitions.insert(definition, bytes);
        if !evicted.is_empty() {
            let touched = &self.touched;
            let stays =
                |run, row: &RunRow| touched.contains(&run) || !evicted.contains(&row.definition().key);
            self.memory.runs.retain(stays);
        }
    }

    /// The queue of tasks of `kind` in `scope` that ask for `needs`.
    pub(super) fn queue(&mut self, kind: &str, scope: &str, needs: &[String]) -> Answer<i64> {
        let name = QueueName { kind: kind.to_owned(), scope: scope.to_owned(), needs: needs.join(" ") };
        if let Some(key) = self.queues()?.get(&name) {
            return Ok(*key);
        }
        self.conn
            .prepare_cached("INSERT INTO queues (kind, scope, needs) VALUES (?1, ?2, ?3)")?
            .execute(params![name.kind, name.scope, name.needs])?;
        let key = self.conn.last_insert_rowid();
        self.memory.queues.get_or_insert_default().insert(name, key);
        Ok(key)
    }

    /// Every queue by its name.
    pub(super) fn queues(&mut self) -> Answer<&BTreeMap<QueueName, i64>> {
        if self.memory.queues.is_none() {
            let mut statement =
                self.conn.prepare_cached("SELECT kind, scope, needs, queue_key FROM queues")?;
            let all = statement.query_map([], |row| {
                Ok((QueueName { kind: row.get(0)?, scope: row.get(1)?, needs: row.get(2)? }, row.get(3)?))
            })?;
            self.memory.queues = Some(all.collect::<Result<_, _>>()?);
        }
        Ok(self.memory.queues.get_or_insert_default())
    }
}

pub(super) fn no_run(key: RunKey) -> StoreError {
    Refusal::new(ErrorCode::NotFound, format!("no run with key {key}")).into()
}

/// A text column as what it stands for; a value that stands for nothing is a broken database, said as such.
pub(super) fn parsed<T>(
    row: &Row<'_>,
    column: usize,
    parse: impl FnOnce(&str) -> Option<T>,
) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    parse(text).ok_or_else(|| {
        rusqlite::Error::FromSqlConversionFailure(
            column,
            Type::Text,
            format!("unexpected value `{text}`").into(),
        )
    })
}
