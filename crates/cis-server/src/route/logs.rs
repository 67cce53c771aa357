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
use cis_engine::logs::{BATCH_BYTES, Lines, Next, Wanted, Within, stream};
use cis_store::Reader;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::request::ApiRequest;
use crate::State;
use crate::auth::Session;
use crate::limit::{Place, StreamBuffer};
use crate::respond::HandlerResult;

/// A followed log is looked at no more often than this, however much is printed.
const TICK: Duration = Duration::from_millis(50);

/// Batches of lines that may wait for a slow reader before it is read no further.
const AHEAD: usize = 1;

/// What a follower may keep in mind without a count: the number of followers bounds it. It is enough for a run of 256 tasks.
const KEPT_BYTES: usize = 16 << 10;

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
    // Taken now: a stream that has begun is not refused.
    let kept = match lines.kept_bytes() {
        bytes if bytes > KEPT_BYTES => Some(state.limits.answer(&session.share, bytes)?),
        _ => None,
    };
    let (to, batches) = mpsc::channel(AHEAD);
    let teller = Teller {
        buffer: StreamBuffer::new(state.limits.clone(), session.share.clone()),
        ear,
        to,
        _kept: kept,
        state,
        session,
    };
    tokio::spawn(teller.tell(lines));
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(batches)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

/// What tells the lines of a run.
struct Teller {
    state: State,
    session: Session,
    /// Says that there may be more, for what grows.
    ear: Option<Ear>,
    buffer: StreamBuffer,
    to: mpsc::Sender<Result<Bytes, Infallible>>,
    _kept: Option<Place>,
}

impl Teller {
    async fn tell(mut self, mut lines: Lines) {
        let mut changes = self.state.app.changes();
        // What the next line takes, if that is more than a batch has room for.
        let mut needed = None;
        loop {
            // Room first: what there is no room for is not read.
            let reserve = async {
                match needed.take() {
                    Some(bytes) => self.buffer.reserve(bytes).await,
                    None => self.buffer.reserve_batch(BATCH_BYTES).await,
                }
            };
            let room = tokio::select! {
                biased;
                room = reserve => room,
                () = crate::gone(self.state.leaving.clone()) => return,
                () = self.to.closed() => return,
            };
            let seen = *changes.borrow_and_update();
            self.ear.iter_mut().for_each(Ear::forget);
            let bytes = room.bytes();
            let look = move |reader: &Reader| Ok((lines.next_within(reader, bytes)?, lines));
            let reading = self.state.app.reads().read_for(&self.session.token.caller.identity, look);
            let Ok((next, read)) = reading.await else { return };
            lines = read;
            // A caller that may no longer call hears no more.
            if !matches!(self.session.again(&self.state).await, Ok(Some(_))) {
                return;
            }
            let gone = crate::gone(self.state.leaving.clone());
            match (next, &mut self.ear) {
                (Within::TooLong(bytes), _) => needed = Some(bytes),
                (Within::Next(Next::Lines(batch)), _) => {
                    let piece = room.hold(text(&batch));
                    drop(batch);
                    let sent =
                        tokio::select! { sent = self.to.send(Ok(piece)) => sent.is_ok(), () = gone => false };
                    if !sent {
                        return;
                    }
                }
                (Within::Next(Next::Quiet), Some(ear)) => {
                    // Nothing is held while there is nothing to tell.
                    drop(room);
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
                        () = self.to.closed() => return,
                    }
                }
                (Within::Next(Next::Quiet), None) | (Within::Next(Next::Over), _) => return,
            }
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
    text.into_boxed_slice().into()
}
