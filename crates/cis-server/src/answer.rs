//! What good answers look like: the bodies that are sent and described are these types. What the store shows as it is
//! (a line of a list, a task, a token) is described where it lives.

use cis_core::access::{Caller, Role};
use cis_core::did::Did;
use cis_core::id::{DagId, ExecutionId, Fence, Revision, RunId, Scope, TaskId};
use cis_core::review::ReviewId;
use cis_core::run::RunStatus;
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use cis_engine::token::sha256_hex;
use cis_store::port::{DecisionLine, Note, RevisionStatus};
use cis_store::sqlite::reader::{DagLine, PendingLine, RevisionLine, RunLine, TaskLine};
use cis_store::sqlite::{TokenLine, WaitingLine};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::schema::{AnyOfBuilder, ObjectBuilder};
use utoipa::openapi::{Ref, Schema};

use crate::About;

/// A definition that was taken, or was there before.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Published {
    pub(crate) status: Novelty,
    pub(crate) dag_id: DagId,
    pub(crate) scope: Scope,
    pub(crate) revision: Revision,
    pub(crate) revision_status: RevisionStatus,
    pub(crate) content_hash: String,
    pub(crate) confirm_url: String,
    /// What to decide about it by, while it waits for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) review_id: Option<ReviewId>,
    /// How long it still waits for somebody to confirm it, if it does.
    pub(crate) expire_sec: Option<u64>,
    /// Publishing confirmed it, on a node that is set so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub(crate) auto_executed: bool,
    /// What that started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
}

/// Was it there before?
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Novelty {
    Created,
    AlreadyExists,
}

/// A decision about a DAG, and what it started.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Decided {
    pub(crate) status: RevisionStatus,
    pub(crate) dag_id: DagId,
    pub(crate) scope: Scope,
    pub(crate) revision: Revision,
    pub(crate) content_hash: String,
    pub(crate) tasks_count: u32,
    /// Who decided first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decided_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decided_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// What a confirmation started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_id: Option<RunId>,
    /// What people call the run: `backup#42`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_status: Option<RunStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

/// Where a DAG stands: its latest run, or its latest revision.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Standing {
    pub(crate) dag_id: DagId,
    pub(crate) scope: Scope,
    /// Its latest run's, else its latest revision's.
    pub(crate) status: String,
    pub(crate) revision: Revision,
    /// Tasks.
    pub(crate) total: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision_status: Option<RevisionStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) published_by: Option<String>,
    /// What to decide about the latest revision by, while it waits for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) review_id: Option<ReviewId>,
    /// Who decided about the latest revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decision: Option<DecisionLine>,
    #[serde(flatten)]
    #[schema(schema_with = progress_if_any)]
    pub(crate) run: Option<Progress>,
}

/// One run.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Run {
    pub(crate) dag_id: DagId,
    pub(crate) scope: Scope,
    #[serde(flatten)]
    pub(crate) progress: Progress,
}

/// How far a run has come.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Progress {
    pub(crate) run_id: RunId,
    /// What people call it: `backup#42`.
    pub(crate) run: String,
    pub(crate) status: RunStatus,
    /// Percent of its tasks that are over.
    #[schema(maximum = 100)]
    pub(crate) progress: u64,
    pub(crate) total: u32,
    pub(crate) completed: u32,
    pub(crate) failed: u32,
    pub(crate) cancelled: u32,
    pub(crate) skipped: u32,
    /// Nothing more of it is started for now.
    pub(crate) paused: bool,
    /// The confirmation that started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) confirmation: Option<DecisionLine>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) completed_at: Option<Timestamp>,
    /// The first 1,000.
    pub(crate) tasks: Vec<TaskLine>,
}

impl Progress {
    pub(crate) fn of(run: &RunLine, tasks: Vec<TaskLine>) -> Self {
        let done = run.total - run.left;
        Self {
            run_id: run.run_id,
            run: run.label(),
            status: run.status,
            progress: u64::from(done) * 100 / u64::from(run.total.max(1)),
            total: run.total,
            completed: run.completed,
            failed: run.failed,
            cancelled: run.cancelled,
            skipped: run.skipped,
            paused: run.paused,
            confirmation: run.confirmation.clone(),
            started_at: run.started_at,
            completed_at: run.completed_at,
            tasks,
        }
    }
}

/// The same with a number that is another one as soon as anything told is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Versioned<T> {
    #[serde(flatten)]
    pub(crate) told: T,
    /// It has no order.
    pub(crate) version: i64,
}

impl Versioned<Value> {
    pub(crate) fn of(told: impl Serialize) -> Self {
        let told = json!(told);
        // Thirteen hexadecimal digits: as much as every reader of JSON takes for an exact number.
        let digest = sha256_hex(told.to_string().as_bytes());
        let version = digest.get(..13).and_then(|digits| i64::from_str_radix(digits, 16).ok());
        Self { told, version: version.unwrap_or_default() }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Dags {
    pub(crate) dags: Vec<DagLine>,
    /// Where the list goes on, if it does: the next call's `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
    /// Of a list without pages: is there more?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) more: Option<bool>,
}

/// A revision of a DAG in full, and a list of all.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Shown {
    pub(crate) dag_id: DagId,
    pub(crate) scope: Scope,
    pub(crate) revision: Revision,
    pub(crate) status: RevisionStatus,
    pub(crate) content_hash: String,
    pub(crate) published_by: String,
    pub(crate) published_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    /// What to decide about it by, while it waits for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) review_id: Option<ReviewId>,
    /// Who decided about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decision: Option<DecisionLine>,
    /// In its JSON form.
    #[schema(value_type = Object)]
    pub(crate) definition: Value,
    /// The latest first.
    pub(crate) revisions: Vec<RevisionLine>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Pending {
    pub(crate) pending: Vec<Waiting>,
    /// Where the list goes on, if it does: the next call's `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}

/// Something that waits for a person.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Waiting {
    /// A DAG to confirm.
    Dag(PendingLine),
    /// A task to approve.
    Task(Box<WaitingTask>),
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WaitingTask {
    #[serde(flatten)]
    pub(crate) line: WaitingLine,
    pub(crate) approve_url: String,
    pub(crate) reject_url: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Runs {
    pub(crate) runs: Vec<RunLine>,
    /// Where the list goes on, if it does: the next call's `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tasks {
    pub(crate) tasks: Vec<TaskLine>,
    /// Where the list goes on, if it does: the next call's `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}

/// A run that was started again, or carried on by another.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Started {
    pub(crate) run_id: RunId,
    /// What people call it: `backup#42`.
    pub(crate) run: String,
    pub(crate) dag_id: DagId,
    pub(crate) scope: Scope,
    pub(crate) number: i64,
    pub(crate) status: RunStatus,
    pub(crate) message: String,
}

/// A decision about a task.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Approved {
    pub(crate) status: Verdict,
    pub(crate) run_id: RunId,
    /// What people call the run: `backup#42`.
    pub(crate) run: String,
    pub(crate) task_id: TaskId,
    /// Where the decision led.
    pub(crate) task_status: TaskStatus,
    /// Who decided first.
    pub(crate) decided_by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decided_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// What the task asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outputs: Option<Map<String, Value>>,
}

/// A decision by review id.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum ReviewDecided {
    Dag(Decided),
    Task(Approved),
}

/// What a person said.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Approved,
    Rejected,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Claimed {
    /// None, if there were none within `wait_secs`.
    pub(crate) tasks: Vec<Job>,
}

/// A claimed task, with all its holder needs to know.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Job {
    pub(crate) execution_id: ExecutionId,
    /// The right to this attempt: everything its holder says names it.
    pub(crate) fence: Fence,
    pub(crate) lease_expires: Timestamp,
    pub(crate) lease_secs: u64,
    pub(crate) run_id: RunId,
    /// What people call the run: `backup#42`.
    pub(crate) run: String,
    pub(crate) dag_id: DagId,
    pub(crate) scope: Scope,
    pub(crate) task_id: TaskId,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) params: Value,
    pub(crate) input: Value,
    /// What those who held it before said, oldest first.
    pub(crate) handoff: Vec<Note>,
}

/// That somebody still holds a task.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Beat {
    pub(crate) lease_expires: Timestamp,
    pub(crate) lease_secs: u64,
    /// The task is to stop; the lease was not extended.
    pub(crate) cancel: bool,
}

/// That it was noted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Noted {}

/// How much of a stream there is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Written {
    /// Where it goes on.
    pub(crate) offset: u64,
}

/// What became of an attempt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Concluded {
    pub(crate) execution_id: ExecutionId,
    pub(crate) task_id: String,
    pub(crate) status: TaskStatus,
}

/// A run that is held up, or goes on.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PausedRun {
    pub(crate) run_id: RunId,
    pub(crate) status: RunStatus,
    pub(crate) paused: bool,
}

/// A scope that is held up, or goes on.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PausedScope {
    pub(crate) scope: Scope,
    pub(crate) paused: bool,
    /// False: so it was before.
    pub(crate) changed: bool,
}

/// A node that is held up, or goes on.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Drained {
    pub(crate) draining: bool,
    /// False: so it was before.
    pub(crate) changed: bool,
}

/// A run that was asked to stop.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Stopping {
    pub(crate) run_id: RunId,
    pub(crate) status: RunStatus,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokens {
    pub(crate) tokens: Vec<TokenLine>,
}

/// A new token, told once.
#[derive(Serialize, ToSchema)]
pub(crate) struct FreshToken {
    pub(crate) token_id: String,
    /// The secret.
    pub(crate) token: String,
    pub(crate) identity: String,
    pub(crate) roles: Vec<Role>,
    pub(crate) scopes: Option<Vec<Scope>>,
    pub(crate) expires_at: Option<Timestamp>,
}

/// A token that was taken back.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Revoked {
    pub(crate) token_id: String,
    /// `revoked`.
    pub(crate) status: String,
}

/// Who calls, and which node says so.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Whoami {
    #[serde(flatten)]
    pub(crate) caller: Caller,
    pub(crate) node: Did,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Nodes {
    pub(crate) nodes: Vec<About>,
}

/// That it is up.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Up {
    /// `up`.
    pub(crate) status: String,
    pub(crate) version: String,
}

/// That work which comes in would be done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ready {
    /// `ready`.
    pub(crate) status: String,
    pub(crate) node: Did,
}

/// The fields of [`Progress`], or none of them: a flattened `Option` is no `null`.
fn progress_if_any() -> Schema {
    let none = ObjectBuilder::new().description(Some("nothing of these before its first run"));
    Schema::AnyOf(AnyOfBuilder::new().item(Ref::from_schema_name(Progress::name())).item(none).build())
}
