//! `cis dag status`: where a DAG, or one run of it, stands.

use std::io::IsTerminal;
use std::sync::Arc;

use cis_api::dag::Decision;
use cis_api::run::RunSummary;
use cis_api::task::TaskSummary;
use cis_core::dag::Task;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::run::RunStatus;
use cis_core::source::{Clock, Timestamp};
use cis_core::task::TaskStatus;
use cis_engine::host::spawn_background;
use cis_engine::system::System;
use serde_json::{Value, json};

use super::find::{self, Found};
use super::follow::Interrupts;
use super::notes::tell_copy;
use super::watch::{Watch, elapsed};
use super::{Failure, Outcome, Setup, list, pending};
use crate::cli::StatusArgs;
use crate::live::{self, Screen};
use crate::source::task_of;
use crate::term::face::{BOLD, DIM, paint};
use crate::term::table::Cell;
use crate::term::{Face, Size, Table, face, out, reveal, text, time};

/// Tasks listed at most; of larger runs, those that are not plainly completed or waiting.
const TASKS_SHOWN: usize = 200;

/// How often a watched run is looked at.
const LOOK: std::time::Duration = std::time::Duration::from_millis(200);

/// `cis dag status`.
pub(super) fn status(setup: &Setup, args: &StatusArgs) -> Outcome {
    let found = find::find(setup, &args.id, args.scope.scope.as_deref())?;
    tell_copy(setup);
    if found.run.as_ref().is_some_and(|run| !run.status.is_terminal()) {
        take_up(setup)?;
    }
    if args.watch {
        return watch(setup, found);
    }
    if let Some(task_id) = &args.task {
        return show_task(setup, &found, task_id);
    }
    if setup.json {
        say_json!(to_json(&found)?);
        return Ok(0);
    }
    match &found.run {
        Some(run) => show_run(&found, run)?,
        None => show_dag(&found)?,
    }
    Ok(0)
}

/// A run that is not over needs a coordinator. If the last one was killed, a new one takes the run up, so that
/// nothing stays "running" because nobody is there.
pub(super) fn take_up(setup: &Setup) -> Result<(), Failure> {
    // A node takes care of its own.
    if setup.named_node()?.is_some() {
        return Ok(());
    }
    if let Ok(Some(lock)) = setup.data_dir().try_lock() {
        spawn_background(&setup.options()?, lock)?;
        tell!("note: its coordinator was gone; a new one takes it up");
    }
    Ok(())
}

/// One task of the run, whole.
fn show_task(setup: &Setup, found: &Found, task_id: &str) -> Outcome {
    let dag_id = &found.dag.dag_id;
    let run = found.run.as_ref().ok_or_else(|| {
        Refusal::new(ErrorCode::NotFound, format!("`{dag_id}` has no run yet"))
            .hint(format!("`cis status {dag_id}` shows where it stands"))
    })?;
    let task = found.source.task(run, task_id)?.ok_or_else(|| {
        Refusal::new(ErrorCode::NotFound, format!("no task `{task_id}` in `{dag_id}`"))
            .hint(format!("`cis status {dag_id}` lists its tasks"))
    })?;
    match setup.json {
        true => say_json!(json!({"success": true, "run_id": run.run_id, "task": task})),
        false => list::print(&task_table(found, run, &[task])?),
    }
    Ok(0)
}

fn to_json(found: &Found) -> Result<Value, Failure> {
    let mut told = json!({"success": true, "dag_id": found.dag.dag_id, "scope": found.dag.scope,
                          "status": found.dag.status, "revision": found.dag.revision, "runs": found.dag.runs});
    if let Some(run) = &found.run {
        let done = run.total - run.left;
        let tasks = found.source.tasks(run, &[], usize::MAX)?;
        told["status"] = json!(run.status);
        told["run_id"] = json!(run.run_id);
        told["version"] = json!(run.version);
        told["progress"] = json!(u64::from(done) * 100 / u64::from(run.total.max(1)));
        told["completed"] = json!(run.completed);
        told["total"] = json!(run.total);
        told["run"] = json!(run);
        told["tasks"] = json!(tasks);
    } else {
        told["revisions"] = json!(found.source.revisions(&found.dag)?);
    }
    Ok(told)
}

fn show_dag(found: &Found) -> Result<(), Failure> {
    let face = face::revision(&found.dag.status);
    say!("{}  {}", paint(BOLD, found.dag.dag_id.as_str()), face.label());
    let revisions = found.source.revisions(&found.dag)?;
    for revision in revisions.iter().take(5) {
        say!(
            "  revision {} {} {}, published by {}",
            revision.revision,
            &revision.content_hash[..12],
            revision.status.word(),
            reveal(&revision.created_by)
        );
        if let Some(decision) = &revision.decision {
            say!("    {}", reveal(&decided(revision.status.word(), decision, System.now())));
        }
    }
    if let Some(review) = revisions.iter().find_map(|revision| revision.review_id) {
        tell!("hint: `{}` confirms and starts it", pending::confirm_command(review));
    }
    Ok(())
}

/// `rejected by ann 3 min ago: too late`
fn decided(word: &str, decision: &Decision, now: Timestamp) -> String {
    let Decision { decided_by, decided_at, note } = decision;
    let note = note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
    format!("{word} by {decided_by} {}{note}", time::ago(now, *decided_at))
}

fn show_run(found: &Found, run: &RunSummary) -> Result<(), Failure> {
    let now = System.now();
    let face = Face::from(run.status);
    let took = run.completed_at.unwrap_or(now).since(run.created_at);
    let done = format!(
        "{}/{} done in {took}",
        text::thousands((run.total - run.left) as usize),
        text::thousands(run.total as usize)
    );
    say!("{}  {}  {}", paint(BOLD, &run.label()), face.label(), paint(DIM, &done));
    if let Some(confirmation) = &run.confirmation {
        say!("  {}", reveal(&decided("confirmed", confirmation, now)));
    }
    let params = run.given_params();
    if !params.is_empty() {
        let params: Vec<String> = params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        say!("  params: {}", reveal(&params.join(" ")));
        say!("  started by {}", reveal(&run.created_by));
    }
    if let Some(reason) = run.stop_reason.filter(|_| run.status != RunStatus::Completed) {
        say!("  stopped: {}", reason.word().replace('_', " "));
    }
    if run.paused {
        say!("  paused: nothing more is started");
    }
    if let Some(from) = run.resumed_from {
        say!("  carries on from {}#{from}", run.dag_id);
    }
    let (tasks, whole) = tasks_to_show(found, run)?;
    if !tasks.is_empty() {
        list::print(&task_table(found, run, &tasks)?);
    }
    if !whole {
        let all = text::thousands(run.total as usize);
        tell!(
            "hint: only tasks that run, wait for a person or went wrong are shown; `--json` shows all {all}"
        );
    }
    if !found.named && found.dag.runs > 1 {
        tell!("hint: `cis dag runs {}` shows all {} runs", found.dag.dag_id, found.dag.runs);
    }
    Ok(())
}

fn tasks_to_show(found: &Found, run: &RunSummary) -> Result<(Vec<TaskSummary>, bool), Failure> {
    if run.total as usize <= TASKS_SHOWN {
        return Ok((found.source.tasks(run, &[], TASKS_SHOWN)?, true));
    }
    let mut tasks = found.source.tasks(run, &[TaskStatus::Waiting], TASKS_SHOWN)?;
    tasks.extend(found.source.live(run, TASKS_SHOWN)?);
    if run.failed + run.debts + run.cancelled > 0 {
        tasks.extend(found.source.tasks(run, &[TaskStatus::Failed, TaskStatus::TimedOut], TASKS_SHOWN)?);
    }
    Ok((tasks, false))
}

fn task_table(found: &Found, run: &RunSummary, tasks: &[TaskSummary]) -> Result<Table, Failure> {
    let now = System.now();
    let dag = found.source.definition_of(run)?;
    let mut table = Table::new(&["TASK", "STATUS", ">TOOK", ">TRY", "NOTE"]);
    for task in tasks {
        let definition = task_of(&dag, run, task);
        let waits = task.status == TaskStatus::Running && task.started_at.is_none();
        let face = Face::from(if waits { TaskStatus::Ready } else { task.status });
        let note = match task.status {
            TaskStatus::Completed if task.cause.is_none() => {
                let decision = task.decision.as_ref().map(|decision| decided("approved", decision, now));
                decision.into_iter().chain(outputs(task)).collect::<Vec<_>>().join(", ")
            }
            TaskStatus::Waiting => definition
                .map_or_else(String::new, |definition| pending::question(task.review_id, definition)),
            _ => task.cause.clone().unwrap_or_default(),
        };
        table.row([
            definition.map_or(task.task_id.as_str(), Task::title).into(),
            Cell::styled(face.label()),
            elapsed(task, now).map_or(String::new(), |took| took.to_string()).into(),
            if task.attempt > 1 { task.attempt.to_string() } else { String::new() }.into(),
            note.into(),
        ]);
    }
    Ok(table)
}

/// `rows=3 size=12`
fn outputs(task: &TaskSummary) -> Option<String> {
    if let Some(bytes) = task.elided.as_ref().and_then(|elided| elided.outputs_bytes) {
        return Some(format!(
            "outputs of {} bytes",
            text::thousands(usize::try_from(bytes).unwrap_or(usize::MAX))
        ));
    }
    let Some(Value::Object(values)) = &task.outputs else { return None };
    let told: Vec<String> = values
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) => format!("{key}={text}"),
            other => format!("{key}={other}"),
        })
        .collect();
    Some(told.join(" "))
}

/// Shows a run until it ends, whoever coordinates it.
fn watch(setup: &Setup, found: Found) -> Outcome {
    let Some(run) = found.run else {
        match setup.json {
            true => say_json!(to_json(&found)?),
            false => show_dag(&found)?,
        }
        return Ok(if found.dag.status == "pending" { 5 } else { 0 });
    };
    let dag = Arc::new(found.source.definition_of(&run)?);
    let mut watch = Watch::new(found.source, run, dag)?;
    let drawn = !setup.json
        && watch.source.is_here()
        && live::wanted(std::io::stderr().is_terminal(), std::env::var("TERM").ok().as_deref());
    let mut screen = Screen::new(std::io::stderr(), true);
    let interrupts = Interrupts::catch()?;
    loop {
        let json = setup.json;
        watch.refresh(|watch, event| match (json, drawn) {
            (true, _) => say_json!(watch.json(event)),
            (false, true) => {}
            (false, false) => {
                if let Ok(Some(line)) = watch.line(event) {
                    say!("{line}");
                }
            }
        })?;
        if drawn {
            let (now, size) = (System.now(), Size::of(std::io::stderr()).unwrap_or(Size::USUAL));
            let lines = live::render(&watch.view(now)?, size);
            screen.draw(lines, size, now).map_err(|e| Failure::usage(e.to_string()))?;
        }
        if watch.is_over() {
            break;
        }
        // Whoever does not want to see more is not kept; what the screen was is put back first.
        if interrupts.within(LOOK) {
            screen.finish().map_err(|e| Failure::usage(e.to_string()))?;
            return Ok(130);
        }
        if out::unwritten().is_some() {
            return Ok(0);
        }
    }
    screen.finish().map_err(|e| Failure::usage(e.to_string()))?;
    super::follow::tell_ending(setup, &watch, &[])?;
    Ok(u8::from(watch.run.status != RunStatus::Completed))
}
