//! `cis dag cancel`.

use cis_core::id::RunKey;
use cis_core::run::RunStatus;
use cis_engine::command::{Command, Reply};
use cis_engine::session::Session;
use serde_json::json;

use super::{Failure, Outcome, Setup, find};

/// Asks for a run to stop; answers once that is committed, not once it is over.
pub(super) fn cancel(setup: &Setup, id: &str, scope: Option<&str>, kill: bool) -> Outcome {
    let (_, run) = find::find_run(setup, id, scope)?;
    let status = match setup.elsewhere()? {
        Some(node) => node.stop(run.run_id, kill)?,
        None => stop(setup, run.key, kill)?,
    };
    let was_over = run.status.is_terminal();
    if setup.json {
        let told = json!({"success": true, "run": run.label(), "run_id": run.run_id, "status": status,
                          "was_over": was_over});
        say_json!(told);
    } else if was_over {
        say!("{} was over already: {status}", run.label());
    } else {
        say!("{} is {status}", run.label());
    }
    Ok(0)
}

fn stop(setup: &Setup, run: RunKey, kill: bool) -> Result<RunStatus, Failure> {
    let mut session = Session::open(setup.options()?)?;
    let stopping = session.ask(Command::Stop { key: None, run, kill }).and_then(Reply::stopping);
    session.close()?;
    Ok(stopping?.answer?)
}
