//! The one thread that writes: drains a bounded queue, commits once per batch, then answers every caller.
//!
//! An operation that is refused or fails undoes only itself (a savepoint each). If SQLite has rolled the whole
//! transaction back (disk full, say), every operation of the batch is answered with that failure: nobody is
//! told of a write that is not there.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use cis_core::source::Timestamp;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::tx::{Memory, Tx};
use crate::port::{Answer, StoreError};

/// Operations that may wait for the writer before callers have to: a few batches' worth.
const QUEUE_MAX: usize = 1024;

/// Operations committed together. Enough to share one disk flush among all who wait for it; few enough that
/// the first in line is not kept waiting by the last.
const BATCH_MAX: usize = 64;

/// A handle on the writer thread.
#[derive(Clone)]
pub struct Writer {
    queue: mpsc::Sender<Box<dyn Op>>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

impl Writer {
    /// Starts the thread on its connection.
    pub(super) fn start(conn: Connection) -> Answer<Self> {
        let (queue, jobs) = mpsc::channel(QUEUE_MAX);
        let thread = thread::Builder::new()
            .name("cis-writer".into())
            .spawn(move || Thread { conn, memory: Memory::new(), jobs }.run())
            .map_err(|e| StoreError::Database(format!("cannot start the writer thread: {e}")))?;
        Ok(Self { queue, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Lets the thread finish what is queued and waits until it has closed the file.
    pub(super) fn close(self) {
        drop(self.queue);
        let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
        // Another handle is still in use: whoever drops the last one lets the thread go.
        if let Some(thread) = thread.filter(|_| Arc::strong_count(&self.thread) == 1) {
            let _ = thread.join();
        }
    }

    /// Runs `op` in a transaction; answers once it is committed.
    pub(super) async fn call<T, F>(&self, now: Timestamp, op: F) -> Answer<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Answer<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let call = Call { now, op: Some(op), result: None, reply };
        self.queue.send(Box::new(call)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

/// One queued operation, whatever it answers.
trait Op: Send {
    /// Runs it and keeps its answer; says whether its writes should stay.
    fn run(&mut self, conn: &Connection, memory: &mut Memory) -> bool;
    /// Gives the answer, or `failure` in its place.
    fn answer(self: Box<Self>, failure: Option<StoreError>);
}

struct Call<T, F> {
    now: Timestamp,
    op: Option<F>,
    result: Option<Answer<T>>,
    reply: oneshot::Sender<Answer<T>>,
}

impl<T, F> Op for Call<T, F>
where
    T: Send,
    F: FnOnce(&mut Tx<'_>) -> Answer<T> + Send,
{
    fn run(&mut self, conn: &Connection, memory: &mut Memory) -> bool {
        let Some(op) = self.op.take() else { return true };
        let mut tx = Tx::new(conn, memory, self.now);
        let result = op(&mut tx).and_then(|answer| tx.finish().map(|()| answer));
        let keep = result.is_ok();
        self.result = Some(result);
        keep
    }

    fn answer(self: Box<Self>, failure: Option<StoreError>) {
        let refused = self.result.unwrap_or(Err(StoreError::Closed));
        // A caller that has gone away needs no answer.
        let _ = self.reply.send(match (failure, refused) {
            (Some(failure), Ok(_)) => Err(failure),
            (_, result) => result,
        });
    }
}

struct Thread {
    conn: Connection,
    memory: Memory,
    jobs: mpsc::Receiver<Box<dyn Op>>,
}

impl Thread {
    fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while self.jobs.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
            let failure = self.commit(&mut batch).err();
            if failure.is_some() {
                self.memory.forget();
            }
            for op in batch.drain(..) {
                op.answer(failure.clone());
            }
        }
        // Folding the log back on the way out keeps the next start quick; if it fails, the log is still there.
        let _ = self.conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
    }

    /// One transaction for the whole batch.
    fn commit(&mut self, batch: &mut [Box<dyn Op>]) -> Answer<()> {
        self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for op in batch {
            self.conn.prepare_cached("SAVEPOINT op")?.execute([])?;
            if !op.run(&self.conn, &mut self.memory) {
                self.memory.forget();
                if self.conn.is_autocommit() {
                    return Err(StoreError::Database("the transaction was rolled back".into()));
                }
                self.conn.prepare_cached("ROLLBACK TO op")?.execute([])?;
            }
            self.conn.prepare_cached("RELEASE op")?.execute([])?;
        }
        let committed = self.conn.prepare_cached("COMMIT")?.execute([]);
        if let Err(e) = committed {
            if !self.conn.is_autocommit() {
                let _ = self.conn.execute_batch("ROLLBACK");
            }
            return Err(e.into());
        }
        Ok(())
    }
}
