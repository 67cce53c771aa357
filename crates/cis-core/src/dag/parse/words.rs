//! The words of a definition: our keys with their other spellings, the ones that are designed but not built, and
//! the ones other tools use, each with what to write instead.

/// The settings of a DAG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum DagKey {
    DagId,
    Name,
    Description,
    Scope,
    TargetNode,
    Priority,
    Policy,
    MaxParallel,
    Timeout,
    QueueTimeout,
    Env,
    Params,
    Workdir,
    Version,
    Tasks,
}

/// The settings of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TaskKey {
    Id,
    Name,
    Description,
    Type,
    Command,
    Skill,
    Input,
    DependsOn,
    Env,
    Timeout,
    QueueTimeout,
    Grace,
    Retry,
    Level,
    Idempotent,
    RunIf,
    When,
    Debt,
    Priority,
    Workdir,
    Detach,
    TargetNode,
    Needs,
    Prompt,
    OnTimeout,
}

/// The settings of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RetryKey {
    Max,
    Backoff,
    Initial,
    Cap,
    Jitter,
    OnExitCodes,
}

/// What a word at one level means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// One of ours, by the discriminant of its enum.
    Known(u8),
    /// Designed, not built yet; with what to do meanwhile.
    Later(&'static str),
    /// Another tool's word; with ours.
    Foreign(&'static str),
    /// Another tool's word for the list of tasks.
    ForeignTasks(&'static str),
    Unknown,
}

/// The vocabulary of one level.
pub(super) struct Words {
    /// Our keys; the first spelling of each is the one to show.
    pub(super) known: &'static [(&'static str, u8)],
    later: &'static [(&'static str, &'static str)],
    foreign: &'static [(&'static str, &'static str)],
    foreign_tasks: &'static [(&'static str, &'static str)],
}

pub(super) const DAG: Words = Words {
    known: &[
        ("dag_id", DagKey::DagId as u8),
        ("id", DagKey::DagId as u8),
        ("name", DagKey::Name as u8),
        ("description", DagKey::Description as u8),
        ("scope", DagKey::Scope as u8),
        ("target_node", DagKey::TargetNode as u8),
        ("priority", DagKey::Priority as u8),
        ("policy", DagKey::Policy as u8),
        ("max_parallel", DagKey::MaxParallel as u8),
        ("max_concurrency", DagKey::MaxParallel as u8),
        ("timeout", DagKey::Timeout as u8),
        ("timeout_secs", DagKey::Timeout as u8),
        ("queue_timeout", DagKey::QueueTimeout as u8),
        ("queue_timeout_secs", DagKey::QueueTimeout as u8),
        ("env", DagKey::Env as u8),
        ("params", DagKey::Params as u8),
        ("workdir", DagKey::Workdir as u8),
        ("working_dir", DagKey::Workdir as u8),
        ("cwd", DagKey::Workdir as u8),
        ("dir", DagKey::Workdir as u8),
        ("version", DagKey::Version as u8),
        ("tasks", DagKey::Tasks as u8),
    ],
    later: &[
        ("schedule", "start it from cron with `cis dag run FILE` until schedules are built"),
        ("schedule_tz", "start it from cron with `cis dag run FILE` until schedules are built"),
        ("locks", "remove it, or order the tasks with `depends_on`"),
        ("needs", "remove it; to order tasks use `depends_on`"),
        ("secrets", "pass them through the environment of `cis`"),
    ],
    foreign: &[
        ("on", "GitHub Actions' word for triggers: remove it and start the DAG with `cis dag run`"),
        ("default_args", "Airflow's word: write the settings on each task"),
        ("defaults", "write the settings on each task"),
        ("environment", "here it is `env`"),
        ("variables", "here it is `env` for the environment, or `params` for values a run may override"),
        ("vars", "here it is `env` for the environment, or `params` for values a run may override"),
        ("inputs", "here it is `params`"),
        ("parameters", "here it is `params`"),
        ("concurrency", "here it is `max_parallel`"),
        ("parallelism", "here it is `max_parallel`"),
        ("maxActiveSteps", "Dagu's word: here it is `max_parallel`"),
        ("max_active_tasks", "Airflow's word: here it is `max_parallel`"),
        ("timeoutSec", "Dagu's word: here it is `timeout`"),
        ("title", "here it is `description`"),
        ("handlerOn", "Dagu's word: use a task with `run_if = \"one_failed\"` or `\"all_done\"`"),
        ("params_schema", "here it is `params`, with the defaults"),
    ],
    foreign_tasks: &[
        ("steps", "`steps` is Dagu's word: here it is `tasks`, with `id` and `depends_on`"),
        (
            "jobs",
            "`jobs` is GitHub Actions' word: here it is `tasks`, a list, each with `id`, `command` and `depends_on`",
        ),
        (
            "services",
            "this looks like a Compose file; a DAG has `tasks`, a list, each with `id` and `command`",
        ),
        ("stages", "here it is `tasks`, a list, each with `id`, `command` and `depends_on`"),
        ("nodes", "here it is `tasks`, each with `id` and `depends_on`"),
        ("targets", "here it is `tasks`, each with `id` and `depends_on`"),
        ("pipeline", "here it is `tasks`, each with `id` and `depends_on`"),
        ("workflow", "here it is `tasks`, each with `id` and `depends_on`"),
        ("task", "here it is `tasks`"),
    ],
};

pub(super) const TASK: Words = Words {
    known: &[
        ("id", TaskKey::Id as u8),
        ("name", TaskKey::Name as u8),
        ("description", TaskKey::Description as u8),
        ("type", TaskKey::Type as u8),
        ("kind", TaskKey::Type as u8),
        ("command", TaskKey::Command as u8),
        ("cmd", TaskKey::Command as u8),
        ("skill", TaskKey::Skill as u8),
        ("input", TaskKey::Input as u8),
        ("params", TaskKey::Input as u8),
        ("with", TaskKey::Input as u8),
        ("depends_on", TaskKey::DependsOn as u8),
        ("deps", TaskKey::DependsOn as u8),
        ("dependencies", TaskKey::DependsOn as u8),
        ("env", TaskKey::Env as u8),
        ("timeout", TaskKey::Timeout as u8),
        ("timeout_secs", TaskKey::Timeout as u8),
        ("queue_timeout", TaskKey::QueueTimeout as u8),
        ("queue_timeout_secs", TaskKey::QueueTimeout as u8),
        ("grace", TaskKey::Grace as u8),
        ("kill_grace", TaskKey::Grace as u8),
        ("retry", TaskKey::Retry as u8),
        ("retries", TaskKey::Retry as u8),
        ("level", TaskKey::Level as u8),
        ("idempotent", TaskKey::Idempotent as u8),
        ("run_if", TaskKey::RunIf as u8),
        ("when", TaskKey::When as u8),
        ("debt", TaskKey::Debt as u8),
        ("priority", TaskKey::Priority as u8),
        ("workdir", TaskKey::Workdir as u8),
        ("working_dir", TaskKey::Workdir as u8),
        ("cwd", TaskKey::Workdir as u8),
        ("dir", TaskKey::Workdir as u8),
        ("detach", TaskKey::Detach as u8),
        ("target_node", TaskKey::TargetNode as u8),
        ("needs", TaskKey::Needs as u8),
        ("prompt", TaskKey::Prompt as u8),
        ("on_timeout", TaskKey::OnTimeout as u8),
    ],
    later: &[
        ("rollback", "remove it; a task with `run_if = \"one_failed\"` can clean up"),
        ("locks", "remove it, or order the tasks with `depends_on`"),
        ("sandbox", "remove it; tasks run with the rights of the node"),
        ("secrets", "pass them through the environment of `cis`"),
        ("agent", "call the agent from a shell task's `command`"),
        ("agent_runtime", "call the agent from a shell task's `command`"),
        ("reuse_agent", "call the agent from a shell task's `command`"),
        ("keep_agent", "call the agent from a shell task's `command`"),
        ("agent_config", "call the agent from a shell task's `command`"),
        ("schedule", "start the DAG from cron with `cis dag run FILE` until schedules are built"),
    ],
    foreign: &[
        ("script", "here it is `command`"),
        ("bash_command", "Airflow's word: here it is `command`"),
        ("run", "GitHub Actions' word: here it is `command`"),
        ("shell", "here it is `command`, which /bin/sh runs"),
        ("exec", "here it is `command`"),
        ("commands", "here it is `command`, one string; join them with ` && ` or line breaks"),
        ("cmds", "here it is `command`, one string; join them with ` && ` or line breaks"),
        ("args", "write the arguments into `command`; for a skill it is `input`"),
        ("task_id", "Airflow's word: here it is `id`"),
        ("depends", "Dagu's word: here it is `depends_on`"),
        ("dependsOn", "here it is `depends_on`"),
        ("upstream", "here it is `depends_on`"),
        ("after", "here it is `depends_on`"),
        ("requires", "here it is `depends_on`"),
        ("operator", "Airflow's word: here it is `type = \"shell\"` or `\"skill\"`"),
        ("uses", "GitHub Actions' word: here it is `skill`, with `input`"),
        ("image", "tasks run as processes, not in containers; write `docker run …` as the `command`"),
        ("container", "tasks run as processes, not in containers; write `docker run …` as the `command`"),
        ("environment", "here it is `env`"),
        ("if", "here it is `when`"),
        ("condition", "here it is `when`"),
        ("preconditions", "Dagu's word: here it is `when`"),
        ("trigger_rule", "Airflow's word: here it is `run_if`"),
        ("continue_on_error", "mark the task `debt = \"ignorable\"` and the DAG `policy = \"allow_debt\"`"),
        ("continueOn", "mark the task `debt = \"ignorable\"` and the DAG `policy = \"allow_debt\"`"),
        ("allow_failure", "mark the task `debt = \"ignorable\"` and the DAG `policy = \"allow_debt\"`"),
        ("retryPolicy", "Dagu's word: here it is `retry`"),
        ("retry_delay", "here it is `retry = { max = …, initial = … }`"),
        ("execution_timeout", "Airflow's word: here it is `timeout`"),
        ("timeout-minutes", "GitHub Actions' word: here it is `timeout = \"10m\"`"),
        ("timeoutSec", "Dagu's word: here it is `timeout`"),
        ("executor", "here it is `type = \"shell\"` or `\"skill\"`"),
        ("default_action", "here it is `on_timeout`, on a task with `type = \"approval\"`"),
        ("parallel", "tasks without `depends_on` between them run side by side by themselves"),
        ("policy", "`policy` stands on the DAG"),
        ("max_parallel", "`max_parallel` stands on the DAG"),
        ("tasks", "tasks do not nest; list them all and order them with `depends_on`"),
        ("steps", "tasks do not nest; list them all and order them with `depends_on`"),
    ],
    foreign_tasks: &[],
};

pub(super) const RETRY: Words = Words {
    known: &[
        ("max", RetryKey::Max as u8),
        ("backoff", RetryKey::Backoff as u8),
        ("initial", RetryKey::Initial as u8),
        ("cap", RetryKey::Cap as u8),
        ("jitter", RetryKey::Jitter as u8),
        ("on_exit_codes", RetryKey::OnExitCodes as u8),
    ],
    later: &[],
    foreign: &[
        ("limit", "here it is `max`, the tries after the first"),
        ("attempts", "here it is `max`, the tries after the first"),
        ("max_attempts", "here it is `max`, the tries after the first"),
        ("count", "here it is `max`, the tries after the first"),
        ("retries", "here it is `max`, the tries after the first"),
        ("delay", "here it is `initial`"),
        ("interval", "here it is `initial`"),
        ("intervalSec", "here it is `initial`"),
        ("max_delay", "here it is `cap`"),
        ("exit_codes", "here it is `on_exit_codes`"),
    ],
    foreign_tasks: &[],
};

impl Words {
    /// What `word` means at this level.
    pub(super) fn meaning(&self, word: &str) -> Meaning {
        let find =
            |list: &[(&str, &'static str)]| list.iter().find(|(w, _)| *w == word).map(|(_, hint)| *hint);
        if let Some((_, key)) = self.known.iter().find(|(known, _)| *known == word) {
            Meaning::Known(*key)
        } else if let Some(hint) = find(self.later) {
            Meaning::Later(hint)
        } else if let Some(hint) = find(self.foreign) {
            Meaning::Foreign(hint)
        } else if let Some(hint) = find(self.foreign_tasks) {
            Meaning::ForeignTasks(hint)
        } else {
            Meaning::Unknown
        }
    }

    /// The spelling to show for a key.
    pub(super) fn spelling(&self, key: u8) -> &'static str {
        self.known.iter().find(|(_, known)| *known == key).map_or("", |(word, _)| word)
    }

    /// `did you mean …`, or all there is to choose from.
    pub(super) fn hint(&self, word: &str) -> String {
        match nearest(word, self.known.iter().map(|(known, _)| *known)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                let mut words: Vec<&str> = Vec::new();
                let mut last = None;
                for (word, key) in self.known {
                    if last != Some(*key) {
                        words.push(word);
                    }
                    last = Some(*key);
                }
                format!("known here: {}", words.join(", "))
            }
        }
    }
}

/// The choice closest to `word`, if it is close enough to be meant.
pub(crate) fn nearest<'w>(word: &str, choices: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let lower = word.to_ascii_lowercase();
    let limit = (word.chars().count() / 3).clamp(1, 3);
    choices
        .filter(|choice| choice.len().abs_diff(word.len()) <= limit)
        .map(|choice| (distance(&lower, &choice.to_ascii_lowercase()), choice))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, choice)| choice)
}

/// Insertions, deletions, replacements and swaps of neighbours between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_find_their_word() {
        for (typo, word) in
            [("comand", "command"), ("depend_on", "depends_on"), ("Timeout", "timeout"), ("ide", "id")]
        {
            assert!(TASK.hint(typo).contains(&format!("`{word}`")), "{typo}: {}", TASK.hint(typo));
        }
        assert!(TASK.hint("zzzzzz").starts_with("known here: id, name"));
    }

    #[test]
    fn swaps_count_once() {
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn no_word_means_two_things() {
        for words in [DAG, TASK, RETRY] {
            let all = words.known.iter().map(|(word, _)| *word);
            let mut all: Vec<&str> = all
                .chain(
                    [words.later, words.foreign, words.foreign_tasks].concat().iter().map(|(word, _)| *word),
                )
                .collect();
            all.sort_unstable();
            let count = all.len();
            all.dedup();
            assert_eq!(all.len(), count);
        }
    }
}
