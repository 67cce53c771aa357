//! `cis pending`: what waits for a person, and what to type.

use std::collections::{BTreeMap, BTreeSet};

use cis_api::review::{PendingItem, PendingRevision, WaitingTask};
use cis_core::dag::{Kind, Task};
use cis_core::id::{DagId, Scope};
use cis_core::review::ReviewId;
use cis_core::source::{Clock, Timestamp};
use cis_engine::system::System;
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
}

/// The DAG that waits, or whose task does.
fn dag_of(item: &PendingItem) -> (&DagId, &Scope) {
    match item {
        PendingItem::Dag(dag) => (&dag.dag_id, &dag.scope),
        PendingItem::Task(pending) => (&pending.task.dag_id, &pending.task.scope),
    }
}

/// `cis pending`.
pub(super) fn pending(setup: &Setup) -> Outcome {
    let pending = match setup.source()? {
        Some(source) => source.pending()?,
        None => Vec::new(),
    };
    // A name that stands for several DAGs does not say which one waits.
    let names: BTreeSet<(&DagId, &Scope)> = pending.iter().map(dag_of).collect();
    let in_scope = |item: &PendingItem| {
        let (dag_id, scope) = dag_of(item);
        let is_shared = names.iter().any(|(name, other)| *name == dag_id && *other != scope);
        if is_shared { format!(" in {scope}") } else { String::new() }
    };
    let waiting: Vec<Waiting> = pending.iter().map(|item| Waiting::of(item, &in_scope(item))).collect();
    if setup.json {
        let told = pending.iter().zip(&waiting).map(|(item, waiting)| {
            let mut told = json!(item);
            told["command"] = json!(waiting.command);
            told
        });
        say_json!(json!({"success": true, "pending": told.collect::<Vec<Value>>()}));
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
    fn of(item: &PendingItem, scope: &str) -> Self {
        match item {
            PendingItem::Dag(dag) => Self::dag(dag, scope),
            PendingItem::Task(pending) => Self::task(&pending.task, scope),
        }
    }

    fn dag(dag: &PendingRevision, scope: &str) -> Self {
        let command = confirm_command(dag.review_id);
        Self {
            what: format!("{} revision {}{scope}", dag.dag_id, dag.revision),
            question: format!("run its tasks ({})?", dag.tasks),
            by: dag.published_by.clone(),
            since: dag.published_at,
            command,
        }
    }

    fn task(task: &WaitingTask, scope: &str) -> Self {
        let command = approve_command(task.review_id, &task.input);
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
