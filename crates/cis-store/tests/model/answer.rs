//! What a command answers and what an onlooker sees, in words both the model and the store can be put in.

use cis_core::error::ErrorCode;
use cis_core::run::RunStatus;
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use cis_store::port::{Recorded, RevisionStatus};

use crate::model::At;

/// What a command answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    Refused(ErrorCode),
    Published {
        created: bool,
        revision: usize,
        status: RevisionStatus,
    },
    Settled {
        changed: bool,
        status: RevisionStatus,
    },
    Approved {
        changed: bool,
        status: TaskStatus,
    },
    Run {
        run: usize,
        status: RunStatus,
    },
    Advanced {
        recorded: Vec<Recorded>,
        /// Run, task, attempt.
        claimed: Vec<(usize, usize, u32)>,
        ended: Vec<(usize, RunStatus)>,
        more_work: bool,
    },
    Stopped(RunStatus),
    Worked {
        stop: Vec<At>,
        ended: Vec<(usize, RunStatus)>,
    },
    Swept {
        ended: Vec<(usize, RunStatus)>,
        next_due: Option<Timestamp>,
        more_work: bool,
    },
    Pruned(Vec<usize>),
    Opened {
        live: Vec<(usize, usize, TaskStatus)>,
        unfinished: Vec<usize>,
    },
}

impl Answer {
    /// Without what depends on how far a large step has got, and in which order.
    pub(crate) fn loosened(&self) -> Self {
        match self.clone() {
            Self::Run { run, .. } => Self::Run { run, status: RunStatus::Queued },
            Self::Advanced { recorded, mut claimed, .. } => {
                claimed.sort();
                Self::Advanced { recorded, claimed, ended: Vec::new(), more_work: false }
            }
            Self::Worked { .. } | Self::Swept { .. } => Self::Nothing,
            other => other,
        }
    }
}

impl Picture {
    /// Without the order of claims.
    pub(crate) fn loosened(mut self) -> Self {
        self.claimable.sort();
        self
    }
}

/// Status, version and attempt of a task.
pub(crate) type TaskPicture = (TaskStatus, i64, u32);

/// What an onlooker sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
    pub(crate) revisions: Vec<(i64, RevisionStatus)>,
    /// Status and version, and its tasks; nothing, once it was pruned.
    pub(crate) runs: Vec<Option<(RunStatus, i64, Vec<TaskPicture>)>>,
    /// In the order of claims.
    pub(crate) claimable: Vec<At>,
}
