//! A definition as a store keeps it: everything, address included, back exactly as it was.
//!
//! Dependencies are indices and absent settings are left out, so 100,000 tasks read back in a fraction of a second
//! without an intermediate tree. Stores keep this text, so its keys only ever grow. Both ways everything is taken apart
//! by all of its fields, so that none can be forgotten on the way.

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
        let Dag {
            dag_id,
            scope,
            description,
            target_node,
            priority,
            policy,
            max_parallel,
            timeout,
            queue_timeout,
            env,
            params,
            workdir,
            skills,
            tasks,
        } = dag;
        Self {
            dag_id: dag_id.as_str().into(),
            scope: scope.as_str().into(),
            description: text(description),
            target_node: text(target_node),
            priority: *priority,
            policy: (*policy != Policy::default()).then(|| policy.word().into()),
            max_parallel: *max_parallel,
            timeout_ms: *timeout,
            queue_timeout_ms: *queue_timeout,
            env: Cow::Borrowed(env),
            params: Cow::Borrowed(params),
            workdir: text(workdir),
            skills: Cow::Borrowed(skills),
            tasks: tasks.iter().map(StoredTask::of).collect(),
        }
    }

    fn into_dag(self) -> Result<Dag, StoredError> {
        let Self {
            dag_id,
            scope,
            description,
            target_node,
            priority,
            policy,
            max_parallel,
            timeout_ms,
            queue_timeout_ms,
            env,
            params,
            workdir,
            skills,
            tasks,
        } = self;
        let count = tasks.len();
        Ok(Dag {
            dag_id: dag_id.parse::<DagId>().map_err(bad)?,
            scope: scope.parse::<Scope>().map_err(bad)?,
            description: description.map(Cow::into_owned),
            target_node: target_node.map(Cow::into_owned),
            priority,
            policy: word(policy, &Policy::WORDS)?,
            max_parallel,
            timeout: timeout_ms,
            queue_timeout: queue_timeout_ms,
            env: env.into_owned(),
            params: params.into_owned(),
            workdir: workdir.map(Cow::into_owned),
            skills: skills.into_owned(),
            tasks: tasks.into_iter().map(|task| task.into_task(count)).collect::<Result<_, _>>()?,
        })
    }
}

impl<'a> StoredTask<'a> {
    fn of(task: &'a Task) -> Self {
        let Task { id, kind, depends_on, run_if, priority, idempotent, detach, debt_ignorable, more } = task;
        let (mut command, mut skill, mut given, mut approval) = (None, None, None, None);
        match kind {
            Kind::Shell { command: line } => command = Some(Cow::Borrowed(&**line)),
            Kind::Skill(call) => {
                let SkillCall { skill: name, input } = &**call;
                (skill, given) = (Some(Cow::Borrowed(name.as_str())), Some(input));
            }
            Kind::External { input } => given = Some(&**input),
            Kind::Approval(question) => approval = Some(Box::new(StoredApproval::of(question))),
        }
        Self {
            id: id.as_str().into(),
            command,
            skill,
            input: given.filter(|input| !input.is_null()).map(Cow::Borrowed),
            external: matches!(kind, Kind::External { .. }),
            approval,
            depends_on: Cow::Borrowed(depends_on),
            run_if: (*run_if != RunIf::default()).then(|| run_if.word().into()),
            priority: *priority,
            idempotent: *idempotent,
            detach: *detach,
            debt_ignorable: *debt_ignorable,
            more: more.as_deref().map(|more| Box::new(StoredMore::of(more))),
        }
    }

    fn into_task(self, count: usize) -> Result<Task, StoredError> {
        let Self {
            id,
            command,
            skill,
            input,
            external,
            approval,
            depends_on,
            run_if,
            priority,
            idempotent,
            detach,
            debt_ignorable,
            more,
        } = self;
        if depends_on.iter().any(|before| before.index() >= count) {
            return Err(bad("a dependency on a task that is not there"));
        }
        let input = input.map(Cow::into_owned).unwrap_or_default();
        let kind = match (command, skill, external, approval) {
            (Some(command), None, false, None) => Kind::Shell { command: command.into() },
            (None, Some(skill), false, None) => {
                Kind::Skill(Box::new(SkillCall { skill: skill.into_owned(), input }))
            }
            (None, None, true, None) => Kind::External { input: Box::new(input) },
            (None, None, false, Some(approval)) => Kind::Approval(Box::new(approval.into_approval()?)),
            _ => return Err(bad("a task is one of `command`, `skill`, `external` and `approval`")),
        };
        Ok(Task {
            id: id.parse::<TaskId>().map_err(bad)?,
            kind,
            depends_on: depends_on.into(),
            run_if: word(run_if, &RunIf::WORDS)?,
            priority,
            idempotent,
            detach,
            debt_ignorable,
            more: more.map(|more| Box::new(more.into_more())),
        })
    }
}

impl<'a> StoredMore<'a> {
    fn of(more: &'a More) -> Self {
        let More {
            name,
            description,
            when,
            confirmed,
            retry,
            timeout,
            queue_timeout,
            grace,
            env,
            workdir,
            target_node,
            needs,
        } = more;
        Self {
            name: text(name),
            description: text(description),
            when: text(when),
            confirmed: *confirmed,
            retry: retry.as_ref().map(StoredRetry::of),
            timeout_ms: *timeout,
            queue_timeout_ms: *queue_timeout,
            grace_ms: *grace,
            env: Cow::Borrowed(env),
            workdir: text(workdir),
            target_node: text(target_node),
            needs: Cow::Borrowed(needs),
        }
    }

    fn into_more(self) -> More {
        let Self {
            name,
            description,
            when,
            confirmed,
            retry,
            timeout_ms,
            queue_timeout_ms,
            grace_ms,
            env,
            workdir,
            target_node,
            needs,
        } = self;
        More {
            name: name.map(Cow::into_owned),
            description: description.map(Cow::into_owned),
            when: when.map(Cow::into_owned),
            confirmed,
            retry: retry.map(StoredRetry::into_retry),
            timeout: timeout_ms,
            queue_timeout: queue_timeout_ms,
            grace: grace_ms,
            env: env.into_owned(),
            workdir: workdir.map(Cow::into_owned),
            target_node: target_node.map(Cow::into_owned),
            needs: needs.into_owned(),
        }
    }
}

impl<'a> StoredRetry<'a> {
    fn of(retry: &'a Retry) -> Self {
        let Retry { max, backoff, initial, cap, jitter, on_exit_codes } = retry;
        Self {
            max: *max,
            fixed: *backoff == Backoff::Fixed,
            initial_ms: *initial,
            cap_ms: *cap,
            jitter: *jitter,
            on_exit_codes: Cow::Borrowed(on_exit_codes),
        }
    }

    fn into_retry(self) -> Retry {
        let Self { max, fixed, initial_ms, cap_ms, jitter, on_exit_codes } = self;
        Retry {
            max,
            backoff: if fixed { Backoff::Fixed } else { Backoff::Exponential },
            initial: initial_ms,
            cap: cap_ms,
            jitter,
            on_exit_codes: on_exit_codes.into_owned(),
        }
    }
}

impl<'a> StoredApproval<'a> {
    fn of(approval: &'a Approval) -> Self {
        let Approval { prompt, input, on_timeout } = approval;
        let types = input.iter().map(|(name, kind)| (name.as_str().into(), kind.word().into()));
        Self {
            prompt: text(prompt),
            input: types.collect(),
            on_timeout: (*on_timeout != OnTimeout::default()).then(|| on_timeout.word().into()),
        }
    }

    fn into_approval(self) -> Result<Approval, StoredError> {
        let Self { prompt, input, on_timeout } = self;
        let types =
            input.into_iter().map(|(name, kind)| Ok((name.into_owned(), known(&kind, &InputType::WORDS)?)));
        Ok(Approval {
            prompt: prompt.map(Cow::into_owned),
            input: types.collect::<Result<_, StoredError>>()?,
            on_timeout: word(on_timeout, &OnTimeout::WORDS)?,
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
