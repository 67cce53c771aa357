//! Finding what escaped from an attempt.
//!
//! The runner is a child subreaper: when a process dies, its children become the runner's. So once a leader is
//! dead, whatever lives on of its tree hangs below some direct child of the runner that is not a leader itself,
//! an *orphan*. Finding none proves that nothing is left. Asking the kernel about a pid that is not our child
//! costs a fraction of a microsecond, and all candidates were born after the leader, so the usual answer
//! ("nothing") takes a handful of system calls.
//!
//! Honest limit: an orphan is known by its process group or by the cookie in its environment. One that left its
//! group AND wiped its environment belongs to nobody and is left alone.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::clock::{NS_PER_MS, boot_ns};
use crate::process::{self, Process, Variable};
use crate::protocol::AttemptKey;

/// The variable that marks every process of an attempt, whatever it does to its group or session.
pub(crate) const COOKIE: &str = "CIS_COOKIE";

/// Asking about this many pids one by one costs as much as reading all of `/proc`.
const PROBES_MAX: i32 = 4096;

/// Pids below this are not given out again after the counter wrapped (`RESERVED_PIDS` of the kernel).
const FIRST_PID_AFTER_WRAP: i32 = 300;

/// An attempt that lived less than this cannot have seen the pid counter go all the way round.
const WRAP_SAFE_NS: u64 = 100 * NS_PER_MS;

/// An orphan that is seen without any environment in so many looks has none: an exec, which shows the same for
/// a moment, is over by then.
const WIPED_LOOKS: u8 = 4;

/// Looks count only this far apart.
const BETWEEN_LOOKS_NS: u64 = 5 * NS_PER_MS;

/// Whose an orphan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Attempt(AttemptKey),
    /// Of nobody the runner knows.
    Nobody,
    /// Not clear yet: looks that found no environment, and from when on another one counts.
    Unclear {
        looks: u8,
        next_ns: u64,
    },
}

/// What is left of an attempt whose leader is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    /// Not clear yet: ask again.
    Unclear,
    Something,
}

/// The leaders and orphans below this runner.
#[derive(Debug)]
pub(crate) struct Strays {
    runner: i32,
    cookies: Cookies,
    loadavg: File,
    stat: File,
    pid_max: i32,
    leaders: HashMap<i32, AttemptKey>,
    orphans: HashMap<i32, Owner>,
    forks: Forks,
}

/// How many processes had been made on this machine at some moment before now.
#[derive(Debug, Clone, Copy, Default)]
struct Forks {
    at_ns: u64,
    count: u64,
}

/// When a leader was started, in terms that tell how far the pid counter has come since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Birth {
    at_ns: u64,
    forks: u64,
}

impl Strays {
    pub(crate) fn new(cookies: Cookies) -> io::Result<Strays> {
        let pid_max = std::fs::read_to_string("/proc/sys/kernel/pid_max")?;
        Ok(Strays {
            runner: std::process::id().cast_signed(),
            cookies,
            loadavg: File::open("/proc/loadavg")?,
            stat: File::open("/proc/stat")?,
            pid_max: pid_max.trim().parse().unwrap_or(1 << 22),
            leaders: HashMap::new(),
            orphans: HashMap::new(),
            forks: Forks::default(),
        })
    }

    pub(crate) fn cookies(&self) -> Cookies {
        self.cookies
    }

    /// To be asked before a leader is started.
    pub(crate) fn birth(&mut self) -> Birth {
        let at_ns = boot_ns();
        if at_ns - self.forks.at_ns > WRAP_SAFE_NS {
            self.forks = Forks { at_ns, count: self.forks_so_far().unwrap_or(0) };
        }
        Birth { at_ns, forks: self.forks.count }
    }

    pub(crate) fn add_leader(&mut self, pid: Pid, key: AttemptKey) {
        self.leaders.insert(pid.as_raw_nonzero().get(), key);
    }

    /// The leader is about to be reaped: its pid means nothing any more.
    pub(crate) fn remove_leader(&mut self, pid: Pid, key: AttemptKey) {
        self.leaders.remove(&pid.as_raw_nonzero().get());
        if !self.orphans.is_empty() {
            // What is left of it on purpose (`detach`) is nobody's from now on.
            for owner in self.orphans.values_mut().filter(|owner| **owner == Owner::Attempt(key)) {
                *owner = Owner::Nobody;
            }
        }
    }

    /// What is left of an attempt whose leader is dead and not yet reaped.
    pub(crate) fn left(&mut self, leader: Pid, key: AttemptKey, birth: Birth) -> Left {
        /// Passes in which only the dead turned up; each may have set free one more generation.
        const PASSES_MAX: usize = 8;
        for _ in 0..PASSES_MAX {
            let (reaped, left) = self.pass(leader.as_raw_nonzero().get(), key, birth);
            if left != Left::Nothing || !reaped {
                return left;
            }
        }
        Left::Unclear
    }

    /// Looks at every orphan once. Says whether it reaped any, since a dead one's children are ours from then on.
    fn pass(&mut self, leader: i32, key: AttemptKey, birth: Birth) -> (bool, Left) {
        let mut reaped = false;
        let mut left = Left::Nothing;
        let mut meet = |strays: &mut Strays, pid| match strays.meet(pid) {
            None => {}
            Some(Meeting::Reaped) => reaped = true,
            Some(Meeting::Alive(Owner::Attempt(owner))) if owner == key => left = Left::Something,
            Some(Meeting::Alive(Owner::Unclear { .. })) if left == Left::Nothing => left = Left::Unclear,
            Some(Meeting::Alive(_)) => {}
        };
        match self.born_since(leader, birth) {
            Some(ranges) => ranges.into_iter().flatten().for_each(|pid| meet(self, pid)),
            None => self.children().into_iter().for_each(|pid| meet(self, pid)),
        }
        (reaped, left)
    }

    /// Asks the kernel about one pid: not our child, a leader, or an orphan.
    fn meet(&mut self, pid: i32) -> Option<Meeting> {
        if self.leaders.contains_key(&pid) {
            return None;
        }
        let id = WaitId::Pid(Pid::from_raw(pid)?);
        match waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Err(_) => None,
            Ok(Some(_)) => {
                self.orphans.remove(&pid);
                Some(Meeting::Reaped)
            }
            Ok(None) => Some(Meeting::Alive(self.owner(pid))),
        }
    }

    /// Whose a living orphan is. Remembered: while it is our child its pid cannot become another's.
    fn owner(&mut self, pid: i32) -> Owner {
        let (looks, next_ns) = match self.orphans.get(&pid) {
            None => (0, 0),
            Some(Owner::Unclear { looks, next_ns }) => (*looks, *next_ns),
            Some(owner) => return *owner,
        };
        let owner = self.find_owner(pid).unwrap_or_else(|| {
            let now_ns = boot_ns();
            match looks {
                _ if now_ns < next_ns => Owner::Unclear { looks, next_ns },
                WIPED_LOOKS.. => Owner::Nobody,
                _ => Owner::Unclear { looks: looks + 1, next_ns: now_ns + BETWEEN_LOOKS_NS },
            }
        });
        self.orphans.insert(pid, owner);
        owner
    }

    /// Whose a process is by its own account; `None` if it has no environment to tell.
    fn find_owner(&self, pid: i32) -> Option<Owner> {
        let group = Process::look(pid).map(|process| process.group);
        if let Some(key) = group.and_then(|group| self.leaders.get(&group)) {
            return Some(Owner::Attempt(*key));
        }
        match process::variable(pid, COOKIE) {
            Variable::Is(cookie) => Some(self.cookies.key(&cookie).map_or(Owner::Nobody, Owner::Attempt)),
            Variable::Absent => Some(Owner::Nobody),
            Variable::NotYet => Some(Owner::Unclear { looks: 0, next_ns: 0 }),
            Variable::NoEnvironment => None,
        }
    }

    /// The pids given out since the leader was started, if they can be known and are few.
    fn born_since(&self, leader: i32, birth: Birth) -> Option<[std::ops::RangeInclusive<i32>; 2]> {
        if boot_ns() - birth.at_ns > WRAP_SAFE_NS {
            let born = self.forks_so_far()?.checked_sub(birth.forks)?;
            if born >= u64::try_from(self.pid_max / 2).ok()? {
                return None;
            }
        }
        let last = self.last_pid()?;
        #[allow(clippy::reversed_empty_ranges)]
        let none = 1..=0;
        let ranges = if last >= leader {
            [leader + 1..=last, none]
        } else {
            [leader + 1..=self.pid_max, FIRST_PID_AFTER_WRAP..=last]
        };
        let count: i32 = ranges.iter().map(|range| range.end() - range.start() + 1).sum();
        (count <= PROBES_MAX).then_some(ranges)
    }

    /// The pid given out last: the final field of `/proc/loadavg`.
    fn last_pid(&self) -> Option<i32> {
        let mut bytes = [0; 128];
        let n = self.loadavg.read_at(&mut bytes, 0).ok()?;
        std::str::from_utf8(&bytes[..n]).ok()?.rsplit(' ').next()?.trim().parse().ok()
    }

    /// How many processes and threads this machine has made since boot.
    fn forks_so_far(&self) -> Option<u64> {
        // The `intr` line before it grows with the machine.
        let mut bytes = [0; 32 << 10];
        let mut n = 0;
        loop {
            match self.stat.read_at(&mut bytes[n..], n as u64).ok()? {
                0 => break,
                more => n += more,
            }
        }
        let text = std::str::from_utf8(&bytes[..n]).ok()?;
        text.lines().find_map(|line| line.strip_prefix("processes "))?.trim().parse().ok()
    }

    /// Every living process of these attempts but their leaders: below a leader, or below an orphan of theirs.
    pub(crate) fn members(&mut self, wanted: &[AttemptKey]) -> Vec<(AttemptKey, Process)> {
        let all = process::all();
        let by_pid: HashMap<i32, &Process> = all.iter().map(|process| (process.pid, process)).collect();
        let mut members = Vec::new();
        for process in &all {
            if process.zombie || self.leaders.contains_key(&process.pid) {
                continue;
            }
            let Some(top) = self.top(process, &by_pid) else {
                continue;
            };
            let owner = match self.leaders.get(&top) {
                Some(key) => Owner::Attempt(*key),
                None => match self.owner(top) {
                    // What its top does not tell, it may tell itself.
                    Owner::Nobody | Owner::Unclear { .. } if process.pid != top => {
                        self.find_owner(process.pid).unwrap_or(Owner::Nobody)
                    }
                    owner => owner,
                },
            };
            if let Owner::Attempt(key) = owner
                && wanted.contains(&key)
            {
                members.push((key, *process));
            }
        }
        members
    }

    /// The direct child of the runner that `process` is, or descends from.
    fn top(&self, process: &Process, by_pid: &HashMap<i32, &Process>) -> Option<i32> {
        let mut at = process;
        for _ in 0..by_pid.len() {
            if at.parent == self.runner {
                return Some(at.pid);
            }
            at = by_pid.get(&at.parent)?;
        }
        None
    }

    /// All direct children, leaders included, the slow way.
    fn children(&self) -> Vec<i32> {
        let ours = process::all().into_iter().filter(|process| process.parent == self.runner);
        ours.map(|process| process.pid).collect()
    }

    /// Reaps orphans that died while nobody looked.
    pub(crate) fn reap(&mut self) {
        for pid in self.children() {
            self.meet(pid);
        }
    }
}

enum Meeting {
    Reaped,
    Alive(Owner),
}

/// How an attempt of this data directory is written into the environment of its processes. The directory's
/// identity is part of it: two nodes on one machine may well use the same numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cookies {
    device: u64,
    inode: u64,
}

impl Cookies {
    pub(crate) fn new(device: u64, inode: u64) -> Cookies {
        Cookies { device, inode }
    }

    pub(crate) fn text(self, key: AttemptKey) -> String {
        format!("{:x}-{:x}-{:x}-{:x}", self.device, self.inode, key.execution, key.fence)
    }

    pub(crate) fn key(self, text: &[u8]) -> Option<AttemptKey> {
        let mut parts = std::str::from_utf8(text).ok()?.split('-');
        let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
        let ours = number()? == self.device && number()? == self.inode;
        let key = AttemptKey { execution: number()?.cast_signed(), fence: number()?.cast_signed() };
        ours.then_some(key)
    }
}

/// Learns how a child ended without reaping it. `None` while it lives.
pub(crate) fn peek_exit(pid: Pid) -> Option<i32> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(pid), options) {
        Ok(None) | Err(Errno::INTR) => None,
        Ok(Some(status)) => Some(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => 255,
        }),
        // Not our child any more: someone else reaped it, and how it ended is lost.
        Err(_) => Some(255),
    }
}

/// Reaps a child that is known to be dead.
pub(crate) fn reap(pid: Pid) {
    // An error means there is nothing to reap.
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_names_its_attempt_and_only_in_its_directory() {
        let cookies = Cookies::new(0x801, 77);
        let key = AttemptKey { execution: -3, fence: (5 << 32) | 9 };
        let text = cookies.text(key);
        assert_eq!(cookies.key(text.as_bytes()), Some(key));
        assert_eq!(Cookies::new(0x801, 78).key(text.as_bytes()), None);
        assert_eq!(cookies.key(b"nonsense"), None);
    }
}
