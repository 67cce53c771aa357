//! What a store must do, said once more: in plain data, from the page about the life of runs and tasks.
//!
//! It shares the pure tables and decisions with the store (`cis-core`) and nothing else: no counters, no steps, no
//! SQL. What the store counts down, this counts up by looking.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use cis_core::dag::{Dag, Kind, OnTimeout, Policy};
use cis_core::error::ErrorCode;
use cis_core::policy;
use cis_core::readiness::{self, Skip, Verdict};
use cis_core::retry::{self, Decision, Failure, Tries};
use cis_core::run::{RunMove, RunStatus, StopReason};
use cis_core::source::{Millis, Timestamp};
use cis_core::task::{TaskMove, TaskStatus};
use cis_store::port::{Ending, Fate, Quotas, RevisionStatus};

use crate::answer::{Answer, Picture};
use crate::coverage::Reached;
use crate::run::{Node, Place, Run};

/// A run's place in the order of runs, and a task's place in its file.
pub(crate) type At = (usize, usize);

/// What the one identity that publishes and starts may have waiting: so little that sequences get there.
pub(crate) const QUOTAS: Quotas = Quotas { pending: 2, pending_bytes: u64::MAX, unfinished_runs: 3 };

/// Everything the store should hold.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) now: Timestamp,
    /// What may be published; some of it under the same name.
    pub(crate) contents: Arc<Vec<Dag>>,
    pub(crate) revisions: Vec<Revision>,
    pub(crate) runs: Vec<Run>,
    /// Runs whose tasks have still to be told to stop.
    pub(crate) stops: VecDeque<usize>,
    /// Counts up with everything that becomes ready.
    ticks: u64,
    /// How often a coordinator has begun.
    pub(crate) lives: u32,
    /// Large steps are taken to their end after every command, by a store whose chunks are tiny.
    pub(crate) chopped: bool,
    /// What the last command must have answered.
    pub(crate) answer: Answer,
    /// What the last command led to.
    pub(crate) reached: Vec<Reached>,
    pub(super) ended: Vec<(usize, RunStatus)>,
}

/// One content under its name.
#[derive(Debug, Clone)]
pub(crate) struct Revision {
    pub(crate) content: usize,
    pub(crate) number: i64,
    pub(crate) status: RevisionStatus,
    pub(crate) expires_at: Option<Timestamp>,
    /// The run its confirmation made.
    pub(crate) run: Option<usize>,
}

impl Revision {
    /// Does it wait for a decision that can no longer come?
    pub(crate) fn is_overdue(&self, now: Timestamp) -> bool {
        self.status == RevisionStatus::Pending && self.expires_at.is_some_and(|at| at <= now)
    }
}

impl Model {
    pub(crate) fn new(contents: Vec<Dag>, chopped: bool) -> Self {
        Self {
            now: Timestamp(1_000_000),
            contents: Arc::new(contents),
            revisions: Vec::new(),
            runs: Vec::new(),
            stops: VecDeque::new(),
            ticks: 0,
            lives: 1,
            chopped,
            answer: Answer::Nothing,
            reached: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// What an onlooker should see.
    pub(crate) fn picture(&self) -> Picture {
        let node = |node: &Node| (node.status, node.version, node.attempt);
        Picture {
            revisions: self.revisions.iter().map(|revision| (revision.number, revision.status)).collect(),
            runs: (self.runs.iter())
                .map(|run| (run.status, run.version, run.tasks.iter().map(node).collect()))
                .zip(&self.runs)
                .map(|(told, run)| (!run.pruned).then_some(told))
                .collect(),
            claimable: self.claimable(),
        }
    }

    /// What may be claimed, in the order of claims.
    pub(crate) fn claimable(&self) -> Vec<At> {
        let mut found = Vec::new();
        for (at, run) in self.runs.iter().enumerate().filter(|(_, run)| !run.is_stopping()) {
            for (ix, node) in run.tasks.iter().enumerate() {
                if node.status == TaskStatus::Ready && node.place == Place::Claimable {
                    found.push((Reverse(run.dag.priority + run.task(ix).priority), node.turn, at, ix));
                }
            }
        }
        found.sort();
        found.into_iter().map(|(_, _, at, ix)| (at, ix)).collect()
    }

    /// Attempts somebody holds.
    pub(crate) fn live(&self) -> Vec<At> {
        let runs = self.runs.iter().enumerate();
        runs.flat_map(|(at, run)| {
            let tasks = run.tasks.iter().enumerate();
            tasks.filter(|(_, node)| node.status.is_live()).map(move |(ix, _)| (at, ix))
        })
        .collect()
    }

    fn step(&mut self, (run, ix): At, step: TaskMove) -> TaskStatus {
        let node = &mut self.runs[run].tasks[ix];
        node.status = node.status.after(step).expect("a move of the table");
        node.version += 1;
        node.status
    }

    fn step_run(&mut self, run: usize, step: RunMove) -> RunStatus {
        let this = &mut self.runs[run];
        this.status = this.status.after(step).expect("a move of the table");
        this.version += 1;
        let status = this.status;
        if status.is_terminal() {
            this.ended_at = Some(self.now);
            self.ended.push((run, status));
        }
        status
    }

    /// A new run, its tasks where they belong at first.
    pub(super) fn create(&mut self, revision: usize, fates: &[Fate], max_parallel: Option<u32>) -> usize {
        let dag = Arc::new(self.contents[self.revisions[revision].content].clone());
        let at = self.runs.len();
        let node = |ix: usize| Node {
            status: match fates[ix] {
                Fate::Run => TaskStatus::Pending,
                Fate::Carry => TaskStatus::Completed,
                Fate::Leave => TaskStatus::Skipped,
            },
            version: 1,
            attempt: 0,
            free_tries: 0,
            told: 0,
            waits_for: dag.tasks[ix].depends_on.iter().filter(|b| fates[b.index()] == Fate::Run).count(),
            skip: (fates[ix] == Fate::Leave).then_some(Skip::ByChoice),
            broken: false,
            place: Place::Claimable,
            turn: 0,
            queue_deadline: None,
            answer_deadline: None,
            decision: None,
        };
        self.runs.push(Run {
            revision,
            status: RunStatus::Queued,
            version: 1,
            stop: None,
            deadline: dag.queue_timeout.map(|limit| self.now.after(limit)),
            max_parallel: max_parallel.or(dag.max_parallel),
            tasks: (0..dag.tasks.len()).map(node).collect(),
            dag,
            resumes: None,
            ended_at: None,
            pruned: false,
        });
        self.ticks += 1;
        let turn = self.ticks;
        let free: Vec<usize> = (0..fates.len())
            .filter(|ix| fates[*ix] == Fate::Run && self.runs[at].tasks[*ix].waits_for == 0)
            .collect();
        for ix in free {
            let plain =
                self.runs[at].task(ix).more().when.is_none() && !self.runs[at].task(ix).needs_person();
            let goes = readiness::verdict(self.runs[at].task(ix).run_if, self.runs[at].dependencies(ix));
            if plain && goes == Verdict::Go {
                // It comes to be ready, which is no move; and all of these come to be at the same moment.
                self.make_ready((at, ix));
                let node = &mut self.runs[at].tasks[ix];
                (node.version, node.turn) = (1, turn);
            } else {
                self.consider((at, ix));
            }
        }
        self.end_if_over(at);
        at
    }

    /// All a task waits for is over: what now? Those it was skipped before hear of it in turn.
    fn consider(&mut self, at: At) {
        let mut skipped = VecDeque::new();
        skipped.extend(self.released(at).then_some(at));
        while let Some((run, ix)) = skipped.pop_front() {
            skipped.extend(self.tell(run, ix));
        }
    }

    /// Tells the dependents of a task that it is over; answers those that are skipped because of it.
    fn tell(&mut self, run: usize, ix: usize) -> Vec<At> {
        let dependents: Vec<usize> = (0..self.runs[run].tasks.len())
            .filter(|child| self.runs[run].task(*child).depends_on.iter().any(|before| before.index() == ix))
            .collect();
        let mut skipped = Vec::new();
        for child in dependents {
            let node = &mut self.runs[run].tasks[child];
            if node.status != TaskStatus::Pending {
                continue;
            }
            node.told += 1;
            if node.told == node.waits_for && self.released((run, child)) {
                skipped.push((run, child));
            }
        }
        skipped
    }

    /// Makes a task ready, asks a person about it, or skips it: then the answer is yes.
    fn released(&mut self, (run, ix): At) -> bool {
        let this = &self.runs[run];
        let when = this.task(ix).more().when.as_deref();
        let skip = match (readiness::verdict(this.task(ix).run_if, this.dependencies(ix)), when) {
            (Verdict::Skip(why), _) => Some(why),
            (_, Some("false")) => Some(Skip::ByChoice),
            (_, Some("params.nope.at.all")) => {
                self.runs[run].tasks[ix].broken = true;
                Some(Skip::ByFailure)
            }
            _ => None,
        };
        self.runs[run].tasks[ix].skip = skip;
        if skip.is_some() {
            self.reached.push(Reached::Skip);
            self.step((run, ix), TaskMove::Skip);
        } else if self.runs[run].task(ix).needs_person() {
            self.ask((run, ix));
        } else {
            self.make_ready((run, ix));
        }
        skip.is_some()
    }

    fn ask(&mut self, (run, ix): At) {
        self.step((run, ix), TaskMove::NeedsPerson);
        let task = self.runs[run].task(ix);
        let limit = task.more().timeout.filter(|_| matches!(task.kind, Kind::Approval(_)));
        self.runs[run].tasks[ix].answer_deadline = limit.map(|limit| self.now.after(limit));
        self.begin(run);
    }

    /// A person says yes or no, to whatever is there.
    pub(super) fn decide(&mut self, at: At, approve: bool) -> Answer {
        let (run, ix) = at;
        let done = matches!(self.runs[run].task(ix).kind, Kind::Approval(_));
        let step = match (approve, done) {
            (true, true) => TaskMove::ApproveAsDone,
            (true, false) => TaskMove::Approve,
            (false, _) => TaskMove::Reject,
        };
        let node = &self.runs[run].tasks[ix];
        let led_to = TaskStatus::Waiting.after(step).expect("a move of the table");
        match node.decision {
            Some(before) if before == approve => {
                self.reached.push(Reached::DecidedAgain);
                return Answer::Approved { changed: false, status: led_to };
            }
            None if node.status == TaskStatus::Waiting && !self.runs[run].is_stopping() => {}
            _ => return Answer::Refused(ErrorCode::InvalidTransition),
        }
        self.reached.push(if approve { Reached::Approved } else { Reached::Rejected });
        self.runs[run].tasks[ix].decision = Some(approve);
        if led_to.is_terminal() {
            self.step(at, step);
            self.task_ended(at);
        } else {
            let place = self.place(run);
            self.step(at, step);
            self.line_up(at, place, self.now);
        }
        Answer::Approved { changed: true, status: led_to }
    }

    /// Nobody has answered in time.
    pub(super) fn no_answer(&mut self, at: At) {
        let (run, ix) = at;
        if self.runs[run].is_stopping() {
            return;
        }
        self.reached.push(Reached::NoAnswer);
        let step = match &self.runs[run].task(ix).kind {
            Kind::Approval(approval) => match approval.on_timeout {
                OnTimeout::Fail => TaskMove::NoAnswer,
                OnTimeout::Skip => TaskMove::SkipByDefault,
                OnTimeout::Approve => TaskMove::ApproveAsDone,
            },
            _ => TaskMove::NoAnswer,
        };
        self.runs[run].tasks[ix].skip = (step == TaskMove::SkipByDefault).then_some(Skip::ByFailure);
        self.step(at, step);
        self.task_ended(at);
    }

    fn begin(&mut self, run: usize) {
        if self.runs[run].status == RunStatus::Queued {
            self.step_run(run, RunMove::Start);
            self.runs[run].deadline = self.runs[run].dag.timeout.map(|limit| self.now.after(limit));
        }
    }

    fn make_ready(&mut self, (run, ix): At) {
        let place = self.place(run);
        self.step((run, ix), TaskMove::DependenciesMet);
        self.line_up((run, ix), place, self.now);
    }

    /// A task that is ready takes its place and its turn.
    fn line_up(&mut self, (run, ix): At, place: Place, claimable_at: Timestamp) {
        self.ticks += 1;
        let limit = self.runs[run].task(ix).more().queue_timeout;
        let node = &mut self.runs[run].tasks[ix];
        (node.place, node.turn) = (place, self.ticks);
        node.queue_deadline = limit.map(|limit| claimable_at.after(limit));
    }

    pub(super) fn place(&self, run: usize) -> Place {
        if self.runs[run].max_parallel.is_some() { Place::Held } else { Place::Claimable }
    }

    /// Where there is room, the most urgent of those held back come in.
    pub(super) fn fill_windows(&mut self) {
        for this in self.runs.iter_mut().filter(|run| !run.is_stopping()) {
            let dag = this.dag.clone();
            let is_held = |node: &Node| node.status == TaskStatus::Ready && node.place == Place::Held;
            while this.has_room() {
                let held = this.tasks.iter_mut().enumerate().filter(|(_, node)| is_held(node));
                match held.min_by_key(|(ix, node)| (Reverse(dag.tasks[*ix].priority), node.turn, *ix)) {
                    Some((_, node)) => node.place = Place::Claimable,
                    None => break,
                }
            }
            if this.tasks.iter().any(is_held) {
                self.reached.push(Reached::Held);
            }
        }
    }

    pub(super) fn claim(&mut self, at: At) -> (usize, usize, u32) {
        self.step(at, TaskMove::Claim);
        let (run, ix) = at;
        self.runs[run].tasks[ix].attempt += 1;
        self.begin(run);
        (run, ix, self.runs[run].tasks[ix].attempt)
    }

    /// The holder of a live attempt tells how it ended.
    pub(super) fn attempt_ended(&mut self, at: At, ending: &Ending) -> TaskStatus {
        let (run, ix) = at;
        if self.runs[run].is_stopping() && *ending != Ending::Succeeded {
            if self.runs[run].tasks[ix].status == TaskStatus::Running {
                self.step(at, TaskMove::Cancel);
            }
            let by_itself =
                matches!(ending, Ending::Failed { failure: Failure::Exit(_) | Failure::Broken, .. });
            let status = self.step(at, if by_itself { TaskMove::Fail } else { TaskMove::Stopped });
            self.task_ended(at);
            return status;
        }
        let failure = match ending {
            Ending::Succeeded => {
                if self.runs[run].is_stopping() {
                    self.reached.push(Reached::CompletionDuringStop);
                }
                let status = self.step(at, TaskMove::Succeed);
                self.task_ended(at);
                return status;
            }
            Ending::Released => Failure::Released,
            Ending::Stopped => Failure::Interrupted,
            Ending::Failed { failure, .. } => *failure,
        };
        self.attempt_failed(at, failure)
    }

    fn attempt_failed(&mut self, at: At, failure: Failure) -> TaskStatus {
        let (run, ix) = at;
        let task = self.runs[run].task(ix).clone();
        let node = &self.runs[run].tasks[ix];
        let tries = Tries { begun: node.attempt, free: node.free_tries };
        let step = match retry::decide(task.more().retry.as_ref(), task.idempotent, tries, failure, 0) {
            Decision::TryAgain { wait, free } => {
                self.try_again(at, wait, free);
                return TaskStatus::Ready;
            }
            Decision::Failed => TaskMove::Fail,
            Decision::TimedOut => TaskMove::TimeOut,
        };
        let status = self.step(at, step);
        self.task_ended(at);
        status
    }

    fn try_again(&mut self, at: At, wait: Millis, free: bool) {
        let (run, ix) = at;
        self.reached.push(if free { Reached::FreeTry } else { Reached::Retry });
        self.step(at, TaskMove::TryAgain);
        self.runs[run].tasks[ix].free_tries += u32::from(free);
        if wait == Millis(0) {
            self.line_up(at, Place::Claimable, self.now);
        } else {
            let until = self.now.after(wait);
            self.line_up(at, Place::BackingOff(until), until);
        }
    }

    pub(super) fn queue_timeout(&mut self, at: At) {
        self.reached.push(Reached::QueueTimeout);
        self.step(at, TaskMove::QueueTimeout);
        self.task_ended(at);
    }

    /// What the end of a task means to its run and to those that wait for it.
    fn task_ended(&mut self, at: At) {
        let (run, ix) = at;
        let this = &self.runs[run];
        let won = this.dag.policy == Policy::FirstSuccess
            && this.tasks[ix].status == TaskStatus::Completed
            && this.is_sink(ix);
        if won && !this.is_stopping() && this.left() > 0 {
            self.reached.push(Reached::FirstSuccess);
            self.stop(run, StopReason::FirstSuccess);
        }
        let mut over = VecDeque::from([at]);
        while let Some((run, ix)) = over.pop_front().filter(|(run, _)| !self.runs[*run].is_stopping()) {
            over.extend(self.tell(run, ix));
        }
        self.end_if_over(run);
    }

    /// Commits to a stop; its tasks are told when somebody works.
    pub(super) fn stop(&mut self, run: usize, reason: StopReason) -> RunStatus {
        let this = &mut self.runs[run];
        if this.is_stopping() {
            return this.status;
        }
        this.stop = Some(reason);
        this.deadline = None;
        let step = match (this.status, reason) {
            (RunStatus::Queued, StopReason::Timeout) => RunMove::QueueTimeout,
            (RunStatus::Queued, _) => RunMove::Cancel,
            (_, reason) => reason.step(),
        };
        self.stops.push_back(run);
        self.step_run(run, step)
    }

    /// Tells the tasks of a run to stop; answers those that have to be ended.
    pub(super) fn stop_tasks(&mut self, run: usize) -> Vec<At> {
        let mut asked = Vec::new();
        for ix in 0..self.runs[run].tasks.len() {
            match self.runs[run].tasks[ix].status {
                TaskStatus::Pending | TaskStatus::Waiting | TaskStatus::Ready => {
                    self.step((run, ix), TaskMove::RunStops);
                }
                TaskStatus::Running => {
                    self.step((run, ix), TaskMove::Cancel);
                    asked.push((run, ix));
                }
                _ => {}
            }
        }
        self.end_if_over(run);
        asked
    }

    fn end_if_over(&mut self, run: usize) {
        let this = &self.runs[run];
        if this.left() > 0 || this.status.is_terminal() {
            return;
        }
        let step = policy::ending(this.dag.policy, this.tally(), this.stop);
        let raced = matches!(this.stop, Some(StopReason::Cancel | StopReason::OwnerGone));
        if raced && step == RunMove::Complete {
            self.reached.push(Reached::CancelLostRace);
        }
        if this.tally().debts > 0 && step == RunMove::Complete {
            self.reached.push(Reached::Debt);
        }
        self.step_run(run, step);
    }

    /// The refusal of a run of this revision, if there is one.
    pub(super) fn unconfirmed(&self, revision: usize) -> Option<ErrorCode> {
        match self.revisions[revision].status {
            RevisionStatus::Confirmed => None,
            RevisionStatus::Pending => Some(ErrorCode::AwaitingConfirmation),
            RevisionStatus::Rejected | RevisionStatus::Expired => Some(ErrorCode::InvalidTransition),
        }
    }
}
