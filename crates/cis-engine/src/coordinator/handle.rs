//! How others reach the coordinator's loop.

use std::time::Duration;

use cis_api::node::CoordinatorInfo;
use cis_core::error::Refusal;
use cis_core::id::{RunId, RunKey};
use cis_core::source::Timestamp;
use cis_store::port::RunRef;
use tokio::sync::{mpsc, oneshot, watch};

use crate::context::Context;

/// Who owns a run: a connection, or this process itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(pub u64);

/// This process itself. Its runs' tasks are tied to it: they end when it is killed.
pub const SELF: Owner = Owner(0);

/// A message to the loop.
#[derive(Debug)]
pub enum Ask {
    /// A caller wrote to the store.
    Look,
    /// A caller wrote to the store, and this is what came of it.
    Wrote(News),
    /// A run with an environment of its own is about to be started.
    Expect { run: RunId, expected: Expected, noted: oneshot::Sender<()> },
    /// It was not started.
    Forget(RunId),
    /// A connection owns this run from now on: it ends with it.
    Attach { run: RunKey, owner: Owner, noted: oneshot::Sender<()> },
    /// Claim nothing more, or claim again; answers whether that changes anything. It lasts as long as the coordinator.
    Drain { draining: bool, changed: oneshot::Sender<bool> },
    /// Answers what the coordinator says of itself.
    Describe(oneshot::Sender<Box<CoordinatorInfo>>),
    /// A connection closed: what it owned ends.
    Gone(Owner),
    /// Stop once the present step is done; answers how many runs are left for others.
    Leave(oneshot::Sender<usize>),
    /// The same, but what runs goes on under the next coordinator; refused if the runner cannot keep it until then.
    HandOver(oneshot::Sender<Result<usize, Refusal>>),
}

/// What a run that is about to start will need.
#[derive(Debug)]
pub struct Expected {
    /// Its tasks end with this owner.
    pub owner: Option<Owner>,
    /// The owner went away before the run was there.
    pub is_owner_gone: bool,
    /// Where they start; nothing if that is to be read from the file when the first one does.
    pub context: Option<Context>,
}

/// What a caller's write came to.
#[derive(Debug, Clone, Default)]
pub struct News {
    /// A run that is not over as far as the write goes; it may be by now.
    pub started: Option<RunRef>,
    pub ended: Vec<RunRef>,
    /// Something must be swept no later than this.
    pub due: Option<Timestamp>,
    /// Something may have become claimable, or a large step begun.
    pub ready: bool,
    /// The processes of this run are to be killed, not asked to end.
    pub kill: Option<RunKey>,
}

/// What has happened, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    pub commits: u64,
    pub ended_runs: u64,
    /// Nothing more is claimed.
    pub draining: bool,
}

/// Waits until a follower that was told of `seen` should look again: when something has changed, but not before
/// `pause`, so that a storm of commits is not a storm of looks; at once when a run has ended. False when the
/// coordinator is gone.
pub async fn next_look(changes: &mut watch::Receiver<Changes>, seen: Changes, pause: Duration) -> bool {
    let _ = tokio::time::timeout(pause, changes.wait_for(|now| now.ended_runs != seen.ended_runs)).await;
    changes.wait_for(|now| *now != seen).await.is_ok()
}

/// How others reach the loop. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(super) asks: mpsc::Sender<Ask>,
    pub(super) changes: watch::Receiver<Changes>,
    pub(super) idle: watch::Receiver<bool>,
}

impl Handle {
    /// Says that a caller wrote to the store.
    pub async fn look(&self) {
        let _ = self.asks.send(Ask::Look).await;
    }

    /// Says what a caller's write came to.
    pub async fn wrote(&self, news: News) {
        let _ = self.asks.send(Ask::Wrote(news)).await;
    }

    /// Lets the loop know of a run's environment and owner before the run is committed.
    pub async fn expect_run(&self, run: RunId, expected: Expected) -> Result<(), Refusal> {
        self.ask(|noted| Ask::Expect { run, expected, noted }).await
    }

    /// Takes that back.
    pub async fn forget_expected(&self, run: RunId) {
        let _ = self.asks.send(Ask::Forget(run)).await;
    }

    /// Lets a connection own a run.
    pub async fn attach(&self, run: RunKey, owner: Owner) -> Result<(), Refusal> {
        self.ask(|noted| Ask::Attach { run, owner, noted }).await
    }

    /// Claims nothing more, or claims again; false if it was so already.
    pub async fn drain(&self, draining: bool) -> Result<bool, Refusal> {
        self.ask(|changed| Ask::Drain { draining, changed }).await
    }

    /// Claims nothing more, for threads outside the loop's runtime.
    pub fn drain_blocking(&self) {
        let (changed, _) = oneshot::channel();
        let _ = self.asks.blocking_send(Ask::Drain { draining: true, changed });
    }

    /// What the coordinator says of itself.
    pub async fn describe(&self) -> Result<CoordinatorInfo, Refusal> {
        self.ask(Ask::Describe).await.map(|info| *info)
    }

    /// Says that a connection closed.
    pub async fn gone(&self, owner: Owner) {
        let _ = self.asks.send(Ask::Gone(owner)).await;
    }

    /// Ends the loop; answers how many runs are left for others.
    pub fn leave_blocking(&self) -> usize {
        let (reply, answer) = oneshot::channel();
        let _ = self.asks.blocking_send(Ask::Leave(reply));
        answer.blocking_recv().unwrap_or(0)
    }

    /// Ends the loop while everything that runs goes on, also what would end with this process: another coordinator must
    /// come within [`HAND_OVER_KEEP_MS`]. Answers how many runs are left for it. Where the runner cannot do that, the refusal
    /// says whom to wait for, and the loop goes on.
    ///
    /// [`HAND_OVER_KEEP_MS`]: cis_runner::protocol::HAND_OVER_KEEP_MS
    pub async fn hand_over(&self) -> Result<usize, Refusal> {
        self.ask(Ask::HandOver).await?
    }

    /// Changes with every commit.
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.changes.clone()
    }

    /// True while no run is unfinished.
    pub fn idle(&self) -> watch::Receiver<bool> {
        self.idle.clone()
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(ask(reply)).await.map_err(|_| leaving())?;
        answer.await.map_err(|_| leaving())
    }
}

/// What a caller is told whose coordinator is leaving: the next one answers.
pub fn leaving() -> Refusal {
    Refusal::leaving("the coordinator is leaving")
}
