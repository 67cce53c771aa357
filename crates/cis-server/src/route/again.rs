//! Running again what was confirmed: a DAG from the start, what a run did not complete, a task and what follows it.

use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use axum::response::Response;
use cis_core::error::Refusal;
use cis_core::id::RunKey;
use cis_engine::again::{Again, confirmed, sequel};
use cis_store::port::{Fate, Once, RunRef, StartRun};
use cis_store::sqlite::Reader;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Args, Asked, InScope, dags, mark_replayed, runs};
use crate::State;
use crate::say::{Said, said_no, yes};

/// What is run, and how.
struct Wish {
    definition: i64,
    params: Map<String, Value>,
    max_parallel: Option<u32>,
    fates: Option<Vec<Fate>>,
    resumed_from: Option<RunKey>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunBody {
    #[serde(default)]
    params: Map<String, Value>,
    max_parallel: Option<u32>,
    content_hash: Option<String>,
}

/// `POST /api/v1/dag/{id}/runs`.
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResumeBody {
    max_parallel: Option<u32>,
}

/// `POST /api/v1/runs/{run}/resume`: what it did not complete, in a new run.
pub(super) async fn resume(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    let body = asked.json().map(|ResumeBody { max_parallel }| (None, max_parallel));
    carry_on(&state, id, &asked, body).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryBody {
    task: String,
    max_parallel: Option<u32>,
}

/// `POST /api/v1/runs/{run}/retry`: a task and everything that depends on it, in a new run.
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
        let fates = sequel(reader, &run, again)?.fates;
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
        fates,
        resumed_from,
        by_confirmation: false,
        by: asked.caller.identity.clone(),
        now: state.node.now(),
    };
    let Once { answer, replayed } = state.node.start(request).await?;
    Ok(mark_replayed(answer.map_or_else(said_no, |run| say_started(&run)), replayed))
}

/// Told from what was committed alone: with a key, it must be the same whenever it is told again.
fn say_started(run: &RunRef) -> Response {
    let RunRef { run_id, dag_id, scope, number, status, .. } = run;
    let label = format!("{dag_id}#{number}");
    let message = format!("{label} has started");
    let told = json!({"run_id": run_id, "run": label, "dag_id": dag_id, "scope": scope, "number": number,
                      "status": status, "message": message});
    yes(StatusCode::CREATED, told)
}
