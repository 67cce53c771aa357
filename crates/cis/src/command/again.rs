//! `cis dag resume` and `cis dag retry`: a new run of the same revision that carries over what had completed.

use cis_core::access::{Caller, Preset};
use cis_engine::again::{Again, sequel};
use cis_engine::coordinator::Options;
use cis_engine::session::Session;
use cis_engine::system::user;

use super::run::{self, Ready, Wish};
use super::view::View;
use super::{Outcome, Setup, elsewhere, find};
use crate::cli::{AgainArgs, AgainOptions};

/// `cis dag resume`.
pub(super) fn resume(setup: &Setup, args: &AgainArgs) -> Outcome {
    again(setup, &args.id, &args.again, Again::Rest)
}

/// `cis dag retry`.
pub(super) fn retry(setup: &Setup, id: &str, task: &str, options: &AgainOptions) -> Outcome {
    again(setup, id, options, Again::Task(task))
}

fn again(setup: &Setup, id: &str, options: &AgainOptions, what: Again<'_>) -> Outcome {
    let (view, run) = find::find_run(setup, id, options.scope.scope.as_deref())?;
    let reader = match view {
        View::Here(reader) => reader,
        View::Node(node) => return elsewhere::carry_on(setup, node, &run, options, what),
    };
    // The owner of the data directory may approve everything in it.
    let caller = Caller::preset(user(), Preset::Owner, None);
    let sequel = sequel(&reader, &run, what, &caller)?;
    let here = std::env::current_dir().unwrap_or_default();
    let skill_dirs = setup.skill_dirs(&options.skills.dirs, &here);
    let ready = Ready { definition: run.definition, plan: sequel.plan, dag: sequel.dag, skill_dirs };
    let session = Session::open(Options { runs_at_once: true, ..setup.options()? })?;
    let wish = Wish {
        params: run.given_params(),
        max_parallel: options.max_parallel.or(run.max_parallel),
        detach: options.detach,
        fates: Some(sequel.fates),
        resumed_from: Some(run.key),
        // What was confirmed goes on where it ran before.
        at_node: run.at_node,
    };
    run::launch(setup, session, ready, wish)
}
