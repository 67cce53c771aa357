//! A coordinator in this process, on a thread of its own, and the app that callers reach it through.
//!
//! ```text
//!   Host::open ─► thread: store, loop ─► leave: the store is closed, the lock comes back
//!        └─► App, for the edges of this process: command line, socket, HTTP
//! ```

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use cis_api::node::CoordinatorKind;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::Clock;
use cis_store::{Pulse, RESERVE_BYTES, SqliteStore};
use tokio::sync::watch;

use crate::app::{App, Settings, SharedStore};
use crate::context::Context;
use crate::coordinator::{Coordinator, Handle, Options};
use crate::data_dir::{CoordinatorLock, DataDir};
use crate::inspection::Inspection;
use crate::machine::Real;
use crate::system::System;

/// A coordinator in this process, for as long as it lives.
#[derive(Debug)]
pub struct Host {
    app: App,
    handle: Handle,
    runtime: tokio::runtime::Handle,
    /// What it took up when it began, in words, if there was anything.
    recovery: Option<String>,
    /// Gives back the lock once the store is closed, unless it has handed over.
    thread: JoinHandle<(Option<CoordinatorLock>, Result<(), Refusal>)>,
}

/// A store whose loop has ended. It is closed by the last handle to it: not before everything that has one is gone.
struct Unclosed {
    store: SqliteStore,
    data_dir: DataDir,
    /// It was looked over and found in order.
    is_sound: bool,
    /// Another process is to be the coordinator at once, whatever this one is busy with.
    is_handed_over: bool,
}

impl Unclosed {
    /// Folds the log back and closes the file; gives the lock back, or lets go of it where another process waits for it.
    fn close(self, lock: CoordinatorLock) -> Option<CoordinatorLock> {
        let last = self.store.epoch();
        self.store.close();
        if let Some(epoch) = last.ok().filter(|_| self.is_sound) {
            // Where it cannot be noted, the next one looks once more.
            let _ = self.data_dir.note_stop(epoch);
        }
        if !self.is_handed_over {
            return Some(lock);
        }
        // The successor's takes its place.
        let _ = std::fs::remove_file(self.data_dir.socket());
        None
    }
}

/// What a coordinator that has begun is reached by.
struct Started {
    handle: Handle,
    runtime: tokio::runtime::Handle,
    store: SharedStore,
    pulse: Pulse,
    recovery: Option<String>,
}

/// What is left when a coordinator has ended.
#[derive(Debug)]
pub struct Ended {
    /// Nothing, if it has handed over.
    pub lock: Option<CoordinatorLock>,
    /// Runs that are unfinished.
    pub unfinished: usize,
    /// Why it ended, if that was a failure.
    pub result: Result<(), Refusal>,
}

impl Host {
    /// Becomes the coordinator of a data directory whose lock this process has.
    pub fn open(options: Options, settings: Settings, lock: CoordinatorLock) -> Result<Self, Refusal> {
        let (ready, started) = mpsc::channel();
        let of_loop = options.clone();
        let thread = thread::Builder::new()
            .name("cis-coordinator".into())
            .spawn(move || {
                let mut shared = None;
                let ended = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                    // Connections still being served end with the runtime, and with them their handles to the store.
                    Ok(runtime) => {
                        runtime.block_on(live(of_loop, runtime.handle().clone(), ready, &mut shared))
                    }
                    Err(e) => Err(unusable(&e)),
                };
                // On this thread: the one that opened it may be busy, and another process may be waiting.
                shared.iter().for_each(SharedStore::take);
                match ended {
                    Ok(unclosed) => (unclosed.close(lock), Ok(())),
                    Err(refusal) => (Some(lock), Err(refusal)),
                }
            })
            .map_err(|e| unusable(&e))?;
        match started.recv() {
            Ok(Started { handle, runtime, store, pulse, recovery }) => {
                let app = App::new(store, pulse, handle.clone(), options, settings);
                Ok(Self { app, handle, runtime, recovery, thread })
            }
            // It ended before it began; its result says why.
            Err(_) => match thread.join() {
                Ok((_, Err(refusal))) => Err(refusal),
                _ => Err(Refusal::new(ErrorCode::Internal, "the coordinator ended before it began")),
            },
        }
    }

    /// The same for a node: tasks of runs that come over the network start in `context`, which is kept on disk for other
    /// coordinators of these runs.
    pub fn open_node(
        options: Options,
        settings: Settings,
        lock: CoordinatorLock,
        context: &Context,
    ) -> Result<Self, Refusal> {
        // Whole or not at all: others may coordinate the rest of its runs.
        let (kept, new) = (options.data_dir.node_context(), options.data_dir.new_node_context());
        let saved = context.save(&new, options.durability).and_then(|()| std::fs::rename(new, kept));
        saved.map_err(|e| Refusal::unwritten("the node's environment", &e))?;
        Self::open(options, settings, lock)
    }

    pub fn app(&self) -> &App {
        &self.app
    }

    /// Where the coordinator's own tasks run: one thread.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// What the coordinator took up when it began, in words; nothing if there was nothing.
    pub fn recovery(&self) -> Option<&str> {
        self.recovery.as_deref()
    }

    /// True while no run is unfinished.
    pub fn idle(&self) -> watch::Receiver<bool> {
        self.handle.idle()
    }

    /// Has the loop ended by itself, because the store or the runner failed it or because it handed over?
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it, whatever is unfinished: tasks go on, and the next coordinator takes them up.
    pub fn leave(self) -> Result<Ended, Refusal> {
        let unfinished = self.handle.leave_blocking();
        self.join(unfinished)
    }

    /// Waits for one that ends by itself.
    pub fn join_ended(self) -> Result<Ended, Refusal> {
        self.join(0)
    }

    fn join(self, unfinished: usize) -> Result<Ended, Refusal> {
        let Self { app, handle, thread, .. } = self;
        drop((app, handle));
        let panicked = |_| Refusal::new(ErrorCode::Internal, "the coordinator panicked");
        let (lock, result) = thread.join().map_err(panicked)?;
        Ok(Ended { lock, unfinished, result })
    }
}

/// Starts a process that coordinates until no run is left. It gets the lock from this one, so that no other one with
/// other settings comes first.
pub fn spawn_background(options: &Options, lock: CoordinatorLock) -> Result<(), Refusal> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(options.data_dir.root().join("coordinator.log"))
        .map_err(|e| unusable(&e))?;
    let mut process = Process::new(&options.exe);
    if let Some(config) = &options.config {
        process.arg("--config").arg(config);
    }
    // It belongs to nothing but the data directory: neither the Ctrl-C nor the task that its starter is part of
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
        .map_err(|e| unusable(&e))
}

/// A coordinator's life, from opening the store until it is to be closed.
async fn live(
    options: Options,
    runtime: tokio::runtime::Handle,
    ready: mpsc::Sender<Started>,
    shared: &mut Option<SharedStore>,
) -> Result<Unclosed, Refusal> {
    options.data_dir.check_database()?;
    let (database, now) = (options.data_dir.database(), System.now());
    let store = SqliteStore::open_reserving(&database, options.durability, RESERVE_BYTES, now)?;
    let store = store.by_clock(Arc::new(System));
    // Before anything is recorded: what ended while no coordinator was there is told of as well.
    store.keep_notices(options.notices.clone());
    // Not before the store was opened: where that is refused, nothing has been touched. What comes next takes about as long as
    // a runner takes to start.
    let machine = match options.runs_at_once {
        true => Real::reaching(options.data_dir.root(), &options.exe),
        false => Real::default(),
    };
    let (data_dir, kind) = (options.data_dir.clone(), options.kind);
    let (coordinator, handle) = Coordinator::start(store.clone().here(), options, machine).await?;
    let recovery = coordinator.recovery();
    let (unclean, recovery) = (recovery.unclean, recovery.took_up().then(|| recovery.to_string()));
    // Without a thread to look on, the next coordinator looks.
    let inspection = if unclean { Inspection::begin(&data_dir, &store, &handle).ok() } else { None };
    let (pulse, has_handed_over) = (store.pulse(), coordinator.has_handed_over());
    let of_app = SharedStore::new(match kind {
        // Its callers bring threads of their own, and share commits.
        CoordinatorKind::Node => store,
        CoordinatorKind::Foreground | CoordinatorKind::Background => store.here(),
    });
    *shared = Some(of_app.clone());
    let _ = ready.send(Started { handle, runtime, store: of_app, pulse, recovery });
    let store = coordinator.run().await;
    // Before the store is closed: a reader keeps it from folding its log.
    let is_sound = inspection.map_or(!unclean, Inspection::end);
    let is_handed_over = has_handed_over.load(Ordering::Relaxed);
    Ok(Unclosed { store: store?, data_dir, is_sound, is_handed_over })
}

/// Why a data directory cannot be used.
pub fn unusable(e: &io::Error) -> Refusal {
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Refusal::disk_full("the data directory"),
        io::ErrorKind::ReadOnlyFilesystem => {
            Refusal::new(ErrorCode::Unavailable, "cannot use the data directory: its disk is read-only")
                .hint("make it writable, or choose another `--data-dir`")
        }
        _ => Refusal::new(ErrorCode::Unavailable, format!("cannot use the data directory: {e}")),
    }
}
