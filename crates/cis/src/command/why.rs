//! `cis dag why`: what a DAG or a run waits for.

use cis_api::calls::{WhyDag, WhyRun};
use cis_api::dag::DagPath;
use cis_api::why::{Explained, WhyQuery};
use cis_api::{Nothing, Request};
use cis_core::why::Held;
use serde_json::{Value, json};

use super::pending::confirm_command;
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
    let query = WhyQuery { scope: None, limit: Some(args.limit) };
    let explained = match found.run.as_ref().filter(|_| found.named) {
        Some(run) => found.source.get(Request::<WhyRun>::new(run.run_id.into(), query, Nothing {}))?,
        None => {
            let path = DagPath { id: found.dag.dag_id.to_string() };
            let query = WhyQuery { scope: Some(found.dag.scope.clone()), ..query };
            found.source.get(Request::<WhyDag>::new(path, query, Nothing {}))?
        }
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
