//! One run, its tasks, and stopping it.

use axum::Extension;
use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use cis_core::access::Caller;
use cis_core::error::Refusal;
use cis_core::id::RunId;
use cis_store::sqlite::Reader;
use cis_store::sqlite::reader::RunLine;
use serde_json::json;

use super::Asked;
use super::dags::{LIMIT_MAX, run_value, versioned};
use crate::State;
use crate::say::{Said, not_found, yes};

pub(super) fn find(reader: &Reader, caller: &Caller, id: &str) -> Result<RunLine, Refusal> {
    let run = match id.parse::<RunId>() {
        Ok(run_id) => reader.run_by_id(run_id)?,
        Err(_) => None,
    };
    run.filter(|run| caller.sees(&run.scope)).ok_or_else(|| not_found("run", id))
}

/// `GET /api/v1/runs/{run}`.
pub(super) async fn show(
    Has(state): Has<State>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Said {
    let look = move |reader: &Reader| {
        let run = find(reader, &caller, &id)?;
        let mut told = run_value(&run, &reader.tasks(&run, &[], LIMIT_MAX)?);
        told["dag_id"] = json!(run.dag_id);
        told["scope"] = json!(run.scope);
        Ok(versioned(told))
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

/// `GET /api/v1/runs/{run}/tasks`.
pub(super) async fn tasks(
    Has(state): Has<State>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Said {
    let look = move |reader: &Reader| {
        let run = find(reader, &caller, &id)?;
        Ok(reader.tasks(&run, &[], LIMIT_MAX)?)
    };
    Ok(yes(StatusCode::OK, json!({"tasks": state.reads.read(look).await?})))
}

/// `POST /api/v1/runs/{run}/cancel`.
pub(super) async fn cancel(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    asked.check_kind()?;
    let caller = asked.caller;
    let run = state.reads.read(move |reader| find(reader, &caller, &id)).await?;
    let status = state.node.stop(run.key, false).await?;
    Ok(yes(StatusCode::OK, json!({"run_id": run.run_id, "status": status})))
}
