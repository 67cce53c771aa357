//! Making room, a chunk at a time: whoever writes the store removes rows, and whoever asked for it removes the files of
//! what is gone. Killed in between, the next one to prune finds what is left.
//!
//! ```text
//!   Pruning ── request ──► store (a chunk) ── runs of which only files are left ──► Pruning ── removes them ─┐
//!      ▲                                                                                                     │
//!      └────────────── says so with its next request, which lets the store forget them ──────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cis_api::run::{BareRun, PruneBody, PrunedChunk, PrunedRun};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::RunKey;
use cis_core::source::Timestamp;
use cis_store::port::{Prune, Pruned};
use cis_store::{Durability, Reader, SqliteStore};

use crate::data_dir::{DataDir, names};
use crate::skill::KeptSkills;

/// A prune under way.
#[derive(Debug)]
pub struct Pruning {
    request: PruneBody,
    /// What it has made an end of.
    pub runs: Vec<PrunedRun>,
    /// How much the files held that it has removed.
    pub bytes: u64,
    /// Runs whose files cannot be removed, and why.
    pub stuck: BTreeMap<RunKey, String>,
    /// Kept skills it has removed.
    pub skills: usize,
    /// Why others could not be.
    pub skills_stuck: Vec<String>,
}

impl Pruning {
    pub fn new(request: PruneBody) -> Self {
        let (runs, stuck) = (Vec::new(), BTreeMap::new());
        Self { request, runs, bytes: 0, stuck, skills: 0, skills_stuck: Vec::new() }
    }

    /// What to ask next.
    pub fn request(&self) -> PruneBody {
        self.request.clone()
    }

    /// Makes an end of at most so many runs with the next chunk.
    pub fn limit(&mut self, runs: u32) {
        self.request.limit = runs;
    }

    /// Takes in what came of it, and removes files; false when there is nothing more to do.
    pub fn take(&mut self, data_dir: &DataDir, pruned: PrunedChunk) -> bool {
        let PrunedChunk { runs, bare, after, more } = pruned;
        self.runs.extend(runs);
        self.request.after = after;
        self.request.cleared.clear();
        for bare in bare {
            if self.stuck.contains_key(&bare.key) {
                continue;
            }
            match clear(data_dir, &bare) {
                Ok(bytes) => {
                    self.bytes += bytes;
                    self.request.cleared.push(bare.key);
                }
                Err(e) => drop(self.stuck.insert(bare.key, e.to_string())),
            }
        }
        more || !self.request.cleared.is_empty()
    }

    /// Removes kept skills that no revision which may run needs. None goes while something is being published.
    pub fn clear_skills(&mut self, data_dir: &DataDir) -> Result<(), Refusal> {
        let reader = Reader::open(&data_dir.database())?;
        KeptSkills::of(data_dir).for_each_unneeded(&reader, |path| {
            let bytes = size(path);
            match fs::remove_dir_all(path) {
                Ok(()) => (self.bytes, self.skills) = (self.bytes + bytes, self.skills + 1),
                Err(e) => self.skills_stuck.push(format!("`{}`: {e}", path.display())),
            }
        })
    }
}

/// The first request of a prune of what ended before `before`, but for the latest `keep` runs of each DAG.
pub fn everything_before(before: Timestamp, keep: u32) -> PruneBody {
    PruneBody { before, keep, limit: u32::MAX, after: RunKey(0), cleared: Vec::new() }
}

/// What a prune would make an end of now, the oldest first.
pub fn foretell(reader: &Reader, request: PruneBody, now: Timestamp) -> Result<Vec<PrunedRun>, Refusal> {
    let runs = reader.prunable(&Prune::of(request, now))?;
    let pruned = Pruned { runs, bare: Vec::new(), after: RunKey(0), more: false };
    Ok(PrunedChunk::from(pruned).runs)
}

/// Finishes what a prune that was killed left. Only for whoever holds the lock of the directory's coordinator.
pub(crate) fn finish(data_dir: &DataDir, now: Timestamp) -> Result<(), Refusal> {
    let unable = |e: io::Error| Refusal::new(ErrorCode::Unavailable, format!("cannot prune: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(unable)?;
    let store = SqliteStore::open(&data_dir.database(), Durability::Power)?;
    let mut pruning = Pruning::new(PruneBody { limit: 0, ..everything_before(now, 0) });
    loop {
        let chunk = runtime.block_on(store.prune(Prune::of(pruning.request(), now)))?;
        if !pruning.take(data_dir, chunk.into()) {
            break;
        }
    }
    store.close();
    match pruning.stuck.into_values().next() {
        Some(why) => Err(Refusal::new(ErrorCode::Unavailable, why)),
        None => Ok(()),
    }
}

/// Removes what a run left behind; answers how much that was.
fn clear(data_dir: &DataDir, bare: &BareRun) -> io::Result<u64> {
    let mut bytes = 0;
    for path in remains(data_dir, bare) {
        bytes += size(&path);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(io::Error::new(e.kind(), format!("`{}`: {e}", path.display())));
            }
            _ => {}
        }
    }
    Ok(bytes)
}

/// Everything outside the database that was a run's.
fn remains(data_dir: &DataDir, bare: &BareRun) -> Vec<PathBuf> {
    let (key, run_id) = (bare.key.0, bare.run_id);
    let mut paths = vec![
        data_dir.logs(key),
        data_dir.work(run_id),
        data_dir.context(key),
        data_dir.context_of_new(run_id),
    ];
    let of_run = |name: &String| {
        let execution = name.split('.').next().and_then(|execution| execution.parse().ok());
        execution.is_some_and(|execution: i64| (bare.first.0..=bare.last.0).contains(&execution))
    };
    paths.extend(
        names(&data_dir.outputs())
            .iter()
            .filter(|name| of_run(name))
            .map(|name| data_dir.outputs().join(name)),
    );
    paths
}

/// How much room the files of all runs take.
pub(crate) fn files_size(data_dir: &DataDir) -> u64 {
    size(&data_dir.all_logs()) + size(&data_dir.all_work())
}

/// How much the files below a path hold. What goes meanwhile holds nothing.
fn size(path: &Path) -> u64 {
    let Ok(meta) = path.symlink_metadata() else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    let inside = fs::read_dir(path).into_iter().flatten().flatten();
    inside.map(|entry| size(&entry.path())).sum()
}
