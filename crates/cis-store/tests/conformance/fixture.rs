//! A store and a coordinator's life on it, in short words: what every case of the suite is given.
//!
//! Cases see a store only through its operations and through [`Home`], as readers do.

use std::sync::Arc;

use cis_core::dag::Dag;
use cis_core::error::ErrorCode;
use cis_core::id::{Epoch, RunKey};
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::{BootTime, Timestamp};
use cis_core::task::TaskStatus;
use cis_store::SqliteStore;
use cis_store::port::{
    Advance, Advanced, Answer, Claim, Claimed, CoordinatorStore as _, Ending, Once, Opening, Published,
    Report, RunRef, Settle, Settled, StartRun, StopRun, StoreError, Swept, Worked,
};
use tokio::runtime::Runtime;

use crate::home::{Home, Sight};
use crate::support;

/// One store with one coordinator.
pub(crate) struct World {
    pub(crate) home: Home,
    store: Option<SqliteStore>,
    runtime: Runtime,
    pub(crate) epoch: Epoch,
    pub(crate) now: Timestamp,
    runs: u64,
}

/// Runs one case on a new store, and holds what it leaves to every invariant.
pub(crate) fn check(case: impl FnOnce(&mut World)) {
    let home = Home::new();
    let (store, runtime) = (home.open(), support::runtime());
    let mut world =
        World { home, store: Some(store), runtime, epoch: Epoch(0), now: Timestamp(1_000_000), runs: 0 };
    world.epoch = world.opening().epoch;
    case(&mut world);
    assert_eq!(world.home.violations(), [""; 0]);
}

impl World {
    /// The store itself, for what has no short word here.
    pub(crate) fn ask<'w, T, F>(&'w self, call: impl FnOnce(&'w SqliteStore) -> F) -> Answer<T>
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
        self.store.take().expect("an open store").close();
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
        let request = StopRun { key: None, run, reason, by: None, now: self.now };
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
