//! Publishing definitions and deciding about them.

use std::sync::Arc;

use cis_core::access::Publisher;
use cis_core::dag::approval::NOTE_BYTES_MAX;
use cis_core::dag::params::check_size;
use cis_core::dag::plan::Plan;
use cis_core::dag::stored;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::event::PUBLISH;
use cis_core::id::Revision;
use cis_core::review::{Opening, ReviewId, check_content_hash};
use cis_core::revision::{RevisionMove, RevisionStatus};
use cis_core::source::Timestamp;
use rusqlite::{OptionalExtension, params};
use serde_json::{Map, json};

use super::events::Told;
use super::quotas;
use super::reviews;
use super::runs;
use super::tx::{Tx, parsed};
use crate::port::{
    Answer, Decide, Decided, DecisionLine, Definition, Publish, Published, Quotas, RunRef, Settle, Settled,
    StartRun,
};

/// Definitions up to this long are kept parsed from when they are published: most are confirmed soon. A longer one is parsed again
/// when it is needed, which may be never, and would take the place of those that are.
const KEPT_AT_ONCE_BYTES_MAX: usize = 1 << 20;

/// See [`crate::Store::publish`].
pub(super) fn publish(tx: &mut Tx<'_>, request: &Publish, quotas: Option<Quotas>) -> Answer<Published> {
    tx.memory.changed.dag(request.dag.dag_id.as_str());
    let dag_key = dag_key(tx, request)?;
    expire_overdue(tx, dag_key, request)?;
    if let Some(found) = same_content(tx, dag_key, request)? {
        return Ok(found);
    }
    let revisions: i64 = tx
        .conn
        .prepare_cached("SELECT revisions FROM dags WHERE dag_key = ?1")?
        .query_row([dag_key], |row| row.get(0))?;
    if revisions > 0 && !request.new_revision && !asked_before(tx, dag_key, request)? {
        return refuse_other_content(tx, dag_key, request);
    }
    // What could never be started is not asked for.
    check_size(&request.dag.params)?;
    tx.room()?;
    let text = stored::to_stored(&request.dag);
    let bytes = text.len() as u64;
    quotas::check_pending(tx, quotas, &request.by, bytes)?;
    let revision = Revision(revisions + 1);
    let expires_at = request.expires_at.map(|at| tx.now.after(at.since(request.now)));
    let content_hash = request.content_hash.as_str();
    let opening = Opening::Revision { dag: dag_key, revision, content_hash, opened_at: tx.now };
    let review = reviews::open(tx, &opening)?;
    tx.conn
        .prepare_cached(
            "INSERT INTO dag_definitions (dag_key, revision, content_hash, tasks_json, tasks_count, target_node,
                                          status, created_by, publisher_proven, created_at, updated_at, expires_at,
                                          review_id, stored_bytes)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'pending', ?7, ?8, ?9, ?9, ?10, ?11, ?12)",
        )?
        .execute(params![
            dag_key,
            revision.0,
            request.content_hash,
            text,
            request.dag.tasks.len(),
            request.dag.target_node,
            request.by,
            request.by_proven,
            tx.now.0,
            expires_at.map(|t| t.0),
            review.to_string(),
            bytes,
        ])?;
    tx.memory.usage.add_pending(&request.by, bytes);
    let key = tx.conn.last_insert_rowid();
    tx.conn
        .prepare_cached("UPDATE dags SET revisions = ?2, updated_at = ?3 WHERE dag_key = ?1")?
        .execute(params![dag_key, revision.0, tx.now.0])?;
    let data = json!({"by": request.by, "review_id": review});
    let told = Told::data(&data).by(Some(&request.by));
    tx.definition_event(key, 1, PUBLISH, RevisionStatus::Pending.word(), told)?;
    if let Some(at) = expires_at {
        tx.due(at);
    }
    tx.memory.definitions.mark_added(key);
    if text.len() <= KEPT_AT_ONCE_BYTES_MAX {
        let plan = Plan::new(&request.dag);
        let definition = Arc::new(Definition { key, revision, dag: Arc::clone(&request.dag), plan });
        tx.remember_definition(definition, text.len());
    }
    let stands = Stands { status: RevisionStatus::Pending, expires_at, review: Some(review) };
    Ok(published(tx, request, true, key, revision, stands))
}

/// How a revision stands, as far as its publisher is told.
struct Stands {
    status: RevisionStatus,
    expires_at: Option<Timestamp>,
    review: Option<ReviewId>,
}

/// What has waited too long is over before the same is asked for again, whether a sweep has come by or not.
fn expire_overdue(tx: &mut Tx<'_>, dag_key: i64, request: &Publish) -> Answer<()> {
    let overdue: Vec<(i64, i64)> = tx
        .conn
        .prepare_cached(
            "SELECT definition_key, version FROM dag_definitions
             WHERE dag_key = ?1 AND content_hash = ?2 AND status = 'pending' AND expires_at <= ?3",
        )?
        .query_map(params![dag_key, request.content_hash, tx.now.0], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (definition, version) in overdue {
        expire(tx, definition, version)?;
    }
    Ok(())
}

fn dag_key(tx: &Tx<'_>, request: &Publish) -> Answer<i64> {
    let (dag_id, scope) = (request.dag.dag_id.as_str(), request.dag.scope.as_str());
    tx.conn
        .prepare_cached(
            "INSERT INTO dags (scope, dag_id, updated_at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
        )?
        .execute(params![scope, dag_id, tx.now.0])?;
    Ok(tx
        .conn
        .prepare_cached("SELECT dag_key FROM dags WHERE scope = ?1 AND dag_id = ?2")?
        .query_row(params![scope, dag_id], |row| row.get(0))?)
}

/// The revision that has this content and answers for it: a rejected or expired one does not.
fn same_content(tx: &Tx<'_>, dag_key: i64, request: &Publish) -> Answer<Option<Published>> {
    let row = tx
        .conn
        .prepare_cached(
            "SELECT definition_key, revision, status, expires_at, review_id FROM dag_definitions
             WHERE dag_key = ?1 AND content_hash = ?2 ORDER BY revision DESC LIMIT 1",
        )?
        .query_row(params![dag_key, request.content_hash], |row| {
            let stands = Stands {
                status: parsed(row, 2, RevisionStatus::from_word)?,
                expires_at: row.get::<_, Option<i64>>(3)?.map(Timestamp),
                review: row.get::<_, Option<String>>(4)?.and_then(|text| text.parse().ok()),
            };
            Ok((row.get(0)?, Revision(row.get(1)?), stands))
        })
        .optional()?;
    let row = row.filter(|(_, _, stands)| stands.status.answers_for_its_content());
    Ok(row.map(|(key, revision, stands)| published(tx, request, false, key, revision, stands)))
}

/// Was this content turned down before, or left undecided for too long? Then it is no other content.
fn asked_before(tx: &Tx<'_>, dag_key: i64, request: &Publish) -> Answer<bool> {
    Ok(tx
        .conn
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM dag_definitions WHERE dag_key = ?1 AND content_hash = ?2)",
        )?
        .query_row(params![dag_key, request.content_hash], |row| row.get(0))?)
}

fn refuse_other_content(tx: &Tx<'_>, dag_key: i64, request: &Publish) -> Answer<Published> {
    let existing: String = tx
        .conn
        .prepare_cached(
            "SELECT content_hash FROM dag_definitions WHERE dag_key = ?1 ORDER BY revision DESC LIMIT 1",
        )?
        .query_row([dag_key], |row| row.get(0))?;
    let dag_id = &request.dag.dag_id;
    let suggested = format!("{dag_id}-{}", request.content_hash.get(..8).unwrap_or_default());
    Err(Refusal::new(ErrorCode::ContentConflict, format!("`{dag_id}` exists with other content"))
        .hint(format!(
            "ask for a new revision (`--revision`), or publish it under another id, such as `{suggested}`"
        ))
        .details(json!({
            "dag_id": dag_id,
            "existing_hash": existing,
            "published_hash": request.content_hash,
            "suggested_id": suggested,
        }))
        .into())
}

fn published(
    tx: &Tx<'_>,
    request: &Publish,
    created: bool,
    key: i64,
    revision: Revision,
    Stands { status, expires_at, review }: Stands,
) -> Published {
    let waits = status == RevisionStatus::Pending;
    Published {
        created,
        definition: key,
        scope: request.dag.scope.clone(),
        dag_id: request.dag.dag_id.clone(),
        revision,
        status,
        content_hash: request.content_hash.clone(),
        waits: expires_at.filter(|_| waits).map(|at| at.since(tx.now)),
        review_id: review.filter(|_| waits),
    }
}

/// See [`crate::Store::settle`].
pub(super) fn settle(tx: &mut Tx<'_>, request: &Settle) -> Answer<Settled> {
    settle_with_note(tx, request, None)
}

fn settle_with_note(tx: &mut Tx<'_>, request: &Settle, note: Option<&str>) -> Answer<Settled> {
    let (status, hash, version, review) = tx
        .conn
        .prepare_cached(
            // A request that is overdue has run out, whether a sweep has come by or not.
            "SELECT iif(status = 'pending' AND expires_at <= ?2, 'expired', status), content_hash, version, review_id
             FROM dag_definitions WHERE definition_key = ?1",
        )?
        .query_row(params![request.definition, tx.now.0], |row| {
            let review: Option<String> = row.get(3)?;
            let status = parsed(row, 0, RevisionStatus::from_word)?;
            Ok((status, row.get::<_, String>(1)?, row.get::<_, i64>(2)?, review))
        })
        .optional()?
        .ok_or_else(|| Refusal::new(ErrorCode::NotFound, format!("no definition {}", request.definition)))?;
    if hash != request.content_hash {
        return Err(Refusal::new(ErrorCode::ContentConflict, "the content is not the one that was shown")
            .details(json!({"expected": request.content_hash, "current": hash}))
            .into());
    }
    let step = if request.confirm { RevisionMove::Confirm } else { RevisionMove::Reject };
    if status == step.leads_to() {
        return Ok(Settled { status, changed: false });
    }
    let wanted = status.after(step).map_err(|illegal| {
        Refusal::from(illegal).hint(match status {
            RevisionStatus::Confirmed => "what is confirmed stays so; `cis dag cancel ID` stops a run of it",
            _ => "publish it again to open a new request",
        })
    })?;
    if request.confirm {
        tx.room()?;
    }
    change_status(tx, request.definition, version, status, wanted)?;
    tx.conn
        .prepare_cached(
            "INSERT INTO dag_confirmations (definition_key, content_hash, decision, decided_by, decided_at, note)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![request.definition, hash, wanted.word(), request.by, tx.now.0, note])?;
    let mut data = json!({"by": request.by});
    if let Some(review) = review {
        data["review_id"] = review.into();
    }
    if let Some(note) = note {
        data["note"] = note.into();
    }
    let told = Told::data(&data).by(Some(&request.by));
    tx.definition_event(request.definition, version + 1, step.word(), wanted.word(), told)?;
    Ok(Settled { status: wanted, changed: true })
}

/// See [`crate::Store::decide`].
pub(super) fn decide(tx: &mut Tx<'_>, request: &Decide, quotas: Option<Quotas>) -> Answer<Decided> {
    check_note(request.note.as_deref())?;
    let found = revision_meant(tx, request)?;
    if request.confirm && found.status == RevisionStatus::Pending {
        found.publisher.check_decider(&request.by, request.self_confirm)?;
    }
    let (definition, content_hash) = (found.key, found.content_hash);
    let (confirm, by, now) = (request.confirm, request.by.clone(), request.now);
    let settle = Settle { definition, content_hash: content_hash.clone(), confirm, by, now };
    let settled = settle_with_note(tx, &settle, request.note.as_deref())?;
    let decision = match settled.changed {
        true => Some(DecisionLine {
            decided_by: request.by.clone(),
            decided_at: tx.now,
            note: request.note.clone(),
        }),
        false => decision(tx, definition)?,
    };
    let run = match request.confirm {
        true => Some(start_first(tx, request, definition, quotas)?),
        false => None,
    };
    Ok(Decided {
        status: settled.status,
        changed: settled.changed,
        dag_id: request.dag_id.clone(),
        scope: request.scope.clone(),
        revision: found.revision,
        content_hash,
        tasks: found.tasks,
        decision,
        run,
        next_due: tx.next_due,
    })
}

/// A note is for people to read, and kept for ever.
pub(super) fn check_note(note: Option<&str>) -> Answer<()> {
    if note.is_none_or(|note| note.len() <= NOTE_BYTES_MAX) {
        return Ok(());
    }
    let why = format!("a note has at most {NOTE_BYTES_MAX} bytes");
    Err(Refusal::new(ErrorCode::ValidationFailed, why).into())
}

/// Who decided about a revision, when, and with what note.
fn decision(tx: &Tx<'_>, definition: i64) -> Answer<Option<DecisionLine>> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT decided_by, decided_at, note FROM dag_confirmations WHERE definition_key = ?1",
    )?;
    let row = statement.query_row([definition], |row| {
        Ok(DecisionLine { decided_by: row.get(0)?, decided_at: Timestamp(row.get(1)?), note: row.get(2)? })
    });
    Ok(row.optional()?)
}

/// A revision as far as deciding about it goes.
struct Meant {
    key: i64,
    revision: Revision,
    content_hash: String,
    status: RevisionStatus,
    publisher: Publisher,
    tasks: u32,
}

/// The revision a decision is about: the one whose request or content it names, or the only one there is.
fn revision_meant(tx: &Tx<'_>, request: &Decide) -> Answer<Meant> {
    if let Some(hash) = &request.content_hash {
        check_content_hash(hash)?;
    }
    let mut statement = tx.conn.prepare_cached(
        "SELECT definition_key, revision, content_hash, f.status, created_by, publisher_proven, tasks_count
         FROM dags d JOIN dag_definitions f USING (dag_key)
         WHERE scope = ?1 AND dag_id = ?2 AND (?3 IS NULL OR content_hash = ?3) AND (?4 IS NULL OR review_id = ?4)
         ORDER BY revision DESC LIMIT 2",
    )?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Meant {
            key: row.get(0)?,
            revision: Revision(row.get(1)?),
            content_hash: row.get(2)?,
            status: parsed(row, 3, RevisionStatus::from_word)?,
            publisher: Publisher { identity: row.get(4)?, proven: row.get(5)? },
            tasks: row.get(6)?,
        })
    };
    let review = request.review.map(|review| review.to_string());
    let asked = params![request.scope.as_str(), request.dag_id.as_str(), request.content_hash, review];
    let mut found = statement.query_map(asked, read)?.collect::<Result<Vec<_>, _>>()?.into_iter();
    let Some(latest) = found.next() else {
        let what = match (request.review, &request.content_hash) {
            (Some(_), _) => "with that review id",
            (None, Some(_)) => "with that content",
            (None, None) => "of that name",
        };
        return Err(Refusal::new(ErrorCode::NotFound, format!("no DAG `{}` {what}", request.dag_id)).into());
    };
    if request.content_hash.is_none() && request.review.is_none() && found.next().is_some() {
        return Err(Refusal::new(
            ErrorCode::ValidationFailed,
            format!("`{}` has several revisions: say which by its `content_hash`", request.dag_id),
        )
        .hint("`cis pending` (`GET /api/v1/pending`) lists each that waits with its review id and whole hash")
        .details(json!({"latest_hash": latest.content_hash, "latest_revision": latest.revision}))
        .into());
    }
    Ok(latest)
}

/// The run that a confirmation starts.
fn start_first(tx: &mut Tx<'_>, request: &Decide, definition: i64, quotas: Option<Quotas>) -> Answer<RunRef> {
    let start = StartRun {
        // The decision has it.
        key: None,
        run_id: request.run_id,
        definition,
        params: Map::new(),
        max_parallel: None,
        attached: false,
        at_node: true,
        traceparent: request.traceparent.clone(),
        fates: None,
        resumed_from: None,
        by_confirmation: true,
        by: request.by.clone(),
        by_proven: true,
        now: request.now,
    };
    runs::start(tx, &start, quotas)
}

/// Lets a request nobody decided about run out.
pub(super) fn expire(tx: &mut Tx<'_>, definition: i64, version: i64) -> Answer<()> {
    let (from, step) = (RevisionStatus::Pending, RevisionMove::Expire);
    let to = from.after(step).map_err(Refusal::from)?;
    change_status(tx, definition, version, from, to)?;
    let data = json!({"by": "cis"});
    tx.definition_event(definition, version + 1, step.word(), to.word(), Told::data(&data))
}

fn change_status(
    tx: &mut Tx<'_>,
    definition: i64,
    version: i64,
    from: RevisionStatus,
    to: RevisionStatus,
) -> Answer<()> {
    let changed = tx
        .conn
        .prepare_cached(
            "UPDATE dag_definitions SET status = ?3, version = version + 1, updated_at = ?4
             WHERE definition_key = ?1 AND version = ?2 AND status = ?5 RETURNING created_by, stored_bytes",
        )?
        .query_row(params![definition, version, to.word(), tx.now.0, from.word()], |row| {
            Ok((row.get::<_, String>(0)?, row.get(1)?))
        })
        .optional()?;
    if let Some((publisher, bytes)) = changed {
        // Every move of a revision is one out of `pending`.
        tx.memory.usage.remove_pending(&publisher, bytes);
        return changes(tx, definition);
    }
    Err(Refusal::new(ErrorCode::InvalidTransition, "the revision has been decided meanwhile").into())
}

/// Says that what is told of a revision's DAG changes.
fn changes(tx: &mut Tx<'_>, definition: i64) -> Answer<()> {
    let dag_id: String = tx
        .conn
        .prepare_cached(
            "SELECT dag_id FROM dags JOIN dag_definitions USING (dag_key) WHERE definition_key = ?1",
        )?
        .query_row([definition], |row| row.get(0))?;
    tx.memory.changed.dag(&dag_id);
    Ok(())
}
