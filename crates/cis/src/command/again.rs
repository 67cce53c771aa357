//! `cis dag resume` and `cis dag retry`: a new run of the same revision that carries over what had completed.

use std::sync::Arc;

use cis_api::calls::{ResumeRun, RetryTask};
use cis_api::run::{ResumeBody, RetryBody};
use cis_api::{Nothing, Request};

use super::run::{self, Launch};
use super::{Outcome, Setup, find};
use crate::cli::{AgainArgs, AgainOptions};

/// `cis dag resume`.
pub(super) fn resume(setup: &Setup, args: &AgainArgs) -> Outcome {
    again(setup, &args.id, &args.again, None)
}

/// `cis dag retry`.
pub(super) fn retry(setup: &Setup, id: &str, task: &str, options: &AgainOptions) -> Outcome {
    again(setup, id, options, Some(task))
}

/// Runs what a run did not complete, or a task of it and everything that depends on it.
fn again(setup: &Setup, id: &str, options: &AgainOptions, task: Option<&str>) -> Outcome {
    let (source, run) = find::find_run(setup, id, options.scope.scope.as_deref())?;
    let here = std::env::current_dir().unwrap_or_default();
    let launch = Launch {
        dag: Arc::new(source.definition_of(&run)?),
        skill_dirs: setup.skill_dirs(&options.skills.dirs, &here),
        is_detached: options.detach,
        // What was confirmed goes on where it ran before.
        at_node: run.at_node,
        kept: None,
    };
    let (path, max_parallel) = (run.run_id.into(), options.max_parallel);
    let target = setup.target(true)?;
    match task {
        None => run::start(setup, target, launch, |owner| {
            Request::<ResumeRun>::new(path, Nothing {}, ResumeBody { max_parallel, owner })
        }),
        Some(task) => run::start(setup, target, launch, |owner| {
            let body = RetryBody { task: task.to_owned(), max_parallel, owner };
            Request::<RetryTask>::new(path, Nothing {}, body)
        }),
    }
}
