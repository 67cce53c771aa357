//! Decisions about revisions: how they are asked for, what becomes of them, and how they are told.

pub use cis_api::dag::Decision as DecisionLine;
use cis_core::id::{DagId, Revision, RunId, Scope};
use cis_core::review::ReviewId;
pub use cis_core::revision::RevisionStatus;
use cis_core::source::Timestamp;
use serde::{Deserialize, Serialize};

use super::{IdempotencyKey, RunRef};

/// A decision about a revision.
#[derive(Debug, Clone)]
pub struct Settle {
    pub definition: i64,
    /// Confirm exactly this content.
    pub content_hash: String,
    pub confirm: bool,
    pub by: String,
    pub now: Timestamp,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    pub status: RevisionStatus,
    /// False: it had been decided so before.
    pub changed: bool,
}

/// A decision about what a DAG's name stands for at present.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Decide {
    pub key: Option<IdempotencyKey>,
    pub scope: Scope,
    pub dag_id: DagId,
    /// Exactly this content, by its whole hash; needed once there is a second revision.
    pub content_hash: Option<String>,
    /// Exactly this request.
    #[serde(default)]
    pub review: Option<ReviewId>,
    pub confirm: bool,
    #[serde(default)]
    pub note: Option<String>,
    /// Who decides. A publisher decides about its own only if it may.
    pub by: String,
    pub self_confirm: bool,
    /// The id of the run that a confirmation starts.
    pub run_id: RunId,
    /// What the caller traces it by.
    pub traceparent: Option<String>,
    pub now: Timestamp,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    pub status: RevisionStatus,
    /// False: it had been decided so before.
    pub changed: bool,
    pub dag_id: DagId,
    pub scope: Scope,
    pub revision: Revision,
    pub content_hash: String,
    pub tasks: u32,
    /// Who decided first, when, and with what note; nothing in an answer that an earlier program kept.
    #[serde(default)]
    pub decision: Option<DecisionLine>,
    /// What a confirmation started.
    pub run: Option<RunRef>,
    /// Something must be swept no later than this.
    #[serde(skip)]
    pub next_due: Option<Timestamp>,
}
