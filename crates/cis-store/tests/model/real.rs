//! The store the model is compared with: commands in, answers and pictures out, in the model's words.

use std::collections::HashMap;
use std::path::PathBuf;

use cis_core::dag;
use cis_core::id::{Epoch, ExecutionId, Fence, RunKey};
use cis_core::run::RunStatus;
use cis_core::source::{BootTime, Timestamp};
use cis_core::task::TaskStatus;
use cis_store::port::{
    Advance, Claim, CoordinatorStore as _, Prune, Publish, Report, RevisionStatus, RunRef, Settle, StartRun,
    StopRun, StoreError,
};
use cis_store::{Chunks, Durability, Reader, SqliteStore, check};
use rusqlite::{Connection, OpenFlags, Row};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::answer::{Answer, Picture};
use crate::command::{Command, Start, Told};
use crate::coverage::{self, Reached};
use crate::model::{At, Model, QUOTAS};
use crate::support;

/// A store on a file of its own, and what its caller remembers.
pub(crate) struct Real {
    store: Option<SqliteStore>,
    chunks: Chunks,
    onlooker: Connection,
    runtime: Runtime,
    dir: TempDir,
    epoch: Epoch,
    definitions: Vec<i64>,
    runs: Vec<RunKey>,
    /// The execution id of each run's first task.
    firsts: Vec<i64>,
    fences: HashMap<At, Vec<Fence>>,
    highest: Option<Fence>,
    /// What each DAG's rows were, by the pulse they had.
    rows_by_beat: HashMap<String, (u64, String)>,
}

impl Real {
    pub(crate) fn new(now: Timestamp, chopped: bool) -> Self {
        let (dir, runtime) = (support::dir(), support::runtime());
        let file = dir.path().join("dag.db");
        let chunks = if chopped { Chunks { rows: 2, told_at_once: 1, fences: 3 } } else { Chunks::default() };
        let store = SqliteStore::open_in_chunks(&file, Durability::Process, chunks).expect("a store");
        let store = store.within(Some(QUOTAS));
        let epoch = runtime.block_on(store.open_epoch(now, support::boot(now))).expect("an epoch").epoch;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let onlooker = Connection::open_with_flags(&file, flags).expect("an onlooker");
        Self {
            store: Some(store),
            chunks,
            onlooker,
            runtime,
            dir,
            epoch,
            definitions: Vec::new(),
            runs: Vec::new(),
            firsts: Vec::new(),
            fences: HashMap::new(),
            highest: None,
            rows_by_beat: HashMap::new(),
        }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("dag.db")
    }

    fn ask<'r, T, F>(&'r self, call: impl FnOnce(&'r SqliteStore) -> F) -> Result<T, Answer>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.runtime.block_on(call(self.store.as_ref().expect("an open store"))).map_err(|e| match e {
            StoreError::Refused(refusal) => Answer::Refused(refusal.code),
            other => panic!("{other}"),
        })
    }

    /// Asks the store; `model` is as it should be after that.
    pub(crate) fn apply(&mut self, command: &Command, model: &Model) -> Answer {
        let now = model.now;
        let answer = match command {
            Command::Publish { content, new_revision, expires } => {
                let publish = Publish {
                    key: None,
                    new_revision: *new_revision,
                    expires_at: expires.map(|span| now.after(span)),
                    ..support::publish(&model.contents[*content], now)
                };
                self.publish(publish)
            }
            Command::Settle { revision, confirm } => {
                let content = &model.contents[model.revisions[*revision].content];
                let request = Settle {
                    definition: self.definitions[*revision],
                    content_hash: dag::content_hash(content).to_string(),
                    confirm: *confirm,
                    by: "bea".into(),
                    now,
                };
                self.ask(|store| store.settle(request))
                    .map(|settled| Answer::Settled { changed: settled.changed, status: settled.status })
            }
            Command::Start(start) => self.start(start, now),
            Command::Advance { reports, claim, old_life } => self.advance(reports, *claim, *old_life, now),
            Command::Approve { at, approve } => {
                let request = support::approve(self.execution(*at), *approve, now);
                self.ask(|store| store.approve(request)).map(|once| {
                    let told = once.answer.expect("no key, no kept refusal");
                    Answer::Approved { changed: told.changed, status: told.status }
                })
            }
            Command::Stop { run, reason } => {
                let request = StopRun { key: None, run: self.runs[*run], reason: *reason, by: None, now };
                self.ask(|store| store.stop_run(request))
                    .map(|once| Answer::Stopped(once.answer.expect("no key, no kept refusal")))
            }
            Command::Work => self.work(now),
            Command::Pass(_) => Ok(Answer::Nothing),
            Command::Sweep => {
                self.ask(|store| store.sweep(self.epoch, now, BootTime(now.0))).map(|swept| Answer::Swept {
                    ended: self.ended(&swept.ended),
                    next_due: swept.next_due,
                    more_work: swept.more_work,
                })
            }
            Command::Prune { keep } => self.prune(*keep, now),
            Command::Reopen => self.reopen(now),
        };
        answer.unwrap_or_else(|refused| refused)
    }

    fn publish(&mut self, request: Publish) -> Result<Answer, Answer> {
        let published = self.ask(|store| store.publish(request))?.answer.expect("no key, no kept refusal");
        if published.created {
            self.definitions.push(published.definition);
        }
        let revision = self.definitions.iter().position(|key| *key == published.definition);
        let revision = revision.expect("a known definition");
        Ok(Answer::Published { created: published.created, revision, status: published.status })
    }

    fn start(&mut self, start: &Start, now: Timestamp) -> Result<Answer, Answer> {
        let number = start.again.unwrap_or(self.runs.len());
        let request = StartRun {
            fates: start.fates.clone(),
            max_parallel: start.max_parallel,
            by_confirmation: start.by_confirmation,
            resumed_from: start.resumes.map(|run| self.runs[run]),
            ..support::start(self.definitions[start.revision], support::run_id(number as u64 + 1), now)
        };
        let run = self.ask(|store| store.start_run(request))?.answer.expect("no key, no kept refusal");
        if !self.runs.contains(&run.key) {
            self.runs.push(run.key);
            let first = "SELECT first_execution FROM dag_runs WHERE run_key = ?1";
            self.firsts.push(self.onlooker.query_row(first, [run.key.0], |row| row.get(0)).expect("a run"));
        }
        Ok(Answer::Run { run: self.run(run.key), status: run.status })
    }

    fn advance(
        &mut self,
        reports: &[Told],
        claim: Option<u32>,
        old_life: bool,
        now: Timestamp,
    ) -> Result<Answer, Answer> {
        let epoch = Epoch(self.epoch.0 - i64::from(old_life));
        let (holder, kinds) = ("local".to_owned(), vec!["shell"]);
        let claim =
            claim.map(|limit| Claim { epoch, holder, limit, kinds, scopes: None, capabilities: Vec::new() });
        let reports = reports.iter().map(|told| self.report(told, now)).collect();
        let advanced = self.ask(|store| store.advance(Advance { reports, claim, now }))?;
        assert!(advanced.stop.is_empty(), "only work asks attempts to stop");
        let mut claimed = Vec::new();
        for claim in &advanced.claimed {
            assert!(Some(claim.fence) > self.highest, "fences grow with every claim");
            self.highest = Some(claim.fence);
            let at = self.at(claim.execution);
            self.fences.entry(at).or_default().push(claim.fence);
            claimed.push((at.0, at.1, claim.attempt));
        }
        let ended = self.ended(&advanced.ended);
        Ok(Answer::Advanced { recorded: advanced.recorded, claimed, ended, more_work: advanced.more_work })
    }

    fn report(&self, told: &Told, now: Timestamp) -> Report {
        let fences = &self.fences[&told.at];
        let fence = match (told.stale, fences.as_slice()) {
            (false, [.., last]) => *last,
            (true, [.., earlier, _]) => *earlier,
            (_, all) => Fence(all.last().map_or(1, |fence| fence.0 + 1_000)),
        };
        Report {
            execution: self.execution(told.at),
            fence,
            ending: told.ending.clone(),
            started_at: None,
            ended_at: now,
            exit_code: None,
            output: String::new(),
            error: String::new(),
            log_bytes: 0,
            log_cut_bytes: 0,
            outputs: None,
            random: 0,
        }
    }

    fn work(&mut self, now: Timestamp) -> Result<Answer, Answer> {
        let worked = self.ask(|store| store.work(now))?;
        assert!(!worked.more, "small steps fit into one chunk");
        for (execution, fence) in &worked.stop {
            assert_eq!(self.fences[&self.at(*execution)].last(), Some(fence));
        }
        let stop = worked.stop.iter().map(|(execution, _)| self.at(*execution)).collect();
        Ok(Answer::Worked { stop, ended: self.ended(&worked.ended) })
    }

    /// Takes large steps to their end, with the store going away and coming back between some of the chunks.
    pub(crate) fn work_off(&mut self, now: Timestamp) {
        for chunk in 1.. {
            if !self.ask(|store| store.work(now)).expect("worked").more {
                return;
            }
            coverage::count(&[Reached::Chunk]);
            if chunk % 3 == 0 {
                coverage::count(&[Reached::ReopenBetweenChunks]);
                self.reopen(now).expect("reopened");
            }
        }
    }

    /// Prunes to the end, with the store going away and coming back between some of the chunks.
    fn prune(&mut self, keep: u32, now: Timestamp) -> Result<Answer, Answer> {
        let (mut gone, mut request) = (Vec::new(), Prune::new(now, keep, now));
        for chunk in 1.. {
            let told = self.ask(|store| store.prune(request.clone()))?;
            gone.extend(told.runs.iter().map(|run| self.run(run.key)));
            let cleared: Vec<RunKey> = told.bare.iter().map(|bare| bare.run).collect();
            if !told.more && cleared.is_empty() {
                break;
            }
            request = Prune { after: told.after, cleared, ..request };
            if chunk % 7 == 0 {
                assert_eq!(self.violations(), [""; 0], "after {chunk} chunks");
                self.reopen(now)?;
            }
        }
        Ok(Answer::Pruned(gone))
    }

    fn reopen(&mut self, now: Timestamp) -> Result<Answer, Answer> {
        self.store.take().expect("an open store").close();
        let store = SqliteStore::open_in_chunks(&self.file(), Durability::Process, self.chunks);
        self.store = Some(store.expect("a store").within(Some(QUOTAS)));
        self.rows_by_beat.clear();
        let opening = self.ask(|store| store.open_epoch(now, support::boot(now)))?;
        assert!(opening.epoch > self.epoch);
        self.epoch = opening.epoch;
        let mut live = Vec::new();
        for attempt in &opening.live {
            let at = self.at(attempt.execution);
            assert_eq!(self.fences[&at].last(), Some(&attempt.fence));
            live.push((at.0, at.1, attempt.status));
        }
        live.sort();
        let unfinished = opening.unfinished.iter().map(|unfinished| self.run(unfinished.run.key)).collect();
        Ok(Answer::Opened { live, unfinished })
    }

    fn execution(&self, (run, ix): At) -> ExecutionId {
        ExecutionId(self.firsts[run] + ix as i64)
    }

    fn run(&self, key: RunKey) -> usize {
        self.runs.iter().position(|run| *run == key).expect("a known run")
    }

    fn at(&self, execution: ExecutionId) -> At {
        let run = self.firsts.partition_point(|first| *first <= execution.0) - 1;
        (run, usize::try_from(execution.0 - self.firsts[run]).expect("a task"))
    }

    fn ended(&self, ended: &[RunRef]) -> Vec<(usize, RunStatus)> {
        ended.iter().map(|run| (self.run(run.key), run.status)).collect()
    }

    /// What an onlooker sees.
    pub(crate) fn picture(&self) -> Picture {
        let word = |row: &Row<'_>, column: usize| row.get::<_, String>(column).expect("a word");
        let revisions =
            self.rows("SELECT revision, status FROM dag_definitions ORDER BY definition_key", |row| {
                let status = RevisionStatus::from_word(&word(row, 1)).expect("a status");
                (row.get(0).expect("a number"), status)
            });
        let mut runs = vec![None; self.runs.len()];
        for (key, run) in self.rows("SELECT status, version, run_key FROM dag_runs", |row| {
            let status = RunStatus::from_word(&word(row, 0)).expect("a status");
            (RunKey(row.get(2).expect("a key")), (status, row.get(1).expect("a version"), Vec::new()))
        }) {
            runs[self.run(key)] = Some(run);
        }
        let tasks =
            "SELECT execution_id, status, version, attempt FROM task_executions ORDER BY execution_id";
        for (execution, task) in self.rows(tasks, |row| {
            let status = TaskStatus::from_word(&word(row, 1)).expect("a status");
            let task = (status, row.get(2).expect("a version"), row.get(3).expect("an attempt"));
            (ExecutionId(row.get(0).expect("an id")), task)
        }) {
            runs[self.at(execution).0].as_mut().expect("a run").2.push(task);
        }
        let claimable = self.rows(
            "SELECT t.execution_id FROM task_executions t JOIN dag_runs r USING (run_key)
             WHERE t.status = 'ready' AND t.hold = 0 AND r.status IN ('queued', 'running')
             ORDER BY t.priority DESC, t.ready_order, t.execution_id",
            |row| self.at(ExecutionId(row.get(0).expect("an id"))),
        );
        Picture { revisions, runs, claimable }
    }

    /// What the pulse does not say has changed is as it was.
    pub(crate) fn feel_pulse(&mut self) {
        let pulse = self.store.as_ref().expect("an open store").pulse();
        for dag_id in
            self.rows("SELECT DISTINCT dag_id FROM dags", |row| row.get::<_, String>(0).expect("a name"))
        {
            let (beat, rows) = (pulse.of_dag(&dag_id), self.rows_of(&dag_id));
            let before = self.rows_by_beat.insert(dag_id, (beat, rows.clone()));
            if let Some((_, before)) = before.filter(|(at, _)| *at == beat) {
                assert_eq!(rows, before, "the same pulse");
            }
        }
    }

    /// Everything an answer about a DAG could be made of.
    fn rows_of(&self, dag_id: &str) -> String {
        let of_dag = format!("JOIN dags d USING (dag_key) WHERE d.dag_id = '{dag_id}'");
        let tables = [
            format!("SELECT f.* FROM dag_definitions f {of_dag}"),
            format!("SELECT r.* FROM dag_runs r {of_dag}"),
            format!("SELECT t.* FROM task_executions t JOIN dag_runs USING (run_key) {of_dag}"),
        ];
        let cells =
            |row: &Row<'_>| (0..).map_while(|ix| row.get::<_, rusqlite::types::Value>(ix).ok()).collect();
        tables.iter().map(|sql| format!("{:?}\n", self.rows::<Vec<_>>(sql, cells))).collect()
    }

    fn rows<T>(&self, sql: &str, read: impl Fn(&Row<'_>) -> T) -> Vec<T> {
        let mut statement = self.onlooker.prepare_cached(sql).expect("a query");
        let rows = statement.query_map([], |row| Ok(read(row))).expect("rows");
        rows.collect::<Result<_, _>>().expect("rows")
    }

    /// Every invariant that does not hold.
    pub(crate) fn violations(&self) -> Vec<String> {
        check::violations(&Reader::open(&self.file()).expect("a reader")).expect("a check")
    }
}
