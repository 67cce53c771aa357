//! The life of a run: one table, pure and total, as [`crate::task`] is for tasks.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// No task has been claimed yet.
    Queued,
    Running,
    /// Being stopped, for a [`StopReason`].
    Cancelling,
    /// Rolling back what had completed.
    Compensating,
    Completed,
    Failed,
    Cancelled,
    TimedOut,
}

/// Why a run is being stopped; committed before the first signal is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Someone asked for it.
    Cancel,
    /// The foreground process it belonged to went away.
    OwnerGone,
    /// It ran over its time.
    Timeout,
    /// `first_success`: a task without dependents completed, the rest is not needed.
    FirstSuccess,
}

/// What can happen to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunMove {
    /// A task left pending or ready, or waits for a person.
    Start,
    Cancel,
    Timeout,
    QueueTimeout,
    /// `first_success` has its success.
    EnoughDone,
    /// Nothing more of it is started until it is unpaused.
    Pause,
    Unpause,
    /// Everything is over and the policy is content.
    Complete,
    /// Everything is over and the policy is not.
    Fail,
    /// Everything is over, and rollbacks exist.
    Compensate,
    /// Stopped, for a cancel (or rollbacks after one are done).
    StoppedByCancel,
    /// Stopped, for a timeout (or rollbacks after one are done).
    StoppedByTimeout,
}

impl RunStatus {
    /// Every status, in the order of a life.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Running,
        Self::Cancelling,
        Self::Compensating,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::TimedOut,
    ];

    /// Nothing leaves a terminal status.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::TimedOut)
    }

    /// The word stores and people use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Compensating => "compensating",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
        }
    }

    /// The status with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }

    /// The status after `step`.
    pub fn after(self, step: RunMove) -> Result<Self, IllegalMove> {
        use RunMove as M;
        use RunStatus as S;
        Ok(match (self, step) {
            (S::Queued, M::Start) => S::Running,
            (S::Queued, M::Cancel) => S::Cancelled,
            (S::Queued, M::QueueTimeout) => S::TimedOut,
            (S::Queued | S::Running, M::Pause | M::Unpause) => self,
            (S::Running, M::Cancel | M::Timeout | M::EnoughDone) => S::Cancelling,
            (S::Queued | S::Running | S::Cancelling, M::Complete) => S::Completed,
            (S::Queued | S::Running | S::Cancelling | S::Compensating, M::Fail) => S::Failed,
            (S::Running | S::Cancelling, M::Compensate) => S::Compensating,
            (S::Cancelling | S::Compensating, M::StoppedByCancel) => S::Cancelled,
            (S::Cancelling | S::Compensating, M::StoppedByTimeout) => S::TimedOut,
            (from, step) => return Err(IllegalMove { from, step }),
        })
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl StopReason {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Cancel, Self::OwnerGone, Self::Timeout, Self::FirstSuccess];

    /// The word stores and people use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::OwnerGone => "owner_gone",
            Self::Timeout => "timeout",
            Self::FirstSuccess => "first_success",
        }
    }

    /// The reason with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.word() == word)
    }

    /// The move that a stop for this reason is.
    pub fn step(self) -> RunMove {
        match self {
            Self::Cancel | Self::OwnerGone => RunMove::Cancel,
            Self::Timeout => RunMove::Timeout,
            Self::FirstSuccess => RunMove::EnoughDone,
        }
    }
}

impl RunMove {
    /// Every move.
    pub const ALL: [Self; 12] = [
        Self::Start,
        Self::Cancel,
        Self::Timeout,
        Self::QueueTimeout,
        Self::EnoughDone,
        Self::Pause,
        Self::Unpause,
        Self::Complete,
        Self::Fail,
        Self::Compensate,
        Self::StoppedByCancel,
        Self::StoppedByTimeout,
    ];

    /// The word events and docs use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Cancel => "cancel",
            Self::Timeout => "timeout",
            Self::QueueTimeout => "queue_timeout",
            Self::EnoughDone => "enough_done",
            Self::Pause => "pause",
            Self::Unpause => "unpause",
            Self::Complete => "complete",
            Self::Fail => "fail",
            Self::Compensate => "compensate",
            Self::StoppedByCancel => "stopped_by_cancel",
            Self::StoppedByTimeout => "stopped_by_timeout",
        }
    }

    /// The move with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.word() == word)
    }
}

/// A move the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a run that is {from} cannot {}", .step.word())]
pub struct IllegalMove {
    pub from: RunStatus,
    pub step: RunMove,
}

/// The table as Markdown: what the docs show.
pub fn table() -> String {
    markdown("run", &RunStatus::ALL.map(RunStatus::word), &RunMove::ALL.map(RunMove::word), |row, column| {
        RunStatus::ALL[row].after(RunMove::ALL[column]).ok().map(RunStatus::word)
    })
}

/// One row per move that leads anywhere, one column per status; empty where the move is illegal.
pub(crate) fn markdown(
    subject: &str,
    statuses: &[&str],
    moves: &[&str],
    cell: impl Fn(usize, usize) -> Option<&'static str>,
) -> String {
    let mut text = format!("| {subject} |");
    for status in statuses {
        text += &format!(" {status} |");
    }
    text += "\n|---|";
    text += &"---|".repeat(statuses.len());
    for (column, step) in moves.iter().enumerate() {
        text += &format!("\n| **{step}** |");
        for row in 0..statuses.len() {
            text += &cell(row, column).map_or(" |".to_owned(), |to| format!(" {to} |"));
        }
    }
    text.push('\n');
    text
}
