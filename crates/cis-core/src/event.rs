//! What happened: one event per state change, written in the same transaction, enough to fold back into state.

mod name;
mod subject;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{Fence, Position, RunKey, TaskIx, Version};
use crate::run::{RunMove, RunStatus, StopReason};
use crate::source::Timestamp;
use crate::task::{TaskMove, TaskStatus};

pub use name::{CREATE, EventName, PRUNE, PRUNED, PUBLISH, UnknownEventName, table};
pub use subject::{Subject, SubjectKind};

/// One state change of a run or of one of its tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub position: Position,
    pub run: RunKey,
    pub at: Timestamp,
    /// The version the subject has after it.
    pub version: Version,
    pub change: Change,
    /// The identity that asked for it; none where the node itself did it, or it followed from another change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Of a claim from outside: its holder, as people see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// And its fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// What else there is to say: attempt, exit code, cause.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// What changed, and to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The run came to be; its tasks are pending, ready or carried over as its definition says.
    RunCreated,
    Run {
        by: RunMove,
        to: RunStatus,
    },
    Task {
        task: TaskIx,
        by: TaskMove,
        to: TaskStatus,
    },
}

impl Change {
    /// The event's name.
    pub fn name(&self) -> EventName {
        match self {
            Self::RunCreated => EventName::RunCreated,
            Self::Run { by, to } => EventName::of_run(*by, *to),
            Self::Task { by, .. } => EventName::of_task(*by),
        }
    }

    /// The status it leads to.
    pub fn status(&self) -> &'static str {
        match self {
            Self::RunCreated => RunStatus::Queued.word(),
            Self::Run { to, .. } => to.word(),
            Self::Task { to, .. } => to.word(),
        }
    }
}

/// A run's state as its events tell it. What they do not tell: outputs, the last words of each stream, exit codes of
/// successes, when processes began and ended, lengths of logs. Those are results, not states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    pub run: FoldedRun,
    pub tasks: Vec<FoldedTask>,
    /// Tasks that are not over.
    left: usize,
}

/// The run itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldedRun {
    pub status: RunStatus,
    pub version: Version,
    /// Why it was stopped, if it was.
    pub stop: Option<StopReason>,
    pub started_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
}

/// One of its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldedTask {
    pub status: TaskStatus,
    pub version: Version,
    /// How often it was claimed.
    pub attempt: u32,
}

/// An event that does not follow from the ones before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {position}: {why}")]
pub struct BrokenLog {
    pub position: Position,
    pub why: String,
}

impl Folded {
    /// A run as it is created, its tasks in their first statuses.
    pub fn new(tasks: impl IntoIterator<Item = TaskStatus>) -> Self {
        let first = |status| FoldedTask { status, version: Version(1), attempt: 0 };
        let tasks: Vec<FoldedTask> = tasks.into_iter().map(first).collect();
        let left = tasks.iter().filter(|task| !task.status.is_terminal()).count();
        let (status, version) = (RunStatus::Queued, Version(1));
        let run = FoldedRun { status, version, stop: None, started_at: None, completed_at: None };
        Self { run, tasks, left }
    }

    /// Is everything of it over? Then no event of it follows.
    pub fn is_over(&self) -> bool {
        self.run.status.is_terminal() && self.left == 0
    }

    /// Takes one event in, checking it against the state machines and the version it claims.
    pub fn apply(&mut self, event: &Event) -> Result<(), BrokenLog> {
        let told = match event.change {
            Change::RunCreated => Ok(()),
            Change::Run { by, to } => self.run.apply(by, to, event),
            Change::Task { task, by, to } => self.apply_to_task(task, by, to, event.version),
        };
        told.map_err(|why| BrokenLog { position: event.position, why })
    }

    fn apply_to_task(
        &mut self,
        ix: TaskIx,
        by: TaskMove,
        to: TaskStatus,
        version: Version,
    ) -> Result<(), String> {
        let task = self.tasks.get_mut(ix.index()).ok_or_else(|| format!("no task {ix}"))?;
        let next = task.status.after(by).map_err(|e| format!("task {ix}: {e}"))?;
        if next != to {
            return Err(format!("task {ix} became {to}, the table says {next}"));
        }
        task.status = next;
        task.attempt += u32::from(by == TaskMove::Claim);
        self.left -= usize::from(next.is_terminal());
        follow(&mut task.version, version).map_err(|why| format!("task {ix}: {why}"))
    }
}

impl FoldedRun {
    fn apply(&mut self, by: RunMove, to: RunStatus, event: &Event) -> Result<(), String> {
        let next = self.status.after(by).map_err(|e| e.to_string())?;
        if next != to {
            return Err(format!("run became {to}, the table says {next}"));
        }
        self.status = next;
        let reason = event.data.get("reason").and_then(Value::as_str);
        self.stop = reason.and_then(StopReason::from_word).or(self.stop);
        self.started_at = if by == RunMove::Start { Some(event.at) } else { self.started_at };
        self.completed_at = next.is_terminal().then_some(event.at);
        follow(&mut self.version, event.version)
    }
}

/// The next version, which must be the one that was told.
fn follow(version: &mut Version, told: Version) -> Result<(), String> {
    version.0 += 1;
    if *version == told { Ok(()) } else { Err(format!("version {told}, expected {version}")) }
}

impl fmt::Display for FoldedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (version {}", self.status, self.version)?;
        let at = |at: Option<Timestamp>| at.map_or(0, |at| at.0);
        write!(f, ", started {}, over {}", at(self.started_at), at(self.completed_at))?;
        self.stop.map_or(Ok(()), |stop| write!(f, ", stopped by {}", stop.word()))?;
        f.write_str(")")
    }
}

impl fmt::Display for FoldedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (version {}, attempt {})", self.status, self.version, self.attempt)
    }
}
