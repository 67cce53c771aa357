//! Running again what was confirmed: a DAG from the start, what a run did not complete, a task and what follows it.

use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use axum::response::Response;
use cis_core::error::Refusal;
use cis_core::id::{DagId, RunId, RunKey};
use cis_engine::again::{Again, confirmed, sequel};
use cis_store::port::{Fate, Once, RunRef, StartRun};
use cis_store::sqlite::Reader;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{Args, Asked, InScope, dags, mark_replayed, runs};
use crate::State;
use crate::answer::Started;
use crate::document::RUNS;
use crate::say::{Said, Yes, said_no, yes};

/// What is run, and how.
struct Wish {
    definition: i64,
    params: Map<String, Value>,
    max_parallel: Option<u32>,
    fates: Option<Vec<Fate>>,
    resumed_from: Option<RunKey>,
}

/// How to run it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RunBody {
    /// Instead of what the definition says; only what it declares.
    #[serde(default)]
    params: Map<String, Value>,
    max_parallel: Option<u32>,
    /// Which revision; else the latest that was confirmed.
    content_hash: Option<String>,
}

/// Run a DAG again.
#[utoipa::path(post, path = "/api/v1/dag/{id}/runs", tag = RUNS,
    params(("id" = DagId, Path, description = "what people call the DAG"), InScope, Asked),
    request_body = Option<RunBody>,
    responses((status = 201, description = "a new run", body = Yes<Started>), (status = 409)))]
pub(super) async fn run(
    Has(state): Has<State>,
    Path(id): Path<String>,
    Args(InScope { scope }): Args<InScope>,
    asked: Asked,
) -> Said {
    let (caller, body) = (asked.caller.clone(), asked.json::<RunBody>());
    let look = move |reader: &Reader| {
        let dag = dags::find(reader, &caller, &id, scope.as_ref())?;
        let RunBody { params, max_parallel, content_hash } = body?;
        let revisions = reader.revisions(dag.key)?;
        let definition = confirmed(&dag, &revisions, content_hash.as_deref())?.key;
        Ok(Wish { definition, params, max_parallel, fates: None, resumed_from: None })
    };
    let wish = state.reads.read(look).await?;
    start(&state, &asked, wish).await
}

/// How to carry it on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ResumeBody {
    max_parallel: Option<u32>,
}

/// Carry a run on.
///
/// What it did not complete, in a new run.
#[utoipa::path(post, path = "/api/v1/runs/{run}/resume", tag = RUNS, params(("run" = RunId, Path), Asked),
    request_body = Option<ResumeBody>,
    responses((status = 201, description = "a new run", body = Yes<Started>), (status = 409)))]
pub(super) async fn resume(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    let body = asked.json().map(|ResumeBody { max_parallel }| (None, max_parallel));
    carry_on(&state, id, &asked, body).await
}

/// What to do once more.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RetryBody {
    /// Its `task_id`.
    task: String,
    max_parallel: Option<u32>,
}

/// Do a task once more.
///
/// And everything that depends on it, in a new run.
#[utoipa::path(post, path = "/api/v1/runs/{run}/retry", tag = RUNS, params(("run" = RunId, Path), Asked),
    request_body = RetryBody,
    responses((status = 201, description = "a new run", body = Yes<Started>), (status = 409)))]
pub(super) async fn retry(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    let body = asked.json().map(|RetryBody { task, max_parallel }| (Some(task), max_parallel));
    carry_on(&state, id, &asked, body).await
}

async fn carry_on(
    state: &State,
    id: String,
    asked: &Asked,
    body: Result<(Option<String>, Option<u32>), Refusal>,
) -> Said {
    let caller = asked.caller.clone();
    let look = move |reader: &Reader| {
        let run = runs::find(reader, &caller, &id)?;
        let (task, max_parallel) = body?;
        let again = task.as_deref().map_or(Again::Rest, Again::Task);
        let fates = sequel(reader, &run, again, &caller)?.fates;
        Ok(Wish {
            definition: run.definition,
            params: run.given_params(),
            max_parallel: max_parallel.or(run.max_parallel),
            fates: Some(fates),
            resumed_from: Some(run.key),
        })
    };
    let wish = state.reads.read(look).await?;
    start(state, asked, wish).await
}

async fn start(state: &State, asked: &Asked, wish: Wish) -> Said {
    let Wish { definition, params, max_parallel, fates, resumed_from } = wish;
    let request = StartRun {
        key: asked.key()?,
        run_id: state.node.new_run_id(),
        definition,
        params,
        max_parallel,
        attached: false,
        at_node: true,
        traceparent: asked.traceparent.clone(),
        fates,
        resumed_from,
        by_confirmation: false,
        by: asked.caller.identity.clone(),
        by_proven: asked.is_proven,
        now: state.node.now(),
    };
    let Once { answer, replayed } = state.node.start(request).await?;
    Ok(mark_replayed(answer.map_or_else(said_no, |run| say_started(&run)), replayed))
}

/// Told from what was committed alone: with a key, it must be the same whenever it is told again.
fn say_started(run: &RunRef) -> Response {
    let RunRef { run_id, dag_id, scope, number, status, .. } = run;
    let label = format!("{dag_id}#{number}");
    let told = Started {
        run_id: *run_id,
        message: format!("{label} has started"),
        run: label,
        dag_id: dag_id.clone(),
        scope: scope.clone(),
        number: *number,
        status: *status,
    };
    yes(StatusCode::CREATED, told)
}
