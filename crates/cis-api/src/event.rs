//! What happened, as followers are told: one event per state change.

use cis_core::event::{EventName, Subject};
use cis_core::id::{DagId, Fence, Position, RunId, Scope};
use cis_core::source::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

/// One event, by the names people and machines use.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Event {
    #[schema(value_type = i64)]
    pub position: Position,
    pub at: Timestamp,
    pub dag_id: DagId,
    pub scope: Scope,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_number: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// What happened.
    #[serde(rename = "type")]
    pub name: EventName,
    /// What it is about.
    pub subject: Subject,
    /// The identity that asked for it; none where the node itself did it, or it followed from another change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Of a claim by a worker: its holder, as people see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// And its fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// The move of the lifecycle that it was.
    pub step: String,
    pub status: String,
    pub version: i64,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

impl Event {
    /// In the shape of a CloudEvent.
    pub fn cloud_event(&self) -> Value {
        json!({"specversion": "1.0", "id": self.position.to_string(), "source": "cis", "type": self.name.cloud_event_type(),
               "subject": self.subject.key, "data": self})
    }
}

/// Which events are followed, and from where.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Only events of this name, with or without `cis.` before it.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[param(inline, value_type = Option<EventName>)]
    pub kind: Option<String>,
    /// Where to begin, for callers that cannot send `Last-Event-ID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
}

/// That something was committed since the last line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Commits since the coordinator began.
    pub commits: u64,
}
