//! How much one identity may have waiting.

/// How much one identity may have waiting at once. What waits already is never taken away by a lower one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Revisions that wait for a decision.
    pub pending: u32,
    /// Bytes of them, as they are stored.
    pub pending_bytes: u64,
    /// Runs that are not over: those it started, and those of its DAGs that were started by their confirmation.
    pub unfinished_runs: u32,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { pending: 1_000, pending_bytes: 64 << 20, unfinished_runs: 1_000 }
    }
}
