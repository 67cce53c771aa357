//! What a DAG or a run waits for.

use axum::Extension;
use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use cis_core::access::Caller;
use cis_core::id::Scope;
use cis_engine::why::{self, Terms};
use cis_store::sqlite::Reader;
use serde::Deserialize;
use serde_json::json;

use super::{Args, dags, runs};
use crate::State;
use crate::cursor::LIMIT_MAX;
use crate::say::{Said, yes};

/// Tasks told, unless asked for fewer or more.
const LIMIT: u32 = 100;

#[derive(Debug, Deserialize)]
pub(super) struct Query {
    scope: Option<Scope>,
    limit: Option<u32>,
}

impl Query {
    fn terms(&self, state: &State) -> Terms {
        let limit = self.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX) as usize;
        Terms { limit, slots: Some(state.node.options().slots), now: state.node.now() }
    }
}

/// `GET /api/v1/runs/{run}/why`.
pub(super) async fn run(
    Has(state): Has<State>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Args(query): Args<Query>,
) -> Said {
    let terms = query.terms(&state);
    let look = move |reader: &Reader| why::of_run(reader, &runs::find(reader, &caller, &id)?, terms);
    Ok(yes(StatusCode::OK, json!(state.reads.read(look).await?)))
}

/// `GET /api/v1/dag/{id}/why`.
pub(super) async fn dag(
    Has(state): Has<State>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Args(query): Args<Query>,
) -> Said {
    let terms = query.terms(&state);
    let look = move |reader: &Reader| {
        why::of_dag(reader, &dags::find(reader, &caller, &id, query.scope.as_ref())?, terms)
    };
    Ok(yes(StatusCode::OK, json!(state.reads.read(look).await?)))
}
