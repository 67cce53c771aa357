//! Tasks that others work on: claiming them, keeping the claim, logging, and telling how it ended.
//!
//! ```text
//!   claim ──► lease ──► heartbeat, progress, log … ──► complete │ fail │ release
//!     └─ nothing there: wait at the desk        └─ silence: the lease runs out, somebody else may claim it
//! ```

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Epoch, ExecutionId, Fence};
use cis_core::retry::Failure;
use cis_core::source::{Clock, Millis, Random, Timestamp};
use cis_core::template;
use cis_runner::log::{self, Record};
use cis_runner::protocol::LogSummary;
use cis_store::port::{
    ClaimWork, Conclude, Concluded, Ending, Heartbeat, Held, Holding, IdempotencyKey, Once, Progress, Store,
};
use cis_store::sqlite::AttemptLine;
use serde_json::Value;

use crate::coordinator::handle::News;
use crate::desk::Able;
use crate::dispatch::scene;
use crate::node::Node;
use crate::system::System;

pub use cis_runner::log::Stream;

/// Attempts whose log was written to, kept in memory so that their end finds it without asking the store.
const LOGS_MAX: usize = 4_096;

/// Log files of attempts that workers hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<KnownLogs>>);

#[derive(Debug, Default)]
struct KnownLogs {
    by_attempt: HashMap<(ExecutionId, Fence), PathBuf>,
    /// The epoch this node began with, once it was needed: attempts of earlier ones may have logged before.
    since: Option<Epoch>,
    /// There were more than [`LOGS_MAX`], so an attempt that is not known may have logged all the same.
    forgot_some: bool,
}

/// What is known about the log of an attempt.
enum LogPlace {
    At(PathBuf),
    Nowhere,
    Unknown,
}

impl Logs {
    fn lock(&self) -> MutexGuard<'_, KnownLogs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, execution: ExecutionId, fence: Fence) -> LogPlace {
        let known = self.lock();
        match known.by_attempt.get(&(execution, fence)) {
            Some(path) => LogPlace::At(path.clone()),
            None if !known.forgot_some && known.since.is_some_and(|since| fence.epoch() >= since) => {
                LogPlace::Nowhere
            }
            None => LogPlace::Unknown,
        }
    }

    fn forget(&self, execution: ExecutionId, fence: Fence) {
        self.lock().by_attempt.remove(&(execution, fence));
    }
}

impl KnownLogs {
    fn remember(&mut self, execution: ExecutionId, fence: Fence, path: PathBuf) {
        if self.by_attempt.len() >= LOGS_MAX {
            self.by_attempt.clear();
            self.forgot_some = true;
        }
        self.by_attempt.insert((execution, fence), path);
    }
}

/// A task in the hands of somebody outside, with its input filled in.
#[derive(Debug)]
pub struct Job {
    pub held: Held,
    pub input: Value,
    /// When the lease runs out, by the clock on the wall.
    pub lease_expires: Timestamp,
}

/// A piece of an attempt's output.
#[derive(Debug, Clone)]
pub struct Piece {
    pub stream: Stream,
    /// Where it stands in its stream: told again, it is written once.
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// How an attempt ended, as its holder tells it.
#[derive(Debug, Clone)]
pub enum Outcome {
    Completed { outputs: Option<Value> },
    Failed { error: String, exit_code: Option<i32> },
    Released,
}

impl Node {
    /// Claims tasks; if there are none, waits for some, but no longer than `wait`. The moment of the request is taken
    /// anew with every look.
    pub async fn claim(&self, request: ClaimWork, wait: Duration) -> Result<Vec<Job>, Refusal> {
        let able = Able { scopes: request.scopes.clone(), capabilities: request.capabilities.clone() };
        let waited = tokio::time::sleep(wait);
        tokio::pin!(waited);
        let mut changes = self.changes();
        loop {
            let drained = changes.wait_for(|now| !now.draining);
            tokio::select! {
                biased;
                open = drained => if open.is_err() { return Ok(Vec::new()) },
                () = &mut waited => return Ok(Vec::new()),
            }
            let (now, since_boot) = (System.now(), System.since_boot());
            let request = ClaimWork { now, since_boot, ..request.clone() };
            let node = self.clone();
            // On its own: a caller that goes away before the answer must not keep the loop from hearing of the lease,
            // or nobody would look when it runs out.
            let claiming = tokio::spawn(async move { node.claim_now(request).await });
            let jobs = claiming.await.map_err(|_| broke_off("claiming"))??;
            if !jobs.is_empty() || wait.is_zero() {
                return Ok(jobs);
            }
            tokio::select! {
                () = self.desk.wait(able.clone()) => {}
                () = &mut waited => return Ok(Vec::new()),
            }
        }
    }

    async fn claim_now(&self, request: ClaimWork) -> Result<Vec<Job>, Refusal> {
        let (now, since_boot, term) = (request.now, request.since_boot, request.term);
        let (identity, scopes) = (request.identity.clone(), request.scopes.clone());
        let held = self.store.claim_work(request).await?;
        if !held.is_empty() {
            // Each task may have a time of its own that is over sooner.
            let times = held.iter().filter_map(|held| held.claim.task().more().timeout);
            let due = times.fold(term, Millis::min);
            self.handle.wrote(News { due: Some(now.after(due)), ..News::default() }).await;
        }
        let mut jobs = Vec::with_capacity(held.len());
        for held in held {
            let input = held.claim.task().kind.input().cloned().unwrap_or_default();
            match template::fill_json(&input, &scene(&held.claim)) {
                Ok(input) => {
                    let lease_expires = now.after(held.expires.since(since_boot));
                    jobs.push(Job { held, input, lease_expires });
                }
                Err(e) => {
                    let (execution, fence) = (held.claim.execution, held.claim.fence);
                    let (identity, scopes) = (identity.clone(), scopes.clone());
                    let holding = Holding { execution, fence, identity, scopes, now, since_boot };
                    self.give_up(holding, format!("input {e}")).await?;
                }
            }
        }
        Ok(jobs)
    }

    /// Fails a task whose input cannot be made: nobody could work on it.
    async fn give_up(&self, holding: Holding, why: String) -> Result<(), Refusal> {
        let ending = Ending::Failed { failure: Failure::Broken, why: Some(why.clone()) };
        let request = conclusion(None, holding, ending, why);
        self.record(request).await?.plain()?;
        Ok(())
    }

    /// Somebody who says that it holds an attempt, now.
    pub fn holding(&self, execution: ExecutionId, fence: Fence, by: &Caller) -> Holding {
        let (identity, scopes) = (by.identity.clone(), by.scopes.clone());
        Holding { execution, fence, identity, scopes, now: System.now(), since_boot: System.since_boot() }
    }

    /// Keeps a claim.
    pub async fn heartbeat(
        &self,
        holding: Holding,
        term: Option<Millis>,
    ) -> Result<(Heartbeat, Timestamp), Refusal> {
        let (now, since_boot) = (holding.now, holding.since_boot);
        let beat = self.store.heartbeat(holding, term).await?;
        let expires = now.after(beat.expires.since(since_boot));
        if term.is_some() {
            // It may run out sooner than it would have.
            self.handle.wrote(News { due: Some(expires), ..News::default() }).await;
        }
        Ok((beat, expires))
    }

    /// Notes how far its holder is.
    pub async fn progress(&self, holding: Holding, progress: Progress) -> Result<(), Refusal> {
        Ok(self.store.note_progress(holding, progress).await?)
    }

    /// Adds to the log of an attempt that its holder still has; answers how much of that stream has been told.
    pub async fn log(&self, attempt: AttemptLine, piece: Piece) -> Result<u64, Refusal> {
        let AttemptLine { execution, fence, run, attempt } = attempt;
        let path = self.options().data_dir.log(run.0, execution.0, attempt);
        let Piece { stream, offset, bytes } = piece;
        let (node, piece) = (self.clone(), Record { stream, at_ms: System.now().0, offset, bytes });
        let writing = tokio::task::spawn_blocking(move || {
            // One at a time: where the next piece goes depends on the last one.
            let mut logs = node.logs.lock();
            let cap_bytes = node.options().limits.log_cap_bytes;
            let told =
                log::append(&path, cap_bytes, &piece).map_err(|e| Refusal::unwritten("the log", &e))?;
            logs.remember(execution, fence, path);
            Ok(told)
        });
        writing.await.map_err(|_| broke_off("logging"))?
    }

    /// Records how an attempt ended.
    pub async fn conclude(
        &self,
        key: Option<IdempotencyKey>,
        holding: Holding,
        outcome: Outcome,
    ) -> Result<Once<Concluded>, Refusal> {
        let (ending, error, exit_code, outputs) = match outcome {
            Outcome::Completed { outputs } => (Ending::Succeeded, String::new(), None, outputs),
            Outcome::Released => (Ending::Released, String::new(), None, None),
            Outcome::Failed { error, exit_code } => {
                let failure = Failure::Exit(exit_code.unwrap_or(1));
                (Ending::Failed { failure, why: Some(error.clone()) }, error, exit_code, None)
            }
        };
        let log = self.log_of(&holding).await;
        let (execution, fence) = (holding.execution, holding.fence);
        let request = conclusion(key, holding, ending, error);
        let request =
            Conclude { exit_code, outputs, output: log.stdout_tail, log_bytes: log.bytes, ..request };
        let once = self.record(request).await?;
        // Only now: a result that is refused, such as another identity's, takes nothing from the holder's.
        if once.answer.is_ok() {
            self.logs.forget(execution, fence);
        }
        Ok(once)
    }

    async fn record(&self, request: Conclude) -> Result<Once<Concluded>, Refusal> {
        self.write(
            "recording",
            move |store| async move { store.conclude(request).await },
            |told| News {
                ended: told.ended.clone(),
                due: told.next_due,
                // The end of a run makes nothing ready.
                ready: told.ended.is_empty(),
                ..News::default()
            },
        )
        .await
    }

    /// What the log of an attempt amounts to; nothing if the attempt is not the speaker's.
    async fn log_of(&self, holding: &Holding) -> LogSummary {
        let place = self.logs.place(holding.execution, holding.fence);
        if matches!(place, LogPlace::Nowhere) {
            return LogSummary::default();
        }
        let (node, holding) = (self.clone(), holding.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let path = match place {
                LogPlace::At(path) => Some(path),
                // Most likely the node was restarted since: the store knows the attempt.
                _ => node.find_log(&holding).ok().flatten(),
            };
            path.map(|path| log::summary(&path)).unwrap_or_default()
        });
        reading.await.unwrap_or_default()
    }

    /// Where the log of an attempt would be, as the store knows it.
    fn find_log(&self, holding: &Holding) -> Result<Option<PathBuf>, Refusal> {
        let reader = self.reader()?;
        let since = self.logs.lock().since;
        if since.is_none() {
            let epoch = reader.epoch()?;
            self.logs.lock().since = Some(epoch);
        }
        match self.logs.place(holding.execution, holding.fence) {
            LogPlace::At(path) => Ok(Some(path)),
            LogPlace::Nowhere => Ok(None),
            LogPlace::Unknown => {
                let AttemptLine { execution, run, attempt, .. } = reader.attempt(holding)?;
                Ok(Some(self.options().data_dir.log(run.0, execution.0, attempt)))
            }
        }
    }

    /// Lets those who wait for a task know of one, for as long as the node lives.
    pub async fn attend_claimers(&self) -> Result<(), Refusal> {
        let reader = self.reader()?;
        self.desk.clone().attend(self.changes(), reader).await;
        Ok(())
    }
}

fn conclusion(key: Option<IdempotencyKey>, holding: Holding, ending: Ending, error: String) -> Conclude {
    Conclude {
        key,
        holding,
        ending,
        exit_code: None,
        error,
        outputs: None,
        output: String::new(),
        log_bytes: 0,
        random: System.bits(),
    }
}

pub(crate) fn broke_off(what: &str) -> Refusal {
    Refusal::new(ErrorCode::Internal, format!("{what} broke off"))
}
