//! What people and views ask: read-only snapshots of the store, safe to take while others write.

use std::path::Path;

use cis_core::access::Publisher;
use cis_core::dag::{Dag, stored};
use cis_core::event::{CREATE, Change, Event};
use cis_core::id::{DagId, ExecutionId, Position, Revision, RunId, RunKey, Scope, TaskIx, Version};
use cis_core::readiness::{self, Dependencies, Verdict};
use cis_core::review::ReviewId;
use cis_core::run::{RunMove, RunStatus, StopReason};
use cis_core::source::Timestamp;
use cis_core::task::{TaskMove, TaskStatus};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::log;
use super::migrate;
use super::tx::parsed;
use crate::port::{Answer, DecisionLine, Fate, RevisionStatus, StoreError};

/// A read-only view of a store's file.
#[derive(Debug)]
pub struct Reader {
    pub(super) conn: Connection,
}

/// A DAG as `list` shows it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DagLine {
    #[serde(skip)]
    pub key: i64,
    pub dag_id: DagId,
    pub scope: Scope,
    /// Its latest run's status, else its latest revision's.
    pub status: String,
    pub revision: Revision,
    pub tasks: u32,
    pub runs: i64,
    /// Who published the latest revision.
    pub published_by: String,
    pub updated_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_run: Option<i64>,
}

/// One content of a DAG.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RevisionLine {
    #[serde(skip)]
    pub key: i64,
    pub revision: Revision,
    pub status: RevisionStatus,
    pub content_hash: String,
    pub tasks: u32,
    pub created_by: String,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// What to decide about it by, while it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_id: Option<ReviewId>,
    /// Who confirmed or rejected it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionLine>,
}

/// A revision that waits for a decision.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PendingLine {
    #[serde(skip)]
    pub key: i64,
    pub dag_id: DagId,
    pub scope: Scope,
    pub revision: Revision,
    pub content_hash: String,
    pub tasks: u32,
    pub published_by: String,
    pub published_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// What to decide about it by.
    pub review_id: ReviewId,
}

/// A run as `runs` and `status` show it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunLine {
    #[serde(skip, default = "no_key")]
    pub key: RunKey,
    pub run_id: RunId,
    pub dag_id: DagId,
    pub scope: Scope,
    pub number: i64,
    pub revision: Revision,
    #[serde(skip)]
    pub definition: i64,
    pub status: RunStatus,
    pub version: Version,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Nothing more of it is claimed: by its own pause, or its scope's.
    pub paused: bool,
    pub params: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    #[serde(skip)]
    pub fates: Option<String>,
    /// Its tasks start in a directory of the run's own at the node, not in its caller's.
    #[serde(default)]
    pub at_node: bool,
    /// The execution of its first task; the others follow in file order.
    pub first_execution: ExecutionId,
    /// Where its events begin.
    pub first_position: Position,
    /// The number of the run that it carries on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<i64>,
    pub created_by: String,
    /// The confirmation that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<DecisionLine>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
    pub total: u32,
    pub left: u32,
    pub completed: u32,
    pub failed: u32,
    pub debts: u32,
    pub cancelled: u32,
    pub skipped: u32,
}

impl RunLine {
    /// What people call it.
    pub fn label(&self) -> String {
        format!("{}#{}", self.dag_id, self.number)
    }

    /// Its parameters, to start another run with.
    pub fn given_params(&self) -> Map<String, Value> {
        self.params.as_object().cloned().unwrap_or_default()
    }

    /// What this run does with a task.
    pub fn fate(&self, ix: TaskIx) -> Fate {
        match self.fates.as_deref().and_then(|fates| fates.as_bytes().get(ix.index())) {
            Some(b'c') => Fate::Carry,
            Some(b'l') => Fate::Leave,
            _ => Fate::Run,
        }
    }

    /// The status a task of this run is created in; its events tell the rest.
    pub fn first_status(&self, dag: &Dag, ix: TaskIx) -> TaskStatus {
        let task = &dag.tasks[ix.index()];
        match self.fate(ix) {
            Fate::Carry => TaskStatus::Completed,
            Fate::Leave => TaskStatus::Skipped,
            Fate::Run if task.more().when.is_some() || task.needs_person() => TaskStatus::Pending,
            Fate::Run => {
                let left = task.depends_on.iter().filter(|before| self.fate(**before) == Fate::Run).count();
                let deps =
                    Dependencies { left: u32::try_from(left).unwrap_or(u32::MAX), ..Dependencies::default() };
                match readiness::verdict(task.run_if, deps) {
                    Verdict::Go => TaskStatus::Ready,
                    Verdict::Wait | Verdict::Skip(_) => TaskStatus::Pending,
                }
            }
        }
    }
}

/// A task as `status` shows it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskLine {
    #[serde(skip, default = "first_task")]
    pub ix: TaskIx,
    pub execution_id: ExecutionId,
    pub task_id: String,
    pub status: TaskStatus,
    pub version: Version,
    pub attempt: u32,
    /// When a person was asked about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Timestamp>,
    /// What to decide about it by, while it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_id: Option<ReviewId>,
    /// Who approved or rejected it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    pub log_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub log_cut_bytes: u64,
}

/// A line that comes from another machine: there is nothing here that a key would lead to.
fn no_key() -> RunKey {
    RunKey(0)
}

/// Whoever reads a task from elsewhere says which it is.
fn first_task() -> TaskIx {
    TaskIx(0)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

// `LIMIT 0 + ?`: SQLite looks into a bare bound limit while it plans, and so compiles the statement anew for
// every value.
pub(super) const DAG_SQL: &str = "
    SELECT d.dag_key, d.dag_id, d.scope,
           coalesce(r.status, (SELECT f.status FROM dag_definitions f WHERE f.dag_key = d.dag_key
                               AND f.revision = d.revisions)) AS shown,
           d.revisions,
           (SELECT f.tasks_count FROM dag_definitions f WHERE f.dag_key = d.dag_key AND f.revision = d.revisions),
           d.runs, d.updated_at, r.number,
           (SELECT f.created_by FROM dag_definitions f WHERE f.dag_key = d.dag_key AND f.revision = d.revisions)
               AS published_by
    FROM dags d LEFT JOIN dag_runs r ON r.run_key = d.latest_run";

pub(super) const RUN_SQL: &str = "
    SELECT r.run_key, r.run_id, d.dag_id, d.scope, r.number, f.revision, r.definition_key, r.status, r.version,
           r.stop_reason, r.params_json, r.max_parallel, r.fates, r.first_execution, r.first_position,
           (SELECT p.number FROM dag_runs p WHERE p.run_key = r.resumed_from
            UNION ALL SELECT p.number FROM pruned_runs p WHERE p.run_key = r.resumed_from), r.created_by, r.created_at, r.started_at, r.completed_at, r.tasks_total, r.tasks_left,
           r.completed, r.failed, r.debts, r.cancelled, r.skipped,
           r.completed_at IS NULL AND (r.paused OR EXISTS (SELECT 1 FROM paused_scopes p WHERE p.scope = d.scope)),
           r.at_node, c.decided_by, c.decided_at, c.note
    FROM dag_runs r JOIN dags d USING (dag_key) JOIN dag_definitions f USING (definition_key)
         LEFT JOIN dag_confirmations c ON c.definition_key = r.definition_key AND c.run_key = r.run_key";

// Decisions are looked for only where a person was asked: most tasks never are.
pub(super) const TASK_SQL: &str = "
    SELECT execution_id, task_id, status, version, attempt, claimed_at, started_at, completed_at, not_before,
           exit_code, cause, output, error, outputs_json, log_bytes, log_cut_bytes, asked_at,
           iif(status = 'waiting', review_id, NULL),
           CASE WHEN asked_at IS NOT NULL THEN (SELECT d.decided_by FROM task_decisions d
                                                WHERE d.execution_id = task_executions.execution_id) END,
           CASE WHEN asked_at IS NOT NULL THEN (SELECT d.decided_at FROM task_decisions d
                                                WHERE d.execution_id = task_executions.execution_id) END,
           CASE WHEN asked_at IS NOT NULL THEN (SELECT d.note FROM task_decisions d
                                                WHERE d.execution_id = task_executions.execution_id) END
    FROM task_executions";

impl Reader {
    /// Opens `file` read-only.
    pub fn open(file: &Path) -> Answer<Self> {
        Ok(Self { conn: migrate::open_read_only(file)? })
    }

    /// DAGs, most recently touched first; at most `limit`.
    pub fn dags(&self, status: Option<&str>, scope: Option<&str>, limit: u32) -> Answer<Vec<DagLine>> {
        let sql = format!(
            "{DAG_SQL} WHERE (?1 IS NULL OR d.scope = ?1) AND (?2 IS NULL OR shown = ?2)
             ORDER BY d.updated_at DESC LIMIT 0 + ?3"
        );
        self.collect(&sql, params![scope, status, limit], dag_line)
    }

    /// The DAGs of this name: one per scope that has it.
    pub fn dag(&self, dag_id: &str, scope: Option<&str>) -> Answer<Vec<DagLine>> {
        let sql = format!("{DAG_SQL} WHERE d.dag_id = ?1 AND (?2 IS NULL OR d.scope = ?2) ORDER BY d.scope");
        self.collect(&sql, params![dag_id, scope], dag_line)
    }

    /// Ids of DAGs, for suggestions.
    pub fn dag_ids(&self, limit: u32) -> Answer<Vec<String>> {
        self.collect("SELECT dag_id FROM dags ORDER BY updated_at DESC LIMIT 0 + ?1", [limit], |row| {
            row.get(0)
        })
    }

    /// The contents a DAG has had, latest first.
    pub fn revisions(&self, dag: i64) -> Answer<Vec<RevisionLine>> {
        self.collect(
            "SELECT definition_key, revision, status, f.content_hash, tasks_count, created_by, created_at, expires_at,
                    iif(status = 'pending', review_id, NULL), c.decided_by, c.decided_at, c.note
             FROM dag_definitions f LEFT JOIN dag_confirmations c USING (definition_key)
             WHERE dag_key = ?1 ORDER BY revision DESC",
            [dag],
            |row| {
                Ok(RevisionLine {
                    key: row.get(0)?,
                    revision: Revision(row.get(1)?),
                    status: parsed(row, 2, RevisionStatus::from_word)?,
                    content_hash: row.get(3)?,
                    tasks: row.get(4)?,
                    created_by: row.get(5)?,
                    created_at: Timestamp(row.get(6)?),
                    expires_at: row.get::<_, Option<i64>>(7)?.map(Timestamp),
                    review_id: review_id(row, 8)?,
                    decision: decision_line(row, 9)?,
                })
            },
        )
    }

    /// Who published a revision.
    pub fn publisher(&self, definition: i64) -> Answer<Publisher> {
        let mut statement = self.conn.prepare_cached(
            "SELECT created_by, publisher_proven FROM dag_definitions WHERE definition_key = ?1",
        )?;
        let read = |row: &Row<'_>| Ok(Publisher { identity: row.get(0)?, proven: row.get(1)? });
        Ok(statement.query_row([definition], read)?)
    }

    /// A definition in full.
    pub fn definition(&self, key: i64) -> Answer<Dag> {
        let (text, dag_id, scope): (String, DagId, Scope) = self
            .conn
            .prepare_cached(
                "SELECT tasks_json, dag_id, scope FROM dag_definitions JOIN dags USING (dag_key)
                 WHERE definition_key = ?1",
            )?
            .query_row([key], |row| {
                Ok((row.get(0)?, parsed(row, 1, |t| t.parse().ok())?, parsed(row, 2, |t| t.parse().ok())?))
            })?;
        let mut dag = stored::from_stored(&text)
            .map_err(|e| StoreError::Database(format!("definition {key} does not read back: {e}")))?;
        (dag.dag_id, dag.scope) = (dag_id, scope);
        Ok(dag)
    }

    /// The runs of a DAG (or of all), latest first.
    pub fn runs(&self, dag: Option<i64>, limit: u32) -> Answer<Vec<RunLine>> {
        let sql = match dag {
            // Numbers count up within a DAG, so its own index answers in order.
            Some(_) => format!("{RUN_SQL} WHERE r.dag_key = ?1 ORDER BY r.number DESC LIMIT 0 + ?2"),
            None => format!("{RUN_SQL} WHERE ?1 IS NULL ORDER BY r.run_key DESC LIMIT 0 + ?2"),
        };
        self.collect(&sql, params![dag, limit], run_line)
    }

    /// Runs that are not over, oldest first.
    pub fn unfinished(&self) -> Answer<Vec<RunLine>> {
        self.collect(&format!("{RUN_SQL} WHERE r.completed_at IS NULL ORDER BY r.run_key"), [], run_line)
    }

    /// One run.
    pub fn run(&self, key: RunKey) -> Answer<Option<RunLine>> {
        self.one(&format!("{RUN_SQL} WHERE r.run_key = ?1"), [key.0], run_line)
    }

    /// One run by the id machines use.
    pub fn run_by_id(&self, run_id: RunId) -> Answer<Option<RunLine>> {
        self.one(&format!("{RUN_SQL} WHERE r.run_id = ?1"), [run_id.to_string()], run_line)
    }

    /// One run by the number people use.
    pub fn run_by_number(&self, dag: i64, number: i64) -> Answer<Option<RunLine>> {
        self.one(&format!("{RUN_SQL} WHERE r.dag_key = ?1 AND r.number = ?2"), [dag, number], run_line)
    }

    /// Tasks of a run in file order: those in one of `statuses` (all, if it is empty), at most `limit`.
    pub fn tasks(&self, run: &RunLine, statuses: &[TaskStatus], limit: u32) -> Answer<Vec<TaskLine>> {
        let words: Vec<&str> = statuses.iter().map(|status| status.word()).collect();
        let list = vec!["?"; words.len()].join(", ");
        let filter = if words.is_empty() { String::new() } else { format!("AND status IN ({list})") };
        let (first, last) = (run.first_execution.0, run.first_execution.0 + i64::from(run.total) - 1);
        let sql = format!(
            "{TASK_SQL} WHERE execution_id BETWEEN {first} AND {last} {filter} ORDER BY execution_id LIMIT {limit}"
        );
        self.collect(&sql, params_from_iter(words), |row| task_line(row, run.first_execution))
    }

    /// How each task of a run stands, in file order; one whose row is not written yet is pending.
    pub fn statuses(&self, run: &RunLine) -> Answer<Vec<TaskStatus>> {
        let mut statuses = vec![TaskStatus::Pending; run.total as usize];
        for task in self.tasks(run, &[], u32::MAX)? {
            statuses[task.ix.index()] = task.status;
        }
        Ok(statuses)
    }

    /// Tasks of a run that somebody works on, longest first.
    pub fn live(&self, run: &RunLine, limit: u32) -> Answer<Vec<TaskLine>> {
        let sql = format!(
            "{TASK_SQL} INDEXED BY tasks_live WHERE run_key = ?1 AND status IN ('running', 'cancelling')
             ORDER BY coalesce(started_at, 9e15), execution_id LIMIT 0 + ?2"
        );
        self.collect(&sql, params![run.key.0, limit], |row| task_line(row, run.first_execution))
    }

    /// One task of a run.
    pub fn task(&self, run: &RunLine, ix: TaskIx) -> Answer<Option<TaskLine>> {
        let execution = run.first_execution.0 + i64::from(ix.0);
        self.one(&format!("{TASK_SQL} WHERE execution_id = ?1"), [execution], |row| {
            task_line(row, run.first_execution)
        })
    }

    /// Events of a run after `after`, in order, at most `limit`; and how far the log was read.
    pub fn events(&self, run: &RunLine, after: Position, limit: u32) -> Answer<(Vec<Event>, Position)> {
        let from = after.0.max(run.first_position.0 - 1);
        let mut statement = self.conn.prepare_cached(
            "SELECT position, run_key, task_ix, version, step, status, at, data FROM events
             WHERE position > ?1 ORDER BY position LIMIT 0 + ?2",
        )?;
        let mut rows = statement.query(params![from, limit])?;
        let (mut events, mut read_to) = (Vec::new(), from);
        while let Some(row) = rows.next()? {
            read_to = row.get(0)?;
            if row.get::<_, Option<i64>>(1)? == Some(run.key.0) {
                events.push(event(row)?);
            }
        }
        Ok((events, Position(read_to)))
    }

    pub(super) fn collect<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Vec<T>> {
        Ok(self.conn.prepare_cached(sql)?.query_map(params, read)?.collect::<Result<_, _>>()?)
    }

    pub(super) fn one<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Option<T>> {
        Ok(self.conn.prepare_cached(sql)?.query_row(params, read).optional()?)
    }
}

pub(super) fn dag_line(row: &Row<'_>) -> rusqlite::Result<DagLine> {
    Ok(DagLine {
        key: row.get(0)?,
        dag_id: parsed(row, 1, |t| t.parse().ok())?,
        scope: parsed(row, 2, |t| t.parse().ok())?,
        status: row.get(3)?,
        revision: Revision(row.get(4)?),
        tasks: row.get(5)?,
        runs: row.get(6)?,
        updated_at: Timestamp(row.get(7)?),
        latest_run: row.get(8)?,
        published_by: row.get(9)?,
    })
}

pub(super) fn run_line(row: &Row<'_>) -> rusqlite::Result<RunLine> {
    let time = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(Timestamp));
    Ok(RunLine {
        key: RunKey(row.get(0)?),
        run_id: parsed(row, 1, |t| t.parse().ok())?,
        dag_id: parsed(row, 2, |t| t.parse().ok())?,
        scope: parsed(row, 3, |t| t.parse().ok())?,
        number: row.get(4)?,
        revision: Revision(row.get(5)?),
        definition: row.get(6)?,
        status: parsed(row, 7, RunStatus::from_word)?,
        version: Version(row.get(8)?),
        stop_reason: row.get::<_, Option<String>>(9)?.as_deref().and_then(StopReason::from_word),
        params: parsed(row, 10, |t| serde_json::from_str(t).ok())?,
        max_parallel: row.get(11)?,
        fates: row.get(12)?,
        first_execution: ExecutionId(row.get(13)?),
        first_position: Position(row.get(14)?),
        resumed_from: row.get(15)?,
        created_by: row.get(16)?,
        created_at: Timestamp(row.get(17)?),
        started_at: time(18)?,
        completed_at: time(19)?,
        total: row.get(20)?,
        left: row.get(21)?,
        completed: row.get(22)?,
        failed: row.get(23)?,
        debts: row.get(24)?,
        cancelled: row.get(25)?,
        skipped: row.get(26)?,
        paused: row.get(27)?,
        at_node: row.get(28)?,
        confirmation: decision_line(row, 29)?,
    })
}

pub(super) fn task_line(row: &Row<'_>, first: ExecutionId) -> rusqlite::Result<TaskLine> {
    let time = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(Timestamp));
    let execution: i64 = row.get(0)?;
    Ok(TaskLine {
        ix: TaskIx(u32::try_from(execution - first.0).unwrap_or(u32::MAX)),
        execution_id: ExecutionId(execution),
        task_id: row.get(1)?,
        status: parsed(row, 2, TaskStatus::from_word)?,
        version: Version(row.get(3)?),
        attempt: row.get(4)?,
        claimed_at: time(5)?,
        started_at: time(6)?,
        completed_at: time(7)?,
        not_before: time(8)?,
        exit_code: row.get(9)?,
        cause: row.get(10)?,
        output: row.get(11)?,
        error: row.get(12)?,
        outputs: row.get::<_, Option<String>>(13)?.and_then(|text| serde_json::from_str(&text).ok()),
        log_bytes: row.get(14)?,
        log_cut_bytes: row.get(15)?,
        asked_at: time(16)?,
        review_id: review_id(row, 17)?,
        decision: decision_line(row, 18)?,
    })
}

fn review_id(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<ReviewId>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => parsed(row, column, |text| text.parse().ok()).map(Some),
    }
}

/// Who decided, when and with what note, in three columns from `first` on; nothing where it is undecided.
fn decision_line(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<DecisionLine>> {
    let decided_by: Option<String> = row.get(first)?;
    let Some(decided_by) = decided_by else { return Ok(None) };
    let (decided_at, note) = (Timestamp(row.get(first + 1)?), row.get(first + 2)?);
    Ok(Some(DecisionLine { decided_by, decided_at, note }))
}

pub(super) fn event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let change = match row.get::<_, Option<u32>>(2)? {
        Some(ix) => Change::Task {
            task: TaskIx(ix),
            by: parsed(row, 4, TaskMove::from_word)?,
            to: parsed(row, 5, TaskStatus::from_word)?,
        },
        None if row.get_ref(4)?.as_str()? == CREATE => Change::RunCreated,
        None => {
            Change::Run { by: parsed(row, 4, RunMove::from_word)?, to: parsed(row, 5, RunStatus::from_word)? }
        }
    };
    Ok(Event {
        position: Position(row.get(0)?),
        run: RunKey(row.get(1)?),
        version: Version(row.get(3)?),
        at: Timestamp(row.get(6)?),
        change,
        data: log::told_data(row.get(7)?),
    })
}
