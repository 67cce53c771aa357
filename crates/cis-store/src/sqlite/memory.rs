//! What the writer knows without asking the database again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cis_core::id::ExecutionId;
use cis_core::notice::Wanted;
use cis_core::review::ReviewSecret;

use super::cache::{DefinitionCache, RunCache};
use super::clock::Noted;
use super::fences::Fences;
use super::keys::KeyCounts;
use super::pulse::Changed;
use super::quotas::Usage;
use super::steps::Chunks;
use super::tasks::Live;

/// What the writer remembers between operations. There is no other writer, so nothing of it changes under it.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) definitions: DefinitionCache,
    pub(super) runs: RunCache,
    /// Attempts as they were claimed. One that is not here is read.
    pub(super) live: HashMap<ExecutionId, Live>,
    /// All of them, once they have been asked for.
    pub(super) queues: Option<BTreeMap<QueueName, i64>>,
    /// Scopes nothing is claimed from, once they have been asked for.
    pub(super) paused_scopes: Option<BTreeSet<String>>,
    /// The last event's position.
    pub(super) position: Option<i64>,
    /// Are large steps under way? `None`: ask.
    pub(super) steps: Option<bool>,
    /// What fences are granted from, once a coordinator's life has begun.
    pub(super) fences: Option<Fences>,
    /// The boot of the machine that life began in.
    pub(super) boot_id: Arc<str>,
    /// What is noted of the clock that deadlines are kept by. `None`: ask.
    pub(super) clock: Option<Noted>,
    pub(super) chunks: Chunks,
    /// Notices to keep for the outbox.
    pub(super) wanted: Wanted,
    /// What the present batch has changed, or tried to.
    pub(super) changed: Changed,
    /// The disk is full: there is no room for new work.
    pub(super) full: bool,
    pub(super) review_secret: Option<ReviewSecret>,
    /// What identities have waiting, as far as a quota asked for it.
    pub(super) usage: Usage,
    /// How many idempotency keys callers have, likewise.
    pub(super) key_counts: KeyCounts,
}

/// What a claimant must match: a kind, a scope, and what is needed beyond that (names in order, spaces between).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueName {
    pub(super) kind: String,
    pub(super) scope: String,
    pub(super) needs: String,
}

impl Memory {
    pub(super) fn new(chunks: Chunks) -> Self {
        Self { chunks, ..Self::default() }
    }

    /// From here on, what is undone is a new operation.
    pub(super) fn begin_operation(&mut self) {
        self.definitions.begin_operation();
        self.key_counts.begin_operation();
    }

    /// After a rollback of the present operation, or of all it did so far: nothing of that is remembered. What no operation
    /// changes stays, or every refusal would make the writer parse large definitions again.
    pub(super) fn undo_operation(&mut self) {
        self.definitions.undo_operation();
        self.key_counts.undo_operation();
        self.forget_rows();
    }

    /// After a rollback of a whole batch: what was remembered may never have happened.
    pub(super) fn forget(&mut self) {
        self.definitions.clear();
        self.key_counts.forget();
        self.forget_rows();
    }

    /// Forgets what operations change.
    fn forget_rows(&mut self) {
        self.runs.clear();
        self.live.clear();
        self.queues = None;
        self.paused_scopes = None;
        self.position = None;
        self.steps = None;
        self.clock = None;
        self.usage.forget();
        self.fences.iter_mut().for_each(Fences::doubt);
    }
}
