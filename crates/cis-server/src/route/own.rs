//! Runs that belong to a process in the foreground: the answer that starts such a run is a stream, the run ends with it, and
//! nothing of it has to be read. And the stream that tells the owner's commands when to look again.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use cis_api::Call;
use cis_api::calls::{FollowChanges, ResumeRun, RetryTask, RunDefinition, StartRun};
use cis_api::event::Change;
use cis_api::run::{OwnerOptions, RunStarted};
use cis_engine::app::{Answer, App};
use cis_engine::coordinator::Owner;
use cis_engine::coordinator::handle::next_look;
use cis_store::port::Once;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::request::ApiRequest;
use super::told;
use crate::State;
use crate::respond::{HandlerResult, success_text};

/// Followers are told of changes at most this often.
const TICK: Duration = Duration::from_millis(20);

/// A call whose answer may be the ownership of a run.
pub(super) trait Owning: Call<Response = RunStarted> {
    /// Does the run end with the answer?
    fn is_attached(body: &Self::Body) -> bool;
}

fn attached(owner: Option<&OwnerOptions>) -> bool {
    owner.is_some_and(|owner| owner.attached)
}

impl Owning for StartRun {
    fn is_attached(body: &Self::Body) -> bool {
        attached(body.owner.as_ref())
    }
}

impl Owning for ResumeRun {
    fn is_attached(body: &Self::Body) -> bool {
        attached(body.owner.as_ref())
    }
}

impl Owning for RetryTask {
    fn is_attached(body: &Self::Body) -> bool {
        attached(body.owner.as_ref())
    }
}

impl Owning for RunDefinition {
    fn is_attached(body: &Self::Body) -> bool {
        attached(body.start.owner.as_ref())
    }
}

impl Owning for cis_api::calls::AttachRun {
    fn is_attached(_: &Self::Body) -> bool {
        true
    }
}

/// Starts a run, or takes one over; if it is attached, answers a stream that it ends with.
pub(super) async fn start<C: Owning>(request: ApiRequest<C>) -> HandlerResult
where
    App: Answer<C>,
{
    static OWNERS: AtomicU64 = AtomicU64::new(1);
    let ApiRequest { state, mut sender, request, .. } = request;
    let is_attached = sender.connection.is_some() && C::is_attached(&request.body);
    // Of its own for each stream: a connection may carry one after another.
    let connection = is_attached.then(|| Owner(OWNERS.fetch_add(1, Ordering::Relaxed)));
    sender.connection = connection.or(sender.connection);
    // From here on: however this ends, the connection's end is told.
    let ownership =
        connection.map(|connection| Ownership { state: state.clone(), connection: Some(connection) });
    let once = state.app.call(&sender, request).await?;
    let Once { answer: Ok(started), .. } = &once else { return Ok(told::<C>(once)) };
    let Some(ownership) = ownership else { return Ok(told::<C>(once)) };
    let first = format!("{}\n", success_text(started));
    let (to, lines) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    tokio::spawn(async move {
        let leaving = ownership.state.leaving.clone();
        if to.send(Ok(first.into())).await.is_err() {
            return;
        }
        tokio::select! {
            () = to.closed() => {}
            // Not the owner goes but this coordinator: the run is attached to the next one.
            () = crate::gone(leaving) => ownership.release(),
        }
    });
    Ok(lines_response(StatusCode::from_u16(C::SUCCESS[0].0).unwrap_or(StatusCode::OK), lines))
}

/// Tells the loop when the connection that owns runs is gone.
struct Ownership {
    state: State,
    connection: Option<Owner>,
}

impl Ownership {
    /// Lets go without ending what is owned.
    fn release(mut self) {
        self.connection = None;
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        let Some(connection) = self.connection else { return };
        let app = self.state.app.clone();
        // Without a runtime the loop is gone as well.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { app.connection_closed(connection).await });
        }
    }
}

/// A line whenever something was committed; the first at once.
pub(super) async fn changes(request: ApiRequest<FollowChanges>) -> HandlerResult {
    let (to, lines) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    let mut changes = request.state.app.changes();
    tokio::spawn(async move {
        loop {
            let seen = *changes.borrow();
            let line = format!("{}\n", json!(Change { commits: seen.commits }));
            if to.send(Ok(line.into())).await.is_err() {
                return;
            }
            tokio::select! {
                more = next_look(&mut changes, seen, TICK) => if !more { return },
                () = to.closed() => return,
            }
        }
    });
    Ok(lines_response(StatusCode::OK, lines))
}

fn lines_response(status: StatusCode, lines: mpsc::Receiver<Result<Bytes, Infallible>>) -> Response {
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(lines)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}
