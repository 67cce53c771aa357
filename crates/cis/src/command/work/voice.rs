//! What a worker says to the node about the task it holds, and how long it may trust that it holds it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use cis_client::Client;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::{BootTime, Clock, Millis};
use cis_engine::system::System;
use serde_json::{Value, json};

use super::Task;

/// What a worker leaves for its clock, its node's and the network between them.
const MARGIN: Millis = Millis(5_000);

/// Between two tries to be heard.
const PAUSE: Duration = Duration::from_millis(200);

/// The voice of one holder. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Voice {
    client: Client,
    over: Arc<(Mutex<bool>, Condvar)>,
    execution: i64,
    fence: i64,
    term: Millis,
}

impl Voice {
    pub(super) fn new(client: Client, task: &Task) -> Self {
        let term = Millis(task.lease_secs * 1_000);
        Self { client, over: Arc::default(), execution: task.execution_id, fence: task.fence, term }
    }

    /// Says something of the task.
    pub(super) fn say(&self, what: &str, mut body: Value) -> Result<Value, Refusal> {
        body["fence"] = json!(self.fence);
        self.client.post(&format!("/api/v1/tasks/{}/{what}", self.execution), &body)
    }

    /// The same until it is heard, or until it would come too late to count.
    pub(super) fn insist(&self, what: &str, body: &Value) -> Result<Value, Refusal> {
        let trusted = self.trusted(System.since_boot(), Millis(0));
        loop {
            let answer = self.say(what, body.clone());
            let again = answer.as_ref().is_err_and(is_passing) && System.since_boot() < trusted;
            if !again || self.is_over_within(PAUSE) {
                return answer;
            }
        }
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
    matches!(refusal.code, ErrorCode::Unavailable | ErrorCode::DiskFull | ErrorCode::Internal)
}
