//! The invariants of a store, checked over all of it: what tests assert after every storm.

use std::collections::HashMap;

use cis_core::event::Folded;
use cis_core::id::{Position, TaskIx};
use cis_core::task::TaskStatus;

use super::reader::{Reader, RunLine};
use crate::port::{Answer, Fate};

/// Everything wrong with the store; empty when every invariant holds.
pub fn violations(store: &Reader) -> Answer<Vec<String>> {
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
    let runs = store.runs(None, u32::MAX)?;
    let mut definitions = HashMap::new();
    for run in &runs {
        if !definitions.contains_key(&run.definition) {
            definitions.insert(run.definition, store.definition(run.definition)?);
        }
        wrong.extend(unfolded(store, run, &definitions[&run.definition])?);
    }
    Ok(wrong)
}

const DOUBLE_FENCES: &str =
    "SELECT fence FROM task_executions WHERE fence IS NOT NULL GROUP BY fence HAVING count(*) > 1";
const UNCONFIRMED: &str = "SELECT run_key FROM dag_runs JOIN dag_definitions USING (definition_key)
     LEFT JOIN dag_confirmations c USING (definition_key)
     WHERE dag_definitions.status <> 'confirmed' OR c.content_hash IS NOT dag_definitions.content_hash";
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
    let mut folded = Folded::new((0..run.total).map(|ix| first_status(run, dag, TaskIx(ix))));
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
        wrong.push(format!("{}: events say {:?}, the row {:?}", run.label(), folded.run, (run.status, run.version)));
    }
    for task in store.tasks(run, &[], u32::MAX)? {
        let told = folded.tasks[task.ix.index()];
        let unborn = task.status == TaskStatus::Pending && told.0 == TaskStatus::Ready && run.status.is_terminal();
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

/// The status a task is created in.
fn first_status(run: &RunLine, dag: &cis_core::dag::Dag, ix: TaskIx) -> TaskStatus {
    let task = &dag.tasks[ix.index()];
    match run.fate(ix) {
        Fate::Carry => TaskStatus::Completed,
        Fate::Leave => TaskStatus::Skipped,
        Fate::Run if task.more().when.is_some() => TaskStatus::Pending,
        Fate::Run if task.depends_on.iter().all(|before| run.fate(*before) != Fate::Run) => TaskStatus::Ready,
        Fate::Run => TaskStatus::Pending,
    }
}
