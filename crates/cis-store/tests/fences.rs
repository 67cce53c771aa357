//! Fences across versions and lives: stores that counted them otherwise go on above, or are numbered anew.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cis_core::dag::{Kind, Task};
use cis_core::error::ErrorCode;
use cis_core::id::{Epoch, ExecutionId, Fence};
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_core::task::TaskStatus;
use cis_store::port::{
    Advance, Answer, Boot, Claim, ClaimWork, Claimed, Conclude, CoordinatorStore as _, Ending, Held, Holding,
    Opening, Progress, Recorded, Settle, StoreError,
};
use cis_store::{Chunks, Copy, Durability, RESTORE_LEAP, Reader, SqliteStore, check, converted_epoch};
use rusqlite::Connection;
use serde_json::{Value, json};
use support::{dag, publish, report, start, task};
use tokio::runtime::Runtime;

const NOW: Timestamp = Timestamp(1_000_000);

/// Fences below this are exact as doubles.
const EXACT: i64 = 1 << 53;

/// Bits of the count before it was shortened.
const OLD_BITS: i64 = 32;

/// A store with a coordinator.
struct Bed {
    store: SqliteStore,
    life: Epoch,
    opening: Opening,
    runtime: Runtime,
    file: PathBuf,
}

impl Bed {
    fn open(file: &Path) -> Self {
        Self::open_with(file, Chunks::default())
    }

    fn open_with(file: &Path, chunks: Chunks) -> Self {
        let store = SqliteStore::open_in_chunks(file, Durability::Process, chunks).unwrap();
        let runtime = support::runtime();
        let opening = runtime.block_on(store.open_epoch(NOW, support::boot(NOW))).unwrap();
        Self { store, life: opening.epoch, opening, runtime, file: file.to_owned() }
    }

    fn go(&self, tasks: Vec<Task>) {
        let dag = dag("d", tasks);
        self.runtime.block_on(async {
            let published = self.store.publish(publish(&dag, NOW)).await.unwrap().plain().unwrap();
            let (definition, content_hash) = (published.definition, published.content_hash);
            let settle = Settle { definition, content_hash, confirm: true, by: "bea".into(), now: NOW };
            self.store.settle(settle).await.unwrap();
            self.store.start_run(start(definition, support::run_id(1), NOW)).await.unwrap().plain().unwrap();
        });
    }

    fn take(&self, limit: u32) -> Answer<Vec<Arc<Claimed>>> {
        let (epoch, holder, kinds) = (self.life, "local".into(), vec!["shell"]);
        let claim = Some(Claim { epoch, holder, limit, kinds, scopes: None, capabilities: Vec::new() });
        let advanced =
            self.runtime.block_on(self.store.advance(Advance { reports: Vec::new(), claim, now: NOW }))?;
        Ok(advanced.claimed)
    }

    fn end(&self, claim: &Claimed) -> Recorded {
        let reports = vec![report(claim, Ending::Succeeded, NOW)];
        let advance = Advance { reports, claim: None, now: NOW };
        self.runtime.block_on(self.store.advance(advance)).unwrap().recorded[0]
    }

    fn hold(&self, name: &str, limit: u32) -> Vec<Held> {
        let request = ClaimWork {
            claim_id: Some(name.into()),
            identity: "ann".into(),
            worker: "ann".into(),
            limit,
            scopes: None,
            capabilities: Vec::new(),
            term: Millis(60_000),
            now: NOW,
            since_boot: BootTime(NOW.0),
        };
        self.runtime.block_on(self.store.claim_work(request)).unwrap()
    }

    fn note(&self, held: &Held) {
        let said = Progress { percent: None, note: Some("half way".into()) };
        let holding = holding(held.claim.execution, held.claim.fence);
        self.runtime.block_on(self.store.note_progress(holding, said)).unwrap();
    }

    fn complete(&self, execution: ExecutionId, fence: Fence) -> Answer<TaskStatus> {
        self.conclude(execution, fence, Ending::Succeeded)
    }

    fn conclude(&self, execution: ExecutionId, fence: Fence, ending: Ending) -> Answer<TaskStatus> {
        let request = Conclude {
            key: None,
            holding: holding(execution, fence),
            ending,
            exit_code: None,
            error: String::new(),
            outputs: None,
            output: String::new(),
            log_bytes: 0,
            random: 0,
        };
        let concluded = self.runtime.block_on(self.store.conclude(request))?.plain()?;
        Ok(concluded.status)
    }

    fn close(self) {
        self.store.close();
        let reader = Reader::open(&self.file).unwrap();
        assert_eq!(check::violations(&reader).unwrap(), [""; 0]);
    }
}

fn holding(execution: ExecutionId, fence: Fence) -> Holding {
    let (identity, scopes) = ("ann".into(), None);
    Holding { execution, fence, identity, scopes, now: NOW, since_boot: BootTime(NOW.0) }
}

fn external(id: &str) -> Task {
    Task { kind: Kind::External { input: Box::new(json!({})) }, ..task(id, &[]) }
}

/// What `work` does in a store of the last version that counted fences otherwise, in its `epoch`th life.
fn old_store<T>(file: &Path, epoch: i64, work: impl FnOnce(&Bed) -> T) -> T {
    let bed = Bed::open(file);
    let done = work(&bed);
    bed.close();
    age(file, epoch);
    done
}

/// The fence that `age` makes of one that was granted in the first life.
fn aged(fence: Fence, epoch: i64) -> Fence {
    Fence((epoch << OLD_BITS) | (fence.0 & i64::from(Fence::COUNT_MAX)))
}

/// Makes a store of the last version that counted fences otherwise of one that has had one life.
fn age(file: &Path, epoch: i64) {
    support::earlier::written_by(12, file);
    let conn = Connection::open(file).unwrap();
    let old = format!("(({epoch} << {OLD_BITS}) | (fence & {}))", Fence::COUNT_MAX);
    for table in ["task_executions", "leases", "notes"] {
        conn.execute(&format!("UPDATE {table} SET fence = {old} WHERE fence IS NOT NULL"), []).unwrap();
    }
    let answers: Vec<(String, String)> = {
        let mut statement = conn.prepare("SELECT key, answer FROM idempotency_keys").unwrap();
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    for (key, answer) in answers {
        let mut pairs: Vec<(i64, i64)> = serde_json::from_str(&answer).unwrap();
        pairs.iter_mut().for_each(|(_, fence)| *fence = aged(Fence(*fence), epoch).0);
        let answer = serde_json::to_string(&pairs).unwrap();
        conn.execute("UPDATE idempotency_keys SET answer = ?2 WHERE key = ?1", [key, answer]).unwrap();
    }
    conn.execute("UPDATE counters SET value = ?1 WHERE name = 'coordinator_epoch'", [epoch]).unwrap();
}

fn code<T: std::fmt::Debug>(answer: Answer<T>) -> ErrorCode {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal.code,
        other => panic!("not refused: {other:?}"),
    }
}

fn fences(file: &Path, table: &str) -> Vec<i64> {
    let conn = Connection::open(file).unwrap();
    let sql = format!("SELECT fence FROM {table} WHERE fence IS NOT NULL ORDER BY fence");
    conn.prepare(&sql).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn store_below_2_to_the_53_goes_on_above_its_fences_with_its_claims() {
    for epoch in [1, 700, RESTORE_LEAP + 3] {
        let dir = support::dir();
        let file = dir.path().join("dag.db");
        let (own, held) = old_store(&file, epoch, |bed| {
            bed.go(vec![task("own", &[]), external("held"), external("next"), task("later", &[])]);
            (bed.take(1).unwrap().remove(0), bed.hold("one", 1).remove(0))
        });
        let bed = Bed::open(&file);
        assert_eq!(
            fences(&file, "task_executions"),
            [aged(own.fence, epoch).0, aged(held.claim.fence, epoch).0]
        );
        let next = bed.hold("two", 1).remove(0);
        assert!(next.claim.fence.0 >= (epoch + 1) << OLD_BITS && next.claim.fence.0 < EXACT, "{epoch}");
        assert!(bed.take(1).unwrap()[0].fence > next.claim.fence);
        // Who held something holds it.
        assert_eq!(bed.hold("one", 1)[0].claim.fence, aged(held.claim.fence, epoch));
        assert_eq!(
            bed.complete(held.claim.execution, aged(held.claim.fence, epoch)).unwrap(),
            TaskStatus::Completed
        );
        assert_eq!(bed.opening.live[0].fence, aged(own.fence, epoch));
        assert_eq!(bed.end(&bed.opening.live[0].claim), Recorded::Now(TaskStatus::Completed));
        bed.close();
    }
}

#[test]
fn store_past_2_to_the_53_is_numbered_anew_after_its_leases_ended() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    let epoch = 2 * RESTORE_LEAP + 5;
    let (own, held, done) = old_store(&file, epoch, |bed| {
        bed.go(vec![external("held"), external("done"), task("own", &[]), task("ended", &[])]);
        let held = bed.hold("one", 1).remove(0);
        bed.note(&held);
        let done = bed.hold("two", 1).remove(0);
        bed.complete(done.claim.execution, done.claim.fence).unwrap();
        let mut own = bed.take(2).unwrap();
        bed.end(&own.pop().unwrap());
        (own.remove(0), held, done)
    });
    assert!(fences(&file, "task_executions").iter().all(|fence| *fence >= EXACT));
    let bed = Bed::open(&file);
    assert!(bed.life > Epoch(epoch), "the runner serves no lower one");
    let reader = Reader::open(&file).unwrap();
    assert_eq!(check::violations(&reader).unwrap(), [""; 0]);
    // What the runner has keeps its number, and can end.
    let kept = aged(own.fence, epoch);
    assert_eq!(bed.opening.live.iter().map(|live| live.fence).collect::<Vec<_>>(), [kept]);
    assert_eq!(bed.end(&bed.opening.live[0].claim), Recorded::Now(TaskStatus::Completed));
    let (renumbered, notes) = (fences(&file, "task_executions"), fences(&file, "notes"));
    assert_eq!(renumbered.iter().filter(|fence| **fence >= EXACT).collect::<Vec<_>>(), [&kept.0]);
    assert_eq!(notes, [renumbered[0]], "in their order");
    // The claim is over, by whatever number its holder knows; its task is ready again, at no cost.
    assert!(fences(&file, "leases").is_empty());
    let execution = held.claim.execution;
    for fence in [aged(held.claim.fence, epoch), held.claim.fence, Fence(notes[0])] {
        assert_eq!(code(bed.complete(execution, fence)), ErrorCode::LeaseExpired);
    }
    assert!(bed.hold("one", 1).is_empty(), "it held that, and nothing else");
    let again = bed.hold("three", 1).remove(0);
    assert_eq!((again.claim.execution, again.claim.attempt), (execution, 2));
    assert!(again.claim.fence.0 > renumbered[renumbered.len() - 2] && again.claim.fence.0 < EXACT);
    assert_eq!(again.handoff[0].note.as_deref(), Some("half way"));
    assert_eq!(bed.complete(execution, again.claim.fence).unwrap(), TaskStatus::Completed);
    assert_ne!(again.claim.fence, done.claim.fence);
    drop(reader);
    bed.close();
}

#[test]
fn notes_of_many_holders_stay_bounded() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    let bed = Bed::open(&file);
    bed.go(vec![external("a")]);
    for holder in ["one", "two", "three", "four"] {
        let held = bed.hold(holder, 1).remove(0);
        (0..60).for_each(|_| bed.note(&held));
        bed.conclude(held.claim.execution, held.claim.fence, Ending::Released).unwrap();
    }
    // What the next holder is told, and what the last one said.
    assert_eq!(fences(&file, "notes").len(), 100);
    assert_eq!(bed.hold("five", 1).remove(0).handoff.len(), 50);
    bed.close();
}

#[test]
fn leases_of_an_earlier_boot_end_too_when_fences_are_numbered_anew() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    old_store(&file, 3 * RESTORE_LEAP, |bed| {
        bed.go(vec![external("held")]);
        assert_eq!(bed.hold("one", 1).len(), 1);
    });
    let store = SqliteStore::open(&file, Durability::Process).unwrap();
    let later = Boot { id: "another".into(), now: BootTime(7) };
    let opening = support::runtime().block_on(store.open_epoch(NOW, later)).unwrap();
    assert_eq!((opening.renewed, fences(&file, "leases").len()), (0, 0));
    store.close();
}

#[test]
fn migrated_epoch_is_what_a_restore_takes_it_for() {
    let edge = 2 * RESTORE_LEAP - ((64 * RESTORE_LEAP) >> 12);
    for epoch in
        [0, 1, 5, 1_000, RESTORE_LEAP + 3, edge - 1, edge, 2 * RESTORE_LEAP, 3 * RESTORE_LEAP + 9, 1 << 30]
    {
        let dir = support::dir();
        let file = dir.path().join("dag.db");
        SqliteStore::open(&file, Durability::Process).unwrap().close();
        age(&file, epoch);
        let converted = converted_epoch(Epoch(epoch));
        assert_eq!(Reader::epoch_in(&file).unwrap(), converted, "{epoch}");
        SqliteStore::open(&file, Durability::Process).unwrap().close();
        assert_eq!(Reader::epoch_in(&file).unwrap(), converted, "{epoch}");
        assert!(converted >= Epoch(epoch) && converted.0 + 64 * RESTORE_LEAP <= Epoch::MAX.0 + 1, "{epoch}");
    }
}

#[test]
fn copy_of_an_earlier_version_is_renumbered_when_it_is_restored() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    old_store(&file, 2 * RESTORE_LEAP + 1, |bed| {
        bed.go(vec![external("held")]);
        assert_eq!(bed.hold("one", 1).len(), 1);
    });
    let copy = Copy::open(&file).unwrap();
    assert!(copy.had_long_counts);
    let epoch = Epoch(copy.epoch().unwrap().0 + RESTORE_LEAP);
    copy.into_store(epoch).unwrap();
    assert!(!Copy::open(&file).unwrap().had_long_counts);
    let bed = Bed::open(&file);
    let held = bed.hold("two", 1).remove(0);
    assert!(held.claim.fence.0 < EXACT && held.claim.fence.epoch() > epoch);
    bed.close();
}

#[test]
fn store_without_fences_left_grants_none_and_says_so() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    SqliteStore::open(&file, Durability::Process).unwrap().close();
    let last = Epoch::MAX.0 - 1;
    let conn = Connection::open(&file).unwrap();
    conn.execute("UPDATE counters SET value = ?1 WHERE name = 'coordinator_epoch'", [last]).unwrap();
    let bed = Bed::open_with(&file, Chunks { fences: 2, ..Chunks::default() });
    bed.go(["a", "b", "c"].map(|id| task(id, &[])).into());
    assert_eq!(bed.take(2).unwrap().len(), 2);
    assert_eq!(code(bed.take(1)), ErrorCode::Unavailable);
    // And again, while what was granted is as good as before.
    assert_eq!(code(bed.take(1)), ErrorCode::Unavailable);
    bed.close();
    let store = SqliteStore::open(&file, Durability::Process).unwrap();
    let refused = support::runtime().block_on(store.open_epoch(NOW, support::boot(NOW)));
    let Err(StoreError::Refused(refusal)) = refused else { panic!("not refused") };
    assert!(refusal.message.contains("used up its fences"), "{refusal}");
    assert!(refusal.hint.is_some_and(|hint| hint.contains("--data-dir")));
    store.close();
}

/// As clients see numbers that take them for doubles.
#[test]
fn fences_survive_being_doubles_after_many_restores() {
    let dir = support::dir();
    let file = dir.path().join("dag.db");
    let mut last = Fence(0);
    for restores in 0..5 {
        let bed = Bed::open(&file);
        if restores == 0 {
            bed.go((0..5).map(|n| external(&format!("t{n}"))).collect());
        }
        let held = bed.hold(&format!("claim{restores}"), 1).remove(0);
        assert!(held.claim.fence > last);
        last = held.claim.fence;
        let rounded: Value = serde_json::from_str(&format!("{:?}", last.0 as f64)).unwrap();
        let fence = Fence(rounded.as_f64().unwrap() as i64);
        assert_eq!(bed.complete(held.claim.execution, fence).unwrap(), TaskStatus::Completed);
        bed.close();
        let copy = Copy::open(&file).unwrap();
        let epoch = Epoch(copy.epoch().unwrap().0 + RESTORE_LEAP);
        copy.into_store(epoch).unwrap();
    }
}
