//! Proof that random commands get to where faults hide: what was reached, counted.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Something worth reaching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reached {
    Retry,
    FreeTry,
    Skip,
    Held,
    Debt,
    FirstSuccess,
    QueueTimeout,
    Approved,
    Rejected,
    DecidedAgain,
    NoAnswer,
    RunTimeout,
    RunQueueTimeout,
    Expired,
    Conflict,
    /// A few times in all sequences only: the suite of cases has it in full.
    TooManyPending,
    TooManyRuns,
    AskedAgain,
    SameRunAgain,
    Carried,
    LeftOut,
    StaleReport,
    StaleEpoch,
    CancelQueued,
    CancelRunning,
    /// A task completed though its run was stopping.
    CompletionDuringStop,
    /// Everything completed though the run was cancelled.
    CancelLostRace,
    ReopenMidWork,
    ReopenWithLive,
    RunFailed,
    RunCompleted,
    RunCancelled,
    RunTimedOut,
    /// A large step that was not over after one chunk.
    Chunk,
    ReopenBetweenChunks,
    Pruned,
    /// A run that another carries on, which is not over.
    KeptForAnother,
    /// Something was asked about a run that was pruned.
    AskedOfPruned,
}

impl Reached {
    /// What a store with chunks of the usual size must reach.
    pub(crate) const WHOLE: [Self; 33] = [
        Self::Retry,
        Self::FreeTry,
        Self::Skip,
        Self::Held,
        Self::Debt,
        Self::FirstSuccess,
        Self::QueueTimeout,
        Self::Approved,
        Self::Rejected,
        Self::DecidedAgain,
        Self::NoAnswer,
        Self::RunTimeout,
        Self::RunQueueTimeout,
        Self::Expired,
        Self::Conflict,
        Self::TooManyRuns,
        Self::AskedAgain,
        Self::SameRunAgain,
        Self::Carried,
        Self::LeftOut,
        Self::StaleReport,
        Self::StaleEpoch,
        Self::CancelQueued,
        Self::CancelRunning,
        Self::CompletionDuringStop,
        Self::CancelLostRace,
        Self::ReopenMidWork,
        Self::ReopenWithLive,
        Self::RunFailed,
        Self::RunCompleted,
        Self::RunCancelled,
        Self::RunTimedOut,
        Self::Pruned,
    ];

    /// What takes a long sequence: a run, its end, perhaps another that carries it on and is under way, a prune, and more.
    pub(crate) const LONG: [Self; 2] = [Self::KeptForAnother, Self::AskedOfPruned];

    /// What a store in tiny chunks must reach.
    pub(crate) const CHOPPED: [Self; 16] = [
        Self::Chunk,
        Self::Pruned,
        Self::ReopenBetweenChunks,
        Self::Retry,
        Self::FreeTry,
        Self::Skip,
        Self::FirstSuccess,
        Self::QueueTimeout,
        Self::Approved,
        Self::Rejected,
        Self::Carried,
        Self::LeftOut,
        Self::CancelQueued,
        Self::CancelRunning,
        Self::RunFailed,
        Self::RunCancelled,
    ];
}

thread_local! {
    // Each test runs its sequences on a thread of its own.
    static COUNTS: RefCell<BTreeMap<Reached, usize>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts what a command led to.
pub(crate) fn count(reached: &[Reached]) {
    COUNTS.with_borrow_mut(|counts| reached.iter().for_each(|what| *counts.entry(*what).or_default() += 1));
}

/// Everything must have been reached, and not by a single lucky sequence.
pub(crate) fn assert_all(wanted: &[Reached], at_least: usize) {
    COUNTS.with_borrow(|counts| {
        let rare: Vec<_> = wanted
            .iter()
            .map(|what| (what, counts.get(what).copied().unwrap_or_default()))
            .filter(|(_, count)| *count < at_least)
            .collect();
        assert!(rare.is_empty(), "hardly ever reached: {rare:?}; all: {counts:?}");
    });
}
