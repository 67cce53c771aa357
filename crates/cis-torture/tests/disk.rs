//! What a disk can do to a store, at moments chosen by chance.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says so by failing")]

use std::path::PathBuf;
use std::sync::Arc;

use cis_api::node::CoordinatorKind;
use cis_core::access::{Caller, Preset};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::notice::Wanted;
use cis_core::source::Millis;
use cis_engine::app::Settings;
use cis_engine::context::Context;
use cis_engine::coordinator::{Limits, Options};
use cis_engine::data_dir::DataDir;
use cis_engine::host::Host;
use cis_store::port::Quotas;
use cis_store::{CoordinatorStore as _, StoreError};
use cis_store::{Durability, Reader, SqliteStore, check};
use cis_torture::chance::Chance;
use cis_torture::disk::{Disk, Fault};
use cis_torture::life::Life;
use cis_torture::{Dose, full};
use rusqlite::Connection;

#[test]
fn a_full_disk_refuses_new_work_keeps_completions_and_recovers() {
    let finding = full::run(&Dose { seed: 1, rounds: 100, time: None }).unwrap();
    assert!(finding.is_clean(), "{finding}");
    let count = |what| finding.counts.iter().find(|(name, _)| *name == what).unwrap().1;
    assert!(count("requests for new work refused") >= 100, "{finding}");
    assert!(count("attempts ended while it was full") >= 100, "{finding}");
    assert!(count("times what had ended waited for space") > 0, "{finding}");
}

/// More is done in no test before something fails.
const ACTS_MAX: u32 = 3_000;

/// A life on a disk that comes to `fault`, until an act fails; and how that was told.
fn strike(
    seed: u64,
    durability: Durability,
    fault: impl FnOnce(&mut Chance) -> Fault,
) -> (Struck, StoreError) {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::watch(dir.path(), false).unwrap();
    let file = dir.path().join("dag.db");
    let store = SqliteStore::open(&file, durability).unwrap();
    let mut chance = Chance::new(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (life, why) = runtime.block_on(async {
        let mut life = Life::begin(store.clone(), chance.fork(1)).await.unwrap();
        disk.fail(fault(&mut chance));
        for _ in 0..ACTS_MAX {
            if let Err(why) = life.act().await {
                return (life, why);
            }
        }
        panic!("seed {seed}: nobody was told");
    });
    (Struck { dir, disk, file, store, life, runtime }, why)
}

struct Struck {
    dir: tempfile::TempDir,
    disk: Arc<Disk>,
    file: PathBuf,
    store: SqliteStore,
    life: Life,
    runtime: tokio::runtime::Runtime,
}

impl Struck {
    /// Opened again on a disk that works, it holds all that was acknowledged.
    fn assert_kept(self) {
        self.disk.fail(Fault::None);
        let promises = self.life.promises().to_vec();
        drop(self.life);
        self.store.close();
        let store = SqliteStore::open(&self.file, Durability::Power).unwrap();
        let conn = Connection::open(&self.file).unwrap();
        assert!(promises.iter().all(|promise| promise.is_kept(&conn).unwrap()));
        assert_eq!(check::violations(&Reader::open(&self.file).unwrap()).unwrap(), [""; 0]);
        drop((conn, store, self.dir));
    }
}

#[test]
fn a_sync_that_fails_costs_the_store_and_nothing_acknowledged() {
    // Where commits are not synced, it is the log's folding back that fails: after everybody was answered.
    let durabilities = [Durability::Power, Durability::Power, Durability::Process];
    for (seed, durability) in (0..30).zip(durabilities.into_iter().cycle()) {
        let most = if durability == Durability::Power { 300 } else { 4 };
        let (mut struck, why) = strike(seed, durability, |chance| Fault::Sync { after: chance.below(most) });
        assert!(matches!(why, StoreError::Lost(_)), "seed {seed}: {why:?}");
        // The disk may say that all is well again: nobody believes it.
        struck.disk.fail(Fault::None);
        let again = struck.runtime.block_on(struck.life.act());
        assert!(matches!(again, Err(StoreError::Lost(_))), "seed {seed}: {again:?}");
        assert!(matches!(struck.runtime.block_on(struck.store.lost()), StoreError::Lost(_)));
        struck.assert_kept();
    }
}

#[test]
fn a_write_that_fails_is_told_and_costs_nothing_acknowledged() {
    for seed in 0..15 {
        let (struck, why) =
            strike(seed, Durability::Power, |chance| Fault::Write { after: chance.below(2_000) });
        assert!(matches!(why, StoreError::Database(_)), "seed {seed}: {why:?}");
        struck.assert_kept();
    }
}

#[test]
fn a_disk_that_becomes_read_only_is_called_so() {
    let (struck, why) = strike(1, Durability::Power, |_| Fault::ReadOnly);
    assert!(matches!(why, StoreError::ReadOnly), "{why:?}");
    assert!(Refusal::from(why).message.contains("read-only"));
    struck.assert_kept();
}

/// The whole node: whoever asks is told why, and the node ends by itself instead of going on.
#[test]
fn a_node_whose_disk_cannot_be_synced_ends_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::watch(dir.path(), false).unwrap();
    let options = Options {
        data_dir: DataDir::create(dir.path()).unwrap(),
        kind: CoordinatorKind::Node,
        exe: "/nowhere".into(),
        config: None,
        slots: 1,
        durability: Durability::Power,
        limits: Limits::default(),
        runs_at_once: false,
        address: None,
        notices: Wanted::default(),
    };
    let settings = Settings {
        pending_for: Millis(60_000),
        quotas: Quotas::default(),
        auto_execute: false,
        skill_dirs: Vec::new(),
        node: None,
        prover: None,
    };
    let lock = options.data_dir.try_lock().unwrap().unwrap();
    let host = Host::open_node(options, settings, lock, &Context::of_node(&[], &[], Vec::new())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    disk.fail(Fault::Sync { after: 0 });
    let caller = Caller::preset("ann", Preset::Agent, None);
    let told = runtime.block_on(host.app().create_token(caller, "ann", None)).unwrap_err();
    assert_eq!(told.code, ErrorCode::Unavailable);
    assert!(told.message.contains("could not be synced"), "{told}");
    // Nobody asks for anything more: the loop hears of it all the same.
    let mut changes = host.app().changes();
    runtime.block_on(async { while changes.changed().await.is_ok() {} });
    let ended = host.leave().unwrap().result.unwrap_err();
    assert!(ended.message.contains("could not be synced"), "{ended}");
}
