//! `cis dag pause`, `cis dag unpause`, `cis node drain` and `cis node undrain`.

use cis_core::error::{ErrorCode, Refusal};
use cis_engine::command::Command;
use cis_engine::session::Session;
use serde_json::json;

use super::{Outcome, Setup, find};

/// Lets nothing more of a run be started, or lets it go on.
pub(super) fn pause(setup: &Setup, id: &str, scope: Option<&str>, paused: bool) -> Outcome {
    let (_, run) = find::find_run(setup, id, scope)?;
    let mut session = Session::open(setup.options()?)?;
    let status = session.ask(Command::Pause { run: run.key, paused }).and_then(|reply| reply.paused());
    session.close()?;
    let (status, label) = (status?, run.label());
    if setup.json {
        let told =
            json!({"success": true, "run": label, "run_id": run.run_id, "status": status, "paused": paused});
        anstream::println!("{told}");
    } else if paused {
        anstream::println!("{label} is paused: what runs goes on, nothing more is started");
    } else {
        anstream::println!("{label} goes on");
    }
    Ok(0)
}

/// Lets the node that runs on this data directory start nothing more, or start again.
pub(super) fn drain(setup: &Setup, draining: bool) -> Outcome {
    let mut session = Session::open(setup.options()?)?;
    let answer = if session.is_here() {
        Err(Refusal::new(ErrorCode::Unavailable, "no node runs on this data directory")
            .hint("`cis node start` starts one"))
    } else {
        session.ask(Command::Drain { draining }).and_then(|reply| reply.changed())
    };
    session.close()?;
    let changed = answer?;
    if setup.json {
        anstream::println!("{}", json!({"success": true, "draining": draining, "changed": changed}));
    } else if draining {
        anstream::println!("draining: what runs goes on, nothing more is started");
    } else {
        anstream::println!("the node starts tasks again");
    }
    Ok(0)
}
