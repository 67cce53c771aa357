//! The runner's clocks. It is the outermost edge of the system, so it reads real time itself; everything that
//! asks for the time does so here.

use std::time::Duration;

use rustix::thread::{NanosleepRelativeResult, nanosleep};
use rustix::time::{ClockId, Timespec, clock_gettime};

pub(crate) const NS_PER_MS: u64 = 1_000_000;

/// Wall clock, Unix milliseconds: for people and for the store, never for measuring.
pub(crate) fn wall_ms() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// Nanoseconds since boot, counting through suspend: what timeouts are measured with.
pub(crate) fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Lets time pass for something no descriptor announces (a lock or a socket that will appear).
pub(crate) fn pause(span: Duration) {
    let mut left = Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    };
    while let NanosleepRelativeResult::Interrupted(rest) = nanosleep(&left) {
        left = rest;
    }
}
