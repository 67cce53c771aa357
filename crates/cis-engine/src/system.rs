//! The real clock and the real randomness: the one place that asks the machine for either.

use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cis_core::source::{BootTime, Clock, Random, Timestamp};
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

/// The machine's clock and random numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Clock for System {
    #[allow(clippy::disallowed_methods, reason = "this is where time comes from")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn since_boot(&self) -> BootTime {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        BootTime(now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000))
    }
}

impl Random for System {
    #[allow(clippy::disallowed_methods, reason = "this is where randomness comes from")]
    fn bits(&self) -> u64 {
        let mut bytes = [0; 8];
        // Without a source of randomness, ids still differ by time, and jitter is merely absent.
        let _ = getrandom::fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// Bytes nobody can guess, or nothing: what a key is made of must not fall back to anything.
#[allow(clippy::disallowed_methods, reason = "this is where randomness comes from")]
pub fn secret() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

/// Identifies this boot of the machine.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pid: u32,
    /// In clock ticks since boot.
    started: u64,
    boot: String,
}

impl Process {
    /// This one.
    pub fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// Is it still there?
    pub fn lives(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything, parentheses included.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let dead = matches!(fields.next()?, "Z" | "X");
        let started = fields.nth(18)?.parse().ok()?;
        (!dead).then(|| Self { pid, started, boot: boot_id() })
    }
}

/// Who is asking: the user's name, for `created_by`.
pub fn user() -> String {
    let name = std::env::var("USER").ok().filter(|name| !name.is_empty());
    name.unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()))
}

/// Is this the user of this process, or root? No other user is served on the socket of a data directory.
pub fn is_own_user(uid: u32) -> bool {
    uid == rustix::process::getuid().as_raw() || uid == 0
}

/// Gives memory that is free back to the system.
pub fn trim_heaps() {
    cis_runner::allocator::trim_heaps();
}

/// How many files this process may have open.
pub fn soft_file_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Has the kernel end a TCP connection whose peer has gone without a word for so long, also while nothing is sent on it.
pub fn end_connection_when_silent(stream: &impl AsFd, silence: Duration) {
    // Where the kernel has one of these not, writes to the connection fail later.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, silence);
    let _ = sockopt::set_tcp_keepintvl(stream, silence / 4);
    let _ = sockopt::set_tcp_user_timeout(stream, u32::try_from(silence.as_millis()).unwrap_or(u32::MAX));
}

/// The soft limit of open files for a process that this one starts, where this one has raised its own.
pub fn soft_file_limit_of_children() -> Option<u64> {
    cis_runner::files::soft_limit_before()
}
