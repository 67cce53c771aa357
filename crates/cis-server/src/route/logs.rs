//! What tasks printed: a line of JSON each, also while they print.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use cis_api::calls::RunLogs;
use cis_api::log::LogLine;
use cis_api::run::RunPath;
use cis_engine::app::Look;
use cis_engine::growth::Ear;
use cis_engine::logs::{Lines, Next, Wanted, stream};
use cis_store::Reader;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::request::ApiRequest;
use crate::State;
use crate::auth::Session;
use crate::respond::HandlerResult;

/// A followed log is looked at no more often than this, however much is printed.
const TICK: Duration = Duration::from_millis(50);

/// Batches of lines that may wait for a slow reader before it is read no further; each is a few dozen KiB.
const AHEAD: usize = 1;

/// The most lines of a task that can be asked for by their end.
const TAIL_MAX: usize = 10_000;

pub(super) async fn logs(request: ApiRequest<RunLogs>) -> HandlerResult {
    let ApiRequest { state, session, sender, request, .. } = request;
    let (RunPath { run }, query) = (request.path, request.query);
    let data_dir = state.app.options().data_dir.clone();
    let follow = query.follow;
    let (caller, now) = (sender.caller, state.app.now());
    let look = move |reader: &Reader| {
        let run = Look::new(reader, &caller, None, now).run(&run)?;
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
    let (grows, lines) = state.app.reads().read_for(&session.token.caller.identity, look).await?;
    let ear = match grows {
        Some(run) => Some(state.app.ear(run).await?),
        None => None,
    };
    let (to, batches) = mpsc::channel(AHEAD);
    tokio::spawn(tell(state, session, lines, ear, to));
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(batches)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

async fn tell(
    state: State,
    session: Session,
    mut lines: Lines,
    mut ear: Option<Ear>,
    to: mpsc::Sender<Result<Bytes, Infallible>>,
) {
    let mut changes = state.app.changes();
    loop {
        let seen = *changes.borrow_and_update();
        ear.iter_mut().for_each(Ear::forget);
        let look = move |reader: &Reader| Ok((lines.next(reader)?, lines));
        let reading = state.app.reads().read_for(&session.token.caller.identity, look);
        let Ok((next, read)) = reading.await else { return };
        lines = read;
        // A caller that may no longer call hears no more.
        if !matches!(session.again(&state).await, Ok(Some(_))) {
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
fn text(lines: &[LogLine]) -> Bytes {
    let mut text = Vec::new();
    for line in lines {
        // Neither writing to memory nor a line can fail.
        let _ = serde_json::to_writer(&mut text, line);
        text.push(b'\n');
    }
    text.into()
}
