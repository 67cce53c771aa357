//! Long lists, a page at a time, by keys that only grow: what is added or changed meanwhile is neither missed nor told
//! twice. Each answers with the rows of a page and whether there are more: a page is at most so many rows, and ends early where
//! they are large.

use cis_api::review::PendingRevision;
use cis_core::id::{Revision, Scope, TaskIx};
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use rusqlite::{Row, params};

use super::reader::{DAG_SQL, RUN_SQL, Reader, dag_row, run_row};
use super::task_rows::{TASK_SQL, task_row};
use super::tx::parsed;
use crate::port::Answer;
use crate::rows::{DagRow, PendingRow, RunRow, TaskRow};

/// Which DAGs are wanted; nothing said means all.
#[derive(Debug, Clone, Default)]
pub struct DagFilter {
    pub status: Option<String>,
    pub scopes: Option<Vec<Scope>>,
    /// Who published the latest revision.
    pub owner: Option<String>,
    /// Exactly this name.
    pub dag_id: Option<String>,
    /// Part of the name.
    pub name_part: Option<String>,
}

impl Reader {
    /// DAGs, the newest first, older than `before`.
    pub fn dag_page(
        &self,
        filter: &DagFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Answer<(Vec<DagRow>, bool)> {
        self.filtered(filter, before, "d.dag_key", limit)
    }

    /// DAGs, most recently touched first.
    pub fn dags_touched(&self, filter: &DagFilter, limit: u32) -> Answer<(Vec<DagRow>, bool)> {
        self.filtered(filter, None, "d.updated_at", limit)
    }

    fn filtered(
        &self,
        filter: &DagFilter,
        before: Option<i64>,
        order: &'static str,
        limit: u32,
    ) -> Answer<(Vec<DagRow>, bool)> {
        let sql = format!(
            "{DAG_SQL} WHERE d.dag_key < ?1 AND (?2 IS NULL OR d.scope IN (SELECT value FROM json_each(?2)))
                 AND (?3 IS NULL OR shown = ?3) AND (?4 IS NULL OR published_by = ?4)
                 AND (?5 IS NULL OR instr(lower(d.dag_id), lower(?5)) > 0) AND (?6 IS NULL OR d.dag_id = ?6)
             ORDER BY {order} DESC LIMIT 0 + ?7"
        );
        let DagFilter { status, scopes, owner, dag_id, name_part } = filter;
        let (before, scopes) = (before.unwrap_or(i64::MAX), list(scopes.as_deref()));
        let params = params![before, scopes, status, owner, name_part, dag_id, limit.saturating_add(1)];
        self.collect_page(&sql, params, limit, dag_row)
    }

    /// Revisions that wait for a decision, the longest waiting first, later than `after`.
    pub fn pending(
        &self,
        scopes: Option<&[Scope]>,
        after: Option<i64>,
        limit: u32,
    ) -> Answer<(Vec<PendingRow>, bool)> {
        self.collect_page(
            "SELECT f.definition_key, d.dag_id, d.scope, f.revision, f.content_hash, f.tasks_count, f.created_by,
                    f.created_at, f.expires_at, f.review_id
             FROM dag_definitions f INDEXED BY definitions_pending JOIN dags d USING (dag_key)
             WHERE f.status = 'pending' AND f.definition_key > ?1
                 AND (?2 IS NULL OR d.scope IN (SELECT value FROM json_each(?2)))
             ORDER BY f.definition_key LIMIT 0 + ?3",
            params![after.unwrap_or(0), list(scopes), limit.saturating_add(1)],
            limit,
            pending_row,
        )
    }

    /// The runs of a DAG, latest first, with numbers below `before`.
    pub fn run_page(&self, dag: i64, before: Option<i64>, limit: u32) -> Answer<(Vec<RunRow>, bool)> {
        let sql =
            format!("{RUN_SQL} WHERE r.dag_key = ?1 AND r.number < ?2 ORDER BY r.number DESC LIMIT 0 + ?3");
        let params = params![dag, before.unwrap_or(i64::MAX), limit.saturating_add(1)];
        self.collect_page(&sql, params, limit, run_row)
    }

    /// All runs, latest first, older than `before`.
    pub fn all_runs_page(
        &self,
        scopes: Option<&[Scope]>,
        before: Option<i64>,
        limit: u32,
    ) -> Answer<(Vec<RunRow>, bool)> {
        let sql = format!(
            "{RUN_SQL} WHERE r.run_key < ?1 AND (?2 IS NULL OR d.scope IN (SELECT value FROM json_each(?2)))
             ORDER BY r.run_key DESC LIMIT 0 + ?3"
        );
        let params = params![before.unwrap_or(i64::MAX), list(scopes), limit.saturating_add(1)];
        self.collect_page(&sql, params, limit, run_row)
    }

    /// Tasks of a run in file order, after `after`; only those with `status`, if one is named.
    pub fn task_page(
        &self,
        run: &RunRow,
        status: Option<TaskStatus>,
        after: Option<TaskIx>,
        limit: u32,
    ) -> Answer<(Vec<TaskRow>, bool)> {
        let sql = format!(
            "{TASK_SQL} WHERE execution_id BETWEEN ?1 AND ?2 AND (?3 IS NULL OR status = ?3)
             ORDER BY execution_id LIMIT 0 + ?4"
        );
        let from = after.map_or(0, |after| i64::from(after.0) + 1);
        let (first, last) = (run.first_execution.0, run.first_execution.0 + i64::from(run.total) - 1);
        let word = status.map(TaskStatus::word);
        let params = params![first + from, last, word, limit.saturating_add(1)];
        self.collect_page(&sql, params, limit, |row| task_row(row, run))
    }
}

/// Scopes as SQL takes a list; `None` means any.
fn list(scopes: Option<&[Scope]>) -> Option<String> {
    scopes.map(|scopes| serde_json::json!(scopes).to_string())
}

pub(super) fn pending_row(row: &Row<'_>) -> rusqlite::Result<PendingRow> {
    let shown = PendingRevision {
        dag_id: parsed(row, 1, |t| t.parse().ok())?,
        scope: parsed(row, 2, |t| t.parse().ok())?,
        revision: Revision(row.get(3)?),
        content_hash: row.get(4)?,
        tasks: row.get(5)?,
        published_by: row.get(6)?,
        published_at: Timestamp(row.get(7)?),
        expires_at: row.get::<_, Option<i64>>(8)?.map(Timestamp),
        review_id: parsed(row, 9, |t| t.parse().ok())?,
    };
    Ok(PendingRow { key: row.get(0)?, shown })
}
