//! `cis dag list` and `cis dag runs`.

use cis_core::error::ErrorCode;
use cis_core::revision::RevisionStatus;
use cis_core::run::RunStatus;
use cis_core::source::Clock;
use cis_engine::system::System;
use serde_json::json;

use super::{Failure, Outcome, Setup, find};
use crate::term::table::Cell;
use crate::term::{Size, Table, face, text, time};

/// `cis dag list`.
pub(super) fn dags(setup: &Setup, status: Option<&str>, scope: Option<&str>, limit: u32) -> Outcome {
    if let Some(word) = status
        .filter(|word| RunStatus::from_word(word).is_none() && RevisionStatus::from_word(word).is_none())
    {
        let words: Vec<&str> = RunStatus::ALL
            .iter()
            .map(|s| s.word())
            .chain(["pending", "confirmed", "rejected", "expired"])
            .collect();
        return Err(Failure::new(ErrorCode::ValidationFailed, format!("there is no status `{word}`"))
            .hint(format!("one of {}", words.join(", "))));
    }
    let (shown, more) = match setup.source()? {
        Some(source) => source.dags(status, scope, limit)?,
        None => (Vec::new(), false),
    };
    if setup.json {
        say_json!(json!({"success": true, "dags": shown, "more": more}));
        return Ok(0);
    }
    if shown.is_empty() {
        tell!("no DAGs{}", if status.is_some() || scope.is_some() { " match" } else { " yet" });
        tell!("hint: `cis init` writes a first one, `cis run FILE` runs it");
        return Ok(0);
    }
    let now = System.now();
    let mut table = Table::new(&["DAG", "SCOPE", "STATUS", ">TASKS", ">RUNS", "UPDATED"]);
    for dag in &shown {
        let face =
            if dag.latest_run.is_some() { face::run(&dag.status) } else { face::revision(&dag.status) };
        table.row([
            dag.dag_id.to_string().into(),
            dag.scope.to_string().into(),
            Cell::styled(face.label()),
            text::thousands(dag.tasks as usize).into(),
            dag.runs.to_string().into(),
            time::ago(now, dag.updated_at).into(),
        ]);
    }
    print(&table);
    hint_more(more, limit);
    Ok(0)
}

/// `cis dag runs`.
pub(super) fn runs(setup: &Setup, id: Option<&str>, scope: Option<&str>, limit: u32) -> Outcome {
    let (shown, more) = match id {
        Some(id) => {
            let found = find::find_named(setup, id, scope)?;
            found.source.runs(Some(&found.dag), limit)?
        }
        None => match setup.source()? {
            Some(source) => source.runs(None, limit)?,
            None => (Vec::new(), false),
        },
    };
    if setup.json {
        say_json!(json!({"success": true, "runs": shown, "more": more}));
        return Ok(0);
    }
    if shown.is_empty() {
        tell!("no runs yet");
        return Ok(0);
    }
    let now = System.now();
    let mut table = Table::new(&["RUN", "STATUS", ">DONE", ">FAILED", ">TOOK", "STARTED", "BY", "NOTE"]);
    for run in &shown {
        let took = run.completed_at.unwrap_or(now).since(run.started_at.unwrap_or(run.created_at));
        table.row([
            run.label().into(),
            Cell::styled(face::run(run.status.word()).label()),
            format!("{}/{}", run.total - run.left, run.total).into(),
            (run.failed + run.debts).to_string().into(),
            took.to_string().into(),
            time::ago(now, run.created_at).into(),
            run.created_by.clone().into(),
            run.confirmation.as_ref().and_then(|decision| decision.note.clone()).unwrap_or_default().into(),
        ]);
    }
    print(&table);
    hint_more(more, limit);
    Ok(0)
}

/// Prints a table as wide as the terminal allows.
pub(super) fn print(table: &Table) {
    let width = Size::of(std::io::stdout()).map(|size| size.cols.into());
    crate::term::out::put(format_args!("{}", table.render(width)));
}

fn hint_more(more: bool, limit: u32) {
    if more {
        tell!("hint: there are more; `--limit {}` shows them", limit.saturating_mul(4));
    }
}
