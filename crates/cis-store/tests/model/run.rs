//! A run and its tasks as the model keeps them, and what can be seen by looking at them.

use std::sync::Arc;

use cis_core::dag::{Dag, Policy, Task};
use cis_core::policy::Tally;
use cis_core::readiness::{self, Dependencies, Impact, Skip};
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;

/// One execution.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) revision: usize,
    pub(crate) dag: Arc<Dag>,
    pub(crate) status: RunStatus,
    pub(crate) version: i64,
    pub(crate) stop: Option<StopReason>,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) max_parallel: Option<u32>,
    pub(crate) tasks: Vec<Node>,
    /// The run whose tasks it carries over.
    pub(crate) resumes: Option<usize>,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) pruned: bool,
}

/// One task of it.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) status: TaskStatus,
    pub(crate) version: i64,
    pub(crate) attempt: u32,
    pub(crate) free_tries: u32,
    /// Dependencies that have ended and said so.
    pub(crate) told: usize,
    pub(crate) waits_for: usize,
    pub(crate) skip: Option<Skip>,
    /// Its `when` could not be answered.
    pub(crate) broken: bool,
    pub(crate) place: Place,
    /// Its turn among what is ready.
    pub(crate) turn: u64,
    pub(crate) queue_deadline: Option<Timestamp>,
    pub(crate) answer_deadline: Option<Timestamp>,
    /// What a person said: yes or no.
    pub(crate) decision: Option<bool>,
}

/// Where a ready task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Claimable,
    /// There are enough of its run.
    Held,
    BackingOff(Timestamp),
}

impl Run {
    pub(crate) fn is_stopping(&self) -> bool {
        !matches!(self.status, RunStatus::Queued | RunStatus::Running)
    }

    pub(crate) fn task(&self, ix: usize) -> &Task {
        &self.dag.tasks[ix]
    }

    pub(crate) fn left(&self) -> usize {
        self.tasks.iter().filter(|node| !node.status.is_terminal()).count()
    }

    /// Is there room for one more task that is claimable or live?
    pub(crate) fn has_room(&self) -> bool {
        let inside = |node: &&Node| {
            node.status.is_live() || (node.status == TaskStatus::Ready && node.place == Place::Claimable)
        };
        self.max_parallel.is_none_or(|max| self.tasks.iter().filter(inside).count() < max as usize)
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for (ix, node) in self.tasks.iter().enumerate() {
            let debt = self.dag.policy == Policy::AllowDebt && self.task(ix).debt_ignorable;
            match node.status {
                TaskStatus::Failed | TaskStatus::TimedOut if debt => tally.debts += 1,
                TaskStatus::Failed | TaskStatus::TimedOut => tally.failed += 1,
                TaskStatus::Cancelled => tally.cancelled += 1,
                TaskStatus::Skipped if node.broken => tally.failed += 1,
                TaskStatus::Completed if self.is_sink(ix) => tally.sinks_completed += 1,
                _ => {}
            }
        }
        tally
    }

    pub(crate) fn is_sink(&self, ix: usize) -> bool {
        self.dag.tasks.iter().all(|task| !task.depends_on.iter().any(|before| before.index() == ix))
    }

    /// How the dependencies of a task ended.
    pub(crate) fn dependencies(&self, ix: usize) -> Dependencies {
        let mut deps = Dependencies { left: 0, failed: 0, blocked: 0 };
        for before in &self.task(ix).depends_on {
            let before = &self.tasks[before.index()];
            match readiness::impact(before.status, before.skip) {
                Impact::Fine => {}
                Impact::Failed => deps.failed += 1,
                Impact::Blocked => deps.blocked += 1,
            }
        }
        deps
    }
}
