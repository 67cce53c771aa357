//! A definition as named values, for what people read before they confirm it: `show`, `diff`, `explain` and the question itself.
//!
//! Everything that a definition can say is taken apart here field by field, without `..`: a new field does not compile until
//! it is shown. What is left at its default is left out, as it is in the content hash; equal values mean the same.

use std::path::{Path, PathBuf};

use cis_core::dag::{Approval, Dag, Kind, More, OnTimeout, Policy, RunIf, SkillCall, Task};
use cis_core::retry::{Backoff, Retry};
use cis_core::source::Millis;
use serde_json::Value;

use crate::term::Sheet;

/// A value and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) value: String,
    /// It will be executed, or is asked of a person: always shown line by line.
    verbatim: bool,
}

/// Fields being gathered.
#[derive(Debug, Default)]
struct Fields(Vec<Field>);

/// What the DAG says beside its tasks and its address.
pub(super) fn of_dag(dag: &Dag) -> Vec<Field> {
    let Dag {
        dag_id: _,
        scope: _,
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
        tasks: _,
    } = dag;
    let mut fields = Fields::default();
    fields.text("description", description.as_deref());
    fields.text("workdir", workdir.as_deref());
    fields.text("policy", (*policy != Policy::default()).then(|| policy.word()));
    fields.text("priority", (*priority != 0).then(|| priority.to_string()));
    fields.text("max_parallel", max_parallel.map(|most| most.to_string()));
    fields.text("timeout", timeout.map(exact));
    fields.text("queue_timeout", queue_timeout.map(exact));
    fields.text("target_node", target_node.as_deref());
    for (name, value) in env {
        fields.text(&format!("env {name}"), Some(value));
    }
    for (name, value) in params {
        fields.text(&format!("param {}", named(name)), Some(format!("{value:#}")));
    }
    for (name, hash) in skills {
        fields.text(&format!("skill {}", named(name)), Some(hash));
    }
    fields.0
}

/// What the DAG says of one of its tasks.
pub(super) fn of_task(dag: &Dag, task: &Task) -> Vec<Field> {
    let Task { id: _, kind, depends_on, run_if, priority, idempotent, detach, debt_ignorable, more: _ } =
        task;
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
    } = task.more();
    let mut fields = Fields::default();
    fields.text("type", Some(kind.word()));
    fields.text("name", name.as_deref());
    fields.text("description", description.as_deref());
    fields.kind(kind);
    let before: Vec<&str> =
        depends_on.iter().map(|ix| dag.tasks.get(ix.index()).map_or("?", |task| task.id.as_str())).collect();
    fields.text("depends_on", (!before.is_empty()).then(|| before.join(", ")));
    fields.text("run_if", (*run_if != RunIf::default()).then(|| run_if.word()));
    fields.text("when", when.as_deref());
    fields.text("level", confirmed.then_some("confirmed: a person approves before it starts"));
    fields.text("workdir", workdir.as_deref());
    for (name, value) in env {
        fields.text(&format!("env {name}"), Some(value));
    }
    fields.text("needs", (!needs.is_empty()).then(|| Value::from(needs.clone()).to_string()));
    fields.text("timeout", timeout.map(exact));
    fields.text("queue_timeout", queue_timeout.map(exact));
    fields.text("grace", grace.map(exact));
    if let Some(retry) = retry {
        fields.retry(retry);
    }
    fields.text("priority", (*priority != 0).then(|| priority.to_string()));
    fields.text("idempotent", idempotent.then_some("yes: an interrupted attempt is tried again"));
    fields.text("detach", detach.then_some("yes: processes it leaves behind live on"));
    fields.text("debt", debt_ignorable.then_some("ignorable"));
    fields.text("target_node", target_node.as_deref());
    fields.0
}

impl Fields {
    fn text(&mut self, name: &str, value: Option<impl Into<String>>) {
        let field = |value: String| Field { name: name.to_owned(), value, verbatim: false };
        self.0.extend(value.map(Into::into).map(field));
    }

    fn verbatim(&mut self, name: &str, value: &str) {
        self.0.push(Field { name: name.to_owned(), value: value.to_owned(), verbatim: true });
    }

    fn kind(&mut self, kind: &Kind) {
        match kind {
            Kind::Shell { command } => self.verbatim("command", command),
            Kind::Skill(call) => {
                let SkillCall { skill, input } = &**call;
                self.text("skill", Some(skill));
                self.text("input", (!input.is_null()).then(|| format!("{input:#}")));
            }
            Kind::External { input } => self.text("input", (!input.is_null()).then(|| format!("{input:#}"))),
            Kind::Approval(approval) => {
                let Approval { prompt, input, on_timeout } = &**approval;
                if let Some(prompt) = prompt {
                    self.verbatim("prompt", prompt);
                }
                for (name, kind) in input {
                    self.text(&format!("input {}", named(name)), Some(kind.word()));
                }
                self.text("on_timeout", (*on_timeout != OnTimeout::default()).then(|| on_timeout.word()));
            }
        }
    }

    fn retry(&mut self, retry: &Retry) {
        let Retry { max, backoff, initial, cap, jitter, on_exit_codes } = retry;
        let backoff = match backoff {
            Backoff::Fixed => "fixed",
            Backoff::Exponential => "exponential",
        };
        let mut text = format!(
            "up to {max} times, {backoff}, first after {}, at most {}{}",
            exact(*initial),
            exact(*cap),
            if *jitter { ", with jitter" } else { "" }
        );
        if !on_exit_codes.is_empty() {
            let codes: Vec<String> = on_exit_codes.iter().map(ToString::to_string).collect();
            text += &format!(", on exit codes {}", codes.join(", "));
        }
        self.text("retry", Some(text));
    }
}

/// A span to the millisecond, in the largest unit that says it exactly.
pub(super) fn exact(span: Millis) -> String {
    const UNITS: [(u64, &str); 3] = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    match UNITS.iter().find(|(unit, _)| span.0 != 0 && span.0.is_multiple_of(*unit)) {
        Some((unit, word)) => format!("{}{word}", span.0 / unit),
        None => format!("{}ms", span.0),
    }
}

/// A name that anything may be, so that it cannot pass for a name and a value.
fn named(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    if !name.is_empty() && name.chars().all(plain) { name.to_owned() } else { Value::from(name).to_string() }
}

/// Writes fields below a heading.
pub(super) fn write(sheet: &mut Sheet, fields: &[Field]) {
    for Field { name, value, verbatim } in fields {
        if *verbatim { sheet.verbatim(name, value) } else { sheet.field(name, value) }
    }
}

/// The directory a task starts in, below the one its run has.
pub(super) fn directory(base: &Path, dag: &Dag, task: &Task) -> PathBuf {
    let parts = [dag.workdir.as_deref(), task.more().workdir.as_deref()];
    parts.into_iter().flatten().fold(base.to_owned(), |at, part| at.join(part))
}

#[cfg(test)]
mod tests {
    use cis_core::dag::canonical::content_hash;
    use cis_core::dag::{Defaults, Format, parse};
    use serde_json::json;

    use super::*;

    #[test]
    fn spans_are_exact() {
        let shown = [0, 999, 1_500, 2_000, 90_000, 3_600_000].map(|ms| exact(Millis(ms)));
        assert_eq!(shown, ["0ms", "999ms", "1500ms", "2s", "90s", "1h"]);
    }

    /// Everything shown of a definition.
    fn shown(dag: &Dag) -> Vec<(String, Vec<Field>)> {
        let tasks = dag.tasks.iter().map(|task| (task.id.to_string(), of_task(dag, task)));
        std::iter::once((String::new(), of_dag(dag))).chain(tasks).collect()
    }

    #[test]
    fn other_content_is_shown_otherwise() {
        let base = json!({
            "dag_id": "d", "env": {"A": "1"}, "params": {"p": 1},
            "tasks": [
                {"id": "a", "command": "true"},
                {"id": "b", "type": "external", "depends_on": ["a"]},
                {"id": "c", "type": "approval", "timeout": "1m"},
                {"id": "s", "skill": "echo"},
            ],
        });
        let changes = [
            ("/description", json!("x")),
            ("/target_node", json!("n")),
            ("/priority", json!(3)),
            ("/policy", json!("first_success")),
            ("/max_parallel", json!(2)),
            ("/timeout", json!("1001ms")),
            ("/queue_timeout", json!("1s")),
            ("/workdir", json!("/w")),
            ("/env/A", json!("2")),
            ("/env/B", json!("")),
            ("/params/p", json!("1")),
            ("/params/q r", json!([1, {"x": null}])),
            ("/tasks/0/command", json!("true\n")),
            ("/tasks/0/name", json!("x")),
            ("/tasks/0/description", json!("x")),
            ("/tasks/0/when", json!("params.p == 1")),
            ("/tasks/0/level", json!("confirmed")),
            ("/tasks/0/timeout", json!("2s")),
            ("/tasks/0/queue_timeout", json!("2s")),
            ("/tasks/0/grace", json!("2s")),
            ("/tasks/0/env", json!({"X": "y"})),
            ("/tasks/0/workdir", json!("w")),
            ("/tasks/0/target_node", json!("n")),
            ("/tasks/0/priority", json!(-1)),
            ("/tasks/0/idempotent", json!(true)),
            ("/tasks/0/detach", json!(true)),
            ("/tasks/0/debt", json!("ignorable")),
            ("/tasks/0/retry", json!({"max": 1})),
            ("/tasks/0/retry", json!({"max": 2, "backoff": "fixed"})),
            ("/tasks/0/retry", json!({"max": 2, "initial": "1001ms"})),
            ("/tasks/0/retry", json!({"max": 2, "cap": "61s"})),
            ("/tasks/0/retry", json!({"max": 2, "jitter": false})),
            ("/tasks/0/retry", json!({"max": 2, "on_exit_codes": [7]})),
            ("/tasks/1/input", json!({"a": 1})),
            ("/tasks/1/needs", json!(["gpu"])),
            ("/tasks/1/run_if", json!("all_done")),
            ("/tasks/1/depends_on", json!([])),
            ("/tasks/2/prompt", json!("Go?")),
            ("/tasks/2/input", json!({"n": "integer"})),
            ("/tasks/2/on_timeout", json!("approve")),
            ("/tasks/3/skill", json!("other")),
            ("/tasks/3/input", json!({"a": 1})),
            ("/tasks/3/id", json!("t")),
        ];
        let read = |value: &Value| {
            parse(value.to_string().as_bytes(), Format::Json, &Defaults::default()).unwrap().dag
        };
        let before = read(&base);
        for (place, value) in changes {
            let mut changed = base.clone();
            let (at, key) = place.rsplit_once('/').unwrap();
            changed.pointer_mut(at).unwrap()[key] = value;
            let after = read(&changed);
            assert_ne!(content_hash(&before), content_hash(&after), "{place}");
            assert_ne!(shown(&before), shown(&after), "{place}");
        }
        let pinned = Dag { skills: [("echo".to_owned(), "builtin:1".to_owned())].into(), ..before.clone() };
        assert_ne!(shown(&before), shown(&pinned));
    }
}
