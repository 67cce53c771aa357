//! The one who writes: commits once per batch, then answers every caller.
//!
//! ```text
//!   many callers ──bounded queue──► writer thread ─┐
//!                                                  ├─ lock ─► BEGIN … COMMIT ─► answers
//!   the coordinator, if nobody else is writing ────┘
//! ```
//!
//! An operation that is refused or fails undoes only itself (a savepoint each). If SQLite has rolled the whole
//! transaction back, every operation of the batch is answered with that failure: nobody is told of a write that is not
//! there.
//!
//! | what fails | what follows |
//! |---|---|
//! | a write, for want of room | the [`Reserve`] is given up and the batch done again, without what is new work |
//! | a sync | nobody knows what is on the disk: the store is lost, and everybody is told so from then on |
//! | an operation, by a panic | the same: what it left half done is in memory |

use std::fmt;
use std::time::Duration;

use cis_core::notice::Wanted;
use cis_core::source::{Clock, Timestamp};
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::clock::{self, When};
use super::memory::Memory;
use super::pulse::Pulse;
use super::reserve::Reserve;
use super::steps::Chunks;
use super::sync::{
    Arc, AtomicI32, AtomicU64, JoinHandle, Mutex, MutexGuard, Ordering, PoisonError, TryLockError, mpsc,
    oneshot, thread, watch,
};
use super::tx::Tx;
use crate::port::{Answer, StoreError};

/// Operations that may wait for the writer before callers have to: a few batches' worth.
const QUEUE_MAX: usize = 1024;

/// Operations committed together. Enough to share one disk flush among all who wait for it; few enough that
/// the first in line is not kept waiting by the last.
const BATCH_MAX: usize = 64;

/// Pages of write-ahead log before they are folded back into the file: about 4 MiB. Small, so that the log is soon
/// written over instead of growing: writes into blocks a file already has are several times cheaper, and so is forcing
/// them to disk.
const FOLD_PAGES: i32 = 1_000;

/// Pages of a log that is long, about 32 MiB: somebody has been reading for a while from before it. Then operations are gathered
/// for this time. Many of them change the same pages, which are written once: the log grows at a fraction of the pace.
const LONG_PAGES: i32 = 8_000;
const GATHER: Duration = Duration::from_millis(5);

/// A handle on the writer.
#[derive(Clone)]
pub struct Writer {
    pen: Arc<Mutex<Pen>>,
    queue: mpsc::Sender<Box<dyn Op>>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    tally: Arc<Tally>,
    pulse: Pulse,
    /// How long the log is.
    log_pages: Arc<AtomicI32>,
    /// Why the store can be used no more, once that is so.
    lost: watch::Receiver<Option<StoreError>>,
    /// Write on the caller's own thread if nobody else is writing.
    here: bool,
    /// What callers tell the time by, if that is known.
    clock: Option<Arc<dyn Clock>>,
}

/// How much has been written since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    pub commits: u64,
    /// Together they went into those commits.
    pub operations: u64,
}

#[derive(Default)]
struct Tally {
    commits: AtomicU64,
    operations: AtomicU64,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(conn: Connection, chunks: Chunks, reserve: Reserve) -> Answer<Self> {
        let (tally, pulse) = (Arc::new(Tally::default()), Pulse::new());
        let (pen, lost) = Pen::new(conn, Memory::new(chunks), reserve, tally.clone(), pulse.clone())?;
        let log_pages = pen.log_pages.clone();
        let pen = Arc::new(Mutex::new(pen));
        let (queue, jobs) = mpsc::channel(QUEUE_MAX);
        let thread = thread::Builder::new()
            .name("cis-writer".into())
            .spawn({
                let (pen, log_pages) = (Arc::clone(&pen), log_pages.clone());
                move || write_all(&pen, &log_pages, jobs)
            })
            .map_err(|e| StoreError::Database(format!("cannot start the writer thread: {e}")))?;
        let thread = Arc::new(Mutex::new(Some(thread)));
        Ok(Self { pen, queue, thread, tally, pulse, log_pages, lost, here: false, clock: None })
    }

    /// The same, for a caller that has nothing better to do than wait: two thread switches less.
    pub(super) fn here(self) -> Self {
        Self { here: true, ..self }
    }

    /// See [`super::SqliteStore::by_clock`].
    pub(super) fn by_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock: Some(clock), ..self }
    }

    pub(super) fn written(&self) -> Written {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Written { commits: now(&self.tally.commits), operations: now(&self.tally.operations) }
    }

    pub(super) fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// See [`super::SqliteStore::keep_notices`].
    pub(super) fn keep_notices(&self, wanted: Wanted) {
        held(&self.pen).memory.wanted = wanted;
    }

    /// Reads on the connection that writes, when it is free.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        read(&held(&self.pen).conn)
    }

    /// Lets the thread finish what is queued and waits until it has closed the file.
    pub(super) fn close(self) {
        let Self { pen, queue, thread, tally: _, pulse: _, log_pages: _, lost: _, here: _, clock: _ } = self;
        drop((pen, queue));
        // Another handle is still in use: whoever drops the last one lets the thread go.
        if let Some(thread) = Arc::into_inner(thread).and_then(|thread| thread.into_inner().ok().flatten()) {
            let _ = thread.join();
        }
    }

    /// Waits until the store can be used no more, and says why.
    pub(super) async fn lost(&self) -> StoreError {
        let mut lost = self.lost.clone();
        match lost.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(StoreError::Closed),
            Err(_) => StoreError::Closed,
        }
    }

    /// Runs `op` in a transaction, or in a second one if the first found no room; answers once it is committed.
    pub(super) async fn call<T, F>(&self, now: Timestamp, op: F) -> Answer<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Tx<'_>) -> Answer<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let when = When::new(now, self.clock.as_deref());
        let call = Box::new(Call { when, op, result: None, reply });
        if let Some(call) = self.write_here(call) {
            self.queue.send(call).await.map_err(|_| self.gone())?;
        }
        answer.await.map_err(|_| self.gone())?
    }

    /// Writes at once, or gives the operation back.
    fn write_here(&self, op: Box<dyn Op>) -> Option<Box<dyn Op>> {
        let mut pen = match self.pen.try_lock() {
            Ok(pen) if self.here && !is_long(&self.log_pages) => pen,
            Err(TryLockError::Poisoned(pen)) if self.here => distrusted(pen),
            _ => return Some(op),
        };
        pen.write(&mut vec![op]);
        None
    }

    /// Why nobody answers.
    fn gone(&self) -> StoreError {
        // Whoever held it in a panic could not say so.
        drop(held(&self.pen));
        self.lost.borrow().clone().unwrap_or(StoreError::Closed)
    }
}

/// Takes the pen.
fn held(pen: &Mutex<Pen>) -> MutexGuard<'_, Pen> {
    pen.lock().unwrap_or_else(distrusted)
}

/// Whoever had it before panicked: what is in it is not to be trusted any more.
fn distrusted(pen: PoisonError<MutexGuard<'_, Pen>>) -> MutexGuard<'_, Pen> {
    let mut pen = pen.into_inner();
    pen.lose(StoreError::Lost("a defect of CIS itself: whoever wrote to the store panicked".into()));
    pen
}

/// One queued operation, whatever it answers.
trait Op: Send {
    fn now(&self) -> Timestamp;
    /// Runs it and keeps its answer; says why if its writes should not stay.
    fn run(&mut self, conn: &Connection, memory: &mut Memory) -> Answer<()>;
    /// Gives the answer, or `failure` in its place.
    fn answer(self: Box<Self>, failure: Option<StoreError>);
}

struct Call<T, F> {
    when: When,
    op: F,
    result: Option<Answer<T>>,
    reply: oneshot::Sender<Answer<T>>,
}

impl<T, F> Op for Call<T, F>
where
    T: Send,
    F: FnMut(&mut Tx<'_>) -> Answer<T> + Send,
{
    fn now(&self) -> Timestamp {
        self.when.now
    }

    fn run(&mut self, conn: &Connection, memory: &mut Memory) -> Answer<()> {
        let mut tx = Tx::new(conn, memory, self.when);
        let done = clock::keep(&mut tx).and_then(|()| (self.op)(&mut tx));
        let result = done.and_then(|answer| tx.finish().map(|()| answer));
        let kept = result.as_ref().map(drop).map_err(StoreError::clone);
        self.result = Some(result);
        kept
    }

    fn answer(self: Box<Self>, failure: Option<StoreError>) {
        let answer = match (self.result, failure) {
            // Its own refusal stands, whatever became of the batch.
            (Some(Err(own)), _) => Err(own),
            (_, Some(failure)) => Err(failure),
            (Some(answer), None) => answer,
            (None, None) => Err(StoreError::Closed),
        };
        // A caller that has gone away needs no answer.
        let _ = self.reply.send(answer);
    }
}

/// The thread: writes what is queued until no handle is left, then closes the file.
fn write_all(pen: &Mutex<Pen>, log_pages: &AtomicI32, mut jobs: mpsc::Receiver<Box<dyn Op>>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while jobs.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
        if batch.len() < BATCH_MAX && is_long(log_pages) {
            #[allow(
                clippy::disallowed_methods,
                reason = "nothing is waited for: whoever comes meanwhile is welcome"
            )]
            thread::sleep(GATHER);
        }
        let mut pen = held(pen);
        // What came while somebody else wrote is committed along.
        while batch.len() < BATCH_MAX
            && let Ok(op) = jobs.try_recv()
        {
            batch.push(op);
        }
        pen.write(&mut batch);
    }
    held(pen).close();
}

fn is_long(log_pages: &AtomicI32) -> bool {
    log_pages.load(Ordering::Relaxed) >= LONG_PAGES
}

/// Folds the log back into the file, as far as readers let it. Is all of it?
pub(super) fn fold(conn: &Connection) -> Answer<bool> {
    let row = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.try_into())?;
    let (busy, log, folded): (i32, i32, i32) = row;
    Ok(busy == 0 && log == folded)
}

/// The connection that writes; whoever holds it is alone.
struct Pen {
    conn: Connection,
    memory: Memory,
    reserve: Reserve,
    tally: Arc<Tally>,
    pulse: Pulse,
    /// How long the log is since the last commit.
    log_pages: Arc<AtomicI32>,
    /// How long it may get before it is folded back.
    fold_at: i32,
    lost: watch::Sender<Option<StoreError>>,
}

impl Pen {
    fn new(
        mut conn: Connection,
        memory: Memory,
        reserve: Reserve,
        tally: Arc<Tally>,
        pulse: Pulse,
    ) -> Answer<(Self, watch::Receiver<Option<StoreError>>)> {
        let log_pages = Arc::new(AtomicI32::new(0));
        let pages = log_pages.clone();
        conn.wal_hook(Some(move |_: &mut _, now| {
            pages.store(now, Ordering::Relaxed);
            Ok(())
        }))?;
        let (lost, told) = watch::channel(None);
        let pen = Self { conn, memory, reserve, tally, pulse, log_pages, fold_at: FOLD_PAGES, lost };
        Ok((pen, told))
    }

    /// Commits the batch, if that is still possible, and answers every caller.
    fn write(&mut self, batch: &mut Vec<Box<dyn Op>>) {
        let now = batch.iter().map(|op| op.now()).max().unwrap_or(Timestamp(0));
        let lost = self.lost.borrow().clone();
        let failure = lost.map_or_else(|| self.record(batch, now), Err).err();
        self.tally.commits.fetch_add(1, Ordering::Relaxed);
        self.tally.operations.fetch_add(batch.len() as u64, Ordering::Relaxed);
        // Whoever is answered finds nothing kept that is older than the answer.
        self.pulse.tell(&mut self.memory.changed);
        for op in batch.drain(..) {
            op.answer(failure.clone());
        }
        if self.log_pages.load(Ordering::Relaxed) >= self.fold_at {
            self.fold(now);
        }
    }

    /// Commits the batch; where there is no room, once more with the reserve and without new work.
    fn record(&mut self, batch: &mut [Box<dyn Op>], now: Timestamp) -> Answer<()> {
        self.memory.full = !self.reserve.is_kept(now);
        let mut recorded = self.commit(batch).inspect_err(|_| self.undo());
        if matches!(recorded, Err(StoreError::Full)) && self.reserve.give_up(now) {
            self.memory.full = true;
            recorded = self.commit(batch).inspect_err(|_| self.undo());
        }
        if let Err(lost @ StoreError::Lost(_)) = &recorded {
            self.lose(lost.clone());
        }
        recorded
    }

    /// After a failure: what was remembered may never have happened.
    fn undo(&mut self) {
        self.memory.forget();
        // A transaction left open would keep every later batch from beginning.
        if !self.conn.is_autocommit() {
            let _ = self.conn.execute_batch("ROLLBACK");
        }
    }

    /// One transaction for the whole batch.
    fn commit(&mut self, batch: &mut [Box<dyn Op>]) -> Answer<()> {
        self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        if let [op] = batch {
            return self.commit_one(op.as_mut());
        }
        for op in batch {
            self.conn.prepare_cached("SAVEPOINT op")?.execute([])?;
            if let Err(why) = op.run(&self.conn, &mut self.memory) {
                self.memory.undo_operation();
                if self.conn.is_autocommit() || self.is_everybodys(&why) {
                    return Err(why);
                }
                self.conn.prepare_cached("ROLLBACK TO op")?.execute([])?;
            }
            self.conn.prepare_cached("RELEASE op")?.execute([])?;
        }
        self.seal()
    }

    /// An operation without neighbours needs no savepoint: what it undoes is the whole transaction.
    fn commit_one(&mut self, op: &mut dyn Op) -> Answer<()> {
        match op.run(&self.conn, &mut self.memory) {
            Ok(()) => self.seal()?,
            Err(why) if self.is_everybodys(&why) => return Err(why),
            Err(_) => {
                self.memory.undo_operation();
                if !self.conn.is_autocommit() {
                    self.conn.prepare_cached("ROLLBACK")?.execute([])?;
                }
            }
        }
        Ok(())
    }

    /// Ends the transaction for good: what was written in it is there from now on.
    fn seal(&self) -> Answer<()> {
        cis_fail::point("store.before_commit");
        self.conn.prepare_cached("COMMIT")?.execute([])?;
        cis_fail::point("store.after_commit");
        Ok(())
    }

    /// Does a failure concern more than the operation that met it? While the disk is known to be full, an operation
    /// that finds no room is one that may wait for it.
    fn is_everybodys(&self, why: &StoreError) -> bool {
        match why {
            StoreError::Full => !self.memory.full,
            StoreError::Lost(_) => true,
            _ => false,
        }
    }

    /// Folds the log back into the file, as far as readers let it.
    fn fold(&mut self, now: Timestamp) {
        if self.lost.borrow().is_some() {
            return;
        }
        let folded = match fold(&self.conn) {
            Err(StoreError::Full) if self.reserve.give_up(now) => fold(&self.conn),
            folded => folded,
        };
        match folded {
            Ok(true) => {
                self.log_pages.store(0, Ordering::Relaxed);
                self.fold_at = FOLD_PAGES;
            }
            Err(StoreError::Lost(why)) => self.lose(StoreError::Lost(why)),
            // What readers keep, or what else may fail, is folded back later. To look takes the longer the longer the log is.
            Ok(false) | Err(_) => {
                let pages = self.log_pages.load(Ordering::Relaxed);
                self.fold_at = pages + (pages / 32).max(FOLD_PAGES / 10);
            }
        }
    }

    /// From now on nothing is written, not even on the way out.
    fn lose(&mut self, why: StoreError) {
        let _ = self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            lost.get_or_insert(why);
            first
        });
    }

    /// Folding the log back on the way out keeps the next start quick; if it fails, the log is still there.
    fn close(&mut self) {
        if self.lost.borrow().is_none() {
            let _ = self.conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
        }
    }
}

#[cfg(test)]
#[cfg(not(schedule))]
#[path = "writer_tests.rs"]
mod tests;
