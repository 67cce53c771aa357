//! DAGs and their revisions: publishing, deciding, and where they stand.

use cis_core::id::{DagId, Revision, RunId, Scope};
use cis_core::review::ReviewId;
use cis_core::revision::RevisionStatus;
use cis_core::run::RunStatus;
use cis_core::source::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{AnyOfBuilder, ObjectBuilder};
use utoipa::openapi::{Ref, Schema};
use utoipa::{IntoParams, ToSchema};

use crate::call::object_body;
use crate::definition::DefinitionText;
use crate::run::{RunContext, RunProgress};

/// A DAG in a path.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct DagPath {
    /// What people call the DAG.
    #[param(value_type = DagId)]
    pub id: String,
}

/// A scope in a query.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct InScope {
    /// Which one is meant, where a name exists in several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// A DAG as lists show it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DagSummary {
    pub dag_id: DagId,
    pub scope: Scope,
    /// Its latest run's status, else its latest revision's.
    pub status: String,
    pub revision: Revision,
    pub tasks: u32,
    pub runs: i64,
    /// Who published the latest revision.
    pub published_by: String,
    pub updated_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_run: Option<i64>,
}

/// Who decided, when, and with what note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Decision {
    pub decided_by: String,
    pub decided_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One content of a DAG.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RevisionSummary {
    pub revision: Revision,
    pub status: RevisionStatus,
    pub content_hash: String,
    pub tasks: u32,
    pub created_by: String,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// What to decide about it by, while it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_id: Option<ReviewId>,
    /// Who confirmed or rejected it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// When its definition was removed, some time after it was rejected or had expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Timestamp>,
}

/// Which DAGs are listed.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DagQuery {
    /// Only those that stand so.
    #[param(example = "pending")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Who published the latest revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Only the DAG of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dag_id: Option<String>,
    /// A part of the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q: Option<String>,
    #[serde(default)]
    #[param(inline)]
    pub order: DagOrder,
    /// `next_cursor` of an earlier answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// At most so many; over 1,000 counts as 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// How DAGs are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DagOrder {
    /// The newest first, page by page.
    #[default]
    Created,
    /// The latest change first: one page, since what changes meanwhile moves.
    Updated,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Dags {
    pub dags: Vec<DagSummary>,
    /// Where the list goes on, if it does: the next call's `cursor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Of a list without pages: is there more?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more: Option<bool>,
}

/// Which revision is meant.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct RevisionQuery {
    /// Which one is meant, where a name exists in several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Which revision; else the latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
}

/// A revision of a DAG in full, and a list of all.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DagRevision {
    pub dag_id: DagId,
    pub scope: Scope,
    pub revision: Revision,
    pub status: RevisionStatus,
    pub content_hash: String,
    pub published_by: String,
    pub published_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// What to decide about it by, while it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_id: Option<ReviewId>,
    /// Who decided about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// In its JSON form; absent once it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub definition: Option<DefinitionText>,
    /// The latest first.
    pub revisions: Vec<RevisionSummary>,
}

/// A definition that was taken, or was there before.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Published {
    pub status: Novelty,
    pub dag_id: DagId,
    pub scope: Scope,
    pub revision: Revision,
    pub revision_status: RevisionStatus,
    pub content_hash: String,
    pub confirm_url: String,
    /// What to decide about it by, while it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_id: Option<ReviewId>,
    /// How long it still waits for a confirmation, if it does.
    pub expire_sec: Option<u64>,
    /// Publishing confirmed it, on a node that is set so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub auto_executed: bool,
    /// What that started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

/// Was it there before?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Novelty {
    Created,
    AlreadyExists,
}

/// What a decision about a DAG may say.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DagDecision {
    /// Which revision, by its whole hash; needed once there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
    /// Why; kept with the decision.
    #[schema(max_length = 4096)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Where its tasks start, should no node have served the data directory yet. Taken from the owner on the socket only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub context: Option<RunContext>,
}

object_body!(DagDecision, optional);

/// A decision about a DAG, and what it started.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DagDecided {
    pub status: RevisionStatus,
    pub dag_id: DagId,
    pub scope: Scope,
    pub revision: Revision,
    pub content_hash: String,
    pub tasks_count: u32,
    /// Who decided first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What a confirmation started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// What people call the run: `backup#42`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_status: Option<RunStatus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How to wait for a status.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct StatusQuery {
    /// Which one is meant, where a name exists in several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// How long to wait for a version other than `after`; over a minute counts as one.
    #[param(example = "30s")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// The version the caller knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
}

/// Where a DAG stands: its latest run, or its latest revision.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DagStanding {
    pub dag_id: DagId,
    pub scope: Scope,
    /// Its latest run's, else its latest revision's.
    pub status: String,
    pub revision: Revision,
    /// Tasks of its latest run, else of its latest revision.
    pub total: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_status: Option<RevisionStatus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_by: Option<String>,
    /// What to decide about the latest revision by, while it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_id: Option<ReviewId>,
    /// Who decided about the latest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    #[serde(flatten)]
    #[schema(schema_with = progress_if_any)]
    pub run: Option<RunProgress>,
}

/// The fields of [`RunProgress`], or none of them: a flattened `Option` is no `null`.
fn progress_if_any() -> Schema {
    let none = ObjectBuilder::new().description(Some("nothing of these before its first run"));
    Schema::AnyOf(AnyOfBuilder::new().item(Ref::from_schema_name(RunProgress::name())).item(none).build())
}

/// The same with a number that is another one as soon as anything told is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Versioned<T> {
    // In place: what a generic type refers to is not collected with it.
    #[schema(inline)]
    #[serde(flatten)]
    pub told: T,
    /// It has no order.
    pub version: i64,
}
