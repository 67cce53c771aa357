//! A coordinator that stays, and what others reach through it. What comes often is written through the store's queue,
//! where many callers share a commit, and the loop is told what came of it; the rest is asked of the loop.
//!
//! ```text
//!   callers ──► Node ──► store (group commit)
//!                 └────► news ────► coordinator's loop ──► runner
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use cis_core::access::Caller;
use cis_core::dag::{Dag, Problem};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Position, RunId, RunKey, Scope};
use cis_core::notice::Way;
use cis_core::run::RunStatus;
use cis_core::source::{BootTime, Clock, Timestamp, new_run_id};
use cis_store::port::{
    Answer, Approve, Approved, Decide, Decided, IdempotencyKey, Once, Prune, Pruned, Publish, Published,
    RunRef, StartRun, Store, Tried,
};
use cis_store::sqlite::{Pulse, Reader, SqliteStore, Written};
use tokio::sync::{OnceCell, watch};

use crate::command::{About, Command};
use crate::context::Context;
use crate::coordinator::handle::News;
use crate::coordinator::{Changes, Handle, Options, SELF};
use crate::desk::Desk;
use crate::growth::{Ear, Growth};
use crate::session::{self, Here};
use crate::skill::{self, KeptLock, SkillPath};
use crate::system::System;
use crate::token::{self, FreshToken};
use crate::work::{Logs, broke_off};

/// A coordinator in this process, for as long as it lives.
#[derive(Debug)]
pub struct Host {
    here: Here,
    node: Node,
}

/// What is reached through it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    pub(crate) store: SqliteStore,
    pub(crate) handle: Handle,
    pub(crate) desk: Desk,
    pub(crate) logs: Logs,
    options: Arc<Options>,
    skill_dirs: Arc<[PathBuf]>,
    /// Begun by the first who follows a log.
    growth: Arc<OnceCell<Arc<Growth>>>,
}

impl Host {
    /// Becomes the coordinator, waiting for one that is there to go. Tasks of runs that come over the network start in
    /// this `context`.
    pub fn open(options: Options, context: Context) -> Result<Self, Refusal> {
        let (here, store) = session::wait_and_start(&options, &context)?;
        let (handle, desk, logs) = (here.handle(), Desk::default(), Logs::default());
        let (options, growth) = (Arc::new(options), Arc::default());
        let skill_dirs = context.skill_dirs.into();
        let node = Node { store, handle, desk, logs, options, skill_dirs, growth };
        Ok(Self { here, node })
    }

    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Lets go; unfinished runs are left to whoever coordinates next, their tasks go on.
    pub fn close(self) -> Result<(), Refusal> {
        let Self { here, node } = self;
        drop(node);
        here.leave()
    }
}

impl Node {
    /// The present moment.
    pub fn now(&self) -> Timestamp {
        System.now()
    }

    /// The same by the clock nobody sets.
    pub fn since_boot(&self) -> BootTime {
        System.since_boot()
    }

    /// An id for a run.
    pub fn new_run_id(&self) -> RunId {
        new_run_id(&System, &System)
    }

    /// The store, for reading.
    pub fn reader(&self) -> Result<Reader, Refusal> {
        Ok(Reader::open(&self.options.data_dir.database())?)
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Pins the skills of a definition that came over the network to what is in the node's skill directories.
    pub fn pin_skills(&self, dag: &mut Dag) -> Vec<Problem> {
        skill::pin(dag, &self.skill_path())
    }

    /// Keeps them as they were pinned, until the definition is published with what this answers.
    pub fn keep_skills(&self, dag: &Dag) -> Result<Option<KeptLock>, Refusal> {
        skill::keep(dag, &self.skill_path(), &self.options.data_dir, self.options.durability)
    }

    fn skill_path(&self) -> SkillPath {
        SkillPath::new(self.skill_dirs.to_vec())
    }

    /// Changes with every commit.
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.handle.changes()
    }

    /// What changes in the store, as it does.
    pub fn pulse(&self) -> Pulse {
        self.store.pulse()
    }

    /// Hears when tasks of a run print something.
    pub async fn ear(&self, run: RunKey) -> Result<Ear, Refusal> {
        let deaf = |e| Refusal::new(ErrorCode::Unavailable, format!("cannot follow logs: {e}"));
        let growth = self.growth.get_or_try_init(async || Growth::start()).await.map_err(deaf)?;
        let logs = self.options.data_dir.logs(run.0);
        // None of its tasks may have printed anything yet.
        std::fs::create_dir_all(&logs).and_then(|()| growth.ear(&logs)).map_err(deaf)
    }

    /// Publishes a definition; its skills are `kept` until it is committed, though its caller goes away before that.
    pub async fn publish(
        &self,
        request: Publish,
        kept: Option<KeptLock>,
    ) -> Result<Once<Published>, Refusal> {
        let now = request.now;
        self.write(
            "publishing",
            move |store| async move {
                let published = store.publish(request).await;
                drop(kept);
                published
            },
            move |published| News { due: published.waits.map(|waits| now.after(waits)), ..News::default() },
        )
        .await
    }

    /// Decides about a DAG, and starts it if that confirms it.
    pub async fn decide(&self, request: Decide) -> Result<Once<Decided>, Refusal> {
        let run_id = request.run_id;
        self.write(
            "deciding",
            move |store| async move { store.decide(request).await },
            move |decided| News { due: decided.next_due, ..begun(run_id, decided.run.as_ref()) },
        )
        .await
    }

    /// Writes on its own, and tells the loop: a caller that goes away before the answer must not keep it from hearing
    /// of what was written.
    pub(crate) async fn write<T, W>(
        &self,
        what: &str,
        write: impl FnOnce(SqliteStore) -> W,
        news: impl FnOnce(&T) -> News + Send + 'static,
    ) -> Result<Once<T>, Refusal>
    where
        T: Send + 'static,
        W: Future<Output = Answer<Once<T>>> + Send + 'static,
    {
        let (writing, handle) = (write(self.store.clone()), self.handle.clone());
        let writing = tokio::spawn(async move {
            let once = match writing.await {
                Ok(once) => once,
                Err(e) => {
                    // The disk may be full: the loop finds out when there is room again.
                    handle.look().await;
                    return Err(e.into());
                }
            };
            if let Ok(told) = once.answer.as_ref()
                && !once.replayed
            {
                handle.wrote(news(told)).await;
            }
            Ok(once)
        });
        writing.await.map_err(|_| broke_off(what))?
    }

    /// Decides about a task that waits for a person. The loop does it itself: it may be the last of its run.
    pub async fn approve(&self, request: Approve) -> Result<Once<Approved>, Refusal> {
        let command = Command::Approve(Box::new(request));
        self.handle.call(command, SELF).await.approved().map(|once| *once)
    }

    /// Starts a run of a confirmed revision.
    pub async fn start(&self, request: StartRun) -> Result<Once<RunRef>, Refusal> {
        let run_id = request.run_id;
        self.write(
            "starting",
            move |store| async move { store.start_run(request).await },
            move |run| News {
                // When it must have begun, the definition may say.
                due: Some(Timestamp(0)),
                ..begun(run_id, Some(run))
            },
        )
        .await
    }

    /// Stops a run.
    pub async fn stop(
        &self,
        key: Option<IdempotencyKey>,
        run: RunKey,
        kill: bool,
    ) -> Result<Once<RunStatus>, Refusal> {
        self.handle.call(Command::Stop { key, run, kill }, SELF).await.stopping()
    }

    /// Lets nothing more of a run be claimed, or lets it be again.
    pub async fn pause(&self, run: RunKey, paused: bool) -> Result<RunStatus, Refusal> {
        self.handle.call(Command::Pause { run, paused }, SELF).await.paused()
    }

    /// The same for everything in a scope; false if it was so already.
    pub async fn pause_scope(&self, scope: Scope, paused: bool) -> Result<bool, Refusal> {
        self.handle.call(Command::PauseScope { scope, paused }, SELF).await.changed()
    }

    /// Claims nothing more, or claims again; false if it was so already.
    pub async fn drain(&self, draining: bool) -> Result<bool, Refusal> {
        self.handle.call(Command::Drain { draining }, SELF).await.changed()
    }

    /// What the loop says of itself, if it still answers.
    pub async fn about(&self) -> Result<About, Refusal> {
        self.handle.call(Command::Hello, SELF).await.hello()
    }

    /// How much has been written since the node started.
    pub fn written(&self) -> Written {
        self.store.written()
    }

    /// Does one chunk of making room.
    pub async fn prune(&self, request: Prune) -> Result<Pruned, Refusal> {
        Ok(self.store.prune(request).await?)
    }

    /// Notes what came of trying to tell somebody of an event.
    pub async fn settle_notice(&self, of: Position, way: Way, tried: Tried) -> Result<(), Refusal> {
        Ok(self.store.settle_notice(of, way, tried, self.now()).await?)
    }

    /// Lets somebody call.
    pub async fn create_token(
        &self,
        caller: Caller,
        by: &str,
        expires_at: Option<Timestamp>,
    ) -> Result<FreshToken, Refusal> {
        let (fresh, new) = token::make(caller, by.to_owned(), self.now(), expires_at)?;
        self.store.create_token(new).await?;
        Ok(fresh)
    }

    /// Takes a token back; false if there is nothing to take back.
    pub async fn revoke_token(&self, token_id: &str) -> Result<bool, Refusal> {
        let revoked = self.store.revoke_token(token_id.to_owned(), self.now()).await?;
        // Whoever still listens with it hears that something happened, and no more.
        self.handle.look().await;
        Ok(revoked)
    }
}

/// What the loop must know of a run that was asked for as `run_id`. Where another one answers, nothing new runs.
fn begun(run_id: RunId, run: Option<&RunRef>) -> News {
    let new = run.filter(|run| run.run_id == run_id);
    let started = new.filter(|run| !run.status.is_terminal()).cloned();
    News { started, ready: new.is_some(), ..News::default() }
}
