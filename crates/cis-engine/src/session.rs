//! Being the coordinator of a data directory, or talking to whoever is: the same calls either way.
//!
//! ```text
//!   open: lock free? ── yes ─► coordinate here, serve cis.sock to others
//!             │ no
//!             └─► connect to cis.sock; if its holder goes away meanwhile, start over
//! ```
//!
//! When the process that coordinates is done with its own run while others' runs go on, it hands over: tasks
//! live in the runner and do not notice.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::RunKey;
use cis_core::source::Clock;
use cis_store::port::{RunRef, StartRun};
use cis_store::sqlite::{RESERVE_BYTES, Reader, SqliteStore};

use crate::client::Client;
use crate::command::{Command, Reply};
use crate::context::Context;
use crate::coordinator::handle::next_look;
use crate::coordinator::{Changes, Coordinator, Handle, Options, SELF};
use crate::data_dir::{CoordinatorLock, DataDir};
use crate::inspection::Inspection;
use crate::machine::Real;
use crate::recovery::Recovery;
use crate::server::Server;
use crate::system::System;

/// How often an unreachable coordinator is tried again, and for how long: it may be starting or just going.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
const RETRIES_MAX: u32 = 3_000;

/// Followers in this process are told of changes at most this often.
const TICK: Duration = Duration::from_millis(50);

/// How long a background coordinator without runs stays, in case another comes.
const LINGER: Duration = Duration::from_secs(2);

/// A way to the coordinator of a data directory.
#[derive(Debug)]
pub struct Session {
    options: Options,
    link: Link,
    /// Runs that end with this process.
    owned: Vec<RunKey>,
}

#[derive(Debug)]
enum Link {
    Here(Here),
    There(Client),
    /// Let go of already.
    Closed,
}

/// The coordinator in this process, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Here {
    handle: Handle,
    runtime: tokio::runtime::Handle,
    /// Gives the lock back when the store is closed, for whoever comes next.
    thread: JoinHandle<(CoordinatorLock, Result<(), Refusal>)>,
}

impl Here {
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Ends it, whatever is unfinished.
    pub(crate) fn leave(self) -> Result<(), Refusal> {
        self.handle.leave_blocking();
        let (_lock, ended) = self.end()?;
        ended
    }

    /// Waits until nothing is written any more.
    fn end(self) -> Result<(CoordinatorLock, Result<(), Refusal>), Refusal> {
        drop(self.handle);
        self.thread.join().map_err(|_| Refusal::new(ErrorCode::Internal, "the coordinator panicked"))
    }
}

impl Session {
    /// Becomes the coordinator, or connects to it.
    pub fn open(options: Options) -> Result<Self, Refusal> {
        let link = open_link(&options)?;
        Ok(Self { options, link, owned: Vec::new() })
    }

    /// Is the coordinator in this process?
    pub fn is_here(&self) -> bool {
        matches!(self.link, Link::Here(_))
    }

    /// What the coordinator in this process found when it began; nothing if it is elsewhere.
    pub fn recovery(&mut self) -> Result<Option<Recovery>, Refusal> {
        if !self.is_here() {
            return Ok(None);
        }
        Ok(self.ask(Command::Hello)?.hello()?.recovery)
    }

    /// Asks, and asks again if the coordinator goes away before it answers.
    pub fn ask(&mut self, command: Command) -> Result<Reply, Refusal> {
        loop {
            match &mut self.link {
                Link::Here(here) => match here.handle.call_blocking(command.clone(), SELF) {
                    Reply::Going => self.reopen()?,
                    reply => return Ok(reply),
                },
                Link::There(client) => match client.call(command.clone()) {
                    Ok(Reply::Going) | Err(_) => self.reopen()?,
                    Ok(reply) => return Ok(reply),
                },
                Link::Closed => self.reopen()?,
            }
        }
    }

    /// Starts a run; if it is attached, it ends with this process.
    pub fn start(&mut self, request: StartRun, context: Context) -> Result<RunRef, Refusal> {
        let attached = request.attached;
        let start = Command::Start { request: Box::new(request), context: Box::new(context) };
        let run = self.ask(start)?.started()?.answer?;
        if attached {
            self.owned.push(run.key);
        }
        Ok(run)
    }

    /// After the coordinator went away: finds or becomes the next one, and takes its own runs along. Of one that failed
    /// in this very process it says why: the next would fail, too.
    pub fn reopen(&mut self) -> Result<(), Refusal> {
        loop {
            if let Link::Here(here) = std::mem::replace(&mut self.link, Link::Closed) {
                let (_lock, ended) = here.end()?;
                ended?;
            }
            self.link = open_link(&self.options)?;
            let attached = self.owned.clone().into_iter().all(|run| match &mut self.link {
                Link::Here(here) => {
                    matches!(here.handle.call_blocking(Command::Attach { run }, SELF), Reply::Attached)
                }
                Link::There(client) => matches!(client.call(Command::Attach { run }), Ok(Reply::Attached)),
                Link::Closed => false,
            });
            if attached {
                return Ok(());
            }
        }
    }

    /// Calls `wake` whenever something changed, until it says no or the coordinator goes away (`false`).
    pub fn follow(&self, wake: impl FnMut(bool) -> bool + Send + 'static) -> Result<(), Refusal> {
        let mut follower = Follower(wake);
        match &self.link {
            Link::Here(here) => {
                let mut changes = here.handle.changes();
                here.runtime.spawn(async move {
                    let mut seen = Changes::default();
                    while next_look(&mut changes, seen, TICK).await {
                        seen = *changes.borrow();
                        if !follower.wake() {
                            return;
                        }
                    }
                });
            }
            Link::There(_) | Link::Closed => {
                let client = Client::connect(&self.options.data_dir).map_err(|e| unreachable(&e))?;
                let thread = thread::Builder::new().name("cis-follow".into());
                let followed = thread.spawn(move || {
                    if let Some(mut changes) = client.and_then(|client| client.follow().ok()) {
                        while changes.wait().is_ok() && follower.wake() {}
                    }
                });
                followed.map_err(|e| unreachable(&e))?;
            }
        }
        Ok(())
    }

    /// Lets go. If runs of others are left here, a background coordinator takes over.
    pub fn close(mut self) -> Result<(), Refusal> {
        self.leave()
    }

    fn leave(&mut self) -> Result<(), Refusal> {
        let Link::Here(here) = std::mem::replace(&mut self.link, Link::Closed) else { return Ok(()) };
        let left = here.handle.leave_blocking();
        let (lock, ended) = here.end()?;
        if left > 0 {
            spawn_background(&self.options, lock)?;
        }
        ended
    }
}

/// Whoever follows. That there is nothing more to follow it hears in any case: what follows for it may end together with
/// the coordinator, in the midst of waiting.
struct Follower<W: FnMut(bool) -> bool>(W);

impl<W: FnMut(bool) -> bool> Follower<W> {
    fn wake(&mut self) -> bool {
        (self.0)(true)
    }
}

impl<W: FnMut(bool) -> bool> Drop for Follower<W> {
    fn drop(&mut self) {
        (self.0)(false);
    }
}

impl Drop for Session {
    /// However a command ends, runs of others that it took up are handed on.
    fn drop(&mut self) {
        // Nobody is left to tell; the next `cis` that writes or looks takes the runs up.
        let _ = self.leave();
    }
}

/// Starts a process that coordinates until no run is left. It gets the lock from us, so that no other one with
/// other settings comes first.
pub fn spawn_background(options: &Options, lock: CoordinatorLock) -> Result<(), Refusal> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(options.data_dir.root().join("coordinator.log"))
        .map_err(|e| unreachable(&e))?;
    let mut process = Process::new(&options.exe);
    if let Some(config) = &options.config {
        process.arg("--config").arg(config);
    }
    // It belongs to nobody but the data directory: neither the Ctrl-C nor the task that its starter is part of
    // may end it.
    process.process_group(0);
    for mark in cis_runner::client::TASK_MARKS {
        process.env_remove(mark);
    }
    process
        .arg("--data-dir")
        .arg(options.data_dir.root())
        .arg("coordinator")
        .arg("--slots")
        .arg(options.slots.to_string())
        .arg("--durability")
        .arg(options.durability.word())
        .stdin(lock)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map(drop)
        .map_err(|e| unreachable(&e))
}

/// Coordinates until no run is left: what a background coordinator does. Answers at once if somebody else
/// coordinates.
pub fn coordinate(options: Options) -> Result<(), Refusal> {
    // Without a standard input there is nothing to inherit.
    let here = match options.data_dir.inherited_lock().unwrap_or_default() {
        Some(lock) => start_here(options, lock)?,
        None => match open_link(&options)? {
            Link::Here(here) => here,
            Link::There(_) | Link::Closed => return Ok(()),
        },
    };
    let mut idle = here.handle.idle();
    let (finished, wait) = mpsc::channel();
    here.runtime.spawn(async move {
        loop {
            if idle.wait_for(|idle| *idle).await.is_err() {
                break;
            }
            let busy_again = tokio::time::timeout(LINGER, idle.wait_for(|idle| !*idle));
            if busy_again.await.is_err() {
                break;
            }
        }
        let _ = finished.send(());
    });
    // The thread may also end by itself, if the store or the runner fails it for good.
    while !here.thread.is_finished() {
        match wait.recv_timeout(Duration::from_secs(1)) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
    }
    here.leave()
}

/// Becomes the coordinator, once whoever is has gone; with the store, for callers who bring their own threads.
/// Tasks of runs that come over the network start in `context`.
pub(crate) fn wait_and_start(options: &Options, context: &Context) -> Result<(Here, SqliteStore), Refusal> {
    let mut told = false;
    loop {
        if let Some(lock) = options.data_dir.try_lock().map_err(|e| unreachable(&e))? {
            // Whole or not at all: others may coordinate the rest of its runs.
            let (kept, new) = (options.data_dir.node_context(), options.data_dir.new_node_context());
            let saved = context.save(&new, options.durability).and_then(|()| std::fs::rename(new, kept));
            saved.map_err(|e| Refusal::unwritten("the node's environment", &e))?;
            return start_with_store(options.clone(), lock);
        }
        if !std::mem::replace(&mut told, true) {
            let who = node_of(&options.data_dir)
                .map_or("another process".to_owned(), |at| format!("a node at {at}"));
            tracing::warn!("{who} coordinates this data directory: waiting until it goes");
        }
        pause();
    }
}

/// Where the node of a data directory serves, if it has one that does.
pub fn node_of(data_dir: &DataDir) -> Option<String> {
    Client::connect(data_dir).ok().flatten()?.about().ok().flatten()?.address
}

fn open_link(options: &Options) -> Result<Link, Refusal> {
    for _ in 0..RETRIES_MAX {
        if let Some(lock) = options.data_dir.try_lock().map_err(|e| unreachable(&e))? {
            return start_here(options.clone(), lock).map(Link::Here);
        }
        if let Some(mut client) = Client::connect(&options.data_dir).map_err(|e| unreachable(&e))? {
            match client.hello() {
                Ok(true) => return Ok(Link::There(client)),
                // It is going.
                Ok(false) => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
                Err(_) => {}
            }
        }
        pause();
    }
    Err(Refusal::new(
        ErrorCode::Unavailable,
        "another process holds the coordinator's lock but does not answer",
    )
    .hint("look for a stopped or hanging `cis` process on this data directory"))
}

/// Nothing announces that a lock was released; this is the one place that has to look again.
#[allow(clippy::disallowed_methods, reason = "a file lock cannot be waited for together with a socket")]
fn pause() {
    thread::sleep(RETRY_PAUSE);
}

fn start_here(options: Options, lock: CoordinatorLock) -> Result<Here, Refusal> {
    start_with_store(options, lock).map(|(here, _)| here)
}

fn start_with_store(options: Options, lock: CoordinatorLock) -> Result<(Here, SqliteStore), Refusal> {
    let (ready, started) = mpsc::channel();
    let thread = thread::Builder::new()
        .name("cis-coordinator".into())
        .spawn(move || {
            let ended = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                // Connections still being served end with the runtime, before anybody else can be the coordinator.
                Ok(runtime) => runtime.block_on(live(options, runtime.handle().clone(), ready)),
                Err(e) => Err(unreachable(&e)),
            };
            (lock, ended)
        })
        .map_err(|e| unreachable(&e))?;
    match started.recv() {
        Ok((handle, runtime, store)) => Ok((Here { handle, runtime, thread }, store)),
        // It ended before it began; its result says why.
        Err(_) => match thread.join() {
            Ok((_, Err(refusal))) => Err(refusal),
            _ => Err(Refusal::new(ErrorCode::Internal, "the coordinator ended before it began")),
        },
    }
}

/// A coordinator's life, from opening the store to closing it.
async fn live(
    options: Options,
    runtime: tokio::runtime::Handle,
    ready: mpsc::Sender<(Handle, tokio::runtime::Handle, SqliteStore)>,
) -> Result<(), Refusal> {
    options.data_dir.check_database()?;
    let (database, now) = (options.data_dir.database(), System.now());
    let store = SqliteStore::open_reserving(&database, options.durability, RESERVE_BYTES, now)?;
    let store = store.by_clock(Arc::new(System));
    // Before anything is recorded: what ended while nobody coordinated is told of as well.
    store.keep_notices(options.notices.clone());
    // Not before the store was opened: where that is refused, nothing has been touched. What comes next takes about as long as
    // a runner takes to start.
    let machine = match options.runs_at_once {
        true => Real::reaching(options.data_dir.root(), &options.exe),
        false => Real::default(),
    };
    let data_dir = options.data_dir.clone();
    let (coordinator, handle) = Coordinator::start(store.clone().here(), options, machine).await?;
    let server = Server::listen(&data_dir, handle.clone()).map_err(|e| unreachable(&e))?;
    let Recovery { unclean, .. } = *coordinator.recovery();
    // Without a thread to look on, the next coordinator looks.
    let inspection = if unclean { Inspection::begin(&data_dir, &store, &handle).ok() } else { None };
    let _ = ready.send((handle, runtime, store));
    let store = coordinator.run().await;
    drop(server);
    // Before the store is closed: whoever still reads keeps it from folding its log.
    let sound = inspection.map_or(!unclean, Inspection::end);
    // A life may have taken more epochs than the one it began with.
    let last = Reader::open(&database).and_then(|reader| reader.epoch());
    store?.close();
    if let Some(epoch) = last.ok().filter(|_| sound) {
        // Where it cannot be noted, the next one looks once more.
        let _ = data_dir.note_stop(epoch);
    }
    Ok(())
}

fn unreachable(e: &io::Error) -> Refusal {
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Refusal::disk_full("the data directory"),
        io::ErrorKind::ReadOnlyFilesystem => {
            Refusal::new(ErrorCode::Unavailable, "cannot use the data directory: its disk is read-only")
                .hint("make it writable, or choose another `--data-dir`")
        }
        _ => Refusal::new(ErrorCode::Unavailable, format!("cannot use the data directory: {e}")),
    }
}
