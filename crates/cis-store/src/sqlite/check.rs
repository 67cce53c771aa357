//! The invariants of a store, checked over all of it: what tests assert after every storm, and `cis doctor` whenever it is
//! asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fold;
use super::reader::Reader;
use crate::port::Answer;

/// Steps of SQLite between two looks at whether to stop: less than a millisecond.
const STOP_OPS: i32 = 10_000;

/// What can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// SQLite's own view of the file: every page, every index, every constraint.
    Integrity,
    /// What must hold between rows.
    Invariants,
    /// Folding the events gives the rows.
    Events,
}

impl Check {
    pub const ALL: [Self; 3] = [Self::Integrity, Self::Invariants, Self::Events];

    /// Everything it finds wrong. One snapshot for all of it: while others write, rows and events of different moments
    /// would not add up.
    pub fn violations(self, store: &Reader) -> Answer<Vec<String>> {
        let _snapshot = store.conn.unchecked_transaction()?;
        self.look(store)
    }

    fn look(self, store: &Reader) -> Answer<Vec<String>> {
        match self {
            Self::Integrity => integrity(store),
            Self::Invariants => invariants(store),
            Self::Events => fold::unfolded(store),
        }
    }
}

/// Everything wrong with the store; empty when every invariant holds.
pub fn violations(store: &Reader) -> Answer<Vec<String>> {
    let _snapshot = store.conn.unchecked_transaction()?;
    let found: Answer<Vec<_>> = Check::ALL.into_iter().map(|check| check.look(store)).collect();
    Ok(found?.concat())
}

/// A look at every page, without comparing tables with their indexes: a fraction of what [`Check::Integrity`] costs. It
/// fails when `stop` is set meanwhile.
pub fn quick(mut store: Reader, stop: Arc<AtomicBool>) -> Answer<Vec<String>> {
    store.conn.progress_handler(STOP_OPS, Some(move || stop.load(Ordering::Relaxed)))?;
    let mut found: Vec<String> = store.collect("PRAGMA quick_check", [], |row| row.get(0))?;
    found.retain(|line| line != "ok");
    Ok(found)
}

fn integrity(store: &Reader) -> Answer<Vec<String>> {
    let mut found: Vec<String> = store.collect("PRAGMA integrity_check", [], |row| row.get(0))?;
    found.retain(|line| line != "ok");
    Ok(found)
}

fn invariants(store: &Reader) -> Answer<Vec<String>> {
    let mut wrong = Vec::new();
    for (sql, what) in [
        (DOUBLE_FENCES, "one fence, two live attempts"),
        (UNCONFIRMED, "runs of revisions nobody confirmed"),
        (DOUBLE_DAGS, "one content, two open revisions"),
        (MISCOUNTED, "counters that differ from the tasks"),
        (UNENDED, "tasks not over in runs that are"),
        (MISLEASED, "leases that differ from the attempts others hold"),
        (UNASKED, "runs in the queue though a person was asked"),
        (UNHEARD, "tasks that are not where a decision led them"),
        (MISPLACED, "windows that differ from the tasks in them"),
        (MISQUEUED, "tasks out of reach in runs that go on, or in reach in paused ones"),
        (UNOWNED, "tasks of runs that are not there"),
        (FORGOTTEN, "runs that were confirmed and are neither there nor pruned"),
        (OUTDATED, "DAGs whose latest run is another"),
        (UNREVIEWED, "revisions or tasks that wait without a review id"),
    ] {
        let found: Vec<i64> = store.collect(sql, [], |row| row.get(0))?;
        if !found.is_empty() {
            wrong.push(format!("{what}: {found:?}"));
        }
    }
    let texts = store.wrong_public_texts()?;
    if !texts.is_empty() {
        wrong.push(format!("public texts that are not those of their definitions: {texts:?}"));
    }
    Ok(wrong)
}

const DOUBLE_FENCES: &str =
    "SELECT fence FROM task_executions WHERE fence IS NOT NULL GROUP BY fence HAVING count(*) > 1";
const UNCONFIRMED: &str = "SELECT r.run_key FROM dag_runs r JOIN dag_definitions d USING (definition_key)
     LEFT JOIN dag_confirmations c USING (definition_key)
     WHERE d.status <> 'confirmed' OR c.decision IS NOT 'confirmed' OR c.content_hash IS NOT d.content_hash";
const DOUBLE_DAGS: &str = "SELECT dag_key FROM dag_definitions WHERE status IN ('pending', 'confirmed')
     GROUP BY dag_key, content_hash HAVING count(*) > 1";
const MISCOUNTED: &str = "SELECT r.run_key FROM dag_runs r JOIN task_executions t USING (run_key)
     WHERE NOT EXISTS (SELECT 1 FROM steps WHERE steps.run_key = r.run_key)
     GROUP BY r.run_key
     HAVING r.completed <> sum(t.status = 'completed') OR r.cancelled <> sum(t.status = 'cancelled')
         OR r.skipped <> sum(t.status = 'skipped')
         OR r.failed + r.debts < sum(t.status IN ('failed', 'timed_out'))
         OR r.tasks_left <> sum(t.status IN ('pending', 'waiting', 'ready', 'running', 'cancelling'))
         OR r.tasks_total <> count(*)";
const UNENDED: &str = "SELECT r.run_key FROM dag_runs r JOIN task_executions t USING (run_key)
     WHERE r.completed_at IS NOT NULL AND t.status IN ('pending', 'waiting', 'ready', 'running', 'cancelling')
       AND NOT EXISTS (SELECT 1 FROM steps WHERE steps.run_key = r.run_key)";
const MISLEASED: &str = "SELECT l.subject_key FROM leases l LEFT JOIN task_executions t ON t.execution_id = l.subject_key
     WHERE l.subject_kind = 'task'
       AND (t.status IS NULL OR t.status NOT IN ('running', 'cancelling') OR t.fence <> l.fence)
     UNION ALL SELECT execution_id FROM task_executions t JOIN queues q USING (queue_key)
     WHERE q.kind = 'external' AND t.status IN ('running', 'cancelling')
       AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.subject_kind = 'task' AND l.subject_key = t.execution_id)";
const UNASKED: &str = "SELECT r.run_key FROM dag_runs r JOIN task_executions t USING (run_key)
     WHERE r.status = 'queued' AND t.asked_at IS NOT NULL";
const UNHEARD: &str =
    "SELECT execution_id FROM task_decisions d LEFT JOIN task_executions t USING (execution_id)
     WHERE t.status IS NULL OR t.status IN ('pending', 'waiting') OR t.asked_at IS NULL
        OR (d.decision = 'rejected' AND t.status <> 'failed')";
// Places are no longer counted once a run is stopping; and while one is free, nobody is kept waiting for it.
const MISPLACED: &str = "SELECT r.run_key FROM dag_runs r JOIN task_executions t USING (run_key)
     WHERE r.max_parallel IS NOT NULL AND r.status IN ('queued', 'running')
     GROUP BY r.run_key
     HAVING r.window <> sum(t.status IN ('running', 'cancelling') OR (t.status = 'ready' AND t.hold = 0))
         OR (r.window < r.max_parallel AND sum(t.hold = 1) > 0)";

const MISQUEUED: &str = "SELECT r.run_key FROM dag_runs r JOIN task_executions t USING (run_key)
     WHERE r.status IN ('queued', 'running') AND t.status IN ('pending', 'waiting', 'ready', 'running')
       AND NOT EXISTS (SELECT 1 FROM steps WHERE steps.run_key = r.run_key)
     GROUP BY r.run_key HAVING sum((t.queue_key < 0) <> r.paused) > 0";

const UNOWNED: &str = "SELECT execution_id FROM task_executions t
     WHERE NOT EXISTS (SELECT 1 FROM dag_runs r WHERE r.run_key = t.run_key)
       AND NOT EXISTS (SELECT 1 FROM prunings p WHERE p.run_key = t.run_key)";
const FORGOTTEN: &str = "SELECT run_key FROM dag_confirmations c WHERE run_key IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM dag_runs r WHERE r.run_key = c.run_key)
       AND NOT EXISTS (SELECT 1 FROM pruned_runs p WHERE p.run_key = c.run_key)";
const UNREVIEWED: &str =
    "SELECT definition_key FROM dag_definitions WHERE status = 'pending' AND review_id IS NULL
     UNION ALL SELECT execution_id FROM task_executions WHERE status = 'waiting' AND review_id IS NULL";
const OUTDATED: &str = "SELECT dag_key FROM dags d WHERE latest_run IS NOT
     (SELECT run_key FROM dag_runs r WHERE r.dag_key = d.dag_key ORDER BY number DESC LIMIT 1)";
