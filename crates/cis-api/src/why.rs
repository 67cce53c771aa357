//! What a DAG or a run waits for.

use cis_core::id::{DagId, Revision, RunId, Scope};
use cis_core::review::ReviewId;
use cis_core::source::Timestamp;
use cis_core::why::Why;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// What it waits for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Explained {
    pub dag_id: DagId,
    pub scope: Scope,
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// What people call the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// A revision that waits for a decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaits_confirmation: Option<Awaited>,
    #[serde(flatten)]
    pub why: Why,
}

/// A revision that waits for a decision.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Awaited {
    pub revision: Revision,
    pub content_hash: String,
    pub published_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// What to decide about it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_id: Option<ReviewId>,
}

/// How much is told.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WhyQuery {
    /// Which DAG is meant, where a name exists in several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// At most so many tasks; over 1,000 counts as 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
