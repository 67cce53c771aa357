//! How much one identity has waiting: revisions that are pending, and runs that are not over.
//!
//! Counted once by indexes that hold nothing else, and from then on kept in the writer's memory: there is no other writer, and
//! after a rollback it counts anew. So a quota costs an ordinary publication no statement, and two requests in one batch cannot
//! both take the last place.

use std::collections::HashMap;

use cis_core::error::{ErrorCode, Refusal};
use rusqlite::params;
use serde_json::json;

use super::tx::Tx;
use crate::port::{Answer, Quotas};

/// Identities kept in mind; more than this many are counted again when needed.
const IDENTITIES_MAX: usize = 1_024;

/// What identities have waiting, as far as it was counted.
#[derive(Debug, Default)]
pub(super) struct Usage(HashMap<String, Waiting>);

/// What one identity has waiting.
#[derive(Debug, Default, Clone, Copy)]
struct Waiting {
    pending: u64,
    pending_bytes: u64,
    runs: u64,
}

impl Usage {
    /// After a rollback: what was counted may never have happened.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    pub(super) fn add_pending(&mut self, identity: &str, bytes: u64) {
        self.change(identity, |waiting| {
            waiting.pending += 1;
            waiting.pending_bytes += bytes;
        });
    }

    pub(super) fn remove_pending(&mut self, identity: &str, bytes: u64) {
        self.change(identity, |waiting| {
            waiting.pending = waiting.pending.saturating_sub(1);
            waiting.pending_bytes = waiting.pending_bytes.saturating_sub(bytes);
        });
    }

    pub(super) fn add_run(&mut self, identity: &str) {
        self.change(identity, |waiting| waiting.runs += 1);
    }

    pub(super) fn remove_run(&mut self, identity: &str) {
        self.change(identity, |waiting| waiting.runs = waiting.runs.saturating_sub(1));
    }

    /// An identity that was not counted yet is counted with this when it is.
    fn change(&mut self, identity: &str, change: impl FnOnce(&mut Waiting)) {
        if let Some(waiting) = self.0.get_mut(identity) {
            change(waiting);
        }
    }
}

fn waiting(tx: &mut Tx<'_>, identity: &str) -> Answer<Waiting> {
    if let Some(known) = tx.memory.usage.0.get(identity) {
        return Ok(*known);
    }
    let (pending, pending_bytes) = tx
        .conn
        .prepare_cached(
            "SELECT count(*), coalesce(sum(stored_bytes), 0) FROM dag_definitions INDEXED BY definitions_pending
             WHERE created_by = ?1 AND status = 'pending'",
        )?
        .query_row(params![identity], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let runs = tx
        .conn
        .prepare_cached(
            "SELECT count(*) FROM dag_runs INDEXED BY runs_unfinished
             WHERE counts_for = ?1 AND completed_at IS NULL",
        )?
        .query_row(params![identity], |row| row.get(0))?;
    let counted = Waiting { pending, pending_bytes, runs };
    let known = &mut tx.memory.usage.0;
    if known.len() >= IDENTITIES_MAX {
        known.clear();
    }
    known.insert(identity.to_owned(), counted);
    Ok(counted)
}

/// Refuses a revision of `bytes` to a publisher that has enough of them waiting.
pub(super) fn check_pending(
    tx: &mut Tx<'_>,
    quotas: Option<Quotas>,
    publisher: &str,
    bytes: u64,
) -> Answer<()> {
    let Some(quotas) = quotas else { return Ok(()) };
    let has = waiting(tx, publisher)?;
    let (setting, why, details) = if has.pending >= u64::from(quotas.pending) {
        let why = format!(
            "`{publisher}` has {} revisions that wait for a decision, and may have {}",
            has.pending, quotas.pending
        );
        ("node.pending_max", why, json!({"limit": quotas.pending, "count": has.pending}))
    } else if has.pending_bytes.saturating_add(bytes) > quotas.pending_bytes {
        let why = format!(
            "`{publisher}` has {} bytes of revisions that wait for a decision, and may have {}; this one has {bytes}",
            has.pending_bytes, quotas.pending_bytes
        );
        let details = json!({"limit": quotas.pending_bytes, "count": has.pending_bytes, "asked": bytes});
        ("node.pending_bytes_max", why, details)
    } else {
        return Ok(());
    };
    let hint = format!(
        "wait until some are decided or expire, or ask an approver (`cis pending` lists them); the owner may raise `{setting}`"
    );
    Err(refusal(setting, publisher, why, details).hint(hint).into())
}

/// Refuses a run that would count for an identity which has enough of them under way.
pub(super) fn check_runs(tx: &mut Tx<'_>, quotas: Option<Quotas>, identity: &str) -> Answer<()> {
    let Some(quotas) = quotas else { return Ok(()) };
    let runs = waiting(tx, identity)?.runs;
    if runs < u64::from(quotas.unfinished_runs) {
        return Ok(());
    }
    let (setting, max) = ("node.unfinished_runs_max", quotas.unfinished_runs);
    let why = format!("`{identity}` has {runs} runs that are not over, and may have {max}");
    let hint = format!(
        "wait until some are over (`cis dag runs` lists them), or have an approver cancel some (`cis dag cancel ID`); the \
         owner may raise `{setting}`"
    );
    let details = json!({"limit": max, "count": runs});
    Err(refusal(setting, identity, why, details).hint(hint).into())
}

fn refusal(setting: &str, identity: &str, why: String, mut details: serde_json::Value) -> Refusal {
    details["setting"] = setting.into();
    details["identity"] = identity.into();
    Refusal::new(ErrorCode::QuotaExceeded, why).details(details)
}
