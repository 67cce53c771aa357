//! A disk that is full. A store is in use; at a chance moment the disk has a chance number of bytes left, and none more.
//!
//! ```text
//!   use ─ ─ ─ full ─► new work is refused, and nothing else
//!                     what is held is completed and recorded     ─► space returns ─► everything is taken on again
//! ```
//!
//! In some rounds somebody else takes the room that was kept for that: then what is held stays held, and is completed when
//! space has returned. Whatever was acknowledged, before, meanwhile or after, must be there in the end, and every invariant
//! hold.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Context as _;
use cis_core::source::{Millis, Timestamp};
use cis_store::StoreError;
use cis_store::{Durability, RESERVE, Reader, SqliteStore, check};
use rusqlite::Connection;

use crate::chance::Chance;
use crate::clock::Stopwatch;
use crate::disk::{Disk, Fault};
use crate::life::Life;
use crate::{Dose, Finding, place};

/// Things done before, and tried while the disk is full.
const ACTS_BEFORE: u64 = 60;
const ACTS_WHILE: u64 = 40;

/// At most so many bytes are left: from the middle of the next write to some hundred writes later.
const LEFT_BYTES_MAX: u64 = 300_000;

/// A smaller reserve than a node's, so that rounds are short; still room for all that can be held.
const RESERVE_BYTES: u64 = 4 << 20;

/// Longer than a store waits before it looks for room again.
const A_WHILE: Millis = Millis(2_000);

#[derive(Default)]
struct Tally {
    rounds: u64,
    refused: u64,
    ended: u64,
    postponed: u64,
    promises: u64,
    failed: u64,
}

/// Fills the disk once per round.
pub fn run(dose: &Dose) -> anyhow::Result<Finding> {
    let watch = Stopwatch::start();
    let (mut tally, mut violations) = (Tally::default(), Vec::new());
    while watch.lets(tally.rounds, dose) {
        let round = tally.rounds;
        let wrong = fill(Chance::new(dose.seed).fork(round), &mut tally);
        let wrong = wrong.unwrap_or_else(|e| vec![format!("{e:#}")]);
        violations
            .extend(wrong.into_iter().map(|wrong| format!("seed {}, round {round}: {wrong}", dose.seed)));
        tally.rounds += 1;
    }
    let counts = vec![
        ("times the disk was full", tally.rounds),
        ("writes it had no room for", tally.failed),
        ("requests for new work refused", tally.refused),
        ("attempts ended while it was full", tally.ended),
        ("times what had ended waited for space", tally.postponed),
        ("acknowledged writes asked for", tally.promises),
    ];
    Ok(Finding { counts, violations, ..Finding::default() })
}

fn fill(mut chance: Chance, tally: &mut Tally) -> anyhow::Result<Vec<String>> {
    let dir = place()?;
    let (disk, file) = (Disk::watch(dir.path(), false)?, dir.path().join("dag.db"));
    let (durability, now) = (Durability::Power, Timestamp(1_000_000));
    let store = SqliteStore::open_reserving(&file, durability, RESERVE_BYTES, now)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let promises = runtime.block_on(async {
        let mut life = Life::begin(store.clone(), chance.fork(1)).await?;
        for _ in 0..ACTS_BEFORE {
            life.act().await?;
        }
        disk.fail(Fault::Full { capacity: disk.used() + chance.below(LEFT_BYTES_MAX) });
        let ended = life.ended();
        tally.refused += live_on(&mut life, &disk, dir.path()).await?;
        let robbed = chance.one_in(4);
        if robbed {
            disk.fail(Fault::Full { capacity: 0 });
        }
        match life.complete().await {
            Err(StoreError::Full) if robbed => tally.postponed += 1,
            completed => completed.context("what was held could not be completed")?,
        }
        tally.ended += life.ended() - ended;
        tally.failed += disk.failed();
        // Nothing new is taken on, however long it lasts.
        keep_full(dir.path())?;
        life.pass(A_WHILE);
        let new = life.publish().await;
        anyhow::ensure!(matches!(new, Err(StoreError::Full)), "new work on a disk that is full: {new:?}");
        disk.fail(Fault::None);
        make_room(dir.path())?;
        life.pass(A_WHILE);
        life.complete().await.context("space has returned, and what was held is lost")?;
        for _ in 0..ACTS_WHILE {
            life.act().await.context("space has returned")?;
        }
        anyhow::Ok(life.promises().to_vec())
    })?;
    store.close();
    let mut wrong = check::violations(&Reader::open(&file)?)?;
    let conn = Connection::open(&file)?;
    for promise in &promises {
        if !promise.is_kept(&conn)? {
            wrong.push(format!("lost: {promise:?}"));
        }
    }
    tally.promises += promises.len() as u64;
    Ok(wrong)
}

/// Uses the store until it has met the full disk, and on; answers how much new work was refused.
async fn live_on(life: &mut Life, disk: &Disk, dir: &Path) -> anyhow::Result<u64> {
    let (mut refused, mut acts) = (0, 0);
    while disk.failed() == 0 || acts < ACTS_WHILE {
        keep_full(dir)?;
        match life.act().await {
            Ok(()) => {}
            Err(StoreError::Full) => refused += 1,
            Err(other) => return Err(other.into()),
        }
        acts += 1;
    }
    Ok(refused)
}

/// Where the store's reserve was given up, it cannot be made again: the model of a full disk knows SQLite's files only.
fn keep_full(dir: &Path) -> anyhow::Result<()> {
    match symlink("/dev/full", dir.join(RESERVE)) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e.into()),
        _ => Ok(()),
    }
}

fn make_room(dir: &Path) -> anyhow::Result<()> {
    let reserve = dir.join(RESERVE);
    if reserve.is_symlink() {
        fs::remove_file(reserve)?;
    }
    Ok(())
}
