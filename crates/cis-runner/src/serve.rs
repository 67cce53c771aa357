//! The runner process: its lock, its place, its loop, and when it goes.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};
use rustix::fs::inotify::{self, WatchFlags};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use rustix::time::Timespec;

use crate::client::{DOOR_KEY, is_locked};
use crate::clock::{NS_PER_MS, boot_ns, pause};
use crate::directory::Directory;
use crate::door::{self, Listener};
use crate::error::Error;
use crate::journal::{Journal, Owner};
use crate::runner::{Kind, Parts, Runner, complain, token};
use crate::spawn::Spawner;
use crate::stray::{Cookies, Strays};

/// The lock's name in the data directory: whoever holds it is the runner.
pub(crate) const LOCK: &str = "runner.lock";

/// The journal's name there.
pub(crate) const JOURNAL: &str = "runner.journal";

/// A benchmark aid: with `CIS_RUNNER_INSTANT=1` in its environment a runner journals attempts and answers that
/// they exited with 0, without starting anything. What a coordinator then takes per task is its own share.
pub const INSTANT: &str = "CIS_RUNNER_INSTANT";

/// A runner nobody needs goes after this long.
const IDLE_NS: u64 = 3_000 * NS_PER_MS;

/// How often the runner looks after itself even when nothing happens: orphans that died, the directory. It also
/// bounds how late a timeout is noticed after a suspend, which the kernel's own timers do not count.
const CHORES_NS: u64 = 10_000 * NS_PER_MS;

/// Serves a data directory until nobody needs it: to be called by a process that does nothing else.
pub fn run(data_dir: &Path) -> Result<(), Error> {
    let mut place = Place::take(data_dir)?;
    let mut runner = place.runner()?;
    place.serve(&mut runner)
}

/// Lets no other process of the same user read this one's memory, environment or descriptors: neither the tasks it
/// starts nor an agent. (The superuser still can.)
pub fn forbid_inspection() -> std::io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// The data directory, held.
#[derive(Debug)]
struct Place {
    directory: Directory,
    /// To name things in it.
    handle: OwnedFd,
    lock: File,
}

impl Place {
    /// Takes the directory for this process, or says that another has it.
    fn take(data_dir: &Path) -> Result<Place, Error> {
        let shown = data_dir.display();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(data_dir)
            .map_err(|error| Error::io(format!("make `{shown}`"), error))?;
        let opened = |error| Error::io(format!("open `{shown}`"), error);
        let directory = Directory::at(data_dir).map_err(opened)?;
        let handle = door::open_directory(directory.path()).map_err(opened)?;
        let lock = take_lock(directory.path())?;
        Ok(Place { directory, handle, lock })
    }

    /// Makes this process a runner.
    fn runner(&self) -> Result<Runner, Error> {
        forbid_inspection().map_err(|error| Error::io("keep other processes out of its memory", error))?;
        // Fails only for a process that leads a group already, as one started from a shell does.
        let _ = rustix::process::setsid();
        let us = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(us)).map_err(|e| Error::io("adopt orphans", e))?;
        rustix::process::chdir("/").map_err(|error| Error::io("enter `/`", error))?;
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(|error| Error::io("read the boot id", error))?;
        let boot_id = boot_id.trim().to_owned();
        let path = self.directory.path();
        let journal_path = path.join(JOURNAL);
        let owner = Owner { boot_id: boot_id.clone(), directory: self.directory.clone() };
        let (journal, recalled) = Journal::open(&journal_path, &owner)
            .map_err(|error| Error::io(format!("open `{}`", journal_path.display()), error))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| Error::io("make an epoll", error))?;
        let listener = Listener::open(self.handle.as_fd())
            .map_err(|error| Error::io(format!("listen in `{}`", path.display()), error))?;
        epoll::add(&epoll, listener.fd(), token(Kind::Listener, 0), EventFlags::IN)
            .map_err(|error| Error::io("watch the socket", error))?;
        // Where the kernel has no more of these, the chores find out, only later.
        let watch = watch_removals(path, &epoll).ok();
        let strays = Strays::new(Cookies::new(self.directory.device, self.directory.inode));
        let session = rustix::process::getsid(None).map_or(0, |pid| pid.as_raw_nonzero().get());
        Ok(Runner::new(Parts {
            epoll,
            listener,
            watch,
            journal,
            recalled,
            strays: strays.map_err(|error| Error::io("read `/proc`", error))?,
            spawner: Spawner::new().map_err(|error| Error::io("prepare to start processes", error))?,
            logs: path.join("logs"),
            door_key: path.join(DOOR_KEY),
            directory: self.directory.clone(),
            boot_id,
            session,
            instant: std::env::var_os(INSTANT).is_some_and(|value| value == "1"),
        }))
    }

    fn serve(&mut self, runner: &mut Runner) -> Result<(), Error> {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; 64];
        let mut idle_since_ns = Some(boot_ns());
        let mut chores_ns = boot_ns() + CHORES_NS;
        let mut hurry = false;
        loop {
            let now_ns = boot_ns();
            let timer = runner.timers.peek().map(|entry| entry.0.0);
            let idle = idle_since_ns.map(|since| since + IDLE_NS);
            let waits = [runner.held_ns, runner.full_ns, runner.mend_ns, runner.kept_until_ns];
            let due = [timer, runner.remnants.due_ns(), idle]
                .into_iter()
                .chain(waits)
                .flatten()
                .fold(chores_ns, u64::min);
            let wait_ns = if hurry { 0 } else { due.saturating_sub(now_ns) };
            match epoll::wait(&runner.epoll, &mut events, Some(&timespec(wait_ns))) {
                Ok((ready, _)) => ready.iter().for_each(|event| runner.handle(*event)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(Error::io("wait for events", error)),
            }
            let now_ns = boot_ns();
            runner.run_timers(now_ns);
            hurry = runner.end_turn();
            if !runner.is_idle() {
                idle_since_ns = None;
            } else if now_ns.saturating_sub(*idle_since_ns.get_or_insert(now_ns)) >= IDLE_NS {
                if self.leave(runner) {
                    return Ok(());
                }
                idle_since_ns = Some(now_ns);
            }
            if now_ns >= chores_ns {
                chores_ns = now_ns + CHORES_NS;
                runner.strays.reap();
                runner.mend_ns = Some(now_ns);
                if self.has_vanished() && !runner.has_connections() && runner.attempts.is_empty() {
                    return Ok(());
                }
            }
            if runner.mend_ns.is_some_and(|due| due <= now_ns) {
                runner.mend_ns = None;
                self.mend(runner);
            }
        }
    }

    /// Puts the lock and the socket back where they were removed from, unless all of the directory is being removed.
    fn mend(&mut self, runner: &mut Runner) {
        let path = self.directory.path();
        if self.has_vanished() || !path.join(JOURNAL).exists() {
            return;
        }
        if !is_file_at(&self.lock, &path.join(LOCK)) {
            match take_lock_file(path) {
                Ok(Some(lock)) => self.lock = lock,
                // Held for a moment by a client that asks.
                Ok(None) => runner.mend_soon(),
                Err(error) => complain("lock the directory again", &error),
            }
        }
        if !runner.listener.is_reachable(self.handle.as_fd()) {
            self.listen_again(runner);
        }
    }

    fn listen_again(&self, runner: &mut Runner) {
        match Listener::open(self.handle.as_fd()) {
            Ok(listener) => runner.replace_listener(listener),
            Err(error) => complain("listen again", &error),
        }
    }

    /// Closes the door, unless someone is standing in it. True if the runner may go.
    fn leave(&self, runner: &mut Runner) -> bool {
        // Gone already if the directory is.
        let _ = fs::remove_file(door::short_path(self.handle.as_fd(), door::SOCKET));
        runner.accept();
        if !runner.has_connections() {
            return true;
        }
        self.listen_again(runner);
        false
    }

    fn has_vanished(&self) -> bool {
        Directory::at(self.directory.path()).map_or(true, |now| !now.is_same(&self.directory))
    }
}

/// Takes the lock for life. A client that asks whether it is free holds it for a moment, hence the patience.
fn take_lock(directory: &Path) -> Result<File, Error> {
    const TRIES: u32 = 50;
    const BETWEEN: Duration = Duration::from_millis(2);
    let failed = |error| Error::io(format!("lock `{}`", directory.join(LOCK).display()), error);
    for _ in 0..TRIES {
        // The journal says so, too, if there is a runner: its lock file may have been removed.
        match take_lock_file(directory).map_err(failed)? {
            Some(lock) if !is_locked(&directory.join(JOURNAL)).map_err(failed)? => return Ok(lock),
            _ => pause(BETWEEN),
        }
    }
    Err(Error::AlreadyRunning(directory.to_owned()))
}

/// The lock file, with this process' number in it, unless another process holds it.
fn take_lock_file(directory: &Path) -> io::Result<Option<File>> {
    let path = directory.join(LOCK);
    let mut options = OpenOptions::new();
    let mut lock = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // For people whose runner does not answer; on a full disk they have to look for it themselves.
    let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
    Ok(is_file_at(&lock, &path).then_some(lock))
}

/// Is this open file the one at that path?
fn is_file_at(file: &File, path: &Path) -> bool {
    let number = |meta: fs::Metadata| (meta.dev(), meta.ino());
    matches!((file.metadata().map(number), fs::metadata(path).map(number)), (Ok(a), Ok(b)) if a == b)
}

/// Has the kernel say when something is removed from the directory, or replaced.
fn watch_removals(directory: &Path, epoll: &OwnedFd) -> io::Result<OwnedFd> {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let removals = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
    inotify::add_watch(&watch, directory, removals)?;
    epoll::add(epoll, &watch, token(Kind::Directory, 0), EventFlags::IN)?;
    Ok(watch)
}

/// Rounded up: waking a moment early would only mean waiting again.
fn timespec(wait_ns: u64) -> Timespec {
    let wait_ms = wait_ns.div_ceil(NS_PER_MS);
    Timespec {
        tv_sec: i64::try_from(wait_ms / 1000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(wait_ms % 1000).unwrap_or(0) * 1_000_000,
    }
}
