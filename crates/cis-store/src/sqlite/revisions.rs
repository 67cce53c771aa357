//! What is kept of revisions beside their rows: the public text of large ones, ready to be served; and what of those that
//! were rejected or expired makes room.
//!
//! A revision that was turned down keeps its row, its decision and its events for ever, so that its review id, its hash and
//! its history stay what they were, and the same content published again is a new request as before. Only the definition
//! goes. No run refers to it: what was confirmed is never rejected or expired later.

use cis_core::dag::canonical;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::revision::RevisionStatus;
use cis_core::source::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::reader::Reader;
use super::tx::{Tx, parsed};
use crate::port::Answer;

/// Definitions whose stored text is at least this long have their public text beside it. A smaller one is made from what is
/// stored in less than a millisecond, and would cost every publication a row.
pub const PUBLIC_TEXT_FROM: usize = 64 << 10;

/// Definitions removed by one chunk; each may be tens of MiB of pages to give back.
const REMOVE_MAX: u32 = 20;

/// Rows looked at for a definition without its public text, before others have their turn.
const LOOK_MAX: i64 = 1_000;

/// What is left in the place of a definition that was removed.
const REMOVED: &str = "{}";

/// What one look for definitions without their public text came to.
#[derive(Debug)]
pub struct TextSearch {
    /// Its key and its content hash.
    pub found: Option<(i64, String)>,
    /// Where to look on; nowhere, at the end.
    pub after: Option<i64>,
}

/// See [`crate::SqliteStore::remove_definitions`].
pub(super) fn remove_definitions(tx: &mut Tx<'_>, before: Timestamp) -> Answer<u32> {
    let old: Vec<i64> = tx
        .conn
        .prepare_cached(
            "SELECT definition_key FROM dag_definitions INDEXED BY definitions_removable
             WHERE status IN ('rejected', 'expired') AND removed_at IS NULL AND updated_at < ?1
             ORDER BY updated_at LIMIT 0 + ?2",
        )?
        .query_map(params![before.0, REMOVE_MAX], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for key in &old {
        tx.conn.prepare_cached("DELETE FROM public_definitions WHERE definition_key = ?1")?.execute([key])?;
        tx.conn
            .prepare_cached(
                "UPDATE dag_definitions SET tasks_json = ?2, stored_bytes = 0, removed_at = ?3
                 WHERE definition_key = ?1 AND status IN ('rejected', 'expired')",
            )?
            .execute(params![key, REMOVED, tx.now.0])?;
        tx.memory.definitions.remove(key);
    }
    Ok(u32::try_from(old.len()).unwrap_or(u32::MAX))
}

/// See [`crate::SqliteStore::keep_public_text`].
pub(super) fn keep_public_text(tx: &Tx<'_>, definition: i64, text: &str) -> Answer<()> {
    tx.room()?;
    tx.conn
        .prepare_cached(
            "INSERT INTO public_definitions
             SELECT definition_key, ?2 FROM dag_definitions WHERE definition_key = ?1 AND removed_at IS NULL
             ON CONFLICT DO NOTHING",
        )?
        .execute(params![definition, text])?;
    Ok(())
}

/// Why a definition that was removed cannot be had.
pub(super) fn removed(status: RevisionStatus, removed_at: Timestamp) -> Refusal {
    let why =
        format!("this revision is {}, and its definition was removed on {}", status.word(), removed_at.day());
    Refusal::new(ErrorCode::Gone, why).hint("publish it again to open a new request")
}

impl Reader {
    /// The public text of a definition: canonical JSON, whose SHA-256 is the content hash.
    pub fn public_text(&self, definition: i64) -> Answer<String> {
        match self.kept_public_text(definition)? {
            Some(text) => Ok(text),
            None => Ok(canonical::canonical_json(&self.definition(definition)?)),
        }
    }

    /// About how long that is, without reading it.
    pub fn definition_bytes(&self, definition: i64) -> Answer<usize> {
        let sql =
            "SELECT coalesce((SELECT octet_length(text) FROM public_definitions WHERE definition_key = ?1),
                                   octet_length(tasks_json))
                   FROM dag_definitions WHERE definition_key = ?1";
        let bytes: Option<i64> = self.one(sql, [definition], |row| row.get(0))?;
        Ok(bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0))
    }

    /// The same if it is kept beside the stored form.
    pub fn kept_public_text(&self, definition: i64) -> Answer<Option<String>> {
        self.one("SELECT text FROM public_definitions WHERE definition_key = ?1", [definition], |row| {
            row.get(0)
        })
    }

    /// Looks for the next large definition after `after` whose public text is not kept, among so many rows.
    pub fn next_without_public_text(&self, after: i64) -> Answer<TextSearch> {
        let found = self
            .conn
            .prepare_cached(
                "SELECT definition_key, content_hash FROM dag_definitions
                 WHERE definition_key > ?1 AND definition_key <= ?1 + ?2 AND octet_length(tasks_json) >= ?3
                   AND definition_key NOT IN (SELECT definition_key FROM public_definitions)
                 ORDER BY definition_key LIMIT 1",
            )?
            .query_row(params![after, LOOK_MAX, PUBLIC_TEXT_FROM], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let last: Option<i64> =
            self.one("SELECT max(definition_key) FROM dag_definitions", [], |row| row.get(0))?.flatten();
        let seen = found.as_ref().map_or(after + LOOK_MAX, |(key, _)| *key);
        Ok(TextSearch { found, after: last.filter(|last| *last > seen).map(|_| seen) })
    }

    /// Refuses a revision whose definition was removed.
    pub(super) fn check_kept(&self, definition: i64) -> Answer<()> {
        let sql = "SELECT status, removed_at FROM dag_definitions WHERE definition_key = ?1 AND removed_at IS NOT NULL";
        let gone = self.one(sql, [definition], |row| {
            Ok(removed(parsed(row, 0, RevisionStatus::from_word)?, Timestamp(row.get(1)?)))
        })?;
        gone.map_or(Ok(()), |gone| Err(gone.into()))
    }

    /// Public texts that are not those of their definitions.
    pub(super) fn wrong_public_texts(&self) -> Answer<Vec<i64>> {
        let mut wrong = Vec::new();
        let mut statement = self.conn.prepare(
            "SELECT p.definition_key, p.text, f.content_hash FROM public_definitions p
             LEFT JOIN dag_definitions f USING (definition_key)",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let hash = canonical::hash_text(row.get_ref(1)?.as_str().unwrap_or_default());
            if row.get::<_, Option<String>>(2)?.as_deref() != Some(hash.as_str()) {
                wrong.push(row.get(0)?);
            }
        }
        Ok(wrong)
    }
}
