//! `cis dag pause`, `cis dag unpause`, `cis node drain` and `cis node undrain`.

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::RunKey;
use cis_core::run::RunStatus;
use cis_engine::command::Command;
use cis_engine::session::Session;
use serde_json::json;

use super::{Failure, Outcome, Setup, find};

/// Lets nothing more of a run be started, or lets it go on.
pub(super) fn pause(setup: &Setup, id: &str, scope: Option<&str>, paused: bool) -> Outcome {
    let (_, run) = find::find_run(setup, id, scope)?;
    let status = match setup.elsewhere()? {
        Some(node) => node.pause(run.run_id, paused)?,
        None => pause_here(setup, run.key, paused)?,
    };
    let label = run.label();
    if setup.json {
        let told =
            json!({"success": true, "run": label, "run_id": run.run_id, "status": status, "paused": paused});
        say_json!(told);
    } else if paused {
        say!("{label} is paused: what runs goes on, nothing more is started");
    } else {
        say!("{label} goes on");
    }
    Ok(0)
}

fn pause_here(setup: &Setup, run: RunKey, paused: bool) -> Result<RunStatus, Failure> {
    let mut session = Session::open(setup.options()?)?;
    let status = session.ask(Command::Pause { run, paused }).and_then(|reply| reply.paused());
    session.close()?;
    Ok(status?)
}

/// Lets a node start nothing more, or start again.
pub(super) fn drain(setup: &Setup, draining: bool) -> Outcome {
    let changed = match setup.elsewhere()? {
        Some(node) => node.drain(draining)?,
        None => drain_here(setup, draining)?,
    };
    if setup.json {
        say_json!(json!({"success": true, "draining": draining, "changed": changed}));
    } else if draining {
        say!("draining: what runs goes on, nothing more is started");
    } else {
        say!("the node starts tasks again");
    }
    Ok(0)
}

/// The node that runs on this data directory.
fn drain_here(setup: &Setup, draining: bool) -> Result<bool, Failure> {
    let mut session = Session::open(setup.options()?)?;
    let answer = if session.is_here() {
        Err(Refusal::new(ErrorCode::Unavailable, "no node runs on this data directory")
            .hint("`cis node start` starts one"))
    } else {
        session.ask(Command::Drain { draining }).and_then(|reply| reply.changed())
    };
    session.close()?;
    Ok(answer?)
}
