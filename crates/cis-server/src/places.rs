//! Places for connections. A connection that has not authenticated has one of a few, and with one connection more the one
//! that has waited longest loses its own. Authenticated, a connection counts toward its identity, and keeps its place.
//!
//! ```text
//!   accept ─► admit ─► unauthenticated (UNAUTHENTICATED_MAX) ─► authenticate ─► of an identity (two thirds of all)
//!                │ full: evicts the one that has waited longest         └ its identity has too many: 429, and it closes
//!                └ all places are taken by authenticated connections: 503, and it closes
//! ```

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cis_core::error::{ErrorCode, Refusal};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::limit::network;

/// Connections from the network. More than requests that may wait, so that callers that are refused hear it.
const NETWORK_MAX: usize = 12_288;

/// Of those, connections on which no request has shown a good token yet.
const UNAUTHENTICATED_MAX: usize = 256;

/// Of those, connections from one network; from this machine there may be as many as there are places.
const UNAUTHENTICATED_OF_NETWORK_MAX: usize = 64;

/// Connections on the data directory's socket, and those of them that have not shown the key.
const SOCKET_MAX: usize = 1_024;
const WITHOUT_KEY_MAX: usize = 64;

/// Descriptors that no connection gets: they are for the store and its readers, the runner, logs, contexts and skills.
const RESERVED_FILES: usize = 256;

/// Descriptors that a node needs for all of its connections.
pub const FILES_WANTED: u64 = (NETWORK_MAX + SOCKET_MAX + RESERVED_FILES) as u64;

/// Connections there are always places for, however few descriptors there are.
const PLACES_MIN: usize = 16;

/// How long the next connection waits for one that can go, while all are fresh or being answered: then the oldest goes.
const EVICTION_PATIENCE: Duration = Duration::from_secs(1);

/// How often it looks again meanwhile.
const EVICTION_TICK: Duration = Duration::from_millis(2);

/// Bytes of heads that have not come in whole; those of a short head are not counted.
const HEADS_MAX: usize = 16 << 20;
const SHORT_HEAD: usize = 4 << 10;

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity {
    all: usize,
    unauthenticated: usize,
    /// Of one network, where that is bounded.
    of_network: usize,
    of_identity: usize,
}

impl Capacity {
    /// For connections from the network, in a process that may have `files` descriptors.
    pub(crate) fn of_network(files: usize) -> Self {
        let (all, _) = share(files);
        Self {
            all,
            unauthenticated: UNAUTHENTICATED_MAX.min(all / 2),
            of_network: UNAUTHENTICATED_OF_NETWORK_MAX.min(all / 2),
            of_identity: all * 2 / 3,
        }
    }

    /// For connections on the data directory's socket.
    pub(crate) fn of_socket(files: usize) -> Self {
        let (_, all) = share(files);
        Self { all, unauthenticated: WITHOUT_KEY_MAX.min(all / 2), of_network: all, of_identity: all }
    }
}

/// Places for the network and for the socket: what the descriptors are enough for.
fn share(files: usize) -> (usize, usize) {
    let free = files.saturating_sub(RESERVED_FILES);
    ((free * 3 / 4).clamp(PLACES_MIN, NETWORK_MAX), (free / 4).clamp(PLACES_MIN, SOCKET_MAX))
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Places {
    capacity: Capacity,
    taken: Mutex<Taken>,
    /// Rung whenever a connection closes or has authenticated.
    changed: Notify,
    /// Orders connections by when they began to wait.
    turns: AtomicU64,
    /// Of all connections together.
    head_bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    unauthenticated: HashMap<u64, Arc<Connection>>,
    of_identity: HashMap<Arc<str>, usize>,
}

/// A connection, as its tasks and the place where connections are accepted know it.
#[derive(Debug)]
struct Connection {
    id: u64,
    /// Where it comes from, if that is bounded.
    network: Option<IpAddr>,
    phase: AtomicU8,
    /// Its turn, since it was accepted or since its last request was answered. Bytes that drip in change nothing.
    since: AtomicU64,
    caller: Mutex<Caller>,
    evicted: Notify,
    /// What it holds of a head that has not come in whole.
    head_bytes: AtomicUsize,
}

/// The caller that a connection was last used by.
#[derive(Debug)]
enum Caller {
    Unknown,
    Owner,
    Identity(Arc<str>),
}

/// It was accepted, and has not been looked at: its first request may be there already.
const FRESH: u8 = 0;
/// It waits for its peer.
const WAITING: u8 = 1;
/// A request of it is being handled.
const HANDLING: u8 = 2;

/// The place of a connection. Cheap to clone; the place is free when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Place(Arc<Held>);

#[derive(Debug)]
struct Held {
    places: Arc<Places>,
    connection: Arc<Connection>,
}

/// There is no place, and none to be had from a connection that has not authenticated.
#[derive(Debug)]
pub(crate) struct Full;

impl Places {
    pub(crate) fn new(capacity: Capacity) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            taken: Mutex::default(),
            changed: Notify::new(),
            turns: AtomicU64::new(0),
            head_bytes: AtomicUsize::new(0),
        })
    }

    /// A place for a connection from `address`. Waits for the connection that has to go for it, if there is one.
    pub(crate) async fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Place, Full> {
        let network = address.filter(|address| !address.to_canonical().is_loopback()).map(network);
        let began = Instant::now();
        loop {
            let changed = self.changed.notified();
            match self.take(network, began.elapsed() < EVICTION_PATIENCE)? {
                Some(place) => return Ok(place),
                None => drop(timeout(EVICTION_TICK, changed).await),
            }
        }
    }

    /// As [`Places::admit`], but waits for authenticated connections to close as well.
    pub(crate) async fn wait_for_place(self: &Arc<Self>) -> Place {
        loop {
            let changed = self.changed.notified();
            match self.admit(None).await {
                Ok(place) => return place,
                Err(Full) => changed.await,
            }
        }
    }

    /// A place, or `None` after asking a connection to leave; with `spares_busy`, only one that waits for its peer. The first
    /// request of a fresh one may be there already, and its token with it.
    fn take(self: &Arc<Self>, network: Option<IpAddr>, spares_busy: bool) -> Result<Option<Place>, Full> {
        let mut taken = lock(&self.taken);
        let of_network = |taken: &Taken| {
            let same = |connection: &&Arc<Connection>| connection.network == network;
            taken.unauthenticated.values().filter(same).count()
        };
        let crowded = network.is_some() && of_network(&taken) >= self.capacity.of_network;
        let full =
            taken.all >= self.capacity.all || taken.unauthenticated.len() >= self.capacity.unauthenticated;
        if crowded || full {
            // A network that has many already takes from none but itself.
            let mine = |connection: &&Arc<Connection>| !crowded || connection.network == network;
            let Some(oldest) = longest_waiting(taken.unauthenticated.values().filter(mine)) else {
                return Err(Full);
            };
            if !spares_busy || oldest.phase.load(Ordering::Relaxed) == WAITING {
                oldest.evicted.notify_one();
            }
            return Ok(None);
        }
        let id = self.turns.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection {
            id,
            network,
            phase: AtomicU8::new(FRESH),
            since: AtomicU64::new(id),
            caller: Mutex::new(Caller::Unknown),
            evicted: Notify::new(),
            head_bytes: AtomicUsize::new(0),
        });
        taken.all += 1;
        taken.unauthenticated.insert(id, connection.clone());
        Ok(Some(Place(Arc::new(Held { places: self.clone(), connection }))))
    }

    /// Asks the connection that has waited longest to leave, for its descriptor.
    pub(crate) fn evict_one(&self) {
        if let Some(oldest) = longest_waiting(lock(&self.taken).unauthenticated.values()) {
            oldest.evicted.notify_one();
        }
    }

    /// Waits until every connection has closed.
    pub(crate) async fn wait_until_empty(&self) {
        loop {
            let changed = self.changed.notified();
            if lock(&self.taken).all == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// The connection that has waited longest for its peer; where none waits, the oldest.
fn longest_waiting<'c>(
    connections: impl Iterator<Item = &'c Arc<Connection>>,
) -> Option<&'c Arc<Connection>> {
    let load = |connection: &Connection| {
        (connection.phase.load(Ordering::Relaxed) != WAITING, connection.since.load(Ordering::Relaxed))
    };
    connections.min_by_key(|connection| load(connection))
}

impl Place {
    /// Waits until the connection has to give up its place. One that has authenticated meanwhile keeps it.
    pub(crate) async fn evicted(&self) {
        loop {
            self.0.connection.evicted.notified().await;
            if matches!(*lock(&self.0.connection.caller), Caller::Unknown) {
                return;
            }
        }
    }

    /// Nothing more is there to read at present.
    pub(crate) fn note_silence(&self) {
        let phase = &self.0.connection.phase;
        let _ = phase.compare_exchange(FRESH, WAITING, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The connection holds so much of a head that has not come in whole; false if all of them together hold too much.
    pub(crate) fn hold_head(&self, bytes: usize) -> bool {
        let now = if bytes > SHORT_HEAD { bytes } else { 0 };
        let before = self.0.connection.head_bytes.swap(now, Ordering::Relaxed);
        if now <= before {
            if now < before {
                self.0.places.head_bytes.fetch_sub(before - now, Ordering::Relaxed);
            }
            return true;
        }
        let more = now - before;
        self.0.places.head_bytes.fetch_add(more, Ordering::Relaxed) + more <= HEADS_MAX
    }

    pub(crate) fn note_request(&self) {
        self.0.connection.phase.store(HANDLING, Ordering::Relaxed);
    }

    pub(crate) fn note_answer(&self) {
        let turn = self.0.places.turns.fetch_add(1, Ordering::Relaxed);
        self.0.connection.since.store(turn, Ordering::Relaxed);
        self.0.connection.phase.store(WAITING, Ordering::Relaxed);
    }

    /// A request has shown the data directory's key.
    pub(crate) fn authenticate_owner(&self) {
        let mut caller = lock(&self.0.connection.caller);
        if matches!(*caller, Caller::Unknown) {
            *caller = Caller::Owner;
            self.leave_unauthenticated(&mut lock(&self.0.places.taken));
        }
    }

    /// A request has shown a good token of `identity`: from now on the connection counts toward it.
    pub(crate) fn authenticate(&self, identity: &str) -> Result<(), Refusal> {
        let mut caller = lock(&self.0.connection.caller);
        if matches!(&*caller, Caller::Identity(known) if **known == *identity) {
            return Ok(());
        }
        let mut taken = lock(&self.0.places.taken);
        let max = self.0.places.capacity.of_identity;
        let has = taken.of_identity.get(identity).copied().unwrap_or(0);
        if has >= max {
            let why = format!("`{identity}` has {max} connections");
            return Err(Refusal::new(ErrorCode::RateLimited, why)
                .hint("close those that are not in use; one connection carries many requests"));
        }
        let identity: Arc<str> = identity.into();
        taken.of_identity.insert(identity.clone(), has + 1);
        match std::mem::replace(&mut *caller, Caller::Identity(identity)) {
            // A proxy may send requests of several callers on one connection.
            Caller::Identity(before) => taken.remove_from(&before),
            Caller::Unknown | Caller::Owner => self.leave_unauthenticated(&mut taken),
        }
        Ok(())
    }

    fn leave_unauthenticated(&self, taken: &mut Taken) {
        taken.unauthenticated.remove(&self.0.connection.id);
        self.0.places.changed.notify_waiters();
    }
}

impl Taken {
    fn remove_from(&mut self, identity: &Arc<str>) {
        if let Some(has) = self.of_identity.get_mut(identity) {
            *has -= 1;
            if *has == 0 {
                self.of_identity.remove(identity);
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let caller = lock(&self.connection.caller);
        let mut taken = lock(&self.places.taken);
        taken.all -= 1;
        taken.unauthenticated.remove(&self.connection.id);
        if let Caller::Identity(identity) = &*caller {
            taken.remove_from(identity);
        }
        drop(taken);
        self.places
            .head_bytes
            .fetch_sub(self.connection.head_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.places.changed.notify_waiters();
    }
}

/// What a connection is told for which there is no place.
pub(crate) fn no_place() -> Refusal {
    Refusal::new(ErrorCode::Unavailable, "the node has as many connections as it can")
        .hint("close those that are not in use, and try again in a second")
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
