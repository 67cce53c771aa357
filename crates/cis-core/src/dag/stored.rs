//! A definition as a store keeps it: everything, address included, back exactly as it was.
//!
//! Dependencies are indices and absent settings are left out, so 100,000 tasks read back in a fraction of a second
//! without an intermediate tree. Stores keep this text, so its keys only ever grow.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::{Approval, InputType, OnTimeout};
use super::model::{Dag, Kind, More, Policy, RunIf, SkillCall, Task, Values};
use crate::id::{DagId, Scope, TaskId, TaskIx};
use crate::retry::{Backoff, Retry};
use crate::source::Millis;

/// Text that is not a stored definition.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    #[error("a stored definition cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("a stored definition cannot be read: {0}")]
    Meaning(String),
}

/// The text to keep.
pub fn to_stored(dag: &Dag) -> String {
    // Strings, numbers and maps with string keys always serialise.
    serde_json::to_string(&StoredDag::of(dag)).unwrap_or_default()
}

/// The definition that was kept.
pub fn from_stored(text: &str) -> Result<Dag, StoredError> {
    serde_json::from_str::<StoredDag<'_>>(text)?.into_dag()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredDag<'a> {
    #[serde(borrow)]
    dag_id: Cow<'a, str>,
    #[serde(borrow)]
    scope: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_node: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "is_default")]
    priority: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_parallel: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue_timeout_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "is_empty")]
    env: Cow<'a, BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "is_empty")]
    params: Cow<'a, Values>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workdir: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "is_empty")]
    skills: Cow<'a, BTreeMap<String, String>>,
    #[serde(borrow)]
    tasks: Vec<StoredTask<'a>>,
}

fn is_empty<K, V>(map: &BTreeMap<K, V>) -> bool {
    map.is_empty()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTask<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    command: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    skill: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<Cow<'a, Value>>,
    #[serde(default, skip_serializing_if = "is_default")]
    external: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approval: Option<Box<StoredApproval<'a>>>,
    #[serde(default, skip_serializing_if = "is_none_of")]
    depends_on: Cow<'a, [TaskIx]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_if: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "is_default")]
    priority: i32,
    #[serde(default, skip_serializing_if = "is_default")]
    idempotent: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    detach: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    debt_ignorable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    more: Option<Box<StoredMore<'a>>>,
}

fn is_none_of(list: &[TaskIx]) -> bool {
    list.is_empty()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMore<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    when: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "is_default")]
    confirmed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry: Option<StoredRetry<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue_timeout_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grace_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "is_empty")]
    env: Cow<'a, BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workdir: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_node: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "<[String]>::is_empty")]
    needs: Cow<'a, [String]>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRetry<'a> {
    max: u32,
    fixed: bool,
    initial_ms: Millis,
    cap_ms: Millis,
    jitter: bool,
    #[serde(default, skip_serializing_if = "<[i32]>::is_empty")]
    on_exit_codes: Cow<'a, [i32]>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredApproval<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "is_empty")]
    input: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on_timeout: Option<Cow<'a, str>>,
}

impl<'a> StoredDag<'a> {
    fn of(dag: &'a Dag) -> Self {
        Self {
            dag_id: dag.dag_id.as_str().into(),
            scope: dag.scope.as_str().into(),
            description: text(&dag.description),
            target_node: text(&dag.target_node),
            priority: dag.priority,
            policy: (dag.policy != Policy::default()).then(|| dag.policy.word().into()),
            max_parallel: dag.max_parallel,
            timeout_ms: dag.timeout,
            queue_timeout_ms: dag.queue_timeout,
            env: Cow::Borrowed(&dag.env),
            params: Cow::Borrowed(&dag.params),
            workdir: text(&dag.workdir),
            skills: Cow::Borrowed(&dag.skills),
            tasks: dag.tasks.iter().map(StoredTask::of).collect(),
        }
    }

    fn into_dag(self) -> Result<Dag, StoredError> {
        let count = self.tasks.len();
        Ok(Dag {
            dag_id: self.dag_id.parse::<DagId>().map_err(bad)?,
            scope: self.scope.parse::<Scope>().map_err(bad)?,
            description: self.description.map(Cow::into_owned),
            target_node: self.target_node.map(Cow::into_owned),
            priority: self.priority,
            policy: word(self.policy, &Policy::WORDS)?,
            max_parallel: self.max_parallel,
            timeout: self.timeout_ms,
            queue_timeout: self.queue_timeout_ms,
            env: self.env.into_owned(),
            params: self.params.into_owned(),
            workdir: self.workdir.map(Cow::into_owned),
            skills: self.skills.into_owned(),
            tasks: self.tasks.into_iter().map(|task| task.into_task(count)).collect::<Result<_, _>>()?,
        })
    }
}

impl<'a> StoredTask<'a> {
    fn of(task: &'a Task) -> Self {
        let (command, skill, approval) = match &task.kind {
            Kind::Shell { command } => (Some(Cow::Borrowed(&**command)), None, None),
            Kind::Skill(call) => (None, Some(Cow::Borrowed(&*call.skill)), None),
            Kind::External { .. } => (None, None, None),
            Kind::Approval(approval) => (None, None, Some(approval)),
        };
        Self {
            id: task.id.as_str().into(),
            command,
            skill,
            input: task.kind.input().filter(|input| !input.is_null()).map(Cow::Borrowed),
            external: matches!(task.kind, Kind::External { .. }),
            approval: approval.map(|approval| Box::new(StoredApproval::of(approval))),
            depends_on: Cow::Borrowed(&task.depends_on),
            run_if: (task.run_if != RunIf::default()).then(|| task.run_if.word().into()),
            priority: task.priority,
            idempotent: task.idempotent,
            detach: task.detach,
            debt_ignorable: task.debt_ignorable,
            more: task.more.as_deref().map(|more| Box::new(StoredMore::of(more))),
        }
    }

    fn into_task(self, count: usize) -> Result<Task, StoredError> {
        if self.depends_on.iter().any(|before| before.index() >= count) {
            return Err(bad("a dependency on a task that is not there"));
        }
        let input = self.input.map(Cow::into_owned).unwrap_or_default();
        let kind = match (self.command, self.skill, self.external, self.approval) {
            (Some(command), None, false, None) => Kind::Shell { command: command.into() },
            (None, Some(skill), false, None) => {
                Kind::Skill(Box::new(SkillCall { skill: skill.into_owned(), input }))
            }
            (None, None, true, None) => Kind::External { input: Box::new(input) },
            (None, None, false, Some(approval)) => Kind::Approval(Box::new(approval.into_approval()?)),
            _ => return Err(bad("a task is one of `command`, `skill`, `external` and `approval`")),
        };
        Ok(Task {
            id: self.id.parse::<TaskId>().map_err(bad)?,
            kind,
            depends_on: self.depends_on.into(),
            run_if: word(self.run_if, &RunIf::WORDS)?,
            priority: self.priority,
            idempotent: self.idempotent,
            detach: self.detach,
            debt_ignorable: self.debt_ignorable,
            more: self.more.map(|more| Box::new(more.into_more())),
        })
    }
}

impl<'a> StoredMore<'a> {
    fn of(more: &'a More) -> Self {
        Self {
            name: text(&more.name),
            description: text(&more.description),
            when: text(&more.when),
            confirmed: more.confirmed,
            retry: more.retry.as_ref().map(StoredRetry::of),
            timeout_ms: more.timeout,
            queue_timeout_ms: more.queue_timeout,
            grace_ms: more.grace,
            env: Cow::Borrowed(&more.env),
            workdir: text(&more.workdir),
            target_node: text(&more.target_node),
            needs: Cow::Borrowed(&more.needs),
        }
    }

    fn into_more(self) -> More {
        More {
            name: self.name.map(Cow::into_owned),
            description: self.description.map(Cow::into_owned),
            when: self.when.map(Cow::into_owned),
            confirmed: self.confirmed,
            retry: self.retry.map(StoredRetry::into_retry),
            timeout: self.timeout_ms,
            queue_timeout: self.queue_timeout_ms,
            grace: self.grace_ms,
            env: self.env.into_owned(),
            workdir: self.workdir.map(Cow::into_owned),
            target_node: self.target_node.map(Cow::into_owned),
            needs: self.needs.into_owned(),
        }
    }
}

impl<'a> StoredRetry<'a> {
    fn of(retry: &'a Retry) -> Self {
        Self {
            max: retry.max,
            fixed: retry.backoff == Backoff::Fixed,
            initial_ms: retry.initial,
            cap_ms: retry.cap,
            jitter: retry.jitter,
            on_exit_codes: Cow::Borrowed(&retry.on_exit_codes),
        }
    }

    fn into_retry(self) -> Retry {
        Retry {
            max: self.max,
            backoff: if self.fixed { Backoff::Fixed } else { Backoff::Exponential },
            initial: self.initial_ms,
            cap: self.cap_ms,
            jitter: self.jitter,
            on_exit_codes: self.on_exit_codes.into_owned(),
        }
    }
}

impl<'a> StoredApproval<'a> {
    fn of(approval: &'a Approval) -> Self {
        let input = approval.input.iter();
        Self {
            prompt: text(&approval.prompt),
            input: input.map(|(name, kind)| (name.as_str().into(), kind.word().into())).collect(),
            on_timeout: (approval.on_timeout != OnTimeout::default())
                .then(|| approval.on_timeout.word().into()),
        }
    }

    fn into_approval(self) -> Result<Approval, StoredError> {
        let input = self
            .input
            .into_iter()
            .map(|(name, kind)| Ok((name.into_owned(), known(&kind, &InputType::WORDS)?)));
        Ok(Approval {
            prompt: self.prompt.map(Cow::into_owned),
            input: input.collect::<Result<_, StoredError>>()?,
            on_timeout: word(self.on_timeout, &OnTimeout::WORDS)?,
        })
    }
}

fn text(text: &Option<String>) -> Option<Cow<'_, str>> {
    text.as_deref().map(Cow::Borrowed)
}

fn bad(problem: impl ToString) -> StoredError {
    StoredError::Meaning(problem.to_string())
}

/// The value of a word; absent means the default.
fn word<T: Copy + Default>(word: Option<Cow<'_, str>>, words: &[(&str, T)]) -> Result<T, StoredError> {
    word.map_or_else(|| Ok(T::default()), |word| known(&word, words))
}

/// The value of a word.
fn known<T: Copy>(word: &str, words: &[(&str, T)]) -> Result<T, StoredError> {
    let found = words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value);
    found.ok_or_else(|| bad(format!("unknown word `{word}`")))
}
