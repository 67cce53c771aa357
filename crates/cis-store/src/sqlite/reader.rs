//! What people and views ask: read-only snapshots of the store, safe to take while others write.

use std::ops::RangeInclusive;
use std::path::Path;

use cis_api::dag::{DagSummary, Decision, RevisionSummary};
use cis_api::run::RunSummary;
use cis_core::access::Publisher;
use cis_core::dag::{Dag, stored};
use cis_core::event::{CREATE, Change, Event};
use cis_core::id::{DagId, ExecutionId, Position, Revision, RunId, RunKey, Scope, TaskIx, Version};
use cis_core::review::ReviewId;
use cis_core::run::{RunMove, RunStatus, StopReason};
use cis_core::source::Timestamp;
use cis_core::task::{TaskMove, TaskStatus};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::log::{Detail, detail};
use super::migrate;
use super::task_rows::{TASK_SQL, WHOLE_TASK_SQL, task_row, whole_task_row};
use super::tx::parsed;
use crate::port::{Answer, RevisionStatus, StoreError};
use crate::rows::{DagRow, RevisionRow, RunRow, TaskRow};

/// A read-only view of a store's file.
#[derive(Debug)]
pub struct Reader {
    pub(super) conn: Connection,
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

/// How much text a page of a list holds before it ends early.
pub(super) const PAGE_BYTES_MAX: usize = 1 << 20;

impl Reader {
    /// Opens `file` read-only.
    pub fn open(file: &Path) -> Answer<Self> {
        Ok(Self { conn: migrate::open_read_only(file)? })
    }

    /// Could a file not be opened because it is of an earlier version?
    pub fn is_outdated(e: &StoreError) -> bool {
        matches!(e, StoreError::Outdated(_))
    }

    /// DAGs, most recently touched first; at most `limit`.
    pub fn dags(&self, status: Option<&str>, scope: Option<&str>, limit: u32) -> Answer<Vec<DagRow>> {
        let sql = format!(
            "{DAG_SQL} WHERE (?1 IS NULL OR d.scope = ?1) AND (?2 IS NULL OR shown = ?2)
             ORDER BY d.updated_at DESC LIMIT 0 + ?3"
        );
        self.collect(&sql, params![scope, status, limit], dag_row)
    }

    /// The DAGs of this name: one per scope that has it.
    pub fn dag(&self, dag_id: &str, scope: Option<&str>) -> Answer<Vec<DagRow>> {
        let sql = format!("{DAG_SQL} WHERE d.dag_id = ?1 AND (?2 IS NULL OR d.scope = ?2) ORDER BY d.scope");
        self.collect(&sql, params![dag_id, scope], dag_row)
    }

    /// Ids of DAGs, for suggestions.
    pub fn dag_ids(&self, limit: u32) -> Answer<Vec<String>> {
        self.collect("SELECT dag_id FROM dags ORDER BY updated_at DESC LIMIT 0 + ?1", [limit], |row| {
            row.get(0)
        })
    }

    /// The contents a DAG has had, latest first.
    pub fn revisions(&self, dag: i64) -> Answer<Vec<RevisionRow>> {
        self.collect(
            "SELECT definition_key, revision, status, f.content_hash, tasks_count, created_by, created_at, expires_at,
                    iif(status = 'pending', review_id, NULL), c.decided_by, c.decided_at, c.note, removed_at
             FROM dag_definitions f LEFT JOIN dag_confirmations c USING (definition_key)
             WHERE dag_key = ?1 ORDER BY revision DESC",
            [dag],
            |row| {
                let shown = RevisionSummary {
                    revision: Revision(row.get(1)?),
                    status: parsed(row, 2, RevisionStatus::from_word)?,
                    content_hash: row.get(3)?,
                    tasks: row.get(4)?,
                    created_by: row.get(5)?,
                    created_at: Timestamp(row.get(6)?),
                    expires_at: row.get::<_, Option<i64>>(7)?.map(Timestamp),
                    review_id: review_id(row, 8)?,
                    decision: decision_line(row, 9)?,
                    removed_at: row.get::<_, Option<i64>>(12)?.map(Timestamp),
                };
                Ok(RevisionRow { key: row.get(0)?, shown })
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
        self.check_kept(key)?;
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
    pub fn runs(&self, dag: Option<i64>, limit: u32) -> Answer<Vec<RunRow>> {
        let sql = match dag {
            // Numbers count up within a DAG, so its own index answers in order.
            Some(_) => format!("{RUN_SQL} WHERE r.dag_key = ?1 ORDER BY r.number DESC LIMIT 0 + ?2"),
            None => format!("{RUN_SQL} WHERE ?1 IS NULL ORDER BY r.run_key DESC LIMIT 0 + ?2"),
        };
        self.collect(&sql, params![dag, limit], run_row)
    }

    /// Runs that are not over, oldest first.
    pub fn unfinished(&self) -> Answer<Vec<RunRow>> {
        self.collect(&format!("{RUN_SQL} WHERE r.completed_at IS NULL ORDER BY r.run_key"), [], run_row)
    }

    /// One run.
    pub fn run(&self, key: RunKey) -> Answer<Option<RunRow>> {
        self.one(&format!("{RUN_SQL} WHERE r.run_key = ?1"), [key.0], run_row)
    }

    /// One run by the id machines use.
    pub fn run_by_id(&self, run_id: RunId) -> Answer<Option<RunRow>> {
        self.one(&format!("{RUN_SQL} WHERE r.run_id = ?1"), [run_id.to_string()], run_row)
    }

    /// One run by the number people use.
    pub fn run_by_number(&self, dag: i64, number: i64) -> Answer<Option<RunRow>> {
        self.one(&format!("{RUN_SQL} WHERE r.dag_key = ?1 AND r.number = ?2"), [dag, number], run_row)
    }

    /// The latest run of exactly this definition that is over.
    pub fn latest_ended_run(&self, definition: i64) -> Answer<Option<RunRow>> {
        let sql = format!(
            "{RUN_SQL} WHERE r.dag_key = (SELECT dag_key FROM dag_definitions WHERE definition_key = ?1)
                 AND r.definition_key = ?1 AND r.completed_at IS NOT NULL ORDER BY r.number DESC LIMIT 1"
        );
        self.one(&sql, [definition], run_row)
    }

    /// Tasks of a run in file order: those in one of `statuses` (all, if it is empty), at most `limit`.
    /// Values over 4 KiB are left out, causes over 1 KiB cut.
    pub fn tasks(&self, run: &RunRow, statuses: &[TaskStatus], limit: u32) -> Answer<Vec<TaskRow>> {
        let words: Vec<&str> = statuses.iter().map(|status| status.word()).collect();
        let list = vec!["?"; words.len()].join(", ");
        let filter = if words.is_empty() { String::new() } else { format!("AND status IN ({list})") };
        let (first, last) = (run.first_execution.0, run.first_execution.0 + i64::from(run.total) - 1);
        let sql = format!(
            "{TASK_SQL} WHERE execution_id BETWEEN {first} AND {last} {filter} ORDER BY execution_id LIMIT {limit}"
        );
        self.collect(&sql, params_from_iter(words), |row| task_row(row, run))
    }

    /// How each task of a run stands, in file order; one whose row is not written yet is pending.
    pub fn statuses(&self, run: &RunRow) -> Answer<Vec<TaskStatus>> {
        let mut statuses = vec![TaskStatus::Pending; run.total as usize];
        for task in self.tasks(run, &[], u32::MAX)? {
            statuses[task.key.index()] = task.status;
        }
        Ok(statuses)
    }

    /// Tasks of a run that somebody works on, longest first.
    pub fn live(&self, run: &RunRow, limit: u32) -> Answer<Vec<TaskRow>> {
        let sql = format!(
            "{TASK_SQL} INDEXED BY tasks_live WHERE run_key = ?1 AND status IN ('running', 'cancelling')
             ORDER BY coalesce(started_at, 9e15), execution_id LIMIT 0 + ?2"
        );
        self.collect(&sql, params![run.key.0, limit], |row| task_row(row, run))
    }

    /// One task of a run, whole.
    pub fn task(&self, run: &RunRow, ix: TaskIx) -> Answer<Option<TaskRow>> {
        let execution = run.first_execution.0 + i64::from(ix.0);
        let sql = format!("{WHOLE_TASK_SQL} WHERE execution_id = ?1");
        self.one(&sql, [execution], |row| whole_task_row(row, run))
    }

    /// Events of a run after `after`, in order, at most `limit`; and how far the log was read.
    pub fn events(&self, run: &RunRow, after: Position, limit: u32) -> Answer<(Vec<Event>, Position)> {
        let from = after.0.max(run.first_position.0 - 1);
        let mut statement = self.conn.prepare_cached(
            "SELECT position, run_key, task_ix, version, step, status, at, data, actor FROM events
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

    /// Rows of one page: at most `limit`, and no more once they have [`PAGE_BYTES_MAX`]; and whether there are more. `params`
    /// ask for one row more than `limit`.
    pub(super) fn collect_page<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        limit: u32,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<(Vec<T>, bool)> {
        let mut statement = self.conn.prepare_cached(sql)?;
        let columns = statement.column_count();
        let mut rows = statement.query(params)?;
        let (mut page, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            if page.len() >= limit as usize || bytes >= PAGE_BYTES_MAX {
                return Ok((page, true));
            }
            bytes += row_bytes(row, 0..=columns - 1)?;
            page.push(read(row)?);
        }
        Ok((page, false))
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

pub(super) fn dag_row(row: &Row<'_>) -> rusqlite::Result<DagRow> {
    let shown = DagSummary {
        dag_id: parsed(row, 1, |t| t.parse().ok())?,
        scope: parsed(row, 2, |t| t.parse().ok())?,
        status: row.get(3)?,
        revision: Revision(row.get(4)?),
        tasks: row.get(5)?,
        runs: row.get(6)?,
        updated_at: Timestamp(row.get(7)?),
        latest_run: row.get(8)?,
        published_by: row.get(9)?,
    };
    Ok(DagRow { key: row.get(0)?, shown })
}

pub(super) fn run_row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    let time = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(Timestamp));
    let shown = RunSummary {
        run_id: parsed(row, 1, |t| t.parse().ok())?,
        dag_id: parsed(row, 2, |t| t.parse().ok())?,
        scope: parsed(row, 3, |t| t.parse().ok())?,
        number: row.get(4)?,
        revision: Revision(row.get(5)?),
        status: parsed(row, 7, RunStatus::from_word)?,
        version: Version(row.get(8)?),
        stop_reason: row.get::<_, Option<String>>(9)?.as_deref().and_then(StopReason::from_word),
        params: parsed(row, 10, |t| serde_json::from_str(t).ok())?,
        max_parallel: row.get(11)?,
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
    };
    Ok(RunRow { key: RunKey(row.get(0)?), definition: row.get(6)?, fates: row.get(12)?, shown })
}

/// How much text a row has in these columns.
pub(super) fn row_bytes(row: &Row<'_>, columns: RangeInclusive<usize>) -> rusqlite::Result<usize> {
    columns.map(|column| text_bytes(row, column)).sum()
}

pub(super) fn text_bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<usize> {
    Ok(match row.get_ref(column)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len(),
        _ => 0,
    })
}

pub(super) fn review_id(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<ReviewId>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => parsed(row, column, |text| text.parse().ok()).map(Some),
    }
}

/// Who decided, when and with what note, in three columns from `first` on; nothing where it is undecided.
pub(super) fn decision_line(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<Decision>> {
    let decided_by: Option<String> = row.get(first)?;
    let Some(decided_by) = decided_by else { return Ok(None) };
    let (decided_at, note) = (Timestamp(row.get(first + 1)?), row.get(first + 2)?);
    Ok(Some(Decision { decided_by, decided_at, note }))
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
    let Detail { actor, holder, fence, data } = detail(row, 7, change.name())?;
    Ok(Event {
        position: Position(row.get(0)?),
        run: RunKey(row.get(1)?),
        version: Version(row.get(3)?),
        at: Timestamp(row.get(6)?),
        change,
        actor,
        holder,
        fence,
        data,
    })
}
