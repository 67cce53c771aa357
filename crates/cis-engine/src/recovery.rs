//! What a coordinator found when its life began, and did about it: for whoever started it.

use std::fmt;

use cis_core::id::Epoch;
use cis_runner::protocol::{Known, KnownState};
use cis_store::port::Opening;
use serde::{Deserialize, Serialize};

/// What was found, and done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// This life of a coordinator; each has a higher one.
    pub epoch: i64,
    /// The one before it did not stop in good order.
    pub unclean: bool,
    /// Runs that were not over.
    pub runs: usize,
    /// Attempts that had gone on, and still do.
    pub reattached: usize,
    /// Attempts that had ended, and are recorded now.
    pub recorded: usize,
    /// Attempts that were handed over and never begun: started now.
    pub started: usize,
    /// Attempts that were to be stopped and had never begun.
    pub stopped: usize,
    /// Attempts whose runner or machine was gone.
    pub interrupted: usize,
    /// Leases of workers outside that got a fresh term, since the machine had been off.
    pub leases: usize,
}

impl Recovery {
    /// What the store found; `last_stop` is the life that stopped in good order.
    pub(crate) fn of(opening: &Opening, last_stop: Option<Epoch>) -> Self {
        let Epoch(epoch) = opening.epoch;
        let unclean = epoch > 1 && last_stop != Some(Epoch(epoch - 1));
        let (runs, leases) = (opening.unfinished.len(), opening.renewed);
        Self { epoch, unclean, runs, leases, ..Self::default() }
    }

    /// Counts what the runner still knew of.
    pub(crate) fn count_known<'a>(&mut self, known: impl Iterator<Item = &'a Known>) {
        for known in known {
            *match known.state {
                KnownState::Ended => &mut self.recorded,
                _ if known.remnant => &mut self.interrupted,
                KnownState::Queued | KnownState::Running => &mut self.reattached,
            } += 1;
        }
    }

    /// Was there anything to take up?
    pub fn took_up(&self) -> bool {
        self.runs > 0 || self.leases > 0
    }

    /// For the log of a node.
    pub(crate) fn log(&self) {
        let Self { epoch, unclean, runs, reattached, recorded, started, stopped, interrupted, leases } = self;
        tracing::info!(
            epoch,
            unclean,
            runs,
            reattached,
            recorded,
            started,
            stopped,
            interrupted,
            leases,
            "coordinator started"
        );
    }
}

/// `took up 2 runs after an unclean stop: 3 attempts went on, 1 had ended`
impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        write!(f, "took up {} run{}", self.runs, plural(self.runs))?;
        if self.unclean {
            f.write_str(" after an unclean stop")?;
        }
        let attempts = [
            (self.reattached, "went on"),
            (self.recorded, "had ended"),
            (self.started, "had not begun and started"),
            (self.stopped, "had not begun and will not"),
            (self.interrupted, "interrupted"),
        ];
        let mut sign = ":";
        for (count, what) in attempts.into_iter().filter(|(count, _)| *count > 0) {
            let noun = if sign == ":" { format!(" attempt{}", plural(count)) } else { String::new() };
            write!(f, "{sign} {count}{noun} {what}")?;
            sign = ",";
        }
        if self.leases > 0 {
            write!(f, "{sign} {} lease{} got a fresh term", self.leases, plural(self.leases))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recovery(epoch: i64, last_stop: Option<i64>) -> Recovery {
        let (live, unfinished) = (Vec::new(), Vec::new());
        let opening = Opening { epoch: Epoch(epoch), live, unfinished, renewed: 0 };
        Recovery::of(&opening, last_stop.map(Epoch))
    }

    #[test]
    fn only_the_life_before_counts_as_stopped_in_good_order() {
        assert!(!recovery(1, None).unclean, "there was none before it");
        assert!(!recovery(7, Some(6)).unclean);
        assert!(recovery(7, Some(5)).unclean && recovery(7, None).unclean);
    }

    #[test]
    fn it_is_told_in_a_line() {
        let nothing = Recovery { runs: 1, ..Recovery::default() };
        assert_eq!(nothing.to_string(), "took up 1 run");
        let much = Recovery {
            unclean: true,
            runs: 2,
            reattached: 3,
            recorded: 1,
            interrupted: 2,
            leases: 1,
            ..Recovery::default()
        };
        let told = "took up 2 runs after an unclean stop: 3 attempts went on, 1 had ended, 2 interrupted, 1 lease got a \
                    fresh term";
        assert_eq!(much.to_string(), told);
    }
}
