//! `cis dag pause`, `cis dag unpause`, `cis node drain` and `cis node undrain`.

use cis_api::calls::{DrainNode, PauseRun, UndrainNode, UnpauseRun};
use cis_api::node::Drained;
use cis_api::{Nothing, Request};
use cis_client::Client;
use cis_core::error::ErrorCode;
use serde_json::json;

use super::{Failure, Outcome, Setup, find};
use crate::session;

/// Lets nothing more of a run be started, or lets it go on.
pub(super) fn pause(setup: &Setup, id: &str, scope: Option<&str>, paused: bool) -> Outcome {
    let (_, run) = find::find_run(setup, id, scope)?;
    let path = run.run_id.into();
    let told = match paused {
        true => setup.call(&Request::<PauseRun>::new(path, Nothing {}, Nothing {}))?,
        false => setup.call(&Request::<UnpauseRun>::new(path, Nothing {}, Nothing {}))?,
    };
    let label = run.label();
    if setup.json {
        let told = json!({"success": true, "run": label, "run_id": told.run_id, "status": told.status,
                          "paused": told.paused});
        say_json!(told);
    } else if paused {
        say!("{label} is paused: what runs goes on, nothing more is started");
    } else {
        say!("{label} goes on");
    }
    Ok(0)
}

/// Lets a node start nothing more, or start again.
pub(super) fn drain(setup: &Setup, draining: bool) -> Outcome {
    let client = match setup.named_node()? {
        Some(client) => client,
        None => own_node(setup)?,
    };
    let Drained { draining, changed } = match draining {
        true => client.call(&Request::<DrainNode>::bare())?,
        false => client.call(&Request::<UndrainNode>::bare())?,
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

/// The coordinator of this data directory, if there is one: draining what is not there would mean nothing.
fn own_node(setup: &Setup) -> Result<Client, Failure> {
    setup.only_owner()?;
    let data_dir = setup.data_dir();
    if session::coordinator_of(&data_dir).is_none() {
        return Err(Failure::new(ErrorCode::Unavailable, "no node runs on this data directory")
            .hint("`cis node start` starts one"));
    }
    Ok(session::client(&data_dir)?)
}
