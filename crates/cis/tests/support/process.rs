//! Processes by the mark they carry, ended and waited for by pidfd.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{EXE, PATIENCE};

#[derive(Debug, PartialEq)]
pub struct Process {
    pub pid: u32,
    pub line: String,
    /// Is it `cis` itself, rather than a task?
    pub is_cis: bool,
}

/// Living processes with this `NAME=value` in their environment, or this argument: a runner and a coordinator in the
/// background name their data directory, and show nothing of their environment.
pub fn carrying(mark: &str, argument: &Path) -> Vec<Process> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // In one read: an exec between two of them would hide the rest.
        let mut environ = vec![0; 128 << 10];
        let file = std::fs::File::open(entry.path().join("environ"));
        let n = file.and_then(|mut file| file.read(&mut environ)).unwrap_or(0);
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let has = |text: &[u8], part: &[u8]| text.split(|byte| *byte == 0).any(|entry| entry == part);
        let named = has(&line, argument.as_os_str().as_bytes()) && line.starts_with(EXE.as_bytes());
        if named || has(&environ[..n], mark.as_bytes()) {
            let is_cis =
                named || std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == Path::new(EXE));
            found.push(Process { pid, line: String::from_utf8_lossy(&line).replace('\0', " "), is_cis });
        }
    }
    found
}

fn open(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()
}

pub fn signal(pid: u32, signal: Signal) {
    if let Some(fd) = open(pid) {
        let _ = pidfd_send_signal(&fd, signal);
    }
}

/// Kills a process and waits until it is gone.
pub fn kill(pid: u32) {
    if let Some(fd) = open(pid) {
        let _ = pidfd_send_signal(&fd, Signal::KILL);
        gone(&fd);
    }
}

/// Waits until a process has exited; `false` if it does not.
pub fn wait_gone(pid: u32) -> bool {
    open(pid).is_none_or(|fd| gone(&fd))
}

pub fn is_gone(pid: u32) -> bool {
    open(pid).is_none_or(|fd| polled(&fd, 0))
}

fn gone(fd: &OwnedFd) -> bool {
    polled(fd, PATIENCE.as_secs() as i64)
}

fn polled(fd: &OwnedFd, tv_sec: i64) -> bool {
    let timeout = Timespec { tv_sec, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

/// The living process that listens at `socket`.
pub fn peer(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).ok()?;
    let pid = rustix::net::sockopt::socket_peercred(&stream).ok()?.pid.as_raw_nonzero().get().cast_unsigned();
    (!is_gone(pid)).then_some(pid)
}
