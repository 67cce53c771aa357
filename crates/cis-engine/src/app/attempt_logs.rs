//! Logs of attempts that workers hold: where each ends, so that the next piece is added without looking at what is there.
//!
//! There is a lock per attempt, which is waited for without a thread; the disk is waited for on a thread of its own.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cis_core::error::Refusal;
use cis_core::id::{Epoch, ExecutionId, Fence};
use cis_runner::log::{Appender, Record};
use cis_runner::protocol::LogSummary;
use cis_store::AttemptLine;
use cis_store::port::Holding;

use super::{App, broke_off};

/// Attempts whose log was written to, kept in memory so that the next piece and their end find it. Beyond that the half
/// that was not written to for longest goes: the next piece of such an attempt looks through its log once.
const LOGS_MAX: usize = 4_096;

/// Log files of attempts that workers hold.
#[derive(Debug, Clone, Default)]
pub(super) struct Logs(Arc<Mutex<KnownLogs>>);

#[derive(Debug, Default)]
struct KnownLogs {
    by_attempt: HashMap<(ExecutionId, Fence), KnownLog>,
    /// Counts pieces: what was written to last has the highest.
    pieces: u64,
    /// The epoch this node began with, once it was needed: attempts of earlier ones may have logged before.
    since: Option<Epoch>,
    /// There were more than [`LOGS_MAX`], so an attempt that is not known may have logged all the same.
    forgot_some: bool,
}

#[derive(Debug)]
struct KnownLog {
    last_piece: u64,
    end: SharedEnd,
}

/// The end of one log, once it has been looked for. One piece at a time: where the next one goes depends on the last.
type SharedEnd = Arc<tokio::sync::Mutex<Option<Appender>>>;

impl Logs {
    fn lock(&self) -> MutexGuard<'_, KnownLogs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attempt has surely not logged anything.
    fn has_none(&self, execution: ExecutionId, fence: Fence) -> bool {
        let known = self.lock();
        !known.by_attempt.contains_key(&(execution, fence))
            && !known.forgot_some
            && known.since.is_some_and(|since| fence.epoch() >= since)
    }

    /// The end of an attempt's log, if it is known.
    fn known_end(&self, execution: ExecutionId, fence: Fence) -> Option<SharedEnd> {
        self.lock().by_attempt.get(&(execution, fence)).map(|log| log.end.clone())
    }

    /// Forgets an attempt that is over. One that a piece is being added to goes with those that are not used for long.
    pub(super) fn forget(&self, execution: ExecutionId, fence: Fence) {
        let mut known = self.lock();
        if known.by_attempt.get(&(execution, fence)).is_some_and(KnownLog::is_idle) {
            known.by_attempt.remove(&(execution, fence));
        }
    }
}

impl KnownLog {
    /// No piece is being added to it, nor waits to be.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.end) == 1
    }
}

impl KnownLogs {
    fn end_of(&mut self, execution: ExecutionId, fence: Fence) -> SharedEnd {
        self.pieces += 1;
        let pieces = self.pieces;
        if self.by_attempt.len() >= LOGS_MAX && !self.by_attempt.contains_key(&(execution, fence)) {
            self.forget_older_half();
        }
        let log = self
            .by_attempt
            .entry((execution, fence))
            .or_insert_with(|| KnownLog { last_piece: pieces, end: SharedEnd::default() });
        log.last_piece = pieces;
        log.end.clone()
    }

    /// Half at once, so that it costs little for each that comes.
    fn forget_older_half(&mut self) {
        let mut uses: Vec<u64> = self.by_attempt.values().map(|log| log.last_piece).collect();
        let half = uses.len() / 2;
        let (_, median, _) = uses.select_nth_unstable(half);
        self.by_attempt.retain(|_, log| log.last_piece >= *median || !log.is_idle());
        self.forgot_some = true;
    }
}

impl App {
    /// Adds to the log of an attempt that its holder still has; answers how much of that stream has been told.
    pub(super) async fn append_log(&self, attempt: AttemptLine, record: Record) -> Result<u64, Refusal> {
        let end = self.logs.lock().end_of(attempt.execution, attempt.fence);
        let mut end = end.lock_owned().await;
        let app = self.clone();
        let writing = tokio::task::spawn_blocking(move || {
            // If it cannot be written, its end is looked for again with the next piece.
            let mut log = match end.take() {
                Some(log) => log,
                None => app.open_log(&attempt)?,
            };
            let told = log.append(&record)?;
            *end = Some(log);
            Ok(told)
        });
        let written = writing.await.map_err(|_| broke_off("logging"))?;
        written.map_err(|e: io::Error| Refusal::unwritten("the log", &e))
    }

    /// Looks for the end of an attempt's log.
    fn open_log(&self, attempt: &AttemptLine) -> io::Result<Appender> {
        let AttemptLine { execution, run, attempt, .. } = attempt;
        let (data_dir, limits) = (&self.options.data_dir, &self.options.limits);
        let cap = limits.log_cap(data_dir, run.0, execution.0, *attempt);
        Appender::open(data_dir.log(run.0, execution.0, *attempt), cap)
    }

    /// What the log of an attempt amounts to; nothing if the attempt is not the speaker's and its log is not known.
    pub(super) async fn log_of(&self, holding: &Holding) -> LogSummary {
        if self.logs.has_none(holding.execution, holding.fence) {
            return LogSummary::default();
        }
        // It goes no further than the store, which refuses all but the holder.
        if let Some(end) = self.logs.known_end(holding.execution, holding.fence)
            && let Some(log) = &*end.lock().await
        {
            return log.summary();
        }
        self.look_for_log(holding).await.unwrap_or_default()
    }

    /// Reads the log of an attempt that this node does not know, and knows it from then on. That takes the speaker's turns to read.
    async fn look_for_log(&self, holding: &Holding) -> Option<LogSummary> {
        let (app, asked) = (self.clone(), holding.clone());
        // Only the holder's own word is worth reading the whole log for.
        let found = self.reads.read_for(&holding.identity, move |reader| app.find_attempt(reader, &asked));
        let attempt = found.await.ok().flatten()?;
        let end = self.logs.lock().end_of(attempt.execution, attempt.fence);
        let mut end = end.lock_owned().await;
        let app = self.clone();
        let reading = self.reads.read_for(&holding.identity, move |_| {
            if end.is_none() {
                *end = app.open_log(&attempt).ok();
            }
            Ok(end.as_ref().map(Appender::summary))
        });
        reading.await.ok().flatten()
    }

    /// The attempt that the speaker holds, if it may have logged.
    fn find_attempt(
        &self,
        reader: &cis_store::Reader,
        holding: &Holding,
    ) -> Result<Option<AttemptLine>, Refusal> {
        let since = self.logs.lock().since;
        if since.is_none() {
            let epoch = reader.epoch()?;
            self.logs.lock().since = Some(epoch);
        }
        if self.logs.has_none(holding.execution, holding.fence) {
            return Ok(None);
        }
        Ok(Some(reader.attempt(holding)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(n: i64) -> (ExecutionId, Fence) {
        (ExecutionId(n), Fence(n))
    }

    fn log_in(known: &mut KnownLogs, n: i64) -> SharedEnd {
        let (execution, fence) = attempt(n);
        known.end_of(execution, fence)
    }

    #[test]
    fn logs_written_to_least_recently_are_forgotten_first_and_none_in_use() {
        let mut known = KnownLogs::default();
        let in_use = log_in(&mut known, 0);
        let many = i64::try_from(LOGS_MAX).unwrap();
        for n in 1..many {
            log_in(&mut known, n);
        }
        log_in(&mut known, 1);
        assert!(!known.forgot_some);
        log_in(&mut known, many);
        assert!(known.forgot_some);
        assert!(known.by_attempt.len() <= LOGS_MAX / 2 + 3);
        for kept in [0, 1, many - 1, many] {
            assert!(known.by_attempt.contains_key(&attempt(kept)), "{kept}");
        }
        assert!(!known.by_attempt.contains_key(&attempt(2)));
        // The same end for each who writes to it.
        assert!(Arc::ptr_eq(&in_use, &log_in(&mut known, 0)));
    }

    #[test]
    fn a_log_in_use_is_not_forgotten_when_its_attempt_ends() {
        let logs = Logs::default();
        let (execution, fence) = attempt(1);
        let in_use = log_in(&mut logs.lock(), 1);
        logs.forget(execution, fence);
        assert!(logs.lock().by_attempt.contains_key(&(execution, fence)));
        drop(in_use);
        logs.forget(execution, fence);
        assert!(!logs.lock().by_attempt.contains_key(&(execution, fence)));
    }
}
