//! Many callers at once on one store, and onlookers meanwhile: refusals stay with whom they are for, and every
//! snapshot anybody takes adds up.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use cis_core::dag::{Dag, Policy};
use cis_core::error::ErrorCode;
use cis_core::id::{Epoch, Fence, RunKey};
use cis_core::retry::Failure;
use cis_core::run::StopReason;
use cis_core::source::Timestamp;
use cis_store::port::{
    Advance, Answer, Claim, Claimed, CoordinatorStore as _, Ending, Once, Publish, Published, Recorded,
    RevisionStatus, RunRef, Settle, StopRun, StoreError,
};
use cis_store::{Durability, Reader, SqliteStore, check};
use support::{dag, report, retry, task, with};

const CALLERS: usize = 32;
const ROUNDS: usize = 6;
const ONLOOKERS: usize = 2;

const NOW: Timestamp = Timestamp(1_000_000);

/// A DAG with some of everything: a fan, a window, retries, skips.
fn some_dag(name: &str, variant: usize) -> Dag {
    let flaky = with(task("flaky", &[0]), |more| more.retry = Some(retry(1, 0)));
    let mut dag = dag(
        name,
        vec![task("first", &[]), flaky, task("left", &[0]), task("right", &[0]), task("last", &[1, 2, 3])],
    );
    dag.max_parallel = variant.is_multiple_of(2).then_some(2);
    dag.policy = if variant.is_multiple_of(3) { Policy::FirstSuccess } else { Policy::AllSuccess };
    dag
}

fn cancel(run: RunKey) -> StopRun {
    StopRun { key: None, run, reason: StopReason::Cancel, by: None, now: NOW }
}

/// Looks at snapshots until told to stop; answers how many it saw.
fn onlooker(file: PathBuf, enough: Arc<AtomicBool>) -> JoinHandle<usize> {
    thread::spawn(move || {
        let reader = Reader::open(&file).expect("a reader");
        let mut seen = 0;
        while !enough.load(Ordering::Relaxed) || seen == 0 {
            assert_eq!(check::violations(&reader).expect("a check"), [""; 0]);
            seen += 1;
        }
        seen
    })
}

#[derive(Clone)]
struct Caller {
    store: SqliteStore,
    epoch: Epoch,
    number: usize,
    /// Reports recorded by anybody.
    recorded: Arc<AtomicUsize>,
}

impl Caller {
    async fn live(self) {
        for round in 0..ROUNDS {
            let run = self.begin(round).await;
            self.be_refused(round).await;
            if (self.number + round).is_multiple_of(5) {
                self.store.stop_run(cancel(run.key)).await.expect("stopped");
            }
            self.take_part(round).await;
        }
    }

    /// Publishes something of its own, confirms it, starts it; asks for each twice.
    async fn begin(&self, round: usize) -> RunRef {
        let dag = some_dag(&format!("dag-{}-{round}", self.number), self.number);
        let publish = support::publish(&dag, NOW);
        let (one, two) = tokio::join!(self.store.publish(publish.clone()), self.store.publish(publish));
        let plain = |once: Answer<Once<Published>>| once.and_then(Once::plain).expect("published");
        let (one, two) = (plain(one), plain(two));
        assert!(one.created != two.created && one.definition == two.definition);
        let settle = Settle {
            definition: one.definition,
            content_hash: one.content_hash,
            confirm: true,
            by: "bea".into(),
            now: NOW,
        };
        let settled = self.store.settle(settle).await.expect("confirmed");
        assert_eq!(settled.status, RevisionStatus::Confirmed);
        let id = support::run_id((self.number * ROUNDS + round + 1) as u64);
        let start = support::start(one.definition, id, NOW);
        let (one, two) = tokio::join!(self.store.start_run(start.clone()), self.store.start_run(start));
        let plain = |once: Answer<Once<RunRef>>| once.and_then(Once::plain).expect("a run");
        let (one, two) = (plain(one), plain(two));
        assert_eq!((one.key, one.number), (two.key, 1));
        one
    }

    /// Asks for what must not be, in the same batches as everybody's work.
    async fn be_refused(&self, round: usize) {
        let other = some_dag(&format!("dag-{}-{round}", self.number), self.number + 1);
        let taken = self.store.publish(support::publish(&other, NOW));
        let missing = self.store.stop_run(cancel(RunKey(-1)));
        let past = Claim { epoch: Epoch(self.epoch.0 - 1), ..self.claim() };
        let past = self.store.advance(Advance { reports: Vec::new(), claim: Some(past), now: NOW });
        // No refusal at all, but a constraint of the database.
        let broken =
            Publish { content_hash: "short".into(), ..support::publish(&dag("broken", vec![]), NOW) };
        let broken = self.store.publish(broken);
        let (taken, missing, past, broken) = tokio::join!(taken, missing, past, broken);
        assert_eq!(code(taken), ErrorCode::ContentConflict);
        assert_eq!(code(missing), ErrorCode::NotFound);
        assert_eq!(code(past), ErrorCode::LeaseExpired);
        assert!(matches!(broken, Err(StoreError::Database(_))), "{broken:?}");
    }

    fn claim(&self) -> Claim {
        let holder = format!("caller-{}", self.number);
        Claim {
            epoch: self.epoch,
            holder,
            limit: 3,
            kinds: vec!["shell"],
            scopes: None,
            capabilities: Vec::new(),
        }
    }

    /// Claims what there is, whoever started it, and ends it: some of it twice, some of it with a stale fence.
    async fn take_part(&self, round: usize) {
        let advance = Advance { reports: Vec::new(), claim: Some(self.claim()), now: NOW };
        let mut held = self.store.advance(advance).await.expect("a claim").claimed;
        for turn in 0..3 {
            let reports = held.iter().map(|claim| report(claim, ending(claim, turn + round), NOW));
            let reports: Vec<_> = reports.collect();
            let mut stale = reports.clone();
            stale.iter_mut().for_each(|report| report.fence = Fence(report.fence.0 + (1 << 20)));
            let claim = (turn < 2).then(|| self.claim());
            let stale = self.store.advance(Advance { reports: stale, claim: None, now: NOW });
            let first = self.store.advance(Advance { reports: reports.clone(), claim, now: NOW });
            let second = self.store.advance(Advance { reports, claim: None, now: NOW });
            let (stale, first, second, worked) = tokio::join!(stale, first, second, self.store.work(NOW));
            worked.expect("worked");
            let first = first.expect("recorded");
            assert!(stale.expect("an answer").recorded.iter().all(|recorded| *recorded == Recorded::Stale));
            assert!(first.recorded.iter().all(|recorded| matches!(recorded, Recorded::Now(_))));
            assert!(second.expect("an answer").recorded.iter().all(|recorded| *recorded == Recorded::Stale));
            self.recorded.fetch_add(first.recorded.len(), Ordering::Relaxed);
            held = first.claimed;
        }
        assert!(held.is_empty());
    }
}

fn ending(claim: &Claimed, chance: usize) -> Ending {
    let failed = (claim.execution.0 as usize + chance).is_multiple_of(4);
    if failed { support::failed(Failure::Exit(1)) } else { Ending::Succeeded }
}

fn code<T: std::fmt::Debug>(answer: Answer<T>) -> ErrorCode {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal.code,
        other => panic!("not a refusal: {other:?}"),
    }
}

/// Ends everything that is left.
async fn finish(caller: &Caller) {
    loop {
        while caller.store.work(NOW).await.expect("worked").more {}
        let claim = Claim { limit: 10_000, ..caller.claim() };
        let advance = Advance { reports: Vec::new(), claim: Some(claim), now: NOW };
        let claimed = caller.store.advance(advance).await.expect("a claim").claimed;
        if claimed.is_empty() {
            return;
        }
        let reports = claimed.iter().map(|claim| report(claim, Ending::Succeeded, NOW)).collect();
        caller.store.advance(Advance { reports, claim: None, now: NOW }).await.expect("recorded");
    }
}

#[test]
fn many_callers_and_onlookers() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    let store = SqliteStore::open(&file, Durability::Process).expect("a store");
    let enough = Arc::new(AtomicBool::new(false));
    let onlookers: Vec<_> = (0..ONLOOKERS).map(|_| onlooker(file.clone(), enough.clone())).collect();
    let recorded = Arc::new(AtomicUsize::new(0));
    support::runtime().block_on(async {
        let epoch = store.open_epoch(NOW, support::boot(NOW)).await.expect("an epoch").epoch;
        let caller = |number| Caller { store: store.clone(), epoch, number, recorded: recorded.clone() };
        let callers: Vec<_> = (0..CALLERS).map(|number| tokio::spawn(caller(number).live())).collect();
        for caller in callers {
            caller.await.expect("nobody failed");
        }
        finish(&caller(0)).await;
    });
    store.close();
    enough.store(true, Ordering::Relaxed);
    for onlooker in onlookers {
        assert!(onlooker.join().expect("every snapshot added up") > 0);
    }
    assert!(recorded.load(Ordering::Relaxed) > CALLERS * ROUNDS);
    all_over(&file);
}

fn all_over(file: &Path) {
    let reader = Reader::open(file).expect("a reader");
    assert_eq!(check::violations(&reader).expect("a check"), [""; 0]);
    let runs = reader.runs(None, u32::MAX).expect("runs");
    assert_eq!(runs.len(), CALLERS * ROUNDS);
    for run in runs {
        assert!(run.status.is_terminal() && run.left == 0, "{} is {}", run.label(), run.status);
    }
}

/// Operations that wait together are committed together: far fewer commits than operations.
#[test]
fn waiting_operations_share_a_commit() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    let store = SqliteStore::open(&file, Durability::Process).expect("a store");
    // While somebody else holds the file, everything asked of the store piles up.
    let blocker = rusqlite::Connection::open(&file).expect("a blocker");
    blocker.execute_batch("BEGIN IMMEDIATE").expect("the turn to write");
    support::runtime().block_on(async {
        let publish = |number: usize| {
            let (store, dag) = (store.clone(), some_dag(&format!("d{number}"), number));
            tokio::spawn(async move { store.publish(support::publish(&dag, NOW)).await })
        };
        let waiting: Vec<_> = (0..CALLERS).map(publish).collect();
        // Each has been asked once every task has had its turn.
        for _ in 0..CALLERS {
            tokio::task::yield_now().await;
        }
        let before = data_version(&blocker);
        blocker.execute_batch("COMMIT").expect("the turn given back");
        let mut commits = 0;
        let mut last = before;
        for publish in waiting {
            publish.await.expect("no panic").expect("published");
            let now = data_version(&blocker);
            commits += usize::from(now != last);
            last = now;
        }
        assert!((1..CALLERS / 2).contains(&commits), "{commits} commits seen for {CALLERS} operations");
    });
    store.close();
}

#[test]
fn what_is_asked_while_somebody_keeps_the_log_long_is_gathered() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    let store = SqliteStore::open(&file, Durability::Process).expect("a store").here();
    let commits = |from: usize| {
        let before = store.written().commits;
        let runtime = support::runtime();
        runtime.block_on(async {
            let publish = |number: usize| {
                let (store, dag) = (store.clone(), some_dag(&format!("d{number}"), number));
                tokio::spawn(async move { store.publish(support::publish(&dag, NOW)).await })
            };
            for publish in (from..from + CALLERS).map(publish).collect::<Vec<_>>() {
                publish.await.expect("no panic").expect("published");
            }
        });
        usize::try_from(store.written().commits - before).expect("a count")
    };
    // Whoever writes on its own thread commits each by itself.
    assert_eq!(commits(0), CALLERS);
    let reader = rusqlite::Connection::open(&file).expect("a reader");
    reader.execute_batch("BEGIN; SELECT count(*) FROM events").expect("a snapshot");
    let publish_long = |name: &str, mib: usize| {
        let mut long = dag(name, vec![task("a", &[])]);
        long.description = Some("x".repeat(mib << 20));
        support::runtime().block_on(store.publish(support::publish(&long, NOW))).expect("published");
    };
    publish_long("long", 33);
    let gathered = commits(100);
    assert!(gathered < CALLERS / 2, "{gathered} commits for {CALLERS} operations");
    reader.execute_batch("COMMIT").expect("the snapshot given back");
    // What comes next is written behind the long log, which is folded back then. That takes a moment.
    publish_long("less-long", 5);
    assert!((2..100).any(|hundred| commits(100 * hundred) == CALLERS), "it is still long");
    store.close();
}

/// Changes with every commit of another connection.
fn data_version(conn: &rusqlite::Connection) -> i64 {
    conn.query_row("PRAGMA data_version", [], |row| row.get(0)).expect("a version")
}
