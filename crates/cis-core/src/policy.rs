//! How a run ends, once nothing of it is left to do.

use crate::dag::Policy;
use crate::run::{RunMove, StopReason};

/// How the tasks of a run ended, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Failed or timed out, and not ignorable under the policy.
    pub failed: u32,
    /// Failed or timed out, but marked `debt = "ignorable"`.
    pub debts: u32,
    pub cancelled: u32,
    /// Tasks without dependents that completed.
    pub sinks_completed: u32,
}

/// The last move of a run whose tasks have all ended, stopped for `stop` or by itself.
///
/// A stop that came too late to stop anything is no stop: the run ends as if nobody had asked.
pub fn ending(policy: Policy, tally: Tally, stop: Option<StopReason>) -> RunMove {
    let stopped_something = tally.cancelled > 0;
    match stop {
        Some(StopReason::Cancel | StopReason::OwnerGone) if stopped_something => {
            return RunMove::StoppedByCancel;
        }
        Some(StopReason::Timeout) if stopped_something => return RunMove::StoppedByTimeout,
        _ => {}
    }
    let content = match policy {
        Policy::AllSuccess => tally.failed + tally.debts == 0,
        Policy::AllowDebt => tally.failed == 0,
        Policy::FirstSuccess => tally.sinks_completed > 0,
    };
    if content { RunMove::Complete } else { RunMove::Fail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_weigh_failures() {
        let failed = Tally { failed: 1, sinks_completed: 1, ..Tally::default() };
        let debts = Tally { debts: 1, ..Tally::default() };
        assert_eq!(ending(Policy::AllSuccess, failed, None), RunMove::Fail);
        assert_eq!(ending(Policy::FirstSuccess, failed, None), RunMove::Complete);
        assert_eq!(ending(Policy::AllSuccess, debts, None), RunMove::Fail);
        assert_eq!(ending(Policy::AllowDebt, debts, None), RunMove::Complete);
        assert_eq!(ending(Policy::FirstSuccess, Tally::default(), None), RunMove::Fail);
    }

    #[test]
    fn a_cancel_that_stopped_nothing_is_a_completion() {
        let done = Tally { sinks_completed: 1, ..Tally::default() };
        let cut = Tally { cancelled: 1, ..done };
        assert_eq!(ending(Policy::AllSuccess, done, Some(StopReason::Cancel)), RunMove::Complete);
        assert_eq!(ending(Policy::AllSuccess, cut, Some(StopReason::Cancel)), RunMove::StoppedByCancel);
        assert_eq!(ending(Policy::AllSuccess, cut, Some(StopReason::Timeout)), RunMove::StoppedByTimeout);
        assert_eq!(ending(Policy::FirstSuccess, cut, Some(StopReason::FirstSuccess)), RunMove::Complete);
    }
}
