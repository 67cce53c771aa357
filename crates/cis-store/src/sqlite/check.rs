//! The invariants of a store, checked over all of it: what tests assert after every storm.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use cis_core::event::Folded;
use cis_core::id::{Position, TaskIx};
use cis_core::run::RunStatus;
use cis_core::task::TaskStatus;

use super::reader::{Reader, RunLine};
use crate::port::Answer;

/// Everything wrong with the store; empty when every invariant holds.
pub fn violations(store: &Reader) -> Answer<Vec<String>> {
    // One snapshot for all of it: while others write, rows and events of different moments would not add up.
    let _snapshot = store.conn.unchecked_transaction()?;
    let mut wrong = Vec::new();
    let integrity: String = store.conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if integrity != "ok" {
        wrong.push(format!("integrity: {integrity}"));
    }
    rows(store, &mut wrong, DOUBLE_FENCES, "one fence, two live attempts")?;
    rows(store, &mut wrong, UNCONFIRMED, "runs of revisions nobody confirmed")?;
    rows(store, &mut wrong, DOUBLE_DAGS, "one content, two open revisions")?;
    rows(store, &mut wrong, MISCOUNTED, "counters that differ from the tasks")?;
    rows(store, &mut wrong, UNENDED, "tasks not over in runs that are")?;
    rows(store, &mut wrong, MISLEASED, "leases that differ from the attempts others hold")?;
    rows(store, &mut wrong, UNASKED, "runs in the queue though a person was asked")?;
    rows(store, &mut wrong, UNHEARD, "tasks that are not where a decision led them")?;
    rows(store, &mut wrong, MISPLACED, "windows that differ from the tasks in them")?;
    rows(store, &mut wrong, MISQUEUED, "tasks out of reach in runs that go on, or in reach in paused ones")?;
    let runs = store.runs(None, u32::MAX)?;
    let mut definitions = HashMap::new();
    for run in &runs {
        let dag = match definitions.entry(run.definition) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(store.definition(run.definition)?),
        };
        wrong.extend(unfolded(store, run, dag)?);
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
const MISLEASED: &str = "SELECT execution_id FROM leases l LEFT JOIN task_executions t USING (execution_id)
     WHERE t.status IS NULL OR t.status NOT IN ('running', 'cancelling') OR t.fence <> l.fence
     UNION ALL SELECT execution_id FROM task_executions t JOIN queues q USING (queue_key)
     WHERE q.kind = 'external' AND t.status IN ('running', 'cancelling')
       AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.execution_id = t.execution_id)";
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

fn rows(store: &Reader, wrong: &mut Vec<String>, sql: &str, what: &str) -> Answer<()> {
    let found: Vec<i64> =
        store.conn.prepare(sql)?.query_map([], |row| row.get(0))?.collect::<Result<_, rusqlite::Error>>()?;
    if !found.is_empty() {
        wrong.push(format!("{what}: {found:?}"));
    }
    Ok(())
}

/// Does folding a run's events give its rows?
fn unfolded(store: &Reader, run: &RunLine, dag: &cis_core::dag::Dag) -> Answer<Vec<String>> {
    let mut folded = Folded::new((0..run.total).map(|ix| run.first_status(dag, TaskIx(ix))));
    let mut after = Position(0);
    loop {
        let (events, read_to) = store.events(run, after, 10_000)?;
        for event in &events {
            if let Err(broken) = folded.apply(event) {
                return Ok(vec![format!("{}: {broken}", run.label())]);
            }
        }
        if read_to <= after {
            break;
        }
        after = read_to;
    }
    let mut wrong = Vec::new();
    if folded.run != (run.status, run.version) {
        wrong.push(format!(
            "{}: events say {:?}, the row {:?}",
            run.label(),
            folded.run,
            (run.status, run.version)
        ));
    }
    for task in store.tasks(run, &[], u32::MAX)? {
        let told = folded.tasks[task.ix.index()];
        // A task created after its run was told to stop is not made ready any more.
        let stopping = !matches!(run.status, RunStatus::Queued | RunStatus::Running);
        let unborn = task.status == TaskStatus::Pending && told.0 == TaskStatus::Ready && stopping;
        if told != (task.status, task.version) && !unborn {
            wrong.push(format!(
                "{}/{}: events say {told:?}, the row {:?}",
                run.label(),
                task.task_id,
                (task.status, task.version)
            ));
        }
    }
    Ok(wrong)
}
