//! What a person says about a task that waits for one.

use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use axum::response::Response;
use cis_store::port::{Approve, Approved, Once};
use cis_store::sqlite::Reader;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Asked, mark_replayed, runs};
use crate::State;
use crate::say::{Said, not_found, said_no, yes};

/// What a decision may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Decision {
    #[serde(default)]
    input: Map<String, Value>,
    note: Option<String>,
}

/// `POST /api/v1/runs/{run}/tasks/{task}/approve`.
pub(super) async fn approve(Has(state): Has<State>, Path(at): Path<(String, String)>, asked: Asked) -> Said {
    decide(&state, at, &asked, true).await
}

/// `POST /api/v1/runs/{run}/tasks/{task}/reject`.
pub(super) async fn reject(Has(state): Has<State>, Path(at): Path<(String, String)>, asked: Asked) -> Said {
    decide(&state, at, &asked, false).await
}

async fn decide(state: &State, (run, task): (String, String), asked: &Asked, approve: bool) -> Said {
    let Decision { input, note } = asked.json()?;
    let (key, caller) = (asked.key()?, asked.caller.clone());
    let look = move |reader: &Reader| {
        let run = runs::find(reader, &caller, &run)?;
        reader.task_named(&run, &task)?.ok_or_else(|| not_found("task", &task))
    };
    let request = Approve {
        key,
        execution: state.reads.read(look).await?.execution_id,
        approve,
        input,
        note,
        by: asked.caller.identity.clone(),
        self_confirm: asked.caller.self_confirm,
        now: state.node.now(),
    };
    let Once { answer, replayed } = state.node.approve(request).await?;
    Ok(mark_replayed(answer.map_or_else(said_no, |approved| say_approved(&approved)), replayed))
}

fn say_approved(approved: &Approved) -> Response {
    let Approved { approved, run, task_id, status, by, note, outputs, .. } = approved;
    let mut told = json!({
        "status": if *approved { "approved" } else { "rejected" },
        "run_id": run.run_id,
        "run": format!("{}#{}", run.dag_id, run.number),
        "task_id": task_id,
        "task_status": status,
        "decided_by": by,
    });
    if let Some(note) = note {
        told["note"] = json!(note);
    }
    if let Some(outputs) = outputs {
        told["outputs"] = json!(outputs);
    }
    yes(StatusCode::OK, told)
}
