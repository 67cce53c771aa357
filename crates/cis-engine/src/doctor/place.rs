//! The directory itself: whose its files are and who may read them, how much room is left, and files that nothing needs.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cis_core::error::Refusal;
use cis_core::id::{ExecutionId, Fence, RunKey};
use cis_core::source::Clock;
use cis_store::Reader;

use super::{Examined, Hand, State};
use crate::data_dir::{DataDir, names};
use crate::origin;
use crate::prune;
use crate::system::System;

/// With less room than this, a node is about to stop taking work.
const ROOM_MIN: u64 = 256 << 20;

/// For its owner only: what is in the database, who may call, who the node is, environments.
const PRIVATE: [&str; 7] =
    ["dag.db", "dag.db-wal", "dag.db-shm", "admin.token", "node.key", "door.key", "runner.journal"];

/// Nobody else may look into the directory, nor at what is secret in it.
pub(super) fn permissions(data_dir: &DataDir, repair: bool) -> Examined {
    let root = data_dir.root();
    let mut paths = vec![root.to_owned()];
    paths.extend(PRIVATE.map(|name| root.join(name)));
    paths.extend(names(&data_dir.contexts()).into_iter().map(|name| data_dir.contexts().join(name)));
    let own = rustix::process::getuid().as_raw();
    let (mut found, mut repaired) = (Vec::new(), Vec::new());
    for path in paths {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        let (mode, shown) = (meta.permissions().mode() & 0o777, path.display());
        if meta.uid() != own {
            found.push(format!("`{shown}` belongs to user {}", meta.uid()));
            continue;
        }
        if mode & 0o077 == 0 {
            continue;
        }
        let closed = fs::Permissions::from_mode(mode & 0o700);
        if repair && fs::set_permissions(&path, closed).is_ok() {
            repaired.push(format!("`{shown}` is now for its owner only (it was {mode:03o})"));
        } else {
            found.push(format!("`{shown}` is open to others ({mode:03o})"));
        }
    }
    // Nobody is disturbed by that.
    let hand = Hand { repair, free: true, works: false };
    Examined::repairable("permissions", "for the owner only", found, repaired, hand)
}

/// Is it a directory in its own right, or a copy of one?
pub(super) fn origin(data_dir: &DataDir) -> Examined {
    match origin::copied(data_dir) {
        Some(copied) => Examined::new("directory", State::Note, copied.to_string()),
        None => Examined::sound("directory", "no copy of another one"),
    }
}

/// How much room there is.
pub(super) fn disk(data_dir: &DataDir) -> Examined {
    let size = |name: &str| fs::metadata(data_dir.root().join(name)).map_or(0, |file| file.len());
    let sizes = format!("database {}, its log {}", bytes(size("dag.db")), bytes(size("dag.db-wal")));
    match rustix::fs::statvfs(data_dir.root()) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let told = format!("{} free; {sizes}", bytes(free));
            let state = if free < ROOM_MIN { State::Problem } else { State::Sound };
            Examined::new("disk", state, told)
        }
        Err(e) => Examined::new("disk", State::Unknown, format!("cannot ask for free space: {e}")),
    }
}

/// Files of runs and attempts that are over, and what a kill left half done.
pub(super) fn files(data_dir: &DataDir, reader: &Reader, hand: Hand) -> Result<Examined, Refusal> {
    // First the files, then the store: whatever is over by then, its file is about to go or was forgotten.
    let (contexts, outputs) = (names(&data_dir.contexts()), names(&data_dir.outputs()));
    let (mut stale, mut left) = (Vec::new(), Vec::new());
    for name in contexts {
        if !needs_context(reader, &name, hand.works)? {
            stale.push(data_dir.contexts().join(name));
        }
    }
    for name in outputs {
        if !needs_output(reader, &name)? {
            left.push(data_dir.outputs().join(name));
        }
    }
    stale.extend(of_pruned(data_dir, reader)?);
    stale.extend([data_dir.restoring()]);
    stale.retain(|path| path.symlink_metadata().is_ok());
    let (mut found, mut repaired) = half_pruned(data_dir, reader, hand)?;
    found.extend(discard(stale, hand, &mut repaired));
    found.extend(without_context(data_dir, reader)?);
    // A kill leaves outputs of the attempt it cut short, and the next coordinator removes them: nothing is wrong.
    let mut known = discard(left, hand, &mut repaired);
    if !found.is_empty() {
        found.append(&mut known);
    }
    let told = Examined::repairable("files", "nothing is left over", found, repaired, hand);
    let hint = (!known.is_empty()).then(|| hand.remedy().to_owned());
    known.extend(unknown_runs(data_dir, reader));
    if told.state == State::Sound && !known.is_empty() {
        return Ok(Examined { state: State::Note, hint, ..Examined::of("files", "", known) });
    }
    Ok(told)
}

/// Removes files that nothing needs, if that disturbs no coordinator; answers what is left to say of them.
fn discard(stale: Vec<PathBuf>, hand: Hand, repaired: &mut Vec<String>) -> Vec<String> {
    let mut found = Vec::new();
    for path in stale {
        let shown = path.display().to_string();
        match hand.free.then(|| remove(&path)) {
            Some(Ok(())) => repaired.push(format!("removed `{shown}`")),
            Some(Err(e)) => found.push(format!("`{shown}` is needed by nothing, and cannot be removed: {e}")),
            None => found.push(format!("`{shown}` is needed by nothing")),
        }
    }
    found
}

/// What a prune that was killed left. While somebody works, it may be under way.
fn half_pruned(
    data_dir: &DataDir,
    reader: &Reader,
    hand: Hand,
) -> Result<(Vec<String>, Vec<String>), Refusal> {
    let left = reader.half_pruned()?.len();
    if left == 0 || hand.works {
        return Ok((Vec::new(), Vec::new()));
    }
    let left = format!("runs that were pruned and are not all gone: {left}");
    Ok(match hand.free.then(|| prune::finish(data_dir, System.now())) {
        Some(Ok(())) => (Vec::new(), vec![format!("{left}; now they are")]),
        Some(Err(e)) => (vec![format!("{left}: {e}")], Vec::new()),
        None => (vec![left], Vec::new()),
    })
}

/// Files of runs of which nothing should be left.
fn of_pruned(data_dir: &DataDir, reader: &Reader) -> Result<Vec<PathBuf>, Refusal> {
    let under_way = reader.half_pruned()?;
    let mut found = Vec::new();
    for name in names(&data_dir.all_logs()) {
        let Ok(key) = name.parse().map(RunKey) else { continue };
        if reader.pruned(key)?.is_some() && !under_way.iter().any(|bare| bare.run == key) {
            found.push(data_dir.all_logs().join(name));
        }
    }
    for name in names(&data_dir.all_work()) {
        let Ok(run_id) = name.parse() else { continue };
        if reader.pruned_by_id(run_id)?.is_some() && !under_way.iter().any(|bare| bare.run_id == run_id) {
            found.push(data_dir.all_work().join(name));
        }
    }
    Ok(found)
}

/// `1.5 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let power = (count.ilog2() / 10).min(4);
    let tenths = (count >> (10 * (power - 1))) * 10 / 1024;
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[power as usize - 1])
}

/// Runs that are not over and have lost their surroundings: the rest of their tasks cannot start.
fn without_context(data_dir: &DataDir, reader: &Reader) -> Result<Vec<String>, Refusal> {
    let mut found = Vec::new();
    for run in reader.unfinished()? {
        let own = [data_dir.context(run.key.0), data_dir.context_of_new(run.run_id)];
        let places = if run.at_node { vec![data_dir.node_context()] } else { own.to_vec() };
        // It may have ended meanwhile.
        let lost = !places.iter().any(|place| place.exists());
        if lost && reader.run(run.key)?.is_some_and(|run| run.completed_at.is_none()) {
            found.push(format!("the environment of {} is gone: cancel it", run.label()));
        }
    }
    Ok(found)
}

/// Is it the context of a run that is not over? Under the name of a run id it may be of one about to begin.
fn needs_context(reader: &Reader, name: &str, works: bool) -> Result<bool, Refusal> {
    let Some(stem) = name.strip_suffix(".json") else { return Ok(false) };
    if stem == "node" {
        // Of every run that comes over the network.
        return Ok(true);
    }
    let run = match (stem.parse(), stem.parse()) {
        (Ok(key), _) => reader.run(RunKey(key))?,
        (_, Ok(_)) if works => return Ok(true),
        (_, Ok(run_id)) => reader.run_by_id(run_id)?,
        _ => None,
    };
    Ok(run.is_some_and(|run| run.completed_at.is_none()))
}

/// Is it where an attempt that is under way writes?
fn needs_output(reader: &Reader, name: &str) -> Result<bool, Refusal> {
    let mut numbers = name.split('.').map(|part| part.parse().ok());
    let (Some(Some(execution)), Some(Some(fence))) = (numbers.next(), numbers.next()) else {
        return Ok(false);
    };
    let attempt = reader.attempt_of(ExecutionId(execution), Fence(fence))?;
    Ok(attempt.is_some_and(|attempt| attempt.live))
}

/// What belongs to runs that the store does not know, after a restore most likely: kept, since it may be wanted.
fn unknown_runs(data_dir: &DataDir, reader: &Reader) -> Vec<String> {
    let mut found = Vec::new();
    for name in names(&data_dir.all_logs()) {
        let known = name.parse().is_ok_and(|key| {
            !matches!((reader.run(RunKey(key)), reader.pruned(RunKey(key))), (Ok(None), Ok(None)))
        });
        if !known {
            found.push(format!("`logs/{name}` is of a run that the database does not know"));
        }
    }
    for name in names(data_dir.root()).into_iter().filter(|name| name.starts_with("before-restore.")) {
        found.push(format!("`{name}` holds what was there before a restore"));
    }
    found
}

fn remove(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_their_largest_unit() {
        let told = [0, 1023, 1024, 1536, 5 << 20, (3 << 30) + (1 << 29), 7 << 40, 5 << 50].map(bytes);
        assert_eq!(
            told,
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.5 GiB", "7.0 TiB", "5120.0 TiB"]
        );
    }
}
