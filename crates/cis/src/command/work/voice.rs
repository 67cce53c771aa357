//! What a worker says to the node about the task it holds, and how long it may trust that it holds it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use cis_api::fence::SentFence;
use cis_api::work::{ClaimedTask, ExecutionPath};
use cis_api::{Call, Nothing, Request};
use cis_client::Client;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::ExecutionId;
use cis_core::source::{BootTime, Clock, Millis};
use cis_engine::system::System;

/// What a worker leaves for its clock, its node's and the network between them.
const MARGIN: Millis = Millis(5_000);

/// Between two tries to be heard.
const PAUSE: Duration = Duration::from_millis(200);

/// The voice of one holder. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Voice {
    client: Client,
    over: Arc<(Mutex<bool>, Condvar)>,
    execution: ExecutionId,
    fence: SentFence,
    term: Millis,
}

impl Voice {
    pub(super) fn new(client: Client, task: &ClaimedTask) -> Self {
        let (execution, fence) = (task.execution_id, SentFence(task.fence));
        let term = Millis(task.lease_secs.saturating_mul(1_000));
        Self { client, over: Arc::default(), execution, fence, term }
    }

    /// Says something of the task: `body` is given its fence.
    pub(super) fn say<C>(&self, body: impl FnOnce(SentFence) -> C::Body) -> Result<C::Response, Refusal>
    where
        C: Call<Path = ExecutionPath, Query = Nothing>,
    {
        self.client.call(&self.request::<C>(body))
    }

    /// The same until it is heard, or until it would come too late to count.
    pub(super) fn insist<C>(&self, body: impl FnOnce(SentFence) -> C::Body) -> Result<C::Response, Refusal>
    where
        C: Call<Path = ExecutionPath, Query = Nothing>,
    {
        let (request, trusted) = (self.request::<C>(body), self.trusted(System.since_boot(), Millis(0)));
        loop {
            let answer = self.client.call(&request);
            let again = answer.as_ref().is_err_and(is_passing) && System.since_boot() < trusted;
            if !again || self.is_over_within(PAUSE) {
                return answer;
            }
        }
    }

    fn request<C>(&self, body: impl FnOnce(SentFence) -> C::Body) -> Request<C>
    where
        C: Call<Path = ExecutionPath, Query = Nothing>,
    {
        Request::new(ExecutionPath::from(self.execution), Nothing {}, body(self.fence))
    }

    /// From now on there is nothing more to say.
    pub(super) fn end(&self) {
        let (over, told) = &*self.over;
        *over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        told.notify_all();
    }

    /// Waits for the end, but no longer than `time`; was it over by then?
    pub(super) fn is_over_within(&self, time: Duration) -> bool {
        let (over, told) = &*self.over;
        let lock = over.lock().unwrap_or_else(PoisonError::into_inner);
        let (over, _) =
            told.wait_timeout_while(lock, time, |over| !*over).unwrap_or_else(PoisonError::into_inner);
        *over
    }

    /// Between two heartbeats.
    pub(super) fn beat(&self) -> Duration {
        Duration::from_millis(self.term.0 / 3)
    }

    /// Until when a lease may be trusted that was granted or renewed by a request sent at `sent`: `grace` is how long
    /// it takes to end the command.
    pub(super) fn trusted(&self, sent: BootTime, grace: Millis) -> BootTime {
        let margin = Millis(grace.0 + MARGIN.0 + self.term.0 / 100).min(Millis(self.term.0 / 2));
        sent.after(Millis(self.term.0 - margin.0))
    }
}

/// Is it worth another try?
pub(super) fn is_passing(refusal: &Refusal) -> bool {
    matches!(
        refusal.code,
        ErrorCode::Unavailable | ErrorCode::DiskFull | ErrorCode::Internal | ErrorCode::WrongNode
    )
}
