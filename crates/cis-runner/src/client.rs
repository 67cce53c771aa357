//! The coordinator's side: reaching the runner of a data directory, and starting one if there is none.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use rustix::time::Timespec;

use crate::clock::{NS_PER_MS, boot_ns, pause};
use crate::door;
use crate::journal;
use crate::process::Process;
use crate::serve::{JOURNAL, LOCK};
use crate::spawn::spawn_detached;

pub use crate::frame::{Decoder, FrameError, encode};

/// How long a runner may take to answer its door.
const DEADLINE_NS: u64 = 10_000 * NS_PER_MS;

/// How often a runner that exits at once is started again.
const STARTS_MAX: u32 = 3;

/// A runner that starts is there within milliseconds; one that is not there after [`SOON_NS`] is looked for less often.
const BETWEEN_TRIES: Duration = Duration::from_millis(1);
const SOON_NS: u64 = 500 * NS_PER_MS;
const BETWEEN_LATE_TRIES: Duration = Duration::from_millis(50);

/// What a runner gets of the environment of the process that starts it. Tasks get theirs from their run; anything more
/// here would only be something for them to read.
const RUNNER_ENVIRONMENT: [&str; 4] =
    ["LD_LIBRARY_PATH", "RUST_BACKTRACE", crate::serve::INSTANT, cis_fail::VARIABLE];

/// What marks the processes of a task. It must not mark a coordinator in the background: that outlives the task that
/// happened to need it.
pub const TASK_MARKS: [&str; 6] =
    [crate::stray::COOKIE, "CIS_RUN_ID", "CIS_TASK_ID", "CIS_ATTEMPT", "CIS_FENCE", "CIS_OUTPUT"];

/// The file in a data directory whose content a coordinator says with its Hello. Whoever cannot read it, because a
/// sandbox keeps them from it, is not heard.
pub const DOOR_KEY: &str = "door.key";

/// Connects to the runner of `data_dir`; `None` if none is listening.
pub fn connect(data_dir: &Path) -> io::Result<Option<UnixStream>> {
    let directory = match door::open_directory(data_dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        directory => directory?,
    };
    match UnixStream::connect(door::short_path(directory.as_fd(), door::SOCKET)) {
        Ok(stream) => Ok(listener_lives(&stream).then_some(stream)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the process that listens is alive. One that was killed while starting a task leaves its socket, for
/// the blink of an eye, in a child that has not yet become the task.
fn listener_lives(stream: &UnixStream) -> bool {
    let Ok(peer) = socket_peercred(stream) else {
        return false;
    };
    match pidfd_open(peer.pid, PidfdFlags::empty()) {
        Err(error) => error != Errno::SRCH,
        Ok(fd) => {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let exited = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now));
            exited.is_ok_and(|count| count == 0)
        }
    }
}

/// Connects to the runner of `data_dir`, starting `exe runner --data-dir DIR` if there is none.
///
/// A runner whose lock is held but that does not listen (it is starting, or busy, or stopped in a debugger, or its
/// socket was removed) is alive: this waits for it and never starts a second one. A runner that is just going may close
/// the connection before it says Welcome; then call this again. Blocks for up to ten seconds: the error is then
/// [`ErrorKind::TimedOut`], and it is worth trying again.
pub fn connect_or_spawn(data_dir: &Path, exe: &Path) -> io::Result<UnixStream> {
    let began_ns = boot_ns();
    let mut started = None;
    let mut starts = 0;
    loop {
        if let Some(stream) = connect(data_dir)? {
            return Ok(stream);
        }
        let held = is_served(data_dir)?;
        if started.is_some_and(has_exited) {
            started = None;
        }
        if !held && started.is_none() {
            // Another one may have come first and gone again; one that cannot start will not learn it.
            if starts == STARTS_MAX {
                return Err(no_runner(data_dir, ErrorKind::Other));
            }
            started = Some(start(data_dir, exe)?);
            starts += 1;
        }
        let waited_ns = boot_ns() - began_ns;
        if waited_ns > DEADLINE_NS {
            return Err(no_runner(data_dir, ErrorKind::TimedOut));
        }
        pause(if waited_ns < SOON_NS { BETWEEN_TRIES } else { BETWEEN_LATE_TRIES });
    }
}

/// The highest epoch of a coordinator that a runner of `data_dir` has served. It serves no lower one any more.
pub fn epoch_seen(data_dir: &Path) -> io::Result<i64> {
    journal::epoch_seen(&data_dir.join(JOURNAL))
}

/// The process that is the runner of a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerProcess {
    pub pid: u32,
    /// Held by a SIGSTOP or a debugger: it answers nothing.
    pub stopped: bool,
}

/// Finds the runner of `data_dir`, whether it answers or not; `None` if there is none, or it does not say who it is.
pub fn find_runner(data_dir: &Path) -> Option<RunnerProcess> {
    if !is_served(data_dir).ok()? {
        return None;
    }
    let pid: i32 = std::fs::read_to_string(data_dir.join(LOCK)).ok()?.trim().parse().ok()?;
    let process = Process::look(pid).filter(|process| !process.zombie)?;
    Some(RunnerProcess { pid: pid.cast_unsigned(), stopped: process.stopped })
}

fn no_runner(data_dir: &Path, kind: ErrorKind) -> io::Error {
    let dir = data_dir.display();
    let text = match kind {
        ErrorKind::TimedOut => format!("the runner of `{dir}` does not answer"),
        _ => format!("the runner of `{dir}` does not start: see `{dir}/runner.log`"),
    };
    io::Error::new(kind, text)
}

/// Whether a runner we started is gone; if so, it is reaped.
fn has_exited(pid: Pid) -> bool {
    !matches!(waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(None))
}

/// Whether some runner has the directory: either of the two files that it locks says so.
fn is_served(data_dir: &Path) -> io::Result<bool> {
    Ok(is_locked(&data_dir.join(LOCK))? || is_locked(&data_dir.join(JOURNAL))?)
}

/// Whether a process has locked the file. Asks with a shared lock, so that two who ask do not mislead each other.
pub(crate) fn is_locked(path: &Path) -> io::Result<bool> {
    let lock = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        lock => lock?,
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn start(data_dir: &Path, exe: &Path) -> io::Result<Pid> {
    DirBuilder::new().recursive(true).mode(0o700).create(data_dir)?;
    let data_dir = data_dir.canonicalize()?;
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(data_dir.join("runner.log"))?;
    let arguments = ["runner".as_ref(), "--data-dir".as_ref(), data_dir.as_os_str()];
    spawn_detached(exe, &arguments, log.as_fd(), &RUNNER_ENVIRONMENT)
}
