//! Handing live attempts to another coordinator. Attempts that are tied to a connection end with it, unless their
//! coordinator has said that another one is coming:
//!
//! ```text
//!  tied ── connection closes ──────────────────────────────► ended, as OwnerGone
//!    │                                                             ▲
//!    └─ HandOver, then it closes ─► kept ── time is over ──────────┘
//!                                    └──── Hello, higher epoch ─► tied to no connection
//! ```

use crate::attempt::Cause;
use crate::clock::{NS_PER_MS, boot_ns};
use crate::protocol::{FromRunner, Outcome};
use crate::runner::{Runner, never_started};

/// Stands for the connection that kept attempts were tied to. Numbers of connections begin with one.
const KEPT: u64 = 0;

impl Runner {
    /// The coordinator expects another one; with a `keep_ms` of zero, none any more.
    pub(crate) fn prepare_hand_over(&mut self, id: u64, keep_ms: u64) {
        self.hand_over_ns = Some(keep_ms.saturating_mul(NS_PER_MS)).filter(|keep_ns| *keep_ns > 0);
        self.say(id, &FromRunner::HandOverReady);
    }

    /// The connection that counted is gone: ends what was tied to it, or keeps it for the next coordinator.
    pub(crate) fn release_tied(&mut self, id: u64) {
        match self.hand_over_ns.take() {
            Some(keep_ns) => {
                self.tie_again(id, Some(KEPT));
                self.kept_until_ns = Some(boot_ns().saturating_add(keep_ns));
            }
            None => self.end_tied(id),
        }
    }

    /// A coordinator with a higher epoch has come: what was kept is its to end.
    pub(crate) fn untie_kept(&mut self) {
        if self.kept_until_ns.take().is_some() {
            self.tie_again(KEPT, None);
        }
    }

    /// Ends what was kept, if its time is over.
    pub(crate) fn end_kept(&mut self, now_ns: u64) {
        if self.kept_until_ns.take_if(|until| *until <= now_ns).is_some() {
            self.end_tied(KEPT);
        }
    }

    fn tie_again(&mut self, from: u64, to: Option<u64>) {
        let queued = self.queue.iter_mut().map(|queued| &mut queued.owner);
        let running = self.attempts.values_mut().map(|attempt| &mut attempt.owner);
        queued.chain(running).filter(|owner| **owner == Some(from)).for_each(|owner| *owner = to);
    }

    fn end_tied(&mut self, id: u64) {
        let (tied, rest) = std::mem::take(&mut self.queue).into_iter().partition(|q| q.owner == Some(id));
        self.queue = rest;
        for queued in tied {
            self.conclude(never_started(queued.start.key, Outcome::OwnerGone));
        }
        let tied = self.attempts.iter().filter(|(_, attempt)| attempt.owner == Some(id));
        for number in tied.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.begin_stop(number, Cause::OwnerGone, false);
        }
    }
}
