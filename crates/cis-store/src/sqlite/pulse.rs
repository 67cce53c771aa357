//! What has changed, said before anybody is answered: whoever keeps an answer asks here whether it still holds, and
//! whoever waits hears when to look again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// DAGs by name, folded into this many places. Two that share one only make each other look again.
const PLACES: usize = 4_096;

/// The pulse of a store. Cheap to clone.
#[derive(Clone)]
pub struct Pulse(Arc<Inner>);

struct Inner {
    dags: Box<[AtomicU64]>,
    tokens: watch::Sender<u64>,
    beats: watch::Sender<u64>,
}

/// What the operations of a batch have changed.
#[derive(Debug, Default)]
pub(super) struct Changed {
    places: Vec<usize>,
    everything: bool,
    tokens: bool,
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pulse")
    }
}

impl Pulse {
    pub(super) fn new() -> Self {
        let dags = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Inner { dags, tokens: watch::Sender::new(0), beats: watch::Sender::new(0) }))
    }

    /// Another number once anything about a DAG of this name, in whatever scope, has changed. Whoever reads it before
    /// it reads the store, and finds it again later, knows that what it read still holds.
    pub fn of_dag(&self, dag_id: &str) -> u64 {
        self.0.dags[place(dag_id)].load(Ordering::Acquire)
    }

    /// Changes with every token that is made or taken back.
    pub fn tokens(&self) -> watch::Receiver<u64> {
        self.0.tokens.subscribe()
    }

    /// Changes with every commit.
    pub fn beats(&self) -> watch::Receiver<u64> {
        self.0.beats.subscribe()
    }

    /// Says what has been committed.
    pub(super) fn tell(&self, changed: &mut Changed) {
        if std::mem::take(&mut changed.everything) {
            changed.places = (0..PLACES).collect();
        }
        for place in changed.places.drain(..) {
            self.0.dags[place].fetch_add(1, Ordering::Release);
        }
        if std::mem::take(&mut changed.tokens) {
            self.0.tokens.send_modify(|count| *count += 1);
        }
        self.0.beats.send_modify(|count| *count += 1);
    }
}

impl Changed {
    pub(super) fn dag(&mut self, dag_id: &str) {
        let place = place(dag_id);
        if self.places.last() != Some(&place) {
            self.places.push(place);
        }
    }

    /// Too much to say by name.
    pub(super) fn everything(&mut self) {
        self.everything = true;
    }

    pub(super) fn tokens(&mut self) {
        self.tokens = true;
    }
}

/// Where a name is folded to (FNV-1a).
fn place(dag_id: &str) -> usize {
    let hash = dag_id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    usize::try_from(hash % PLACES as u64).unwrap_or_default()
}
