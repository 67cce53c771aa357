//! A few places, shared fairly among those who ask.
//!
//! ```text
//!   ann:  ▪▪▪▪▪▪  ┐
//!   bob:  ▪       ├─ in turn ──► places; one identity holds some of them at most
//!   node: ▪       ┘
//! ```
//!
//! An identity that asks for much waits behind its own: the next free place goes to the next identity that waits, not to the
//! next request. What the places are for is not known here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cis_core::error::{ErrorCode, Refusal};
use tokio::sync::oneshot;

/// How many places there are, and for whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    /// What the places are for, as a refusal says it: `reads`.
    pub(super) what: &'static str,
    /// Turns in all.
    pub(super) at_once: usize,
    /// Turns that one identity holds at once.
    pub(super) own_at_once: usize,
    /// Requests of one identity that wait for a place; what comes beyond that is refused.
    pub(super) own_queue_max: usize,
}

/// Whose turn it is. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    share: Share,
    queue: Arc<Mutex<Queue>>,
}

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
    waiters: VecDeque<oneshot::Sender<Turn>>,
}

/// The right to a place; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    identity: Arc<str>,
    /// Nothing once it was taken back.
    turns: Option<Turns>,
}

impl Turns {
    pub(super) fn new(share: Share) -> Self {
        let queue = Queue { free: share.at_once, lanes: HashMap::new(), waiting: VecDeque::new() };
        Self { share, queue: Arc::new(Mutex::new(queue)) }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `identity` has its turn; refused if too many of its requests wait already.
    pub(super) async fn take(&self, identity: &str) -> Result<Turn, Refusal> {
        self.take_within(self.share.own_queue_max, identity).await
    }

    /// The same for a caller that something else bounds.
    pub(super) async fn take_unbounded(&self, identity: &str) -> Result<Turn, Refusal> {
        self.take_within(usize::MAX, identity).await
    }

    async fn take_within(&self, own_queue_max: usize, identity: &str) -> Result<Turn, Refusal> {
        let turn = {
            let mut queue = self.lock();
            let identity = match queue.lanes.get_key_value(identity) {
                Some((known, _)) => known.clone(),
                None => identity.into(),
            };
            let free = queue.free;
            let lane = queue.lanes.entry(identity.clone()).or_default();
            // Where one of its own waits, it waits behind that.
            if free > 0 && lane.held < self.share.own_at_once && lane.waiters.is_empty() {
                lane.held += 1;
                queue.free -= 1;
                return Ok(Turn { identity, turns: Some(self.clone()) });
            }
            if lane.waiters.len() >= own_queue_max {
                lane.waiters.retain(|waiter| !waiter.is_closed());
            }
            if lane.waiters.len() >= own_queue_max {
                return Err(self.share.too_many());
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
            if lane.held >= self.share.own_at_once {
                passed.push_back(identity);
                continue;
            }
            while let Some(waiter) = lane.waiters.pop_front() {
                let turn = Turn { identity: identity.clone(), turns: Some(self.clone()) };
                match waiter.send(turn) {
                    Ok(()) => {
                        lane.held += 1;
                        queue.free -= 1;
                        break;
                    }
                    // It was given up. Dropped as it is, it would be given back to this queue, which is locked.
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

impl Share {
    fn too_many(&self) -> Refusal {
        let Self { what, own_queue_max, .. } = self;
        Refusal::new(ErrorCode::RateLimited, format!("{own_queue_max} {what} of yours are waiting already"))
            .hint("let some of them end, then try again")
    }
}

impl Drop for Turn {
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

pub(super) fn closed() -> Refusal {
    Refusal::new(ErrorCode::Unavailable, "the node is shutting down")
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const SHARE: Share = Share { what: "reads", at_once: 8, own_at_once: 4, own_queue_max: 100 };

    /// A request that waits for its turn.
    struct Waiting<'t>(Pin<Box<dyn Future<Output = Result<Turn, Refusal>> + 't>>);

    impl<'t> Waiting<'t> {
        /// Asks for a place, so that it waits if there is none.
        fn new(turns: &'t Turns, who: &'t str) -> (Self, Option<Result<Turn, Refusal>>) {
            let mut waiting = Self(Box::pin(turns.take(who)));
            let turn = waiting.turn();
            (waiting, turn)
        }

        fn turn(&mut self) -> Option<Result<Turn, Refusal>> {
            match self.0.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(turn) => Some(turn),
                Poll::Pending => None,
            }
        }
    }

    fn take(turns: &Turns, who: &str) -> Turn {
        Waiting::new(turns, who).1.unwrap().unwrap()
    }

    fn wait<'t>(turns: &'t Turns, who: &'t str) -> Waiting<'t> {
        let (waiting, turn) = Waiting::new(turns, who);
        assert!(turn.is_none());
        waiting
    }

    #[test]
    fn one_identity_leaves_places_for_others() {
        let turns = Turns::new(SHARE);
        let held: Vec<_> = (0..SHARE.own_at_once).map(|_| take(&turns, "greedy")).collect();
        let mut more = wait(&turns, "greedy");
        let other = take(&turns, "other");
        drop((held, other));
        drop(more.turn().unwrap());
        assert!(turns.lock().lanes.is_empty() && turns.lock().free == SHARE.at_once, "{turns:?}");
    }

    #[test]
    fn a_free_place_goes_to_the_next_identity_that_waits() {
        let turns = Turns::new(SHARE);
        let mut all: Vec<_> = ["a", "a", "a", "a", "b", "b", "b", "b"].map(|who| take(&turns, who)).into();
        let mut waiting = ["b", "b", "c", "c", "d"].map(|who| wait(&turns, who));
        let mut given = Vec::new();
        let mut next = || {
            drop(all.remove(0));
            let turns = waiting.iter_mut().map(Waiting::turn);
            let (waiter, turn) = turns.enumerate().find(|(_, turn)| turn.is_some()).unwrap();
            // Held on to: what counts is who comes next.
            given.push(turn);
            waiting[waiter].0 = Box::pin(std::future::pending());
            waiter
        };
        // `b` waited first, but holds as many as it may until all of `a` are gone.
        assert_eq!([next(), next(), next()], [2, 4, 3]);
        drop((all, given));
        assert!(waiting[0].turn().is_some() && waiting[1].turn().is_some());
    }

    #[test]
    fn given_up_requests_hold_nothing() {
        let turns = Turns::new(SHARE);
        let held: Vec<_> = (0..SHARE.own_at_once).map(|_| take(&turns, "a")).collect();
        let given_up = wait(&turns, "a");
        let mut last = wait(&turns, "a");
        drop((given_up, held));
        drop(last.turn().unwrap());
        assert!(turns.lock().lanes.is_empty() && turns.lock().waiting.is_empty());
        assert_eq!(turns.lock().free, SHARE.at_once);
    }

    #[test]
    fn requests_beyond_the_queue_are_refused() {
        let turns = Turns::new(SHARE);
        let _held: Vec<_> = (0..SHARE.own_at_once).map(|_| take(&turns, "a")).collect();
        let waiting: Vec<_> = (0..SHARE.own_queue_max).map(|_| wait(&turns, "a")).collect();
        let refused = Waiting::new(&turns, "a").1.unwrap().unwrap_err();
        assert_eq!(refused.code, ErrorCode::RateLimited);
        drop(take(&turns, "b"));
        let mut unbounded = Box::pin(turns.take_unbounded("a"));
        assert!(unbounded.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop((waiting, unbounded));
        wait(&turns, "a");
    }

    #[test]
    fn one_place_goes_round_the_identities() {
        let turns = Turns::new(Share { at_once: 1, own_at_once: 1, ..SHARE });
        let held = take(&turns, "greedy");
        let mut more = [wait(&turns, "greedy"), wait(&turns, "greedy")];
        let mut other = wait(&turns, "other");
        drop(held);
        let held = more[0].turn().unwrap();
        assert!(other.turn().is_none());
        drop(held);
        assert!(more[1].turn().is_none());
        drop(other.turn().unwrap());
        assert!(more[1].turn().is_some());
    }
}
