//! What each call does.
//!
//! | module | calls |
//! |---|---|
//! | `control` | pause, drain, ready, metrics |
//! | `dags` | publish, confirm, reject, show, status |
//! | `approvals` | what a person says to a task that waits |
//! | `reviews` | what a person says by review id, of a DAG or a task |
//! | `runs` | one run, cancel |
//! | `again` | running again, resume, retry |
//! | `lists` | DAGs, pending, runs, tasks |
//! | `logs` | what tasks printed |
//! | `why` | what holds a run |
//! | `tasks` | what others work on |
//! | `events` | following along |
//! | `tokens` | who may call |
//! | `docs` | what there is to call: the OpenAPI document, and a page that shows it |

mod again;
mod approvals;
mod control;
mod dags;
mod docs;
mod events;
mod lists;
mod logs;
mod reviews;
mod runs;
mod tasks;
mod tokens;
mod why;

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request, State as Has};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing;
use cis_core::access::Caller;
use cis_core::dag::parse::duration;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Scope;
use cis_engine::token::sha256_hex;
use cis_store::port::IdempotencyKey;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::{IntoParams, OpenApi, openapi};

use crate::State;
use crate::answer::{Nodes, Up};
use crate::body;
use crate::document::NODE;
use crate::door::{Holder, no_token};
use crate::limit::BodyRoom;
use crate::observe::{self, Given};
use crate::say::{No, Yes, expected, yes};

/// A request's body at most; a definition's, where one is expected.
const BODY_BYTES_MAX: usize = 8 << 20;
const DEFINITION_BYTES_MAX: usize = 32 << 20;

/// The longest name a caller may give a request.
const KEY_MAX: usize = 255;

/// The longest anybody waits in one request.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Every call, once: what serves it, and what the document says of it. The latter is made only when somebody asks: few
/// do, and it takes more memory than all the rest.
macro_rules! calls {
    ($($method:ident $path:literal $($handler:ident)::+;)*) => {
        fn served() -> Router<State> {
            Router::new()$(.route($path, routing::$method($($handler)::+)))*
        }

        pub(crate) fn said() -> openapi::OpenApi {
            #[derive(OpenApi)]
            #[openapi(paths($($($handler)::+),*))]
            struct Said;
            Said::openapi()
        }
    };
}

calls! {
    post "/api/v1/dag/publish" dags::publish;
    get "/api/v1/dag/publish" dags::show_publish;
    post "/api/v1/dag/{id}/confirm" dags::confirm;
    post "/api/v1/dag/{id}/reject" dags::reject;
    get "/api/v1/dag/{id}/status" dags::status;
    get "/api/v1/dag/{id}/runs" lists::runs;
    post "/api/v1/dag/{id}/runs" again::run;
    get "/api/v1/dag/{id}/why" why::dag;
    get "/api/v1/dag/{id}" dags::show;
    get "/api/v1/dag" lists::dags;
    get "/api/v1/pending" lists::pending;
    get "/api/v1/pending/{review}" reviews::show;
    post "/api/v1/pending/{review}/approve" reviews::approve;
    post "/api/v1/pending/{review}/reject" reviews::reject;
    get "/api/v1/runs" lists::all_runs;
    get "/api/v1/runs/{run}" runs::show;
    get "/api/v1/runs/{run}/tasks" lists::tasks;
    get "/api/v1/runs/{run}/logs" logs::logs;
    get "/api/v1/runs/{run}/why" why::run;
    post "/api/v1/runs/{run}/cancel" runs::cancel;
    post "/api/v1/tasks" tasks::submit;
    post "/api/v1/tasks/claim" tasks::claim;
    post "/api/v1/tasks/{execution}/heartbeat" tasks::heartbeat;
    post "/api/v1/tasks/{execution}/progress" tasks::progress;
    post "/api/v1/tasks/{execution}/log" tasks::log;
    post "/api/v1/tasks/{execution}/complete" tasks::complete;
    post "/api/v1/tasks/{execution}/fail" tasks::fail;
    post "/api/v1/tasks/{execution}/release" tasks::release;
    post "/api/v1/runs/{run}/tasks/{task}/approve" approvals::approve;
    post "/api/v1/runs/{run}/tasks/{task}/reject" approvals::reject;
    post "/api/v1/runs/{run}/resume" again::resume;
    post "/api/v1/runs/{run}/retry" again::retry;
    post "/api/v1/runs/{run}/pause" control::pause;
    post "/api/v1/runs/{run}/unpause" control::unpause;
    post "/api/v1/scopes/{scope}/pause" control::pause_scope;
    post "/api/v1/scopes/{scope}/unpause" control::unpause_scope;
    post "/api/v1/node/drain" control::drain;
    post "/api/v1/node/undrain" control::undrain;
    get "/api/v1/events" events::follow;
    get "/api/v1/tokens" tokens::list;
    post "/api/v1/tokens" tokens::create;
    delete "/api/v1/tokens/{id}" tokens::revoke;
    get "/api/v1/nodes" nodes;
    get "/api/v1/whoami" tokens::whoami;
    get "/ready" control::ready;
    get "/metrics" control::metrics;
    get "/docs/errors/{code}" crate::page::show;
    get "/health" health;
    get "/api/v1/openapi.json" docs::openapi;
    get "/docs" docs::page;
    get "/docs/{file}" docs::file;
}

pub(crate) fn router(state: State) -> Router {
    served()
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(from_fn_with_state(state.clone(), observe::observe))
        .with_state(state)
}

/// Is it up?
#[utoipa::path(method(get, head), path = "/health", tag = NODE,
    responses((status = 200, description = "it is", body = Yes<Up>)))]
async fn health() -> Response {
    yes(StatusCode::OK, Up { status: "up".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() })
}

/// The nodes this one knows, which is itself.
#[utoipa::path(get, path = "/api/v1/nodes", tag = NODE,
    responses((status = 200, description = "this node", body = Yes<Nodes>)))]
async fn nodes(Has(state): Has<State>) -> Response {
    yes(StatusCode::OK, Nodes { nodes: vec![state.options.node.clone()] })
}

/// Everything a call that changes something was told.
#[derive(Debug)]
struct Asked {
    caller: Caller,
    /// False: the caller only said who it is.
    is_proven: bool,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    /// What the caller traces the request by.
    traceparent: Option<String>,
    /// What the body takes up, for as long as it is there.
    _room: BodyRoom,
}

impl IntoParams for Asked {
    /// What every call that is done once takes; for others, leave it out of their `params`.
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let text =
            ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(KEY_MAX));
        let key = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .description(Some("the caller's own name for this request: with it, it is done once"))
            .schema(Some(text));
        vec![key.build()]
    }
}

impl FromRequest<State> for Asked {
    type Rejection = Response;

    async fn from_request(request: Request, state: &State) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let holder = parts.extensions.get::<Holder>().cloned();
        let Some(holder) = holder else { return Err(expected(no_token())) };
        let is_proven = holder.is_proven();
        let Holder { token, share, .. } = holder;
        let is_definition = parts.uri.path().ends_with("/publish");
        let bytes_max = if is_definition { DEFINITION_BYTES_MAX } else { BODY_BYTES_MAX };
        let mut room = state.limits.body(share);
        let body = body::read(body, bytes_max, &mut room).await.map_err(expected)?;
        let traceparent = parts.extensions.get::<Given>().map(|Given(given)| given.clone());
        let (method, uri, headers) = (parts.method, parts.uri, parts.headers);
        let caller = token.caller.clone();
        Ok(Self { caller, is_proven, method, uri, headers, body, traceparent, _room: room })
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

    /// The body as JSON; none, or `null`, counts as `{}`.
    fn json<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        self.check_kind()?;
        let body = match self.body.trim_ascii() {
            b"" | b"null" => b"{}",
            // What is made of a list would be taken for the fields of an object, by their order.
            body if !body.starts_with(b"{") => {
                return Err(Refusal::new(ErrorCode::ValidationFailed, "the body is not a JSON object"));
            }
            body => body,
        };
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
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct InScope {
    /// Which one is meant, where a name exists in several.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::HeaderValue;
    use cis_core::access::Preset;
    use serde_json::{Map, Value};
    use tokio::time::Instant;

    use super::*;
    use crate::limit::{Limits, Share};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        #[serde(default, rename = "params")]
        _params: Map<String, Value>,
        #[serde(rename = "max_parallel")]
        _max_parallel: Option<u32>,
    }

    fn asked(headers: HeaderMap, body: &[u8], limits: &Arc<Limits>, share: &Arc<Share>) -> Asked {
        Asked {
            caller: Caller::preset("ann", Preset::Owner, None),
            is_proven: true,
            method: Method::POST,
            uri: Uri::from_static("/api/v1/tasks"),
            headers,
            body: Bytes::copy_from_slice(body),
            traceparent: None,
            _room: limits.body(share.clone()),
        }
    }

    /// A name for a request is kept as it is or refused; the same request has the same hash, another has another.
    #[test]
    fn fuzz_requests() {
        let limits = Arc::new(Limits::new(10));
        let share = limits.admit("ann", Instant::now()).unwrap();
        cis_fuzz::fuzz(&cis_fuzz::Corpus::of("request"), |bytes| {
            let (name, body) = bytes.split_at(bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len()));
            let Ok(value) = HeaderValue::from_bytes(name) else { return false };
            let headers = HeaderMap::from_iter([("idempotency-key".parse().unwrap(), value)]);
            let ask = |body: &[u8]| asked(headers.clone(), body, &limits, &share);
            let (one, other) = (ask(body), ask(&[body, b" "].concat()));
            if let (Ok(Some(key)), Ok(Some(other))) = (one.key(), other.key()) {
                assert!(key.key.as_bytes() == name && (1..=KEY_MAX).contains(&name.len()));
                assert_eq!(one.key().unwrap().unwrap().request_hash, key.request_hash);
                assert_ne!(other.request_hash, key.request_hash);
            }
            // Space after a body changes nothing of what it says.
            let read = one.json::<Wanted>();
            assert_eq!(other.json::<Wanted>().is_ok(), read.is_ok());
            read.is_ok()
        });
    }
}
