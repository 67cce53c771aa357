//! Callers of the writer: two that wait in its queue, one that writes on its own thread when it can, one that is refused,
//! and one that goes away before it hears anything. Then everybody closes.

#![allow(clippy::expect_used, reason = "a scenario says so by failing")]

use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use cis_core::source::Timestamp;
use rusqlite::Connection;
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::port::Answer;
use crate::sync;

#[allow(dead_code, unreachable_pub, reason = "it is made for a crate that uses all of it")]
#[path = "../../cis-store/src/sqlite/writer.rs"]
mod writer;

#[allow(dead_code, unreachable_pub, reason = "the same")]
#[path = "../../cis-store/src/sqlite/pulse.rs"]
mod pulse;

#[allow(dead_code, unreachable_pub, reason = "the same")]
#[path = "../../cis-store/src/sqlite/reserve.rs"]
mod reserve;

use reserve::Reserve;
use tx::Tx;
use writer::Writer;

const NOW: Timestamp = Timestamp(0);

/// Chances for a thread that should be gone to show that it is not.
const LATER: usize = 20;

/// Chances for others before somebody who is late.
const LATE_MAX: usize = 100;

mod steps {
    //! How much is done at once: nothing here is large.

    #[derive(Debug, Default)]
    pub(super) struct Chunks;
}

mod clock {
    //! Nothing here has a deadline.

    use cis_core::source::{Clock, Timestamp};

    use super::tx::Tx;
    use crate::port::Answer;

    #[derive(Debug, Clone, Copy)]
    pub(super) struct When {
        pub(super) now: Timestamp,
    }

    impl When {
        pub(super) fn new(now: Timestamp, _: Option<&dyn Clock>) -> Self {
            Self { now }
        }
    }

    #[allow(clippy::unnecessary_wraps, reason = "the real one may fail")]
    pub(super) fn keep(_: &mut Tx<'_>) -> Answer<()> {
        Ok(())
    }
}

mod memory {
    //! What the writer remembers: only what its own loop looks at.

    use cis_core::notice::Wanted;

    use super::pulse::Changed;
    use super::steps::Chunks;

    #[derive(Debug, Default)]
    pub(super) struct Memory {
        pub(super) wanted: Wanted,
        pub(super) changed: Changed,
        pub(super) full: bool,
    }

    impl Memory {
        pub(super) fn new(_: Chunks) -> Self {
            Self::default()
        }

        pub(super) fn forget(&mut self) {}

        pub(super) fn undo_operation(&mut self) {}
    }
}

mod tx {
    //! An operation's view: the connection.

    use rusqlite::Connection;

    use super::clock::When;
    use super::memory::Memory;
    use crate::port::Answer;

    #[derive(Debug)]
    pub(super) struct Tx<'t> {
        pub(super) conn: &'t Connection,
    }

    impl<'t> Tx<'t> {
        pub(super) fn new(conn: &'t Connection, _: &'t mut Memory, _: When) -> Self {
            Self { conn }
        }

        pub(super) fn finish(&mut self) -> Answer<()> {
            Ok(())
        }
    }
}

/// When callers take what they asked for as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Once the writer answers.
    Answered,
    /// Once it has been run, before its commit: a mistake.
    Run,
}

/// How callers leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// The last of them waits for the thread.
    Close,
    /// Nobody waits for it: a mistake.
    Drop,
}

/// What is committed to a table of numbers above zero, seen from outside.
#[derive(Debug, Clone)]
pub(crate) struct Look(Arc<Mutex<(Connection, TempDir)>>);

impl Look {
    pub(crate) fn rows(&self) -> Vec<i64> {
        let look = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut statement = look.0.prepare_cached("SELECT n FROM t ORDER BY n").expect("a statement");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.collect::<Result<_, _>>().expect("numbers")
    }
}

/// A handle on the writer of such a table.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    writer: Writer,
    pub(crate) look: Look,
}

impl Table {
    pub(crate) fn new() -> Self {
        let dir = place();
        let open = || Connection::open(dir.path().join("t.db")).expect("a database");
        let conn = open();
        let make = "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
                    CREATE TABLE t (n INTEGER PRIMARY KEY CHECK (n > 0))";
        conn.execute_batch(make).expect("a table");
        let writer = Writer::start(conn, steps::Chunks, Reserve::none()).expect("a writer");
        Self { writer, look: Look(Arc::new(Mutex::new((open(), dir)))) }
    }

    /// The same, for a caller that writes on its own thread when it can.
    fn here(self) -> Self {
        Self { writer: self.writer.here(), ..self }
    }

    pub(crate) async fn insert(&self, n: i64) -> Answer<()> {
        self.writer.call(NOW, move |tx| insert(tx, n)).await
    }

    pub(crate) async fn delete(&self, n: i64) -> Answer<()> {
        let delete = move |tx: &mut Tx<'_>| Ok(tx.conn.execute("DELETE FROM t WHERE n = ?1", [n])?);
        self.writer.call(NOW, delete).await.map(drop)
    }

    pub(crate) fn leave(self, leaving: Leaving) {
        match leaving {
            Leaving::Close => self.writer.close(),
            Leaving::Drop => drop(self.writer),
        }
    }
}

/// A directory that goes away with its database; in memory where the system has such a place.
fn place() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("a temporary directory")
}

fn insert(tx: &mut Tx<'_>, n: i64) -> Answer<()> {
    tx.conn.execute("INSERT INTO t VALUES (?1)", [n])?;
    // Others may do what they like while the transaction is open.
    thread::yield_now();
    Ok(())
}

/// Asks for `n`, and holds whoever answers to it.
fn ask(table: &Table, n: i64, done: Done) {
    match done {
        Done::Answered => block_on(table.insert(n)).expect("an answer"),
        Done::Run => {
            let (tell, told) = oneshot::channel();
            let mut tell = Some(tell);
            let run = move |tx: &mut Tx<'_>| {
                insert(tx, n)?;
                let _ = tell.take().map(|tell| tell.send(()));
                thread::yield_now();
                Ok(())
            };
            block_on(async {
                let mut call = pin!(table.writer.call(NOW, run));
                let mut told = pin!(told);
                poll_fn(|context| match told.as_mut().poll(context) {
                    Poll::Pending => call.as_mut().poll(context).map(drop),
                    Poll::Ready(_) => Poll::Ready(()),
                })
                .await;
            });
        }
    }
    assert!(table.look.rows().contains(&n), "told of {n}, which is not there");
}

/// Everybody calls, and leaves; nothing is written after that.
pub fn callers(done: Done, leaving: Leaving) {
    let table = Table::new();
    let look = table.look.clone();
    let call = |what: fn(&Table, Done), table: Table| {
        thread::spawn(move || {
            what(&table, done);
            table.leave(leaving);
        })
    };
    let callers = [
        call(|table, done| [1, 2].into_iter().for_each(|n| ask(table, n, done)), table.clone()),
        call(|table, done| [3, 4].into_iter().for_each(|n| ask(table, n, done)), table.clone()),
        call(|table, done| [5, 6].into_iter().for_each(|n| ask(table, n, done)), table.clone().here()),
        call(|table, _| assert!(block_on(table.insert(-1)).is_err(), "-1 was taken"), table.clone()),
        call(|table, _| go_away(table, 7), table.clone()),
    ];
    table.leave(leaving);
    callers.into_iter().for_each(|caller| caller.join().expect("a caller that ended well"));
    let rows = look.rows();
    // Whoever went away was heard, or was not.
    assert!(rows.starts_with(&[1, 2, 3, 4, 5, 6]) && matches!(rows[6..], [] | [7]), "{rows:?}");
    (0..LATER).for_each(|_| thread::yield_now());
    assert_eq!(look.rows(), rows, "written after everybody had left");
}

/// Asks, often after everybody else has, and goes before or after it is in the queue.
fn go_away(table: &Table, n: i64) {
    (0..thread_rng().gen_range(0..LATE_MAX)).for_each(|_| thread::yield_now());
    block_on(async {
        let mut call = pin!(table.insert(n));
        for _ in 0..thread_rng().gen_range(1..=3) {
            poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_ready())).await;
        }
    });
}
