//! What happened, by the one name that every reader is told: followers, `--json`, webhooks, docs.
//!
//! Stores keep the step and the status of a change; its name follows from them, so old rows have one too.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::subject::SubjectKind;
use crate::dag::parse::words::nearest;
use crate::error::{ErrorCode, Refusal};
use crate::revision::{RevisionMove, RevisionStatus};
use crate::run::{RunMove, RunStatus};
use crate::task::{TaskMove, TaskStatus};

/// The step that makes a revision, as stores write it.
pub const PUBLISH: &str = "publish";
/// The step that makes a run.
pub const CREATE: &str = "create";
/// The step after which only a tombstone is left of a run, and the status that it leads to.
pub const PRUNE: &str = "prune";
pub const PRUNED: &str = "pruned";

/// What is before a name in the `type` of a CloudEvent.
const CLOUD_EVENT_PREFIX: &str = "cis.";

/// Every name with what it means: the enum, its words and its docs from one list.
macro_rules! event_names {
    ($($name:ident = $word:literal, $meaning:literal;)*) => {
        /// What happened to a subject.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        pub enum EventName {
            $(#[doc = $meaning] #[serde(rename = $word)] $name,)*
        }

        impl EventName {
            /// Every name: of DAGs, of runs, of tasks, each in the order of a life.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name as it is told: `task.completed`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// What it means, for the docs.
            fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning,)* }
            }
        }
    };
}

event_names! {
    DagPublished = "dag.published", "a revision waits for a decision";
    DagConfirmed = "dag.confirmed", "the revision may be run";
    DagRejected = "dag.rejected", "the revision may not be run";
    DagExpired = "dag.expired", "no decision about the revision came in time";
    RunCreated = "run.created", "tasks that depend on nothing are ready, or completed and skipped as they were carried over";
    RunStarted = "run.started", "its first task was claimed, or waits for a person";
    RunPaused = "run.paused", "nothing more of it is claimed";
    RunUnpaused = "run.unpaused", "its tasks may be claimed again";
    RunCancelling = "run.cancelling", "it is being stopped; `data.reason` says why";
    RunCompensating = "run.compensating", "what had completed is rolled back";
    RunCompleted = "run.completed", "everything is over and the policy is content";
    RunFailed = "run.failed", "everything is over and the policy is not content";
    RunCancelled = "run.cancelled", "it was stopped";
    RunTimedOut = "run.timed_out", "it was not begun, or not over, in time";
    RunPruned = "run.pruned", "its tasks, logs and events are gone or going";
    TaskReady = "task.ready", "its dependencies are met; it may be claimed";
    TaskWaiting = "task.waiting", "its dependencies are met; a person has to decide";
    TaskApproved = "task.approved", "it was approved: `ready`, or `completed` if that is all it asks for";
    TaskRejected = "task.rejected", "it was rejected";
    TaskClaimed = "task.claimed", "an attempt begins; of one that is claimed from outside, `holder` and `fence` say whose it is";
    TaskRetrying = "task.retrying", "an attempt did not succeed, or was given back; it may be claimed again, from `data.not_before` on";
    TaskCancelling = "task.cancelling", "its attempt was asked to stop";
    TaskCompleted = "task.completed", "an attempt succeeded";
    TaskFailed = "task.failed", "no attempt succeeded, and there is no other";
    TaskCancelled = "task.cancelled", "its run is being stopped";
    TaskTimedOut = "task.timed_out", "an attempt, an answer or a claim did not come in time";
    TaskSkipped = "task.skipped", "it does not run; `data.cause` says why";
}

impl EventName {
    /// The name of a stored change of a subject of this kind; nothing for words that no store has written.
    pub fn of(kind: SubjectKind, step: &str, status: &str) -> Option<Self> {
        match (kind, step) {
            (SubjectKind::Dag, PUBLISH) => Some(Self::DagPublished),
            (SubjectKind::Dag, step) => RevisionMove::from_word(step).map(Self::of_revision),
            (SubjectKind::Run, CREATE) => Some(Self::RunCreated),
            (SubjectKind::Run, PRUNE) => Some(Self::RunPruned),
            (SubjectKind::Run, step) => {
                Some(Self::of_run(RunMove::from_word(step)?, RunStatus::from_word(status)?))
            }
            (SubjectKind::Task, step) => TaskMove::from_word(step).map(Self::of_task),
        }
    }

    /// The name of a revision's move.
    pub fn of_revision(step: RevisionMove) -> Self {
        match step {
            RevisionMove::Confirm => Self::DagConfirmed,
            RevisionMove::Reject => Self::DagRejected,
            RevisionMove::Expire => Self::DagExpired,
        }
    }

    /// The name of a run's move. A cancel ends a run that has not begun, and begins the end of any other.
    pub fn of_run(step: RunMove, to: RunStatus) -> Self {
        match step {
            RunMove::Start => Self::RunStarted,
            RunMove::Cancel if to == RunStatus::Cancelled => Self::RunCancelled,
            RunMove::Cancel | RunMove::Timeout | RunMove::EnoughDone => Self::RunCancelling,
            RunMove::Pause => Self::RunPaused,
            RunMove::Unpause => Self::RunUnpaused,
            RunMove::Complete => Self::RunCompleted,
            RunMove::Fail => Self::RunFailed,
            RunMove::Compensate => Self::RunCompensating,
            RunMove::StoppedByCancel => Self::RunCancelled,
            RunMove::QueueTimeout | RunMove::StoppedByTimeout => Self::RunTimedOut,
        }
    }

    /// The name of a task's move.
    pub fn of_task(step: TaskMove) -> Self {
        match step {
            TaskMove::DependenciesMet => Self::TaskReady,
            TaskMove::NeedsPerson => Self::TaskWaiting,
            TaskMove::Approve | TaskMove::ApproveAsDone => Self::TaskApproved,
            TaskMove::Reject => Self::TaskRejected,
            TaskMove::Claim => Self::TaskClaimed,
            TaskMove::TryAgain => Self::TaskRetrying,
            TaskMove::Cancel => Self::TaskCancelling,
            TaskMove::Succeed => Self::TaskCompleted,
            TaskMove::Fail => Self::TaskFailed,
            TaskMove::RunStops | TaskMove::Stopped => Self::TaskCancelled,
            TaskMove::NoAnswer | TaskMove::QueueTimeout | TaskMove::TimeOut => Self::TaskTimedOut,
            TaskMove::Skip | TaskMove::SkipByDefault => Self::TaskSkipped,
        }
    }

    /// The `type` of a CloudEvent: `cis.task.completed`.
    pub fn cloud_event_type(self) -> String {
        format!("{CLOUD_EVENT_PREFIX}{self}")
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that no event has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no event `{0}`")]
pub struct UnknownEventName(String);

impl FromStr for EventName {
    type Err = UnknownEventName;

    /// The name with or without what is before it in the `type` of a CloudEvent.
    fn from_str(text: &str) -> Result<Self, UnknownEventName> {
        let plain = text.strip_prefix(CLOUD_EVENT_PREFIX).unwrap_or(text);
        let known = Self::ALL.iter().copied().find(|name| name.as_str() == plain);
        known.ok_or_else(|| UnknownEventName(text.to_owned()))
    }
}

impl From<UnknownEventName> for Refusal {
    fn from(unknown: UnknownEventName) -> Self {
        let names: Vec<&str> = EventName::ALL.iter().map(|name| name.as_str()).collect();
        let plain = unknown.0.strip_prefix(CLOUD_EVENT_PREFIX).unwrap_or(&unknown.0);
        let hint = match nearest(plain, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("events are {}", names.join(", ")),
        };
        Self::new(ErrorCode::ValidationFailed, unknown.to_string())
            .hint(hint)
            .details(serde_json::json!({"known": names}))
    }
}

/// Every change a store writes: what it is about, the step and the status that it leads to.
fn changes() -> Vec<(SubjectKind, &'static str, &'static str)> {
    let mut all = vec![
        (SubjectKind::Dag, PUBLISH, RevisionStatus::Pending.word()),
        (SubjectKind::Run, CREATE, RunStatus::Queued.word()),
        (SubjectKind::Run, PRUNE, PRUNED),
    ];
    for from in RevisionStatus::ALL {
        let legal = RevisionMove::ALL.into_iter().filter_map(|step| Some((step, from.after(step).ok()?)));
        all.extend(legal.map(|(step, to)| (SubjectKind::Dag, step.word(), to.word())));
    }
    for from in RunStatus::ALL {
        let legal = RunMove::ALL.into_iter().filter_map(|step| Some((step, from.after(step).ok()?)));
        all.extend(legal.map(|(step, to)| (SubjectKind::Run, step.word(), to.word())));
    }
    for from in TaskStatus::ALL {
        let legal = TaskMove::ALL.into_iter().filter_map(|step| Some((step, from.after(step).ok()?)));
        all.extend(legal.map(|(step, to)| (SubjectKind::Task, step.word(), to.word())));
    }
    all
}

/// Every name as Markdown, with the steps and statuses that it stands for: what the docs show.
pub fn table() -> String {
    let changes = changes();
    let mut text = "| event | what happened | step | status |\n|---|---|---|---|\n".to_owned();
    for name in EventName::ALL {
        let of_it =
            changes.iter().filter(|(kind, step, status)| EventName::of(*kind, step, status) == Some(*name));
        let (mut steps, mut statuses) = (Vec::new(), Vec::new());
        for (_, step, status) in of_it {
            for (words, word) in [(&mut steps, step), (&mut statuses, status)] {
                let word = format!("`{word}`");
                if !words.contains(&word) {
                    words.push(word);
                }
            }
        }
        let (meaning, steps, statuses) = (name.meaning(), steps.join(", "), statuses.join(", "));
        text += &format!("| `{name}` | {meaning} | {steps} | {statuses} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_change_has_a_name_and_every_name_a_change() {
        let mut used = BTreeSet::new();
        for (kind, step, status) in changes() {
            let name = EventName::of(kind, step, status).unwrap_or_else(|| panic!("{kind} {step} {status}"));
            assert!(name.as_str().starts_with(&format!("{kind}.")), "{name} is about a {kind}");
            used.insert(name);
        }
        assert_eq!(used.into_iter().collect::<Vec<_>>(), EventName::ALL);
    }

    #[test]
    fn words_of_no_store_have_no_name() {
        let of = EventName::of;
        assert_eq!(of(SubjectKind::Task, PUBLISH, "pending"), None);
        assert_eq!(of(SubjectKind::Run, "claim", "running"), None);
        assert_eq!(of(SubjectKind::Run, "start", "begun"), None);
        assert_eq!(of(SubjectKind::Dag, "start", "running"), None);
    }

    #[test]
    fn name_is_read_with_and_without_the_prefix_of_cloud_events() {
        for name in EventName::ALL {
            assert_eq!(name.as_str().parse(), Ok(*name));
            assert_eq!(name.cloud_event_type().parse(), Ok(*name));
            assert_eq!(serde_json::to_value(name).unwrap(), name.as_str());
        }
        for unknown in ["", "cis.", "run", "cis.cis.run.failed", "Run.Failed", "run.fail"] {
            assert_eq!(unknown.parse::<EventName>(), Err(UnknownEventName(unknown.to_owned())));
        }
    }

    #[test]
    fn refusal_of_an_unknown_name_tells_the_nearest_or_all() {
        let hint = |text: &str| {
            let refusal = Refusal::from(text.parse::<EventName>().unwrap_err());
            assert_eq!(refusal.code, ErrorCode::ValidationFailed);
            refusal.hint.unwrap()
        };
        assert_eq!(hint("cis.run.complete"), "did you mean `run.completed`?");
        assert!(hint("x").starts_with("events are dag.published, dag.confirmed, "), "{}", hint("x"));
    }
}
