//! Making room: which runs may go, and what became of them.

use cis_api::run::{BareRun, PruneBody, PrunedChunk, PrunedRun, run_label};
use cis_core::id::{ExecutionId, RunId, RunKey};
use cis_core::source::Timestamp;

use super::RunRef;

/// Which runs may go. Asked again and again until there is no more; what an earlier one left undone is done first.
#[derive(Debug, Clone)]
pub struct Prune {
    /// Those that ended before this.
    pub before: Timestamp,
    /// But not the latest so many of each DAG.
    pub keep: u32,
    /// At most so many of them with this chunk; none, to finish only what was begun.
    pub limit: u32,
    /// Where to look on, from the last answer; at first, nowhere.
    pub after: RunKey,
    /// Runs whose files have been removed.
    pub cleared: Vec<RunKey>,
    pub now: Timestamp,
}

/// What one chunk did.
#[derive(Debug, Clone)]
pub struct Pruned {
    /// Runs that it made an end of.
    pub runs: Vec<RunRef>,
    /// Runs of which only files are left, which nobody needs any more.
    pub bare: Vec<Bare>,
    pub after: RunKey,
    /// There is more to do.
    pub more: bool,
}

/// A run of which only files are left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bare {
    pub run: RunKey,
    pub run_id: RunId,
    /// Its tasks had these.
    pub first: ExecutionId,
    pub last: ExecutionId,
}

impl Prune {
    /// The first request.
    pub fn new(before: Timestamp, keep: u32, now: Timestamp) -> Self {
        Self { before, keep, limit: u32::MAX, after: RunKey(0), cleared: Vec::new(), now }
    }

    /// What a caller asks for.
    pub fn of(body: PruneBody, now: Timestamp) -> Self {
        let PruneBody { before, keep, limit, after, cleared } = body;
        Self { before, keep, limit, after, cleared, now }
    }
}

impl From<Pruned> for PrunedChunk {
    fn from(pruned: Pruned) -> Self {
        let Pruned { runs, bare, after, more } = pruned;
        let runs = runs.into_iter().map(|run| PrunedRun {
            run: run_label(&run.dag_id, run.number),
            run_id: run.run_id,
            scope: run.scope,
            status: run.status,
        });
        let bare = bare.into_iter().map(|bare| {
            let Bare { run: key, run_id, first, last } = bare;
            BareRun { key, run_id, first, last }
        });
        Self { runs: runs.collect(), bare: bare.collect(), after, more }
    }
}
