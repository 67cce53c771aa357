//! What people are told of without asking, by which ways, and for how long that is tried.

use serde::{Deserialize, Serialize};

use crate::retry::{self, Backoff, Retry};
use crate::run::RunStatus;
use crate::source::Millis;
use crate::task::TaskStatus;

/// Tries of a notice before it is given up.
pub const TRIES_MAX: u32 = 16;

/// How tries follow each other: after 2 s, then twice as long each time, at most 4 h; half a
/// day in all, less what chance takes off.
const AGAIN: Retry = Retry {
    max: TRIES_MAX - 1,
    backoff: Backoff::Exponential,
    initial: Millis(2_000),
    cap: Millis(4 * 60 * 60 * 1_000),
    jitter: true,
    on_exit_codes: Vec::new(),
};

/// Something people may want to be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// A DAG or a task waits for a person.
    Waiting,
    /// A run failed or ran over its time.
    Failed,
    Completed,
}

impl Occasion {
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Failed, Self::Completed];

    /// The word people use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Completed => "completed",
        }
    }

    /// The occasion with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|occasion| occasion.word() == word)
    }

    /// What a run that has come to `status` is an occasion for. Who cancels a run knows that it is cancelled.
    pub fn of_run(status: RunStatus) -> Option<Self> {
        match status {
            RunStatus::Completed => Some(Self::Completed),
            RunStatus::Failed | RunStatus::TimedOut => Some(Self::Failed),
            RunStatus::Queued
            | RunStatus::Running
            | RunStatus::Cancelling
            | RunStatus::Compensating
            | RunStatus::Cancelled => None,
        }
    }

    /// What a task that has come to `status` is an occasion for. How it ends is told with its run.
    pub fn of_task(status: TaskStatus) -> Option<Self> {
        (status == TaskStatus::Waiting).then_some(Self::Waiting)
    }
}

/// How somebody is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    Command,
    Webhook,
}

impl Way {
    pub const ALL: [Self; 2] = [Self::Command, Self::Webhook];

    /// The word stores and people use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Webhook => "webhook",
        }
    }

    /// The way with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.word() == word)
    }
}

/// What is to be told, and how. Nothing, unless somebody asked for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    pub on: Vec<Occasion>,
    pub by: Vec<Way>,
}

/// How long to wait after the `tries`th try (from 1) failed; `None`: it is given up.
pub fn again(tries: u32, random: u64) -> Option<Millis> {
    (tries < TRIES_MAX).then(|| retry::backoff(&AGAIN, tries, random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_of_when_it_ends_by_itself() {
        let told: Vec<&str> = RunStatus::ALL
            .into_iter()
            .filter(|s| Occasion::of_run(*s).is_some())
            .map(RunStatus::word)
            .collect();
        assert_eq!(told, ["completed", "failed", "timed_out"]);
        let told: Vec<&str> = TaskStatus::ALL
            .into_iter()
            .filter(|s| Occasion::of_task(*s).is_some())
            .map(TaskStatus::word)
            .collect();
        assert_eq!(told, ["waiting"]);
    }

    #[test]
    fn words_lead_back() {
        assert!(Occasion::ALL.into_iter().all(|o| Occasion::from_word(o.word()) == Some(o)));
        assert!(Way::ALL.into_iter().all(|w| Way::from_word(w.word()) == Some(w)));
        assert_eq!((Occasion::from_word("cancelled"), Way::from_word("smoke")), (None, None));
    }

    #[test]
    fn it_is_tried_for_half_a_day_and_then_given_up() {
        let waits =
            |random| (1..).map_while(|tries| again(tries, random)).map(|wait| wait.0).collect::<Vec<_>>();
        for random in [0, 1, u64::MAX / 3, u64::MAX] {
            let waits = waits(random);
            assert_eq!(waits.len() + 1, TRIES_MAX as usize);
            let hours = waits.iter().sum::<u64>() / 3_600_000;
            assert!((6..=12).contains(&hours), "{waits:?}");
            assert!((1_000..=2_000).contains(&waits[0]), "{waits:?}");
        }
        assert_ne!(waits(0), waits(u64::MAX / 3), "those that failed together do not return together");
        assert_eq!(again(u32::MAX, 0), None);
    }
}
