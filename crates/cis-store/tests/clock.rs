//! Somebody sets the clock on the wall: whatever is due later is due as much later as before.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cis_core::dag::{Approval, Dag, Kind, Task};
use cis_core::error::ErrorCode;
use cis_core::id::Epoch;
use cis_core::notice::{Occasion, Wanted, Way};
use cis_core::retry::Failure;
use cis_core::source::{BootTime, Clock, Millis, Timestamp};
use cis_store::port::{
    Advance, Boot, Claim, ClaimWork, CoordinatorStore as _, Decide, IdempotencyKey, Publish, Settle,
    StoreError, Swept,
};
use cis_store::{Durability, Reader, SqliteStore, check};
use rusqlite::Connection;
use serde_json::json;
use support::{dag, failed, publish, question, report, retry, run_id, start, task, with};

const HOUR_MS: i64 = 60 * 60 * 1_000;
const LIMIT: Millis = Millis(600_000);

/// Everything that is due later, by its name.
const DEADLINES: &str = "
    SELECT 'the time of a claimed task', deadline FROM leases
    UNION ALL SELECT 'a backoff', not_before FROM task_executions WHERE hold = 2
    UNION ALL SELECT 'a wait for somebody', queue_deadline FROM task_executions
              WHERE status = 'ready' AND hold = 0 AND queue_deadline IS NOT NULL
    UNION ALL SELECT 'a question', answer_deadline FROM task_executions WHERE status = 'waiting'
    UNION ALL SELECT 'a run', deadline FROM dag_runs WHERE deadline IS NOT NULL
    UNION ALL SELECT 'a request', expires_at FROM dag_definitions WHERE status = 'pending'
    UNION ALL SELECT 'a notice', min(due_at) FROM outbox
    UNION ALL SELECT 'what is kept of an answer', created_at + (SELECT moved FROM clock) FROM idempotency_keys";

/// A clock that can be set.
#[derive(Debug)]
struct Wall {
    now: AtomicI64,
    since_boot: AtomicI64,
}

impl Clock for Wall {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::Relaxed))
    }

    fn since_boot(&self) -> BootTime {
        BootTime(self.since_boot.load(Ordering::Relaxed))
    }
}

struct Bed {
    wall: Arc<Wall>,
    store: SqliteStore,
    epoch: Epoch,
    runtime: tokio::runtime::Runtime,
    file: PathBuf,
    _dir: tempfile::TempDir,
}

fn open(file: &std::path::Path, wall: &Arc<Wall>) -> SqliteStore {
    let store = SqliteStore::open(file, Durability::Process).unwrap().by_clock(wall.clone());
    store.keep_notices(Wanted { on: vec![Occasion::Waiting], by: vec![Way::Command] });
    store
}

impl Bed {
    /// A store in which one of everything is due later.
    fn new() -> Self {
        let dir = support::dir();
        let file = dir.path().join("dag.db");
        let wall = Arc::new(Wall { now: (100 * HOUR_MS).into(), since_boot: HOUR_MS.into() });
        let (store, runtime) = (open(&file, &wall), support::runtime());
        let mut bed = Self { wall, store, epoch: Epoch(0), runtime, file, _dir: dir };
        bed.begin("boot");
        bed.fill();
        bed
    }

    fn now(&self) -> Timestamp {
        self.wall.now()
    }

    fn begin(&mut self, boot: &str) {
        let boot = Boot { id: boot.into(), now: self.wall.since_boot() };
        self.epoch = self.runtime.block_on(self.store.open_epoch(self.now(), boot)).unwrap().epoch;
    }

    fn fill(&self) {
        let external = |id| Task { kind: Kind::External { input: Box::new(json!({})) }, ..task(id, &[]) };
        let again = with(task("again", &[]), |more| more.retry = Some(retry(1, LIMIT.0)));
        let asked = with(question("asked", &[], Approval::default()), |more| more.timeout = Some(LIMIT));
        let mut timed =
            dag("timed", vec![again, with(external("held"), |more| more.timeout = Some(LIMIT)), asked]);
        timed.timeout = Some(Millis(2 * LIMIT.0));
        let waits = dag("waits", vec![with(external("waits"), |more| more.queue_timeout = Some(LIMIT))]);
        self.run(&timed, 1);
        let claimed = self.claim();
        let failed = report(&claimed, failed(Failure::Exit(1)), self.now());
        self.advance(vec![failed], None);
        self.run(&waits, 2);
        let request = Publish {
            expires_at: Some(self.now().after(LIMIT)),
            key: Some(IdempotencyKey { caller: "ann".into(), key: "k".into(), request_hash: "h".into() }),
            ..publish(&dag("asks", vec![task("a", &[])]), self.now())
        };
        self.runtime.block_on(self.store.publish(request)).unwrap();
    }

    fn run(&self, dag: &Dag, n: u64) {
        let now = self.now();
        self.runtime.block_on(async {
            let published = self.store.publish(publish(dag, now)).await.unwrap().plain().unwrap();
            let (definition, content_hash) = (published.definition, published.content_hash);
            let settle = Settle { definition, content_hash, confirm: true, by: "bea".into(), now };
            self.store.settle(settle).await.unwrap();
            self.store.start_run(start(definition, run_id(n), now)).await.unwrap().plain().unwrap();
            while self.store.work(now).await.unwrap().more {}
        });
    }

    fn advance(
        &self,
        reports: Vec<cis_store::port::Report>,
        claim: Option<Claim>,
    ) -> Vec<Arc<cis_store::port::Claimed>> {
        let request = Advance { reports, claim, now: self.now() };
        self.runtime.block_on(self.store.advance(request)).unwrap().claimed
    }

    /// Claims the one task for this machine, and the one for somebody outside.
    fn claim(&self) -> Arc<cis_store::port::Claimed> {
        let (holder, kinds) = ("local".to_owned(), vec!["shell"]);
        let (scopes, capabilities) = (None, Vec::new());
        let claim = Claim { epoch: self.epoch, holder, limit: 9, kinds, scopes, capabilities };
        let mut claimed = self.advance(vec![], Some(claim));
        let work = ClaimWork {
            claim_id: None,
            identity: "worker".into(),
            worker: "worker".into(),
            limit: 9,
            scopes: None,
            capabilities: Vec::new(),
            term: Millis(10 * LIMIT.0),
            now: self.now(),
            since_boot: self.wall.since_boot(),
        };
        assert_eq!(self.runtime.block_on(self.store.claim_work(work)).unwrap().len(), 1);
        claimed.remove(0)
    }

    /// How far off everything is that is due later.
    fn ahead(&self) -> Vec<(String, i64)> {
        let conn = Connection::open(&self.file).unwrap();
        let mut statement = conn.prepare(DEADLINES).unwrap();
        let rows =
            statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? - self.now().0))).unwrap();
        rows.map(Result::unwrap).collect()
    }

    fn sweep(&self) -> Swept {
        let (now, since_boot) = (self.now(), self.wall.since_boot());
        self.runtime.block_on(self.store.sweep(self.epoch, now, since_boot)).unwrap()
    }

    fn set_clock(&self, by: i64) {
        self.wall.now.fetch_add(by, Ordering::Relaxed);
    }

    fn pass(&self, ms: i64) {
        self.set_clock(ms);
        self.wall.since_boot.fetch_add(ms, Ordering::Relaxed);
    }

    fn reopen(self) -> Self {
        let Self { wall, store, epoch, runtime, file, _dir } = self;
        store.close();
        Self { store: open(&file, &wall), wall, epoch, runtime, file, _dir }
    }

    /// Everything comes due in its time, and no sooner.
    fn comes_due(&self) {
        let limit = LIMIT.0.cast_signed();
        self.pass(limit - 1);
        self.sweep();
        assert_eq!(self.ahead().len(), 8);
        self.pass(1);
        self.sweep();
        let left: Vec<String> = self.ahead().into_iter().map(|(what, _)| what).collect();
        assert_eq!(left, ["a run", "a notice", "what is kept of an answer"]);
        self.pass(limit);
        assert!(self.sweep().more_work);
        while self.runtime.block_on(self.store.work(self.now())).unwrap().more {}
        self.pass(24 * HOUR_MS);
        self.sweep();
        let left: Vec<String> = self.ahead().into_iter().map(|(what, _)| what).collect();
        assert_eq!(left, ["a notice"]);
        assert_eq!(check::violations(&Reader::open(&self.file).unwrap()).unwrap(), [""; 0]);
    }
}

#[test]
fn setting_the_clock_brings_nothing_nearer() {
    for by in [-6 * HOUR_MS, -2_000, 2_000, 6 * HOUR_MS] {
        let bed = Bed::new();
        let before = bed.ahead();
        assert_eq!(before.len(), 8, "{before:?}");
        bed.set_clock(by);
        bed.sweep();
        assert_eq!(bed.ahead(), before);
        bed.comes_due();
    }
}

#[test]
fn nor_does_setting_it_while_nobody_coordinates() {
    for by in [-6 * HOUR_MS, 6 * HOUR_MS] {
        let bed = Bed::new();
        let before = bed.ahead();
        let mut bed = bed.reopen();
        bed.set_clock(by);
        bed.begin("boot");
        assert_eq!(bed.ahead(), before);
        bed.comes_due();
    }
}

#[test]
fn while_the_machine_is_off_the_wall_tells_the_time() {
    let bed = Bed::new();
    let before = bed.ahead();
    let mut bed = bed.reopen();
    bed.wall.since_boot.store(1_000, Ordering::Relaxed);
    bed.set_clock(5_000);
    bed.begin("another boot");
    let sooner: Vec<(String, i64)> = before.into_iter().map(|(what, ms)| (what, ms - 5_000)).collect();
    assert_eq!(bed.ahead(), sooner);
    // From then on it is this boot's clock that counts.
    bed.set_clock(HOUR_MS);
    bed.sweep();
    assert_eq!(bed.ahead(), sooner);
}

#[test]
fn a_time_that_was_read_before_the_clock_was_set_calls_nothing_overdue() {
    let bed = Bed::new();
    bed.set_clock(6 * HOUR_MS);
    bed.sweep();
    let (before, stale) = (bed.ahead(), bed.now());
    bed.set_clock(-6 * HOUR_MS);
    let late = bed.store.sweep(bed.epoch, stale, bed.wall.since_boot());
    bed.runtime.block_on(late).unwrap();
    bed.sweep();
    assert_eq!(bed.ahead(), before);
    bed.comes_due();
}

#[test]
fn an_operation_that_is_refused_leaves_the_deadlines_to_the_next() {
    let bed = Bed::new();
    let before = bed.ahead();
    bed.set_clock(HOUR_MS);
    let unknown = Decide {
        key: None,
        scope: cis_core::id::Scope::global(),
        dag_id: "unknown".parse().unwrap(),
        content_hash: None,
        review: None,
        confirm: true,
        note: None,
        by: "bea".into(),
        self_confirm: false,
        run_id: run_id(9),
        traceparent: None,
        now: bed.now(),
    };
    let refused = bed.runtime.block_on(bed.store.decide(unknown));
    assert!(matches!(refused, Err(StoreError::Refused(why)) if why.code == ErrorCode::NotFound));
    bed.sweep();
    assert_eq!(bed.ahead(), before);
}
