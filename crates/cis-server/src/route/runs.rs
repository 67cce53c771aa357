//! One run, and stopping it.

use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use cis_core::access::Caller;
use cis_core::error::Refusal;
use cis_core::id::RunId;
use cis_store::port::Once;
use cis_store::sqlite::Reader;
use cis_store::sqlite::reader::RunLine;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Asked, mark_replayed};
use crate::State;
use crate::answer::{Progress, Run, Stopping, Versioned};
use crate::cursor::LIMIT_MAX;
use crate::document::RUNS;
use crate::door::By;
use crate::say::{Said, Yes, not_found, said_no, yes};

pub(super) fn find(reader: &Reader, caller: &Caller, id: &str) -> Result<RunLine, Refusal> {
    let Ok(run_id) = id.parse::<RunId>() else { return Err(not_found("run", id)) };
    match reader.run_by_id(run_id)? {
        Some(run) if caller.sees(&run.scope) => Ok(run),
        Some(_) => Err(not_found("run", id)),
        None => {
            let pruned = reader.pruned_by_id(run_id)?.filter(|pruned| caller.sees(&pruned.run.scope));
            Err(pruned.map_or_else(|| not_found("run", id), |pruned| pruned.refusal()))
        }
    }
}

/// One run, and how far it has come.
#[utoipa::path(get, path = "/api/v1/runs/{run}", tag = RUNS, params(("run" = RunId, Path)),
    responses((status = 200, description = "the run", body = Yes<Versioned<Run>>)))]
pub(super) async fn show(Has(state): Has<State>, By(caller): By, Path(id): Path<String>) -> Said {
    let look = move |reader: &Reader| {
        let run = find(reader, &caller, &id)?;
        let progress = Progress::of(&run, reader.tasks(&run, &[], LIMIT_MAX)?);
        Ok(Versioned::of(Run { dag_id: run.dag_id, scope: run.scope, progress }))
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

/// How a run is stopped.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Stop {
    /// Do not wait for anybody: SIGKILL.
    #[serde(default)]
    kill: bool,
}

/// Stop a run.
#[utoipa::path(post, path = "/api/v1/runs/{run}/cancel", tag = RUNS, params(("run" = RunId, Path), Asked),
    request_body = Option<Stop>,
    responses((status = 200, description = "it is stopping, or was over", body = Yes<Stopping>), (status = 409)))]
pub(super) async fn cancel(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    let Stop { kill } = asked.json()?;
    let (key, caller) = (asked.key()?, asked.caller.clone());
    let run = state.reads.read(move |reader| find(reader, &caller, &id)).await?;
    let Once { answer, replayed } = state.node.stop(key, run.key, kill).await?;
    let say = |status| yes(StatusCode::OK, Stopping { run_id: run.run_id, status });
    Ok(mark_replayed(answer.map_or_else(said_no, say), replayed))
}
