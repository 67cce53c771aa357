//! Looking the database over after a coordinator that did not stop in good order, while the next one already serves. A
//! kill does not damage a database; a disk that lied, or somebody's hand, may have. What is found does not stop what is
//! under way, but nothing new is taken on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use cis_store::StoreError;
use cis_store::port::damaged;
use cis_store::{Reader, SqliteStore, check};

use crate::coordinator::Handle;
use crate::data_dir::DataDir;

/// A look at the database that is under way.
#[derive(Debug)]
pub(crate) struct Inspection {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<bool>,
}

impl Inspection {
    /// Begins, on a thread of its own.
    pub(crate) fn begin(data_dir: &DataDir, store: &SqliteStore, handle: &Handle) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (file, store, handle) = (data_dir.database(), store.clone(), handle.clone());
        let stopped = stop.clone();
        let look = move || match Reader::open(&file).and_then(|reader| check::quick(reader, stopped)) {
            Ok(found) if found.is_empty() => {
                tracing::info!("the database is sound");
                true
            }
            Ok(found) => refuse(&store, &handle, &found.join("; ")),
            Err(StoreError::Damaged(why)) => refuse(&store, &handle, &why),
            // It was told to stop, or could not read: the next coordinator looks again.
            Err(_) => false,
        };
        let thread = thread::Builder::new().name("cis-inspection".into()).spawn(look)?;
        Ok(Self { stop, thread })
    }

    /// Ends it; false unless it has looked at everything and found nothing.
    pub(crate) fn end(self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(false)
    }
}

/// Takes on nothing new from now on.
fn refuse(store: &SqliteStore, handle: &Handle, why: &str) -> bool {
    let refusal = damaged(why);
    tracing::error!(hint = refusal.hint, "{refusal}; nothing new is taken on");
    store.shut(refusal);
    // So that a caller that asks whether work would be done hears no.
    handle.drain_blocking();
    false
}
