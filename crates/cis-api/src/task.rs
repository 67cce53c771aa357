//! Tasks of a run, and decisions about those that wait for a person.

use cis_core::id::{ExecutionId, RunId, TaskId, Version};
use cis_core::review::ReviewId;
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::call::object_body;
use crate::dag::Decision;

/// A task as `status` shows it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskSummary {
    pub execution_id: ExecutionId,
    pub task_id: String,
    pub status: TaskStatus,
    pub version: Version,
    pub attempt: u32,
    /// When a person was asked about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Timestamp>,
    /// What to decide about it by, while it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_id: Option<ReviewId>,
    /// Who approved or rejected it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    pub log_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub log_cut_bytes: u64,
    /// What is too large to be told among others, and how to get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elided: Option<ElidedValues>,
}

/// Values of a task that are left out where several tasks are told: those are absent from the task itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ElidedValues {
    /// How large `output` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// How large `error` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
    /// How large `outputs` are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs_bytes: Option<u64>,
    /// The call that answers with this task alone, and all of its values.
    #[schema(example = "/api/v1/runs/01J…/tasks?task=build")]
    pub get: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Which tasks are listed.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct TaskQuery {
    /// Only the task with this id, with values that lists leave out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Only those that stand so.
    #[param(example = "failed")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// `next_cursor` of an earlier answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// At most so many; over 1,000 counts as 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Tasks {
    pub tasks: Vec<TaskSummary>,
    /// Where the list goes on, if it does: the next call's `cursor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A task of a run in a path.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct TaskPath {
    #[param(value_type = RunId)]
    pub run: String,
    #[param(value_type = TaskId)]
    pub task: String,
}

/// What a decision about a task may say.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskDecision {
    /// What the task asks for.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// Why; kept with the decision.
    #[schema(max_length = 4096)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

object_body!(TaskDecision, optional);

/// A decision about a task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskDecided {
    pub status: Verdict,
    pub run_id: RunId,
    /// What people call the run: `backup#42`.
    pub run: String,
    pub task_id: TaskId,
    /// Where the decision led.
    pub task_status: TaskStatus,
    /// Who decided first.
    pub decided_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What the task asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Map<String, Value>>,
}

/// What a person said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Approved,
    Rejected,
}
