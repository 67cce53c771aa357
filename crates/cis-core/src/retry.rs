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

/// How often another worker may take over a task whose holder went silent or gave it back once too often, where its
/// definition does not say.
pub static TAKEOVERS: Retry = Retry {
    max: 3,
    backoff: Backoff::Fixed,
    initial: Millis(0),
    cap: Millis(0),
    jitter: false,
    on_exit_codes: Vec::new(),
};

/// Releases of a task that use up no try. The ones after them do, or claiming and releasing could go on for ever.
pub const FREE_RELEASES: u32 = 3;

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
    /// Its holder gave it back.
    Released,
}

/// The attempts of a task so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tries {
    /// Attempts that began, the one that has just ended among them.
    pub begun: u32,
    /// Those of them that used up no try.
    pub free: u32,
}

impl Tries {
    /// Those that count, from 1.
    fn used(self) -> u32 {
        self.begun.saturating_sub(self.free)
    }
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Ready again, but not before this long from now.
    TryAgain {
        wait: Millis,
        /// The attempt that ended used up no try.
        free: bool,
    },
    Failed,
    TimedOut,
}

/// Decides what follows an attempt that ended with `failure`.
///
/// Free, and tried again at once, are an interrupted attempt of an idempotent task and the first [`FREE_RELEASES`] of a
/// task; everything else uses up tries. Only tasks that workers claim are released, and they are never interrupted, so all
/// free tries of such a task are releases.
pub fn decide(
    retry: Option<&Retry>,
    idempotent: bool,
    tries: Tries,
    failure: Failure,
    random: u64,
) -> Decision {
    let free = match failure {
        Failure::Interrupted => idempotent,
        Failure::Released => tries.free < FREE_RELEASES,
        _ => false,
    };
    if free {
        return Decision::TryAgain { wait: Millis(0), free };
    }
    let no_more = if failure == Failure::Timeout { Decision::TimedOut } else { Decision::Failed };
    let takeovers = matches!(failure, Failure::LeaseLost | Failure::Released).then_some(&TAKEOVERS);
    let Some(retry) = retry.or(takeovers) else { return no_more };
    let worth_it = match failure {
        Failure::Exit(code) => retry.on_exit_codes.is_empty() || retry.on_exit_codes.contains(&code),
        _ => true,
    };
    if tries.used() > retry.max || !worth_it {
        return no_more;
    }
    Decision::TryAgain { wait: backoff(retry, tries.used(), random), free }
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

    fn used(begun: u32) -> Tries {
        Tries { begun, free: 0 }
    }

    fn again(wait: u64) -> Decision {
        Decision::TryAgain { wait: Millis(wait), free: false }
    }

    const FREE: Decision = Decision::TryAgain { wait: Millis(0), free: true };

    /// Releases until the task fails, and how many of them were free.
    fn release_until_failed(retry: Option<&Retry>) -> Tries {
        let mut tries = Tries { begun: 1, free: 0 };
        loop {
            match decide(retry, false, tries, Failure::Released, 0) {
                Decision::TryAgain { free, .. } => {
                    tries = Tries { begun: tries.begun + 1, free: tries.free + u32::from(free) };
                }
                _ => return tries,
            }
        }
    }

    #[test]
    fn releases_beyond_the_free_ones_use_up_tries() {
        assert_eq!(decide(None, false, used(1), Failure::Released, 0), FREE);
        assert_eq!(
            release_until_failed(None),
            Tries { begun: FREE_RELEASES + TAKEOVERS.max + 1, free: FREE_RELEASES }
        );
        for max in [0, 1, 5] {
            let tries = Tries { begun: FREE_RELEASES + max + 1, free: FREE_RELEASES };
            assert_eq!(release_until_failed(Some(&retry(max))), tries);
        }
        // Tries that failed before leave fewer for releases.
        let tries = Tries { begun: FREE_RELEASES + 2, free: FREE_RELEASES };
        assert_eq!(decide(Some(&retry(1)), false, tries, Failure::Released, 0), Decision::Failed);
    }

    #[test]
    fn lost_leases_are_taken_over_without_a_retry_of_the_task() {
        assert_eq!(decide(None, false, used(3), Failure::LeaseLost, 0), again(0));
        assert_eq!(decide(None, false, used(4), Failure::LeaseLost, 0), Decision::Failed);
        assert_eq!(decide(Some(&retry(0)), false, used(1), Failure::LeaseLost, 0), Decision::Failed);
    }

    #[test]
    fn max_counts_tries_after_the_first() {
        let r = retry(2);
        assert_eq!(decide(Some(&r), false, used(1), Failure::Exit(1), 0), again(1000));
        assert_eq!(decide(Some(&r), false, used(2), Failure::Exit(1), 0), again(2000));
        assert_eq!(decide(Some(&r), false, used(3), Failure::Exit(1), 0), Decision::Failed);
        assert_eq!(decide(None, false, used(1), Failure::Exit(1), 0), Decision::Failed);
    }

    #[test]
    fn a_timeout_that_is_not_retried_is_a_timeout() {
        assert_eq!(decide(None, true, used(1), Failure::Timeout, 0), Decision::TimedOut);
        assert_eq!(decide(Some(&retry(1)), false, used(2), Failure::Timeout, 0), Decision::TimedOut);
    }

    #[test]
    fn interruption_is_free_for_idempotent_tasks_only() {
        assert_eq!(decide(None, true, used(9), Failure::Interrupted, 0), FREE);
        assert_eq!(decide(None, false, used(1), Failure::Interrupted, 0), Decision::Failed);
    }

    #[test]
    fn exit_codes_choose() {
        let r = Retry { on_exit_codes: vec![75], ..retry(5) };
        assert_eq!(decide(Some(&r), false, used(1), Failure::Exit(1), 0), Decision::Failed);
        assert!(matches!(decide(Some(&r), false, used(1), Failure::Exit(75), 0), Decision::TryAgain { .. }));
        assert!(matches!(decide(Some(&r), false, used(1), Failure::Timeout, 0), Decision::TryAgain { .. }));
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
