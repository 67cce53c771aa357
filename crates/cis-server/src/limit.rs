//! How much of the node one caller, and all of them together, may use at once. Whoever asks for more is told so at
//! once and tries again: nothing queues here without a bound.
//!
//! | what | each identity | all together |
//! |---|---|---|
//! | requests a second | `node.rate` | |
//! | requests under way | [`OWN_WORKING_MAX`] | [`WORKING_MAX`] |
//! | long polls and followers | [`OWN_WAITING_MAX`] | [`WAITING_MAX`] |
//! | bytes of bodies, and of what is parsed of them | [`OWN_BODIES_MAX`] | [`BODIES_MAX`] |
//! | bytes of answers that are not yet sent | [`OWN_ANSWERS_MAX`] | [`ANSWERS_MAX`] |
//! | wrong tokens, by address | [`FAILURE_RATE`] | |

mod stream;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cis_core::error::{ErrorCode, Refusal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

pub(crate) use stream::{StreamBuffer, StreamRoom};

/// Requests that do something. One caller alone cannot take all the places.
const WORKING_MAX: usize = 1_024;
const OWN_WORKING_MAX: usize = 256;

/// Requests that mostly wait: they cost a connection and a few kilobytes.
const WAITING_MAX: usize = 10_000;
const OWN_WAITING_MAX: usize = 7_500;

/// Bytes of bodies in memory at once. A caller's share is the largest definition, and half of one.
const BODIES_MAX: usize = 96 << 20;
const OWN_BODIES_MAX: usize = 48 << 20;

/// Bodies up to this size are bounded by the number of requests alone, so that whoever sends large ones keeps nobody
/// from sending small ones.
const SMALL_BODY: usize = 16 << 10;

/// Bytes of answers in memory at once, until the caller has taken them. One answer always fits a caller's share.
const ANSWERS_MAX: usize = 64 << 20;
const OWN_ANSWERS_MAX: usize = 32 << 20;

/// Answers up to this size are bounded by the number of connections alone, and cost no count.
pub(crate) const SMALL_ANSWER: usize = 16 << 10;

/// Bytes are counted in pieces of this size.
const PIECE: usize = 4 << 10;

/// Requests with a wrong token that an address may make, per second and at once.
const FAILURE_RATE: u32 = 50;
const FAILURE_BURST: u32 = 500;

/// Callers and addresses kept in memory; those that have done nothing lately are forgotten first.
const KNOWN_MAX: usize = 10_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Limits {
    rate: u32,
    shares: Mutex<HashMap<String, Arc<Share>>>,
    /// Requests with a wrong token that each network may still make.
    failures: Mutex<HashMap<IpAddr, Bucket>>,
    all: Room,
}

/// What one identity may use.
#[derive(Debug)]
pub(crate) struct Share {
    bucket: Mutex<Bucket>,
    own: Room,
}

/// Places, for one or for all.
#[derive(Debug)]
struct Room {
    working: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    answers: Arc<Semaphore>,
}

/// Places taken at present.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InUse {
    pub(crate) working: u64,
    pub(crate) waiting: u64,
}

/// Held while a request is under way.
#[derive(Debug)]
pub(crate) struct Place {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Limits {
    /// Limits with this many requests a second for each identity.
    pub(crate) fn new(rate: u32) -> Self {
        Self { rate, shares: Mutex::default(), failures: Mutex::default(), all: Room::of_all() }
    }

    /// Counts a request with a wrong token; refuses it as one too many if its address made many. A request with a good
    /// token is never counted here, whatever others do from the same address.
    pub(crate) fn count_failure(&self, address: IpAddr, now: Instant) -> Result<(), Refusal> {
        let mut failures = lock(&self.failures);
        if failures.len() >= KNOWN_MAX {
            failures.retain(|_, bucket| !bucket.is_full(FAILURE_RATE, FAILURE_BURST, now));
        }
        if failures.len() >= KNOWN_MAX {
            // So many addresses at once: counting them is worth less than the memory.
            failures.clear();
        }
        let bucket = failures.entry(network(address)).or_insert_with(|| Bucket::full(FAILURE_BURST, now));
        if bucket.take(FAILURE_RATE, FAILURE_BURST, now) {
            return Ok(());
        }
        let why = "too many requests with wrong tokens came from your address";
        Err(Refusal::new(ErrorCode::RateLimited, why)
            .hint("try again in a second, with a token that is good"))
    }

    /// Counts a request of `identity`; answers its share.
    pub(crate) fn admit(&self, identity: &str, now: Instant) -> Result<Arc<Share>, Refusal> {
        let burst = self.rate.saturating_mul(2);
        let share = {
            let mut shares = lock(&self.shares);
            if shares.len() >= KNOWN_MAX && !shares.contains_key(identity) {
                shares.retain(|_, share| {
                    Arc::strong_count(share) > 1 || !lock(&share.bucket).is_full(self.rate, burst, now)
                });
            }
            match shares.get(identity) {
                Some(share) => share.clone(),
                None => {
                    let bucket = Mutex::new(Bucket::full(burst, now));
                    let share = Arc::new(Share { bucket, own: Room::of_one() });
                    shares.insert(identity.to_owned(), share.clone());
                    share
                }
            }
        };
        if !lock(&share.bucket).take(self.rate, burst, now) {
            let why = format!("`{identity}` makes more than {} requests a second", self.rate);
            let hint = "wait as long as `Retry-After` says; wait for changes instead of asking for them";
            return Err(Refusal::new(ErrorCode::RateLimited, why).hint(hint));
        }
        Ok(share)
    }

    /// A place for a request, for as long as it is under way; `waits` if it may take long without doing much.
    pub(crate) fn place(&self, share: &Share, waits: bool) -> Result<Place, Refusal> {
        let of = |room: &Room| if waits { room.waiting.clone() } else { room.working.clone() };
        let _own = of(&share.own).try_acquire_owned().map_err(|_| yours("requests under way"))?;
        let _all = of(&self.all).try_acquire_owned().map_err(|_| everybodys("requests under way"))?;
        Ok(Place { _own, _all })
    }

    /// How many places are taken.
    pub(crate) fn in_use(&self) -> InUse {
        let taken = |max: usize, room: &Semaphore| (max - room.available_permits()) as u64;
        InUse {
            working: taken(WORKING_MAX, &self.all.working),
            waiting: taken(WAITING_MAX, &self.all.waiting),
        }
    }

    /// Room for a body that grows as it comes in.
    pub(crate) fn body(self: &Arc<Self>, share: Arc<Share>) -> BodyRoom {
        BodyRoom { limits: self.clone(), share, held: None, bytes: 0 }
    }

    /// Room for an answer of this size, until it is sent.
    pub(crate) fn answer(&self, share: &Share, bytes: usize) -> Result<Place, Refusal> {
        let pieces = answer_pieces(bytes);
        let take = |room: &Room| room.answers.clone().try_acquire_many_owned(pieces);
        let _own = take(&share.own).map_err(|_| yours(ANSWERS))?;
        let _all = take(&self.all).map_err(|_| everybodys(ANSWERS))?;
        Ok(Place { _own, _all })
    }

    /// The same once there is room, but at most `wait`: for an answer that tells of something done.
    pub(crate) async fn answer_within(
        &self,
        share: &Share,
        bytes: usize,
        wait: Duration,
    ) -> Result<Place, Refusal> {
        let pieces = answer_pieces(bytes);
        let both = async {
            let _own = share.own.answers.clone().acquire_many_owned(pieces).await.ok()?;
            let _all = self.all.answers.clone().acquire_many_owned(pieces).await.ok()?;
            Some(Place { _own, _all })
        };
        tokio::time::timeout(wait, both).await.ok().flatten().ok_or_else(|| yours(ANSWERS))
    }

    /// What the owner on the socket uses: bounded as any caller's, but for its rate.
    pub(crate) fn owner_share(&self, identity: &str) -> Arc<Share> {
        let mut shares = lock(&self.shares);
        let bucket = || Mutex::new(Bucket::full(self.rate.saturating_mul(2), Instant::now()));
        let new = || Arc::new(Share { bucket: bucket(), own: Room::of_one() });
        shares.entry(format!("owner {identity}")).or_insert_with(new).clone()
    }
}

impl Room {
    fn of_all() -> Self {
        Self::new(WORKING_MAX, WAITING_MAX, BODIES_MAX, ANSWERS_MAX)
    }

    fn of_one() -> Self {
        Self::new(OWN_WORKING_MAX, OWN_WAITING_MAX, OWN_BODIES_MAX, OWN_ANSWERS_MAX)
    }

    fn new(working: usize, waiting: usize, bodies: usize, answers: usize) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            working: places(working),
            waiting: places(waiting),
            bodies: places(bodies / PIECE),
            answers: places(answers / PIECE),
        }
    }
}

/// What a body takes up; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct BodyRoom {
    limits: Arc<Limits>,
    share: Arc<Share>,
    held: Option<Place>,
    bytes: usize,
}

impl BodyRoom {
    /// Makes room for `more` bytes.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), Refusal> {
        let pieces = |bytes: usize| bytes.saturating_sub(SMALL_BODY).div_ceil(PIECE);
        let new = pieces(self.bytes + more) - pieces(self.bytes);
        self.bytes += more;
        let Ok(new) = u32::try_from(new) else { return Err(yours("bytes")) };
        if new == 0 {
            return Ok(());
        }
        let take = |room: &Room| room.bodies.clone().try_acquire_many_owned(new);
        let own = take(&self.share.own).map_err(|_| yours("bytes of bodies under way"))?;
        let all = take(&self.limits.all).map_err(|_| everybodys("bytes of bodies under way"))?;
        match &mut self.held {
            Some(held) => {
                held._own.merge(own);
                held._all.merge(all);
            }
            None => self.held = Some(Place { _own: own, _all: all }),
        }
        Ok(())
    }
}

const ANSWERS: &str = "bytes of answers that are not yet read";

/// What an answer is counted as: one that is larger than a caller's share is sent when there is no other.
fn answer_pieces(bytes: usize) -> u32 {
    u32::try_from(bytes.min(OWN_ANSWERS_MAX).div_ceil(PIECE)).unwrap_or(u32::MAX)
}

fn yours(what: &str) -> Refusal {
    Refusal::new(ErrorCode::RateLimited, format!("you have too many {what}"))
        .hint("let some of them end, then try again")
}

fn everybodys(what: &str) -> Refusal {
    Refusal::new(ErrorCode::Unavailable, format!("the node has too many {what}"))
        .hint("wait as long as `Retry-After` says, then try again")
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever has one address of an IPv6 network has all of them.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

/// Requests that may be made: so many a second, and some saved up.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn full(burst: u32, now: Instant) -> Self {
        Self { left: burst.into(), at: now }
    }

    fn has(&self, rate: u32, now: Instant) -> f64 {
        self.left + f64::from(rate) * now.saturating_duration_since(self.at).as_secs_f64()
    }

    fn is_full(&self, rate: u32, burst: u32, now: Instant) -> bool {
        self.has(rate, now) >= f64::from(burst)
    }

    /// Takes one, if there is one.
    fn take(&mut self, rate: u32, burst: u32, now: Instant) -> bool {
        self.left = self.has(rate, now).min(burst.into());
        // Whoever came a little earlier may be a little late: no moment counts twice.
        self.at = self.at.max(now);
        let any = self.left >= 1.0;
        if any {
            self.left -= 1.0;
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_gets_its_rate_and_no_more() {
        let (limits, start) = (Limits::new(10), Instant::now());
        let admitted = |who: &str, from: usize, ms: u64| {
            (from..100).filter(|_| limits.admit(who, start + Duration::from_millis(ms)).is_ok()).count()
        };
        assert_eq!(admitted("a", 0, 0), 20);
        assert_eq!(admitted("a", 0, 1_000), 10);
        assert_eq!(admitted("b", 0, 1_000), 20, "another caller has its own");
        assert_eq!(limits.admit("a", start).unwrap_err().code, ErrorCode::RateLimited);
    }

    #[test]
    fn one_caller_does_not_take_every_place() {
        let (limits, now) = (Limits::new(10), Instant::now());
        let (greedy, modest) = (limits.admit("g", now).unwrap(), limits.admit("m", now).unwrap());
        let held: Vec<Place> = (0..OWN_WORKING_MAX).map(|_| limits.place(&greedy, false).unwrap()).collect();
        assert_eq!(limits.place(&greedy, false).unwrap_err().code, ErrorCode::RateLimited);
        assert!(limits.place(&modest, false).is_ok() && limits.place(&greedy, true).is_ok());
        drop(held);
        assert!(limits.place(&greedy, false).is_ok());
    }

    #[test]
    fn large_bodies_leave_room_for_others() {
        let (limits, now) = (Arc::new(Limits::new(10)), Instant::now());
        let share = |who: &str| limits.admit(who, now).unwrap();
        let fill = |who: &str| {
            let mut room = limits.body(share(who));
            while room.grow(1 << 20).is_ok() {}
            room
        };
        let (a, _b) = (fill("a"), fill("b"));
        assert!(limits.body(share("a")).grow(1 << 20).unwrap_err().code == ErrorCode::RateLimited);
        assert!(limits.body(share("c")).grow(1 << 20).unwrap_err().code == ErrorCode::Unavailable);
        assert!(limits.body(share("c")).grow(SMALL_BODY).is_ok(), "a small one always has room");
        drop(a);
        assert!(limits.body(share("c")).grow(1 << 20).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn unread_answers_leave_room_for_others() {
        let (limits, now) = (Limits::new(1_000), Instant::now());
        let share = |who: &str| limits.admit(who, now).unwrap();
        let fill = |who: &str| {
            let held: Vec<Place> = std::iter::from_fn(|| limits.answer(&share(who), 1 << 20).ok()).collect();
            assert_eq!(held.len(), OWN_ANSWERS_MAX >> 20);
            held
        };
        let a = fill("a");
        assert_eq!(limits.answer(&share("a"), 1 << 20).unwrap_err().code, ErrorCode::RateLimited);
        let wait = Duration::from_secs(5);
        let late = limits.answer_within(&share("a"), 1 << 20, wait).await;
        assert_eq!(late.unwrap_err().code, ErrorCode::RateLimited);
        let _b = fill("b");
        assert_eq!(limits.answer(&share("c"), 1 << 20).unwrap_err().code, ErrorCode::Unavailable);
        drop(a);
        assert!(limits.answer(&share("c"), usize::MAX).is_ok(), "the largest fits, alone");
    }

    #[test]
    fn wrong_tokens_are_counted_by_network() {
        let (limits, start) = (Limits::new(10), Instant::now());
        let (bad, good): (IpAddr, IpAddr) = ("2001:db8::1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        for _ in 0..FAILURE_BURST {
            assert!(limits.count_failure(bad, start).is_ok());
        }
        let neighbour = "2001:db8::2".parse().unwrap();
        assert_eq!(limits.count_failure(neighbour, start).unwrap_err().code, ErrorCode::RateLimited);
        assert!(limits.count_failure(good, start).is_ok());
        let later = start + Duration::from_secs(1);
        let heard = (0..FAILURE_BURST).filter(|_| limits.count_failure(bad, later).is_ok()).count();
        // One that set out earlier and comes later earns no other second.
        let _ = limits.count_failure(bad, start);
        assert!(limits.count_failure(bad, later).is_err());
        assert_eq!(heard, FAILURE_RATE as usize);
    }
}
