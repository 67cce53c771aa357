//! The one place that asks for the time: a dose may be one of minutes, and no simulated clock could stand in.

use std::time::Instant;

use crate::Dose;

/// Says when a dose is over.
#[derive(Debug)]
pub struct Stopwatch {
    begun: Instant,
}

impl Stopwatch {
    /// Starts now.
    #[allow(clippy::disallowed_methods, reason = "measuring real time is what this is for")]
    pub fn start() -> Self {
        Self { begun: Instant::now() }
    }

    /// May another round begin after `done` of them?
    pub fn lets(&self, done: u64, dose: &Dose) -> bool {
        done < dose.rounds && dose.time.is_none_or(|time| self.begun.elapsed() < time)
    }

    /// How many rounds a second that makes, after `done` of them.
    pub fn per_second(&self, done: u64) -> u64 {
        done * 1_000 / u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }
}
