//! What answers each call. Most calls are read, handed to the app and told the same way; the rest wait, stream or are kept.
//!
//! | module | what lives there |
//! |---|---|
//! | `request` | reading a request into the parts of its call |
//! | `status` | where a DAG stands, kept until it changes, and waited for |
//! | `claim` | claims, which may wait |
//! | `own` | runs that end with the stream that started them; changes, for the owner |
//! | `events`, `logs` | following along |
//! | `pages` | metrics, health, the OpenAPI document and its page |

mod claim;
mod events;
mod logs;
mod own;
mod pages;
pub(crate) mod request;
mod status;

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, get, on};
use cis_api::call::Method;
use cis_api::calls::{
    AppendLog, ApproveReview, ApproveTask, AttachRun, CancelRun, ClaimTasks, CompleteTask, ConfirmDag,
    CreateToken, DagStatus, DrainNode, FailTask, FollowChanges, FollowEvents, HandOver, ListDagRuns,
    ListDags, ListNodes, ListPending, ListRuns, ListTasks, ListTokens, PauseRun, PauseScope, ProveNode,
    PruneRuns, PublishDag, RejectDag, RejectReview, RejectTask, ReleaseTask, RenewLease, ReportProgress,
    ResumeRun, RetryTask, RevokeToken, RunDefinition, RunLogs, ShowCaller, ShowCoordinator, ShowDag,
    ShowDagPublish, ShowReady, ShowReview, ShowRun, StartRun, SubmitTask, UndrainNode, UnpauseRun,
    UnpauseScope, WhyDag, WhyRun,
};
use cis_api::{Access, Call};
use cis_engine::app::{Answer, App, Read};
use cis_store::port::Once;

use crate::State;
use crate::answer;
use crate::limit::SMALL_ANSWER;
use crate::observe;
use crate::respond::{HandlerResult, json, refused, success, success_text};
use request::ApiRequest;

pub(crate) use pages::described as described_pages;

/// The longest a caller waits in one request.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A call that is served. A call of the table without this does not compile.
trait Serve: Call {
    fn handler() -> MethodRouter<State>;
}

fn method(method: Method) -> MethodFilter {
    match method {
        Method::Get | Method::Head => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Delete => MethodFilter::DELETE,
    }
}

/// Calls that are read, handed to the app and told.
macro_rules! plain {
    ($($call:ident)*) => {
        $(impl Serve for $call {
            fn handler() -> MethodRouter<State> {
                on(method(Self::METHOD), answer::<Self>)
            }
        })*
    };
}

plain! {
    PublishDag ConfirmDag RejectDag ApproveReview RejectReview CancelRun SubmitTask RenewLease ReportProgress AppendLog
    CompleteTask FailTask ReleaseTask ApproveTask RejectTask PauseRun UnpauseRun PauseScope UnpauseScope DrainNode
    UndrainNode CreateToken RevokeToken ListNodes ShowCaller ShowCoordinator HandOver PruneRuns
}

/// Calls that only read: they are answered on the thread that reads, since what they tell may be large.
macro_rules! reading {
    ($($call:ident)*) => {
        $(impl Serve for $call {
            fn handler() -> MethodRouter<State> {
                on(method(Self::METHOD), answer_read::<Self>)
            }
        })*
    };
}

reading! {
    ShowDagPublish ListDagRuns WhyDag ShowDag ListDags ListPending ShowReview ListRuns ShowRun ListTasks WhyRun ListTokens
}

/// Calls that are answered by code of their own.
macro_rules! special {
    ($($call:ident => $handler:expr;)*) => {
        $(impl Serve for $call {
            fn handler() -> MethodRouter<State> {
                on(method(Self::METHOD), $handler)
            }
        })*
    };
}

special! {
    DagStatus => status::status;
    ShowReady => pages::ready;
    ProveNode => pages::prove;
    ClaimTasks => claim::claim;
    RunLogs => logs::logs;
    FollowEvents => events::follow;
    FollowChanges => own::changes;
    StartRun => own::start::<StartRun>;
    ResumeRun => own::start::<ResumeRun>;
    RetryTask => own::start::<RetryTask>;
    RunDefinition => own::start::<RunDefinition>;
    AttachRun => own::start::<AttachRun>;
}

/// Everything that is served: over the network, or on the socket of the data directory as well what only its owner calls.
pub(crate) fn router(state: State, with_owner_calls: bool) -> Router {
    macro_rules! routes {
        ($($call:ident)*) => {
            [$((cis_api::calls::$call::PATH, cis_api::calls::$call::ACCESS,
                <cis_api::calls::$call as Serve>::handler as fn() -> MethodRouter<State>)),*]
        };
    }
    let calls = cis_api::each_call!(routes);
    let served = calls.into_iter().filter(|(_, access, _)| with_owner_calls || *access != Access::Owner);
    let router = served.fold(Router::new(), |router, (path, _, handler)| router.route(path, handler()));
    router
        .route("/metrics", get(pages::metrics))
        .route("/docs/errors/{code}", get(crate::page::show))
        .route("/health", get(pages::health))
        .route("/api/v1/openapi.json", get(pages::openapi))
        .route("/docs", get(pages::page))
        .route("/docs/{file}", get(pages::file))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(from_fn_with_state(state.clone(), observe::observe))
        .with_state(state)
}

/// Answers a call.
async fn answer<C: Call>(request: ApiRequest<C>) -> HandlerResult
where
    App: Answer<C>,
{
    let ApiRequest { state, session, sender, request, .. } = request;
    drop(session);
    Ok(told::<C>(state.app.call(&sender, request).await?))
}

/// Answers a call that only reads.
async fn answer_read<C: Read>(request: ApiRequest<C>) -> HandlerResult {
    let ApiRequest { state, session, sender, request, .. } = request;
    let limits = state.limits.clone();
    let make_room = move |bytes: usize| match bytes > SMALL_ANSWER {
        true => limits.answer(&session.share, bytes).map(Some),
        false => Ok(None),
    };
    let write = |answer: C::Response| (status_of::<C>(&answer), success_text(answer));
    let (room, (status, text)) = state.app.read_as(&sender, request, make_room, write).await?;
    Ok(match room {
        Some(room) => answer::counted(status, text, room),
        None => json(status, text.into()),
    })
}

fn status_of<C: Call>(answer: &C::Response) -> StatusCode {
    StatusCode::from_u16((C::STATUS)(answer)).unwrap_or(StatusCode::OK)
}

/// The response with an answer of the app.
fn told<C: Call>(once: Once<C::Response>) -> Response {
    let Once { answer, replayed } = once;
    let response = match answer {
        Ok(answer) => success(status_of::<C>(&answer), answer),
        Err(refusal) => refused(refusal),
    };
    mark_replayed(response, replayed)
}

/// Says that an answer had been given before.
fn mark_replayed(mut response: Response, replayed: bool) -> Response {
    if replayed {
        let yes = axum::http::HeaderValue::from_static("true");
        response.headers_mut().insert("idempotent-replayed", yes);
    }
    response
}
