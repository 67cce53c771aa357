//! A client of the node under torture: it publishes, confirms, answers, cancels, claims and works, reads, and writes down
//! every request with its answer. When the connection dies it does what a good client does: it asks again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::business::{Business, KINDS, Kind, Stage};
use super::record::{Answer, Ask, Entry};
use super::victim::{Door, Standing};
use super::wire::{Request, Wire};
use crate::chance::Chance;
use crate::clock::{Stopwatch, pause};

/// DAGs that one client has under way at once: what bounds the load.
const UNDER_WAY_MAX: usize = 3;

/// Long enough to outlive a restart or two, short enough that what was given up comes back soon.
const LEASE_SECS: u32 = 2;

/// What all clients share.
#[derive(Debug)]
pub(super) struct Storm<'a> {
    pub(super) door: &'a Door,
    pub(super) watch: Stopwatch,
    /// Where tasks write that they began and ended.
    pub(super) ran: &'a Path,
    /// Nothing new is begun.
    pub(super) calming: AtomicBool,
    /// Nothing is waited for any more.
    pub(super) over: AtomicBool,
    /// DAGs that some client still has under way.
    pub(super) under_way: AtomicUsize,
}

impl Storm<'_> {
    fn is_calming(&self) -> bool {
        self.calming.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        let done = self.is_calming() && self.under_way.load(Ordering::Relaxed) == 0;
        done || self.over.load(Ordering::Relaxed)
    }
}

/// One of many.
#[derive(Debug)]
pub(super) struct Client<'a> {
    storm: &'a Storm<'a>,
    number: usize,
    token: String,
    chance: Chance,
    wire: Option<(Wire, u64)>,
    record: Vec<Entry>,
    businesses: Vec<Business>,
    begun: usize,
    held: Vec<Held>,
    claims: usize,
    /// A claim that was not answered: asked again, it gives the same tasks.
    unanswered: Option<String>,
}

/// A task that this client claimed.
#[derive(Debug, Clone)]
struct Held {
    execution: i64,
    fence: i64,
    /// How it ended, as the node was told without an answer.
    said: Option<Ask>,
}

impl<'a> Client<'a> {
    pub(super) fn new(storm: &'a Storm<'a>, number: usize, token: String, chance: Chance) -> Self {
        Self {
            storm,
            number,
            token,
            chance,
            wire: None,
            record: Vec::new(),
            businesses: Vec::new(),
            begun: 0,
            held: Vec::new(),
            claims: 0,
            unanswered: None,
        }
    }

    /// Goes about its business until the storm is over; answers what it has written down.
    pub(super) fn live(mut self) -> Vec<Entry> {
        while !self.storm.is_over() {
            if self.businesses.len() < UNDER_WAY_MAX && !self.storm.is_calming() {
                self.begin();
            }
            match self.chance.below(10) {
                0..=1 => self.claim(),
                2..=4 if !self.held.is_empty() => self.work(),
                _ if !self.businesses.is_empty() => self.go_on(),
                _ if !self.held.is_empty() => self.work(),
                _ => self.claim(),
            }
        }
        self.record
    }

    fn begin(&mut self) {
        let kind = KINDS[self.chance.index(KINDS.len())];
        let keyed = self.chance.percent(50);
        self.businesses.push(Business::new(self.number, self.begun, kind, keyed));
        self.begun += 1;
        self.storm.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// The next step of one of its DAGs.
    fn go_on(&mut self) {
        let place = self.chance.index(self.businesses.len());
        let mut business = self.businesses.swap_remove(place);
        match business.stage {
            Stage::Publish => self.publish(&mut business),
            Stage::Confirm => self.confirm(&mut business),
            Stage::Intervene => self.intervene(&mut business),
            Stage::Wait | Stage::WaitAgain => self.look(&mut business),
            Stage::RunAgain => self.run_again(&mut business),
            Stage::Over => {}
        }
        match business.stage {
            Stage::Over => drop(self.storm.under_way.fetch_sub(1, Ordering::Relaxed)),
            _ => self.businesses.push(business),
        }
    }

    fn publish(&mut self, business: &mut Business) {
        let body = business.definition(self.storm.ran);
        let request = Request::post("/api/v1/dag/publish", &body).keyed(business.key("publish"));
        let ask = Ask::Publish { dag: business.dag.clone() };
        match self.ask(ask, &request, &["content_hash", "status"]) {
            Some(Answer::Acknowledged(_)) => business.stage = Stage::Confirm,
            Some(refused) => give_up_if_refused(business, &refused),
            None => {}
        }
    }

    fn confirm(&mut self, business: &mut Business) {
        let path = format!("/api/v1/dag/{}/confirm", business.dag);
        let request = Request::post(path, &json!({})).keyed(business.key("confirm"));
        match self.ask(Ask::Confirm { dag: business.dag.clone() }, &request, &["run_id"]) {
            Some(Answer::Acknowledged(told)) => {
                business.run = told["run_id"].as_str().unwrap_or_default().to_owned();
                business.stage = match business.kind {
                    Kind::Approval | Kind::Endless => Stage::Intervene,
                    _ => Stage::Wait,
                };
            }
            Some(refused) => give_up_if_refused(business, &refused),
            None => {}
        }
    }

    fn intervene(&mut self, business: &mut Business) {
        let run = business.run.clone();
        let answer = match business.kind {
            Kind::Approval => {
                // Asked again, it must be the same decision.
                let input = json!({"n": business.dag.len()});
                let path = format!("/api/v1/runs/{run}/tasks/ask/approve");
                let request = Request::post(path, &json!({"input": input}));
                self.ask(Ask::Approve { run, input }, &request, &["status"])
            }
            // Now and then: it has to run for a while first.
            _ if self.chance.percent(60) => return self.look(business),
            _ => {
                let request = Request::post(format!("/api/v1/runs/{run}/cancel"), &json!({}));
                self.ask(Ask::Cancel { run }, &request.keyed(business.key("cancel")), &["status"])
            }
        };
        match answer {
            Some(Answer::Acknowledged(_)) => business.stage = Stage::Wait,
            // The question has not been asked yet, or was answered.
            Some(Answer::Refused { .. }) => self.look(business),
            Some(Answer::Unknown) | None => {}
        }
    }

    fn run_again(&mut self, business: &mut Business) {
        let key = format!("again-{}", business.dag);
        let request = Request::post(format!("/api/v1/dag/{}/runs", business.dag), &json!({}));
        let ask = Ask::Again { dag: business.dag.clone(), key: key.clone() };
        match self.ask(ask, &request.keyed(Some(key)), &["run_id"]) {
            Some(Answer::Acknowledged(_)) => business.stage = Stage::WaitAgain,
            Some(refused) => give_up_if_refused(business, &refused),
            None => {}
        }
    }

    /// Reads how a DAG stands, once that is not what was read last, and sees whether it is over.
    fn look(&mut self, business: &mut Business) {
        let (dag, version) = (&business.dag, business.version);
        let request = Request::get(format!("/api/v1/dag/{dag}/status?wait=100ms&after={version}"));
        let Some(Answer::Acknowledged(told)) =
            self.ask(Ask::Status { dag: dag.clone() }, &request, &["status", "version"])
        else {
            return;
        };
        business.version = told["version"].as_i64().unwrap_or(0);
        if told["status"].as_str().is_some_and(is_end) {
            business.stage = match business.stage {
                Stage::Wait if !business.kind.is_done_when_over() => Stage::RunAgain,
                _ => Stage::Over,
            };
        }
    }

    fn claim(&mut self) {
        let claim = self.unanswered.clone().unwrap_or_else(|| {
            self.claims += 1;
            format!("claim-{}-{}", self.number, self.claims)
        });
        let worker = format!("client-{}", self.number);
        // Who has nothing else to do waits for something.
        let wait = u32::from(self.storm.is_calming());
        let body = json!({"claim_id": claim, "worker": worker, "limit": 2, "lease_secs": LEASE_SECS, "wait_secs": wait});
        let request = Request::post("/api/v1/tasks/claim", &body);
        let answer = self.ask(Ask::Claim { claim: claim.clone() }, &request, &["tasks"]);
        self.unanswered = match answer {
            Some(Answer::Acknowledged(_)) | None => None,
            Some(_) => Some(claim),
        };
        let last = self.record.last().filter(|_| matches!(answer, Some(Answer::Acknowledged(_))));
        let claimed = last.map(|entry| entry.claimed().collect::<Vec<_>>()).unwrap_or_default();
        self.held.extend(claimed.into_iter().map(|(execution, fence)| Held { execution, fence, said: None }));
    }

    /// Says something of a task that it holds; once in a while it forgets that it does.
    fn work(&mut self) {
        let place = self.chance.index(self.held.len());
        let mut held = self.held.swap_remove(place);
        let Some(ask) = held.said.clone().or_else(|| self.word_of(&held)) else { return };
        let (what, more) = match &ask {
            Ask::Heartbeat { .. } => ("heartbeat", json!({})),
            Ask::Complete { outputs, .. } => ("complete", json!({"outputs": outputs})),
            Ask::Fail { .. } => ("fail", json!({"error": "on purpose"})),
            _ => ("release", json!({})),
        };
        let mut body = more;
        body["fence"] = json!(held.fence);
        let request = Request::post(format!("/api/v1/tasks/{}/{what}", held.execution), &body);
        let is_last = !matches!(ask, Ask::Heartbeat { .. });
        match self.ask(ask.clone(), &request, &["status"]) {
            Some(Answer::Acknowledged(_)) if is_last => {}
            Some(Answer::Refused { status, .. }) if status < 500 => {}
            Some(Answer::Acknowledged(_)) | None => self.held.push(held),
            Some(_) => {
                held.said = is_last.then_some(ask);
                self.held.push(held);
            }
        }
    }

    fn word_of(&mut self, held: &Held) -> Option<Ask> {
        let Held { execution, fence, .. } = *held;
        let outputs = json!({"by": self.number, "under": fence});
        match self.chance.below(20) {
            _ if self.storm.is_calming() => Some(Ask::Complete { execution, fence, outputs }),
            0 => None,
            1 => Some(Ask::Fail { execution, fence }),
            2 => Some(Ask::Release { execution, fence }),
            3..=7 => Some(Ask::Heartbeat { execution, fence }),
            _ => Some(Ask::Complete { execution, fence, outputs }),
        }
    }

    /// Asks and writes down what was answered, of that only `kept`; `None` if the request never left.
    fn ask(&mut self, ask: Ask, request: &Request, kept: &[&str]) -> Option<Answer> {
        let (mut wire, life) = self.wire()?;
        let sent = self.storm.watch.elapsed();
        let reply = wire.call(&self.token, request);
        let ended = self.storm.watch.elapsed();
        let answer = match reply {
            Ok(reply) => {
                self.wire = Some((wire, life));
                match reply.status {
                    200..300 => Answer::Acknowledged(keep(&reply.body, kept)),
                    status => {
                        let code = reply.body["error"]["code"].as_str().unwrap_or_default().to_owned();
                        Answer::Refused { status, code }
                    }
                }
            }
            Err(_) => Answer::Unknown,
        };
        self.record.push(Entry { client: self.number, life, sent, ended, ask, answer: answer.clone() });
        Some(answer)
    }

    /// A connection to the node as it is now, once it is up.
    fn wire(&mut self) -> Option<(Wire, u64)> {
        let Standing { address, life } = self.storm.door.wait()?;
        if let Some((wire, _)) = self.wire.take().filter(|(wire, of)| *of == life && wire.is_open()) {
            return Some((wire, life));
        }
        match Wire::open(address) {
            Ok(wire) => Some((wire, life)),
            Err(_) => {
                // It has just died; whoever killed it will say so.
                pause(Duration::from_millis(1));
                None
            }
        }
    }
}

/// What a request that nobody has a reason to refuse was refused with is written down; there is no going on.
fn give_up_if_refused(business: &mut Business, answer: &Answer) {
    if matches!(answer, Answer::Refused { status, .. } if *status < 500 && *status != 429) {
        business.stage = Stage::Over;
    }
}

fn is_end(status: &str) -> bool {
    ["completed", "failed", "cancelled", "timed_out"].contains(&status)
}

/// What of an answer is worth keeping.
fn keep(body: &Value, names: &[&str]) -> Value {
    names.iter().map(|name| ((*name).to_owned(), body[*name].clone())).collect()
}
