//! What the writer keeps of definitions and of runs, within bounds: the text of a definition may be tens of MiB, and what a
//! run was given hundreds of KiB.
//!
//! The row of a run holds its definition. So a run is kept only while its definition is, and what bounds definitions bounds
//! those of runs too.

use std::collections::HashMap;
use std::sync::Arc;

use cis_core::id::RunKey;

use super::tx::RunRow;
use crate::port::Definition;

/// Definitions kept parsed; more than this many at once are parsed again when needed.
const DEFINITIONS_MAX: usize = 1_024;

/// The stored text of those together; one alone may be longer. Parsed, they are a few times that.
const DEFINITIONS_BYTES_MAX: usize = 16 << 20;

/// Runs kept in mind; more than this many at once are read again when needed.
const RUNS_MAX: usize = 1_024;

/// What those were given, together.
const RUNS_BYTES_MAX: usize = 16 << 20;

/// Parsed definitions. Their rows do not change once they are there (but for [`DefinitionCache::remove`]), so they stay when an
/// operation is undone that neither added nor removed them: a refusal costs no other caller a parse.
#[derive(Debug, Default)]
pub(super) struct DefinitionCache {
    parsed: HashMap<i64, Parsed>,
    bytes: usize,
    /// Counts uses: what was used longest ago goes first.
    uses: u64,
    /// Definitions that the present operation has added or removed.
    changed: Vec<i64>,
}

#[derive(Debug)]
struct Parsed {
    definition: Arc<Definition>,
    bytes: usize,
    used: u64,
}

impl DefinitionCache {
    pub(super) fn get(&mut self, key: i64) -> Option<Arc<Definition>> {
        self.uses += 1;
        let found = self.parsed.get_mut(&key)?;
        found.used = self.uses;
        Some(found.definition.clone())
    }

    pub(super) fn contains(&self, key: i64) -> bool {
        self.parsed.contains_key(&key)
    }

    /// Keeps a definition whose stored text has so many bytes; answers which others made room for it.
    pub(super) fn insert(&mut self, definition: Arc<Definition>, bytes: usize) -> Vec<i64> {
        let key = definition.key;
        self.drop_parsed(key);
        let mut evicted = Vec::new();
        while self.parsed.len() >= DEFINITIONS_MAX || self.bytes.saturating_add(bytes) > DEFINITIONS_BYTES_MAX
        {
            let Some((&oldest, _)) = self.parsed.iter().min_by_key(|(_, parsed)| parsed.used) else { break };
            self.drop_parsed(oldest);
            evicted.push(oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        self.parsed.insert(key, Parsed { definition, bytes, used: self.uses });
        evicted
    }

    /// The present operation adds this definition: if it is undone, the next one may get the same key.
    pub(super) fn mark_added(&mut self, key: i64) {
        self.changed.push(key);
    }

    /// The present operation removes what this definition says.
    pub(super) fn remove(&mut self, key: &i64) {
        self.changed.push(*key);
        self.drop_parsed(*key);
    }

    /// What was changed so far will not be undone any more, or all of it.
    pub(super) fn begin_operation(&mut self) {
        self.changed.clear();
    }

    /// Forgets what the present operation has changed. It stays marked: after a savepoint, the operation goes on.
    pub(super) fn undo_operation(&mut self) {
        for ix in 0..self.changed.len() {
            self.drop_parsed(self.changed[ix]);
        }
    }

    pub(super) fn clear(&mut self) {
        self.parsed.clear();
        self.bytes = 0;
    }

    fn drop_parsed(&mut self, key: i64) {
        if let Some(gone) = self.parsed.remove(&key) {
            self.bytes -= gone.bytes;
        }
    }
}

/// Rows of runs that are not over, as they were last written.
#[derive(Debug, Default)]
pub(super) struct RunCache {
    rows: HashMap<RunKey, RunRow>,
    bytes: usize,
}

impl RunCache {
    pub(super) fn get(&self, key: RunKey) -> Option<&RunRow> {
        self.rows.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: RunKey) -> Option<&mut RunRow> {
        self.rows.get_mut(&key)
    }

    pub(super) fn contains(&self, key: RunKey) -> bool {
        self.rows.contains_key(&key)
    }

    /// Is there as much as may be?
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= RUNS_MAX || self.bytes >= RUNS_BYTES_MAX
    }

    pub(super) fn insert(&mut self, key: RunKey, row: RunRow) {
        self.bytes += row.given_bytes;
        if let Some(before) = self.rows.insert(key, row) {
            self.bytes -= before.given_bytes;
        }
    }

    pub(super) fn remove(&mut self, key: &RunKey) -> Option<RunRow> {
        let row = self.rows.remove(key)?;
        self.bytes -= row.given_bytes;
        Some(row)
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(RunKey, &RunRow) -> bool) {
        self.rows.retain(|key, row| keep(*key, row));
        self.bytes = self.rows.values().map(|row| row.given_bytes).sum();
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
#[cfg(not(schedule))]
#[path = "cache_tests.rs"]
mod tests;
