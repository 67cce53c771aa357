//! A runner that is made up, but keeps to the protocol as the real one does: it writes starts and outcomes into its journal
//! before it acts on them or tells of them, hears one coordinator at a time, keeps outcomes until they are acknowledged,
//! ends what is tied to a connection with it, unless that is handed over, and ends what an earlier runner left. What was not in the journal dies with it. Processes are of the machine, not of
//! the runner: they outlive it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::mem;

use cis_core::id::Fence;
use cis_runner::frame::{self, Decoder};
use cis_runner::protocol::{
    AttemptKey, Ended, FromRunner, Known, KnownState, LogSummary, OLDEST, Outcome, PROTOCOL,
    STARTED_AFTER_MS, Start, ToRunner,
};

use super::judge::Judge;
use super::machine::{MadeUp, Pipe};
use crate::chance::Chance;

/// What is on disk: lines that were written, in order.
#[derive(Debug, Clone)]
pub(super) enum Line {
    Epoch(i64),
    Starting(AttemptKey, i64),
    Ended(Box<Ended>),
    Acknowledged(AttemptKey),
}

/// A process of a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    /// When it ends by itself, while the machine is awake.
    pub(super) ends: i64,
    pub(super) code: i32,
    /// It does not mind SIGTERM.
    pub(super) stubborn: bool,
}

/// What there is of the runner besides what it has in mind.
#[derive(Debug, Default)]
pub(super) struct Remains {
    pub(super) journal: Vec<Line>,
    pub(super) processes: BTreeMap<AttemptKey, Process>,
}

#[derive(Debug)]
enum Place {
    Queued,
    Running,
    /// Started by an earlier runner, at this moment on the wall.
    Remnant(i64),
    Ended(Box<Ended>),
}

#[derive(Debug)]
struct Queued {
    start: Start,
    /// The connection it ends with.
    owner: Option<u64>,
}

#[derive(Debug)]
struct Attempt {
    start: Start,
    owner: Option<u64>,
    started_ms: i64,
    started_boot: i64,
    told: bool,
    stopping: Option<Stopping>,
}

#[derive(Debug)]
struct Stopping {
    outcome: Outcome,
    kill_boot: i64,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    pipe: Pipe,
    decoder: Decoder,
    /// Leaves when the turn ends.
    unsent: Vec<FromRunner>,
    /// On its way.
    flying: VecDeque<FromRunner>,
}

/// Stands for the connection that attempts were tied to that wait for the next coordinator.
const KEPT: u64 = 0;

/// The runner's mind.
#[derive(Debug, Default)]
pub(super) struct Runner {
    connections: Vec<Connection>,
    current: Option<u64>,
    last_id: u64,
    epoch: i64,
    slots: usize,
    /// For how long what is tied to the present connection outlives it, if that hands over.
    hand_over_ms: Option<u64>,
    /// Until when what was tied to an earlier one waits.
    kept_until_boot: Option<i64>,
    queue: VecDeque<Queued>,
    known: BTreeMap<AttemptKey, Place>,
    attempts: BTreeMap<AttemptKey, Attempt>,
    lines: Vec<Line>,
}

/// Before what a runner does in a turn, it may be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    Journal,
    Telling,
    Starting,
    End,
}

impl Runner {
    /// Starts as the journal says.
    pub(super) fn begin(remains: &Remains) -> Self {
        let mut runner = Self { slots: 1, ..Self::default() };
        for line in &remains.journal {
            match line {
                Line::Epoch(epoch) => runner.epoch = runner.epoch.max(*epoch),
                Line::Starting(key, at) => {
                    runner.known.insert(*key, Place::Remnant(*at));
                }
                Line::Ended(ended) => {
                    runner.known.insert(ended.key, Place::Ended(ended.clone()));
                }
                Line::Acknowledged(key) => {
                    runner.known.remove(key);
                }
            }
        }
        runner
    }

    /// Takes in those who knock.
    pub(super) fn accept(&mut self, pipes: Vec<Pipe>) {
        for pipe in pipes {
            self.last_id += 1;
            let (decoder, unsent, flying) = Default::default();
            self.connections.push(Connection { id: self.last_id, pipe, decoder, unsent, flying });
        }
    }

    /// Can any connection be heard?
    pub(super) fn has_news(&self) -> bool {
        self.connections.iter().any(|connection| connection.pipe.has_news())
    }

    /// Hears one of those who have something to say; answers what it was.
    pub(super) fn hear(
        &mut self,
        machine: &MadeUp,
        remains: &mut Remains,
        chance: &mut Chance,
    ) -> Vec<String> {
        let speaking: Vec<u64> =
            self.connections.iter().filter(|c| c.pipe.has_news()).map(|connection| connection.id).collect();
        let Some(id) = chance.pick(&speaking).copied() else { return Vec::new() };
        let Some(connection) = self.connections.iter_mut().find(|c| c.id == id) else { return Vec::new() };
        let (bytes, open) = connection.pipe.take();
        connection.decoder.push(&bytes);
        let mut heard = Vec::new();
        while let Some(connection) = self.connections.iter_mut().find(|c| c.id == id) {
            let Ok(Some(message)) = connection.decoder.pull() else { break };
            heard.push(describe(&message));
            self.act(id, message, machine, remains);
        }
        if !open {
            heard.push("that it is gone".to_owned());
            self.drop_connection(id, machine, remains);
        }
        heard
    }

    fn act(&mut self, id: u64, message: ToRunner, machine: &MadeUp, remains: &mut Remains) {
        if let ToRunner::Hello { epoch, slots, .. } = message {
            return self.hello(id, epoch, slots as usize, machine, remains);
        }
        if self.current != Some(id) {
            return self.drop_connection(id, machine, remains);
        }
        match message {
            ToRunner::Hello { .. } | ToRunner::Context { .. } | ToRunner::Forget { .. } => {}
            ToRunner::Start(start) => {
                if let Entry::Vacant(unknown) = self.known.entry(start.key) {
                    unknown.insert(Place::Queued);
                    let owner = start.tied.then_some(id);
                    self.queue.push_back(Queued { start: *start, owner });
                }
            }
            ToRunner::Stop { key, kill } => match self.known.get(&key) {
                Some(Place::Queued) => {
                    self.queue.retain(|queued| queued.start.key != key);
                    self.conclude(key, Outcome::NeverStarted, 0, machine);
                }
                Some(Place::Running) => self.begin_stop(key, Outcome::Stopped, kill, machine, remains),
                Some(Place::Remnant(_) | Place::Ended(_)) | None => {}
            },
            ToRunner::Ack { keys } => {
                for key in keys {
                    if matches!(self.known.get(&key), Some(Place::Ended(_))) {
                        self.known.remove(&key);
                        self.lines.push(Line::Acknowledged(key));
                    }
                }
            }
            ToRunner::HandOver { keep_ms } => {
                self.hand_over_ms = Some(keep_ms).filter(|keep_ms| *keep_ms > 0);
                self.say(id, FromRunner::HandOverReady);
            }
        }
    }

    fn hello(&mut self, id: u64, epoch: i64, slots: usize, machine: &MadeUp, remains: &mut Remains) {
        if epoch < self.epoch {
            self.say(id, FromRunner::Refused { epoch: self.epoch });
            return;
        }
        if let Some(older) = self.current {
            self.drop_connection(older, machine, remains);
        }
        if epoch > self.epoch {
            self.lines.push(Line::Epoch(epoch));
            self.epoch = epoch;
            self.kept_until_boot = None;
            self.tie_again(KEPT, None);
        }
        (self.current, self.slots) = (Some(id), slots);
        let known = |(key, place): (&AttemptKey, &Place)| {
            let state = match place {
                Place::Queued => KnownState::Queued,
                Place::Running | Place::Remnant(_) => KnownState::Running,
                Place::Ended(_) => KnownState::Ended,
            };
            Known { key: *key, state, remnant: matches!(place, Place::Remnant(_)) }
        };
        let attempts = self.known.iter().map(known).collect();
        let boot_id = cis_engine::machine::Machine::boot_id(machine);
        let (protocol, oldest, directory) = (PROTOCOL, OLDEST, None);
        self.say(id, FromRunner::Welcome { protocol, oldest, boot_id, pid: 1, attempts, directory });
        let ended = self.known.values().filter_map(|place| match place {
            Place::Ended(ended) => Some(FromRunner::Ended(ended.clone())),
            _ => None,
        });
        let told = self.attempts.values().filter(|attempt| attempt.told).map(Attempt::started);
        for message in ended.chain(told).collect::<Vec<_>>() {
            self.say(id, message);
        }
    }

    fn say(&mut self, id: u64, message: FromRunner) {
        if let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) {
            connection.unsent.push(message);
        }
    }

    fn drop_connection(&mut self, id: u64, machine: &MadeUp, remains: &mut Remains) {
        if let Some(at) = self.connections.iter().position(|connection| connection.id == id) {
            self.connections.remove(at).pipe.close();
        }
        if self.current != Some(id) {
            return;
        }
        self.current = None;
        match self.hand_over_ms.take() {
            Some(keep_ms) => {
                self.tie_again(id, Some(KEPT));
                self.kept_until_boot = Some(machine.boot_ms().saturating_add_unsigned(keep_ms));
            }
            None => self.end_tied(id, machine, remains),
        }
    }

    fn tie_again(&mut self, from: u64, to: Option<u64>) {
        let queued = self.queue.iter_mut().map(|queued| &mut queued.owner);
        let running = self.attempts.values_mut().map(|attempt| &mut attempt.owner);
        queued.chain(running).filter(|owner| **owner == Some(from)).for_each(|owner| *owner = to);
    }

    fn end_tied(&mut self, id: u64, machine: &MadeUp, remains: &mut Remains) {
        let (tied, rest): (VecDeque<_>, _) =
            mem::take(&mut self.queue).into_iter().partition(|q| q.owner == Some(id));
        self.queue = rest;
        for queued in tied {
            self.conclude(queued.start.key, Outcome::OwnerGone, 0, machine);
        }
        let running = self.attempts.values().filter(|attempt| attempt.owner == Some(id));
        for key in running.map(|attempt| attempt.start.key).collect::<Vec<_>>() {
            self.begin_stop(key, Outcome::OwnerGone, false, machine, remains);
        }
    }

    /// The connection that counts breaks.
    pub(super) fn lose_connection(&mut self, machine: &MadeUp, remains: &mut Remains) {
        if let Some(id) = self.current {
            self.drop_connection(id, machine, remains);
        }
    }

    /// Where in the queue the attempts are whose lane has room.
    fn startable(&self) -> Vec<usize> {
        let mut taken: BTreeMap<i64, u32> = BTreeMap::new();
        for lane in self.attempts.values().filter_map(|attempt| attempt.start.lane) {
            *taken.entry(lane.id).or_default() += 1;
        }
        let mut admits = |start: &Start| {
            start.lane.is_none_or(|lane| {
                let count = taken.entry(lane.id).or_default();
                let admitted = *count < lane.max.max(1);
                *count += u32::from(admitted);
                admitted
            })
        };
        let free = self.slots.saturating_sub(self.attempts.len());
        let places = self.queue.iter().enumerate().filter(|(_, queued)| admits(&queued.start));
        places.map(|(place, _)| place).take(free).collect()
    }

    fn begin_stop(
        &mut self,
        key: AttemptKey,
        outcome: Outcome,
        kill: bool,
        machine: &MadeUp,
        on: &mut Remains,
    ) {
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        let kill_boot = machine.boot_ms().saturating_add_unsigned(attempt.start.grace_ms);
        attempt.stopping.get_or_insert(Stopping { outcome, kill_boot });
        if let Some(process) = on.processes.get_mut(&key).filter(|process| kill || !process.stubborn) {
            process.ends = process.ends.min(machine.awake());
        }
    }

    /// Looks after what runs: what has ended, what is over its time, what an earlier runner left.
    pub(super) fn look(&mut self, machine: &MadeUp, remains: &mut Remains, judge: &mut Judge) -> bool {
        let (now, boot) = (machine.awake(), machine.boot_ms());
        if self.kept_until_boot.take_if(|until| *until <= boot).is_some() {
            self.end_tied(KEPT, machine, remains);
        }
        let keys: Vec<AttemptKey> = self.known.keys().copied().collect();
        let mut seen = false;
        for key in keys {
            if let Some(Place::Remnant(started_ms)) = self.known.get(&key) {
                let started_ms = *started_ms;
                if remains.processes.remove(&key).is_some() {
                    judge.ended(key);
                }
                judge.interrupted(key);
                self.conclude(key, Outcome::Interrupted, started_ms, machine);
                seen = true;
                continue;
            }
            let Some(attempt) = self.attempts.get_mut(&key) else { continue };
            let process = remains.processes.get(&key).copied();
            if let Some(process) = process.filter(|process| process.ends <= now) {
                let Some(attempt) = self.attempts.remove(&key) else { continue };
                remains.processes.remove(&key);
                judge.ended(key);
                let outcome =
                    attempt.stopping.map_or(Outcome::Exited { code: process.code }, |stop| stop.outcome);
                self.conclude(key, outcome, attempt.started_ms, machine);
                seen = true;
            } else if attempt.stopping.as_ref().is_some_and(|stop| stop.kill_boot <= boot) {
                self.begin_stop(key, Outcome::Stopped, true, machine, remains);
                seen = true;
            } else if attempt.is_late(boot) && attempt.stopping.is_none() {
                self.begin_stop(key, Outcome::TimedOut, false, machine, remains);
                seen = true;
            } else if !attempt.told && boot >= attempt.started_boot.saturating_add_unsigned(STARTED_AFTER_MS)
            {
                attempt.told = true;
                let started = attempt.started();
                if let Some(id) = self.current {
                    self.say(id, started);
                }
            }
        }
        seen
    }

    fn conclude(&mut self, key: AttemptKey, outcome: Outcome, started_ms: i64, machine: &MadeUp) {
        let (log, ended_ms) = (LogSummary::default(), machine.wall_ms());
        let ended = Box::new(Ended { key, outcome, started_ms, ended_ms, log, outputs: None });
        self.lines.push(Line::Ended(ended.clone()));
        if let Some(id) = self.current {
            self.say(id, FromRunner::Ended(ended.clone()));
        }
        self.known.insert(key, Place::Ended(ended));
    }

    /// Ends the turn, as far as it gets: the journal, what is told, what is started.
    pub(super) fn end_turn(
        &mut self,
        until: Until,
        machine: &MadeUp,
        remains: &mut Remains,
        judge: &mut Judge,
        chance: &mut Chance,
    ) -> usize {
        if until == Until::Journal {
            return 0;
        }
        let places = self.startable();
        let mut batch: Vec<Queued> =
            places.into_iter().rev().filter_map(|place| self.queue.remove(place)).collect();
        batch.reverse();
        let now = machine.wall_ms();
        self.lines.extend(batch.iter().map(|queued| Line::Starting(queued.start.key, now)));
        for line in self.lines.drain(..) {
            if let Line::Ended(ended) = &line {
                judge.journalled(ended);
            }
            remains.journal.push(line);
        }
        if until == Until::Telling {
            return 0;
        }
        for connection in &mut self.connections {
            connection.flying.extend(connection.unsent.drain(..));
        }
        if until == Until::Starting {
            return 0;
        }
        let count = batch.len();
        for Queued { start, owner } in batch {
            judge.started(&start);
            let lasts = if chance.one_in(8) { chance.below(90_000) } else { chance.below(4_000) };
            let process = Process {
                ends: machine.awake().saturating_add_unsigned(lasts),
                code: if chance.one_in(6) { 3 } else { 0 },
                stubborn: chance.one_in(4),
            };
            remains.processes.insert(start.key, process);
            let (key, started_ms, started_boot) = (start.key, now, machine.boot_ms());
            self.known.insert(key, Place::Running);
            let (told, stopping) = (false, None);
            self.attempts.insert(key, Attempt { start, owner, started_ms, started_boot, told, stopping });
        }
        count
    }

    /// Is anything gathered that a turn's end would do?
    pub(super) fn has_turn(&self) -> bool {
        let unsent = self.connections.iter().any(|connection| !connection.unsent.is_empty());
        !self.lines.is_empty() || unsent || !self.startable().is_empty()
    }

    pub(super) fn has_flying(&self) -> bool {
        self.connections.iter().any(|connection| !connection.flying.is_empty())
    }

    /// Lets up to `most` messages arrive; answers what they are.
    pub(super) fn deliver(&mut self, most: usize) -> Vec<String> {
        let mut delivered = Vec::new();
        for connection in &mut self.connections {
            let count = connection.flying.len().min(most);
            for message in connection.flying.drain(..count) {
                delivered.push(told(&message));
                // Every message of this runner is far below what a frame may hold.
                connection.pipe.give(&frame::encode(&message).unwrap_or_default());
            }
        }
        delivered
    }

    /// Nothing in mind and nobody there?
    pub(super) fn is_idle(&self) -> bool {
        self.attempts.is_empty() && self.queue.is_empty()
    }

    /// Dies. What was on its way may still arrive.
    pub(super) fn die(mut self, chance: &mut Chance) {
        if chance.one_in(2) {
            self.deliver(usize::MAX);
        }
        self.connections.iter().for_each(|connection| connection.pipe.close());
    }
}

impl Attempt {
    fn is_late(&self, boot: i64) -> bool {
        self.start.timeout_ms.is_some_and(|ms| boot >= self.started_boot.saturating_add_unsigned(ms))
    }

    fn started(&self) -> FromRunner {
        FromRunner::Started { key: self.start.key, pid: 2, at_ms: self.started_ms }
    }
}

/// An attempt, for people.
pub(super) fn name(key: AttemptKey) -> String {
    let fence = Fence(key.fence);
    format!("{}/{:x}.{}", key.execution, fence.epoch().0, fence.0 & i64::from(Fence::COUNT_MAX))
}

fn describe(message: &ToRunner) -> String {
    match message {
        ToRunner::Hello { epoch, .. } => format!("Hello {epoch}"),
        ToRunner::Context { context, .. } => format!("Context {context}"),
        ToRunner::Forget { context } => format!("Forget {context}"),
        ToRunner::Start(start) => format!("Start {}", name(start.key)),
        ToRunner::Stop { key, kill } => format!("Stop {}{}", name(*key), if *kill { " now" } else { "" }),
        ToRunner::Ack { keys } => {
            format!("Ack {}", keys.iter().map(|k| name(*k)).collect::<Vec<_>>().join(" "))
        }
        ToRunner::HandOver { keep_ms } => format!("HandOver {keep_ms}"),
    }
}

fn told(message: &FromRunner) -> String {
    match message {
        FromRunner::Welcome { attempts, .. } => format!("Welcome, {} known", attempts.len()),
        FromRunner::Refused { epoch } => format!("Refused, {epoch} is here"),
        FromRunner::Unfit { protocol, .. } => format!("Unfit, it speaks {protocol}"),
        FromRunner::WrongDirectory { .. } => "WrongDirectory".to_owned(),
        FromRunner::HandOverReady => "HandOverReady".to_owned(),
        FromRunner::Started { key, .. } => format!("Started {}", name(*key)),
        FromRunner::Ended(ended) => format!("Ended {} {:?}", name(ended.key), ended.outcome),
    }
}
