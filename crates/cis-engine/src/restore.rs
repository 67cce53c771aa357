//! From a backup to a data directory.
//!
//! ```text
//!   FILE ─ copy ─► restoring/ ─ checked ─►  old database, surroundings, logs ─► before-restore.N/
//!                                           new surroundings, logs, key, skills ─► their places
//!                                           new database ─► dag.db          (last: until then nobody can begin)
//! ```
//!
//! What happened after the backup is not in it. So attempts that were under way then count as interrupted, unless the
//! runner still has them; and the store begins at a higher epoch than anybody has seen, so that no fence is given out
//! twice.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Epoch, RunKey};
use cis_store::StoreError;
use cis_store::rows::RunRow;
use cis_store::{Copy, Durability, Label, RESTORE_LEAP, Reader, converted_epoch, fences_used_up};

use crate::backup::{sync_parent, unable, verify};
use crate::context::Context;
use crate::data_dir::{CoordinatorLock, DataDir, names};
use crate::skill::KeptSkills;
use crate::skill::kept::is_packed_tree;

/// What the `boot` file says after a restore: no boot of any machine, so nothing is taken for never started.
const NO_BOOT: &str = "restored";

/// What was restored.
#[derive(Debug, Clone)]
pub struct Restored {
    /// What the backup says of itself; nothing, if it is a plain copy of a database.
    pub label: Option<Label>,
    pub runs: u64,
    pub unfinished: usize,
    /// Where what was there before is.
    pub aside: Option<PathBuf>,
}

/// Puts the backup in `file` in the place of the database, and what goes with it.
pub fn restore(data_dir: &DataDir, file: &Path, force: bool) -> Result<Restored, Refusal> {
    let _lock = lock(data_dir)?;
    if data_dir.database().exists() && !force {
        let why = format!("`{}` has a database already", data_dir.root().display());
        return Err(Refusal::new(ErrorCode::AlreadyExists, why)
            .hint("`--force` puts the backup in its place, and keeps it beside"));
    }
    let room = Room::make(data_dir)?;
    let (label, epoch) = prepare(data_dir, &room, file).map_err(|e| unfit(file, e))?;
    let reader = Reader::open(&room.database())?;
    let (runs, unfinished) = (reader.run_count()?, reader.unfinished()?);
    let at = |e: io::Error| unable("put everything in its place in", data_dir.root(), &e);
    for run in &unfinished {
        rehouse(data_dir, &room, run).map_err(at)?;
    }
    // Before the revisions that need them. What is there already is good whenever the backup was taken.
    keep_skills(data_dir, &room).map_err(at)?;
    let aside = swap(data_dir, &room, &reader).map_err(at)?;
    drop(reader);
    verify(&data_dir.database())?;
    // It was looked over a moment ago: the first coordinator need not.
    let _ = data_dir.note_stop(epoch);
    Ok(Restored { label, runs, unfinished: unfinished.len(), aside })
}

fn lock(data_dir: &DataDir) -> Result<CoordinatorLock, Refusal> {
    let locked = data_dir.try_lock().map_err(|e| unable("use", data_dir.root(), &e))?;
    locked.ok_or_else(|| {
        Refusal::new(ErrorCode::Unavailable, "a coordinator works on this data directory")
            .hint("stop the node, or wait until no run is left, and try again")
    })
}

/// Where the backup is taken apart. Gone when it is done with.
struct Room(PathBuf);

impl Room {
    fn make(data_dir: &DataDir) -> Result<Self, Refusal> {
        let room = Self(data_dir.restoring());
        // What a restore that was killed left.
        let _ = fs::remove_dir_all(&room.0);
        DirBuilder::new().mode(0o700).create(&room.0).map_err(|e| unable("make", &room.0, &e))?;
        Ok(room)
    }

    fn database(&self) -> PathBuf {
        self.0.join("dag.db")
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes a checked store of the backup, and files of what goes with it. Nothing of the data directory is touched.
fn prepare(data_dir: &DataDir, room: &Room, file: &Path) -> Result<(Option<Label>, Epoch), Refusal> {
    let mut from = fs::File::open(file).map_err(|e| unable("read", file, &e))?;
    let made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(room.database());
    let copied = made.and_then(|mut to| io::copy(&mut from, &mut to));
    copied.map_err(|e| unable("copy", file, &e))?;
    let copy = Copy::open(&room.database())?;
    let label = copy.label()?;
    copy.files(|name, content| {
        let unable = |e: io::Error| StoreError::Database(format!("cannot unpack `{name}`: {e}"));
        let place = place(name).ok_or_else(|| StoreError::Damaged(format!("no place for `{name}`")))?;
        if name.strip_prefix("skills/").is_some_and(|of| !is_packed_tree(of, content)) {
            return Err(StoreError::Damaged(format!("`{name}` in it is not what its name says")));
        }
        unpack(&room.0.join(place), content).map_err(unable)
    })?;
    let epoch = Epoch(copy.epoch()?.max(epoch_seen(data_dir, &copy)).0 + RESTORE_LEAP);
    if epoch > Epoch::MAX {
        return Err(fences_used_up());
    }
    copy.into_store(epoch)?;
    verify(&room.database())?;
    fs::File::open(room.database())
        .and_then(|file| file.sync_all())
        .map_err(|e| unable("write", file, &e))?;
    Ok((label, epoch))
}

/// The highest epoch that is remembered here: by the database, as far as it can be read, and by the runner. What the
/// runner remembers does not say which version counted; beside a backup of an earlier one, that is assumed.
fn epoch_seen(data_dir: &DataDir, copy: &Copy) -> Epoch {
    let database = Reader::epoch_in(&data_dir.database()).unwrap_or(Epoch(0));
    let runner = Epoch(cis_runner::client::epoch_seen(data_dir.root()).unwrap_or(0));
    database.max(if copy.had_long_counts { converted_epoch(runner) } else { runner })
}

/// Where a file of a backup belongs, if it is one of those that are in backups: a name must not lead elsewhere.
fn place(name: &str) -> Option<&Path> {
    let path = Path::new(name);
    let parts: Option<Vec<&str>> = path
        .components()
        .map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    match parts?.as_slice() {
        ["node.key"] | ["contexts", _] | ["skills", _] | ["logs", _, _] => Some(path),
        _ => None,
    }
}

fn unpack(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Keeps the skills of a backup.
fn keep_skills(data_dir: &DataDir, room: &Room) -> io::Result<()> {
    let packed = room.0.join("skills");
    let names = names(&packed);
    if names.is_empty() {
        return Ok(());
    }
    let lock = KeptSkills::of(data_dir).lock()?;
    for name in names {
        let bytes = fs::read(packed.join(&name))?;
        lock.keep_packed(&bytes, &format!("sha256:{name}"), Durability::Power).map_err(io::Error::other)?;
    }
    Ok(())
}

/// A run that came over the network starts its tasks in a directory of its own here, wherever it was before.
fn rehouse(data_dir: &DataDir, room: &Room, run: &RunRow) -> io::Result<()> {
    let path = room.0.join("contexts").join(format!("{}.json", run.key));
    let work = data_dir.work(run.run_id);
    match Context::load(&path) {
        Ok(context) if context.cwd.ends_with(Path::new("work").join(run.run_id.to_string())) => {
            fs::create_dir_all(&work)?;
            Context { cwd: work, ..context }.save(&path, Durability::Power)
        }
        Ok(_) => Ok(()),
        // A plain copy of a database has none.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Moves what is there aside, and what was prepared into its place. Killed at any moment, nothing is lost: as long as
/// there is no database where one was, nobody begins a new one.
fn swap(data_dir: &DataDir, room: &Room, new: &Reader) -> io::Result<Option<PathBuf>> {
    fs::write(data_dir.boot(), NO_BOOT)?;
    let root = data_dir.root();
    let aside = aside(root)?;
    for name in ["dag.db", "dag.db-wal", "dag.db-shm", "contexts", "outputs", "logs"] {
        // A directory with nothing in it is not worth keeping.
        let _ = fs::remove_dir(root.join(name));
        move_if_there(&root.join(name), &aside.join(name))?;
    }
    if room.0.join("node.key").exists() {
        move_if_there(&root.join("node.key"), &aside.join("node.key"))?;
    }
    for name in ["contexts", "logs", "node.key"] {
        move_if_there(&room.0.join(name), &root.join(name))?;
    }
    DataDir::create(root)?;
    // What has ended does not change any more, so its logs are good whenever the backup was taken.
    for name in names(&aside.join("logs")) {
        let run = name.parse().ok().and_then(|key| new.run(RunKey(key)).ok()?);
        let logs = data_dir.all_logs().join(&name);
        if run.is_some_and(|run| run.completed_at.is_some()) && !logs.exists() {
            fs::rename(aside.join("logs").join(&name), logs)?;
        }
    }
    sync_parent(&root.join("dag.db"))?;
    fs::rename(room.database(), data_dir.database())?;
    sync_parent(&data_dir.database())?;
    let was_empty = fs::read_dir(&aside)?.next().is_none();
    if was_empty {
        fs::remove_dir(&aside)?;
    }
    Ok((!was_empty).then_some(aside))
}

/// A new directory for what was there before.
fn aside(root: &Path) -> io::Result<PathBuf> {
    let mut number = 1;
    loop {
        let path = root.join(format!("before-restore.{number}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|()| path),
        }
    }
}

fn move_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        moved => moved,
    }
}

/// The refusal of a backup that is none, or not whole.
fn unfit(file: &Path, e: Refusal) -> Refusal {
    if e.code != ErrorCode::DatabaseDamaged {
        return e;
    }
    let why = e.message.trim_start_matches("the database is damaged: ");
    Refusal::new(e.code, format!("`{}` cannot be restored: {why}", file.display()))
        .hint("nothing was changed; try another backup")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_backup_stays_in_the_data_directory() {
        for good in ["node.key", "contexts/7.json", "logs/7/9.1.log", "skills/3f"] {
            assert!(place(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "/etc/passwd",
            "../node.key",
            "contexts/../../x",
            "logs/7",
            "dag.db",
            "contexts/a/b",
            "skills/a/b",
        ] {
            assert!(place(bad).is_none(), "{bad}");
        }
    }
}
