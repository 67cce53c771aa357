//! Rows as they are read: what the API shows of them, and the keys that lead on inside the store.

use std::ops::Deref;

use cis_api::dag::{DagSummary, RevisionSummary};
use cis_api::review::{PendingRevision, Review, RevisionReview, TaskReview, WaitingTask};
use cis_api::run::RunSummary;
use cis_api::task::TaskSummary;
use cis_core::dag::Dag;
use cis_core::id::{ExecutionId, RunKey, TaskIx};
use cis_core::readiness::{self, Dependencies, Verdict};
use cis_core::task::TaskStatus;

use crate::port::Fate;

/// A row with one key.
#[derive(Debug, Clone)]
pub struct Keyed<K, T> {
    pub key: K,
    /// What callers see of it.
    pub shown: T,
}

impl<K, T> Deref for Keyed<K, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.shown
    }
}

pub type DagRow = Keyed<i64, DagSummary>;
/// By the key of its definition.
pub type RevisionRow = Keyed<i64, RevisionSummary>;
/// By the key of its definition.
pub type PendingRow = Keyed<i64, PendingRevision>;
pub type WaitingRow = Keyed<ExecutionId, WaitingTask>;
/// By its place in the definition.
pub type TaskRow = Keyed<TaskIx, TaskSummary>;

/// A run.
#[derive(Debug, Clone)]
pub struct RunRow {
    pub key: RunKey,
    pub definition: i64,
    /// What it does with each task, a letter each; nothing if it runs them all.
    pub fates: Option<String>,
    /// What callers see of it.
    pub shown: RunSummary,
}

impl Deref for RunRow {
    type Target = RunSummary;

    fn deref(&self) -> &RunSummary {
        &self.shown
    }
}

impl RunRow {
    /// What this run does with a task.
    pub fn fate(&self, ix: TaskIx) -> Fate {
        match self.fates.as_deref().and_then(|fates| fates.as_bytes().get(ix.index())) {
            Some(b'c') => Fate::Carry,
            Some(b'l') => Fate::Leave,
            _ => Fate::Run,
        }
    }

    /// The status a task of this run is created in; its events tell the rest.
    pub fn first_status(&self, dag: &Dag, ix: TaskIx) -> TaskStatus {
        let task = &dag.tasks[ix.index()];
        match self.fate(ix) {
            Fate::Carry => TaskStatus::Completed,
            Fate::Leave => TaskStatus::Skipped,
            Fate::Run if task.more().when.is_some() || task.needs_person() => TaskStatus::Pending,
            Fate::Run => {
                let left = task.depends_on.iter().filter(|before| self.fate(**before) == Fate::Run).count();
                let deps =
                    Dependencies { left: u32::try_from(left).unwrap_or(u32::MAX), ..Dependencies::default() };
                match readiness::verdict(task.run_if, deps) {
                    Verdict::Go => TaskStatus::Ready,
                    Verdict::Wait | Verdict::Skip(_) => TaskStatus::Pending,
                }
            }
        }
    }
}

/// What a review id is about.
#[derive(Debug, Clone)]
pub enum ReviewRow {
    Dag(RevisionReview),
    Task { execution: ExecutionId, review: TaskReview },
}

impl ReviewRow {
    /// What callers see of it.
    pub fn shown(self) -> Review {
        match self {
            Self::Dag(review) => Review::Dag(review),
            Self::Task { review, .. } => Review::Task(review),
        }
    }

    pub fn scope(&self) -> &cis_core::id::Scope {
        match self {
            Self::Dag(review) => &review.line.scope,
            Self::Task { review, .. } => &review.line.scope,
        }
    }
}
