//! Doing a request once: its key, what it was and how it was answered are committed with its effect.

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{ExecutionId, Fence};
use cis_core::source::Millis;
use rusqlite::{OptionalExtension, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::clock;
use super::tx::Tx;
use crate::port::{Answer, IdempotencyKey, Once, StoreError};

/// How long an answer is kept at least.
const KEPT: Millis = Millis(24 * 60 * 60 * 1_000);

/// Answers forgotten by one sweep.
const FORGET_MAX: u32 = 500;

/// Does `op`, or answers as it was answered before. A refusal is an answer too: it undoes what `op` did, and is kept.
pub(super) fn once<T: Serialize + DeserializeOwned>(
    tx: &mut Tx<'_>,
    key: Option<&IdempotencyKey>,
    op: impl FnOnce(&mut Tx<'_>) -> Answer<T>,
) -> Answer<Once<T>> {
    let Some(key) = key else {
        return Ok(Once { answer: Ok(op(tx)?), replayed: false });
    };
    if let Some((request_hash, answer)) = answered(tx, key)? {
        if request_hash != key.request_hash {
            return Err(Refusal::new(
                ErrorCode::DuplicateIdempotencyKey,
                format!("the key `{}` was used with another request", key.key),
            )
            .hint("use a new key for a new request")
            .into());
        }
        let answer = serde_json::from_str(&answer).map_err(unreadable)?;
        return Ok(Once { answer, replayed: true });
    }
    tx.conn.prepare_cached("SAVEPOINT keyed")?.execute([])?;
    let answer = match op(tx) {
        Ok(answer) => Ok(answer),
        // With a quota the same request is welcome later: as with a full disk, nothing is kept.
        Err(StoreError::Refused(refusal)) if refusal.code != ErrorCode::QuotaExceeded => {
            tx.undo();
            tx.conn.prepare_cached("ROLLBACK TO keyed")?.execute([])?;
            Err(refusal)
        }
        Err(failure) => return Err(failure),
    };
    tx.conn.prepare_cached("RELEASE keyed")?.execute([])?;
    keep(tx, key, &serde_json::to_string(&answer).map_err(unreadable)?)?;
    Ok(Once { answer, replayed: false })
}

fn answered(tx: &Tx<'_>, key: &IdempotencyKey) -> Answer<Option<(String, String)>> {
    let mut statement = tx
        .conn
        .prepare_cached("SELECT request_hash, answer FROM idempotency_keys WHERE caller = ?1 AND key = ?2")?;
    let row = statement.query_row(params![key.caller, key.key], |row| Ok((row.get(0)?, row.get(1)?)));
    Ok(row.optional()?)
}

fn keep(tx: &Tx<'_>, key: &IdempotencyKey, answer: &str) -> Answer<()> {
    tx.conn.prepare_cached("INSERT INTO idempotency_keys VALUES (?1, ?2, ?3, ?4, ?5)")?.execute(params![
        key.caller,
        key.key,
        key.request_hash,
        answer,
        clock::unmoved(tx)?.0
    ])?;
    Ok(())
}

/// The attempts an earlier claim of this name took.
pub(super) fn claimed(
    tx: &Tx<'_>,
    caller: &str,
    claim_id: &str,
) -> Answer<Option<Vec<(ExecutionId, Fence)>>> {
    let known = answered(tx, &claim_key(caller, claim_id))?;
    known.map(|(_, attempts)| serde_json::from_str(&attempts).map_err(unreadable)).transpose()
}

/// Keeps which attempts a claim took.
pub(super) fn keep_claimed(
    tx: &Tx<'_>,
    caller: &str,
    claim_id: &str,
    attempts: &[(ExecutionId, Fence)],
) -> Answer<()> {
    let attempts = serde_json::to_string(attempts).map_err(unreadable)?;
    keep(tx, &claim_key(caller, claim_id), &attempts)
}

/// A claim's name among the keys, behind a character that no header can carry.
fn claim_key(caller: &str, claim_id: &str) -> IdempotencyKey {
    let (caller, key) = (caller.to_owned(), format!("\n{claim_id}"));
    IdempotencyKey { caller, key, request_hash: "0".repeat(64) }
}

fn unreadable(e: serde_json::Error) -> StoreError {
    StoreError::Database(e.to_string())
}

/// Forgets answers that have been kept long enough.
pub(super) fn forget_old(tx: &Tx<'_>) -> Answer<()> {
    tx.conn
        .prepare_cached(
            "DELETE FROM idempotency_keys WHERE (caller, key) IN
                 (SELECT caller, key FROM idempotency_keys WHERE created_at <= ?1 LIMIT 0 + ?2)",
        )?
        .execute(params![clock::unmoved(tx)?.before(KEPT).0, FORGET_MAX])?;
    Ok(())
}
