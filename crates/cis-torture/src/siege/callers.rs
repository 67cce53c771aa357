//! Twenty callers that behave well. None of them does anything that a node has a reason to refuse; each writes down what it asked,
//! how long that took, and what went wrong.
//!
//! | module | callers | what they do |
//! |---|---:|---|
//! | `workers` | 5 | claim tasks, keep their leases by heartbeats, write logs and complete |
//! | `publishers` | 6 | publish DAGs, have them confirmed by the owner, and wait until their runs are over |
//! | `readers` | 4 | read lists, statuses and what holds them; one of them connects anew for each call |
//! | `followers` | 4 | follow events |
//! | `cli` | 1 | runs `cis status` and the like |

pub(super) mod cli;
pub(super) mod followers;
pub(super) mod publishers;
pub(super) mod readers;
pub(super) mod workers;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::clock::Stopwatch;
use crate::crash::wire::{Request, Wire};

pub(super) const WORKERS: usize = 5;
pub(super) const PUBLISHERS: usize = 6;
pub(super) const READERS: usize = 4;
pub(super) const FOLLOWERS: usize = 4;

/// What all of them know.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) node: SocketAddr,
    pub(super) watch: Stopwatch,
    /// For so long they begin new things.
    pub(super) time: Duration,
    /// Publishers that still wait for a run; workers go on until there are none.
    pub(super) publishers: AtomicUsize,
}

impl Course {
    pub(super) fn goes_on(&self) -> bool {
        self.watch.elapsed() < self.time
    }

    pub(super) fn needs_workers(&self) -> bool {
        self.publishers.load(Ordering::Relaxed) > 0
    }
}

/// What one call was like.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) kind: &'static str,
    pub(super) took: Duration,
    /// Why it counts as a refusal, if it does: a status, a connection that ended, a timeout.
    pub(super) refusal: Option<String>,
}

/// What became of a run that a publisher had confirmed.
#[derive(Debug, Clone)]
pub(super) struct GoodRun {
    pub(super) dag: String,
    pub(super) run: String,
    pub(super) status: String,
}

/// What callers wrote down.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes {
    pub(super) calls: Vec<Call>,
    pub(super) runs: Vec<GoodRun>,
    /// Claims that were given, and completed in the end.
    pub(super) leases: u64,
    pub(super) leases_lost: Vec<String>,
    /// What else must not be, such as an event that was not told.
    pub(super) missing: Vec<String>,
}

impl Notes {
    pub(super) fn extend(&mut self, more: Self) {
        self.calls.extend(more.calls);
        self.runs.extend(more.runs);
        self.leases += more.leases;
        self.leases_lost.extend(more.leases_lost);
        self.missing.extend(more.missing);
    }
}

/// One caller with its token and its connection.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    pub(super) name: String,
    pub(super) course: &'a Course,
    pub(super) token: String,
    pub(super) notes: Notes,
    wire: Option<Wire>,
}

/// What was answered, if it was.
#[derive(Debug)]
pub(super) enum Answered {
    Good(Value),
    Refused { code: String },
    Lost,
}

impl<'a> Caller<'a> {
    pub(super) fn new(name: String, course: &'a Course, token: String) -> Self {
        Self { name, course, token, notes: Notes::default(), wire: None }
    }

    /// Makes a call that must be answered well; `None` if it was not, which is written down.
    pub(super) fn call(&mut self, kind: &'static str, request: &Request) -> Option<Value> {
        match self.ask(kind, request) {
            Answered::Good(body) => Some(body),
            Answered::Refused { .. } | Answered::Lost => None,
        }
    }

    pub(super) fn ask(&mut self, kind: &'static str, request: &Request) -> Answered {
        let token = self.token.clone();
        self.ask_as(&token, kind, request)
    }

    /// The same with the token of another identity.
    pub(super) fn ask_as(&mut self, token: &str, kind: &'static str, request: &Request) -> Answered {
        let watch = Stopwatch::start();
        let mut refusal = None;
        let kept = self.wire.take();
        if kept.as_ref().is_some_and(|wire| !wire.is_open()) {
            refusal = Some("the node closed the connection between two calls".to_owned());
        }
        let wire = kept.filter(Wire::is_open).map_or_else(|| Wire::open(self.course.node), Ok);
        let replied = wire.and_then(|mut wire| wire.call(token, request).map(|reply| (wire, reply)));
        let answered = match replied {
            Ok((wire, reply)) => {
                self.wire = Some(wire);
                match reply.status {
                    200..400 => Answered::Good(reply.body),
                    status => {
                        let code = reply.body["error"]["code"].as_str().unwrap_or_default().to_owned();
                        refusal = Some(format!("{status} {}", reply.body["error"]));
                        Answered::Refused { code }
                    }
                }
            }
            Err(e) => {
                refusal = Some(format!("no answer: {e}"));
                Answered::Lost
            }
        };
        let (name, at) = (&self.name, self.course.watch.elapsed().as_secs_f64());
        let path = &request.path;
        let refusal = refusal.map(|why| format!("{name} at {at:.1} s, {kind} ({path}): {why}"));
        self.notes.calls.push(Call { kind, took: watch.elapsed(), refusal });
        answered
    }

    /// Its next call is made on a new connection.
    pub(super) fn hang_up(&mut self) {
        self.wire = None;
    }
}
