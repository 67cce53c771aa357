//! Runs: starting them, and how far they have come.

use cis_core::error::Refusal;
use cis_core::id::{DagId, ExecutionId, Position, Revision, RunId, RunKey, Scope, Version};
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::call::{Body, object_body, read_object, write_object};
use crate::dag::Decision;
use crate::definition::{Definition, DefinitionBody};
use crate::task::TaskSummary;

/// A run in a path.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct RunPath {
    #[param(value_type = RunId)]
    pub run: String,
}

impl From<RunId> for RunPath {
    fn from(run: RunId) -> Self {
        Self { run: run.to_string() }
    }
}

/// A run as lists show it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunSummary {
    pub run_id: RunId,
    pub dag_id: DagId,
    pub scope: Scope,
    pub number: i64,
    pub revision: Revision,
    pub status: RunStatus,
    pub version: Version,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Nothing more of it is claimed: by its own pause, or its scope's.
    pub paused: bool,
    pub params: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    /// Its tasks start in a directory of the run's own at the node, not in its caller's.
    #[serde(default)]
    pub at_node: bool,
    /// The execution of its first task; the others follow in file order.
    pub first_execution: ExecutionId,
    /// Where its events begin.
    pub first_position: Position,
    /// The number of the run that it carries on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<i64>,
    pub created_by: String,
    /// The confirmation that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<Decision>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
    pub total: u32,
    pub left: u32,
    pub completed: u32,
    pub failed: u32,
    pub debts: u32,
    pub cancelled: u32,
    pub skipped: u32,
}

impl RunSummary {
    /// What people call it.
    pub fn label(&self) -> String {
        run_label(&self.dag_id, self.number)
    }

    /// Its parameters, to start another run with.
    pub fn given_params(&self) -> Map<String, Value> {
        self.params.as_object().cloned().unwrap_or_default()
    }
}

/// What people call a run: `backup#42`.
pub fn run_label(dag_id: &DagId, number: i64) -> String {
    format!("{dag_id}#{number}")
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Runs {
    pub runs: Vec<RunSummary>,
    /// Where the list goes on, if it does: the next call's `cursor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Which runs of a DAG are listed.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct RunQuery {
    /// Which one is meant, where a name exists in several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Only the run with this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<i64>,
    /// `next_cursor` of an earlier answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// At most so many; over 1,000 counts as 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Where a list goes on.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// `next_cursor` of an earlier answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// At most so many; over 1,000 counts as 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Run {
    pub dag_id: DagId,
    pub scope: Scope,
    pub status: RunStatus,
    /// Tasks.
    pub total: u32,
    #[serde(flatten)]
    pub progress: RunProgress,
}

/// How far a run has come. Its status and the number of its tasks stand beside it: a DAG has them before its first run, too.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunProgress {
    pub run_id: RunId,
    /// What people call it: `backup#42`.
    pub run: String,
    /// Percent of its tasks that are over.
    #[schema(maximum = 100)]
    pub progress: u64,
    pub completed: u32,
    pub failed: u32,
    pub cancelled: u32,
    pub skipped: u32,
    /// Nothing more of it is started for now.
    pub paused: bool,
    /// The confirmation that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<Decision>,
    pub started_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
    /// The first 1,000. Values over 4 KiB, and all of them once there is a megabyte, are `elided`.
    pub tasks: Vec<TaskSummary>,
}

impl RunProgress {
    pub fn of(run: &RunSummary, tasks: Vec<TaskSummary>) -> Self {
        let done = run.total - run.left;
        Self {
            run_id: run.run_id,
            run: run.label(),
            progress: u64::from(done) * 100 / u64::from(run.total.max(1)),
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

/// The environment and directory that tasks of a run start in, as the coordinator keeps it in a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunContext(pub Value);

/// What only the owner on the socket may say of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerOptions {
    /// The id of the run, so that asking again after a lost answer starts it once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The run ends with the connection that starts it: the answer is a stream that stays open.
    #[serde(default)]
    pub attached: bool,
    /// Where its tasks start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<RunContext>,
    /// Run only these tasks; what they need is carried over from the latest run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// Run these tasks and everything that depends on them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
}

/// How to run a DAG.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartBody {
    /// Instead of what the definition says; only what it declares.
    #[serde(default)]
    pub params: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    /// Which revision; else the latest that was confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
    /// Taken from the owner on the socket only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub owner: Option<OwnerOptions>,
}

object_body!(StartBody, optional);

/// A definition to publish, confirm and run in one go: what running a file is to the owner of a data directory.
#[derive(Debug, Clone)]
pub struct RunDefinitionBody {
    pub definition: DefinitionBody,
    pub start: StartBody,
}

/// The same as it travels.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunDefinition {
    #[schema(value_type = Definition)]
    definition: Value,
    #[serde(default)]
    start: StartBody,
}

impl Body for RunDefinitionBody {
    type Shown = RunDefinition;
    const IS_OPTIONAL: bool = false;

    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        let RunDefinition { definition, start } = read_object(bytes)?;
        Ok(Self { definition: DefinitionBody::Text(definition.to_string().into_bytes()), start })
    }

    fn write(&self) -> Vec<u8> {
        let (definition, start) = (self.definition.write(), write_object(&self.start));
        [b"{\"definition\":", definition.as_slice(), b",\"start\":", start.as_slice(), b"}"].concat()
    }
}

/// How to carry a run on.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    /// Taken from the owner on the socket only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub owner: Option<OwnerOptions>,
}

object_body!(ResumeBody, optional);

/// What to do once more.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryBody {
    /// Its `task_id`.
    pub task: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    /// Taken from the owner on the socket only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub owner: Option<OwnerOptions>,
}

object_body!(RetryBody, required);

/// A run that was started, or carried on by another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunStarted {
    pub run_id: RunId,
    /// What people call it: `backup#42`.
    pub run: String,
    pub dag_id: DagId,
    pub scope: Scope,
    pub number: i64,
    pub status: RunStatus,
    pub message: String,
}

/// How a run is stopped.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelBody {
    /// Wait for no task: SIGKILL.
    #[serde(default)]
    pub kill: bool,
}

object_body!(CancelBody, optional);

/// A run that was asked to stop.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunStopping {
    pub run_id: RunId,
    pub status: RunStatus,
}

/// A run that is held up, or goes on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PausedRun {
    pub run_id: RunId,
    pub status: RunStatus,
    pub paused: bool,
}

/// One chunk of making room. Asked again and again until there is no more; what an earlier one left undone is done first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneBody {
    /// Runs that ended before this go.
    pub before: Timestamp,
    /// But not the latest so many of each DAG.
    pub keep: u32,
    /// At most so many of them with this chunk; none, to finish only what was begun.
    pub limit: u32,
    /// Where to look on, from the last answer; at first 0.
    pub after: RunKey,
    /// Runs whose files the caller has removed.
    #[serde(default)]
    pub cleared: Vec<RunKey>,
}

object_body!(PruneBody, required);

/// What one chunk of making room did.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PrunedChunk {
    /// Runs that it made an end of.
    pub runs: Vec<PrunedRun>,
    /// Runs of which only files are left: the caller removes them.
    pub bare: Vec<BareRun>,
    pub after: RunKey,
    /// There is more to do.
    pub more: bool,
}

/// A run that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedRun {
    pub run_id: RunId,
    /// What people called it.
    pub run: String,
    pub scope: Scope,
    pub status: RunStatus,
}

/// A run of which only files are left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BareRun {
    pub key: RunKey,
    pub run_id: RunId,
    /// Its tasks had these.
    pub first: ExecutionId,
    pub last: ExecutionId,
}
