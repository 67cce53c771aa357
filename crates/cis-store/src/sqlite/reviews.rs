//! Review ids: one for every revision that waits to be confirmed and every task that waits for a person, given in the
//! transaction that opens it; and what each of them is about.

use cis_api::review::{RevisionReview, TaskReview};
use cis_core::id::{ExecutionId, Revision};
use cis_core::review::{Opening, ReviewId, ReviewKind, ReviewSecret};
use cis_core::source::Timestamp;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::lists::pending_row;
use super::reader::Reader;
use super::tx::{Tx, parsed};
use crate::port::{Answer, RevisionStatus, StoreError};
use crate::rows::ReviewRow;

/// The name of the secret among the store's.
const SECRET: &str = "reviews";

/// Ids that may be taken before something else is wrong: even one is so with a probability of one in billions.
const TURNS_MAX: u32 = 16;

/// Draws the secret of a store that has none yet, and gives ids to what waited before there were any.
pub(super) fn begin(conn: &mut Connection) -> Answer<()> {
    if secret(conn)?.is_some() {
        return Ok(());
    }
    let drawn = draw_secret()?;
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO secrets VALUES (?1, ?2)", params![SECRET, drawn.0])?;
    open_waiting(&tx, &drawn)?;
    Ok(tx.commit()?)
}

/// From the source that fails rather than to answer with anything that could be guessed.
#[allow(
    clippy::disallowed_methods,
    reason = "drawn once in the life of a store, before anything happens in it"
)]
fn draw_secret() -> Answer<ReviewSecret> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|e| StoreError::Database(format!("the system has no random numbers: {e}")))?;
    Ok(ReviewSecret(bytes))
}

fn secret(conn: &Connection) -> Answer<Option<ReviewSecret>> {
    let mut statement = conn.prepare_cached("SELECT value FROM secrets WHERE name = ?1")?;
    Ok(statement.query_row([SECRET], |row| row.get(0).map(ReviewSecret)).optional()?)
}

fn open_waiting(conn: &Connection, secret: &ReviewSecret) -> Answer<()> {
    let mut revisions = conn.prepare(
        "SELECT definition_key, dag_key, revision, content_hash, created_at FROM dag_definitions
         WHERE status = 'pending' AND review_id IS NULL",
    )?;
    let mut rows = revisions.query([])?;
    while let Some(row) = rows.next()? {
        let content_hash: String = row.get(3)?;
        let (dag, revision, opened_at) = (row.get(1)?, Revision(row.get(2)?), Timestamp(row.get(4)?));
        let opening = Opening::Revision { dag, revision, content_hash: &content_hash, opened_at };
        let id = free_id(conn, secret, &opening)?;
        let sql = "UPDATE dag_definitions SET review_id = ?2 WHERE definition_key = ?1";
        conn.prepare_cached(sql)?.execute(params![row.get::<_, i64>(0)?, id.to_string()])?;
    }
    let mut tasks = conn.prepare(
        "SELECT t.execution_id, r.definition_key, r.run_id, t.asked_at FROM task_executions t JOIN dag_runs r USING (run_key)
         WHERE t.status = 'waiting' AND t.review_id IS NULL",
    )?;
    let mut rows = tasks.query([])?;
    while let Some(row) = rows.next()? {
        let (execution, run) = (ExecutionId(row.get(0)?), parsed(row, 2, |text| text.parse().ok())?);
        let opening =
            Opening::Task { definition: row.get(1)?, run, execution, opened_at: Timestamp(row.get(3)?) };
        let id = free_id(conn, secret, &opening)?;
        let sql = "UPDATE task_executions SET review_id = ?2 WHERE execution_id = ?1";
        conn.prepare_cached(sql)?.execute(params![execution.0, id.to_string()])?;
    }
    Ok(())
}

/// The id of what is being opened.
pub(super) fn open(tx: &mut Tx<'_>, opening: &Opening<'_>) -> Answer<ReviewId> {
    if tx.memory.review_secret.is_none() {
        tx.memory.review_secret = secret(tx.conn)?;
    }
    match &tx.memory.review_secret {
        Some(secret) => free_id(tx.conn, secret, opening),
        None => Err(StoreError::Damaged("the secret of its review ids is gone".into())),
    }
}

/// The first id for `opening` that nothing else has.
fn free_id(conn: &Connection, secret: &ReviewSecret, opening: &Opening<'_>) -> Answer<ReviewId> {
    for turn in 0..TURNS_MAX {
        let id = ReviewId::derive(secret, opening, turn);
        let mut taken = conn.prepare_cached(match id.kind() {
            ReviewKind::Revision => "SELECT 1 FROM dag_definitions WHERE review_id = ?1",
            ReviewKind::Task => "SELECT 1 FROM task_executions WHERE review_id = ?1",
        })?;
        if !taken.exists([id.to_string()])? {
            return Ok(id);
        }
    }
    Err(StoreError::Damaged(format!("{TURNS_MAX} review ids in a row are taken")))
}

impl Reader {
    /// What a review id is about.
    pub fn review(&self, id: ReviewId) -> Answer<Option<ReviewRow>> {
        if id.kind() == ReviewKind::Task {
            let task = self.waiting_review(id)?;
            return Ok(task.map(|(row, status)| {
                let review = TaskReview { line: row.shown, status };
                ReviewRow::Task { execution: row.key, review }
            }));
        }
        let found = self.one(
            "SELECT f.definition_key, d.dag_id, d.scope, f.revision, f.content_hash, f.tasks_count, f.created_by,
                    f.created_at, f.expires_at, f.review_id, f.status
             FROM dag_definitions f JOIN dags d USING (dag_key) WHERE f.review_id = ?1",
            [id.to_string()],
            |row| Ok((pending_row(row)?, parsed(row, 10, RevisionStatus::from_word)?)),
        )?;
        Ok(found.map(|(row, status)| ReviewRow::Dag(RevisionReview { line: row.shown, status })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_taken_is_not_given_again() {
        let dir = tempfile::tempdir().unwrap();
        let conn = super::super::migrate::open(&dir.path().join("dag.db"), Default::default()).unwrap();
        let secret = secret(&conn).unwrap().unwrap();
        let opening =
            Opening::Revision { dag: 7, revision: Revision(7), content_hash: "x", opened_at: Timestamp(7) };
        let first = free_id(&conn, &secret, &opening).unwrap();
        conn.execute_batch(&format!(
            "INSERT INTO dags VALUES (1, 'global', 'd', 1, 0, NULL, 0);
             INSERT INTO dag_definitions (dag_key, revision, content_hash, tasks_json, tasks_count, status, created_by,
                 created_at, updated_at, review_id)
             VALUES (1, 1, printf('%064d', 1), '{{}}', 1, 'rejected', 'ann', 5, 5, '{first}');"
        ))
        .unwrap();
        let second = free_id(&conn, &secret, &opening).unwrap();
        assert_eq!(second, ReviewId::derive(&secret, &opening, 1));
        assert_ne!(second, first);
    }
}
