//! Where claimers from outside wait for something to do. Whatever is committed is looked at once for all of them, and
//! only those there is something for are woken: five thousand who wait cost a commit no more than one.
//!
//! ```text
//!   wait ──► arrivals ─┐
//!                      ├─► line, oldest first ──► a round: the next waiter, the next offer it can take ──► woken
//!   commit ──► offers ─┘                              └─ nothing: it stays in line
//! ```
//!
//! Waiters only ever touch `arrivals`. The line belongs to the desk, which goes through it on a thread that may work for
//! long, a bounded part at a time.

mod board;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cis_core::id::Scope;
use cis_store::{Offer, Reader};
use tokio::sync::{Notify, oneshot, watch};

use crate::coordinator::Changes;
use board::{Board, Found};

/// Between two looks, so that a storm of commits is not a storm of looks.
const PAUSE: Duration = Duration::from_millis(1);

/// So many offers are read and sorted in about [`PAUSE`]. The desk rests as long as it looked, so that many offers do not
/// keep a core busy.
const OFFERS_PER_PAUSE: usize = 1_000;

/// Comparisons in one part of a round: some milliseconds. Between two parts others have the thread, and a node can stop.
const STEPS_MAX: usize = 1_000_000;

/// Sets of abilities from which on those that are no longer in use are looked for.
const ABLE_SWEEP_MIN: usize = 64;

/// What a claimer can take. Both lists are in order and without repeats, so that the same abilities are equal.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Able {
    pub(crate) scopes: Option<Box<[Scope]>>,
    pub(crate) capabilities: Box<[String]>,
}

impl Able {
    pub(crate) fn new(mut scopes: Option<Vec<Scope>>, mut capabilities: Vec<String>) -> Self {
        if let Some(scopes) = &mut scopes {
            scopes.sort_unstable();
            scopes.dedup();
        }
        capabilities.sort_unstable();
        capabilities.dedup();
        Self { scopes: scopes.map(Vec::into_boxed_slice), capabilities: capabilities.into_boxed_slice() }
    }
}

/// The desk. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Desk {
    arrivals: Arc<Mutex<Vec<Waiting>>>,
    bell: Arc<Notify>,
    known: Arc<Known>,
}

#[derive(Debug)]
struct Waiting {
    able: Arc<Able>,
    wake: oneshot::Sender<()>,
}

/// Abilities that claimers have, each kept once however many have them.
#[derive(Debug, Default)]
struct Known {
    /// Keyed, so that no caller can make sets that collide.
    hasher: RandomState,
    sets: Mutex<Sets>,
}

#[derive(Debug, Default)]
struct Sets {
    by_hash: HashMap<u64, Weak<Able>>,
    /// How many there were, after those that are no longer in use were last removed.
    in_use: usize,
}

impl Known {
    fn share(&self, able: Able) -> Arc<Able> {
        let hash = self.hasher.hash_one(&able);
        let mut sets = lock(&self.sets);
        if let Some(known) = sets.by_hash.get(&hash).and_then(Weak::upgrade)
            && *known == able
        {
            return known;
        }
        if sets.by_hash.len() >= ABLE_SWEEP_MIN.max(2 * sets.in_use) {
            sets.by_hash.retain(|_, able| able.strong_count() > 0);
            sets.in_use = sets.by_hash.len();
        }
        let able = Arc::new(able);
        sets.by_hash.insert(hash, Arc::downgrade(&able));
        able
    }
}

impl Desk {
    /// The same abilities, in memory once for all who have them.
    pub(crate) fn share(&self, able: Able) -> Arc<Able> {
        self.known.share(able)
    }

    /// Waits until there may be something for `able`. It may be gone by the time it is asked for.
    pub(crate) async fn wait(&self, able: Arc<Able>) {
        let (wake, woken) = oneshot::channel();
        lock(&self.arrivals).push(Waiting { able, wake });
        // Something may have come between the last look and now.
        self.bell.notify_one();
        let _ = woken.await;
    }

    /// Wakes those who wait, for as long as the coordinator lives.
    pub(crate) async fn attend(self, mut changes: watch::Receiver<Changes>, reader: Reader) {
        let mut attendant = Attendant { arrivals: self.arrivals, line: Line::default(), reader };
        loop {
            if attendant.line.is_in_round() {
                if changes.has_changed().is_err() {
                    return;
                }
            } else {
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = self.bell.notified() => {}
                }
            }
            let looking = tokio::task::spawn_blocking(move || (attendant.look(), attendant));
            let Ok((pause, same)) = looking.await else { return };
            attendant = same;
            tokio::time::sleep(pause).await;
        }
    }
}

/// The desk's own side of it.
#[derive(Debug)]
struct Attendant {
    arrivals: Arc<Mutex<Vec<Waiting>>>,
    line: Line,
    reader: Reader,
}

impl Attendant {
    /// Goes on with the round, or begins another; answers how long to rest after that.
    fn look(&mut self) -> Duration {
        let mut pause = PAUSE;
        // A round ends with the offers that it began with: with newer ones, those further back in line would be looked at
        // before those who came first.
        if !self.line.is_in_round() {
            let arrivals = std::mem::take(&mut *lock(&self.arrivals));
            self.line.extend(arrivals);
            let waiting = self.line.len();
            if waiting > 0 {
                // What cannot be read now is looked for with the next change.
                let offers = self.reader.offers(waiting).unwrap_or_default();
                pause += PAUSE * u32::try_from(offers.len() / OFFERS_PER_PAUSE).unwrap_or(u32::MAX);
                self.line.begin(offers);
            }
        }
        self.line.go_on(STEPS_MAX);
        pause
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Those who wait, oldest first, and how far the present round has come.
#[derive(Debug, Default)]
struct Line {
    /// Not looked at in this round.
    ahead: VecDeque<Waiting>,
    /// Looked at: there was nothing for them.
    behind: VecDeque<Waiting>,
    board: Option<Board>,
}

impl Line {
    fn is_in_round(&self) -> bool {
        self.board.is_some()
    }

    /// How many wait. Asked between two rounds, when all are ahead.
    fn len(&self) -> u32 {
        u32::try_from(self.ahead.len()).unwrap_or(u32::MAX)
    }

    /// Lets new ones join at the end, and forgets those who gave up.
    fn extend(&mut self, arrivals: Vec<Waiting>) {
        self.ahead.extend(arrivals);
        self.ahead.retain(|one| !one.wake.is_closed());
    }

    /// Begins a round with what is on offer.
    fn begin(&mut self, offers: Vec<Offer>) {
        let most = self.ahead.iter().map(|one| one.able.capabilities.len()).max().unwrap_or(0);
        let board = Board::new(offers, most);
        self.board = (!self.ahead.is_empty() && !board.is_empty()).then_some(board);
    }

    /// Wakes, one waiter after the other, those for whom there is a task left, until the round is over or `steps` are used up.
    /// So no waiter is woken for what one before it can do and goes on waiting for. Answers how many steps are left.
    fn go_on(&mut self, mut steps: usize) -> usize {
        let Some(board) = &mut self.board else { return steps };
        while let Some(one) = self.ahead.pop_front() {
            match board.find(&one.able, &mut steps) {
                Found::Offer(offer) => {
                    // One who gave up leaves it to the next.
                    if one.wake.send(()).is_ok() {
                        board.take(offer);
                    }
                }
                Found::Nothing => self.behind.push_back(one),
                Found::OutOfSteps => {
                    self.ahead.push_front(one);
                    return 0;
                }
            }
        }
        self.ahead = std::mem::take(&mut self.behind);
        self.board = None;
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A waiter, and how it learns that it was woken.
    struct Waiter(oneshot::Receiver<()>);

    impl Waiter {
        fn is_woken(&mut self) -> bool {
            self.0.try_recv().is_ok()
        }
    }

    fn able(scopes: Option<&[&str]>, capabilities: &[&str]) -> Able {
        let scopes = scopes.map(|scopes| scopes.iter().map(|scope| scope.parse().unwrap()).collect());
        Able::new(scopes, capabilities.iter().map(|&can| can.to_owned()).collect())
    }

    fn offer(scope: &str, needs: &[&str], tasks: u32) -> Offer {
        let needs = needs.iter().map(|&need| need.to_owned()).collect();
        Offer { scope: scope.parse().unwrap(), needs, tasks }
    }

    fn join(line: &mut Line, able: &Arc<Able>) -> Waiter {
        let (wake, woken) = oneshot::channel();
        line.extend(vec![Waiting { able: able.clone(), wake }]);
        Waiter(woken)
    }

    /// A whole round; answers how many steps it took.
    fn round(line: &mut Line, offers: Vec<Offer>) -> usize {
        line.begin(offers);
        let left = line.go_on(usize::MAX);
        assert!(!line.is_in_round());
        usize::MAX - left
    }

    fn woken(waiters: &mut [Waiter]) -> Vec<usize> {
        (0..waiters.len()).filter(|&n| waiters[n].is_woken()).collect()
    }

    #[test]
    fn the_first_who_can_is_woken_for_each_task() {
        let (gpu, plain) = (Arc::new(able(None, &["gpu", "x"])), Arc::new(able(None, &[])));
        let here = Arc::new(able(Some(&["project-a"]), &["x"]));
        let mut line = Line::default();
        let mut waiters = [&plain, &gpu, &here, &gpu, &plain].map(|able| join(&mut line, able));
        round(&mut line, vec![offer("global", &["gpu"], 1)]);
        assert_eq!(woken(&mut waiters), [1]);
        round(&mut line, vec![offer("project-a", &["x"], 1), offer("global", &["tpu"], 9)]);
        assert_eq!(woken(&mut waiters), [2]);
        round(&mut line, vec![offer("global", &[], 2), offer("project-a", &[], 0)]);
        assert_eq!(woken(&mut waiters), [0, 3]);
        round(&mut line, vec![offer("global", &[], 2)]);
        assert_eq!(woken(&mut waiters), [4]);
        assert_eq!(line.len(), 0);
    }

    #[test]
    fn equal_waiters_are_compared_with_the_offers_once() {
        let offers =
            || (0..200).map(|n| offer("global", &["x", &format!("need-{n}")], 1)).collect::<Vec<_>>();
        let capabilities: Vec<_> = (0..100).map(|n| format!("can-{n}")).chain(["x".to_owned()]).collect();
        let able = Arc::new(Able::new(None, capabilities));
        let mut line = Line::default();
        let _one = join(&mut line, &able);
        let alone = round(&mut line, offers());
        let _more: Vec<_> = (0..1_000).map(|_| join(&mut line, &able)).collect();
        let crowd = round(&mut line, offers());
        assert!(alone < 1_000 && crowd <= alone + 1_000, "{alone} steps for one, {crowd} for 1,001");
    }

    #[test]
    fn offers_of_other_needs_cost_a_waiter_nothing() {
        let able = Arc::new(able(None, &["x", "y"]));
        let mut line = Line::default();
        let mut waiters = [join(&mut line, &able)];
        // Each is found by the need that the fewest have.
        let mut offers: Vec<_> =
            (0..5_000).map(|n| offer("global", &["x", &format!("need-{n}")], 1)).collect();
        assert!(round(&mut line, offers.clone()) < 100);
        offers.push(offer("global", &["x", "y"], 1));
        assert!(round(&mut line, offers) < 100);
        assert_eq!(woken(&mut waiters), [0]);
    }

    #[test]
    fn a_round_goes_on_where_its_steps_ran_out() {
        // Every waiter must be compared with every offer: the needs are as common as can be, and none has both.
        let names: Vec<_> = (0..20).map(|n| format!("c{n}")).collect();
        let offers: Vec<_> = names
            .iter()
            .enumerate()
            .flat_map(|(n, a)| names[n + 1..].iter().map(move |b| offer("global", &[a, b], 1)))
            .collect();
        let mut line = Line::default();
        let mut waiters: Vec<_> =
            names.iter().map(|name| join(&mut line, &Arc::new(able(None, &[name])))).collect();
        waiters.push(join(&mut line, &Arc::new(able(None, &["c3", "c7"]))));
        waiters.push(join(&mut line, &Arc::new(able(None, &["c3", "c7"]))));
        line.begin(offers);
        let mut parts = 0;
        while line.is_in_round() {
            assert!(parts < 1_000, "each part comes further");
            line.go_on(10);
            parts += 1;
        }
        assert!(parts > 5, "{parts}");
        assert_eq!(woken(&mut waiters), [20], "the first of the two who can");
        assert_eq!(line.len(), 21);
        let order: Vec<_> = line.ahead.iter().map(|one| one.able.capabilities[0].clone()).collect();
        assert_eq!(order[..20], names[..], "in the order they came in");
    }

    #[test]
    fn a_task_left_by_one_who_gave_up_goes_to_the_next() {
        let plain = Arc::new(able(None, &[]));
        let mut line = Line::default();
        let given_up = join(&mut line, &plain);
        let mut next = [join(&mut line, &plain)];
        line.begin(vec![offer("global", &[], 1)]);
        drop(given_up);
        line.go_on(STEPS_MAX);
        assert_eq!(woken(&mut next), [0]);
    }

    #[test]
    fn the_same_abilities_are_in_memory_once() {
        let desk = Desk::default();
        let one = desk.share(able(Some(&["global", "project-a"]), &["x", "y"]));
        let same = desk.share(able(Some(&["project-a", "global", "global"]), &["y", "x", "x"]));
        assert!(Arc::ptr_eq(&one, &same));
        assert!(!Arc::ptr_eq(&one, &desk.share(able(None, &["x", "y"]))));
        for n in 0..100_000 {
            desk.share(able(None, &[&n.to_string()]));
        }
        assert!(
            lock(&desk.known.sets).by_hash.len() < 10 * ABLE_SWEEP_MIN,
            "what is not in use is forgotten"
        );
        assert!(Arc::ptr_eq(&one, &desk.share(able(Some(&["global", "project-a"]), &["x", "y"]))));
    }

    #[tokio::test]
    async fn joining_takes_only_the_lock_of_the_arrivals() {
        let desk = Desk::default();
        let plain = desk.share(able(None, &[]));
        let mut waiting = Box::pin(desk.wait(plain));
        assert!(poll_once(&mut waiting).is_pending());
        let mut line = Line::default();
        line.extend(std::mem::take(&mut *lock(&desk.arrivals)));
        round(&mut line, vec![offer("global", &[], 1)]);
        waiting.await;
    }

    fn poll_once<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::Pin::new(future).poll(&mut context)
    }
}
