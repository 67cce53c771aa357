//! What is noted of every request, whatever becomes of it: its trace, its time, its status. Never a token, a body, or
//! anything else a caller sent beside the path.

use axum::extract::{MatchedPath, Request, State as Has};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;

use crate::State;
use crate::door::may_wait;
use crate::meter::Route;
use crate::say::Why;
use crate::table::ROUTES;
use crate::trace::{TRACEPARENT, Trace};

/// Follows a request through.
pub(crate) async fn observe(Has(state): Has<State>, mut request: Request, next: Next) -> Response {
    let trace = Trace::of(request.headers(), &state.names);
    let path = request.extensions().get::<MatchedPath>().cloned();
    let path = path.as_ref().map(MatchedPath::as_str);
    let (route, waits) = (route(&request, path), may_wait(path, request.uri()));
    request.extensions_mut().insert(trace.clone());
    let began = Instant::now();
    let mut response = next.run(request).await;
    let (took, status) = (began.elapsed(), response.status().as_u16());
    state.meter.count(route, status, (!waits).then_some(took));
    let (method, path) = route;
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    match response.extensions().get::<Why>() {
        Some(Why(why)) => {
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

/// The route as the table names it: what is told of a request must not grow with what callers make up.
fn route(request: &Request, path: Option<&str>) -> Route {
    let known =
        ROUTES.iter().find(|(method, known, _)| *method == request.method().as_str() && Some(*known) == path);
    known.map_or(("other", "other"), |(method, path, _)| (method, path))
}
