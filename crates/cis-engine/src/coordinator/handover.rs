//! Leaving while attempts of this process' own runs go on. They are tied to its connection, so the runner is told to keep
//! them for the next coordinator, and the loop ends when it has said that it does.
//!
//! ```text
//!   ask ─► settle ─► HandOver ─► HandOverReady ─► the loop ends, and with it the connection
//!                        └─ a runner that cannot, or does not answer ─► refused, and the loop goes on
//! ```

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::Ordering;

use cis_core::error::{ErrorCode, Refusal};
use cis_runner::protocol::{FromRunner, HAND_OVER_KEEP_MS, HAND_OVER_SINCE, ToRunner};
use cis_store::port::CoordinatorStore;
use serde_json::json;
use tokio::sync::oneshot;

use super::Coordinator;
use super::reach::{PATIENCE, silent};
use crate::machine::Machine;
use crate::runner_link::Peer;

/// How the loop is to end, and who waits to hear how many runs are left.
#[derive(Debug)]
pub(super) enum Leaving {
    Now(oneshot::Sender<usize>),
    HandingOver(oneshot::Sender<Result<usize, Refusal>>),
}

impl<S: CoordinatorStore, M: Machine> Coordinator<S, M> {
    /// Leaves as it was asked to; false if that is refused, and the loop goes on.
    pub(super) async fn leave(&mut self, leaving: Leaving) -> Result<bool, Refusal> {
        match leaving {
            Leaving::Now(reply) => {
                let _ = reply.send(self.unfinished.len());
                Ok(true)
            }
            Leaving::HandingOver(reply) => {
                let handed_over = self.hand_over_attempts().await?;
                let left = handed_over.is_ok();
                self.handed_over.store(left, Ordering::Relaxed);
                // What could have been claimed meanwhile was not.
                self.poke |= !left;
                let _ = reply.send(handed_over.map(|()| self.unfinished.len()));
                Ok(left)
            }
        }
    }

    /// Has the runner keep what would end with this connection. The inner error is the answer to a caller: nothing has
    /// changed then.
    async fn hand_over_attempts(&mut self) -> Result<Result<(), Refusal>, Refusal> {
        let runs = self.tied_runs();
        let Some(link) = self.link.as_mut().filter(|_| !runs.is_empty()) else { return Ok(Ok(())) };
        let peer = link.peer;
        if peer.protocol < HAND_OVER_SINCE {
            return Ok(Err(cannot_keep(peer, &runs)));
        }
        if let Some(silence) = &self.silence {
            return Ok(Err(silence.clone()));
        }
        link.queue(&ToRunner::HandOver { keep_ms: HAND_OVER_KEEP_MS });
        let machine = self.machine.clone();
        let mut patience = pin!(machine.pause(PATIENCE));
        while let Some(link) = &mut self.link {
            let message = tokio::select! {
                biased;
                message = link.next() => message,
                () = &mut patience => {
                    // When it reads on, this is what counts.
                    link.queue(&ToRunner::HandOver { keep_ms: 0 });
                    let data_dir = self.options.data_dir.root();
                    return Ok(Err(silent(self.machine.find_runner(data_dir), data_dir)));
                }
            };
            match message {
                Ok(FromRunner::HandOverReady) => return Ok(Ok(())),
                Ok(message) => self.hear(message).await?,
                Err(_) => self.lose_link()?,
            }
        }
        let why =
            format!("the runner (process {}) closed its connection before it could hand over", peer.pid);
        Ok(Err(Refusal::new(ErrorCode::Unavailable, why)))
    }

    /// The runs of which attempts are tied to the connection, as people call them.
    fn tied_runs(&self) -> BTreeSet<String> {
        let tied =
            self.flying.iter().filter(|(key, _)| !self.untied.contains(key)).map(|(_, claim)| &claim.run);
        tied.filter(|run| self.is_tied(run.key))
            .map(|run| format!("{}#{}", run.definition.dag.dag_id, run.number))
            .collect()
    }
}

/// The runner was started by a version that ends tied attempts with their connection, whatever it is told.
fn cannot_keep(peer: Peer, runs: &BTreeSet<String>) -> Refusal {
    let Peer { pid, protocol } = peer;
    let names: Vec<String> = runs.iter().map(|run| format!("`{run}`")).collect();
    let why = format!(
        "the runner (process {pid}) was started by an earlier version and cannot hand over the tasks of {}",
        names.join(", ")
    );
    let cancel: Vec<String> = runs.iter().map(|run| format!("`cis dag cancel {run}`")).collect();
    Refusal::new(ErrorCode::Unavailable, why)
        .hint(format!("wait until they have ended, or {}", cancel.join(", ")))
        .details(json!({"runner_pid": pid, "runner_protocol": protocol, "runs": runs}))
}
