//! Clients: they publish, confirm, cancel, pause and approve, ask again what was not answered, and remember what was.

use std::pin::pin;
use std::sync::Arc;

use cis_core::dag::{self, Dag, Defaults, Format};
use cis_core::error::ErrorCode;
use cis_core::id::{ExecutionId, RunId};
use cis_core::run::StopReason;
use cis_core::source::{Clock as _, Timestamp};
use cis_engine::coordinator::handle::News;
use cis_store::port::{
    Answer, Approve, CoordinatorStore as _, Decide, IdempotencyKey, Publish, RunRef, StopRun, StoreError,
};
use serde_json::Map;

use super::node::now;
use super::sketch::Sketch;
use super::worker::{Around, word};

/// How far somebody is with a DAG.
#[derive(Debug)]
enum Stage {
    Unpublished,
    Published,
    Running(RunRef),
}

/// Somebody with a DAG to run.
#[derive(Debug)]
pub(super) struct Client {
    number: usize,
    dag: Arc<Dag>,
    content_hash: String,
    run_id: RunId,
    stage: Stage,
    /// It has asked for a pause that was not taken back for certain.
    pauses: bool,
}

impl Client {
    pub(super) fn new(number: usize, sketch: &Sketch) -> anyhow::Result<Self> {
        let parsed = dag::parse(sketch.text.as_bytes(), Format::Toml, &Defaults::default());
        let dag = parsed.map_err(|problems| anyhow::anyhow!("{problems:?} in\n{}", sketch.text))?.dag;
        let (content_hash, run_id) = (dag::content_hash(&dag).to_string(), format!("{:032x}", number + 1));
        let (dag, stage, run_id) = (Arc::new(dag), Stage::Unpublished, run_id.parse()?);
        Ok(Self { number, dag, content_hash, run_id, stage, pauses: false })
    }

    /// Has it a run, and no wish to keep it from ending?
    pub(super) fn is_content(&self) -> bool {
        matches!(self.stage, Stage::Running(_)) && !self.pauses
    }

    fn key(&self, what: &str) -> Option<IdempotencyKey> {
        let key = format!("{what}-{}", self.number);
        Some(IdempotencyKey { caller: "ann".to_owned(), key, request_hash: what.to_owned() })
    }

    /// Does what is next.
    pub(super) fn act(&mut self, around: &mut Around<'_>) {
        match &self.stage {
            Stage::Unpublished => self.publish(around),
            Stage::Published => self.confirm(around),
            Stage::Running(run) => self.meddle(&run.clone(), around),
        }
    }

    fn publish(&mut self, around: &mut Around<'_>) {
        let request = Publish {
            key: self.key("publish"),
            dag: self.dag.clone(),
            content_hash: self.content_hash.clone(),
            new_revision: false,
            by: "ann".to_owned(),
            by_proven: true,
            now: around.machine.now(),
            expires_at: None,
        };
        let told = now(pin!(around.store.publish(request))).unwrap_or(Err(StoreError::Closed));
        let published = match told.and_then(|once| once.plain()) {
            Ok(published) => published,
            Err(e) => return around.judge.finds(format!("client {} cannot publish: {e}", self.number)),
        };
        around.mail.post(News::default());
        if around.loses_answer() {
            return around.trace.tell(format!("client {} publishes, and does not hear of it", self.number));
        }
        around.trace.tell(format!("client {} publishes revision {}", self.number, published.definition));
        around.judge.promised(
            format!("the definition of client {}", self.number),
            "SELECT count(*) FROM dag_definitions WHERE definition_key = ?1 AND content_hash = ?2",
            [published.definition.into(), self.content_hash.clone().into()],
        );
        self.stage = Stage::Published;
    }

    fn confirm(&mut self, around: &mut Around<'_>) {
        let request = Decide {
            key: self.key("confirm"),
            scope: self.dag.scope.clone(),
            dag_id: self.dag.dag_id.clone(),
            content_hash: None,
            review: None,
            confirm: true,
            note: None,
            by: "bea".to_owned(),
            self_confirm: false,
            run_id: self.run_id,
            traceparent: None,
            now: around.machine.now(),
        };
        let told = now(pin!(around.store.decide(request))).unwrap_or(Err(StoreError::Closed));
        let told = told.and_then(|once| {
            let replayed = once.replayed;
            once.plain().map(|decided| (decided, replayed))
        });
        let (decided, replayed) = match told {
            Ok(told) => told,
            Err(e) => return around.judge.finds(format!("client {} cannot confirm: {e}", self.number)),
        };
        let Some(run) = decided.run.filter(|run| run.run_id == self.run_id) else {
            return around.judge.finds(format!("client {} was answered with another run", self.number));
        };
        if !replayed {
            let started = Some(run.clone()).filter(|run| !run.status.is_terminal());
            around.mail.post(News { started, due: decided.next_due, ready: true, ..News::default() });
        }
        if around.loses_answer() {
            return around.trace.tell(format!("client {} confirms, and does not hear of it", self.number));
        }
        around.trace.tell(format!("client {} confirms, which starts run {}", self.number, run.key.0));
        around.judge.promised(
            format!("the run of client {}", self.number),
            "SELECT count(*) FROM dag_runs WHERE run_key = ?1 AND run_id = ?2",
            [run.key.0.into(), self.run_id.to_string().into()],
        );
        if around.chance.one_in(2) {
            // Its tasks are tied to the coordinator's process from then on, as those of a foreground run are.
            around.mail.post_attach(run.key);
        }
        self.stage = Stage::Running(run);
    }

    /// Has second thoughts about its run.
    fn meddle(&mut self, run: &RunRef, around: &mut Around<'_>) {
        match around.chance.below(12) {
            _ if around.calm && self.pauses => self.pause(run, false, around),
            0 if !around.calm => self.cancel(run, around),
            1 if !around.calm => self.pause(run, true, around),
            2..4 if self.pauses => self.pause(run, false, around),
            _ => {}
        }
    }

    fn cancel(&self, run: &RunRef, around: &mut Around<'_>) {
        let kill = around.chance.one_in(3);
        let (key, reason, now_at) = (self.key("cancel"), StopReason::Cancel, around.machine.now());
        let request = StopRun { key, run: run.key, reason, by: None, now: now_at };
        let told = now(pin!(around.store.stop_run(request))).unwrap_or(Err(StoreError::Closed));
        let replayed = told.as_ref().is_ok_and(|once| once.replayed);
        let told = told.and_then(|once| once.plain());
        if let Ok(status) = told.as_ref()
            && !replayed
        {
            let ended = status.is_terminal().then(|| RunRef { status: *status, ..run.clone() });
            let kill = kill.then_some(run.key);
            around.mail.post(News { ended: ended.into_iter().collect(), kill, ..changed() });
        }
        let what = format!("client {} cancels run {}, kill: {kill}", self.number, run.key.0);
        if hears(&what, &told, around) && told.is_ok() {
            around.judge.promised(
                format!("the cancellation of run {}", run.key.0),
                "SELECT count(*) FROM dag_runs
                 WHERE run_key = ?1 AND coalesce(stop_reason, completed_at) IS NOT NULL",
                [run.key.0.into()],
            );
        }
    }

    fn pause(&mut self, run: &RunRef, paused: bool, around: &mut Around<'_>) {
        self.pauses |= paused;
        let asked = around.store.pause_run(run.key, paused, None, around.machine.now());
        let told = now(pin!(asked)).unwrap_or(Err(StoreError::Closed));
        if told.is_ok() {
            around.mail.post(changed());
        }
        let what = format!("client {} pauses run {}: {paused}", self.number, run.key.0);
        if hears(&what, &told, around) {
            self.pauses = paused;
        }
    }
}

/// Somebody decides about a task that waits for a person.
pub(super) fn approve(execution: ExecutionId, around: &mut Around<'_>) {
    let approve = around.calm || !around.chance.one_in(4);
    let request = Approve {
        key: None,
        execution,
        approve,
        input: Map::new(),
        note: None,
        by: "cid".to_owned(),
        self_confirm: false,
        now: around.machine.now(),
    };
    let told = now(pin!(around.store.approve(request))).unwrap_or(Err(StoreError::Closed));
    let told = told.and_then(|once| once.plain());
    if let Ok(approved) = &told {
        let ended = Some(&approved.run).filter(|run| approved.changed && run.status.is_terminal());
        around.mail.post(News { ended: ended.into_iter().cloned().collect(), ..changed() });
    }
    let what = format!("somebody decides about {execution}: {approve}");
    if hears(&what, &told, around) && told.is_ok() {
        let word = if approve { "approved" } else { "rejected" };
        around.judge.promised(
            format!("what was decided about {execution}"),
            "SELECT count(*) FROM task_decisions WHERE execution_id = ?1 AND decision = ?2",
            [execution.0.into(), word.to_owned().into()],
        );
    }
}

/// Something was written that may have made tasks claimable or due.
fn changed() -> News {
    News { ready: true, due: Some(Timestamp(0)), ..News::default() }
}

/// Does the caller hear what came of it? It may come too late, and nothing else may keep it from being done.
fn hears<T: std::fmt::Debug>(what: &str, told: &Answer<T>, around: &mut Around<'_>) -> bool {
    match told {
        Ok(_) => {}
        Err(StoreError::Refused(why)) if why.code == ErrorCode::InvalidTransition => {}
        Err(e) => around.judge.finds(format!("{what}: {e}")),
    }
    let lost = around.loses_answer();
    let heard = if lost { ", and does not hear of it" } else { "" };
    around.trace.tell(format!("{what}: {}{heard}", word(told)));
    !lost
}
