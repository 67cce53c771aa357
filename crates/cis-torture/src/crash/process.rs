//! Processes of a data directory: found by their environment or arguments, ended and waited for by pidfd.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The kernel shows no more of an environment at once than a task of ours can have.
const ENVIRON_BYTES: usize = 128 << 10;

/// A living process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) line: String,
    /// Is it `cis` itself, rather than a task?
    pub(crate) is_cis: bool,
}

/// Living processes that name this data directory: tasks in `CIS_DATA_DIR`, a runner, which shows nothing of its
/// environment, in its arguments.
pub(crate) fn of_data_dir(data_dir: &Path, cis: &Path) -> Vec<Process> {
    let mark = [b"CIS_DATA_DIR=", data_dir.as_os_str().as_bytes()].concat();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // In one read: an exec between two of them would hide the rest.
        let mut environ = vec![0; ENVIRON_BYTES];
        let file = std::fs::File::open(entry.path().join("environ"));
        let n = file.and_then(|mut file| file.read(&mut environ)).unwrap_or(0);
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let has = |text: &[u8], part: &[u8]| text.split(|byte| *byte == 0).any(|entry| entry == part);
        let named =
            has(&line, data_dir.as_os_str().as_bytes()) && line.starts_with(cis.as_os_str().as_bytes());
        if named || has(&environ[..n], &mark) {
            let is_cis = named || std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == cis);
            found.push(Process { pid, line: String::from_utf8_lossy(&line).replace('\0', " "), is_cis });
        }
    }
    found
}

/// Sends a signal and waits until the process is gone; false if there was none, or it stays.
pub(crate) fn end(pid: u32, signal: Signal, patience: Duration) -> bool {
    let Some(fd) = open(pid) else { return false };
    pidfd_send_signal(&fd, signal).is_ok() && gone(&fd, patience)
}

/// The living process that listens at `socket`.
pub(crate) fn listener(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).ok()?;
    let pid = rustix::net::sockopt::socket_peercred(&stream).ok()?.pid.as_raw_nonzero().get().cast_unsigned();
    let lives = open(pid).is_some_and(|fd| !gone(&fd, Duration::ZERO));
    lives.then_some(pid)
}

fn open(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()
}

fn gone(fd: &OwnedFd, patience: Duration) -> bool {
    let timeout = Timespec { tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX), tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).is_ok_and(|count| count == 1)
}
