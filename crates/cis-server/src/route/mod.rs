//! What each call does.
//!
//! | module | calls |
//! |---|---|
//! | `control` | pause, drain, ready, metrics |
//! | `dags` | publish, confirm, reject, show, status |
//! | `approvals` | what a person says to a task that waits |
//! | `runs` | one run, cancel |
//! | `again` | running again, resume, retry |
//! | `lists` | DAGs, pending, runs, tasks |
//! | `logs` | what tasks printed |
//! | `why` | what holds a run |
//! | `tasks` | what others work on |
//! | `events` | following along |
//! | `tokens` | who may call |

mod again;
mod approvals;
mod control;
mod dags;
mod events;
mod lists;
mod logs;
mod runs;
mod tasks;
mod tokens;
mod why;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request, State as Has};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{delete, get, post};
use cis_core::access::Caller;
use cis_core::dag::parse::duration;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Scope;
use cis_engine::token::sha256_hex;
use cis_store::port::IdempotencyKey;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::State;
use crate::body;
use crate::limit::{BodyRoom, Share};
use crate::say::{No, expected, yes};
use crate::trace::Trace;

/// A request's body at most; a definition's, where one is expected.
const BODY_BYTES_MAX: usize = 8 << 20;
const DEFINITION_BYTES_MAX: usize = 32 << 20;

/// The longest name a caller may give a request.
const KEY_MAX: usize = 255;

/// The longest anybody waits in one request.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub(crate) fn router(state: State) -> Router {
    Router::new()
        .route("/api/v1/dag/publish", post(dags::publish))
        .route("/api/v1/dag/{id}/confirm", post(dags::confirm))
        .route("/api/v1/dag/{id}/reject", post(dags::reject))
        .route("/api/v1/dag/{id}/status", get(dags::status))
        .route("/api/v1/dag/{id}/runs", get(lists::runs).post(again::run))
        .route("/api/v1/dag/{id}/why", get(why::dag))
        .route("/api/v1/dag/{id}", get(dags::show))
        .route("/api/v1/dag", get(lists::dags))
        .route("/api/v1/pending", get(lists::pending))
        .route("/api/v1/runs", get(lists::all_runs))
        .route("/api/v1/runs/{run}", get(runs::show))
        .route("/api/v1/runs/{run}/tasks", get(lists::tasks))
        .route("/api/v1/runs/{run}/logs", get(logs::logs))
        .route("/api/v1/runs/{run}/why", get(why::run))
        .route("/api/v1/runs/{run}/cancel", post(runs::cancel))
        .route("/api/v1/tasks", post(tasks::submit))
        .route("/api/v1/tasks/claim", post(tasks::claim))
        .route("/api/v1/tasks/{execution}/heartbeat", post(tasks::heartbeat))
        .route("/api/v1/tasks/{execution}/progress", post(tasks::progress))
        .route("/api/v1/tasks/{execution}/log", post(tasks::log))
        .route("/api/v1/tasks/{execution}/complete", post(tasks::complete))
        .route("/api/v1/tasks/{execution}/fail", post(tasks::fail))
        .route("/api/v1/tasks/{execution}/release", post(tasks::release))
        .route("/api/v1/runs/{run}/tasks/{task}/approve", post(approvals::approve))
        .route("/api/v1/runs/{run}/tasks/{task}/reject", post(approvals::reject))
        .route("/api/v1/runs/{run}/resume", post(again::resume))
        .route("/api/v1/runs/{run}/retry", post(again::retry))
        .route("/api/v1/runs/{run}/pause", post(control::pause))
        .route("/api/v1/runs/{run}/unpause", post(control::unpause))
        .route("/api/v1/scopes/{scope}/pause", post(control::pause_scope))
        .route("/api/v1/scopes/{scope}/unpause", post(control::unpause_scope))
        .route("/api/v1/node/drain", post(control::drain))
        .route("/api/v1/node/undrain", post(control::undrain))
        .route("/api/v1/events", get(events::follow))
        .route("/api/v1/tokens", get(tokens::list).post(tokens::create))
        .route("/api/v1/tokens/{id}", delete(tokens::revoke))
        .route("/api/v1/nodes", get(nodes))
        .route("/api/v1/whoami", get(tokens::whoami))
        .route("/docs/errors/{code}", get(crate::page::show))
        .route("/health", get(health))
        .route("/ready", get(control::ready))
        .route("/metrics", get(control::metrics))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(from_fn_with_state(state.clone(), crate::door::guard))
        .fallback(async || No::from(Refusal::new(ErrorCode::NotFound, "no such call")))
        .layer(from_fn_with_state(state.clone(), crate::observe::observe))
        .with_state(state)
}

async fn health() -> Response {
    yes(StatusCode::OK, json!({"status": "up", "version": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/v1/nodes`: the nodes this one knows, which is itself.
async fn nodes(Has(state): Has<State>) -> Response {
    yes(StatusCode::OK, json!({"nodes": [state.options.node]}))
}

/// Everything a call that changes something was told.
#[derive(Debug)]
struct Asked {
    caller: Caller,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    /// What the caller traces the request by.
    traceparent: Option<String>,
    /// What the body takes up, for as long as it is there.
    _room: BodyRoom,
}

impl FromRequest<State> for Asked {
    type Rejection = Response;

    async fn from_request(request: Request, state: &State) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let caller = parts.extensions.get::<Caller>().cloned();
        let (Some(caller), Some(share)) = (caller, parts.extensions.get::<Arc<Share>>()) else {
            return Err(expected(Refusal::new(ErrorCode::Unauthorized, "this takes a token")));
        };
        let is_definition = parts.uri.path().ends_with("/publish");
        let bytes_max = if is_definition { DEFINITION_BYTES_MAX } else { BODY_BYTES_MAX };
        let mut room = state.limits.body(share.clone());
        let body = body::read(body, bytes_max, &mut room).await.map_err(expected)?;
        let traceparent = parts.extensions.get::<Trace>().and_then(|trace| trace.given.clone());
        let (method, uri, headers) = (parts.method, parts.uri, parts.headers);
        Ok(Self { caller, method, uri, headers, body, traceparent, _room: room })
    }
}

impl Asked {
    /// The caller's name for this request, if it gave one.
    fn key(&self) -> Result<Option<IdempotencyKey>, Refusal> {
        let given = ["idempotency-key", "x-idempotency-key"].iter().find_map(|name| self.headers.get(*name));
        let Some(given) = given else { return Ok(None) };
        let key = given.to_str().ok().filter(|key| (1..=KEY_MAX).contains(&key.len()));
        let Some(key) = key else {
            let why = format!("an `Idempotency-Key` is 1 to {KEY_MAX} visible characters");
            return Err(Refusal::new(ErrorCode::ValidationFailed, why));
        };
        // What a name means depends on what the caller may see.
        let head = format!("{} {} {:?}", self.method, self.uri, self.caller.scopes);
        let request = [head.as_bytes(), &self.body].join(&0);
        Ok(Some(IdempotencyKey {
            caller: self.caller.identity.clone(),
            key: key.to_owned(),
            request_hash: sha256_hex(&request),
        }))
    }

    /// The body as JSON; an empty one counts as `{}`.
    fn json<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        self.check_kind()?;
        let body: &[u8] = if self.body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { &self.body };
        serde_json::from_slice(body).map_err(|e| {
            Refusal::new(ErrorCode::ValidationFailed, format!("the body is not what this call takes: {e}"))
        })
    }

    /// Is it a body that may be read? What comes from a browser must say that it is JSON.
    fn check_kind(&self) -> Result<(), Refusal> {
        let from_browser =
            self.headers.contains_key(header::ORIGIN) || self.headers.contains_key(header::COOKIE);
        let kind = self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if from_browser && !kind.is_some_and(|kind| kind.starts_with("application/json")) {
            return Err(Refusal::new(ErrorCode::ValidationFailed, "send `Content-Type: application/json`"));
        }
        Ok(())
    }
}

/// Says that an answer had been given before.
fn mark_replayed(mut response: Response, replayed: bool) -> Response {
    if replayed {
        response.headers_mut().insert("idempotent-replayed", header::HeaderValue::from_static("true"));
    }
    response
}

/// What a query says; what it says wrong is told like everything else.
struct Args<T>(T);

impl<T: DeserializeOwned> FromRequestParts<State> for Args<T> {
    type Rejection = No;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, No> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query.map(|Query(args)| Self(args)).map_err(|e| {
            Refusal::new(ErrorCode::ValidationFailed, format!("the query does not fit: {}", e.body_text()))
                .into()
        })
    }
}

/// A scope as a query names it.
#[derive(Debug, Deserialize)]
struct InScope {
    scope: Option<Scope>,
}

/// How long a caller wants to wait, at most [`WAIT_MAX`].
fn wait(text: Option<&str>) -> Result<Duration, Refusal> {
    let Some(text) = text else { return Ok(Duration::ZERO) };
    let wait = duration::from_text(text).map_err(|why| {
        Refusal::new(ErrorCode::ValidationFailed, format!("`wait`: {why}")).hint("say `30s` or `500ms`")
    })?;
    Ok(Duration::from_millis(wait.0).min(WAIT_MAX))
}
