//! How others reach the coordinator's loop.

use std::time::Duration;

use cis_core::error::Refusal;
use cis_core::source::Timestamp;
use cis_store::port::RunRef;
use tokio::sync::{mpsc, oneshot, watch};

use crate::command::{Command, Reply};

/// Who asks: a connection, or this process itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(pub u64);

/// This process itself. Its runs' tasks are tied to it: they end when it is killed.
pub const SELF: Owner = Owner(0);

/// A message to the loop.
#[derive(Debug)]
pub enum Ask {
    Command {
        command: Command,
        owner: Owner,
        reply: oneshot::Sender<Reply>,
    },
    /// Somebody else wrote to the store.
    Look,
    /// Somebody else wrote to the store, and this is what came of it.
    Wrote(News),
    /// A connection closed: what it owned ends.
    Gone(Owner),
    /// Stop once the present step is done; answers how many runs are left for others.
    Leave(oneshot::Sender<usize>),
    /// The same, but what runs goes on under the next coordinator; refused if the runner cannot keep it until then.
    HandOver(oneshot::Sender<Result<usize, Refusal>>),
}

/// What somebody else's write came to.
#[derive(Debug, Clone, Default)]
pub struct News {
    /// A run that is not over as far as the write goes; it may be by now.
    pub started: Option<RunRef>,
    pub ended: Vec<RunRef>,
    /// Something must be swept no later than this.
    pub due: Option<Timestamp>,
    /// Something may have become claimable, or a large step begun.
    pub ready: bool,
}

/// What has happened, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    pub commits: u64,
    pub ended_runs: u64,
    /// Nothing more is claimed.
    pub draining: bool,
}

/// Waits until a follower who was told of `seen` should look again: when something has changed, but not before
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
    /// Asks and waits for the answer.
    pub async fn call(&self, command: Command, owner: Owner) -> Reply {
        let (reply, answer) = oneshot::channel();
        if self.asks.send(Ask::Command { command, owner, reply }).await.is_err() {
            return Reply::Going;
        }
        answer.await.unwrap_or(Reply::Going)
    }

    /// [`Handle::call`], for threads outside the loop's runtime.
    pub fn call_blocking(&self, command: Command, owner: Owner) -> Reply {
        let (reply, answer) = oneshot::channel();
        if self.asks.blocking_send(Ask::Command { command, owner, reply }).is_err() {
            return Reply::Going;
        }
        answer.blocking_recv().unwrap_or(Reply::Going)
    }

    /// Says that somebody else wrote to the store.
    pub async fn look(&self) {
        let _ = self.asks.send(Ask::Look).await;
    }

    /// Says what somebody else's write came to.
    pub async fn wrote(&self, news: News) {
        let _ = self.asks.send(Ask::Wrote(news)).await;
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
    /// come within [`HAND_OVER_KEEP_MS`]. Answers how many runs are left for it; zero if the loop has ended otherwise.
    /// Where the runner cannot do that, the refusal says whom to wait for, and the loop goes on.
    ///
    /// [`HAND_OVER_KEEP_MS`]: cis_runner::protocol::HAND_OVER_KEEP_MS
    pub async fn hand_over(&self) -> Result<usize, Refusal> {
        let (reply, answer) = oneshot::channel();
        let _ = self.asks.send(Ask::HandOver(reply)).await;
        answer.await.unwrap_or(Ok(0))
    }

    /// [`Handle::hand_over`], for threads outside the loop's runtime.
    pub fn hand_over_blocking(&self) -> Result<usize, Refusal> {
        let (reply, answer) = oneshot::channel();
        let _ = self.asks.blocking_send(Ask::HandOver(reply));
        answer.blocking_recv().unwrap_or(Ok(0))
    }

    /// Changes with every commit.
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.changes.clone()
    }

    /// True while no run is unfinished.
    pub fn idle(&self) -> watch::Receiver<bool> {
        self.idle.clone()
    }
}
