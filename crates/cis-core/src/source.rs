//! Where time and randomness come from. The rules take them as arguments; only the binary and tests choose
//! an implementation, so a simulation can drive both.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::id::RunId;

/// Milliseconds since the Unix epoch, by the store's clock.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

/// A span of time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Timestamp {
    /// This moment and `span` later, at most the end of time.
    pub fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// This moment and `span` earlier.
    pub fn before(self, span: Millis) -> Self {
        Self(self.0.saturating_sub_unsigned(span.0))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Self) -> Millis {
        Millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The day it is in UTC, such as `2026-11-16`; empty for a moment no calendar has.
    pub fn day(self) -> String {
        let moment = jiff::Timestamp::from_millisecond(self.0);
        moment.map(|moment| moment.strftime("%Y-%m-%d").to_string()).unwrap_or_default()
    }
}

/// Milliseconds since this machine started, time asleep included. Leases are measured by it: no clock that people set
/// moves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootTime(pub i64);

impl BootTime {
    /// This moment and `span` later.
    pub fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Self) -> Millis {
        Millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Millis {
    /// `350ms`, `4.2s`, `3m 05s`, `2h 10m`: what a person wants to read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ms, s) = (self.0, self.0 / 1000);
        match s {
            _ if ms < 1000 => write!(f, "{ms}ms"),
            0..60 => write!(f, "{}.{}s", s, ms % 1000 / 100),
            60..3600 => write!(f, "{}m {:02}s", s / 60, s % 60),
            _ => write!(f, "{}h {:02}m", s / 3600, s % 3600 / 60),
        }
    }
}

/// Tells the time.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> Timestamp;
    /// The present moment, by the clock nobody sets.
    fn since_boot(&self) -> BootTime;
}

/// Makes unpredictable numbers.
pub trait Random: Send + Sync {
    /// Sixty-four random bits.
    fn bits(&self) -> u64;
}

/// A new run id: version 7, so that ids sort by time.
pub fn new_run_id(clock: &dyn Clock, random: &dyn Random) -> RunId {
    let unix_ms = u64::try_from(clock.now().0).unwrap_or(0);
    let mut tail = [0u8; 10];
    tail[..8].copy_from_slice(&random.bits().to_be_bytes());
    tail[8..].copy_from_slice(&random.bits().to_be_bytes()[..2]);
    RunId(uuid::Builder::from_unix_timestamp_millis(unix_ms, &tail).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_well() {
        let shown: Vec<String> =
            [0, 999, 4_230, 185_000, 7_800_000].iter().map(|ms| Millis(*ms).to_string()).collect();
        assert_eq!(shown, ["0ms", "999ms", "4.2s", "3m 05s", "2h 10m"]);
    }
}
