//! What a DAG or a run waits for.

use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use cis_core::id::{DagId, RunId, Scope};
use cis_engine::why::{self, Explained, Terms};
use cis_store::sqlite::Reader;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Args, dags, runs};
use crate::State;
use crate::cursor::LIMIT_MAX;
use crate::document::{DAGS, RUNS};
use crate::door::By;
use crate::say::{Said, Yes, yes};

/// Tasks told, unless asked for fewer or more.
const LIMIT: u32 = 100;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    /// Which DAG is meant, where a name exists in several.
    scope: Option<Scope>,
    /// At most so many tasks; over 1,000 counts as 1,000.
    limit: Option<u32>,
}

impl Query {
    fn terms(&self, state: &State) -> Terms {
        let limit = self.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX) as usize;
        Terms { limit, slots: Some(state.node.options().slots), now: state.node.now() }
    }
}

/// What holds a run.
#[utoipa::path(get, path = "/api/v1/runs/{run}/why", tag = RUNS, params(("run" = RunId, Path), Query),
    responses((status = 200, description = "each unfinished task, and what holds it", body = Yes<Explained>)))]
pub(super) async fn run(
    Has(state): Has<State>,
    By(caller): By,
    Path(id): Path<String>,
    Args(query): Args<Query>,
) -> Said {
    let terms = query.terms(&state);
    let look = move |reader: &Reader| why::of_run(reader, &runs::find(reader, &caller, &id)?, terms);
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

/// What holds a DAG: its latest run, or that nobody has confirmed it.
#[utoipa::path(get, path = "/api/v1/dag/{id}/why", tag = DAGS,
    params(("id" = DagId, Path, description = "what people call the DAG"), Query),
    responses((status = 200, description = "each unfinished task, and what holds it", body = Yes<Explained>),
              (status = 409)))]
pub(super) async fn dag(
    Has(state): Has<State>,
    By(caller): By,
    Path(id): Path<String>,
    Args(query): Args<Query>,
) -> Said {
    let terms = query.terms(&state);
    let look = move |reader: &Reader| {
        why::of_dag(reader, &dags::find(reader, &caller, &id, query.scope.as_ref())?, terms)
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}
