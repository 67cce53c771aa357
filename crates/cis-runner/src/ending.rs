//! How attempts end: by themselves, over their time, or because someone said so.
//!
//! ```text
//!  running ──leader exits──► is anything left? ──no──► drain, reap, conclude
//!     │                        │ yes: kill it, look again        ▲
//!     └─stop/timeout/owner──► TERM all ──grace──► KILL all ──────┘
//! ```
//!
//! The leader is not reaped before nothing is left: a zombie keeps its pid, so signals to its group can hit
//! nobody else.

use std::cmp::Reverse;

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::attempt::{Attempt, Cause, Poured, Stopping};
use crate::clock::{NS_PER_MS, boot_ns, wall_ms};
use crate::log;
use crate::process::Process;
use crate::protocol::{AttemptKey, Ended, Outcome};
use crate::runner::{Kind, Runner, complain, token, unwatch};
use crate::stray::{self, Left};

impl Runner {
    /// Puts an attempt (back) among the running ones and makes sure it is looked at in time.
    pub(crate) fn put_back(&mut self, number: u64, mut attempt: Attempt) {
        if let Some(due) = attempt.due_ns()
            && attempt.armed_ns.is_none_or(|armed| due < armed)
        {
            attempt.armed_ns = Some(due);
            self.timers.push(Reverse((due, number)));
        }
        self.attempts.insert(number, attempt);
    }

    /// Looks at every attempt whose time has come.
    pub(crate) fn run_timers(&mut self, now_ns: u64) {
        while let Some(&Reverse((due, number))) = self.timers.peek() {
            if due > now_ns {
                break;
            }
            self.timers.pop();
            let Some(mut attempt) = self.attempts.remove(&number) else {
                continue;
            };
            if attempt.armed_ns == Some(due) {
                attempt.armed_ns = None;
                self.tick(number, attempt, now_ns);
            } else {
                self.attempts.insert(number, attempt);
            }
        }
        if self.remnants.due_ns().is_some_and(|due| due <= now_ns) {
            self.sweep_remnants(now_ns);
        }
        self.end_kept(now_ns);
    }

    fn tick(&mut self, number: u64, mut attempt: Attempt, now_ns: u64) {
        if attempt.exit.is_none() {
            if attempt.is_due_to_watch(now_ns) {
                self.watch(number, &mut attempt);
            }
            if attempt.is_due_to_tell(now_ns) {
                attempt.told = true;
                self.say_to_current(&attempt.started());
            }
        }
        let over_time = attempt.timeout_ns().is_some_and(|at| at <= now_ns);
        let over_grace = attempt.stopping.is_some_and(|s| !s.killed && s.kill_ns <= now_ns);
        let exited = attempt.exit.is_some();
        self.put_back(number, attempt);
        if over_time && !exited {
            self.begin_stop(number, Cause::Timeout, false);
        }
        if over_grace {
            self.kill_all(number);
        } else if exited {
            self.settle(number);
        }
    }

    fn watch(&mut self, number: u64, attempt: &mut Attempt) {
        attempt.watched = true;
        for (pipe, kind) in attempt.pipes.iter().zip([Kind::Stdout, Kind::Stderr]) {
            if let Some(pipe) = pipe
                && let Err(error) = epoll::add(&self.epoll, pipe, token(kind, number), EventFlags::IN)
            {
                complain("watch output", &error.into());
            }
        }
    }

    pub(crate) fn read_output(&mut self, number: u64, index: usize) {
        if let Some(attempt) = self.attempts.get_mut(&number)
            && attempt.read_pipe(index, &mut self.buffer) == Poured::Dry
            && let Some(pipe) = attempt.pipes[index].take()
        {
            unwatch(&self.epoll, &pipe);
        }
    }

    pub(crate) fn feed_input(&mut self, number: u64) {
        if let Some(attempt) = self.attempts.get_mut(&number)
            && !attempt.feed_more()
            && let Some(feed) = attempt.feed.take()
        {
            unwatch(&self.epoll, &feed.pipe);
        }
    }

    pub(crate) fn leader_exited(&mut self, number: u64) {
        let Some(attempt) = self.attempts.get_mut(&number) else {
            return;
        };
        if attempt.exit.is_some() {
            return;
        }
        let Some(code) = stray::peek_exit(attempt.pid) else {
            return;
        };
        attempt.exit = Some(code);
        unwatch(&self.epoll, &attempt.pidfd);
        self.settle(number);
    }

    /// Begins to end an attempt, unless it has already ended by itself.
    pub(crate) fn begin_stop(&mut self, number: u64, cause: Cause, kill: bool) {
        self.leader_exited(number);
        let Some(attempt) = self.attempts.get_mut(&number) else {
            return;
        };
        if attempt.stopping.is_none() {
            if attempt.exit.is_some() {
                return;
            }
            let grace_ns = attempt.start.grace_ms.saturating_mul(NS_PER_MS);
            let kill_ns = boot_ns().saturating_add(grace_ns);
            attempt.stopping = Some(Stopping { cause, kill_ns, killed: false });
            if !kill {
                attempt.signal_group(Signal::TERM);
                // A stopped process hears SIGTERM only when it goes on.
                attempt.signal_group(Signal::CONT);
                self.signals.push((attempt.key(), Signal::TERM));
            }
        }
        if kill {
            self.kill_all(number);
        } else if let Some(attempt) = self.attempts.remove(&number) {
            self.put_back(number, attempt);
        }
    }

    /// The grace is over, or there was none.
    fn kill_all(&mut self, number: u64) {
        let Some(mut attempt) = self.attempts.remove(&number) else {
            return;
        };
        if let Some(stopping) = &mut attempt.stopping
            && !stopping.killed
        {
            stopping.killed = true;
            attempt.signal_group(Signal::KILL);
            self.signals.push((attempt.key(), Signal::KILL));
        }
        let exited = attempt.exit.is_some();
        self.put_back(number, attempt);
        if exited {
            self.settle(number);
        }
    }

    /// Signals what escaped from the groups of stopping attempts: one look at `/proc` for all of them.
    pub(crate) fn send_signals(&mut self) {
        if self.signals.is_empty() {
            return;
        }
        let signals = std::mem::take(&mut self.signals);
        let keys: Vec<AttemptKey> = signals.iter().map(|(key, _)| *key).collect();
        for (key, process) in self.strays.members(&keys) {
            let Some((_, signal)) = signals.iter().rev().find(|(signalled, _)| *signalled == key) else {
                continue;
            };
            let Some(attempt) = self.attempts.values_mut().find(|attempt| attempt.key() == key) else {
                continue;
            };
            let in_group = process.group == attempt.pid.as_raw_nonzero().get();
            if *signal == Signal::TERM && in_group {
                continue;
            }
            signal_or_spare(attempt, &process, *signal);
            if *signal == Signal::TERM {
                signal_or_spare(attempt, &process, Signal::CONT);
            }
        }
    }

    /// The leader is dead: ends what is left, looks again later, or concludes.
    fn settle(&mut self, number: u64) {
        let Some(mut attempt) = self.attempts.remove(&number) else {
            return;
        };
        if attempt.start.detach && attempt.stopping.is_none() {
            return self.finish(attempt);
        }
        let left = self.strays.left(attempt.pid, attempt.key(), attempt.birth);
        let now_ns = boot_ns();
        let in_grace = attempt.stopping.is_some_and(|stopping| !stopping.killed);
        let done = match left {
            Left::Nothing => true,
            Left::Unclear => false,
            Left::Something if in_grace => false,
            Left::Something => !self.kill_leftovers(&mut attempt),
        };
        if done {
            self.finish(attempt);
        } else {
            attempt.sweep_later(now_ns);
            self.put_back(number, attempt);
        }
    }

    /// Kills what is left of an attempt; false if there is nothing left that we may kill.
    fn kill_leftovers(&mut self, attempt: &mut Attempt) -> bool {
        let members = self.strays.members(&[attempt.key()]);
        let mut any = members.is_empty();
        for (_, process) in members {
            if attempt.spared.contains(&process.pid) {
                continue;
            }
            any = true;
            if attempt.stopping.is_none() {
                attempt.note_leftover(&process);
            }
            signal_or_spare(attempt, &process, Signal::KILL);
        }
        attempt.signal_group(Signal::KILL);
        any
    }

    /// Nothing is left of the attempt: reads the rest, reaps the leader, records the outcome.
    fn finish(&mut self, mut attempt: Attempt) {
        let ended_ms = wall_ms();
        if !attempt.start.detach {
            attempt.signal_group(Signal::KILL);
        }
        attempt.drain(&mut self.buffer);
        if attempt.watched {
            attempt.pipes.iter().flatten().for_each(|pipe| unwatch(&self.epoll, pipe));
        }
        if let Some(feed) = attempt.feed.take() {
            unwatch(&self.epoll, &feed.pipe);
        }
        self.strays.remove_leader(attempt.pid, attempt.key());
        stray::reap(attempt.pid);
        let outcome = match attempt.stopping {
            Some(stopping) => stopping.cause.outcome(),
            None => Outcome::Exited { code: attempt.exit.unwrap_or(255) },
        };
        let (outcome, outputs) = match attempt.take_outputs() {
            Ok(outputs) => (outcome, outputs),
            Err(why) if outcome == (Outcome::Exited { code: 0 }) => (Outcome::Broken { why }, None),
            Err(_) => (outcome, None),
        };
        let (key, started_ms) = (attempt.key(), attempt.started_ms);
        let (log, husk) = attempt.finish_log(ended_ms);
        self.husks.push(husk);
        self.conclude(Ended { key, outcome, started_ms, ended_ms, log, outputs });
    }

    /// Ends what an earlier runner left running, and calls an attempt interrupted when nothing of it is left.
    fn sweep_remnants(&mut self, now_ns: u64) {
        for opened in self.remnants.sweep(now_ns) {
            self.conclude(Ended {
                key: opened.key,
                outcome: Outcome::Interrupted,
                started_ms: opened.started_ms,
                ended_ms: wall_ms(),
                log: log::summary(&self.logs.join(&opened.log)),
                outputs: None,
            });
        }
    }
}

/// Signals a process; one that is not ours to signal (a setuid program) is remembered and left alone.
fn signal_or_spare(attempt: &mut Attempt, process: &Process, signal: Signal) {
    if process.signal(signal) == Err(Errno::PERM) && !attempt.spared.contains(&process.pid) {
        attempt.spared.push(process.pid);
        attempt.note(&format!("may not end process {} ({})", process.pid, process.command()));
    }
}
