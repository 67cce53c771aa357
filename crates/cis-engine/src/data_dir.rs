//! The files of one data directory, and the lock that makes its coordinator the only one.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Epoch, RunId};
use cis_store::port::damaged;

use crate::system;

/// Longest path the kernel takes for a socket.
const SOCKET_PATH_MAX: usize = 107;

/// Calls `f` with a path to the same socket that is short enough for its address.
pub fn with_short_path<T>(path: &Path, f: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= SOCKET_PATH_MAX {
        return f(path);
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return f(path) };
    let dir = File::open(dir)?;
    f(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

/// A data directory. Its paths are made here and nowhere else, never from anybody's input.
#[derive(Debug, Clone)]
pub struct DataDir {
    root: PathBuf,
}

/// The right to be the coordinator of a data directory, for as long as it lives. Handed to another process as
/// its standard input, it is never free in between.
///
/// Two files are locked: one that can be handed on and that earlier versions know, and the directory's key, so that
/// deleting the first makes no room for a second coordinator. Not the directory itself: an agent in its sandbox, which can
/// open none of its files, could open that and hold the lock. Both are needed, in this order.
#[derive(Debug)]
pub struct CoordinatorLock {
    file: File,
    _key: File,
}

impl From<CoordinatorLock> for Stdio {
    fn from(lock: CoordinatorLock) -> Self {
        lock.file.into()
    }
}

impl DataDir {
    /// The directory at `root`, created for its owner only if it is not there.
    pub fn create(root: &Path) -> io::Result<Self> {
        let dir = Self::at(&std::path::absolute(root)?);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir.root)?;
        // Whatever made it, others have no business in it: tasks' output and environments are inside.
        let mode = fs::metadata(&dir.root)?.permissions().mode();
        if mode & 0o077 != 0 {
            let is_ours = dir.database().exists() || fs::read_dir(&dir.root)?.next().is_none();
            if !is_ours {
                return Err(io::Error::other(
                    "it holds other files and is open to others; choose a directory of its own",
                ));
            }
            fs::set_permissions(&dir.root, fs::Permissions::from_mode(0o700))?;
        }
        for part in ["logs", "outputs", "contexts"] {
            DirBuilder::new().recursive(true).mode(0o700).create(dir.root.join(part))?;
        }
        if !dir.door_key().exists() {
            write_once(&dir.door_key(), &format!("{}\n", hex(&system::secret()?)))?;
        }
        Ok(dir)
    }

    /// The directory at `root`, which need not be there.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The store's file.
    pub fn database(&self) -> PathBuf {
        self.root.join("dag.db")
    }

    /// What whoever comes to one of the sockets must know. Not everybody who can reach a socket can read what lies
    /// beside it: a sandbox keeps files shut and sockets open.
    pub fn door_key(&self) -> PathBuf {
        self.root.join(cis_runner::client::DOOR_KEY)
    }

    /// Where the coordinator listens.
    pub fn socket(&self) -> PathBuf {
        self.root.join("cis.sock")
    }

    /// Where an attempt's output is, under `logs/`.
    pub fn log_name(run: i64, execution: i64, attempt: u32) -> String {
        format!("{run}/{execution}.{attempt}.log")
    }

    /// Where an attempt's output is.
    pub fn log(&self, run: i64, execution: i64, attempt: u32) -> PathBuf {
        self.all_logs().join(Self::log_name(run, execution, attempt))
    }

    /// Where the output of all runs is.
    pub fn all_logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Where the output of a run's attempts is.
    pub fn logs(&self, run: i64) -> PathBuf {
        self.all_logs().join(run.to_string())
    }

    /// Where an attempt may write its outputs.
    pub fn output(&self, execution: i64, fence: i64) -> PathBuf {
        self.outputs().join(format!("{execution}.{fence}"))
    }

    /// Where values for an attempt are that its environment cannot hold, a file each.
    pub fn values(&self, execution: i64, fence: i64) -> PathBuf {
        self.outputs().join(format!("{execution}.{fence}.values"))
    }

    /// Where attempts may write their outputs.
    pub fn outputs(&self) -> PathBuf {
        self.root.join("outputs")
    }

    /// Where environments and directories of unfinished runs are kept.
    pub fn contexts(&self) -> PathBuf {
        self.root.join("contexts")
    }

    /// Where skills are kept by content, and run from.
    pub fn skills(&self) -> PathBuf {
        self.root.join("skills")
    }

    /// Where a backup is taken apart.
    pub fn restoring(&self) -> PathBuf {
        self.root.join("restoring")
    }

    /// Where a run's environment and directory are kept.
    pub fn context(&self, run: i64) -> PathBuf {
        self.contexts().join(format!("{run}.json"))
    }

    /// Where they are kept until the store knows the run.
    pub fn context_of_new(&self, run: RunId) -> PathBuf {
        self.contexts().join(format!("{run}.json"))
    }

    /// Where the surroundings of runs that came over the network are kept.
    pub fn node_context(&self) -> PathBuf {
        self.contexts().join("node.json")
    }

    /// The same while they are written.
    pub(crate) fn new_node_context(&self) -> PathBuf {
        self.contexts().join("node.json.new")
    }

    /// Where tasks of a run that came over the network start.
    pub fn work(&self, run: RunId) -> PathBuf {
        self.all_work().join(run.to_string())
    }

    /// Where those of all such runs do.
    pub(crate) fn all_work(&self) -> PathBuf {
        self.root.join("work")
    }

    /// The secret of the owner's token.
    pub fn admin_token(&self) -> PathBuf {
        self.root.join("admin.token")
    }

    /// The node's private key.
    pub fn node_key(&self) -> PathBuf {
        self.root.join("node.key")
    }

    /// Which boot of the machine the last coordinator saw.
    pub fn boot(&self) -> PathBuf {
        self.root.join("boot")
    }

    /// Notes that the coordinator has stopped in good order whose last epoch this is. Nothing needs to be undone when the
    /// next one begins: it has a higher epoch.
    pub fn note_stop(&self, epoch: Epoch) -> io::Result<()> {
        fs::write(self.stopped(), epoch.to_string())
    }

    /// The last coordinator that stopped in good order, as far as is known.
    pub fn last_stop(&self) -> Option<Epoch> {
        fs::read_to_string(self.stopped()).ok()?.parse().ok().map(Epoch)
    }

    fn stopped(&self) -> PathBuf {
        self.root.join("stopped")
    }

    /// Refuses a directory that coordinators have been in and whose database is gone, or empty: to begin a new one
    /// would hide that, and destroy what SQLite's log may still hold.
    pub fn check_database(&self) -> Result<(), Refusal> {
        let there = fs::metadata(self.database()).is_ok_and(|file| file.len() > 0);
        if there || !self.boot().exists() {
            return Ok(());
        }
        let root = self.root.display();
        Err(damaged(&format!("`{root}` had one, and now `dag.db` is gone or empty")))
    }

    /// Refuses a directory that nothing was ever written to.
    pub fn check_used(&self) -> Result<(), Refusal> {
        if self.database().exists() || self.boot().exists() {
            return Ok(());
        }
        let why = format!("nothing was ever written to `{}`", self.root.display());
        Err(Refusal::new(ErrorCode::NotFound, why).hint("`--data-dir` says where else to look"))
    }

    /// Becomes the coordinator, unless someone is.
    pub fn try_lock(&self) -> io::Result<Option<CoordinatorLock>> {
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(self.lock())?;
        if lock(&file)? { self.lock_key(file) } else { Ok(None) }
    }

    /// Completes the lock whose file is had already.
    fn lock_key(&self, file: File) -> io::Result<Option<CoordinatorLock>> {
        let key = File::open(self.door_key())?;
        // Where it is locked, its holder locked a file that is no longer there.
        Ok(lock(&key)?.then_some(CoordinatorLock { file, _key: key }))
    }

    /// The lock, if it was handed to this process as its standard input.
    pub fn inherited_lock(&self) -> io::Result<Option<CoordinatorLock>> {
        let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let (given, ours) = (file.metadata()?, fs::metadata(self.lock())?);
        if (given.dev(), given.ino()) != (ours.dev(), ours.ino()) || !lock(&file)? {
            return Ok(None);
        }
        self.lock_key(file)
    }

    fn lock(&self) -> PathBuf {
        self.root.join("coordinator.lock")
    }
}

/// Writes a secret that is never replaced: whole or not at all, and whoever comes second leaves the first one's alone.
pub(crate) fn write_once(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_added_extension(std::process::id().to_string());
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    let linked = fs::hard_link(&new, path);
    fs::remove_file(&new)?;
    match linked {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

/// What is in a directory; nothing, if there is none.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
    fs::read_dir(directory).into_iter().flatten().flatten().filter_map(name).collect()
}

/// In hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value & 15)]);
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.extend([digit(byte >> 4), digit(*byte)]);
    }
    text
}

/// Locks an open file for as long as it is open; false if another process has.
fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}
