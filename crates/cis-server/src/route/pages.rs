//! Pages beside the calls: metrics, health, the OpenAPI document, and a page that shows it. That page is whole: it loads
//! nothing from anywhere else, and says so to the browser.

use std::sync::LazyLock;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State as Has};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use cis_api::calls::ShowReady;
use cis_api::error::Success;
use cis_api::node::{ProofQuery, Up};
use cis_core::error::{ErrorCode, Refusal};
use cis_engine::app::check_whole_node;
use serde_json::json;
use tokio::time::Instant;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use super::request::ApiRequest;
use super::told;
use crate::State;
use crate::auth::Session;
use crate::document;
use crate::listen::LocalAddress;
use crate::meter::Seen;
use crate::respond::{HandlerResult, expected, not_found, success};

const HTML: &str = include_str!("../docs/page.html");
const SCRIPT: &str = include_str!("../docs/page.js");
const STYLE: &str = include_str!("../docs/page.css");

/// Its own script and style, calls to this node, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// The document as it is sent; made for the first who asks, since most nodes are never asked, and it takes megabytes.
static TEXT: LazyLock<Bytes> = LazyLock::new(|| json!(document::complete()).to_string().into());

/// What the pages say of themselves.
pub(crate) fn described() -> OpenApi {
    #[derive(utoipa::OpenApi)]
    #[openapi(paths(metrics, crate::page::show, health, openapi, page, file))]
    struct Described;
    Described::openapi()
}

/// Is it up?
#[utoipa::path(method(get, head), path = "/health", tag = "Node",
    responses((status = 200, description = "it is", body = Success<Up>)))]
pub(super) async fn health() -> Response {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    success(StatusCode::OK, Up { status: "up".to_owned(), version })
}

/// Would work that comes in be done? That it would not is the node's usual business.
pub(super) async fn ready(request: ApiRequest<ShowReady>) -> Response {
    let ApiRequest { state, sender, request, .. } = request;
    if *state.leaving.borrow() {
        return expected(Refusal::new(ErrorCode::Unavailable, "the node is not ready"));
    }
    state.app.call(&sender, request).await.map_or_else(expected, told::<ShowReady>)
}

/// Proves to a caller without a token which node this is.
pub(super) async fn prove(
    Has(state): Has<State>,
    local: Option<Extension<LocalAddress>>,
    uri: Uri,
) -> HandlerResult {
    let asked = Query::<ProofQuery>::try_from_uri(&uri).map_err(|e| {
        Refusal::new(ErrorCode::ValidationFailed, format!("the query does not fit: {}", e.body_text()))
    })?;
    let Some(prover) = &state.app.settings().prover else {
        return Err(Refusal::new(ErrorCode::WrongNode, "this process coordinates, and is no node").into());
    };
    Ok(success(StatusCode::OK, prover.prove(&asked, local.map(|Extension(LocalAddress(local))| local))?))
}

/// The lane of those who read the metrics of a node without a token, where it is set to let them.
const OPEN_READER: &str = "metrics";

/// How it is doing, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "Node",
    responses((status = 200, description = "numbers", body = String, content_type = "text/plain")))]
pub(super) async fn metrics(Has(state): Has<State>, session: Option<Extension<Session>>) -> HandlerResult {
    if let Some(Extension(session)) = &session {
        check_whole_node(&session.token.caller)?;
    }
    // Counting takes long where much is ready: its caller waits for its own turn, not the node for its callers.
    let identity = session.as_ref().map_or(OPEN_READER, |Extension(session)| &session.token.caller.identity);
    let look = |reader: &cis_store::Reader| Ok((reader.census()?, crate::rss_bytes()));
    let (census, rss_bytes) = state.app.reads().read_for(identity, look).await?;
    let draining = state.app.coordinator_info().await.is_ok_and(|info| info.draining);
    let (written, in_use) = (state.app.written()?, state.limits.in_use());
    let seen = Seen { census, written, in_use, rss_bytes, draining };
    let mut response = Response::new(Body::from(state.meter.text(&seen, Instant::now())));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// This document.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "Node",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json")))]
pub(super) async fn openapi() -> Response {
    sent("application/json", TEXT.clone().into())
}

/// A page that shows this document.
#[utoipa::path(get, path = "/docs", tag = "Node",
    responses((status = 200, description = "a page", body = String, content_type = "text/html")))]
pub(super) async fn page() -> Response {
    sent("text/html; charset=utf-8", HTML.into())
}

/// What the page is made of.
#[utoipa::path(get, path = "/docs/{file}", tag = "Node",
    params(("file" = String, Path, pattern = "^page\\.(js|css)$")),
    responses((status = 200, description = "the file", content((String = "text/javascript"), (String = "text/css")))))]
pub(super) async fn file(Path(name): Path<String>) -> HandlerResult {
    match name.as_str() {
        "page.js" => Ok(sent("text/javascript; charset=utf-8", SCRIPT.into())),
        "page.css" => Ok(sent("text/css; charset=utf-8", STYLE.into())),
        _ => Err(not_found("file", &name).into()),
    }
}

fn sent(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Another version of the node has another page.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
