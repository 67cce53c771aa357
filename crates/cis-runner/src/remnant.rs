//! What an earlier runner of this directory left running when it was killed. These processes are not our
//! children (whoever adopts orphans of a dead runner has them), so they are found by what the journal says and
//! by their cookie, and an attempt is over when two looks in a row find nothing of it.

use std::collections::{HashMap, HashSet};

use rustix::io::Errno;
use rustix::process::Signal;

use crate::clock::NS_PER_MS;
use crate::directory::Directory;
use crate::journal::Opened;
use crate::process::{self, Process, Variable};
use crate::protocol::AttemptKey;
use crate::stray::{COOKIE, Cookies};

/// The first look again comes this soon, each later one twice as late, up to [`SWEEP_NS_MAX`].
pub(crate) const SWEEP_NS_MIN: u64 = NS_PER_MS;
/// A process that does not die of SIGKILL waits for something only the kernel knows; look now and then.
pub(crate) const SWEEP_NS_MAX: u64 = 250 * NS_PER_MS;

/// Looks in a row that must find nothing: one alone may miss a process that forks while `/proc` is read.
const EMPTY_LOOKS: u8 = 2;

/// The attempts that have to be ended before they can be called interrupted.
#[derive(Debug)]
pub(crate) struct Remnants {
    cookies: Cookies,
    list: Vec<(Opened, u8)>,
    /// Not ours to signal (another user's by setuid).
    spared: HashSet<(i32, u64)>,
    due_ns: u64,
    wait_ns: u64,
}

impl Remnants {
    pub(crate) fn new(cookies: Cookies, open: Vec<Opened>) -> Remnants {
        let list = open.into_iter().map(|opened| (opened, 0)).collect();
        Remnants { cookies, list, spared: HashSet::new(), due_ns: 0, wait_ns: SWEEP_NS_MIN }
    }

    pub(crate) fn due_ns(&self) -> Option<u64> {
        (!self.list.is_empty()).then_some(self.due_ns)
    }

    /// Kills what is there, and hands over the attempts of which nothing is left.
    pub(crate) fn sweep(&mut self, now_ns: u64) -> Vec<Opened> {
        let found = self.members();
        let mut alive: HashSet<AttemptKey> = HashSet::new();
        for (key, process) in found {
            match process.signal(Signal::KILL) {
                Ok(_) => {
                    alive.insert(key);
                }
                Err(Errno::PERM) => {
                    self.spared.insert((process.pid, process.start_ticks));
                }
                Err(_) => {}
            }
        }
        let mut gone = Vec::new();
        self.list.retain_mut(|(opened, empty_looks)| {
            *empty_looks = if alive.contains(&opened.key) { 0 } else { *empty_looks + 1 };
            let over = *empty_looks >= EMPTY_LOOKS;
            if over {
                gone.push(opened.clone());
            }
            !over
        });
        self.due_ns = now_ns + self.wait_ns;
        self.wait_ns = (2 * self.wait_ns).min(SWEEP_NS_MAX);
        gone
    }

    /// Every living process of the listed attempts.
    fn members(&self) -> Vec<(AttemptKey, Process)> {
        let all = process::all();
        let listed: HashSet<AttemptKey> = self.list.iter().map(|(opened, _)| opened.key).collect();
        let mut owners: HashMap<i32, AttemptKey> = HashMap::new();
        let us = std::process::id().cast_signed();
        for process in all.iter().filter(|process| !process.zombie && process.pid != us) {
            let named = self.list.iter().find(|(opened, _)| is_named(opened, process));
            let owner = named.map(|(opened, _)| opened.key).or_else(|| self.by_cookie(process.pid));
            if let Some(key) = owner.filter(|key| listed.contains(key)) {
                owners.insert(process.pid, key);
            }
        }
        // Whatever descends from one of them; pids wrap, so parents need not come first.
        loop {
            let before = owners.len();
            for process in all.iter().filter(|process| process.pid != us) {
                if let Some(key) = owners.get(&process.parent).copied() {
                    owners.entry(process.pid).or_insert(key);
                }
            }
            if owners.len() == before {
                break;
            }
        }
        let spared = |process: &Process| self.spared.contains(&(process.pid, process.start_ticks));
        all.iter()
            .filter(|process| !process.zombie && !spared(process))
            .filter_map(|process| Some((*owners.get(&process.pid)?, *process)))
            .collect()
    }

    fn by_cookie(&self, pid: i32) -> Option<AttemptKey> {
        match process::variable(pid, COOKIE) {
            Variable::Is(cookie) => self.cookies.key(&cookie),
            _ => None,
        }
    }
}

/// Do the processes that a journal names say that they are of another directory than this one?
pub(crate) fn are_marked_elsewhere(open: &[Opened], directory: &Directory) -> bool {
    let cookies = Cookies::new(directory.device, directory.inode);
    let is_elsewhere = |opened: &Opened| {
        let leader = opened.leader.and_then(|leader| Process::look(leader.pid));
        leader.filter(|process| is_named(opened, process)).is_some_and(|process| {
            matches!(process::variable(process.pid, COOKIE), Variable::Is(cookie) if cookies.key(&cookie).is_none())
        })
    };
    open.iter().any(is_elsewhere)
}

/// Whether the journal names this process: the leader itself, or one of its group in that runner's session.
/// Group and session together: their numbers are not reused while one process is left in them.
fn is_named(opened: &Opened, process: &Process) -> bool {
    opened.leader.is_some_and(|leader| {
        let born = leader.from_tick..=leader.to_tick;
        let is_leader = process.pid == leader.pid && born.contains(&process.start_ticks);
        is_leader || (process.group == leader.pid && process.session == opened.session)
    })
}
