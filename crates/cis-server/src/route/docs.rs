//! What there is to call: the OpenAPI document, and a page that shows it. The page is ours and whole: it loads nothing
//! from anywhere else, and says so to the browser.

use std::sync::LazyLock;

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde_json::json;

use crate::document::{self, NODE};
use crate::say::{Said, not_found};

const HTML: &str = include_str!("../docs/page.html");
const SCRIPT: &str = include_str!("../docs/page.js");
const STYLE: &str = include_str!("../docs/page.css");

/// Its own script and style, calls to this node, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// The document as it is sent; made for the first who asks, since most nodes are never asked, and it takes megabytes.
static TEXT: LazyLock<Bytes> = LazyLock::new(|| json!(document::complete(super::said())).to_string().into());

/// This document.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = NODE,
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json")))]
pub(super) async fn openapi() -> Response {
    sent("application/json", TEXT.clone().into())
}

/// A page that shows this document.
#[utoipa::path(get, path = "/docs", tag = NODE,
    responses((status = 200, description = "a page", body = String, content_type = "text/html")))]
pub(super) async fn page() -> Response {
    sent("text/html; charset=utf-8", HTML.into())
}

/// What the page is made of.
#[utoipa::path(get, path = "/docs/{file}", tag = NODE,
    params(("file" = String, Path, pattern = "^page\\.(js|css)$")),
    responses((status = 200, description = "the file", content((String = "text/javascript"), (String = "text/css")))))]
pub(super) async fn file(Path(name): Path<String>) -> Said {
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
