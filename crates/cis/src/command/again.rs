//! `cis dag resume` and `cis dag retry`: a new run of the same revision that carries over what had completed.

use std::sync::Arc;

use cis_core::dag::plan::Plan;
use cis_core::error::ErrorCode;
use cis_core::task::TaskStatus;
use cis_engine::select;
use cis_engine::session::Session;
use cis_store::port::Fate;
use cis_store::sqlite::reader::RunLine;

use super::run::{self, Ready, Wish};
use super::{Failure, Outcome, Setup, definition, find};
use crate::cli::{AgainArgs, AgainOptions};

/// `cis dag resume`.
pub(super) fn resume(setup: &Setup, args: &AgainArgs) -> Outcome {
    again(setup, &args.id, &args.again, |_, plan, before| Ok(select::resume(plan, before)))
}

/// `cis dag retry`.
pub(super) fn retry(setup: &Setup, id: &str, task: &str, options: &AgainOptions) -> Outcome {
    again(setup, id, options, |ready, plan, before| {
        let tasks = definition::tasks(&ready.dag, &[task.to_owned()])?;
        Ok(select::retry(plan, &tasks, before))
    })
}

fn again(
    setup: &Setup,
    id: &str,
    options: &AgainOptions,
    choose: impl FnOnce(&Ready, &Plan, &[TaskStatus]) -> Result<Vec<Fate>, Failure>,
) -> Outcome {
    let (reader, run) = find::find_run(setup, id, options.scope.scope.as_deref())?;
    refuse_unfinished(&run)?;
    let before = reader.statuses(&run)?;
    let dag = Arc::new(reader.definition(run.definition)?);
    let here = std::env::current_dir().unwrap_or_default();
    let skill_dirs = setup.skill_dirs(&options.skills.dirs, &here);
    let ready = Ready { definition: run.definition, plan: Plan::new(&dag), dag, skill_dirs };
    let fates = choose(&ready, &ready.plan, &before)?;
    if !fates.contains(&Fate::Run) {
        return Err(Failure::new(
            ErrorCode::InvalidTransition,
            format!("{} completed: nothing is left to run", run.label()),
        )
        .hint(format!("`cis run {}` runs it again from the start", run.dag_id)));
    }
    let session = Session::open(setup.options()?)?;
    let wish = Wish {
        params: run.params.clone(),
        max_parallel: options.max_parallel.or(run.max_parallel),
        detach: options.detach,
        fates: Some(fates),
        resumed_from: Some(run.key),
        by_confirmation: false,
    };
    run::launch(setup, session, ready, wish)
}

fn refuse_unfinished(run: &RunLine) -> Result<(), Failure> {
    if run.status.is_terminal() {
        return Ok(());
    }
    let label = run.label();
    Err(Failure::new(ErrorCode::InvalidTransition, format!("{label} is still {}", run.status))
        .hint(format!("`cis status {label} --watch` shows it, `cis dag cancel {label}` stops it")))
}
