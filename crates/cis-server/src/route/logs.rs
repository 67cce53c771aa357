//! What tasks printed: a line of JSON each, also while they print.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State as Has};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use cis_core::id::RunId;
use cis_engine::growth::Ear;
use cis_engine::logs::{Line, Lines, Next, Wanted, stream};
use cis_store::sqlite::Reader;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::{Args, runs};
use crate::State;
use crate::document::RUNS;
use crate::door::{By, Holder};
use crate::say::Said;

/// A followed log is looked at no more often than this, however much is printed.
const TICK: Duration = Duration::from_millis(50);

/// Batches of lines that may wait for a slow reader before it is read no further.
const AHEAD: usize = 2;

/// The most lines of a task that can be asked for by their end.
const TAIL_MAX: usize = 10_000;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    /// Only this one's.
    task: Option<String>,
    /// Only this one's, from 1; else every attempt's.
    attempt: Option<u32>,
    /// `stdout` or `stderr`; else both.
    #[param(pattern = "^std(out|err)$")]
    stream: Option<String>,
    /// Only so many lines of each task, from its end; over 10,000 counts as 10,000.
    tail: Option<usize>,
    /// Until the run is over.
    #[serde(default)]
    #[param(required = false)]
    follow: bool,
}

/// What the tasks of a run printed.
///
/// A line of JSON for each line: `task_id`, `attempt`, `stream`, `at` and `text`.
#[utoipa::path(get, path = "/api/v1/runs/{run}/logs", tag = RUNS, params(("run" = RunId, Path), Query),
    responses((status = 200, description = "lines", body = String, content_type = "application/x-ndjson")))]
pub(super) async fn logs(
    Has(state): Has<State>,
    By(caller): By,
    Extension(holder): Extension<Holder>,
    Path(id): Path<String>,
    Args(query): Args<Query>,
) -> Said {
    let data_dir = state.node.options().data_dir.clone();
    let follow = query.follow;
    let look = move |reader: &Reader| {
        let run = runs::find(reader, &caller, &id)?;
        let wanted = Wanted {
            tasks: query.task.into_iter().collect(),
            attempt: query.attempt,
            stream: query.stream.as_deref().map(stream).transpose()?,
            tail: query.tail.map(|tail| tail.min(TAIL_MAX)),
            follow,
        };
        // What a run that is over printed does not grow.
        let grows = (follow && !run.status.is_terminal()).then_some(run.key);
        Ok((grows, Lines::open(reader, data_dir, run, wanted)?))
    };
    let (grows, lines) = state.reads.read(look).await?;
    let ear = match grows {
        Some(run) => Some(state.node.ear(run).await?),
        None => None,
    };
    let (to, batches) = mpsc::channel(AHEAD);
    tokio::spawn(tell(state, holder, lines, ear, to));
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(batches)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

async fn tell(
    state: State,
    holder: Holder,
    mut lines: Lines,
    mut ear: Option<Ear>,
    to: mpsc::Sender<Result<Bytes, Infallible>>,
) {
    let mut changes = state.node.changes();
    loop {
        let seen = *changes.borrow_and_update();
        ear.iter_mut().for_each(Ear::forget);
        let look = move |reader: &Reader| Ok((lines.next(reader)?, lines));
        let Ok((next, read)) = state.reads.read(look).await else { return };
        lines = read;
        // Whoever may no longer call hears no more.
        if !matches!(holder.again(&state).await, Ok(Some(_))) {
            return;
        }
        let gone = crate::gone(state.leaving.clone());
        match (next, &mut ear) {
            (Next::Lines(batch), _) => {
                let sent =
                    tokio::select! { sent = to.send(Ok(text(&batch))) => sent.is_ok(), () = gone => false };
                if !sent {
                    return;
                }
            }
            (Next::Quiet, Some(ear)) => {
                let news = async {
                    tokio::time::sleep(TICK).await;
                    tokio::select! {
                        changed = changes.wait_for(|now| *now != seen) => changed.is_ok(),
                        () = ear.hear() => true,
                    }
                };
                tokio::select! {
                    goes_on = news => if !goes_on { return },
                    () = gone => return,
                    () = to.closed() => return,
                }
            }
            (Next::Quiet, None) | (Next::Over, _) => return,
        }
    }
}

/// A line of JSON for each.
fn text(lines: &[Line]) -> Bytes {
    lines.iter().map(|line| format!("{}\n", json!(line))).collect::<String>().into()
}
