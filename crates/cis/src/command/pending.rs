//! `cis pending`: what waits for a person, and what to type.

use std::collections::{BTreeMap, BTreeSet};

use cis_core::dag::{Kind, Task};
use cis_core::id::{DagId, Scope};
use cis_core::review::ReviewId;
use cis_core::source::{Clock, Timestamp};
use cis_engine::system::System;
use cis_store::sqlite::WaitingLine;
use cis_store::sqlite::reader::PendingLine;
use serde_json::{Value, json};

use super::{Outcome, Setup, list};
use crate::term::table::Cell;
use crate::term::{Table, time};

/// Something that waits, and what to type to let it go on.
struct Waiting {
    what: String,
    question: String,
    by: String,
    since: Timestamp,
    command: String,
    told: Value,
}

/// `cis pending`.
pub(super) fn pending(setup: &Setup) -> Outcome {
    let mut waiting = Vec::new();
    if let Some(view) = setup.view()? {
        let (dags, tasks) = view.pending()?;
        // A name that stands for several DAGs does not say which one waits.
        let names = dags.iter().map(|dag| (&dag.dag_id, &dag.scope));
        let names: BTreeSet<_> = names.chain(tasks.iter().map(|task| (&task.dag_id, &task.scope))).collect();
        let in_scope = |dag_id: &DagId, scope: &Scope| {
            let is_shared = names.iter().any(|(name, other)| *name == dag_id && *other != scope);
            if is_shared { format!(" in {scope}") } else { String::new() }
        };
        waiting.extend(dags.iter().map(|dag| Waiting::dag(dag, &in_scope(&dag.dag_id, &dag.scope))));
        waiting.extend(tasks.iter().map(|task| Waiting::task(task, &in_scope(&task.dag_id, &task.scope))));
    }
    if setup.json {
        let told: Vec<Value> = waiting.into_iter().map(|one| one.told).collect();
        say_json!(json!({"success": true, "pending": told}));
        return Ok(0);
    }
    if waiting.is_empty() {
        tell!("nothing waits for a decision");
        return Ok(0);
    }
    let now = System.now();
    // What is to be copied comes first, where a narrow terminal breaks no line.
    let mut table = Table::new(&["TO APPROVE, TYPE", "WHAT", "BY", "SINCE", "QUESTION"]);
    for one in waiting {
        table.row([
            Cell::styled(one.command),
            one.what.into(),
            one.by.into(),
            time::ago(now, one.since).into(),
            one.question.into(),
        ]);
    }
    list::print(&table);
    tell!(
        "hint: `cis dag show` with a review id shows what it is about; `cis reject` with the same review id refuses it"
    );
    Ok(0)
}

impl Waiting {
    fn dag(dag: &PendingLine, scope: &str) -> Self {
        let command = confirm_command(dag.review_id);
        let mut told = json!(dag);
        (told["kind"], told["command"]) = (json!("dag"), json!(command));
        Self {
            what: format!("{} revision {}{scope}", dag.dag_id, dag.revision),
            question: format!("run its tasks ({})?", dag.tasks),
            by: dag.published_by.clone(),
            since: dag.published_at,
            command,
            told,
        }
    }

    fn task(task: &WaitingLine, scope: &str) -> Self {
        let command = approve_command(task.review_id, &task.input);
        let mut told = json!(task);
        (told["kind"], told["command"]) = (json!("task"), json!(command));
        Self {
            what: format!("{}{scope} {}", task.run, task.title),
            question: task.prompt.clone().unwrap_or_else(|| format!("run this {} task?", task.kind)),
            by: match &task.started_by {
                Some(starter) if *starter != task.published_by => {
                    format!("{}; run by {starter}", task.published_by)
                }
                _ => task.published_by.clone(),
            },
            since: task.waiting_since,
            command,
            told,
        }
    }
}

/// What to type to confirm a revision.
pub(super) fn confirm_command(review: ReviewId) -> String {
    format!("cis confirm {review}")
}

/// What to type to approve a task that takes this input.
pub(super) fn approve_command(review: ReviewId, input: &BTreeMap<String, String>) -> String {
    let input: String =
        input.iter().map(|(name, kind)| format!(" --input {name}={}", kind.to_uppercase())).collect();
    format!("cis approve {review}{input}")
}

/// What a task that waits asks, and what to type: for those who look at its run.
pub(super) fn question(review: Option<ReviewId>, task: &Task) -> String {
    let command = review.map(|review| format!("`{}`", approve_command(review, &input_types(task))));
    let prompt = match &task.kind {
        Kind::Approval(approval) => approval.prompt.clone(),
        _ => None,
    };
    // The prompt is the publisher's: it comes last, where it cannot push the command out of a narrow line and put another
    // one in its place.
    command.into_iter().chain(prompt).collect::<Vec<_>>().join(" ")
}

/// What approving a task takes, and of which type.
pub(super) fn input_types(task: &Task) -> BTreeMap<String, String> {
    match &task.kind {
        Kind::Approval(approval) => {
            approval.input.iter().map(|(name, kind)| (name.clone(), kind.word().to_owned())).collect()
        }
        _ => BTreeMap::new(),
    }
}
