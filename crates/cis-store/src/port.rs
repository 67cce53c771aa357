//! The store port: a small set of domain operations. Each is atomic, durable when it answers (at the store's
//! durability), and safe to ask again after a lost answer.

mod decision;
mod outside;
mod pruning;
mod quotas;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use cis_core::access::Caller;
use cis_core::dag::Dag;
use cis_core::dag::plan::Plan;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, Epoch, ExecutionId, Fence, Revision, RunId, RunKey, Scope, TaskId, TaskIx};
use cis_core::retry::Failure;
use cis_core::review::ReviewId;
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_core::task::TaskStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use decision::{Decide, Decided, DecisionLine, RevisionStatus, Settle, Settled};
pub use outside::{ClaimWork, Conclude, Concluded, Heartbeat, Held, Holding, Note, Progress};
pub use pruning::{Bare, Prune, Pruned};
pub use quotas::Quotas;

/// What a store can say no with.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The rules say no; nothing changed.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The database says no; nothing changed.
    #[error("{0}")]
    Database(String),
    /// What the database holds cannot be; nothing changed, and nothing should before somebody has looked at it.
    #[error("{0}")]
    Damaged(String),
    /// The database was made by an earlier version; a writer of this one brings it up to date.
    #[error("the database is of an earlier version (schema {0})")]
    Outdated(usize),
    /// The disk is full; nothing changed.
    #[error("the disk is full")]
    Full,
    /// The disk may only be read; nothing changed.
    #[error("the disk is read-only")]
    ReadOnly,
    /// What is on the disk is not known any more; whoever opens the store next finds out.
    #[error("{0}")]
    Lost(String),
    /// The store has shut down.
    #[error("the store is closed")]
    Closed,
}

impl From<StoreError> for Refusal {
    fn from(e: StoreError) -> Self {
        match e {
            StoreError::Refused(refusal) => refusal,
            StoreError::Database(why) => {
                Self::new(ErrorCode::Unavailable, format!("the database failed: {why}"))
            }
            StoreError::Damaged(why) => damaged(&why),
            StoreError::Outdated(_) => Self::new(ErrorCode::Unavailable, e.to_string())
                .hint("`cis node start`, or any `cis run`, brings it up to date"),
            StoreError::Full => Self::disk_full("the database"),
            StoreError::ReadOnly => {
                Self::new(ErrorCode::Unavailable, "the database cannot be written: its disk is read-only")
                    .hint("make it writable, or choose another `--data-dir`; then start again")
            }
            StoreError::Lost(why) => Self::new(ErrorCode::Unavailable, why)
                .hint("look after the disk, then start again: what was acknowledged is taken up from there"),
            StoreError::Closed => Self::leaving("the store is closed"),
        }
    }
}

/// What somebody is told whose database is damaged, and the ways out.
pub fn damaged(why: &str) -> Refusal {
    Refusal::new(ErrorCode::DatabaseDamaged, format!("the database is damaged: {why}")).hint(
        "`cis doctor` says more, and changes nothing; `cis restore FILE --force` puts a backup in its place",
    )
}

/// What an operation answers.
pub type Answer<T> = Result<T, StoreError>;

/// What the coordinator's loop asks of a store. The simulation holds it up, and kills it, before and after each of these;
/// what callers ask for goes to the store itself.
pub trait CoordinatorStore: Send + Sync + 'static {
    /// Begins a coordinator's epoch: a higher one, and every attempt the store believes is live. Leases of an earlier boot get
    /// one fresh term.
    fn open_epoch(&self, now: Timestamp, boot: Boot) -> impl Future<Output = Answer<Opening>> + Send;
    /// Records how attempts ended, lets their dependents go, and claims what is next: one transaction.
    fn advance(&self, request: Advance) -> impl Future<Output = Answer<Advanced>> + Send;
    /// Notes that processes have started; changes no state.
    fn note_started(&self, started: Vec<Started>, now: Timestamp) -> impl Future<Output = Answer<()>> + Send;
    /// Does one bounded chunk of the large steps that are under way.
    fn work(&self, now: Timestamp) -> impl Future<Output = Answer<Worked>> + Send;
    /// Does what has become due: backoffs over, timeouts, leases that ran out, expiries. Refused to a coordinator whose
    /// epoch is over: it may have looked at its clocks long ago.
    fn sweep(
        &self,
        epoch: Epoch,
        now: Timestamp,
        since_boot: BootTime,
    ) -> impl Future<Output = Answer<Swept>> + Send;
    /// Commits that a run is to stop, for a reason.
    fn stop_run(&self, request: StopRun) -> impl Future<Output = Answer<Once<RunStatus>>> + Send;
    /// Waits until the store can be used no more, and says why: another caller's write may have failed.
    fn lost(&self) -> impl Future<Output = StoreError> + Send {
        std::future::pending()
    }
}

/// A definition as the store hands it out: parsed once, shared.
#[derive(Debug)]
pub struct Definition {
    pub key: i64,
    pub revision: Revision,
    pub dag: Arc<Dag>,
    pub plan: Plan,
}

/// Which boot of the machine this is, and how long ago it was.
#[derive(Debug, Clone)]
pub struct Boot {
    pub id: Arc<str>,
    pub now: BootTime,
}

/// What a coordinator finds when its life begins.
#[derive(Debug, Clone)]
pub struct Opening {
    pub epoch: Epoch,
    pub live: Vec<LiveAttempt>,
    /// Runs that are not over.
    pub unfinished: Vec<Unfinished>,
    /// Leases that got a fresh term.
    pub renewed: usize,
}

/// A run that is not over.
#[derive(Debug, Clone)]
pub struct Unfinished {
    pub run: RunRef,
    /// It belongs to a foreground process.
    pub attached: bool,
}

/// An attempt the store believes is running.
#[derive(Debug, Clone)]
pub struct LiveAttempt {
    pub execution: ExecutionId,
    pub fence: Fence,
    pub run: RunKey,
    pub status: TaskStatus,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// What starting it needs, should the runner never have heard of it.
    pub claim: Arc<Claimed>,
}

/// A caller's own name for one request: asked again with it, the request is not done again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyKey {
    pub caller: String,
    pub key: String,
    /// What was asked: the same key with another request is a mistake.
    pub request_hash: String,
}

/// What a request that may carry a key came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Once<T> {
    /// With a key, a refusal is an answer that is kept as well.
    pub answer: Result<T, Refusal>,
    /// It had been answered before; nothing was done.
    pub replayed: bool,
}

impl<T> Once<T> {
    /// An answer that was given now.
    pub fn new(answer: T) -> Self {
        Self { answer: Ok(answer), replayed: false }
    }

    /// The same with another answer in place of a good one.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Once<U> {
        Once { answer: self.answer.map(f), replayed: self.replayed }
    }

    /// The answer alone.
    pub fn plain(self) -> Answer<T> {
        Ok(self.answer?)
    }
}

/// A definition to publish.
#[derive(Debug, Clone)]
pub struct Publish {
    pub key: Option<IdempotencyKey>,
    pub dag: Arc<Dag>,
    pub content_hash: String,
    /// Other content under a known id: a new revision, or a `ContentConflict`?
    pub new_revision: bool,
    pub by: String,
    /// False: the publisher only said that it is `by`. Owners alone decide about what it publishes.
    pub by_proven: bool,
    pub now: Timestamp,
    pub expires_at: Option<Timestamp>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// False: this content was already there.
    pub created: bool,
    pub definition: i64,
    pub scope: Scope,
    pub dag_id: DagId,
    pub revision: Revision,
    pub status: RevisionStatus,
    pub content_hash: String,
    /// How long from now it still waits for a decision, if it waits and not for ever.
    #[serde(default)]
    pub waits: Option<Millis>,
    /// What to decide about it by, while it waits for that.
    #[serde(default)]
    pub review_id: Option<ReviewId>,
}

/// A decision about a task that waits for a person.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Approve {
    pub key: Option<IdempotencyKey>,
    pub execution: ExecutionId,
    pub approve: bool,
    /// What the task asks for; it becomes its outputs.
    pub input: Map<String, Value>,
    pub note: Option<String>,
    /// Who decides. The publisher of a DAG approves its tasks only if it may.
    pub by: String,
    pub self_confirm: bool,
    pub now: Timestamp,
}

/// What became of it: the same to everybody who decides the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approved {
    pub approved: bool,
    /// False: it had been decided so before.
    pub changed: bool,
    pub run: RunRef,
    pub task_id: TaskId,
    /// Where the decision led.
    pub status: TaskStatus,
    /// Who decided first, when (unknown in an answer that an earlier program kept), and with what note.
    pub by: String,
    #[serde(default)]
    pub at: Option<Timestamp>,
    pub note: Option<String>,
    pub outputs: Option<Map<String, Value>>,
}

/// A token to let somebody call with.
#[derive(Debug, Clone)]
pub struct NewToken {
    pub token_id: String,
    /// SHA-256 of the secret, in hex.
    pub secret_hash: String,
    pub caller: Caller,
    pub by: String,
    pub now: Timestamp,
    pub expires_at: Option<Timestamp>,
}

/// What came of trying to tell somebody something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tried {
    Given,
    Again { at: Timestamp, problem: String },
    GivenUp { problem: String },
}

/// What a run does with one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    Run,
    /// Completed in the run this one resumes: taken over with its outputs.
    Carry,
    /// Not selected: skipped, and its dependents go on.
    Leave,
}

/// A run to create.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StartRun {
    pub key: Option<IdempotencyKey>,
    pub run_id: RunId,
    pub definition: i64,
    /// Instead of the definition's defaults; only what it declares.
    pub params: Map<String, Value>,
    pub max_parallel: Option<u32>,
    /// A foreground process owns it; it ends with that process.
    pub attached: bool,
    /// Its tasks start where the node says, each run in a directory of its own; else where its caller is.
    #[serde(default)]
    pub at_node: bool,
    /// What the caller traces it by.
    #[serde(default)]
    pub traceparent: Option<String>,
    /// One per task; `None` means run them all.
    pub fates: Option<Vec<Fate>>,
    /// The run whose completed tasks are carried over.
    pub resumed_from: Option<RunKey>,
    /// Start only if no run of this definition was started by its confirmation yet; else answer that run.
    pub by_confirmation: bool,
    pub by: String,
    /// False: the caller only said that it is `by`. Owners alone approve the tasks of its run.
    #[serde(default)]
    pub by_proven: bool,
    pub now: Timestamp,
}

/// A run to stop.
#[derive(Debug, Clone)]
pub struct StopRun {
    pub key: Option<IdempotencyKey>,
    pub run: RunKey,
    pub reason: StopReason,
    /// The caller that asks for it; none where the node itself does.
    pub by: Option<String>,
    pub now: Timestamp,
}

/// Which run: for people, for machines, for the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRef {
    pub key: RunKey,
    pub run_id: RunId,
    pub dag_id: DagId,
    pub scope: Scope,
    pub number: i64,
    pub status: RunStatus,
}

/// Attempts that ended, and what to claim next.
#[derive(Debug, Clone)]
pub struct Advance {
    pub reports: Vec<Report>,
    pub claim: Option<Claim>,
    pub now: Timestamp,
}

/// How one attempt ended.
#[derive(Debug, Clone)]
pub struct Report {
    pub execution: ExecutionId,
    pub fence: Fence,
    pub ending: Ending,
    pub started_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub exit_code: Option<i32>,
    /// The last few KiB of each stream.
    pub output: String,
    pub error: String,
    pub log_bytes: u64,
    pub log_cut_bytes: u64,
    pub outputs: Option<Value>,
    /// For the jitter of a retry.
    pub random: u64,
}

/// What an attempt came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Succeeded,
    Failed {
        failure: Failure,
        why: Option<String>,
    },
    /// Ended because it was told to, or never begun because of that.
    Stopped,
    /// Given back undone. The first few times it costs no try.
    Released,
}

/// What to claim.
#[derive(Debug, Clone)]
pub struct Claim {
    pub epoch: Epoch,
    pub holder: String,
    pub limit: u32,
    /// Kinds the claimant can do.
    pub kinds: Vec<&'static str>,
    /// Scopes it may touch; `None` means any.
    pub scopes: Option<Vec<Scope>>,
    /// What the claimant can do beyond that: tasks that need more are not for it.
    pub capabilities: Vec<String>,
}

/// What an advance did.
#[derive(Debug, Clone, Default)]
pub struct Advanced {
    /// Per report: was it recorded, or was its fence stale?
    pub recorded: Vec<Recorded>,
    pub claimed: Vec<Arc<Claimed>>,
    /// Runs that reached their end in this transaction.
    pub ended: Vec<RunRef>,
    /// Attempts that must be stopped now (their run is stopping).
    pub stop: Vec<(ExecutionId, Fence)>,
    /// Something must be swept no later than this.
    pub next_due: Option<Timestamp>,
    /// Large steps are under way: call `work`.
    pub more_work: bool,
    /// The disk is full: nothing was claimed.
    pub full: bool,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    Now(TaskStatus),
    /// Stale fence, or over already: nothing changed.
    Stale,
}

/// A task somebody holds the claim for.
#[derive(Debug)]
pub struct Claimed {
    pub execution: ExecutionId,
    pub fence: Fence,
    pub attempt: u32,
    pub task: TaskIx,
    pub run: Arc<RunInfo>,
    /// Outputs of the tasks before it, if a template of its asks for them.
    pub upstream: BTreeMap<String, Value>,
}

/// What every task of a run shares.
#[derive(Debug)]
pub struct RunInfo {
    pub key: RunKey,
    pub run_id: RunId,
    pub number: i64,
    pub attached: bool,
    /// See [`StartRun::at_node`].
    pub at_node: bool,
    pub traceparent: Option<String>,
    /// At most so many of its tasks are under way at once.
    pub max_parallel: Option<u32>,
    pub params: Value,
    pub definition: Arc<Definition>,
}

impl Claimed {
    /// The task's definition.
    pub fn task(&self) -> &cis_core::dag::Task {
        &self.run.definition.dag.tasks[self.task.index()]
    }
}

/// What one chunk of work did.
#[derive(Debug, Clone, Default)]
pub struct Worked {
    pub more: bool,
    pub stop: Vec<(ExecutionId, Fence)>,
    pub ended: Vec<RunRef>,
    pub next_due: Option<Timestamp>,
}

/// What a sweep did.
#[derive(Debug, Clone, Default)]
pub struct Swept {
    pub ended: Vec<RunRef>,
    pub next_due: Option<Timestamp>,
    pub more_work: bool,
}

/// A process that has started.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    pub execution: ExecutionId,
    pub fence: Fence,
    pub at: Timestamp,
}
