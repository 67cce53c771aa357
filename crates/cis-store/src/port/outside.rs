//! What is asked and answered about tasks that somebody outside holds.

use std::sync::Arc;

pub use cis_api::work::ProgressNote as Note;
use cis_core::id::{ExecutionId, Fence, Scope};
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_core::task::TaskStatus;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Claimed, Ending, IdempotencyKey, RunRef};

/// A claim by somebody outside.
#[derive(Debug, Clone)]
pub struct ClaimWork {
    /// The caller's name for this claim: asked again with it, the same tasks are answered.
    pub claim_id: Option<String>,
    /// Who claims, and must say so in all that follows.
    pub identity: String,
    /// What people see as its holder.
    pub worker: String,
    pub limit: u32,
    pub scopes: Option<Vec<Scope>>,
    pub capabilities: Vec<String>,
    /// How long the lease lasts without a heartbeat.
    pub term: Millis,
    pub now: Timestamp,
    pub since_boot: BootTime,
}

/// A task somebody outside holds.
#[derive(Debug, Clone)]
pub struct Held {
    pub claim: Arc<Claimed>,
    pub term: Millis,
    pub expires: BootTime,
    /// What those who held it before said of how far they were, oldest first.
    pub handoff: Vec<Note>,
}

/// Somebody who says that it holds an attempt.
#[derive(Debug, Clone)]
pub struct Holding {
    pub execution: ExecutionId,
    pub fence: Fence,
    pub identity: String,
    /// What it may know of.
    pub scopes: Option<Vec<Scope>>,
    pub now: Timestamp,
    pub since_boot: BootTime,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    pub expires: BootTime,
    pub term: Millis,
    /// The task is to stop; the lease was not extended.
    pub cancel: bool,
}

/// How far a holder is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub percent: Option<f64>,
    pub note: Option<String>,
}

/// What a holder's attempt came to.
#[derive(Debug, Clone)]
pub struct Conclude {
    pub key: Option<IdempotencyKey>,
    pub holding: Holding,
    pub ending: Ending,
    pub exit_code: Option<i32>,
    /// What it says went wrong.
    pub error: String,
    pub outputs: Option<Value>,
    /// The last few KiB it logged.
    pub output: String,
    pub log_bytes: u64,
    /// For the jitter of a retry.
    pub random: u64,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concluded {
    pub execution: ExecutionId,
    pub task_id: String,
    pub status: TaskStatus,
    /// Runs that reached their end in this transaction.
    #[serde(skip)]
    pub ended: Vec<RunRef>,
    /// Something must be swept no later than this.
    #[serde(skip)]
    pub next_due: Option<Timestamp>,
}
