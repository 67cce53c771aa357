//! How much there is of what, at present. Only what is not over is counted, each by an index of its own, so that
//! looking costs the same however much has been.

use serde::Serialize;

use super::reader::Reader;
use crate::port::Answer;

/// Counts by name.
pub type Counts = Vec<(String, u64)>;

/// What is not over.
#[derive(Debug, Clone, Serialize)]
pub struct Census {
    /// Runs by status, and how many of them are paused.
    pub runs: Counts,
    pub paused_runs: u64,
    pub paused_scopes: u64,
    /// Tasks of these runs by status; those that are ready or wait for others are counted together.
    pub tasks: Counts,
    /// Tasks that could be claimed now, by kind.
    pub claimable: Counts,
    /// Tasks that are ready and held back, by what holds them.
    pub held: Counts,
}

impl Reader {
    /// Counts what is not over.
    pub fn census(&self) -> Answer<Census> {
        // One moment for all of it.
        let _snapshot = self.conn.unchecked_transaction()?;
        let one = |sql: &str| self.conn.prepare_cached(sql)?.query_row([], |row| row.get::<_, u64>(0));
        let mut tasks = self.counts(
            "SELECT status, count(*) FROM task_executions INDEXED BY tasks_live
             WHERE status IN ('running', 'cancelling') GROUP BY status",
        )?;
        let live: u64 = tasks.iter().map(|(_, count)| count).sum();
        let left = one("SELECT coalesce(sum(tasks_left), 0) FROM dag_runs WHERE completed_at IS NULL")?;
        tasks.push(("waiting".to_owned(), left.saturating_sub(live)));
        for (status, column) in [
            ("completed", "completed"),
            ("failed", "failed + debts"),
            ("cancelled", "cancelled"),
            ("skipped", "skipped"),
        ] {
            let sql = format!("SELECT coalesce(sum({column}), 0) FROM dag_runs WHERE completed_at IS NULL");
            tasks.push((status.to_owned(), one(&sql)?));
        }
        let held = |hold: &str, index: &str| {
            one(&format!(
                "SELECT count(*) FROM task_executions INDEXED BY {index} WHERE status = 'ready' AND hold = {hold}"
            ))
        };
        Ok(Census {
            runs: self.counts(
                "SELECT status, count(*) FROM dag_runs INDEXED BY runs_unfinished
                 WHERE completed_at IS NULL GROUP BY status",
            )?,
            paused_runs: one("SELECT count(*) FROM dag_runs WHERE completed_at IS NULL AND paused")?,
            paused_scopes: one("SELECT count(*) FROM paused_scopes")?,
            tasks,
            claimable: self.counts(
                "SELECT q.kind, count(*) FROM task_executions t INDEXED BY tasks_claimable
                 JOIN queues q ON q.queue_key = t.queue_key
                 WHERE t.status = 'ready' AND t.hold = 0 GROUP BY q.kind",
            )?,
            held: vec![
                ("max_parallel".to_owned(), held("1", "tasks_held")?),
                ("backoff".to_owned(), held("2", "tasks_backing_off")?),
            ],
        })
    }

    fn counts(&self, sql: &str) -> Answer<Counts> {
        let mut statement = self.conn.prepare_cached(sql)?;
        Ok(statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?)
    }
}
