//! A DAG as the rest of CIS sees it: normalised, validated, whatever format or spelling it was written in.

use std::collections::BTreeMap;

use serde_json::Value;

use super::approval::Approval;
use crate::id::{DagId, Scope, TaskId, TaskIx};
use crate::retry::Retry;
use crate::source::Millis;

/// Values by name.
pub type Values = BTreeMap<String, Value>;

/// A normalised definition. Its content hash covers everything but its address (`dag_id`, `scope`).
#[derive(Debug, Clone, PartialEq)]
pub struct Dag {
    pub dag_id: DagId,
    pub scope: Scope,
    pub description: Option<String>,
    /// The node that should execute it; others warn or wait.
    pub target_node: Option<String>,
    /// Higher first.
    pub priority: i32,
    pub policy: Policy,
    /// How many of its tasks may run at once; `None` means as many as there are slots.
    pub max_parallel: Option<u32>,
    /// For the whole run, from its start.
    pub timeout: Option<Millis>,
    /// For the run to leave `queued`.
    pub queue_timeout: Option<Millis>,
    pub env: BTreeMap<String, String>,
    /// Defaults; a run may override them.
    pub params: Values,
    /// Where tasks run; relative to the caller's directory.
    pub workdir: Option<String>,
    /// Tree hashes of the skills it names, pinned when it is published.
    pub skills: BTreeMap<String, String>,
    /// In file order. Dependencies are indices into this list.
    pub tasks: Vec<Task>,
}

/// One node of a DAG.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub id: TaskId,
    pub kind: Kind,
    /// Sorted, without repeats.
    pub depends_on: Box<[TaskIx]>,
    pub run_if: RunIf,
    pub priority: i32,
    /// May an interrupted attempt be tried again without using up a retry?
    pub idempotent: bool,
    /// May processes it leaves behind live on after it?
    pub detach: bool,
    /// Its failure does not fail the run under [`Policy::AllowDebt`].
    pub debt_ignorable: bool,
    /// Everything most tasks do without; boxed to keep a task small.
    pub more: Option<Box<More>>,
}

/// The settings few tasks have.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct More {
    pub name: Option<String>,
    pub description: Option<String>,
    /// An expression over params and upstream outputs; false skips the task.
    pub when: Option<String>,
    /// A person must approve before it may start: `level = "confirmed"`.
    pub confirmed: bool,
    pub retry: Option<Retry>,
    pub timeout: Option<Millis>,
    pub queue_timeout: Option<Millis>,
    /// Between SIGTERM and SIGKILL.
    pub grace: Option<Millis>,
    pub env: BTreeMap<String, String>,
    pub workdir: Option<String>,
    pub target_node: Option<String>,
    /// Capabilities whoever claims it must have; sorted, without repeats.
    pub needs: Vec<String>,
}

/// What a task does.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// `/bin/sh -c command`.
    Shell { command: Box<str> },
    /// A skill from the search path, or a built-in one.
    Skill(Box<SkillCall>),
    /// Somebody outside claims it, works on it and reports back. What it is given: JSON, templates inside its strings
    /// are filled.
    External { input: Box<Value> },
    /// A person says yes or no; nothing is started.
    Approval(Box<Approval>),
}

/// A skill and what it is given.
#[derive(Debug, Clone, PartialEq)]
pub struct SkillCall {
    pub skill: String,
    /// JSON handed over on stdin and in `CIS_INPUT`; templates inside its strings are filled.
    pub input: Value,
}

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Any failed or timed-out task fails the run.
    #[default]
    AllSuccess,
    /// The first task without dependents that completes completes the run.
    FirstSuccess,
    /// Failures of tasks marked `debt = "ignorable"` do not fail the run.
    AllowDebt,
}

/// What a task asks of its dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunIf {
    /// All completed (or were skipped by their own `when`).
    #[default]
    AllSuccess,
    /// All ended, however.
    AllDone,
    /// All ended and at least one failed.
    OneFailed,
    /// All ended and none failed; skipped counts as fine.
    NoneFailed,
}

impl Task {
    /// The task's settings, defaults included.
    pub fn more(&self) -> &More {
        static NONE: std::sync::LazyLock<More> = std::sync::LazyLock::new(More::default);
        self.more.as_deref().unwrap_or(&NONE)
    }

    /// Does it wait for a person once its dependencies are met?
    pub fn needs_person(&self) -> bool {
        matches!(self.kind, Kind::Approval(_)) || self.more().confirmed
    }

    /// What to show people: its `name`, else its id.
    pub fn title(&self) -> &str {
        self.more().name.as_deref().unwrap_or(self.id.as_str())
    }
}

impl Kind {
    /// What it is given, if it is a kind that is given anything.
    pub fn input(&self) -> Option<&Value> {
        match self {
            Self::Shell { .. } | Self::Approval(_) => None,
            Self::Skill(call) => Some(&call.input),
            Self::External { input } => Some(input),
        }
    }

    /// The word a definition uses for it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Shell { .. } => "shell",
            Self::Skill(_) => "skill",
            Self::External { .. } => "external",
            Self::Approval(_) => "approval",
        }
    }
}

impl Policy {
    /// Every policy with its word.
    pub const WORDS: [(&'static str, Self); 3] = [
        ("all_success", Self::AllSuccess),
        ("first_success", Self::FirstSuccess),
        ("allow_debt", Self::AllowDebt),
    ];

    /// The word a definition uses for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::AllSuccess => "all_success",
            Self::FirstSuccess => "first_success",
            Self::AllowDebt => "allow_debt",
        }
    }
}

impl RunIf {
    /// Every rule with its word.
    pub const WORDS: [(&'static str, Self); 4] = [
        ("all_success", Self::AllSuccess),
        ("all_done", Self::AllDone),
        ("one_failed", Self::OneFailed),
        ("none_failed", Self::NoneFailed),
    ];

    /// The word a definition uses for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::AllSuccess => "all_success",
            Self::AllDone => "all_done",
            Self::OneFailed => "one_failed",
            Self::NoneFailed => "none_failed",
        }
    }
}
