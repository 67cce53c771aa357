//! A few read-only views of the store, each used by one request at a time, and shared fairly among those who ask: by turns.
//! What the node reads for itself is a lane like any identity's.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use cis_core::error::Refusal;
use cis_store::Reader;

use super::turns::{Share, Turns, closed};

/// Reading is processor work, so more views than the cores would only queue elsewhere; some are left for other identities. As
/// many reads wait as an edge lets one identity wait for changes, since a change lets all of them look.
const READS: Share = Share { what: "reads", at_once: 8, own_at_once: 4, own_queue_max: 8_192 };

/// The lane of what the node reads for itself. No identity is called so: a name is not empty.
const NODE: &str = "";

/// The views. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reads {
    database: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Reader>>>,
    turns: Turns,
}

impl Reads {
    pub(super) fn new(database: PathBuf) -> Self {
        Self { database: Arc::new(database), idle: Arc::default(), turns: Turns::new(READS) }
    }

    /// Reads for the node itself, on a thread that may wait for the disk.
    pub async fn read<T, F>(&self, look: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Reader) -> Result<T, Refusal> + Send + 'static,
    {
        self.read_for(NODE, look).await
    }

    /// Reads for `identity` when its turn has come, on a thread that may wait for the disk.
    pub async fn read_for<T, F>(&self, identity: &str, look: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Reader) -> Result<T, Refusal> + Send + 'static,
    {
        let this = self.clone();
        let turn = self.turns.take(identity).await?;
        let task = tokio::task::spawn_blocking(move || {
            let idle = || this.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let known = idle().pop();
            let reader = known.map_or_else(|| Reader::open(&this.database), Ok)?;
            let found = look(&reader);
            idle().push(reader);
            drop(turn);
            found
        });
        task.await.map_err(|_| closed())?
    }
}
