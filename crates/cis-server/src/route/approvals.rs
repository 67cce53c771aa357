//! What a person says about a task that waits for one.

use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use cis_core::id::{RunId, TaskId};
use cis_store::port::{Approve, Approved, Once};
use cis_store::sqlite::Reader;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{Asked, mark_replayed, runs};
use crate::State;
use crate::answer::{self, Verdict};
use crate::document::RUNS;
use crate::say::{Said, Yes, not_found, said_no, yes};

/// What a decision may say.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = TaskDecision)]
#[serde(deny_unknown_fields)]
pub(super) struct Decision {
    /// What the task asks for.
    #[serde(default)]
    pub(super) input: Map<String, Value>,
    /// Why; kept with the decision.
    #[schema(max_length = 4096)]
    pub(super) note: Option<String>,
}

/// Let a task go on that waits for a person.
///
/// Whoever published the DAG does not approve its tasks, owners excepted.
#[utoipa::path(post, path = "/api/v1/runs/{run}/tasks/{task}/approve", tag = RUNS,
    params(("run" = RunId, Path), ("task" = TaskId, Path), Asked), request_body = Option<Decision>,
    responses((status = 200, description = "approved", body = Yes<answer::Approved>), (status = 409)))]
pub(super) async fn approve(Has(state): Has<State>, Path(at): Path<(String, String)>, asked: Asked) -> Said {
    decide(&state, at, &asked, true).await
}

/// Refuse a task that waits for a person.
#[utoipa::path(post, path = "/api/v1/runs/{run}/tasks/{task}/reject", tag = RUNS,
    params(("run" = RunId, Path), ("task" = TaskId, Path), Asked), request_body = Option<Decision>,
    responses((status = 200, description = "it has failed", body = Yes<answer::Approved>), (status = 409)))]
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
    let say = |approved: Approved| yes(StatusCode::OK, told(&approved));
    Ok(mark_replayed(answer.map_or_else(said_no, say), replayed))
}

pub(super) fn told(approved: &Approved) -> answer::Approved {
    let Approved { approved, run, task_id, status, by, at, note, outputs, .. } = approved;
    answer::Approved {
        status: if *approved { Verdict::Approved } else { Verdict::Rejected },
        run_id: run.run_id,
        run: format!("{}#{}", run.dag_id, run.number),
        task_id: task_id.clone(),
        task_status: *status,
        decided_by: by.clone(),
        decided_at: *at,
        note: note.clone(),
        outputs: outputs.clone(),
    }
}
