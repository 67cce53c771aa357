//! Stable error codes, and the one shape in which a refusal travels: through the store, over sockets, to people.

use std::{fmt, io};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// What went wrong, as a name that never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub enum ErrorCode {
    /// Same `dag_id`, other content.
    ContentConflict,
    /// The thing is not in a state that allows this.
    InvalidTransition,
    /// Somebody else holds it.
    AlreadyClaimed,
    /// A stale fence, or a lease that ran out.
    LeaseExpired,
    /// A definition or a request with faults; details list them all.
    ValidationFailed,
    NotFound,
    /// It was there, and was pruned.
    Gone,
    /// More than one thing has this name; say which.
    Ambiguous,
    /// It exists, but nobody allowed to has confirmed it.
    AwaitingConfirmation,
    /// Something to be created is already there.
    AlreadyExists,
    /// The key was used before, with another request.
    DuplicateIdempotencyKey,
    /// Nobody we know: no token, a wrong one, one that was revoked or has run out.
    Unauthorized,
    /// Somebody we know who may not do this.
    Forbidden,
    /// Not the node that the caller means: it does not prove the DID that it is known by, or is not where it was called.
    WrongNode,
    /// The place exists, and is not called like this.
    MethodNotAllowed,
    PayloadTooLarge,
    /// A body that did not come in time.
    RequestTimeout,
    /// More than this caller may ask for at once; later it may.
    RateLimited,
    /// More than this caller may have waiting; once it has less, it may.
    QuotaExceeded,
    /// No room for new work; what is under way is still recorded.
    DiskFull,
    /// Designed, not built yet.
    NotYetSupported,
    /// The store, the coordinator or the runner cannot be reached or used.
    Unavailable,
    /// The database says something that cannot be, or cannot be read at all.
    DatabaseDamaged,
    /// A defect of CIS itself.
    Internal,
}

/// A refusal: what the caller can do about it, with a stable code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    pub code: ErrorCode,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

impl Refusal {
    /// A refusal with this code and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, details: Value::Null }
    }

    /// Nothing was done, because the coordinator goes: asked again of the next one, it is.
    pub fn leaving(message: &str) -> Self {
        Self::new(ErrorCode::Unavailable, message).details(serde_json::json!({"leaving": true}))
    }

    /// May the next coordinator be asked the same?
    pub fn is_leaving(&self) -> bool {
        self.code == ErrorCode::Unavailable && self.details["leaving"] == true
    }

    /// There is no room for `what` on the disk.
    pub fn disk_full(what: &str) -> Self {
        Self::new(ErrorCode::DiskFull, format!("no room for {what}: the disk is full"))
            .hint("make room where the data directory is; nothing has to be started again")
    }

    /// `what` could not be written, because of `e`.
    pub fn unwritten(what: &str, e: &io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::disk_full(what),
            _ => Self::new(ErrorCode::Unavailable, format!("cannot write {what}: {e}")),
        }
    }

    /// The same with a remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with details for machines.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

impl From<crate::task::IllegalMove> for Refusal {
    fn from(e: crate::task::IllegalMove) -> Self {
        Self::new(ErrorCode::InvalidTransition, e.to_string())
            .details(serde_json::json!({"from": e.from.word(), "step": e.step.word()}))
    }
}

impl From<crate::revision::IllegalMove> for Refusal {
    fn from(e: crate::revision::IllegalMove) -> Self {
        let (from, step, to) = (e.from.word(), e.step.word(), e.step.leads_to().word());
        Self::new(ErrorCode::InvalidTransition, e.to_string())
            .details(serde_json::json!({"from": from, "step": step, "to": to}))
    }
}

impl From<crate::run::IllegalMove> for Refusal {
    fn from(e: crate::run::IllegalMove) -> Self {
        Self::new(ErrorCode::InvalidTransition, e.to_string())
            .details(serde_json::json!({"from": e.from.word(), "step": e.step.word()}))
    }
}
