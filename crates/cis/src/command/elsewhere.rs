//! Publishing and running on a node over HTTP. The node runs it in its own surroundings, whoever looks or leaves.

use std::path::Path;
use std::sync::Arc;

use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::RunId;
use cis_engine::again::Again;
use cis_store::port::{Decided, Published, RevisionStatus, RunRef};
use cis_store::sqlite::reader::RunLine;
use serde_json::{Map, Value};

use super::follow::{self, Hand, Interrupts};
use super::pending::confirm_command;
use super::{Failure, Outcome, Setup, definition, run};
use crate::cli::{AgainOptions, RunArgs};
use crate::remote::Remote;

/// Publishes a file; answers also the run that a node starts by itself, if it is one that asks nobody.
pub(super) fn publish(
    setup: &Setup,
    node: &Remote,
    file: &Path,
    new_revision: bool,
) -> Result<(Published, Option<RunId>), Failure> {
    let checked = definition::check(setup, file)?;
    for warning in &checked.warnings {
        crate::term::report::warn(&warning.to_string());
    }
    Ok(node.publish(&checked.dag, new_revision)?)
}

/// `cis dag run FILE`: publishes it, confirms it if that is allowed, and follows it.
pub(super) fn run_file(setup: &Setup, node: Remote, args: &RunArgs) -> Outcome {
    refuse_selection(args)?;
    if !args.params.is_empty() || args.max_parallel.is_some() {
        let why =
            "a node starts what is confirmed as it was published, without `--param` and `--max-parallel`";
        return Err(Failure::usage(why)
            .hint("publish and confirm it; then `cis run ID --param …` runs it again with others"));
    }
    let interrupts = interrupts(args.detach)?;
    let (published, run_id) = publish(setup, &node, Path::new(&args.target), true)?;
    let Published { dag_id, scope, content_hash, .. } = &published;
    let run = match (run_id, published.status) {
        (Some(run_id), _) => known(&node, run_id)?,
        (None, RevisionStatus::Pending) => match node.decide(dag_id, scope, content_hash, true, None) {
            Ok(decided) => started(decided)?,
            Err(refusal) if refusal.code == ErrorCode::Forbidden => {
                return Err(awaits_confirmation(&published, &refusal));
            }
            Err(refusal) => return Err(refusal.into()),
        },
        (None, _) => node.start(dag_id, scope, content_hash, &Map::new(), None)?,
    };
    attend(setup, node, &run, interrupts)
}

fn started(decided: Decided) -> Result<RunRef, Failure> {
    decided
        .run
        .ok_or_else(|| Failure::new(ErrorCode::Unavailable, "the node confirmed it and started nothing"))
}

fn awaits_confirmation(published: &Published, refusal: &Refusal) -> Failure {
    let Published { dag_id, revision, review_id, .. } = published;
    let why = format!("`{dag_id}` revision {revision} is published and waits for confirmation: {refusal}");
    let command = review_id.map_or("cis pending".to_owned(), confirm_command);
    Failure::new(ErrorCode::AwaitingConfirmation, why).hint(format!("an approver types `{command}`"))
}

/// `cis dag run ID`: runs confirmed content again.
pub(super) fn run_known(
    setup: &Setup,
    node: Remote,
    dag: &Dag,
    content_hash: &str,
    params: &Map<String, Value>,
    args: &RunArgs,
) -> Outcome {
    refuse_selection(args)?;
    let interrupts = interrupts(args.detach)?;
    let run = node.start(&dag.dag_id, &dag.scope, content_hash, params, args.max_parallel)?;
    attend(setup, node, &run, interrupts)
}

/// `cis dag resume` and `cis dag retry`.
pub(super) fn carry_on(
    setup: &Setup,
    node: Remote,
    run: &RunLine,
    options: &AgainOptions,
    what: Again<'_>,
) -> Outcome {
    let task = match what {
        Again::Rest => None,
        Again::Task(task) => Some(task),
    };
    let interrupts = interrupts(options.detach)?;
    let run = node.carry_on(run, task, options.max_parallel)?;
    attend(setup, node, &run, interrupts)
}

/// What only a coordinator of this machine can do.
fn refuse_selection(args: &RunArgs) -> Result<(), Failure> {
    let given = [
        ("--only", !args.only.is_empty()),
        ("--from", !args.from.is_empty()),
        ("--durability", args.durability.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((flag, _)) => Err(Failure::usage(format!("a node does not take `{flag}`"))
            .hint("`cis dag retry ID TASK` runs a task and everything that depends on it again")),
    }
}

/// Caught before the run exists: from then on a Ctrl-C means the run.
fn interrupts(detach: bool) -> Result<Option<Interrupts>, Failure> {
    (!detach).then(Interrupts::catch).transpose()
}

/// Follows a run that has started, unless it is left alone.
fn attend(setup: &Setup, node: Remote, run: &RunRef, interrupts: Option<Interrupts>) -> Outcome {
    let line = node.run_by_number(&run.dag_id, &run.scope, run.number)?;
    let line = line.ok_or_else(|| Failure::new(ErrorCode::NotFound, "the run is gone"))?;
    let Some(interrupts) = interrupts else {
        run::tell_detached(setup, run, line.total as usize);
        return Ok(0);
    };
    let dag = Arc::new(node.definition_of(&line)?);
    follow::follow(setup, Hand::Node(node), run, dag, &[], interrupts)
}

fn known(node: &Remote, run_id: RunId) -> Result<RunRef, Failure> {
    let line = node.run_by_id(run_id)?;
    let line = line.ok_or_else(|| Failure::new(ErrorCode::NotFound, "the run is gone"))?;
    let RunLine { key, run_id, dag_id, scope, number, status, .. } = line;
    Ok(RunRef { key, run_id, dag_id, scope, number, status })
}
