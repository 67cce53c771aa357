//! What happened: one event per state change, written in the same transaction, enough to fold back into state.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{Position, RunKey, TaskIx, Version};
use crate::run::{RunMove, RunStatus};
use crate::source::Timestamp;
use crate::task::{TaskMove, TaskStatus};

/// One state change of a run or of one of its tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub position: Position,
    pub run: RunKey,
    pub at: Timestamp,
    /// The version the subject has after it.
    pub version: Version,
    pub change: Change,
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
    /// The event's type as streams name it: `run.created`, `task.completed`.
    pub fn name(&self) -> String {
        match self {
            Self::RunCreated => "run.created".to_owned(),
            Self::Run { to, .. } => format!("run.{to}"),
            Self::Task { to, .. } => format!("task.{to}"),
        }
    }
}

/// A run's state as its events tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    pub run: (RunStatus, Version),
    pub tasks: Vec<(TaskStatus, Version)>,
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
        Self {
            run: (RunStatus::Queued, Version(1)),
            tasks: tasks.into_iter().map(|status| (status, Version(1))).collect(),
        }
    }

    /// Takes one event in, checking it against the state machines and the version it claims.
    pub fn apply(&mut self, event: &Event) -> Result<(), BrokenLog> {
        let broken = |why: String| BrokenLog { position: event.position, why };
        let (version, now) = match event.change {
            Change::RunCreated => return Ok(()),
            Change::Run { by, to } => {
                let next = self.run.0.after(by).map_err(|e| broken(e.to_string()))?;
                if next != to {
                    return Err(broken(format!("run became {to}, the table says {next}")));
                }
                self.run.0 = next;
                (&mut self.run.1, to.word())
            }
            Change::Task { task, by, to } => {
                let state =
                    self.tasks.get_mut(task.index()).ok_or_else(|| broken(format!("no task {task}")))?;
                let next = state.0.after(by).map_err(|e| broken(format!("task {task}: {e}")))?;
                if next != to {
                    return Err(broken(format!("task {task} became {to}, the table says {next}")));
                }
                state.0 = next;
                (&mut state.1, to.word())
            }
        };
        version.0 += 1;
        if *version != event.version {
            return Err(broken(format!("{now} has version {}, expected {version}", event.version)));
        }
        Ok(())
    }
}
