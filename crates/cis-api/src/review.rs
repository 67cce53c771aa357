//! What waits for a person: revisions to confirm and tasks to approve, each with the id that it is decided by.

use std::collections::BTreeMap;

use cis_core::id::{DagId, Revision, RunId, Scope, TaskId};
use cis_core::review::ReviewId;
use cis_core::revision::RevisionStatus;
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::call::object_body;
use crate::dag::DagDecided;
use crate::run::RunContext;
use crate::task::TaskDecided;

/// A review in a path.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ReviewPath {
    #[param(value_type = ReviewId)]
    pub review: String,
}

impl From<ReviewId> for ReviewPath {
    fn from(review: ReviewId) -> Self {
        Self { review: review.to_string() }
    }
}

/// A revision that waits for a decision.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PendingRevision {
    pub dag_id: DagId,
    pub scope: Scope,
    pub revision: Revision,
    pub content_hash: String,
    pub tasks: u32,
    pub published_by: String,
    pub published_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// What to decide about it by.
    pub review_id: ReviewId,
}

/// A task that waits for a decision.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WaitingTask {
    /// What to decide about it by.
    pub review_id: ReviewId,
    pub dag_id: DagId,
    pub scope: Scope,
    pub run_id: RunId,
    /// `backup#42`.
    pub run: String,
    pub task_id: TaskId,
    /// What people see of it: its `name`, else its id.
    pub title: String,
    /// What it does once approved; `approval`: nothing but that.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// What approving takes, and of which type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub input: BTreeMap<String, String>,
    pub published_by: String,
    /// Who started its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<String>,
    /// What its run was given, defaults included.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    pub waiting_since: Timestamp,
    /// Without an answer by then…
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_by: Option<Timestamp>,
    /// … this happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<String>,
}

/// Something that waits for a person.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PendingItem {
    /// A DAG to confirm.
    Dag(PendingRevision),
    /// A task to approve.
    Task(Box<PendingTask>),
}

/// A task that waits, and where to answer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PendingTask {
    #[serde(flatten)]
    pub task: WaitingTask,
    pub approve_url: String,
    pub reject_url: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Pending {
    pub pending: Vec<PendingItem>,
    /// Where the list goes on, if it does: the next call's `cursor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What a review id is about, decided or not.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Review {
    /// A revision of a DAG.
    Dag(RevisionReview),
    /// A task that waits for a person, or did.
    Task(TaskReview),
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RevisionReview {
    #[serde(flatten)]
    pub line: PendingRevision,
    pub status: RevisionStatus,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskReview {
    #[serde(flatten)]
    pub line: WaitingTask,
    pub status: TaskStatus,
}

impl Review {
    pub fn scope(&self) -> &Scope {
        match self {
            Self::Dag(review) => &review.line.scope,
            Self::Task(review) => &review.line.scope,
        }
    }
}

/// What a decision by review id may say.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewDecision {
    /// What a task asks for.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// Why; kept with the decision.
    #[schema(max_length = 4096)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// As in the decision about a DAG: taken from the owner on the socket only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub context: Option<RunContext>,
}

object_body!(ReviewDecision, optional);

/// A decision by review id.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReviewDecided {
    Dag(DagDecided),
    Task(TaskDecided),
}
