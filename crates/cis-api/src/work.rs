//! Tasks for workers: claiming them, and everything a holder says.

use cis_core::id::{DagId, ExecutionId, Fence, RunId, Scope, TaskId};
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::call::object_body;
use crate::fence::SentFence;

/// A claimed task in a path.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ExecutionPath {
    #[param(value_type = ExecutionId)]
    pub execution: String,
}

impl From<ExecutionId> for ExecutionPath {
    fn from(execution: ExecutionId) -> Self {
        Self { execution: execution.to_string() }
    }
}

/// What a claim may say.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    /// The caller's own name for this claim: again, it answers the same tasks.
    #[schema(min_length = 1, max_length = 255)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_id: Option<String>,
    /// Whom people see as the holder; else the identity of the token.
    #[schema(min_length = 1, max_length = 255)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// `external`, which is what there is.
    #[schema(example = json!(["external"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<String>>,
    /// What the worker can do; tasks that need more are not for it.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub capabilities: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 100)]
    pub scopes: Option<Vec<Scope>>,
    /// At most so many tasks; one, unless it is said.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How long the lease lasts without a heartbeat; 300, unless it is said.
    #[schema(minimum = 1, maximum = 86_400)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_secs: Option<u64>,
    /// How long to wait for a task; over 60 counts as 60.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_secs: Option<u64>,
}

object_body!(ClaimBody, optional);

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClaimedTasks {
    /// None, if there were none within `wait_secs`.
    pub tasks: Vec<ClaimedTask>,
}

/// A claimed task, with all its holder needs to know.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClaimedTask {
    pub execution_id: ExecutionId,
    /// The right to this attempt: everything its holder says names it.
    pub fence: Fence,
    pub lease_expires: Timestamp,
    pub lease_secs: u64,
    pub run_id: RunId,
    /// What people call the run: `backup#42`.
    pub run: String,
    pub dag_id: DagId,
    pub scope: Scope,
    pub task_id: TaskId,
    pub name: String,
    pub description: Option<String>,
    pub attempt: u32,
    pub params: Value,
    pub input: Value,
    /// What its earlier holders said, oldest first.
    pub handoff: Vec<ProgressNote>,
}

/// What a holder said of its progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProgressNote {
    pub attempt_fence: Fence,
    pub holder: String,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a heartbeat says.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatBody {
    pub fence: SentFence,
    /// How long the lease lasts from now on; else as before.
    #[schema(minimum = 1, maximum = 86_400)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_secs: Option<u64>,
}

object_body!(HeartbeatBody, required);

/// The lease after a heartbeat.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LeaseRenewed {
    pub lease_expires: Timestamp,
    pub lease_secs: u64,
    /// The task is to stop; the lease was not extended.
    pub cancel: bool,
}

/// How far it is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgressBody {
    pub fence: SentFence,
    #[schema(minimum = 0, maximum = 100)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

object_body!(ProgressBody, required);

/// That it was noted.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
pub struct Noted {}

/// A piece of what it prints.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogBody {
    pub fence: SentFence,
    #[serde(default)]
    #[schema(required = false)]
    pub stream: StreamName,
    /// Where the text stands in its stream: told again, it is written once.
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    pub offset: u64,
    pub text: String,
}

object_body!(LogBody, required);

/// Where a task prints.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamName {
    #[default]
    Stdout,
    Stderr,
}

/// How much of a stream there is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct LogWritten {
    /// Where it goes on.
    pub offset: u64,
}

/// That it is done.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteBody {
    pub fence: SentFence,
    /// For the tasks after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Map<String, Value>>,
}

object_body!(CompleteBody, required);

/// That it cannot be done.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailBody {
    pub fence: SentFence,
    /// Why.
    pub error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

object_body!(FailBody, required);

/// That another worker is to do it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseBody {
    pub fence: SentFence,
}

object_body!(ReleaseBody, required);

/// Where a task stands after its holder's result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttemptEnded {
    pub execution_id: ExecutionId,
    pub task_id: String,
    pub status: TaskStatus,
}
