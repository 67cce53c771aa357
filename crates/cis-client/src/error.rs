//! Why a call has no response: the other side refused, or it could not be asked.

use std::sync::Arc;
use std::{fmt, io};

use cis_core::error::{ErrorCode, Refusal};

/// A call without a response. It becomes a [`Refusal`] with `?`, for callers that do not tell the cases apart.
#[derive(Debug)]
pub enum CallError {
    /// The other side answered, and the answer is a refusal.
    Refused(Refusal),
    /// No connection came about.
    Unreachable(Peer, io::Error),
    /// The connection was closed before the answer was complete, or what came is no answer of CIS. A coordinator of a
    /// version that spoke no HTTP on its socket does that.
    NoAnswer(Peer, String),
    /// The other side took the connection and said nothing in time.
    TimedOut(Peer),
    /// The answer is one of CIS, and not of the expected type.
    NotUnderstood(Peer, serde_json::Error),
}

impl CallError {
    /// No process listens there, so the call was not made.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Unreachable(_, e) => {
                matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
            }
            _ => false,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Unreachable(peer, e) => write!(f, "{peer} cannot be reached: {e}"),
            Self::NoAnswer(peer, why) => write!(f, "{peer} cannot be reached: {why}"),
            Self::TimedOut(peer) => write!(f, "{peer} cannot be reached: it does not answer"),
            Self::NotUnderstood(peer, e) => write!(f, "the answer of {peer} is not understood: {e}"),
        }
    }
}

impl std::error::Error for CallError {}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        let message = error.to_string();
        let hint = match error {
            CallError::Refused(refusal) => return refusal,
            CallError::Unreachable(peer, _) | CallError::NoAnswer(peer, _) | CallError::TimedOut(peer) => {
                peer.hint
            }
            CallError::NotUnderstood(..) => "its version and this one may be too far apart: `cis --version`",
        };
        Self::new(ErrorCode::Unavailable, message).hint(hint)
    }
}

/// Who is called, as messages name it.
#[derive(Debug, Clone)]
pub struct Peer {
    name: Arc<str>,
    /// What to do if it cannot be reached.
    hint: &'static str,
}

impl Peer {
    pub(crate) fn node(url: &str) -> Self {
        let hint = "`cis node start` starts one; `--node URL` or `CIS_NODE` says where it is";
        Self { name: format!("the node at {url}").into(), hint }
    }

    pub(crate) fn coordinator(socket: &str) -> Self {
        let hint = "look for a stopped or hanging `cis` process on this data directory";
        Self { name: format!("the coordinator at {socket}").into(), hint }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
