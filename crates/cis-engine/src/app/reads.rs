//! A few read-only views of the store, each used by one request at a time, and shared fairly among those who ask.
//!
//! ```text
//!   ann:  ▪▪▪▪▪▪  ┐
//!   bob:  ▪       ├─ in turn ──► places (8; one identity holds at most 4)
//!   node: ▪       ┘
//! ```
//!
//! Who asks for long reads waits behind its own: the next free place goes to the next identity that waits, not to the next
//! request. What the node reads for itself is a lane like any identity's.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cis_core::error::{ErrorCode, Refusal};
use cis_store::Reader;
use tokio::sync::oneshot;

/// Views in use at once: reading is processor work, so more than the cores would only queue elsewhere.
const AT_ONCE: usize = 8;

/// Views that one identity uses at once: some are left for the others.
const OWN_AT_ONCE: usize = 4;

/// Reads of one identity that wait for a view: as many as an edge lets one identity wait for changes, since a change lets all
/// of them look.
const OWN_QUEUE_MAX: usize = 8_192;

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
        Self { database: Arc::new(database), idle: Arc::default(), turns: Turns::new() }
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
        let place = self.turns.place(identity).await?;
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

/// Whose turn it is.
#[derive(Debug, Clone)]
struct Turns(Arc<Mutex<Queue>>);

#[derive(Debug)]
struct Queue {
    free: usize,
    /// Identities that hold a place or wait for one.
    lanes: HashMap<Arc<str>, Lane>,
    /// Identities that wait, in the order of their next turns.
    waiting: VecDeque<Arc<str>>,
}

#[derive(Debug, Default)]
struct Lane {
    held: usize,
    waiters: VecDeque<oneshot::Sender<Place>>,
}

/// The right to use a view; given back when it is dropped.
#[derive(Debug)]
struct Place {
    identity: Arc<str>,
    /// Nothing once it was taken back.
    turns: Option<Turns>,
}

impl Turns {
    fn new() -> Self {
        let queue = Queue { free: AT_ONCE, lanes: HashMap::new(), waiting: VecDeque::new() };
        Self(Arc::new(Mutex::new(queue)))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for `identity`, once it is its turn.
    async fn place(&self, identity: &str) -> Result<Place, Refusal> {
        let turn = {
            let mut queue = self.lock();
            let identity = match queue.lanes.get_key_value(identity) {
                Some((known, _)) => known.clone(),
                None => identity.into(),
            };
            let free = queue.free;
            let lane = queue.lanes.entry(identity.clone()).or_default();
            // Where one of its own waits, it waits behind that.
            if free > 0 && lane.held < OWN_AT_ONCE && lane.waiters.is_empty() {
                lane.held += 1;
                queue.free -= 1;
                return Ok(Place { identity, turns: Some(self.clone()) });
            }
            if lane.waiters.len() >= OWN_QUEUE_MAX {
                lane.waiters.retain(|waiter| !waiter.is_closed());
            }
            if lane.waiters.len() >= OWN_QUEUE_MAX {
                return Err(too_many());
            }
            let (to, turn) = oneshot::channel();
            lane.waiters.push_back(to);
            if lane.waiters.len() == 1 {
                queue.waiting.push_back(identity);
            }
            turn
        };
        turn.await.map_err(|_| closed())
    }

    /// Hands free places to those whose turn it is.
    fn hand_out(&self, queue: &mut Queue) {
        // Those at their limit keep their turn for later.
        let mut passed = VecDeque::new();
        while queue.free > 0
            && let Some(identity) = queue.waiting.pop_front()
        {
            let Some(lane) = queue.lanes.get_mut(&identity) else { continue };
            if lane.held >= OWN_AT_ONCE {
                passed.push_back(identity);
                continue;
            }
            while let Some(waiter) = lane.waiters.pop_front() {
                let place = Place { identity: identity.clone(), turns: Some(self.clone()) };
                match waiter.send(place) {
                    Ok(()) => {
                        lane.held += 1;
                        queue.free -= 1;
                        break;
                    }
                    // It was given up. Dropped as it is, the place would be given back to this queue, which is locked.
                    Err(mut unused) => unused.turns = None,
                }
            }
            if !lane.waiters.is_empty() {
                queue.waiting.push_back(identity);
            } else if lane.held == 0 {
                queue.lanes.remove(&identity);
            }
        }
        passed.append(&mut queue.waiting);
        queue.waiting = passed;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(turns) = self.turns.take() else { return };
        let mut queue = turns.lock();
        queue.free += 1;
        if let Some(lane) = queue.lanes.get_mut(&self.identity) {
            lane.held -= 1;
            if lane.held == 0 && lane.waiters.is_empty() {
                queue.lanes.remove(&self.identity);
            }
        }
        turns.hand_out(&mut queue);
    }
}

fn closed() -> Refusal {
    Refusal::new(ErrorCode::Unavailable, "the node is shutting down")
}

fn too_many() -> Refusal {
    Refusal::new(ErrorCode::RateLimited, format!("{OWN_QUEUE_MAX} reads of yours are waiting already"))
        .hint("let some of them end, then try again")
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// A read that waits for its turn.
    struct Waiting<'t>(Pin<Box<dyn Future<Output = Result<Place, Refusal>> + 't>>);

    impl<'t> Waiting<'t> {
        /// Asks for a place, so that it waits if there is none.
        fn new(turns: &'t Turns, who: &'t str) -> (Self, Option<Result<Place, Refusal>>) {
            let mut waiting = Self(Box::pin(turns.place(who)));
            let turn = waiting.turn();
            (waiting, turn)
        }

        fn turn(&mut self) -> Option<Result<Place, Refusal>> {
            match self.0.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(turn) => Some(turn),
                Poll::Pending => None,
            }
        }
    }

    fn take(turns: &Turns, who: &str) -> Place {
        Waiting::new(turns, who).1.unwrap().unwrap()
    }

    fn wait<'t>(turns: &'t Turns, who: &'t str) -> Waiting<'t> {
        let (waiting, turn) = Waiting::new(turns, who);
        assert!(turn.is_none());
        waiting
    }

    #[test]
    fn one_identity_leaves_places_for_others() {
        let turns = Turns::new();
        let held: Vec<_> = (0..OWN_AT_ONCE).map(|_| take(&turns, "greedy")).collect();
        let mut more = wait(&turns, "greedy");
        let other = take(&turns, "other");
        drop((held, other));
        drop(more.turn().unwrap());
        assert!(turns.lock().lanes.is_empty() && turns.lock().free == AT_ONCE, "{turns:?}");
    }

    #[test]
    fn a_free_place_goes_to_the_next_identity_that_waits() {
        let turns = Turns::new();
        let mut all: Vec<_> = ["a", "a", "a", "a", "b", "b", "b", "b"].map(|who| take(&turns, who)).into();
        let mut waiting = ["b", "b", "c", "c", "d"].map(|who| wait(&turns, who));
        let mut given = Vec::new();
        let mut next = || {
            drop(all.remove(0));
            let turns = waiting.iter_mut().map(Waiting::turn);
            let (place, turn) = turns.enumerate().find(|(_, turn)| turn.is_some()).unwrap();
            // Held on to: what counts is who comes next.
            given.push(turn);
            waiting[place].0 = Box::pin(std::future::pending());
            place
        };
        // `b` waited first, but holds as many as it may until all of `a` are gone.
        assert_eq!([next(), next(), next()], [2, 4, 3]);
        drop((all, given));
        assert!(waiting[0].turn().is_some() && waiting[1].turn().is_some());
    }

    #[test]
    fn given_up_reads_hold_nothing() {
        let turns = Turns::new();
        let held: Vec<_> = (0..OWN_AT_ONCE).map(|_| take(&turns, "a")).collect();
        let given_up = wait(&turns, "a");
        let mut last = wait(&turns, "a");
        drop((given_up, held));
        drop(last.turn().unwrap());
        assert!(turns.lock().lanes.is_empty() && turns.lock().waiting.is_empty());
        assert_eq!(turns.lock().free, AT_ONCE);
    }

    #[test]
    fn reads_beyond_the_queue_are_refused() {
        let turns = Turns::new();
        let _held: Vec<_> = (0..OWN_AT_ONCE).map(|_| take(&turns, "a")).collect();
        let waiting: Vec<_> = (0..OWN_QUEUE_MAX).map(|_| wait(&turns, "a")).collect();
        let refused = Waiting::new(&turns, "a").1.unwrap().unwrap_err();
        assert_eq!(refused.code, ErrorCode::RateLimited);
        drop(take(&turns, "b"));
        drop(waiting);
        wait(&turns, "a");
    }
}
