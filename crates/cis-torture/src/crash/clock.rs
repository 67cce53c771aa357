//! Real time: kills fall at real moments, and clients write down when they asked and were answered.

use std::time::{Duration, Instant};

/// Measures from when it was started. Copies measure from the same moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    #[allow(clippy::disallowed_methods, reason = "real processes are killed at real moments")]
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Lets time pass: the moment of a blow is chosen by chance, nothing is waited for.
#[allow(clippy::disallowed_methods, reason = "between two blows nothing is waited for but time")]
pub(super) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Looks every millisecond until there is an answer, for what does not announce itself; `None` after `patience`.
pub(super) fn eventually<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
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
