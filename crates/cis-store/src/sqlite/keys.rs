//! Doing a request once: its key, what it was and how it was answered are committed with its effect.
//!
//! How many keys a caller has is counted once, and from then on kept in the writer's memory, as quotas are.

use std::collections::HashMap;

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{ExecutionId, Fence};
use cis_core::source::Millis;
use rusqlite::{OptionalExtension, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::clock;
use super::tx::Tx;
use crate::port::{Answer, IdempotencyKey, Once, StoreError};

/// How long an answer is kept at least.
const KEPT: Millis = Millis(24 * 60 * 60 * 1_000);

/// Answers forgotten by one sweep; if there are more, the next sweep is due at once.
const FORGET_MAX: u32 = 500;

/// Answers kept for one caller: over one a second for the day that they are kept, and about 70 MiB.
const KEYS_MAX: u64 = 100_000;

/// Callers whose keys are counted at a time; more than this many are counted again when needed.
const CALLERS_MAX: usize = 1_024;

/// How many keys callers have, as far as it was counted.
#[derive(Debug, Default)]
pub(super) struct KeyCounts {
    counted: HashMap<String, u64>,
    /// Callers whose count the present operation has changed.
    changed: Vec<String>,
}

impl KeyCounts {
    pub(super) fn begin_operation(&mut self) {
        self.changed.clear();
    }

    /// After a rollback of the present operation. What it has not changed stays: to count a hundred thousand keys for every
    /// refusal would hold up the writer.
    pub(super) fn undo_operation(&mut self) {
        for caller in &self.changed {
            self.counted.remove(caller);
        }
    }

    pub(super) fn forget(&mut self) {
        self.counted.clear();
    }

    fn add(&mut self, caller: &str) {
        if let Some(count) = self.counted.get_mut(caller) {
            *count += 1;
            self.changed.push(caller.to_owned());
        }
    }

    fn remove(&mut self, caller: &str) {
        let Some(count) = self.counted.get_mut(caller) else { return };
        self.changed.push(caller.to_owned());
        // A caller that has so many may have more: they were counted no further.
        if *count >= KEYS_MAX {
            self.counted.remove(caller);
        } else {
            *count = count.saturating_sub(1);
        }
    }
}

/// Has a caller fewer keys than it may have?
fn has_room(tx: &mut Tx<'_>, caller: &str) -> Answer<bool> {
    if count(tx, caller)? < KEYS_MAX {
        return Ok(true);
    }
    // Where nothing becomes due, no sweep comes by.
    Ok(forget_own(tx, caller)? && count(tx, caller)? < KEYS_MAX)
}

fn count(tx: &mut Tx<'_>, caller: &str) -> Answer<u64> {
    if let Some(known) = tx.memory.key_counts.counted.get(caller) {
        return Ok(*known);
    }
    // Names of claims come before every other key. They are as many as there was to be claimed, and not counted.
    let count = tx
        .conn
        .prepare_cached(
            "SELECT count(*) FROM (SELECT 1 FROM idempotency_keys WHERE caller = ?1 AND key >= char(11) LIMIT 0 + ?2)",
        )?
        .query_row(params![caller, KEYS_MAX], |row| row.get(0))?;
    let known = &mut tx.memory.key_counts.counted;
    if known.len() >= CALLERS_MAX {
        known.clear();
    }
    known.insert(caller.to_owned(), count);
    Ok(count)
}

fn too_many(caller: &str) -> Refusal {
    Refusal::new(
        ErrorCode::QuotaExceeded,
        format!("answers to {KEYS_MAX} requests of `{caller}` with a key are kept, and no more may be"),
    )
    .hint("send requests without a key, or wait: keys are kept for a day")
    .details(json!({"identity": caller, "limit": KEYS_MAX, "count": KEYS_MAX}))
}

/// Is this an answer for the day? Some refusals change nothing, and the same request is welcome once it has become right or
/// there is room for it: as with a full disk, nothing is kept.
fn is_kept(refusal: &Refusal) -> bool {
    !matches!(
        refusal.code,
        ErrorCode::NotFound
            | ErrorCode::ValidationFailed
            | ErrorCode::QuotaExceeded
            | ErrorCode::RateLimited
            | ErrorCode::Unavailable
    )
}

/// The same as [`once`] for the result of a task, which its fence lets be recorded once in any case: where its caller has too
/// many keys, it is recorded and this one is not kept.
pub(super) fn once_if_room<T: Serialize + DeserializeOwned>(
    tx: &mut Tx<'_>,
    key: Option<&IdempotencyKey>,
    op: impl FnOnce(&mut Tx<'_>) -> Answer<T>,
) -> Answer<Once<T>> {
    let key = match key {
        Some(key) if !has_room(tx, &key.caller)? && answered(tx, key)?.is_none() => None,
        key => key,
    };
    once(tx, key, op)
}

/// Does `op`, or answers as it was answered before. Most refusals are answers too: one undoes what `op` did, and is kept.
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
    if !has_room(tx, &key.caller)? {
        return Err(too_many(&key.caller).into());
    }
    tx.conn.prepare_cached("SAVEPOINT keyed")?.execute([])?;
    let answer = match op(tx) {
        Ok(answer) => Ok(answer),
        Err(StoreError::Refused(refusal)) if is_kept(&refusal) => {
            tx.undo();
            tx.conn.prepare_cached("ROLLBACK TO keyed")?.execute([])?;
            Err(refusal)
        }
        Err(failure) => return Err(failure),
    };
    tx.conn.prepare_cached("RELEASE keyed")?.execute([])?;
    keep(tx, key, &serde_json::to_string(&answer).map_err(unreadable)?)?;
    tx.memory.key_counts.add(&key.caller);
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

/// What a claim's name begins with among the keys: a character that no header can carry.
const CLAIM: char = '\n';

/// A claim's name among the keys.
fn claim_key(caller: &str, claim_id: &str) -> IdempotencyKey {
    let (caller, key) = (caller.to_owned(), format!("{CLAIM}{claim_id}"));
    IdempotencyKey { caller, key, request_hash: "0".repeat(64) }
}

fn unreadable(e: serde_json::Error) -> StoreError {
    StoreError::Database(e.to_string())
}

/// Forgets answers that have been kept long enough; are there perhaps more of them?
pub(super) fn forget_old(tx: &mut Tx<'_>) -> Answer<bool> {
    let before = clock::unmoved(tx)?.before(KEPT);
    let forgotten = forget(
        tx,
        "DELETE FROM idempotency_keys WHERE (caller, key) IN
             (SELECT caller, key FROM idempotency_keys WHERE created_at <= ?1 LIMIT 0 + ?2)
         RETURNING caller, key",
        params![before.0, FORGET_MAX],
    )?;
    Ok(forgotten >= FORGET_MAX as usize)
}

/// Forgets those of one caller among the oldest; were there any? A caller that is refused leaves nothing undone: where there is
/// none, nothing was written.
fn forget_own(tx: &mut Tx<'_>, caller: &str) -> Answer<bool> {
    let before = clock::unmoved(tx)?.before(KEPT);
    let forgotten = forget(
        tx,
        "DELETE FROM idempotency_keys WHERE (caller, key) IN
             (SELECT caller, key FROM
                  (SELECT caller, key FROM idempotency_keys WHERE created_at <= ?1 ORDER BY created_at LIMIT 0 + ?2)
              WHERE caller = ?3)
         RETURNING caller, key",
        params![before.0, FORGET_MAX, caller],
    )?;
    Ok(forgotten > 0)
}

fn forget(tx: &mut Tx<'_>, sql: &str, params: impl rusqlite::Params) -> Answer<usize> {
    let gone: Vec<(String, bool)> = tx
        .conn
        .prepare_cached(sql)?
        .query_map(params, |row| Ok((row.get(0)?, row.get_ref(1)?.as_str()?.starts_with(CLAIM))))?
        .collect::<Result<_, _>>()?;
    for (caller, _) in gone.iter().filter(|(_, is_claim)| !is_claim) {
        tx.memory.key_counts.remove(caller);
    }
    Ok(gone.len())
}
