//! A few read-only views of the store, each used by one request at a time.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use cis_core::error::{ErrorCode, Refusal};
use cis_store::Reader;
use tokio::sync::Semaphore;

/// Views in use at once: reading is processor work, so more than the cores would only queue elsewhere.
const AT_ONCE: usize = 8;

/// The views. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reads {
    database: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Reader>>>,
    places: Arc<Semaphore>,
}

impl Reads {
    pub(super) fn new(database: PathBuf) -> Self {
        Self { database: Arc::new(database), idle: Arc::default(), places: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Reads on a thread that may wait for the disk.
    pub async fn read<T, F>(&self, look: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Reader) -> Result<T, Refusal> + Send + 'static,
    {
        let this = self.clone();
        let place = self.places.clone().acquire_owned().await.map_err(|_| closed())?;
        let task = tokio::task::spawn_blocking(move || {
            let idle = || this.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let known = idle().pop();
            let reader = known.map_or_else(|| Reader::open(&this.database), Ok)?;
            let found = look(&reader);
            idle().push(reader);
            drop(place);
            found
        });
        task.await.map_err(|_| closed())?
    }
}

fn closed() -> Refusal {
    Refusal::new(ErrorCode::Unavailable, "the node is shutting down")
}
