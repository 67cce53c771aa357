//! `cis dag why`: what a DAG or a run waits for.

use cis_core::source::Clock;
use cis_core::why::Held;
use cis_engine::system::System;
use cis_engine::why::{self, Explained, Terms};
use serde_json::{Value, json};

use super::pending::confirm_command;
use super::view::View;
use super::{Outcome, Setup, find, list, status};
use crate::cli::WhyArgs;
use crate::term::face::{BOLD, paint};
use crate::term::table::Cell;
use crate::term::{Face, Table, face, reveal, text};

/// `cis dag why`.
pub(super) fn why(setup: &Setup, args: &WhyArgs) -> Outcome {
    let found = find::find_named(setup, &args.id, args.scope.scope.as_deref())?;
    if found.run.as_ref().is_some_and(|run| !run.status.is_terminal()) {
        status::take_up(setup)?;
    }
    let terms = Terms { limit: args.limit as usize, slots: None, now: System.now() };
    let run = found.run.as_ref().filter(|_| found.named);
    let explained = match (&found.view, run) {
        (View::Here(reader), Some(run)) => why::of_run(reader, run, terms)?,
        (View::Here(reader), None) => why::of_dag(reader, &found.dag, terms)?,
        (View::Node(node), Some(run)) => node.why_run(run, args.limit)?,
        (View::Node(node), None) => node.why_dag(&found.dag, args.limit)?,
    };
    if setup.json {
        let mut told = json!(explained);
        told["success"] = Value::Bool(true);
        say_json!(told);
    } else {
        show(&explained);
    }
    Ok(0)
}

fn show(explained: &Explained) {
    let Explained { dag_id, status, run, awaits_confirmation, why, .. } = explained;
    let face = if run.is_some() { face::run(status) } else { face::revision(status) };
    let name = run.as_deref().unwrap_or(dag_id.as_str());
    say!("{}  {}", paint(BOLD, name), face.label());
    if let Some(awaited) = awaits_confirmation {
        say!(
            "  revision {} by {} waits for somebody to confirm it",
            awaited.revision,
            reveal(&awaited.published_by)
        );
        if let Some(review) = awaited.review_id {
            tell!("hint: `{}` confirms and starts it", confirm_command(review));
        }
    } else if why.unfinished == 0 {
        say!("  nothing is unfinished");
    }
    if why.tasks.is_empty() {
        return;
    }
    let mut table = Table::new(&["TASK", "STATUS", ">HOLDS", "WHY"]);
    for Held { link, text: why, holds, .. } in &why.tasks {
        table.row([
            link.task_id.to_string().into(),
            Cell::styled(Face::from(link.status).label()),
            if *holds > 0 { text::thousands(*holds) } else { String::new() }.into(),
            why.into(),
        ]);
    }
    list::print(&table);
    if why.more > 0 {
        let more = text::count(why.more, "task");
        tell!("hint: {more} more; `--limit {}` shows them", why.unfinished);
    }
}
