//! The question before a decision: on a terminal, `confirm` and `approve` by name show what they are about and ask.
//!
//! What is shown is loaded once, and the decision carries the full content hash of just that. A revision that is published
//! between the showing and the answer has another hash, and is not the one decided on.

use std::io::{BufRead, IsTerminal};

use cis_api::dag::RevisionSummary;
use cis_api::run::RunSummary;
use cis_core::dag::{Dag, Kind, Task};
use cis_core::error::ErrorCode;
use cis_core::revision::RevisionStatus;
use cis_core::task::TaskStatus;
use cis_core::template::{Scene, fill_json, is_template};
use rustix::termios::{QueueSelector, tcflush};
use serde_json::{Map, Value, json};

use super::find::Found;
use super::revision::{self, Content};
use super::{Failure, Setup, fields};
use crate::source::{Source, task_of};
use crate::term::{Sheet, out, reveal};

/// Is there a person to ask? A program that wants JSON is none, whatever it runs on.
pub(super) fn is_interactive(setup: &Setup) -> bool {
    !setup.json && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Shows a revision, or what changed since the last one that was confirmed, and asks whether to confirm it. One that no longer
/// waits for a decision is not asked about.
pub(super) fn ask_confirm(
    setup: &Setup,
    found: &Found,
    revisions: &[RevisionSummary],
    line: &RevisionSummary,
) -> Result<(), Failure> {
    if line.status != RevisionStatus::Pending {
        return Ok(());
    }
    let content = Content::load(found, line)?;
    let mut sheet = Sheet::for_stdout();
    let (id, number) = (&found.dag.dag_id, line.revision);
    // The name may stand for something else a moment later, or in another scope.
    let name = line.review_id.map_or_else(|| id.to_string(), |review| review.to_string());
    match revision::confirmed_before(revisions, line) {
        Some(before) => {
            let before = Content::load(found, before)?;
            revision::write_changes(&mut sheet, setup, found, &before, &content);
            sheet.heading("only changes are shown; all of it:");
            sheet.remark(&format!("cis dag show {name}"));
        }
        None => revision::write(&mut sheet, setup, found, &content),
    }
    sheet.print();
    if ask(&format!("Confirm revision {number} of {id}?"))? {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::AwaitingConfirmation,
        format!("revision {number} of `{id}` was not confirmed: nothing was started"),
    )
    .hint(format!("it still waits: `cis confirm {name}` confirms it, `cis reject {name}` refuses it")))
}

/// Shows what a task that waits for a person asks and will do, and asks whether to approve it.
pub(super) fn ask_approve(
    setup: &Setup,
    source: &Source,
    run: &RunSummary,
    dag: &Dag,
    task: &Task,
    input: &Map<String, Value>,
) -> Result<(), Failure> {
    let mut sheet = Sheet::for_stdout();
    let label = run.label();
    sheet.heading(&format!("{label} task {}", task.id));
    fields::write(&mut sheet, &fields::of_task(dag, task));
    if !matches!(task.kind, Kind::Approval(_) | Kind::External { .. }) {
        let directory = revision::task_directory(setup, source, run, dag, task)?;
        sheet.field("directory", &directory.to_string_lossy());
    }
    sheet.field("started by", &run.created_by);
    for (name, value) in run.given_params() {
        sheet.verbatim(&format!("param {name}"), &plain(&value));
    }
    for (name, value) in filled(source, run, dag, task)? {
        sheet.verbatim(&format!("{name}, filled in"), &value);
    }
    for (name, value) in input {
        sheet.field(&format!("given {name}"), &value.to_string());
    }
    sheet.print();
    if ask(&format!("Approve {} of {label}?", task.id))? {
        return Ok(());
    }
    let id = &task.id;
    Err(Failure::new(
        ErrorCode::AwaitingConfirmation,
        format!("`{id}` of {label} was not approved: it still waits"),
    )
    .hint(format!("`cis approve {label} {id}` asks again, `cis reject {label} {id}` refuses it")))
}

/// What the templates of a task come to in this run. One that cannot be filled yet is left out: the task shows it as it is
/// written.
fn filled(
    source: &Source,
    run: &RunSummary,
    dag: &Dag,
    task: &Task,
) -> Result<Vec<(String, String)>, Failure> {
    let own = &task.more().env;
    let inherited = dag.env.iter().filter(|(name, _)| !own.contains_key(*name));
    let env = inherited.chain(own).map(|(name, value)| (format!("env {name}"), Value::from(value.as_str())));
    let input = match &task.kind {
        Kind::Skill(call) => Some(&call.input),
        Kind::External { input } => Some(&**input),
        _ => None,
    };
    let written = env.chain(input.map(|input| ("input".to_owned(), json!(input))));
    let templates: Vec<(String, Value)> =
        written.filter(|(_, value)| is_template(&value.to_string())).collect();
    if templates.is_empty() {
        return Ok(Vec::new());
    }
    let mut tasks = serde_json::Map::new();
    for mut done in source.tasks(run, &[TaskStatus::Completed], usize::MAX)? {
        let Some(id) = task_of(dag, run, &done).map(|task| task.id.to_string()) else { continue };
        let is_large = done.elided.as_ref().is_some_and(|elided| elided.outputs_bytes.is_some());
        // `tasks.count.outputs` or `tasks['my-count'].outputs`; one task too many costs little.
        if is_large && templates.iter().any(|(_, value)| value.to_string().contains(&id)) {
            done.outputs = source.task(run, &done.task_id)?.and_then(|whole| whole.outputs);
        }
        if let Some(outputs) = done.outputs {
            tasks.insert(id, json!({"outputs": outputs}));
        }
    }
    let scene = Scene {
        params: run.params.clone(),
        tasks: Value::Object(tasks),
        dag_id: run.dag_id.to_string(),
        run_id: run.run_id.to_string(),
    };
    let fill = |(name, value): (String, Value)| Some((name, plain(&fill_json(&value, &scene).ok()?)));
    Ok(templates.into_iter().filter_map(fill).collect())
}

/// A text as it is, any other value as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Asks a person; anything but yes is no, and so is the end of the input.
fn ask(question: &str) -> Result<bool, Failure> {
    let stdin = std::io::stdin();
    // What was typed before the question was there is no answer to it.
    let _ = tcflush(&stdin, QueueSelector::IFlush);
    out::put(format_args!("\n{} [y/N] ", reveal(question)));
    if let Some(e) = out::unwritten() {
        return Err(Failure::new(ErrorCode::Unavailable, format!("cannot ask: {e}")));
    }
    let mut answer = String::new();
    let read = stdin.lock().read_line(&mut answer);
    let read =
        read.map_err(|e| Failure::new(ErrorCode::Unavailable, format!("cannot read the answer: {e}")))?;
    if read == 0 {
        // The cursor still stands behind the question.
        out::put(format_args!("\n"));
    }
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
