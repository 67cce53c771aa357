//! Coordinators at the door: who is heard, who is dropped, what is answered.
//!
//! Only one connection counts, the one whose Hello was accepted last. Whoever was there before is forgotten,
//! with everything it had sent and we had not yet read, before the new one gets its answer: an old
//! coordinator's late messages start nothing.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use rustix::event::epoll::{self, EventFlags};

use crate::attempt::Attempt;
use crate::directory::Directory;
use crate::door::{self, Connection};
use crate::protocol::{AttemptKey, FromRunner, Known, KnownState, OLDEST, PROTOCOL, ToRunner, can_talk};
use crate::runner::{Kind, Place, Runner, complain, token, unwatch};
use crate::spawn::Context;

/// Connections that have not said Hello; more than this and the oldest goes.
const STRANGERS_MAX: usize = 8;

impl Runner {
    /// Takes in everyone who waits at the door.
    pub(crate) fn accept(&mut self) {
        loop {
            match door::accept(&self.listener) {
                Ok(Some(stream)) => {
                    let number = self.next_number();
                    let connection = Connection::new(number, stream);
                    let flags = EventFlags::IN | EventFlags::RDHUP;
                    match epoll::add(&self.epoll, connection.fd(), token(Kind::Connection, number), flags) {
                        Ok(()) => self.connections.push(connection),
                        Err(error) => complain("watch a connection", &error.into()),
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    complain("accept a connection", &error);
                    break;
                }
            }
        }
        let strangers = self.connections.iter().filter(|c| Some(c.id) != self.current);
        if strangers.clone().count() > STRANGERS_MAX
            && let Some(oldest) = strangers.map(|c| c.id).min()
        {
            self.drop_connection(oldest);
        }
    }

    /// Reads from a connection and acts on it. That it can be written to again is seen to at the end of the turn.
    pub(crate) fn hear(&mut self, id: u64) {
        let Some(connection) = self.connections.iter_mut().find(|c| c.id == id) else {
            return;
        };
        let open = match connection.receive(&mut self.buffer) {
            Ok(open) => open,
            Err(_) => return self.drop_connection(id),
        };
        // Each message may be the one after which this connection no longer counts.
        while let Some(connection) = self.connections.iter_mut().find(|c| c.id == id && !c.closing) {
            match connection.message() {
                Ok(Some(message)) => self.act(id, message),
                Ok(None) => break,
                Err(error) => {
                    complain("understand the coordinator", &io::Error::other(error));
                    return self.drop_connection(id);
                }
            }
        }
        if !open {
            self.drop_connection(id);
        }
    }

    fn act(&mut self, id: u64, message: ToRunner) {
        if let ToRunner::Hello { protocol, oldest, epoch, slots, key, directory } = message {
            let pid = std::process::id();
            return if !self.is_known(key) {
                self.drop_connection(id);
            } else if !can_talk(protocol, oldest) {
                self.send_away(id, &FromRunner::Unfit { protocol: PROTOCOL, oldest: OLDEST, pid });
            } else if self.is_elsewhere(directory.as_ref()) {
                let directory = self.directory.clone();
                self.send_away(id, &FromRunner::WrongDirectory { pid, directory });
            } else {
                self.hello(id, epoch, slots);
            };
        }
        if self.current != Some(id) {
            return self.drop_connection(id);
        }
        match message {
            ToRunner::Hello { .. } => {}
            ToRunner::Context { context, env, cwd } => {
                self.contexts.insert(context, Rc::new(Context::new(env, cwd)));
            }
            ToRunner::Forget { context } => {
                self.contexts.remove(&context);
            }
            ToRunner::Start(start) => self.enqueue(id, start),
            ToRunner::Stop { key, kill } => self.stop(key, kill),
            ToRunner::Ack { keys } => self.acknowledge(&keys),
            ToRunner::HandOver { keep_ms } => self.prepare_hand_over(id, keep_ms),
        }
    }

    /// Does a coordinator mean another data directory than ours? One of the first version does not say which it means.
    fn is_elsewhere(&self, meant: Option<&Directory>) -> bool {
        meant.is_some_and(|meant| !meant.is_same(&self.directory))
    }

    /// Does it know the directory's key? Where there is none, nothing is asked.
    fn is_known(&self, key: Option<String>) -> bool {
        match std::fs::read_to_string(&self.door_key) {
            Ok(ours) => key.is_some_and(|key| key == ours),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Says a last word.
    fn send_away(&mut self, id: u64, word: &FromRunner) {
        self.say(id, word);
        if let Some(connection) = self.connections.iter_mut().find(|c| c.id == id) {
            connection.closing = true;
        }
    }

    /// A coordinator introduces itself. Whoever was here before it is gone before it gets an answer.
    fn hello(&mut self, id: u64, epoch: i64, slots: u32) {
        if self.current == Some(id) {
            return self.drop_connection(id);
        }
        if epoch < self.epoch {
            return self.send_away(id, &FromRunner::Refused { epoch: self.epoch });
        }
        if let Some(older) = self.current {
            self.drop_connection(older);
        }
        if epoch > self.epoch {
            self.journal.epoch(epoch);
            self.epoch = epoch;
            self.untie_kept();
        }
        self.current = Some(id);
        self.set_slots(slots);
        self.welcome(id);
    }

    fn welcome(&mut self, id: u64) {
        let state = |place: &Place| match place {
            Place::Queued => KnownState::Queued,
            Place::Running(_) | Place::Remnant => KnownState::Running,
            Place::Ended(_) => KnownState::Ended,
        };
        let known = |(key, place): (&AttemptKey, &Place)| {
            let remnant = matches!(place, Place::Remnant);
            Known { key: *key, state: state(place), remnant }
        };
        let mut attempts: Vec<Known> = self.known.iter().map(known).collect();
        attempts.sort_unstable_by_key(|known| known.key);
        let ended: Vec<AttemptKey> =
            attempts.iter().filter(|known| known.state == KnownState::Ended).map(|known| known.key).collect();
        let boot_id = self.boot_id.clone();
        self.say(
            id,
            &FromRunner::Welcome {
                protocol: PROTOCOL,
                oldest: OLDEST,
                boot_id,
                pid: std::process::id(),
                attempts,
                directory: Some(self.directory.clone()),
            },
        );
        for key in ended {
            if let Some(Place::Ended(json)) = self.known.get(&key)
                && let Some(connection) = self.connections.iter_mut().find(|c| c.id == id)
                && let Err(error) = connection.say(json)
            {
                complain("tell an outcome", &io::Error::other(error));
            }
        }
        self.tell_started_again(id);
    }

    /// What an earlier coordinator was told of processes that still run may have died with it.
    fn tell_started_again(&mut self, id: u64) {
        let told = self.attempts.values().filter(|attempt| attempt.told && attempt.exit.is_none());
        let started: Vec<FromRunner> = told.map(Attempt::started).collect();
        for message in started {
            self.say(id, &message);
        }
    }

    /// Forgets a connection, with everything it still had to say; what was tied to it ends, unless that was handed over.
    pub(crate) fn drop_connection(&mut self, id: u64) {
        if let Some(place) = self.connections.iter().position(|connection| connection.id == id) {
            unwatch(&self.epoll, self.connections.remove(place).fd());
        }
        if self.current != Some(id) {
            return;
        }
        self.current = None;
        self.contexts.clear();
        self.release_tied(id);
    }

    pub(crate) fn say(&mut self, id: u64, message: &FromRunner) {
        let Some(connection) = self.connections.iter_mut().find(|c| c.id == id) else {
            return;
        };
        let said = serde_json::to_string(message).map_err(io::Error::from);
        if let Err(error) = said.and_then(|json| connection.say(&json).map_err(io::Error::other)) {
            complain("answer", &error);
        }
    }

    pub(crate) fn say_to_current(&mut self, message: &FromRunner) {
        if let Some(id) = self.current {
            self.say(id, message);
        }
    }

    /// Sends what was said, and waits for room where a peer is slow.
    pub(crate) fn send(&mut self) {
        let mut gone = Vec::new();
        for connection in &mut self.connections {
            match connection.send() {
                Err(_) => gone.push(connection.id),
                Ok(done) if done && connection.closing => gone.push(connection.id),
                Ok(done) if done == connection.waits_to_write => {
                    let writing = if done { EventFlags::empty() } else { EventFlags::OUT };
                    let flags = EventFlags::IN | EventFlags::RDHUP | writing;
                    let data = token(Kind::Connection, connection.id);
                    match epoll::modify(self.epoll.as_fd(), connection.fd(), data, flags) {
                        Ok(()) => connection.waits_to_write = !done,
                        Err(_) => gone.push(connection.id),
                    }
                }
                Ok(_) => {}
            }
        }
        for id in gone {
            self.drop_connection(id);
        }
    }
}
