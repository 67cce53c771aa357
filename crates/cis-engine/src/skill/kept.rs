//! Skills as they were published, kept by content in the data directory and run from there: an edit of the skill, a
//! minute or a task later, changes nothing that was confirmed.
//!
//! ```text
//!   skills/
//!     3f1c…/       the tree whose hash is sha256:3f1c…; files for reading only
//!     .new-PID-N/  a tree being copied, renamed when it is whole
//!   skills.lock    shared by publishers, held alone by what removes trees
//! ```
//!
//! A tree is there before the revision that needs it is committed. The lock keeps the two together: publishers share it
//! from before the copy until after the commit; trees are removed only under an exclusive one.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_store::{Durability, Reader};

use super::SkillPath;
use super::packed::unpack;
use super::tree::{self, Of, TreeError};
use crate::data_dir::{DataDir, names};

/// How the name of a tree that is being copied begins.
const NEW: &str = ".new-";

/// What is locked while trees are kept or removed.
const LOCK: &str = "skills.lock";

/// The kept skills of a data directory.
#[derive(Debug, Clone)]
pub struct KeptSkills {
    dir: PathBuf,
}

/// While it lives, no kept tree is removed.
#[derive(Debug)]
pub struct KeptLock {
    kept: KeptSkills,
    _shared: File,
}

/// What became of looking at a kept tree.
#[derive(Debug)]
pub(crate) enum Kept {
    Sound,
    Missing,
    /// It is not what its name says; why, as far as it can be told.
    Altered(String),
}

/// Why a tree cannot be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error("it has changed: its files no longer have the hash `{0}`")]
    Changed(String),
    #[error("{0}")]
    Write(io::Error),
}

impl KeptSkills {
    pub fn of(data_dir: &DataDir) -> Self {
        Self { dir: data_dir.skills() }
    }

    /// Where the tree of this hash is kept, if it is; nothing for built-in skills.
    pub fn place(&self, tree_hash: &str) -> Option<PathBuf> {
        name_of(tree_hash).map(|name| self.dir.join(name))
    }

    /// Compares a kept tree with its hash.
    pub(crate) fn verify(&self, tree_hash: &str) -> Kept {
        let Some(place) = self.place(tree_hash) else { return Kept::Missing };
        if !place.exists() {
            return Kept::Missing;
        }
        match tree::hash(&place, Of::Copy) {
            Ok(hash) if hash == tree_hash => Kept::Sound,
            Ok(_) => Kept::Altered(last_changed(&place)),
            Err(e) => Kept::Altered(e.to_string()),
        }
    }

    /// A kept tree in one piece, for a backup; nothing if it is not there or not what it was.
    pub(crate) fn pack(&self, tree_hash: &str) -> Option<Vec<u8>> {
        let packed = tree::pack(&self.place(tree_hash)?, Of::Copy).ok()?;
        (tree::hash_packed(&packed) == tree_hash).then_some(packed)
    }

    /// Waits while trees are removed, and lets none be removed from then on.
    pub(crate) fn lock(&self) -> io::Result<KeptLock> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let shared = self.lock_file()?;
        shared.lock_shared()?;
        Ok(KeptLock { kept: self.clone(), _shared: shared })
    }

    /// Trees that no revision which may run needs, and copies that were broken off; `act` is called for each while
    /// nothing can be published. Nothing is found while something is being published.
    pub(crate) fn for_each_unneeded(
        &self,
        reader: &Reader,
        mut act: impl FnMut(&Path),
    ) -> Result<(), Refusal> {
        if !self.dir.exists() {
            return Ok(());
        }
        let alone = self.lock_file().map_err(|e| Refusal::unwritten("to the kept skills", &e))?;
        match alone.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(e)) => return Err(Refusal::unwritten("to the kept skills", &e)),
        }
        let pinned = reader.pinned_skills()?;
        let needed: BTreeSet<&str> = pinned.iter().filter_map(|pin| name_of(&pin.tree_hash)).collect();
        for name in names(&self.dir) {
            let unneeded = is_tree_name(&name) && !needed.contains(name.as_str());
            if unneeded || name.starts_with(NEW) {
                act(&self.dir.join(name));
            }
        }
        Ok(())
    }

    /// A file of its own: the directory can be opened, and so be locked, by an agent in its sandbox.
    fn lock_file(&self) -> io::Result<File> {
        let path = self.dir.with_file_name(LOCK);
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
    }

    /// A directory of its own, removed unless it gets a name.
    fn make_room(&self) -> io::Result<Room> {
        let mut number = 0;
        loop {
            let path = self.dir.join(format!("{NEW}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                // Another thread's, or what a process of the same number left when it was killed.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
                made => return made.map(|()| Room(path)),
            }
        }
    }

    fn sync(&self, durability: Durability) -> io::Result<()> {
        if durability == Durability::Power { File::open(&self.dir)?.sync_all() } else { Ok(()) }
    }
}

impl KeptLock {
    /// Copies the skill in `source`, unless its tree is kept already. It is the copied bytes that are hashed: a change
    /// meanwhile does not slip in.
    pub(crate) fn keep(
        &self,
        source: &Path,
        tree_hash: &str,
        durability: Durability,
    ) -> Result<(), KeepError> {
        if matches!(self.kept.verify(tree_hash), Kept::Sound) {
            // Another process may have renamed it just now.
            return self.kept.sync(durability).map_err(KeepError::Write);
        }
        let packed = tree::pack(source, Of::Source)?;
        self.keep_packed(&packed, tree_hash, durability)
    }

    /// The same from a packed tree. What is in its place and is not sound is replaced.
    pub(crate) fn keep_packed(
        &self,
        packed: &[u8],
        tree_hash: &str,
        durability: Durability,
    ) -> Result<(), KeepError> {
        let changed = || KeepError::Changed(tree_hash.to_owned());
        let place = self.kept.place(tree_hash).ok_or_else(changed)?;
        if tree::hash_packed(packed) != tree_hash {
            return Err(changed());
        }
        let room = self.kept.make_room().map_err(KeepError::Write)?;
        unpack(packed, &room.0, durability).map_err(|e| match e {
            TreeError::Io { error, .. } => KeepError::Write(error),
            other => other.into(),
        })?;
        while let Err(error) = fs::rename(&room.0, &place) {
            match self.kept.verify(tree_hash) {
                // Another process was faster.
                Kept::Sound => break,
                // Another process is just about to replace it.
                Kept::Missing if is_occupied(&error) => {}
                Kept::Missing => return Err(KeepError::Write(error)),
                Kept::Altered(_) => {
                    let old = self.kept.make_room().map_err(KeepError::Write)?;
                    match fs::rename(&place, &old.0) {
                        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(KeepError::Write(e)),
                        _ => {}
                    }
                }
            }
        }
        self.kept.sync(durability).map_err(KeepError::Write)
    }
}

/// Was a directory not renamed because another one has the name?
fn is_occupied(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}

/// A directory that is removed when it is done with.
struct Room(PathBuf);

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Keeps the skills that `dag` names, as they were pinned; built-in ones need no files. Hold the lock until the
/// revision is committed: from then on it protects them.
pub fn keep(
    dag: &Dag,
    path: &SkillPath,
    data_dir: &DataDir,
    durability: Durability,
) -> Result<Option<KeptLock>, Refusal> {
    let mut files = dag.skills.iter().filter(|(_, hash)| name_of(hash).is_some()).peekable();
    if files.peek().is_none() {
        return Ok(None);
    }
    let unwritten = |e: &io::Error| Refusal::unwritten("a copy of its skills", e);
    let lock = KeptSkills::of(data_dir).lock().map_err(|e| unwritten(&e))?;
    for (name, hash) in files {
        let source = path.directory_of(name).unwrap_or_default();
        lock.keep(&source, hash, durability).map_err(|e| match e {
            KeepError::Write(e) => unwritten(&e),
            e => Refusal::new(ErrorCode::ValidationFailed, format!("skill `{name}` cannot be kept: {e}"))
                .hint("it was edited just now; publish again when that is done"),
        })?;
    }
    Ok(Some(lock))
}

/// The name of the directory that a tree of this hash is kept in. Hashes come out of stored definitions: what is not
/// one must not become part of a path.
pub(crate) fn name_of(tree_hash: &str) -> Option<&str> {
    tree_hash.strip_prefix("sha256:").filter(|name| is_tree_name(name))
}

/// Is it a packed tree that may be kept under this name?
pub(crate) fn is_packed_tree(name: &str, packed: &[u8]) -> bool {
    is_tree_name(name) && tree::hash_packed(packed) == format!("sha256:{name}")
}

fn is_tree_name(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The file of an altered tree that was changed last, most likely the one that was altered.
fn last_changed(dir: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let entries = tree::list(dir, Of::Copy).unwrap_or_default();
    let last = entries.iter().max_by_key(|entry| (entry.meta.ctime(), entry.meta.ctime_nsec()));
    last.map_or_else(|| "it is empty".to_owned(), |entry| format!("last changed: `{}`", entry.path.display()))
}
