//! Does the event log tell what the rows say? Everything's events are folded in one pass over the log, however many runs
//! there are, and compared with the rows. A run that is over is compared and forgotten, so what is kept in mind is what
//! was under way at once.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use cis_core::dag::Dag;
use cis_core::event::{Change, Event, Folded, FoldedRun, FoldedTask, PRUNE, PUBLISH};
use cis_core::id::{RunKey, TaskIx, Version};
use cis_core::revision::{RevisionMove, RevisionStatus};
use cis_core::run::RunStatus;
use cis_core::task::TaskStatus;
use rusqlite::{Row, params};

use super::reader::{Reader, event};
use super::tx::parsed;
use crate::port::Answer;
use crate::rows::RunRow;

/// Definitions kept parsed; runs of one are mostly neighbours in the log.
const DEFINITIONS_MAX: usize = 32;

/// Everything the log and the rows disagree about.
pub(super) fn unfolded(store: &Reader) -> Answer<Vec<String>> {
    let (runs, revisions, pruned) = (HashMap::new(), HashMap::new(), pruned(store)?);
    let mut folding = Folding { store, runs, revisions, pruned, wrong: Vec::new() };
    let mut definitions = HashMap::new();
    let mut statement = store.conn.prepare(
        "SELECT position, run_key, task_ix, version, step, status, at, data, actor, definition_key FROM events
         ORDER BY position",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        match row.get(9)? {
            Some(revision) => folding.take_revision(row, revision)?,
            None if folding.was_pruned(row)? => {}
            None => folding.take_run(&event(row)?, &mut definitions)?,
        }
    }
    folding.end()
}

/// Definitions that were parsed a moment ago.
type Definitions = HashMap<i64, Arc<Dag>>;

struct Folding<'a> {
    store: &'a Reader,
    /// `None`: nothing more is expected of it.
    runs: HashMap<RunKey, Option<Box<Open>>>,
    revisions: HashMap<i64, (RevisionStatus, i64)>,
    pruned: HashMap<RunKey, Pruned>,
    wrong: Vec<String>,
}

/// A run that was pruned.
struct Pruned {
    /// Events of it that may still be there.
    left: RangeInclusive<i64>,
    /// Its end was told.
    told: bool,
}

/// A run whose events are not all in yet.
struct Open {
    run: RunRow,
    folded: Folded,
}

impl Folding<'_> {
    fn take_run(&mut self, event: &Event, definitions: &mut Definitions) -> Answer<()> {
        if event.change == Change::RunCreated {
            let open = begin(self.store, event.run, definitions)?;
            if open.is_none() {
                self.wrong.push(format!("event {}: there is no run {}", event.position, event.run));
            }
            self.runs.insert(event.run, open.map(Box::new));
            return Ok(());
        }
        let Some(place) = self.runs.get_mut(&event.run) else {
            self.wrong.push(format!("event {}: run {} was never created", event.position, event.run));
            self.runs.insert(event.run, None);
            return Ok(());
        };
        let Some(open) = place else {
            return Ok(());
        };
        if let Err(broken) = open.folded.apply(event) {
            self.wrong.push(format!("{}: {broken}", open.run.label()));
            *place = None;
        } else if open.folded.is_over() {
            self.wrong.extend(open.differences(self.store)?);
            *place = None;
        }
        Ok(())
    }

    /// Is it about a run that was pruned? Of such a run one event stays, which tells that.
    fn was_pruned(&mut self, row: &Row<'_>) -> Answer<bool> {
        let (position, key, prune) =
            (row.get(0)?, RunKey(row.get(1)?), row.get_ref(4)?.as_str() == Ok(PRUNE));
        match (self.pruned.get_mut(&key), prune) {
            (None, false) => return Ok(false),
            (Some(pruned), true) if !pruned.told => pruned.told = true,
            (Some(pruned), false) if pruned.left.contains(&position) => {}
            (None, true) => self.wrong.push(format!("event {position}: run {key} was not pruned")),
            (Some(_), _) => self.wrong.push(format!("event {position}: run {key} was pruned")),
        }
        Ok(true)
    }

    fn take_revision(&mut self, row: &Row<'_>, key: i64) -> Answer<()> {
        let (to, version) = (parsed(row, 5, RevisionStatus::from_word)?, row.get(3)?);
        let (step, before) = (row.get_ref(4)?.as_str().unwrap_or_default(), self.revisions.get(&key));
        let (next, expected) = match before {
            None => ((step == PUBLISH).then_some(RevisionStatus::Pending), 1),
            Some((from, version)) => {
                (RevisionMove::from_word(step).and_then(|step| from.after(step).ok()), version + 1)
            }
        };
        if (next, expected) != (Some(to), version) {
            let position: i64 = row.get(0)?;
            let why = format!("event {position}: revision {key} is {to} at version {version} by `{step}`");
            self.wrong.push(match before {
                Some((from, version)) => format!("{why}, after {from} at version {version}"),
                None => why,
            });
        }
        self.revisions.insert(key, (to, version));
        Ok(())
    }

    /// Compares what is left: what is not over, and what no event tells of.
    fn end(mut self) -> Answer<Vec<String>> {
        let runs = self.store.collect("SELECT run_key FROM dag_runs", [], |row| row.get(0).map(RunKey))?;
        for key in runs {
            match self.runs.remove(&key) {
                Some(Some(open)) => self.wrong.extend(open.differences(self.store)?),
                Some(None) => {}
                None => self.wrong.push(format!("no event tells of run {key}")),
            }
            if self.pruned.contains_key(&key) {
                self.wrong.push(format!("run {key} was pruned and is there"));
            }
        }
        let untold = self.pruned.iter().filter(|(_, pruned)| !pruned.told);
        self.wrong.extend(untold.map(|(key, _)| format!("no event tells that run {key} was pruned")));
        let sql = "SELECT definition_key, status, version FROM dag_definitions";
        let rows = self.store.collect(sql, [], |row| {
            Ok((row.get(0)?, (parsed(row, 1, RevisionStatus::from_word)?, row.get(2)?)))
        })?;
        for (key, row) in rows {
            let told = self.revisions.remove(&key);
            if told != Some(row) {
                self.wrong.push(format!("revision {key}: events say {told:?}, the row {row:?}"));
            }
        }
        self.wrong.extend(self.revisions.keys().map(|key| format!("there is no revision {key}")));
        Ok(self.wrong)
    }
}

fn pruned(store: &Reader) -> Answer<HashMap<RunKey, Pruned>> {
    let sql =
        "SELECT run_key, next_position, last_position FROM pruned_runs LEFT JOIN prunings USING (run_key)";
    let all = store.collect(sql, [], |row| {
        let (next, last): (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
        let left = next.unwrap_or(1)..=last.unwrap_or(0);
        Ok((RunKey(row.get(0)?), Pruned { left, told: false }))
    })?;
    Ok(all.into_iter().collect())
}

fn begin(store: &Reader, key: RunKey, definitions: &mut Definitions) -> Answer<Option<Open>> {
    let Some(run) = store.run(key)? else { return Ok(None) };
    if definitions.len() >= DEFINITIONS_MAX && !definitions.contains_key(&run.definition) {
        definitions.clear();
    }
    let dag = match definitions.get(&run.definition) {
        Some(dag) => dag.clone(),
        None => {
            let dag = Arc::new(store.definition(run.definition)?);
            definitions.insert(run.definition, dag.clone());
            dag
        }
    };
    let tasks = u32::try_from(dag.tasks.len()).unwrap_or(u32::MAX).min(run.total);
    let folded = Folded::new((0..tasks).map(|ix| run.first_status(&dag, TaskIx(ix))));
    Ok(Some(Open { run, folded }))
}

impl Open {
    /// What the rows say otherwise.
    fn differences(&self, store: &Reader) -> Answer<Vec<String>> {
        let (run, folded, label) = (&self.run, &self.folded, self.run.label());
        let mut wrong = Vec::new();
        let row = FoldedRun {
            status: run.status,
            version: run.version,
            stop: run.stop_reason,
            started_at: run.started_at,
            completed_at: run.completed_at,
        };
        if folded.run != row {
            wrong.push(format!("{label}: events say {}, the row {row}", folded.run));
        }
        let tasks = rows(store, run)?;
        for (ix, row) in &tasks {
            let Some(told) = folded.tasks.get(ix.index()) else { continue };
            // A task created after its run was told to stop is not made ready any more.
            let stopping = !matches!(run.status, RunStatus::Queued | RunStatus::Running);
            let unborn = row.status == TaskStatus::Pending && told.status == TaskStatus::Ready && stopping;
            if told != row && !unborn {
                wrong.push(format!("{label}, task {ix}: events say {told}, the row {row}"));
            }
        }
        if tasks.len() != folded.tasks.len() && !is_being_created(store, run.key)? {
            let (there, known) = (tasks.len(), folded.tasks.len());
            wrong.push(format!("{label}: {there} tasks have rows, its definition has {known}"));
        }
        Ok(wrong)
    }
}

fn rows(store: &Reader, run: &RunRow) -> Answer<Vec<(TaskIx, FoldedTask)>> {
    let (first, total) = (run.first_execution.0, i64::from(run.total));
    let sql = "SELECT execution_id - ?1, status, version, attempt FROM task_executions
               WHERE execution_id >= ?1 AND execution_id < ?1 + ?2";
    store.collect(sql, params![first, total], |row| {
        let status = parsed(row, 1, TaskStatus::from_word)?;
        let task = FoldedTask { status, version: Version(row.get(2)?), attempt: row.get(3)? };
        Ok((TaskIx(row.get(0)?), task))
    })
}

fn is_being_created(store: &Reader, run: RunKey) -> Answer<bool> {
    let sql = "SELECT 1 FROM steps WHERE run_key = ?1 AND kind = 'create'";
    Ok(store.one(sql, [run.0], |_| Ok(()))?.is_some())
}
