//! What is noted of every request, whatever becomes of it: its trace, its time, its status. Never a token, a body, or
//! anything else a caller sent beside the path.

use axum::extract::{MatchedPath, Request, State as Has};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use crate::State;
use crate::auth::{self, Way};
use crate::meter;
use crate::respond::FailureReason;
use crate::trace::{TRACEPARENT, Trace};

/// What the caller traces a request by, beside a request that has it.
#[derive(Debug, Clone)]
pub(crate) struct Given(pub(crate) String);

/// Follows a request through authentication and its handler.
pub(crate) async fn observe(Has(state): Has<State>, mut request: Request, next: Next) -> Response {
    let trace = Trace::of(request.headers(), &state.names);
    let path = request.extensions().get::<MatchedPath>().cloned();
    let way = Way::of(path.as_ref().map(MatchedPath::as_str), &request);
    if let Some(given) = &trace.given {
        request.extensions_mut().insert(Given(given.clone()));
    }
    let began = Instant::now();
    let said = auth::guard(&state, way, request, next, began).await;
    let mut response = said.unwrap_or_else(IntoResponse::into_response);
    let (took, status) = (began.elapsed(), response.status().as_u16());
    state.meter.count(way.route, status, (!way.waits).then_some(took));
    let (method, path) = meter::name(way.route);
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    match response.extensions().get::<FailureReason>() {
        Some(FailureReason(why)) => {
            let (trace_id, request_id) = (trace.trace_id(), trace.request_id());
            tracing::error!(method, path, status, took_ms, trace_id, request_id, why, "request failed");
        }
        None => tracing::debug!(
            method,
            path,
            status,
            took_ms,
            trace_id = trace.trace_id(),
            request_id = trace.request_id(),
            "request"
        ),
    }
    if let Some(header) = trace.header() {
        response.headers_mut().insert(TRACEPARENT, header);
    }
    response
}
