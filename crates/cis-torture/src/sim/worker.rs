//! Workers outside: they claim, keep their claims, say how it ended, and do what they should not: vanish, go on under a
//! claim that is over, and speak for each other.

use std::pin::pin;

use cis_core::id::{ExecutionId, Fence};
use cis_core::retry::Failure;
use cis_core::source::{Clock as _, Millis, Random as _};
use cis_engine::coordinator::handle::News;
use cis_runner::protocol::AttemptKey;
use cis_store::SqliteStore;
use cis_store::port::{ClaimWork, Conclude, Ending, Holding, IdempotencyKey, Once, StoreError};

use super::judge::{Judge, Moment};
use super::machine::MadeUp;
use super::node::{Mail, now};
use super::runner::name;
use super::trace::Trace;
use crate::chance::Chance;

/// Attempts a worker remembers that it had.
const PAST_MAX: usize = 8;

/// What a worker can reach, and who looks on.
pub(super) struct Around<'a> {
    pub(super) store: &'a SqliteStore,
    pub(super) machine: &'a MadeUp,
    pub(super) mail: &'a mut Mail,
    pub(super) judge: &'a mut Judge,
    pub(super) chance: &'a mut Chance,
    pub(super) trace: &'a mut Trace,
    /// Nothing goes wrong any more.
    pub(super) calm: bool,
}

impl Around<'_> {
    pub(super) fn moment(&self) -> Moment {
        Moment { boot: self.machine.boot_ms(), wall: self.machine.wall_ms() }
    }

    /// Is this answer lost on its way?
    pub(super) fn loses_answer(&mut self) -> bool {
        !self.calm && self.chance.one_in(8)
    }
}

/// Somebody who works.
#[derive(Debug, Default)]
pub(super) struct Worker {
    number: usize,
    claims: u32,
    /// A claim that was not answered: asked again under the same name.
    asking: Option<String>,
    jobs: Vec<AttemptKey>,
    past: Vec<AttemptKey>,
}

impl Worker {
    pub(super) fn new(number: usize) -> Self {
        Self { number, ..Self::default() }
    }

    /// Is there anything it has to finish?
    pub(super) fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Does something.
    pub(super) fn act(&mut self, others: &[AttemptKey], around: &mut Around<'_>) {
        let job = around.chance.pick(&self.jobs).copied();
        match (around.chance.below(10), job) {
            (_, Some(key)) if around.calm => self.conclude(key, around),
            (0..4, Some(key)) => self.beat(key, around),
            (4..7, Some(key)) => self.conclude(key, around),
            // It vanishes, and may return.
            (7, Some(key)) => self.forget(key),
            (8, _) if !around.calm => match around.chance.pick(&self.past).copied() {
                Some(key) if around.chance.one_in(2) => self.beat(key, around),
                Some(key) => self.conclude(key, around),
                None => {}
            },
            (9, _) if !around.calm => match around.chance.pick(others).copied() {
                Some(key) if around.chance.one_in(2) => self.beat(key, around),
                Some(key) => self.conclude(key, around),
                None => {}
            },
            _ => self.claim(around),
        }
    }

    /// What it holds, as far as it knows.
    pub(super) fn holds(&self) -> impl Iterator<Item = AttemptKey> {
        self.jobs.iter().copied()
    }

    fn identity(&self) -> String {
        format!("worker-{}", self.number)
    }

    fn forget(&mut self, key: AttemptKey) {
        self.jobs.retain(|job| *job != key);
        self.past.truncate(PAST_MAX - 1);
        self.past.insert(0, key);
    }

    fn claim(&mut self, around: &mut Around<'_>) {
        let (number, claims) = (self.number, &mut self.claims);
        let claim_id = self.asking.get_or_insert_with(|| {
            *claims += 1;
            format!("claim-{number}-{claims}")
        });
        let term = Millis(1_000 * (1 + around.chance.below(20)));
        let request = ClaimWork {
            claim_id: Some(claim_id.clone()),
            identity: format!("worker-{number}"),
            worker: format!("worker-{number}"),
            limit: 1 + around.chance.below(2) as u32,
            scopes: None,
            capabilities: Vec::new(),
            term,
            now: around.machine.now(),
            since_boot: around.machine.since_boot(),
        };
        let held = match now(pin!(around.store.claim_work(request))) {
            Some(Ok(held)) => held,
            other => return around.judge.finds(format!("a claim of worker {number}: {other:?}")),
        };
        let moment = around.moment();
        held.iter().for_each(|held| around.judge.claimed(number, held, moment));
        if !held.is_empty() {
            let times = held.iter().filter_map(|held| held.claim.task().more().timeout);
            let due = Some(around.machine.now().after(times.fold(term, Millis::min)));
            around.mail.post(News { due, ..News::default() });
        }
        let keys: Vec<AttemptKey> = held
            .iter()
            .map(|held| AttemptKey { execution: held.claim.execution.0, fence: held.claim.fence.0 })
            .collect();
        let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
        let lost = around.loses_answer();
        let heard = if lost { ", and does not hear of it" } else { "" };
        if !keys.is_empty() || lost {
            around.trace.tell(format!("worker {number} claims [{}] for {term}{heard}", names.join(" ")));
        }
        if lost {
            // It may give up asking.
            self.asking = self.asking.take().filter(|_| !around.chance.one_in(3));
            return;
        }
        self.asking = None;
        self.jobs.extend(keys);
    }

    fn holding(&self, key: AttemptKey, around: &Around<'_>) -> Holding {
        Holding {
            execution: ExecutionId(key.execution),
            fence: Fence(key.fence),
            identity: self.identity(),
            scopes: None,
            now: around.machine.now(),
            since_boot: around.machine.since_boot(),
        }
    }

    fn beat(&mut self, key: AttemptKey, around: &mut Around<'_>) {
        let holding = self.holding(key, around);
        let answer = now(pin!(around.store.heartbeat(holding, None))).unwrap_or(Err(StoreError::Closed));
        around.trace.tell(format!("worker {} beats {}: {}", self.number, name(key), word(&answer)));
        let refused = answer.is_err();
        let extended = answer.map(|beat| (!beat.cancel).then_some(beat.expires.0));
        around.judge.beat(self.number, key, extended, around.moment());
        if refused {
            self.forget(key);
        }
    }

    fn conclude(&mut self, key: AttemptKey, around: &mut Around<'_>) {
        // The same of the same attempt, whenever it is said.
        let mut fate = Chance::new(key.fence.cast_unsigned()).fork(key.execution.cast_unsigned());
        let ending = match fate.below(8) {
            0 => Ending::Failed { failure: Failure::Exit(3), why: Some("no".to_owned()) },
            1 => Ending::Released,
            _ => Ending::Succeeded,
        };
        let idempotency = around.chance.one_in(2).then(|| IdempotencyKey {
            caller: self.identity(),
            key: format!("end-{}", name(key)),
            request_hash: format!("{ending:?}"),
        });
        let request = Conclude {
            key: idempotency,
            holding: self.holding(key, around),
            exit_code: matches!(ending, Ending::Failed { .. }).then_some(3),
            ending: ending.clone(),
            error: String::new(),
            outputs: None,
            output: String::new(),
            log_bytes: 0,
            random: around.machine.bits(),
        };
        let told = now(pin!(around.store.conclude(request))).unwrap_or(Err(StoreError::Closed));
        let replayed = told.as_ref().is_ok_and(|once| once.replayed);
        let answer = told.and_then(Once::plain);
        if let Ok(told) = answer.as_ref()
            && !replayed
        {
            let (ended, due) = (told.ended.clone(), told.next_due);
            let ready = ended.is_empty();
            around.mail.post(News { ended, due, ready, ..News::default() });
        }
        let status = answer.map(|told| told.status);
        let lost = around.loses_answer();
        let heard = if lost { ", and does not hear of it" } else { "" };
        let again = if replayed { ", told again" } else { "" };
        let said = word(&status);
        around.trace.tell(format!(
            "worker {} ends {} {ending:?}: {said}{again}{heard}",
            self.number,
            name(key)
        ));
        // A refusal that is told again was judged when it was given. The lease may live by now: a machine that has restarted
        // gives a fresh term to every lease that no sweep has ended.
        if !(replayed && status.is_err()) {
            around.judge.result(self.number, key, &ending, status, around.moment());
        }
        if !lost {
            self.forget(key);
        }
    }
}

/// What an answer comes to, in a word.
pub(super) fn word<T: std::fmt::Debug>(answer: &Result<T, StoreError>) -> String {
    match answer {
        Ok(told) => format!("{told:?}"),
        Err(StoreError::Refused(why)) => format!("{:?}", why.code),
        Err(e) => e.to_string(),
    }
}
