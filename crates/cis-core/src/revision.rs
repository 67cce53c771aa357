//! The life of a revision: one table, pure and total, as [`crate::task`] is for tasks.
//!
//! Publishing is not in it: it makes a revision, which is pending. Content that was rejected or has expired and is
//! published again makes another one; see [`RevisionStatus::answers_for_its_content`].

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a revision stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RevisionStatus {
    /// Waits for a decision.
    Pending,
    /// May be run.
    Confirmed,
    Rejected,
    /// Waited for longer than its publisher said.
    Expired,
}

/// What can happen to a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RevisionMove {
    Confirm,
    Reject,
    /// No decision came in time.
    Expire,
}

impl RevisionStatus {
    /// Every status, in the order of a life.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Confirmed, Self::Rejected, Self::Expired];

    /// Nothing leaves a terminal status.
    pub fn is_terminal(self) -> bool {
        self != Self::Pending
    }

    /// Is the same content published again this revision? What was rejected or has expired may be asked for anew, as a
    /// revision of its own.
    pub fn answers_for_its_content(self) -> bool {
        matches!(self, Self::Pending | Self::Confirmed)
    }

    /// The word stores and people use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Confirmed => "confirmed",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
        }
    }

    /// The status with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }

    /// The status after `step`.
    pub fn after(self, step: RevisionMove) -> Result<Self, IllegalMove> {
        use RevisionMove as M;
        use RevisionStatus as S;
        Ok(match (self, step) {
            (S::Pending, M::Confirm) => S::Confirmed,
            (S::Pending, M::Reject) => S::Rejected,
            (S::Pending, M::Expire) => S::Expired,
            (from, step) => return Err(IllegalMove { from, step }),
        })
    }
}

impl fmt::Display for RevisionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl RevisionMove {
    /// Every move.
    pub const ALL: [Self; 3] = [Self::Confirm, Self::Reject, Self::Expire];

    /// The word events and docs use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Confirm => "confirm",
            Self::Reject => "reject",
            Self::Expire => "expire",
        }
    }

    /// The move with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.word() == word)
    }

    /// The status it leads to, from wherever it is legal.
    pub fn leads_to(self) -> RevisionStatus {
        match self {
            Self::Confirm => RevisionStatus::Confirmed,
            Self::Reject => RevisionStatus::Rejected,
            Self::Expire => RevisionStatus::Expired,
        }
    }
}

/// A move the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the revision is {from}, it cannot become {}", .step.leads_to())]
pub struct IllegalMove {
    pub from: RevisionStatus,
    pub step: RevisionMove,
}

/// The table as Markdown: what the docs show.
pub fn table() -> String {
    crate::run::markdown(
        "revision",
        &RevisionStatus::ALL.map(RevisionStatus::word),
        &RevisionMove::ALL.map(RevisionMove::word),
        |row, column| {
            RevisionStatus::ALL[row].after(RevisionMove::ALL[column]).ok().map(RevisionStatus::word)
        },
    )
}
