//! The one place that asks for the time: benchmarks and progress lines measure the real world, so no simulated
//! clock could stand in.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Measures from when it was started.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[allow(clippy::disallowed_methods, reason = "measuring real time is what this is for")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// How long ago that was.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// The same, in seconds.
    pub fn seconds(self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}

/// Milliseconds since the Unix epoch.
#[allow(clippy::disallowed_methods, reason = "rows made for a benchmark carry real times")]
pub fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
