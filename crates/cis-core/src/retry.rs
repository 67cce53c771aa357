//! The one decision after an attempt that did not succeed, and how long to wait before the next.

use serde::{Deserialize, Serialize};

use crate::source::Millis;

/// How a task is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Tries after the first.
    pub max: u32,
    pub backoff: Backoff,
    pub initial: Millis,
    pub cap: Millis,
    /// Spread the wait at random over its upper half, so that tasks that failed together do not return together.
    pub jitter: bool,
    /// Only these exit codes are worth another try; empty means any.
    pub on_exit_codes: Vec<i32>,
}

/// How waits grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backoff {
    Fixed,
    #[default]
    Exponential,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max: 0,
            backoff: Backoff::Exponential,
            initial: Millis(1_000),
            cap: Millis(60_000),
            jitter: true,
            on_exit_codes: Vec::new(),
        }
    }
}

/// How often somebody else may take over a task whose holder went silent, where its definition does not say.
pub static TAKEOVERS: Retry = Retry {
    max: 3,
    backoff: Backoff::Fixed,
    initial: Millis(0),
    cap: Millis(0),
    jitter: false,
    on_exit_codes: Vec::new(),
};

/// Why an attempt did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// It ended by itself with this exit code (128 + n for signal n).
    Exit(i32),
    /// It could not be started, or its result could not be read.
    Broken,
    /// It ran over its time.
    Timeout,
    /// Its holder's lease ran out.
    LeaseLost,
    /// The machine or the runner went away under it.
    Interrupted,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Ready again, but not before this long from now.
    TryAgain {
        wait: Millis,
    },
    Failed,
    TimedOut,
}

/// Decides after attempt number `attempt` (from 1), of which `used` counted as tries, failed with `failure`.
///
/// An interrupted attempt of an idempotent task is tried again at once and for free; everything else uses up tries.
pub fn decide(retry: Option<&Retry>, idempotent: bool, used: u32, failure: Failure, random: u64) -> Decision {
    if failure == Failure::Interrupted && idempotent {
        return Decision::TryAgain { wait: Millis(0) };
    }
    let no_more = if failure == Failure::Timeout { Decision::TimedOut } else { Decision::Failed };
    let Some(retry) = retry else { return no_more };
    let worth_it = match failure {
        Failure::Exit(code) => retry.on_exit_codes.is_empty() || retry.on_exit_codes.contains(&code),
        _ => true,
    };
    if used > retry.max || !worth_it {
        return no_more;
    }
    Decision::TryAgain { wait: backoff(retry, used, random) }
}

/// The wait after the `used`th try (from 1).
pub(crate) fn backoff(retry: &Retry, used: u32, random: u64) -> Millis {
    let doublings = match retry.backoff {
        Backoff::Fixed => 0,
        Backoff::Exponential => used.saturating_sub(1).min(40),
    };
    let full = retry.initial.0.saturating_mul(1 << doublings).min(retry.cap.0);
    if !retry.jitter {
        return Millis(full);
    }
    let half = full / 2;
    Millis(half + random % (full - half + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(max: u32) -> Retry {
        Retry { max, jitter: false, ..Retry::default() }
    }

    #[test]
    fn max_counts_tries_after_the_first() {
        let r = retry(2);
        assert_eq!(
            decide(Some(&r), false, 1, Failure::Exit(1), 0),
            Decision::TryAgain { wait: Millis(1000) }
        );
        assert_eq!(
            decide(Some(&r), false, 2, Failure::Exit(1), 0),
            Decision::TryAgain { wait: Millis(2000) }
        );
        assert_eq!(decide(Some(&r), false, 3, Failure::Exit(1), 0), Decision::Failed);
        assert_eq!(decide(None, false, 1, Failure::Exit(1), 0), Decision::Failed);
    }

    #[test]
    fn a_timeout_that_is_not_retried_is_a_timeout() {
        assert_eq!(decide(None, true, 1, Failure::Timeout, 0), Decision::TimedOut);
        assert_eq!(decide(Some(&retry(1)), false, 2, Failure::Timeout, 0), Decision::TimedOut);
    }

    #[test]
    fn interruption_is_free_for_idempotent_tasks_only() {
        assert_eq!(decide(None, true, 9, Failure::Interrupted, 0), Decision::TryAgain { wait: Millis(0) });
        assert_eq!(decide(None, false, 1, Failure::Interrupted, 0), Decision::Failed);
    }

    #[test]
    fn exit_codes_choose() {
        let r = Retry { on_exit_codes: vec![75], ..retry(5) };
        assert_eq!(decide(Some(&r), false, 1, Failure::Exit(1), 0), Decision::Failed);
        assert!(matches!(decide(Some(&r), false, 1, Failure::Exit(75), 0), Decision::TryAgain { .. }));
        assert!(matches!(decide(Some(&r), false, 1, Failure::Timeout, 0), Decision::TryAgain { .. }));
    }

    #[test]
    fn waits_grow_to_the_cap_and_jitter_stays_in_the_upper_half() {
        let r = Retry { cap: Millis(5_000), ..retry(100) };
        let waits: Vec<u64> = (1..6).map(|used| backoff(&r, used, 0).0).collect();
        assert_eq!(waits, [1000, 2000, 4000, 5000, 5000]);
        let j = Retry { jitter: true, ..r };
        for random in [0, 1, 499, 500, 501, u64::MAX] {
            let wait = backoff(&j, 1, random).0;
            assert!((500..=1000).contains(&wait), "{wait}");
        }
        assert_eq!(
            [0, 500, 501].map(|random| backoff(&j, 1, random).0),
            [500, 1000, 500],
            "both ends are reached"
        );
        assert_eq!(backoff(&j, u32::MAX, 0).0, 2500);
    }
}
