//! The runner's state, its queue and its starts. Coordinators are heard in `coordinator`, attempts end in
//! `ending`, and the loop that drives it all is in `serve`.
//!
//! One turn: events come in and change the state, outcomes and journal lines gather; then the turn ends: the
//! journal is written, outcomes are sent, new processes are started. In this order, always.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io::{self, ErrorKind, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::inotify;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use crate::attempt::{Attempt, Cause, Husk};
use crate::clock::{NS_PER_MS, boot_ns, wall_ms};
use crate::directory::Directory;
use crate::door::{Connection, Listener};
use crate::journal::{Journal, Opened, Recalled};
use crate::protocol::{AttemptKey, Ended, FromRunner, LogSummary, Outcome, Start};
use crate::remnant::Remnants;
use crate::spawn::{Context, Spawner};
use crate::stray::Strays;

/// With so many attempts waiting for a slot, outcomes may be held for [`HOLD_NS`]: nothing starts later for it. Nobody
/// who watches sees the delay; after 4 ms instead, W3 took 1.34 times as long as ninja instead of 1.26.
const HOLD_WHILE_QUEUED: usize = 1;
const HOLD_NS: u64 = 20 * NS_PER_MS;

/// Before the journal is tried again on a disk that is full. Until then nothing is started: what a killed runner left
/// could not be found.
const ROOM_NS: u64 = 1_000 * NS_PER_MS;

/// Before a runner puts its lock and its socket back: a process that removes the whole directory is done by then.
const MEND_NS: u64 = 300 * NS_PER_MS;

/// Processes started in one turn: a spawn takes the kernel a while, and output and exits of others wait.
const STARTS_PER_TURN: usize = 8;

/// What a descriptor in the loop is, in the low bits of its token; above them the number it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Listener = 0,
    Connection = 1,
    Leader = 2,
    Stdout = 3,
    Stderr = 4,
    Stdin = 5,
    /// The data directory itself: something in it was removed or replaced.
    Directory = 6,
}

pub(crate) fn token(kind: Kind, number: u64) -> EventData {
    EventData::new_u64(number << 3 | kind as u64)
}

fn untoken(data: EventData) -> Option<(Kind, u64)> {
    let kinds = [
        Kind::Listener,
        Kind::Connection,
        Kind::Leader,
        Kind::Stdout,
        Kind::Stderr,
        Kind::Stdin,
        Kind::Directory,
    ];
    let token = data.u64();
    let kind = kinds.into_iter().find(|kind| *kind as u64 == token & 7)?;
    Some((kind, token >> 3))
}

/// To be said of a descriptor before it is closed. Closing is not enough: a process that was started meanwhile has a copy of it
/// until it has become another program, and an epoll goes by what is open, not by who closed it. The loop would be
/// woken again and again for nothing, perhaps on the very processor that the process waits for.
pub(crate) fn unwatch(epoll: &OwnedFd, descriptor: impl AsFd) {
    let _ = epoll::delete(epoll, descriptor);
}

/// Where an attempt stands. Acknowledged ones are not known at all.
#[derive(Debug)]
pub(crate) enum Place {
    Queued,
    /// Under this number in `attempts`.
    Running(u64),
    /// Started by an earlier runner, being ended.
    Remnant,
    /// The message that says how, as JSON.
    Ended(String),
}

/// An attempt that waits for a slot.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) start: Box<Start>,
    context: Option<Rc<Context>>,
    pub(crate) owner: Option<u64>,
}

/// What the runner is made of when it begins to serve.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) epoll: OwnedFd,
    pub(crate) listener: Listener,
    pub(crate) watch: Option<OwnedFd>,
    pub(crate) journal: Journal,
    pub(crate) recalled: Recalled,
    pub(crate) strays: Strays,
    pub(crate) spawner: Spawner,
    pub(crate) logs: PathBuf,
    pub(crate) door_key: PathBuf,
    pub(crate) directory: Directory,
    pub(crate) boot_id: String,
    pub(crate) session: i32,
    pub(crate) instant: bool,
}

/// The runner.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) epoll: OwnedFd,
    pub(crate) listener: Listener,
    /// What the kernel says of the data directory, where it does.
    watch: Option<OwnedFd>,
    /// When to see whether lock and socket are still in their places.
    pub(crate) mend_ns: Option<u64>,
    pub(crate) connections: Vec<Connection>,
    /// The one connection whose messages count.
    pub(crate) current: Option<u64>,
    pub(crate) epoch: i64,
    /// For how long what is tied to the present connection outlives it, if that hands over.
    pub(crate) hand_over_ns: Option<u64>,
    /// Until when what was tied to an earlier one waits for the next coordinator.
    pub(crate) kept_until_ns: Option<u64>,
    slots: usize,
    pub(crate) contexts: HashMap<i64, Rc<Context>>,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) known: HashMap<AttemptKey, Place>,
    pub(crate) attempts: HashMap<u64, Attempt>,
    /// Of attempts that ended in this turn, to be dropped at its end: whoever waits to hear of them does not wait for that.
    pub(crate) husks: Vec<Husk>,
    /// When to look at which attempt; an entry may be out of date, see `Attempt::armed_ns`.
    pub(crate) timers: BinaryHeap<Reverse<(u64, u64)>>,
    /// Signals for what escaped from these attempts, sent together at the end of the turn.
    pub(crate) signals: Vec<(AttemptKey, Signal)>,
    pub(crate) journal: Journal,
    pub(crate) strays: Strays,
    pub(crate) remnants: Remnants,
    spawner: Spawner,
    pub(crate) logs: PathBuf,
    /// Where the key is that a coordinator must know.
    pub(crate) door_key: PathBuf,
    /// The data directory it serves.
    pub(crate) directory: Directory,
    pub(crate) buffer: Vec<u8>,
    pub(crate) boot_id: String,
    session: i32,
    instant: bool,
    last_number: u64,
    /// There are outcomes that are not in the journal yet.
    untold: bool,
    /// When messages that are being held must leave.
    pub(crate) held_ns: Option<u64>,
    /// When to look whether there is room for the journal again.
    pub(crate) full_ns: Option<u64>,
}

/// What one read takes at most: as much as a pipe holds.
const BUFFER_BYTES: usize = 64 << 10;

impl Runner {
    pub(crate) fn new(parts: Parts) -> Runner {
        let Recalled { epoch, open, ended } = parts.recalled;
        let mut known = HashMap::new();
        known.extend(open.iter().map(|opened| (opened.key, Place::Remnant)));
        known.extend(ended.into_iter().map(|(key, json)| (key, Place::Ended(json))));
        Runner {
            remnants: Remnants::new(parts.strays.cookies(), open),
            epoll: parts.epoll,
            listener: parts.listener,
            watch: parts.watch,
            mend_ns: None,
            connections: Vec::new(),
            current: None,
            epoch,
            hand_over_ns: None,
            kept_until_ns: None,
            slots: 1,
            contexts: HashMap::new(),
            queue: VecDeque::new(),
            known,
            attempts: HashMap::new(),
            husks: Vec::new(),
            timers: BinaryHeap::new(),
            signals: Vec::new(),
            journal: parts.journal,
            strays: parts.strays,
            spawner: parts.spawner,
            logs: parts.logs,
            door_key: parts.door_key,
            directory: parts.directory,
            buffer: vec![0; BUFFER_BYTES],
            boot_id: parts.boot_id,
            session: parts.session,
            instant: parts.instant,
            last_number: 0,
            untold: false,
            held_ns: None,
            full_ns: None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.known.is_empty()
    }

    pub(crate) fn has_connections(&self) -> bool {
        !self.connections.is_empty()
    }

    /// Listens there from now on. Those who wait at the present socket are taken in first: they would be sent away.
    pub(crate) fn replace_listener(&mut self, listener: Listener) {
        self.accept();
        unwatch(&self.epoll, self.listener.fd());
        let added = epoll::add(&self.epoll, listener.fd(), token(Kind::Listener, 0), EventFlags::IN);
        if let Err(error) = added {
            complain("watch the socket", &error.into());
        }
        self.listener = listener;
    }

    /// Something in the data directory was removed or replaced. What it was is not asked: whatever removes several
    /// files, perhaps the whole directory, is let finish first.
    fn note_removal(&mut self) {
        if let Some(watch) = &self.watch {
            let mut buffer = [MaybeUninit::uninit(); 1024];
            let mut events = inotify::Reader::new(watch, &mut buffer);
            while events.next().is_ok() {}
        }
        self.mend_soon();
    }

    pub(crate) fn mend_soon(&mut self) {
        self.mend_ns.get_or_insert(boot_ns() + MEND_NS);
    }

    pub(crate) fn handle(&mut self, event: epoll::Event) {
        let Some((kind, number)) = untoken(event.data) else {
            return;
        };
        match kind {
            Kind::Listener => self.accept(),
            Kind::Connection => self.hear(number),
            Kind::Leader => self.leader_exited(number),
            Kind::Stdout => self.read_output(number, 0),
            Kind::Stderr => self.read_output(number, 1),
            Kind::Stdin => self.feed_input(number),
            Kind::Directory => self.note_removal(),
        }
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Makes room for that many attempts' descriptors; attempts themselves keep the limit they would have had.
    pub(crate) fn set_slots(&mut self, slots: u32) {
        const FILES_PER_ATTEMPT: u64 = 6;
        const FILES_OF_ITS_OWN: u64 = 64;
        self.slots = usize::try_from(slots).unwrap_or(usize::MAX).max(1);
        let limit = getrlimit(Resource::Nofile);
        let needed = u64::from(slots) * FILES_PER_ATTEMPT + FILES_OF_ITS_OWN;
        if limit.current.is_some_and(|current| current < needed) {
            let raised = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
            self.spawner.files.get_or_insert(limit);
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum });
        }
    }

    pub(crate) fn enqueue(&mut self, id: u64, start: Box<Start>) {
        // Started once, ever: whatever is known under this key is that one time.
        if self.known.contains_key(&start.key) {
            return;
        }
        self.known.insert(start.key, Place::Queued);
        let context = self.contexts.get(&start.context).cloned();
        let owner = start.tied.then_some(id);
        self.queue.push_back(Queued { start, context, owner });
    }

    pub(crate) fn stop(&mut self, key: AttemptKey, kill: bool) {
        match self.known.get(&key) {
            Some(Place::Queued) => {
                self.queue.retain(|queued| queued.start.key != key);
                self.conclude(never_started(key, Outcome::NeverStarted));
            }
            Some(Place::Running(number)) => self.begin_stop(*number, Cause::Stop, kill),
            Some(Place::Remnant | Place::Ended(_)) | None => {}
        }
    }

    pub(crate) fn acknowledge(&mut self, keys: &[AttemptKey]) {
        cis_fail::point("runner.before_ack");
        for key in keys {
            if matches!(self.known.get(key), Some(Place::Ended(_))) {
                self.known.remove(key);
                self.journal.acknowledged(std::iter::once(*key));
            }
        }
        cis_fail::point("runner.after_ack");
    }

    /// Records an outcome and tells whoever is there; it stays known until acknowledged.
    pub(crate) fn conclude(&mut self, ended: Ended) {
        let key = ended.key;
        let json = match serde_json::to_string(&FromRunner::Ended(Box::new(ended))) {
            Ok(json) => json,
            Err(error) => return complain("put an outcome into words", &error.into()),
        };
        self.journal.ended(&json);
        self.untold = true;
        if let Some(connection) = self.connections.iter_mut().find(|c| Some(c.id) == self.current)
            && let Err(error) = connection.say(&json)
        {
            complain("tell an outcome", &io::Error::other(error));
        }
        self.known.insert(key, Place::Ended(json));
    }

    /// Ends the turn. True if more could be started at once.
    pub(crate) fn end_turn(&mut self) -> bool {
        self.send_signals();
        let lines = self.journal.gathered();
        let batch = self.next_batch();
        let flushed = self.flush();
        if !self.may_hold(&batch) {
            self.send();
        }
        self.husks.clear();
        match flushed {
            Ok(()) => batch.into_iter().for_each(|queued| self.start(queued)),
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                self.journal.take_back(lines);
                batch.into_iter().rev().for_each(|queued| self.queue.push_front(queued));
                self.full_ns = Some(boot_ns() + ROOM_NS);
            }
            Err(error) => {
                let why = format!("cannot write the start journal: {error}");
                for queued in batch {
                    let outcome = Outcome::Broken { why: why.clone() };
                    self.conclude(never_started(queued.start.key, outcome));
                }
            }
        }
        if self.untold {
            // Some could not be started. Pids alone can wait for the next turn, outcomes cannot.
            let _ = self.flush();
            self.send();
        }
        let free = self.attempts.len() < self.slots && self.full_ns.is_none() && self.has_startable(&[]);
        free || self.untold || !self.signals.is_empty()
    }

    /// While there is enough to start next, what has ended is told a little later, several at once: the
    /// coordinator then wakes up, commits and claims once for all of them.
    fn may_hold(&mut self, batch: &[Queued]) -> bool {
        let unsent = self.connections.iter().any(|connection| connection.has_unsent());
        if !unsent || self.queue.len() < HOLD_WHILE_QUEUED || !self.has_startable(batch) {
            self.held_ns = None;
            return false;
        }
        let now = boot_ns();
        let due = *self.held_ns.get_or_insert(now + HOLD_NS);
        if now < due {
            return true;
        }
        self.held_ns = None;
        false
    }

    /// Writes the journal. Outcomes are told even if that fails: they are kept in memory as well.
    fn flush(&mut self) -> io::Result<()> {
        self.untold = false;
        self.journal.flush().inspect_err(|error| complain("write the journal", error))
    }

    /// The attempts whose turn it is, with their intent in the journal.
    fn next_batch(&mut self) -> Vec<Queued> {
        if self.full_ns.is_some_and(|until| boot_ns() < until) {
            return Vec::new();
        }
        self.full_ns = None;
        let free = self.slots.saturating_sub(self.attempts.len());
        let batch = self.take_startable(free.min(STARTS_PER_TURN));
        let started_ms = if batch.is_empty() { 0 } else { wall_ms() };
        for Queued { start, .. } in &batch {
            let (key, log, session) = (start.key, start.log.clone(), self.session);
            self.journal.starting(&Opened { key, started_ms, session, log, leader: None });
        }
        batch
    }

    fn start(&mut self, queued: Queued) {
        let key = queued.start.key;
        if self.instant {
            let now = wall_ms();
            let outcome = Outcome::Exited { code: 0 };
            return self.conclude(Ended { started_ms: now, ended_ms: now, ..never_started(key, outcome) });
        }
        if let Err(why) = self.try_start(queued) {
            self.conclude(never_started(key, Outcome::Broken { why }));
        }
    }

    fn try_start(&mut self, queued: Queued) -> Result<(), String> {
        let Queued { start, context, owner } = queued;
        let context = context.ok_or_else(|| format!("context {} was never sent", start.context))?;
        if !is_inside(Path::new(&start.log)) {
            return Err(format!("the log's name `{}` leads out of the log directory", start.log));
        }
        let started = Attempt::start(start, &context, &self.logs, &mut self.spawner, &mut self.strays);
        let (mut attempt, leader) = started?;
        attempt.owner = owner;
        let (key, number) = (attempt.key(), self.next_number());
        // Told with the next turn's lines: the watch timer makes sure that there is one soon.
        self.journal.started(key, leader);
        let watched = epoll::add(&self.epoll, &attempt.pidfd, token(Kind::Leader, number), EventFlags::IN);
        let fed = match &attempt.feed {
            Some(feed) => epoll::add(&self.epoll, &feed.pipe, token(Kind::Stdin, number), EventFlags::OUT),
            None => Ok(()),
        };
        self.known.insert(key, Place::Running(number));
        self.put_back(number, attempt);
        if let Err(error) = watched.and(fed) {
            complain("watch a process", &error.into());
            self.begin_stop(number, Cause::Stop, true);
        }
        Ok(())
    }
}

/// The outcome of an attempt of which no process ever ran.
pub(crate) fn never_started(key: AttemptKey, outcome: Outcome) -> Ended {
    let log = LogSummary::default();
    Ended { key, outcome, started_ms: 0, ended_ms: wall_ms(), log, outputs: None }
}

fn is_inside(path: &Path) -> bool {
    path.components().next().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Standard error is `runner.log`. Where that finds no room either, nobody is told, and no task ends for it.
pub(crate) fn complain(what: &str, error: &io::Error) {
    let _ = writeln!(io::stderr(), "cis runner: cannot {what}: {error}");
}
