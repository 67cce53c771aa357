//! Clients: they publish, confirm, cancel, pause and approve, ask again what was not answered, and remember what was.

use std::pin::pin;
use std::sync::Arc;

use cis_core::dag::{self, Dag, Defaults, Format};
use cis_core::id::{ExecutionId, RunId, RunKey};
use cis_core::source::Clock as _;
use cis_engine::command::{Command, Reply};
use cis_engine::coordinator::Handle;
use cis_engine::coordinator::handle::News;
use cis_store::Store as _;
use cis_store::port::{Approve, Decide, IdempotencyKey, Publish, StoreError};
use serde_json::Map;

use super::node::{Call, now};
use super::sketch::Sketch;
use super::worker::Around;

/// What a call of the loop was about.
#[derive(Debug, Clone)]
pub(super) enum About {
    Cancel(RunKey),
    Pause(RunKey, bool),
    Approve(ExecutionId, bool),
}

/// How far somebody is with a DAG.
#[derive(Debug)]
enum Stage {
    Unpublished,
    Published,
    Running(RunKey),
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
    pub(super) fn act(&mut self, handle: &Handle, around: &mut Around<'_>) -> Option<Call<About>> {
        match self.stage {
            Stage::Unpublished => self.publish(around),
            Stage::Published => self.confirm(around),
            Stage::Running(run) => return self.meddle(run, handle, around),
        }
        None
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
        self.stage = Stage::Running(run.key);
    }

    /// Has second thoughts about its run.
    fn meddle(&mut self, run: RunKey, handle: &Handle, around: &mut Around<'_>) -> Option<Call<About>> {
        let (command, about) = match around.chance.below(12) {
            _ if around.calm && self.pauses => {
                (Command::Pause { run, paused: false }, About::Pause(run, false))
            }
            0 if !around.calm => {
                let kill = around.chance.one_in(3);
                (Command::Stop { key: self.key("cancel"), run, kill }, About::Cancel(run))
            }
            1 if !around.calm => {
                self.pauses = true;
                (Command::Pause { run, paused: true }, About::Pause(run, true))
            }
            2..4 if self.pauses => (Command::Pause { run, paused: false }, About::Pause(run, false)),
            _ => return None,
        };
        around.trace.tell(format!("client {} asks: {about:?}", self.number));
        Some(Call::new(handle.clone(), command, about))
    }

    /// Hears what came of something asked of the loop.
    pub(super) fn hear(&mut self, about: &About, reply: &Reply) {
        if let (Stage::Running(own), About::Pause(run, paused)) = (&self.stage, about)
            && own == run
            && matches!(reply, Reply::Paused(_) | Reply::Refused(_))
        {
            self.pauses = *paused;
        }
    }
}

/// Somebody decides about a task that waits for a person.
pub(super) fn approve(execution: ExecutionId, handle: &Handle, around: &mut Around<'_>) -> Call<About> {
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
    around.trace.tell(format!("somebody decides about {execution}: {approve}"));
    let about = About::Approve(execution, approve);
    Call::new(handle.clone(), Command::Approve(Box::new(request)), about)
}
