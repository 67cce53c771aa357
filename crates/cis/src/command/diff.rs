//! `cis dag diff`: what changed between two revisions, task by task and field by field.

use std::collections::HashMap;

use anstyle::{AnsiColor, Style};
use cis_core::dag::Dag;
use cis_core::error::ErrorCode;
use serde_json::{Value, json};
use similar::{Algorithm, DiffTag, capture_diff_slices};

use super::fields::{self, Field};
use super::revision::{self, Content};
use super::{Failure, Outcome, Setup, find};
use crate::term::Sheet;

/// Texts of more lines than this are shown as gone and new: finding what they share takes too long.
const LINES_MAX: usize = 5_000;

const GONE: Style = AnsiColor::Red.on_default();
const NEW: Style = AnsiColor::Green.on_default();

/// What is different.
#[derive(Debug)]
pub(super) struct Diff {
    /// Of the DAG itself.
    fields: Vec<Change>,
    tasks: Vec<TaskChange>,
    /// Tasks that both have stand in another order.
    reordered: bool,
}

#[derive(Debug)]
struct TaskChange {
    task_id: String,
    how: How,
    fields: Vec<Change>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Added,
    Removed,
    Changed,
}

/// A field with its value before and after; at least one has it.
#[derive(Debug)]
struct Change {
    name: String,
    before: Option<String>,
    after: Option<String>,
}

impl How {
    fn word(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
        }
    }
}

/// `cis dag diff`.
pub(super) fn diff(setup: &Setup, id: &str, scope: Option<&str>, numbers: &[i64]) -> Outcome {
    let found = find::find(setup, id, scope)?;
    let revisions = found.source.revisions(&found.dag)?;
    let (before, after) = match numbers {
        [from, to] => {
            (revision::pick(&revisions, Some(*from), id)?, revision::pick(&revisions, Some(*to), id)?)
        }
        _ => {
            let latest = revision::pick(&revisions, None, id)?;
            let before = revision::confirmed_before(&revisions, &latest).cloned().ok_or_else(|| {
                let why = format!("no revision of `{id}` was confirmed before revision {}", latest.revision);
                Failure::new(ErrorCode::NotFound, why).hint(format!("`cis dag show {id}` shows all of it"))
            })?;
            (before, latest)
        }
    };
    let (before, after) = (Content::load(&found, &before)?, Content::load(&found, &after)?);
    if setup.json {
        let mut told = between(&before.dag, &after.dag).to_json();
        told["success"] = json!(true);
        told["dag_id"] = json!(after.dag.dag_id);
        told["scope"] = json!(after.dag.scope);
        for (side, content) in [("from", &before), ("to", &after)] {
            let line = &content.line;
            told[side] =
                json!({"revision": line.revision, "content_hash": line.content_hash, "status": line.status});
        }
        say_json!(told);
        return Ok(0);
    }
    let mut sheet = Sheet::for_stdout();
    revision::write_changes(&mut sheet, setup, &found, &before, &after);
    sheet.print();
    Ok(0)
}

/// What has to change in `before` to make it `after`.
pub(super) fn between(before: &Dag, after: &Dag) -> Diff {
    let (old, new) = (places(before), places(after));
    let mut tasks = Vec::new();
    for task in &after.tasks {
        let now = fields::of_task(after, task);
        let (how, fields) = match old.get(task.id.as_str()) {
            Some(ix) => (How::Changed, changes(&fields::of_task(before, &before.tasks[*ix]), &now)),
            None => (How::Added, changes(&[], &now)),
        };
        if how == How::Added || !fields.is_empty() {
            tasks.push(TaskChange { task_id: task.id.to_string(), how, fields });
        }
    }
    for task in before.tasks.iter().filter(|task| !new.contains_key(task.id.as_str())) {
        let fields = changes(&fields::of_task(before, task), &[]);
        tasks.push(TaskChange { task_id: task.id.to_string(), how: How::Removed, fields });
    }
    let places = after.tasks.iter().filter_map(|task| old.get(task.id.as_str()));
    let reordered = !places.is_sorted();
    let fields = changes(&fields::of_dag(before), &fields::of_dag(after));
    Diff { fields, tasks, reordered }
}

/// Where each task stands.
fn places(dag: &Dag) -> HashMap<&str, usize> {
    dag.tasks.iter().enumerate().map(|(ix, task)| (task.id.as_str(), ix)).collect()
}

fn by_name(fields: &[Field]) -> HashMap<&str, &str> {
    fields.iter().map(|field| (field.name.as_str(), field.value.as_str())).collect()
}

fn changes(before: &[Field], after: &[Field]) -> Vec<Change> {
    let (old, new) = (by_name(before), by_name(after));
    let gone = before.iter().filter(|field| !new.contains_key(field.name.as_str()));
    let names = after.iter().chain(gone).map(|field| field.name.clone());
    let value = |of: &HashMap<&str, &str>, name: &str| of.get(name).map(|value| (*value).to_owned());
    let change = names.map(|name| Change { before: value(&old, &name), after: value(&new, &name), name });
    change.filter(|change| change.before != change.after).collect()
}

impl Diff {
    fn to_json(&self) -> Value {
        let fields = |changes: &[Change]| -> Vec<Value> {
            let told = |change: &Change| json!({"field": change.name, "before": change.before, "after": change.after});
            changes.iter().map(told).collect()
        };
        let task = |task: &TaskChange| json!({"task_id": task.task_id, "change": task.how.word(), "fields": fields(&task.fields)});
        json!({"fields": fields(&self.fields), "tasks": self.tasks.iter().map(task).collect::<Vec<_>>(),
               "reordered": self.reordered})
    }
}

/// Writes every change below what it is of.
pub(super) fn write(sheet: &mut Sheet, diff: &Diff) {
    let Diff { fields, tasks, reordered } = diff;
    if fields.is_empty() && tasks.is_empty() && !reordered {
        sheet.heading("no changes");
        return;
    }
    if !fields.is_empty() {
        sheet.heading("the DAG itself: changed");
        fields.iter().for_each(|change| write_change(sheet, change));
    }
    if *reordered {
        sheet.heading("tasks stand in another order");
    }
    for TaskChange { task_id, how, fields } in tasks {
        sheet.heading(&format!("task {task_id}: {}", how.word()));
        fields.iter().for_each(|change| write_change(sheet, change));
    }
}

fn write_change(sheet: &mut Sheet, change: &Change) {
    write_lines(sheet, &change.name, change.before.clone(), change.after.clone());
}

/// Writes what changed in a text, line by line below its name.
pub(super) fn write_lines(sheet: &mut Sheet, name: &str, before: Option<String>, after: Option<String>) {
    sheet.name(name);
    let lines = |text: Option<String>| -> Vec<String> {
        text.map(|text| text.split('\n').map(ToOwned::to_owned).collect()).unwrap_or_default()
    };
    let (before, after) = (lines(before), lines(after));
    if before.len() + after.len() > LINES_MAX {
        before.iter().for_each(|line| sheet.change('-', line, GONE));
        after.iter().for_each(|line| sheet.change('+', line, NEW));
        return;
    }
    for op in capture_diff_slices(Algorithm::Myers, &before, &after) {
        let (tag, old, new) = op.as_tag_tuple();
        if tag == DiffTag::Equal {
            before[old].iter().for_each(|line| sheet.change(' ', line, Style::new()));
        } else {
            before[old].iter().for_each(|line| sheet.change('-', line, GONE));
            after[new].iter().for_each(|line| sheet.change('+', line, NEW));
        }
    }
}

#[cfg(test)]
mod tests {
    use cis_core::dag::{Defaults, Format, parse};

    use super::*;

    fn dag(tasks: &Value) -> Dag {
        let text = json!({"dag_id": "d", "tasks": tasks}).to_string();
        parse(text.as_bytes(), Format::Json, &Defaults::default()).unwrap().dag
    }

    fn shown(before: &Dag, after: &Dag) -> String {
        let mut sheet = Sheet::new(Some(60));
        write(&mut sheet, &between(before, after));
        anstream::adapter::strip_str(sheet.text()).to_string()
    }

    #[test]
    fn changes_are_told_task_by_task_and_line_by_line() {
        let before = dag(&json!([{"id": "a", "command": "make\ntest"}, {"id": "b", "command": "true"}]));
        let after = dag(&json!([
            {"id": "a", "command": "make\ncurl evil # ok\ntest", "timeout": "5s"},
            {"id": "c", "command": "true"},
        ]));
        let text = "task a: changed\n  command\n    │ make\n  + │ curl evil # ok\n    │ test\n  timeout\n  + │ 5s\n\n\
                    task c: added\n  type\n  + │ shell\n  command\n  + │ true\n\n\
                    task b: removed\n  type\n  - │ shell\n  command\n  - │ true\n";
        assert_eq!(shown(&before, &after), text);
    }

    #[test]
    fn another_order_is_a_change() {
        let (a, b) = (json!({"id": "a", "command": "true"}), json!({"id": "b", "command": "true"}));
        let (before, after) = (dag(&json!([a, b])), dag(&json!([b, a])));
        assert_eq!(shown(&before, &after), "tasks stand in another order\n");
        assert_eq!(shown(&before, &before), "no changes\n");
    }

    #[test]
    fn many_tasks_and_many_fields_are_compared_by_name() {
        const TASKS: u32 = 20_000;
        let command = |n: u32| json!({"id": format!("t{n}"), "command": "true"});
        let whole = dag(&(0..TASKS).map(command).collect());
        let mut other = dag(&json!([{"id": "new", "command": "true"}]));
        other.tasks.extend(whole.tasks[1..].iter().rev().cloned());
        let diff = between(&whole, &other);
        let told: Vec<_> = diff.tasks.iter().map(|task| (task.task_id.as_str(), task.how)).collect();
        assert_eq!(told, [("new", How::Added), ("t0", How::Removed)]);
        assert!(diff.reordered && diff.fields.is_empty());
        let mut before = dag(&json!([{"id": "t", "command": "true"}]));
        before.env = (0..TASKS).map(|n| (format!("V{n}"), "1".to_owned())).collect();
        let mut after = before.clone();
        after.env.insert("V7".to_owned(), "2".to_owned());
        after.env.remove("V8");
        let told: Vec<_> = between(&before, &after).fields.into_iter().map(|change| change.name).collect();
        assert_eq!(told, ["env V7", "env V8"]);
    }
}
