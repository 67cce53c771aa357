//! The only way in for callers, whatever the edge: one function per call of `cis-api`. It authorises, validates, asks the
//! store, and wakes the loop.
//!
//! ```text
//!   edge ── App::call(who, request) ──► a function of this module ──► store: one transaction
//!                                                  └── News ──► coordinator's loop ──► runner
//! ```
//!
//! What a caller wrote is told to the loop on a task of its own: a caller that goes away before the answer must not keep the
//! loop from hearing of it. The functions are private: [`App::call`] checks who may call before any of them runs.
//!
//! | module | calls |
//! |---|---|
//! | `look` | what a caller may see |
//! | `lists`, `shows` | lists, a page at a time; one thing and where it stands |
//! | `publish` | publishing a definition |
//! | `decide` | confirming, rejecting, approving |
//! | `start` | starting runs, resuming, retrying |
//! | `control` | cancel, pause, drain, prune, the coordinator |
//! | `work` | tasks for workers: claim, heartbeat, log, result |
//! | `tokens` | who may call |
//! | `page`, `reads`, `turns` | where a list goes on; read-only views of the store; whose turn it is |

mod attempt_logs;
mod control;
mod decide;
mod lists;
mod look;
mod page;
mod publish;
mod reads;
mod shows;
mod start;
mod tokens;
mod turns;
mod work;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use cis_api::node::{CoordinatorKind, NodeInfo};
use cis_api::{Access, Call, Request};
use cis_core::access::{Caller, Preset};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Position, RunId, RunKey};
use cis_core::notice::Way;
use cis_core::source::{Clock, Millis, Timestamp, new_run_id};
use cis_store::port::{Answer as Answered, IdempotencyKey, Once, RunRef, Tried};
use cis_store::{Pulse, Reader, SqliteStore, Written};
use tokio::sync::{OnceCell, watch};

use crate::coordinator::handle::{News, leaving};
use crate::coordinator::{Changes, Handle, Options, Owner};
use crate::desk::Desk;
use crate::growth::{Ear, Growth};
use crate::proof::Prover;
use crate::system::{System, user};
use attempt_logs::Logs;
use publish::Parsing;

pub use cis_store::port::Quotas;
pub use control::check_whole_node;
pub use look::{Look, Read, read_as_owner};
pub use reads::Reads;

/// How calls are answered, beyond what the coordinator's options say.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a published DAG waits for a confirmation.
    pub pending_for: Millis,
    /// How much each identity may have waiting. The owner on its own machine is not bounded by it.
    pub quotas: Quotas,
    /// What agents publish is confirmed by that, and starts.
    pub auto_execute: bool,
    /// Where skills of definitions that come over the network are looked for.
    pub skill_dirs: Vec<PathBuf>,
    /// What this node says of itself, if it is one.
    pub node: Option<NodeInfo>,
    /// What proves to clients that it is this node, if it is one.
    pub prover: Option<Arc<Prover>>,
}

/// Who sends a request, and what came with it beside its parts.
#[derive(Debug, Clone)]
pub struct Sender {
    pub caller: Caller,
    /// False: the caller only said who it is.
    pub is_proven: bool,
    pub key: Option<IdempotencyKey>,
    /// What the caller traces the request by.
    pub traceparent: Option<String>,
    /// The connection of the owner on the data directory's socket, or this process itself. Only from there come
    /// environments and the ownership of runs: over the network they would be code execution.
    pub connection: Option<Owner>,
}

impl Sender {
    /// The owner of the data directory on this connection, called `user`.
    pub fn owner(user: String, connection: Owner) -> Self {
        let caller = Caller::preset(user, Preset::Owner, None);
        Self { caller, is_proven: true, key: None, traceparent: None, connection: Some(connection) }
    }

    /// The user of this process, as the owner.
    pub fn own_process() -> Self {
        Self::owner(user(), crate::coordinator::SELF)
    }

    fn by(&self) -> String {
        self.caller.identity.clone()
    }
}

/// What is reached through a coordinator in this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct App {
    store: SharedStore,
    pulse: Pulse,
    handle: Handle,
    reads: Reads,
    desk: Desk,
    logs: Logs,
    options: Arc<Options>,
    settings: Arc<Settings>,
    parsing: Parsing,
    /// Begun by the first caller that follows a log.
    growth: Arc<OnceCell<Arc<Growth>>>,
}

/// That a sender may make a call. Only this module can say so, so that [`App::call`] is the only way to an answer.
#[derive(Debug)]
pub struct Permit(());

/// One function per call. Implemented in this module and nowhere else.
pub trait Answer<C: Call> {
    #[doc(hidden)]
    fn answer(
        &self,
        permit: Permit,
        sender: &Sender,
        request: Request<C>,
    ) -> impl Future<Output = Result<Once<C::Response>, Refusal>> + Send;
}

impl<C: Read> Answer<C> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<C>,
    ) -> Result<Once<C::Response>, Refusal> {
        self.read(sender, request).await.map(Once::new)
    }
}

impl App {
    pub(crate) fn new(
        store: SharedStore,
        pulse: Pulse,
        handle: Handle,
        options: Options,
        settings: Settings,
    ) -> Self {
        let reads = Reads::new(options.data_dir.database());
        Self {
            store,
            pulse,
            handle,
            reads,
            desk: Desk::default(),
            logs: Logs::default(),
            options: Arc::new(options),
            settings: Arc::new(settings),
            parsing: Parsing::default(),
            growth: Arc::default(),
        }
    }

    /// Answers a call, if its sender may make it.
    pub async fn call<C: Call>(
        &self,
        sender: &Sender,
        request: Request<C>,
    ) -> Result<Once<C::Response>, Refusal>
    where
        Self: Answer<C>,
    {
        let permit = check_access(C::ACCESS, sender)?;
        self.answer(permit, sender, request).await
    }

    /// Answers a call that only reads, on a thread that may wait for the disk.
    pub async fn read<C: Read>(&self, sender: &Sender, request: Request<C>) -> Result<C::Response, Refusal> {
        check_access(C::ACCESS, sender)?;
        self.look(sender, move |look| C::read(look, request)).await
    }

    /// The same, with the answer in the form that `write` gives it on that thread: a large one takes long to write, and one
    /// identity has no more of them at once than it may read. `make_room` is asked for as many bytes as it will take before
    /// it is read.
    pub async fn read_as<C: Read, P: Send + 'static, T: Send + 'static>(
        &self,
        sender: &Sender,
        request: Request<C>,
        make_room: impl FnOnce(usize) -> Result<P, Refusal> + Send + 'static,
        write: fn(C::Response) -> T,
    ) -> Result<(P, T), Refusal> {
        check_access(C::ACCESS, sender)?;
        self.look(sender, move |look| {
            let room = make_room(C::expected_bytes(look, &request)?)?;
            Ok((room, write(C::read(look, request)?)))
        })
        .await
    }

    /// Looks into the store with the eyes of a sender.
    async fn look<T, F>(&self, sender: &Sender, look: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(Look<'_>) -> Result<T, Refusal> + Send + 'static,
    {
        let (caller, slots, now) = (sender.caller.clone(), Some(self.options.slots), self.now());
        let identity = caller.identity.clone();
        self.reads.read_for(&identity, move |reader| look(Look::new(reader, &caller, slots, now))).await
    }

    /// Read-only views of the store, for edges that follow along.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// The present moment.
    pub fn now(&self) -> Timestamp {
        System.now()
    }

    fn new_run_id(&self) -> RunId {
        new_run_id(&System, &System)
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The store, for reading.
    pub fn reader(&self) -> Result<Reader, Refusal> {
        Ok(Reader::open(&self.options.data_dir.database())?)
    }

    /// Changes with every commit.
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.handle.changes()
    }

    /// What changes in the store, as it does.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// How much has been written since the node started.
    pub fn written(&self) -> Result<Written, Refusal> {
        Ok(self.store.get()?.written())
    }

    /// A connection of the owner closed: the runs that it owns end.
    pub async fn connection_closed(&self, connection: Owner) {
        self.handle.gone(connection).await;
    }

    /// Hears when tasks of a run print something.
    pub async fn ear(&self, run: RunKey) -> Result<Ear, Refusal> {
        let deaf = |e| Refusal::new(ErrorCode::Unavailable, format!("cannot follow logs: {e}"));
        let growth = self.growth.get_or_try_init(async || Growth::start()).await.map_err(deaf)?.clone();
        let logs = self.options.data_dir.logs(run.0);
        // None of its tasks may have printed anything yet.
        let listen = move || std::fs::create_dir_all(&logs).and_then(|()| growth.ear(&logs));
        self.on_disk("following logs", listen).await?.map_err(deaf)
    }

    /// What a sender may have waiting; nothing bounds the owner on its own machine.
    fn quotas_of(&self, sender: &Sender) -> Option<Quotas> {
        sender.connection.is_none().then_some(self.settings.quotas)
    }

    /// Records what came of trying to tell people of an event.
    pub async fn settle_notice(&self, of: Position, way: Way, tried: Tried) -> Result<(), Refusal> {
        Ok(self.store.get()?.settle_notice(of, way, tried, self.now()).await?)
    }

    /// Does work on files: in a node on a thread that may wait for the disk, elsewhere on the loop's own, as commits are.
    async fn on_disk<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        match self.options.kind {
            CoordinatorKind::Node => tokio::task::spawn_blocking(work).await.map_err(|_| broke_off(what)),
            CoordinatorKind::Foreground | CoordinatorKind::Background => Ok(work()),
        }
    }

    /// Writes on a task of its own and tells the loop what came of it.
    async fn write<T, W>(
        &self,
        what: &str,
        write: impl FnOnce(SqliteStore) -> W,
        news: impl FnOnce(&T) -> News + Send + 'static,
    ) -> Result<Once<T>, Refusal>
    where
        T: Send + 'static,
        W: Future<Output = Answered<Once<T>>> + Send + 'static,
    {
        let (writing, handle) = (write(self.store.get()?), self.handle.clone());
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

    /// The same for an operation that takes no key.
    async fn write_plain<T, W>(
        &self,
        what: &str,
        write: impl FnOnce(SqliteStore) -> W,
        news: impl FnOnce(&T) -> News + Send + 'static,
    ) -> Result<T, Refusal>
    where
        T: Send + 'static,
        W: Future<Output = Answered<T>> + Send + 'static,
    {
        let write = |store| {
            let writing = write(store);
            async move { writing.await.map(Once::new) }
        };
        self.write(what, write, news).await?.answer
    }
}

/// The store, until the coordinator lets go of it: an app that is still held must not keep the file open.
#[derive(Debug, Clone)]
pub(crate) struct SharedStore(Arc<Mutex<Option<SqliteStore>>>);

impl SharedStore {
    pub(crate) fn new(store: SqliteStore) -> Self {
        Self(Arc::new(Mutex::new(Some(store))))
    }

    /// A handle for one operation.
    fn get(&self) -> Result<SqliteStore, Refusal> {
        let store = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        store.ok_or_else(leaving)
    }

    /// Takes it from the app: what is asked from now on is refused.
    pub(crate) fn take(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Refuses a sender that may not make a call.
fn check_access(access: Access, sender: &Sender) -> Result<Permit, Refusal> {
    if access == Access::Owner && sender.connection.is_none() {
        let why = "only the owner of the data directory asks for this, on its machine";
        return Err(Refusal::new(ErrorCode::Forbidden, why));
    }
    access.check(&sender.caller)?;
    Ok(Permit(()))
}

/// Something was written that may have made tasks claimable or due.
fn changed() -> News {
    News { ready: true, due: Some(Timestamp(0)), ..News::default() }
}

/// What the loop must know of a run that was asked for as `run_id`. Where another one answers, nothing new runs.
fn begun(run_id: RunId, run: Option<&RunRef>) -> News {
    let new = run.filter(|run| run.run_id == run_id);
    let started = new.filter(|run| !run.status.is_terminal()).cloned();
    News { started, ready: new.is_some(), ..News::default() }
}

pub(crate) fn broke_off(what: &str) -> Refusal {
    Refusal::new(ErrorCode::Internal, format!("{what} broke off"))
}

fn invalid(why: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::ValidationFailed, why)
}
