//! Real time: a dose may be one of minutes, kills fall at real moments, and clients write down when they asked and were
//! answered. No simulated clock could stand in, and nobody else here asks for the time.

use std::time::{Duration, Instant};

use crate::Dose;

/// Measures from when it was started, and says when a dose is over. Copies measure from the same moment.
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

    /// May another round begin after `done` of them?
    pub fn lets(self, done: u64, dose: &Dose) -> bool {
        done < dose.rounds && dose.time.is_none_or(|time| self.elapsed() < time)
    }

    /// How many rounds a second that makes, after `done` of them.
    pub fn per_second(self, done: u64) -> u64 {
        done * 1_000 / u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

/// Lets time pass: the moment of a blow is chosen by chance, nothing is waited for.
#[allow(clippy::disallowed_methods, reason = "between two blows nothing is waited for but time")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Looks every millisecond until there is an answer, for what does not announce itself; `None` after `patience`.
pub(crate) fn eventually<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let watch = Stopwatch::start();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if watch.elapsed() > patience {
            return None;
        }
        pause(Duration::from_millis(1));
    }
}
