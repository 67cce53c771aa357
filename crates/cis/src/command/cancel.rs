//! `cis dag cancel`.

use cis_api::calls::CancelRun;
use cis_api::run::CancelBody;
use cis_api::{Nothing, Request};
use serde_json::json;

use super::{Outcome, Setup, find};

/// Asks for a run to stop; answers once that is committed, not once it is over.
pub(super) fn cancel(setup: &Setup, id: &str, scope: Option<&str>, kill: bool) -> Outcome {
    let (_, run) = find::find_run(setup, id, scope)?;
    let request = Request::<CancelRun>::new(run.run_id.into(), Nothing {}, CancelBody { kill });
    let status = setup.call(&request)?.status;
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
