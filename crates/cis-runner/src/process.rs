//! Other processes as `/proc` shows them, and signals that cannot hit a stranger.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process at one moment. The kernel reuses pids, so only pid and start time together name one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// In ticks of [`TICK_NS`] since boot.
    pub(crate) start_ticks: u64,
    /// Dead, and only waiting to be reaped.
    pub(crate) zombie: bool,
    /// Held by a SIGSTOP or a debugger.
    pub(crate) stopped: bool,
}

/// The unit of start times in `/proc/PID/stat` (`USER_HZ`, 100 on every Linux Rust runs on).
pub(crate) const TICK_NS: u64 = 10_000_000;

impl Process {
    /// Looks at one process.
    pub(crate) fn look(pid: i32) -> Option<Process> {
        let mut bytes = [0; 512];
        let n = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut bytes).ok()?;
        Process::parse(pid, &bytes[..n])
    }

    /// `pid (comm) state ppid pgrp session …`, where comm may hold anything, brackets included.
    fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
        let end = stat.iter().rposition(|b| *b == b')')?;
        let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        Some(Process {
            pid,
            parent,
            group,
            session,
            start_ticks: fields.nth(15)?.parse().ok()?,
            zombie: matches!(state, "Z" | "X" | "x"),
            stopped: matches!(state, "T" | "t"),
        })
    }

    /// Signals exactly this process: false if it is gone, an error if it is not ours to signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<bool, Errno> {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(false);
        };
        let gone_or = |error| {
            if error == Errno::SRCH { Ok(false) } else { Err(error) }
        };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(error) => return gone_or(error),
        };
        // The descriptor pins whatever has the pid now; the start time says whether that is still the one.
        if Process::look(self.pid).is_none_or(|now| now.start_ticks != self.start_ticks) {
            return Ok(false);
        }
        match pidfd_send_signal(&fd, signal) {
            Ok(()) => Ok(true),
            Err(error) => gone_or(error),
        }
    }

    /// Its command line, for people.
    pub(crate) fn command(&self) -> String {
        const SHOWN_CHARS: usize = 100;
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\0').replace(|c: char| c.is_control(), " ");
        if text.is_empty() {
            return fs::read_to_string(format!("/proc/{}/comm", self.pid))
                .map_or_else(|_| "?".into(), |comm| comm.trim_end().to_owned());
        }
        match text.char_indices().nth(SHOWN_CHARS) {
            Some((cut, _)) => format!("{}…", &text[..cut]),
            None => text,
        }
    }
}

/// Every process there is, in order of pid.
pub(crate) fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(Process::look)
        .collect()
}

/// What a process' environment says of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Variable {
    Is(Vec<u8>),
    /// Not in it, or not ours to see.
    Absent,
    /// There is no environment, or an exec is about to set one up.
    NoEnvironment,
    /// The process is in the middle of an exec, or dead.
    NotYet,
}

/// Looks up a variable in the environment a process was started with.
pub(crate) fn variable(pid: i32, name: &str) -> Variable {
    let environment = match read_environment(pid) {
        Ok(environment) => environment,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Variable::Absent,
        Err(_) => return Variable::NotYet,
    };
    let mut entries = environment.split(|b| *b == 0);
    if let Some(value) = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")) {
        return Variable::Is(value.to_vec());
    }
    // An exec in the meantime ends the text early: only a whole one can be said to lack something.
    match environment_bytes(pid) {
        Some(0) if environment.is_empty() => Variable::NoEnvironment,
        Some(whole) if whole == environment.len() => Variable::Absent,
        _ => Variable::NotYet,
    }
}

fn read_environment(pid: i32) -> io::Result<Vec<u8>> {
    let mut file = File::open(format!("/proc/{pid}/environ"))?;
    let mut environment = vec![0; 32 << 10];
    let mut length = 0;
    loop {
        match file.read(&mut environment[length..])? {
            0 => break,
            n => length += n,
        }
        if length == environment.len() {
            environment.resize(2 * length, 0);
        }
    }
    environment.truncate(length);
    Ok(environment)
}

/// How long the environment of a process is, once an exec has said where it is, which it does last.
fn environment_bytes(pid: i32) -> Option<usize> {
    /// `env_start` in `/proc/PID/stat`, counted from the state; `env_end` follows.
    const ENV_START: usize = 47;
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let end = stat.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(ENV_START);
    let start: usize = fields.next()?.parse().ok()?;
    let end: usize = fields.next()?.parse().ok()?;
    if end == 0 { None } else { end.checked_sub(start) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_may_hold_anything() {
        let stat = b"42 (a) R 1 (b) S 7 8 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1";
        let seen = Process::parse(42, stat).unwrap();
        assert_eq!((seen.parent, seen.group, seen.session, seen.start_ticks), (7, 8, 9, 12345));
        assert!(!seen.zombie);
    }

    #[test]
    fn sees_itself() {
        let me = std::process::id() as i32;
        assert!(all().iter().any(|process| process.pid == me && !process.zombie));
        assert_eq!(variable(me, "CIS_NO_SUCH_VARIABLE"), Variable::Absent);
    }
}
