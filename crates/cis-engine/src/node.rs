//! A coordinator that stays, and what others reach through it. What touches no run is written through the store's
//! queue, where many callers share a commit, and the loop is told to look; the rest is asked of the loop.
//!
//! ```text
//!   callers ──► Node ──► store (group commit)
//!                 └────► "look" ──► coordinator's loop ──► runner
//! ```

use std::sync::Arc;

use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Position, RunId, RunKey, Scope};
use cis_core::notice::Way;
use cis_core::run::RunStatus;
use cis_core::source::{BootTime, Clock, Timestamp, new_run_id};
use cis_store::port::{
    Approve, Approved, Decide, Decided, IdempotencyKey, Once, Publish, Published, RunRef, StartRun, Store,
    Tried,
};
use cis_store::sqlite::{Reader, SqliteStore, Written};
use tokio::sync::{OnceCell, watch};

use crate::command::{About, Command};
use crate::context::Context;
use crate::coordinator::{Changes, Handle, Options, SELF};
use crate::desk::Desk;
use crate::growth::{Ear, Growth};
use crate::session::{self, Here};
use crate::system::System;
use crate::token::{self, FreshToken};
use crate::work::Logs;

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
    options: Options,
    /// Where tasks of runs that came over the network start from.
    context: Arc<Context>,
    /// Begun by the first who follows a log.
    growth: Arc<OnceCell<Arc<Growth>>>,
}

impl Host {
    /// Becomes the coordinator, waiting for one that is there to go.
    pub fn open(options: Options, context: Context) -> Result<Self, Refusal> {
        let (here, store) = session::wait_and_start(&options)?;
        let (handle, desk, logs) = (here.handle(), Desk::default(), Logs::default());
        let (context, growth) = (Arc::new(context), Arc::default());
        let node = Node { store, handle, desk, logs, options, context, growth };
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

    /// Where skills of definitions that came over the network are looked for.
    pub fn skill_dirs(&self) -> &[std::path::PathBuf] {
        &self.context.skill_dirs
    }

    /// Changes with every commit.
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.handle.changes()
    }

    /// Hears when tasks of a run print something.
    pub async fn ear(&self, run: RunKey) -> Result<Ear, Refusal> {
        let deaf = |e| Refusal::new(ErrorCode::Unavailable, format!("cannot follow logs: {e}"));
        let growth = self.growth.get_or_try_init(async || Growth::start()).await.map_err(deaf)?;
        let logs = self.options.data_dir.logs(run.0);
        // None of its tasks may have printed anything yet.
        std::fs::create_dir_all(&logs).and_then(|()| growth.ear(&logs)).map_err(deaf)
    }

    /// Publishes a definition.
    pub async fn publish(&self, request: Publish) -> Result<Once<Published>, Refusal> {
        let (store, handle) = (self.store.clone(), self.handle.clone());
        // On its own: a caller that goes away before the answer must not keep the loop from hearing of it.
        let publishing = tokio::spawn(async move {
            let published = store.publish(request).await;
            handle.look().await;
            published
        });
        let published =
            publishing.await.map_err(|_| Refusal::new(ErrorCode::Internal, "publishing broke off"))?;
        Ok(published?)
    }

    /// Decides about a DAG, and starts it if that confirms it. The loop does it itself: it must know of a run before
    /// anything of it is claimed. Tasks find what the caller traces it by in `TRACEPARENT`.
    pub async fn decide(&self, request: Decide, traceparent: Option<&str>) -> Result<Once<Decided>, Refusal> {
        let run_id = request.run_id;
        if request.confirm {
            self.make_room(run_id)?;
        }
        let mut context = self.context_of(run_id);
        if let Some(traceparent) = traceparent {
            *context = context.with("TRACEPARENT", traceparent);
        }
        let command = Command::Decide { request: Box::new(request), context };
        let decided = self.handle.call(command, SELF).await.decided();
        let answer = decided.as_ref().ok().and_then(|once| once.answer.as_ref().ok());
        self.leave_room(run_id, answer.and_then(|decided| decided.run.as_ref()));
        decided
    }

    /// Decides about a task that waits for a person. The loop does it itself: it may be the last of its run.
    pub async fn approve(&self, request: Approve) -> Result<Once<Approved>, Refusal> {
        let command = Command::Approve(Box::new(request));
        self.handle.call(command, SELF).await.approved().map(|once| *once)
    }

    /// Starts a run of a confirmed revision.
    pub async fn start(&self, request: StartRun) -> Result<Once<RunRef>, Refusal> {
        let run_id = request.run_id;
        self.make_room(run_id)?;
        let command = Command::Start { request: Box::new(request), context: self.context_of(run_id) };
        let started = self.handle.call(command, SELF).await.started();
        self.leave_room(run_id, started.as_ref().ok().and_then(|once| once.answer.as_ref().ok()));
        started
    }

    /// Makes the directory that tasks of a run start in.
    fn make_room(&self, run: RunId) -> Result<(), Refusal> {
        std::fs::create_dir_all(self.options.data_dir.work(run)).map_err(|e| {
            Refusal::new(ErrorCode::Unavailable, format!("cannot make the run's directory: {e}"))
        })
    }

    /// Removes it again if nothing new runs: then nothing is in it.
    fn leave_room(&self, asked: RunId, answered: Option<&RunRef>) {
        if answered.is_none_or(|run| run.run_id != asked) {
            let _ = std::fs::remove_dir(self.options.data_dir.work(asked));
        }
    }

    fn context_of(&self, run: RunId) -> Box<Context> {
        let cwd = self.options.data_dir.work(run);
        Box::new(Context { cwd, ..Context::clone(&self.context) })
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
        let (fresh, new) = token::make(&System, caller, by.to_owned(), self.now(), expires_at);
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
