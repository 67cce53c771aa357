//! A store and a coordinator's life on it, in short words: what every case of the suite is given.
//!
//! Cases see a store only through its port and through [`Home`], so that any store can be held to them.

use std::sync::Arc;

use cis_core::dag::Dag;
use cis_core::error::ErrorCode;
use cis_core::id::{Epoch, ExecutionId, RunKey};
use cis_core::review::ReviewId;
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::{BootTime, Timestamp};
use cis_core::task::TaskStatus;
use cis_store::port::{
    Advance, Advanced, Answer, Claim, Claimed, Ending, Once, Opening, Published, Report, RunRef, Settle,
    Settled, StartRun, StopRun, Store, StoreError, Swept, Worked,
};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::support;

/// Fences that a store under test grants in one epoch: few, so that every case goes from one to the next.
pub(crate) const FENCES: u32 = 5;

/// Where the stores under test live, and how to look into them from outside.
pub(crate) trait Home: Sized {
    type Store: Store;

    /// A new, empty place.
    fn new() -> Self;
    /// Opens the store there; what was acknowledged before is still in it.
    fn open(&self) -> Self::Store;
    /// Waits until the store has let go of the place.
    fn close(&self, store: Self::Store);
    /// A run as readers see it.
    fn look(&self, run: RunKey) -> Sight;
    /// Is there such a run?
    fn knows(&self, run: RunKey) -> bool;
    /// The review ids of a run's tasks that wait for a person.
    fn reviews(&self, run: RunKey) -> Vec<ReviewId>;
    /// Is there anything with this review id?
    fn knows_review(&self, id: ReviewId) -> bool;
    /// Every invariant that does not hold.
    fn violations(&self) -> Vec<String>;
}

/// A run as readers see it.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) status: RunStatus,
    pub(crate) tasks: Vec<TaskSight>,
}

/// A task as readers see it.
#[derive(Debug)]
pub(crate) struct TaskSight {
    pub(crate) execution: ExecutionId,
    pub(crate) status: TaskStatus,
    pub(crate) attempt: u32,
    pub(crate) cause: Option<String>,
    pub(crate) outputs: Option<Value>,
}

/// One store with one coordinator.
pub(crate) struct World<H: Home> {
    pub(crate) home: H,
    store: Option<H::Store>,
    runtime: Runtime,
    pub(crate) epoch: Epoch,
    pub(crate) now: Timestamp,
    runs: u64,
}

/// Runs one case on a new store, and holds what it leaves to every invariant.
pub(crate) fn check<H: Home>(case: impl FnOnce(&mut World<H>)) {
    let home = H::new();
    let (store, runtime) = (home.open(), support::runtime());
    let mut world =
        World { home, store: Some(store), runtime, epoch: Epoch(0), now: Timestamp(1_000_000), runs: 0 };
    world.epoch = world.opening().epoch;
    case(&mut world);
    assert_eq!(world.home.violations(), [""; 0]);
}

impl<H: Home> World<H> {
    /// The store itself, for what has no short word here.
    pub(crate) fn ask<'w, T, F>(&'w self, call: impl FnOnce(&'w H::Store) -> F) -> Answer<T>
    where
        F: Future<Output = Answer<T>>,
    {
        self.runtime.block_on(call(self.store.as_ref().expect("an open store")))
    }

    /// Begins the next coordinator's life.
    pub(crate) fn opening(&mut self) -> Opening {
        let opening =
            self.ask(|store| store.open_epoch(self.now, support::boot(self.now))).expect("an epoch");
        self.epoch = opening.epoch;
        opening
    }

    /// The store goes away and comes back, with a new coordinator.
    pub(crate) fn reopen(&mut self) -> Opening {
        self.reopen_quietly();
        self.opening()
    }

    /// The store goes away and comes back; no coordinator has begun yet.
    pub(crate) fn reopen_quietly(&mut self) {
        self.home.close(self.store.take().expect("an open store"));
        self.store = Some(self.home.open());
    }

    pub(crate) fn publish(&self, dag: &Dag) -> Answer<Published> {
        self.ask(|store| store.publish(support::publish(dag, self.now)))?.plain()
    }

    pub(crate) fn settle(&self, published: &Published, confirm: bool) -> Answer<Settled> {
        let (definition, content_hash) = (published.definition, published.content_hash.clone());
        let request = Settle { definition, content_hash, confirm, by: "bea".into(), now: self.now };
        self.ask(|store| store.settle(request))
    }

    /// Publishes and confirms; answers the definition.
    pub(crate) fn confirmed(&self, dag: &Dag) -> i64 {
        let published = self.publish(dag).expect("published");
        self.settle(&published, true).expect("confirmed");
        published.definition
    }

    /// A request for a run with an id of its own.
    pub(crate) fn request(&mut self, definition: i64) -> StartRun {
        self.runs += 1;
        support::start(definition, support::run_id(self.runs), self.now)
    }

    pub(crate) fn start(&self, request: &StartRun) -> Answer<RunRef> {
        self.ask(|store| store.start_run(request.clone()))?.plain()
    }

    /// Publishes, confirms and starts.
    pub(crate) fn go(&mut self, dag: &Dag) -> RunKey {
        let definition = self.confirmed(dag);
        let request = self.request(definition);
        self.start(&request).expect("a run").key
    }

    pub(crate) fn claim(&self, limit: u32) -> Claim {
        Claim {
            epoch: self.epoch,
            holder: "local".into(),
            limit,
            kinds: vec!["shell", "skill"],
            scopes: None,
            capabilities: Vec::new(),
        }
    }

    pub(crate) fn advance(&self, reports: Vec<Report>, claim: Option<Claim>) -> Answer<Advanced> {
        self.ask(|store| store.advance(Advance { reports, claim, now: self.now }))
    }

    /// Claims up to `limit` tasks of any kind and scope.
    pub(crate) fn take(&self, limit: u32) -> Vec<Arc<Claimed>> {
        self.advance(Vec::new(), Some(self.claim(limit))).expect("a claim").claimed
    }

    /// Claims the one task there must be.
    pub(crate) fn take_one(&self) -> Arc<Claimed> {
        let mut claimed = self.take(100);
        assert_eq!(claimed.len(), 1, "{:?}", names(&claimed));
        claimed.remove(0)
    }

    /// Records how one attempt ended.
    pub(crate) fn end(&self, claim: &Claimed, ending: Ending) -> Advanced {
        self.advance(vec![support::report(claim, ending, self.now)], None).expect("recorded")
    }

    /// Claims everything and lets each attempt end as `ending` says by its task's name, until nothing is claimable.
    pub(crate) fn play(&mut self, ending: impl Fn(&str) -> Ending) {
        loop {
            self.work_off();
            let claimed = self.take(10_000);
            if claimed.is_empty() {
                return;
            }
            let reports = claimed.iter().map(|claim| support::report(claim, ending(name(claim)), self.now));
            self.advance(reports.collect(), None).expect("recorded");
        }
    }

    pub(crate) fn stop(&self, run: RunKey, reason: StopReason) -> RunStatus {
        let request = StopRun { key: None, run, reason, now: self.now };
        self.ask(|store| store.stop_run(request)).and_then(Once::plain).expect("stopped")
    }

    pub(crate) fn work(&self) -> Worked {
        self.ask(|store| store.work(self.now)).expect("worked")
    }

    /// Does large steps to their end; answers the attempts to stop.
    pub(crate) fn work_off(&self) -> usize {
        let mut stops = 0;
        loop {
            let worked = self.work();
            stops += worked.stop.len();
            if !worked.more {
                return stops;
            }
        }
    }

    /// Lets time pass, then does what is due.
    pub(crate) fn sweep_after(&mut self, ms: i64) -> Swept {
        self.now = Timestamp(self.now.0 + ms);
        self.ask(|store| store.sweep(self.epoch, self.now, BootTime(self.now.0))).expect("swept")
    }

    pub(crate) fn look(&self, run: RunKey) -> Sight {
        self.home.look(run)
    }

    /// `running: completed ready pending`: the run, then its tasks in file order.
    pub(crate) fn story(&self, run: RunKey) -> String {
        let sight = self.look(run);
        let tasks: Vec<&str> = sight.tasks.iter().map(|task| task.status.word()).collect();
        format!("{}: {}", sight.status, tasks.join(" "))
    }

    /// How many tasks of a run are in `status`.
    pub(crate) fn count(&self, run: RunKey, status: TaskStatus) -> usize {
        self.look(run).tasks.iter().filter(|task| task.status == status).count()
    }
}

/// The name of a claimed task.
pub(crate) fn name(claim: &Claimed) -> &str {
    claim.task().id.as_str()
}

/// The names of claimed tasks, in the order they were handed out.
pub(crate) fn names(claimed: &[Arc<Claimed>]) -> Vec<&str> {
    claimed.iter().map(|claim| name(claim)).collect()
}

/// The code of a refusal.
pub(crate) fn code<T: std::fmt::Debug>(answer: Answer<T>) -> ErrorCode {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal.code,
        other => panic!("not a refusal: {other:?}"),
    }
}
