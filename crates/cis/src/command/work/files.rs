//! Where a worker puts the files of its tasks: what they are given, and what they answer.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use tempfile::TempDir;

/// Of the data directory.
const DIR: &str = "work-files";

/// Locked while what it is in is in use. A file, since an agent in a sandbox can hold the lock of a directory.
const LOCK: &str = "lock";

/// A directory for each task, for the worker's own user only; gone with this.
pub(super) enum WorkFiles {
    /// The owner's: in the data directory, where agents in a sandbox neither read inputs nor write answers of others.
    Hidden { dir: TempDir, _lock: File },
    /// Those of a caller with a token, which may be such an agent.
    Temporary,
}

impl WorkFiles {
    /// In the data directory. Removes what workers that were killed have left there.
    pub(super) fn in_data_dir(root: &Path) -> io::Result<Self> {
        // Commands may change their directory before they look for their files.
        let all = std::path::absolute(root)?.join(DIR);
        DirBuilder::new().recursive(true).mode(0o700).create(&all)?;
        // Until this worker's own is locked, too: another one must not take it for one that is left.
        let one_at_a_time = File::create(all.join(LOCK))?;
        one_at_a_time.lock()?;
        for entry in fs::read_dir(&all)?.flatten().filter(|entry| entry.file_name() != LOCK) {
            let left = File::open(entry.path().join(LOCK));
            if left.map_or_else(|e| e.kind() == io::ErrorKind::NotFound, |lock| lock.try_lock().is_ok()) {
                // What cannot be removed is tried by the next.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let dir = new_dir("worker-", &all)?;
        let lock = File::create(dir.path().join(LOCK))?;
        lock.lock()?;
        Ok(Self::Hidden { dir, _lock: lock })
    }

    /// For one task.
    pub(super) fn new_dir(&self) -> io::Result<TempDir> {
        match self {
            Self::Hidden { dir, .. } => new_dir("task-", dir.path()),
            Self::Temporary => new_dir("cis-work-", &std::env::temp_dir()),
        }
    }
}

fn new_dir(prefix: &str, parent: &Path) -> io::Result<TempDir> {
    // Whatever the umask: the input is for this user only.
    let private = Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix(prefix).permissions(private).tempdir_in(parent)
}
