//! The question before a decision: on a terminal, `confirm` and `approve` by name show what they are about and ask.
//!
//! What is shown is loaded once, and the decision carries the full content hash of just that. A revision that is published
//! between the showing and the answer has another hash, and is not the one decided on.

use std::io::{BufRead, IsTerminal};

use cis_core::dag::{Dag, Kind, Task};
use cis_core::error::ErrorCode;
use cis_store::port::RevisionStatus;
use cis_store::sqlite::reader::{RevisionLine, RunLine};
use rustix::termios::{QueueSelector, tcflush};
use serde_json::{Map, Value};

use super::find::Found;
use super::revision::{self, Content};
use super::view::View;
use super::{Failure, Setup, fields};
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
    revisions: &[RevisionLine],
    line: &RevisionLine,
) -> Result<(), Failure> {
    if line.status != RevisionStatus::Pending {
        return Ok(());
    }
    let content = Content::load(found, line)?;
    let mut sheet = Sheet::for_stdout();
    let (id, number) = (&found.dag.dag_id, line.revision);
    match revision::confirmed_before(revisions, line) {
        Some(before) => {
            let before = Content::load(found, before)?;
            revision::write_changes(&mut sheet, setup, found, &before, &content);
            sheet.heading("only changes are shown; all of it:");
            sheet.remark(&format!("cis dag show {id} --revision {number}"));
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
    .hint(format!("it still waits: `cis dag confirm {id}` asks again, `cis reject {id}` refuses it")))
}

/// Shows what a task that waits for a person asks and will do, and asks whether to approve it.
pub(super) fn ask_approve(
    setup: &Setup,
    view: &View,
    run: &RunLine,
    dag: &Dag,
    task: &Task,
    input: &Map<String, Value>,
) -> Result<(), Failure> {
    let mut sheet = Sheet::for_stdout();
    let label = run.label();
    sheet.heading(&format!("{label} task {}", task.id));
    fields::write(&mut sheet, &fields::of_task(dag, task));
    if !matches!(task.kind, Kind::Approval(_) | Kind::External { .. }) {
        let directory = revision::task_directory(setup, view, run, dag, task);
        sheet.field("directory", &directory.to_string_lossy());
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
