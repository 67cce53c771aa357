//! What waits for a person, and what that person says about a task.

use axum::Extension;
use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use axum::response::Response;
use cis_core::access::Caller;
use cis_store::port::{Approve, Approved, Once};
use cis_store::sqlite::reader::PendingLine;
use cis_store::sqlite::{Reader, WaitingLine};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::dags::LIMIT_MAX;
use super::{Asked, mark_replayed, runs};
use crate::State;
use crate::say::{Said, not_found, said_no, yes};

/// Something that waits for a person.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Pending {
    /// A DAG to confirm.
    Dag(PendingLine),
    /// A task to approve.
    Task(WaitingTask),
}

#[derive(Debug, Serialize)]
struct WaitingTask {
    #[serde(flatten)]
    line: WaitingLine,
    approve_url: String,
    reject_url: String,
}

impl From<WaitingLine> for WaitingTask {
    fn from(line: WaitingLine) -> Self {
        let url = |what: &str| format!("/api/v1/runs/{}/tasks/{}/{what}", line.run_id, line.task_id);
        Self { approve_url: url("approve"), reject_url: url("reject"), line }
    }
}

/// `GET /api/v1/pending`: DAGs to confirm, then tasks to approve.
pub(super) async fn pending(Has(state): Has<State>, Extension(caller): Extension<Caller>) -> Said {
    let look = move |reader: &Reader| {
        let dags = reader.pending()?.into_iter().filter(|request| caller.sees(&request.scope));
        let tasks = reader.waiting(|scope| caller.sees(scope), LIMIT_MAX as usize)?;
        let found = dags.map(Pending::Dag).chain(tasks.into_iter().map(|task| Pending::Task(task.into())));
        Ok(found.take(LIMIT_MAX as usize).collect::<Vec<_>>())
    };
    Ok(yes(StatusCode::OK, json!({"pending": state.reads.read(look).await?})))
}

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
