//! What callers may ask of a store, and what the model makes of it.

use cis_core::error::ErrorCode;
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::{Millis, Timestamp};
use cis_core::task::TaskStatus;
use cis_store::port::{Ending, Fate, Recorded, RevisionStatus};

use crate::answer::Answer;
use crate::coverage::Reached;
use crate::model::{At, Model, QUOTAS, Revision};
use crate::run::{Node, Place, Run};

/// Something a caller asks.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    Publish {
        content: usize,
        new_revision: bool,
        expires: Option<Millis>,
    },
    Settle {
        revision: usize,
        confirm: bool,
    },
    Start(Start),
    Advance {
        reports: Vec<Told>,
        claim: Option<u32>,
        old_life: bool,
    },
    /// A person says yes or no.
    Approve {
        at: At,
        approve: bool,
    },
    Stop {
        run: usize,
        reason: StopReason,
    },
    Work,
    /// Time passes.
    Pass(Millis),
    Sweep,
    /// What is over makes room, but for the latest so many runs of each name.
    Prune {
        keep: u32,
    },
    /// The store is closed and opened again, and a new coordinator begins.
    Reopen,
}

/// A run to start.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) revision: usize,
    /// With the id of this run, not with one of its own.
    pub(crate) again: Option<usize>,
    pub(crate) by_confirmation: bool,
    pub(crate) max_parallel: Option<u32>,
    pub(crate) resumes: Option<usize>,
    pub(crate) fates: Option<Vec<Fate>>,
}

/// How an attempt ended, or so somebody says.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) at: At,
    /// With the fence of an earlier attempt, or of none.
    pub(crate) stale: bool,
    pub(crate) ending: Ending,
}

impl Command {
    /// Can it be asked at all? Only about what is there.
    pub(crate) fn makes_sense(&self, model: &Model) -> bool {
        let completed = |run: usize, ix: usize| model.runs[run].tasks[ix].status == TaskStatus::Completed;
        match self {
            Self::Settle { revision, .. } => *revision < model.revisions.len(),
            Self::Stop { run, .. } => *run < model.runs.len(),
            Self::Approve { at: (run, ix), .. } => {
                model.runs.get(*run).is_some_and(|run| *ix < run.tasks.len())
            }
            Self::Advance { reports, .. } => reports.iter().all(|told| {
                let node = model.runs.get(told.at.0).and_then(|run| run.tasks.get(told.at.1));
                node.is_some_and(|node| node.attempt > 0)
            }),
            Self::Start(start) => {
                let known = |run: &usize| *run < model.runs.len();
                let revision = model.revisions.get(start.revision);
                let tasks = revision.map_or(0, |revision| model.contents[revision.content].tasks.len());
                let resumes = start.resumes.is_none_or(|run| {
                    let same = |run: usize| model.runs[run].revision == start.revision;
                    let there = |run: usize| model.runs[run].status.is_terminal() && !model.runs[run].pruned;
                    run < model.runs.len() && same(run) && there(run)
                });
                let fits = start.fates.as_ref().is_none_or(|fates| {
                    let carried = |(ix, fate): (usize, &Fate)| {
                        *fate != Fate::Carry || start.resumes.is_some_and(|run| completed(run, ix))
                    };
                    fates.len() == tasks && fates.iter().enumerate().all(carried)
                });
                tasks > 0 && start.again.iter().all(known) && resumes && fits
            }
            _ => true,
        }
    }

    /// What the model makes of it.
    pub(crate) fn apply(&self, model: &mut Model) {
        model.reached.clear();
        model.ended.clear();
        let answer = match self {
            Self::Publish { content, new_revision, expires } => {
                model.publish(*content, *new_revision, *expires)
            }
            Self::Settle { revision, confirm } => model.settle(*revision, *confirm),
            Self::Start(start) => model.start(start),
            Self::Advance { old_life: true, claim: Some(_), .. } => {
                model.reached.push(Reached::StaleEpoch);
                Answer::Refused(ErrorCode::LeaseExpired)
            }
            Self::Advance { reports, claim, .. } => model.advance(reports, *claim),
            Self::Approve { at: (run, _), .. } if model.runs[*run].pruned => {
                model.reached.push(Reached::AskedOfPruned);
                Answer::Refused(ErrorCode::NotFound)
            }
            Self::Approve { at, approve } => model.decide(*at, *approve),
            Self::Stop { run, .. } if model.runs[*run].pruned => {
                model.reached.push(Reached::AskedOfPruned);
                Answer::Refused(ErrorCode::Gone)
            }
            Self::Stop { run, reason } => {
                model.reached.push(match model.runs[*run].status {
                    RunStatus::Queued => Reached::CancelQueued,
                    _ => Reached::CancelRunning,
                });
                Answer::Stopped(model.stop(*run, *reason))
            }
            Self::Work => model.work(),
            Self::Pass(span) => {
                model.now = model.now.after(*span);
                Answer::Nothing
            }
            Self::Sweep => model.sweep(),
            Self::Prune { keep } => model.prune(*keep),
            Self::Reopen => model.reopen(),
        };
        model.fill_windows();
        model.answer = answer;
        if model.chopped {
            model.work();
            model.answer = model.answer.loosened();
        }
        let ends = model.ended.iter().map(|(_, status)| match status {
            RunStatus::Completed => Reached::RunCompleted,
            RunStatus::Failed => Reached::RunFailed,
            RunStatus::TimedOut => Reached::RunTimedOut,
            _ => Reached::RunCancelled,
        });
        model.reached.extend(ends);
    }
}

impl Model {
    fn publish(&mut self, content: usize, new_revision: bool, expires: Option<Millis>) -> Answer {
        self.expire(|revision| revision.content == content);
        let name = &self.contents[content].dag_id;
        let same_name = |revision: &&Revision| self.contents[revision.content].dag_id == *name;
        let number = self.revisions.iter().filter(same_name).count() as i64 + 1;
        let same = |revision: &Revision| revision.content == content;
        let open = |revision: &Revision| {
            same(revision) && matches!(revision.status, RevisionStatus::Pending | RevisionStatus::Confirmed)
        };
        if let Some(found) = self.revisions.iter().rposition(open) {
            return Answer::Published {
                created: false,
                revision: found,
                status: self.revisions[found].status,
            };
        }
        let again = self.revisions.iter().any(same);
        if number > 1 && !new_revision && !again {
            self.reached.push(Reached::Conflict);
            return Answer::Refused(ErrorCode::ContentConflict);
        }
        let pending = |revision: &&Revision| revision.status == RevisionStatus::Pending;
        if self.revisions.iter().filter(pending).count() >= QUOTAS.pending as usize {
            self.reached.push(Reached::TooManyPending);
            return Answer::Refused(ErrorCode::QuotaExceeded);
        }
        if again {
            self.reached.push(Reached::AskedAgain);
        }
        let expires_at = expires.map(|span| self.now.after(span));
        let status = RevisionStatus::Pending;
        self.revisions.push(Revision { content, number, status, expires_at, run: None });
        Answer::Published { created: true, revision: self.revisions.len() - 1, status }
    }

    /// Lets requests run out that nobody decided about in time.
    fn expire(&mut self, which: impl Fn(&Revision) -> bool) {
        for revision in self.revisions.iter_mut().filter(|revision| which(revision)) {
            if revision.is_overdue(self.now) {
                revision.status = RevisionStatus::Expired;
                self.reached.push(Reached::Expired);
            }
        }
    }

    fn settle(&mut self, revision: usize, confirm: bool) -> Answer {
        let wanted = if confirm { RevisionStatus::Confirmed } else { RevisionStatus::Rejected };
        let now = self.now;
        let this = &mut self.revisions[revision];
        match this.status {
            RevisionStatus::Pending if this.is_overdue(now) => Answer::Refused(ErrorCode::InvalidTransition),
            RevisionStatus::Pending => {
                this.status = wanted;
                Answer::Settled { changed: true, status: wanted }
            }
            status if status == wanted => Answer::Settled { changed: false, status },
            _ => Answer::Refused(ErrorCode::InvalidTransition),
        }
    }

    fn start(&mut self, start: &Start) -> Answer {
        let made = self.revisions[start.revision].run.filter(|_| start.by_confirmation);
        if let Some(run) = start.again.or(made) {
            self.reached.push(Reached::SameRunAgain);
            return Answer::Run { run, status: self.runs[run].status };
        }
        if let Some(code) = self.unconfirmed(start.revision) {
            return Answer::Refused(code);
        }
        let unfinished = self.runs.iter().filter(|run| !run.status.is_terminal()).count();
        if unfinished >= QUOTAS.unfinished_runs as usize {
            self.reached.push(Reached::TooManyRuns);
            return Answer::Refused(ErrorCode::QuotaExceeded);
        }
        let tasks = self.contents[self.revisions[start.revision].content].tasks.len();
        let fates = start.fates.clone().unwrap_or_else(|| vec![Fate::Run; tasks]);
        if fates.contains(&Fate::Carry) {
            self.reached.push(Reached::Carried);
        }
        if fates.contains(&Fate::Leave) {
            self.reached.push(Reached::LeftOut);
        }
        let run = self.create(start.revision, &fates, start.max_parallel);
        self.runs[run].resumes = start.resumes;
        if start.by_confirmation {
            self.revisions[start.revision].run = Some(run);
        }
        Answer::Run { run, status: self.runs[run].status }
    }

    fn advance(&mut self, reports: &[Told], claim: Option<u32>) -> Answer {
        let mut recorded = Vec::new();
        for told in reports {
            let (run, ix) = told.at;
            if told.stale || !self.runs[run].tasks[ix].status.is_live() {
                self.reached.push(Reached::StaleReport);
                recorded.push(Recorded::Stale);
            } else {
                recorded.push(Recorded::Now(self.attempt_ended(told.at, &told.ending)));
            }
        }
        self.fill_windows();
        let next = self.claimable().into_iter().take(claim.unwrap_or(0) as usize);
        let claimed = next.map(|at| self.claim(at)).collect();
        Answer::Advanced { recorded, claimed, ended: self.ended.clone(), more_work: !self.stops.is_empty() }
    }

    fn work(&mut self) -> Answer {
        let mut stop = Vec::new();
        while let Some(run) = self.stops.pop_front() {
            stop.extend(self.stop_tasks(run));
        }
        Answer::Worked { stop, ended: self.ended.clone() }
    }

    fn sweep(&mut self) -> Answer {
        self.end_backoffs();
        for at in self.due(TaskStatus::Ready, |run, node| node.queue_deadline.filter(|_| !run.is_stopping()))
        {
            self.queue_timeout(at);
        }
        for at in self.due(TaskStatus::Waiting, |_, node| node.answer_deadline) {
            self.no_answer(at);
        }
        let mut late: Vec<(Timestamp, usize)> = (self.runs.iter().enumerate())
            .filter(|(_, run)| !run.status.is_terminal())
            .filter_map(|(at, run)| Some((run.deadline.filter(|deadline| *deadline <= self.now)?, at)))
            .collect();
        late.sort();
        for (_, run) in late {
            self.reached.push(match self.runs[run].status {
                RunStatus::Queued => Reached::RunQueueTimeout,
                _ => Reached::RunTimeout,
            });
            self.stop(run, StopReason::Timeout);
        }
        self.expire(|_| true);
        Answer::Swept {
            ended: self.ended.clone(),
            next_due: self.next_due(),
            more_work: !self.stops.is_empty(),
        }
    }

    fn prune(&mut self, keep: u32) -> Answer {
        let now = self.now;
        let name = |run: &Run| self.contents[self.revisions[run.revision].content].dag_id.clone();
        let over = |run: &Run| run.ended_at.is_some_and(|at| at < now) && run.left() == 0 && !run.pruned;
        let latest = |at: usize| {
            let later = self.runs[at + 1..].iter().filter(|run| name(run) == name(&self.runs[at]));
            later.count() < keep as usize
        };
        let old = (0..self.runs.len()).filter(|at| over(&self.runs[*at]) && !latest(*at));
        let (kept, pruned): (Vec<usize>, Vec<usize>) = old.partition(|at| {
            self.stops.contains(at)
                || self.runs.iter().any(|run| run.resumes == Some(*at) && !run.status.is_terminal())
        });
        self.reached.extend(kept.iter().map(|_| Reached::KeptForAnother));
        self.reached.extend(pruned.iter().map(|_| Reached::Pruned));
        pruned.iter().for_each(|at| self.runs[*at].pruned = true);
        Answer::Pruned(pruned)
    }

    fn end_backoffs(&mut self) {
        let over = self.due(TaskStatus::Ready, |_, node| match node.place {
            Place::BackingOff(until) => Some(until),
            _ => None,
        });
        for (run, ix) in over {
            let place = self.place(run);
            self.runs[run].tasks[ix].place = place;
        }
    }

    /// Tasks in `status` for which `deadline` has come, the longest overdue first.
    fn due(&self, status: TaskStatus, deadline: impl Fn(&Run, &Node) -> Option<Timestamp>) -> Vec<At> {
        let mut due = Vec::new();
        for (at, run) in self.runs.iter().enumerate() {
            for (ix, node) in run.tasks.iter().enumerate().filter(|(_, node)| node.status == status) {
                due.extend(deadline(run, node).filter(|when| *when <= self.now).map(|when| (when, at, ix)));
            }
        }
        due.sort();
        due.into_iter().map(|(_, at, ix)| (at, ix)).collect()
    }

    /// The next moment at which something becomes due.
    fn next_due(&self) -> Option<Timestamp> {
        let ready =
            self.runs.iter().flat_map(|run| &run.tasks).filter(|node| node.status == TaskStatus::Ready);
        let tasks = ready.flat_map(|node| {
            let backoff = match node.place {
                Place::BackingOff(until) => Some(until),
                _ => None,
            };
            [backoff, node.queue_deadline]
        });
        let waiting = self.runs.iter().flat_map(|run| &run.tasks);
        let waiting =
            waiting.filter(|node| node.status == TaskStatus::Waiting).map(|node| node.answer_deadline);
        let runs = self.runs.iter().filter(|run| !run.status.is_terminal()).map(|run| run.deadline);
        let pending = self.revisions.iter().filter(|revision| revision.status == RevisionStatus::Pending);
        let requests = pending.map(|revision| revision.expires_at);
        tasks.chain(waiting).chain(runs).chain(requests).flatten().min()
    }

    fn reopen(&mut self) -> Answer {
        if !self.stops.is_empty() {
            self.reached.push(Reached::ReopenMidWork);
        }
        self.lives += 1;
        let live = self.live();
        if !live.is_empty() {
            self.reached.push(Reached::ReopenWithLive);
        }
        let live = live.into_iter().map(|(run, ix)| (run, ix, self.runs[run].tasks[ix].status)).collect();
        let runs = self.runs.iter().enumerate();
        let unfinished = runs.filter(|(_, run)| !run.status.is_terminal()).map(|(at, _)| at).collect();
        Answer::Opened { live, unfinished }
    }
}
