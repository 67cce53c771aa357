//! The life of a task: one table, pure and total. Whatever is not in it is an [`IllegalMove`].
//!
//! The store repeats each guard in SQL, and `docs/lifecycle.md` shows the same table (a test keeps them equal).

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Waits on its dependencies.
    Pending,
    /// Waits for a person.
    Waiting,
    /// May be claimed, from its `not_before` on.
    Ready,
    /// Someone holds the claim.
    Running,
    /// Asked to stop, not yet gone.
    Cancelling,
    Completed,
    Failed,
    Cancelled,
    TimedOut,
    Skipped,
}

/// What can happen to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskMove {
    DependenciesMet,
    NeedsPerson,
    /// The dependency rule or `when` says no.
    Skip,
    Approve,
    /// An `approval` task was approved: that is all it does.
    ApproveAsDone,
    Reject,
    NoAnswer,
    /// `default_action = "skip"`.
    SkipByDefault,
    Claim,
    QueueTimeout,
    /// The decision after an attempt says try again.
    TryAgain,
    Succeed,
    /// The decision says no more.
    Fail,
    /// The decision says no more, after a timeout.
    TimeOut,
    Cancel,
    /// Its run is stopping and it has not started.
    RunStops,
    /// It is gone after a cancel, or its holder's lease ran out.
    Stopped,
}

impl TaskStatus {
    /// Every status, in the order of a life.
    pub const ALL: [Self; 10] = [
        Self::Pending,
        Self::Waiting,
        Self::Ready,
        Self::Running,
        Self::Cancelling,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::TimedOut,
        Self::Skipped,
    ];

    /// Nothing leaves a terminal status.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::TimedOut | Self::Skipped)
    }

    /// Is someone working on it?
    pub fn is_live(self) -> bool {
        matches!(self, Self::Running | Self::Cancelling)
    }

    /// The word stores and people use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
            Self::Skipped => "skipped",
        }
    }

    /// The status with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }

    /// The status after `step`.
    pub fn after(self, step: TaskMove) -> Result<Self, IllegalMove> {
        use TaskMove as M;
        use TaskStatus as S;
        Ok(match (self, step) {
            (S::Pending, M::DependenciesMet) => S::Ready,
            (S::Pending, M::NeedsPerson) => S::Waiting,
            (S::Pending, M::Skip) => S::Skipped,
            (S::Waiting, M::Approve) => S::Ready,
            (S::Waiting, M::ApproveAsDone) => S::Completed,
            (S::Waiting, M::Reject) => S::Failed,
            (S::Waiting, M::NoAnswer) => S::TimedOut,
            (S::Waiting, M::SkipByDefault) => S::Skipped,
            (S::Ready, M::Claim) => S::Running,
            (S::Ready, M::QueueTimeout) => S::TimedOut,
            (S::Running, M::TryAgain) => S::Ready,
            (S::Running, M::Cancel) => S::Cancelling,
            (S::Running, M::TimeOut) => S::TimedOut,
            (S::Running | S::Cancelling, M::Succeed) => S::Completed,
            (S::Running | S::Cancelling, M::Fail) => S::Failed,
            (S::Cancelling, M::Stopped) => S::Cancelled,
            (S::Pending | S::Waiting | S::Ready, M::RunStops) => S::Cancelled,
            (from, step) => return Err(IllegalMove { from, step }),
        })
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl TaskMove {
    /// Every move.
    pub const ALL: [Self; 17] = [
        Self::DependenciesMet,
        Self::NeedsPerson,
        Self::Skip,
        Self::Approve,
        Self::ApproveAsDone,
        Self::Reject,
        Self::NoAnswer,
        Self::SkipByDefault,
        Self::Claim,
        Self::QueueTimeout,
        Self::TryAgain,
        Self::Succeed,
        Self::Fail,
        Self::TimeOut,
        Self::Cancel,
        Self::RunStops,
        Self::Stopped,
    ];

    /// The word events and docs use.
    pub fn word(self) -> &'static str {
        match self {
            Self::DependenciesMet => "dependencies_met",
            Self::NeedsPerson => "needs_person",
            Self::Skip => "skip",
            Self::Approve => "approve",
            Self::ApproveAsDone => "approve_as_done",
            Self::Reject => "reject",
            Self::NoAnswer => "no_answer",
            Self::SkipByDefault => "skip_by_default",
            Self::Claim => "claim",
            Self::QueueTimeout => "queue_timeout",
            Self::TryAgain => "try_again",
            Self::Succeed => "succeed",
            Self::Fail => "fail",
            Self::TimeOut => "time_out",
            Self::Cancel => "cancel",
            Self::RunStops => "run_stops",
            Self::Stopped => "stopped",
        }
    }

    /// The move with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.word() == word)
    }
}

/// A move the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a task that is {from} cannot {}", .step.word())]
pub struct IllegalMove {
    pub from: TaskStatus,
    pub step: TaskMove,
}

/// The table as Markdown, one row per status, one column per move: what the docs show.
pub fn table() -> String {
    crate::run::markdown(
        "task",
        &TaskStatus::ALL.map(TaskStatus::word),
        &TaskMove::ALL.map(TaskMove::word),
        |row, column| TaskStatus::ALL[row].after(TaskMove::ALL[column]).ok().map(TaskStatus::word),
    )
}
