//! Where a DAG stands: kept ready to be sent until it changes, and waited for.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use cis_api::calls::DagStatus;
use cis_api::dag::{DagPath, StatusQuery};
use cis_api::{Nothing, Request};
use cis_core::dag::parse::duration;
use cis_core::error::{ErrorCode, Refusal};
use cis_engine::app::{Look, Read as _, Sender};
use serde_json::{Value, json};

use super::WAIT_MAX;
use super::request::ApiRequest;
use crate::State;
use crate::kept::{Stand, View};
use crate::respond::{self, HandlerResult, RefusedResponse, success_text};

pub(super) async fn status(request: ApiRequest<DagStatus>) -> HandlerResult {
    let ApiRequest { state, session, sender, headers, request, .. } = request;
    let (DagPath { id }, query) = (request.path, request.query);
    let wait = wait(query.wait.as_deref())?;
    let view = View { dag_id: id, scope: query.scope, scopes: sender.caller.scopes.clone() };
    let told = match query.after {
        None => stand(&state, &sender, &view).await,
        Some(known) => tokio::select! {
            told = stand_after(&state, &sender, &view, known) => told,
            () = tokio::time::sleep(wait.max(Duration::from_millis(1))) => stand(&state, &sender, &view).await,
            () = crate::gone(state.leaving.clone()) => stand(&state, &sender, &view).await,
            refusal = session.no_longer_good(&state) => Err(refusal),
        },
    };
    let Stand { tag, body, .. } = told.map_err(|refusal: Refusal| {
        let missing = refusal.code == ErrorCode::NotFound;
        RefusedResponse(refusal, if missing { json!({"status": "not_found"}) } else { Value::Null })
    })?;
    let same = headers.get(header::IF_NONE_MATCH).is_some_and(|known| *known == tag);
    let mut response = match same {
        true => Response::new(Body::empty()),
        false => respond::json(StatusCode::OK, body.into()),
    };
    if same {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    response.headers_mut().insert(header::ETAG, tag);
    Ok(response)
}

/// How long a caller wants to wait, at most [`WAIT_MAX`].
fn wait(text: Option<&str>) -> Result<Duration, Refusal> {
    let Some(text) = text else { return Ok(Duration::ZERO) };
    let wait = duration::from_text(text).map_err(|why| {
        Refusal::new(ErrorCode::ValidationFailed, format!("`wait`: {why}")).hint("say `30s` or `500ms`")
    })?;
    Ok(Duration::from_millis(wait.0).min(WAIT_MAX))
}

/// Where a DAG stands once that is no longer what the caller knows.
async fn stand_after(state: &State, sender: &Sender, view: &View, known: i64) -> Result<Stand, Refusal> {
    loop {
        let stand = stand(state, sender, view).await?;
        if stand.version != known {
            return Ok(stand);
        }
        state.hub.changed(&view.dag_id, stand.beat).await;
    }
}

/// Where a DAG stands, as a caller sees it.
async fn stand(state: &State, sender: &Sender, view: &View) -> Result<Stand, Refusal> {
    if let Some(stand) = state.kept.stand(view) {
        return Ok(stand);
    }
    let (by, of, at) = (sender.caller.clone(), view.clone(), state.clone());
    let (slots, now) = (Some(state.app.options().slots), state.app.now());
    let stand = state.app.reads().read_for(&sender.caller.identity, move |reader| {
        // Another request may have looked while this one waited for its turn.
        if let Some(stand) = at.kept.stand(&of) {
            return Ok(stand);
        }
        let beat = at.kept.beat(&of);
        let query = StatusQuery { scope: of.scope.clone(), ..StatusQuery::default() };
        let request = Request::new(DagPath { id: of.dag_id.clone() }, query, Nothing {});
        let told = DagStatus::read(Look::new(reader, &by, slots, now), request)?;
        let version = told.version;
        let tag = HeaderValue::from_str(&format!("\"{version}\""));
        let tag = tag.map_err(|e| Refusal::new(ErrorCode::Internal, e.to_string()))?;
        let stand = Stand { beat, version, tag, body: success_text(told).into() };
        at.kept.keep_stand(of, stand.clone());
        Ok(stand)
    });
    stand.await
}
