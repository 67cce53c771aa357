//! Granting fences: from the epoch of the present coordinator's life, and once that has no more, from the next one.
//!
//! ```text
//!   counters.coordinator_epoch    5      5      6      6      7        the highest epoch in use, made durable first
//!   a life begins                 5 ──────────────────►      7 ──►
//!   fences granted                5.1 … 5.max   6.1 …        7.1 …
//! ```
//!
//! A life is known by the epoch it began with, whatever it took later.

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Epoch, Fence};
use rusqlite::Connection;

use super::tx::Tx;
use crate::port::{Answer, StoreError};

/// What is granted from. A fence of a claim that was rolled back is not used again either.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fences {
    /// The present coordinator's life.
    pub(super) life: Epoch,
    /// The epoch that fences are granted in.
    epoch: Epoch,
    /// How many of it have been.
    count: u32,
    /// The store has that epoch written down. After a rollback it may not.
    is_kept: bool,
}

impl Fences {
    /// After a rollback: taking the epoch may have been undone.
    pub(super) fn doubt(&mut self) {
        self.is_kept = false;
    }
}

/// Begins a coordinator's life.
pub(super) fn begin(tx: &mut Tx<'_>) -> Answer<Epoch> {
    let epoch = take_epoch(tx, Epoch(0))?;
    tx.memory.fences = Some(Fences { life: epoch, epoch, count: 0, is_kept: true });
    Ok(epoch)
}

/// Refuses a coordinator whose life is over, or has not begun: what it claims would be stale.
pub(super) fn check_life(tx: &Tx<'_>, life: Epoch) -> Answer<()> {
    match tx.memory.fences {
        Some(fences) if fences.life == life || cis_fail::is_broken("claim.epoch") => Ok(()),
        Some(Fences { life: current, .. }) => {
            let why = format!("coordinator epoch {life} is over, {current} has begun");
            Err(Refusal::new(ErrorCode::LeaseExpired, why).into())
        }
        None => Err(Refusal::new(ErrorCode::LeaseExpired, "no coordinator has begun on this store").into()),
    }
}

/// The next fence for a coordinator's life. The epoch it is of is committed no later than the claim.
pub(super) fn grant(tx: &mut Tx<'_>, life: Epoch) -> Answer<Fence> {
    check_life(tx, life)?;
    let mut fences = tx.memory.fences.ok_or(StoreError::Closed)?;
    if !fences.is_kept {
        keep_epoch(tx.conn, fences.epoch)?;
        fences.is_kept = true;
    }
    if fences.count >= tx.memory.chunks.fences.min(Fence::COUNT_MAX) {
        fences = Fences { epoch: take_epoch(tx, fences.epoch)?, count: 0, ..fences };
    }
    fences.count += 1;
    tx.memory.fences = Some(fences);
    Fence::new(fences.epoch, fences.count).ok_or_else(|| used_up().into())
}

/// Takes the epoch after the highest in use, which is `at_least` that.
fn take_epoch(tx: &Tx<'_>, at_least: Epoch) -> Answer<Epoch> {
    let sql =
        "UPDATE counters SET value = max(value, ?1) + 1 WHERE name = 'coordinator_epoch' RETURNING value";
    let epoch = tx.conn.prepare_cached(sql)?.query_row([at_least.0], |row| row.get(0).map(Epoch))?;
    if epoch > Epoch::MAX { Err(used_up().into()) } else { Ok(epoch) }
}

/// Writes down that `epoch` is in use.
pub(super) fn keep_epoch(conn: &Connection, epoch: Epoch) -> Answer<()> {
    let sql = "UPDATE counters SET value = max(value, ?1) WHERE name = 'coordinator_epoch'";
    conn.prepare_cached(sql)?.execute([epoch.0])?;
    Ok(())
}

/// The refusal of a store that has granted every fence below 2^53.
pub fn used_up() -> Refusal {
    Refusal::new(
        ErrorCode::Unavailable,
        "this data directory has used up its fences: nothing can be claimed any more",
    )
    .hint("publish its DAGs in a new one (`--data-dir`); this one can still be read")
}

/// What a restore leaps over: epochs that may have been taken since the backup, by coordinators that began, each `cis run`
/// at most, and by claims, a million at a time. There is room for eight thousand restores.
pub const RESTORE_LEAP: i64 = 1 << 20;

/// By how many bits counts were longer before the migration `fences`.
const SHORTENED_BITS: u32 = 12;

/// Beyond this a store would have room for fewer than 64 restores: its fences are numbered anew.
const CONTINUED_MAX: i64 = Epoch::MAX.0 + 1 - 64 * RESTORE_LEAP;

/// What the migration `fences` makes of the highest epoch in use. No fence that was granted before is granted after it.
pub fn converted(old: Epoch) -> Epoch {
    let above = |epoch: i64| (epoch + 1) << SHORTENED_BITS;
    match old.0 {
        0 => old,
        epoch if above(epoch) <= CONTINUED_MAX => Epoch(above(epoch)),
        epoch => Epoch((epoch + 1).max(above(epoch & (RESTORE_LEAP - 1)))),
    }
}

#[cfg(test)]
mod tests {
    use cis_core::source::Timestamp;

    use super::*;
    use crate::sqlite::reserve::Reserve;
    use crate::sqlite::steps::Chunks;
    use crate::sqlite::writer::Writer;

    const NOW: Timestamp = Timestamp(1);

    /// Whose epoch was taken in an operation that was undone takes it again, durably, with the next fence.
    #[tokio::test(flavor = "current_thread")]
    async fn epoch_taken_in_an_undone_operation_is_not_taken_again_by_the_next_life() {
        let dir = tempfile::tempdir().unwrap();
        let conn = crate::sqlite::migrate::open(&dir.path().join("dag.db"), Default::default()).unwrap();
        let chunks = Chunks { fences: 2, ..Chunks::default() };
        let writer = Writer::start(conn, chunks, Reserve::none()).unwrap();
        let life = writer.call(NOW, begin).await.unwrap();
        let first = writer.call(NOW, move |tx| grant(tx, life).and_then(|_| grant(tx, life))).await.unwrap();
        let undone = writer.call(NOW, move |tx| {
            grant(tx, life)?;
            Err::<(), _>(StoreError::Closed)
        });
        assert!(undone.await.is_err());
        let second = writer.call(NOW, move |tx| grant(tx, life)).await.unwrap();
        assert!(second > first);
        let next = writer.call(NOW, begin).await.unwrap();
        assert!(next > second.epoch(), "{next} begins where fences of {second} were granted");
    }
}
