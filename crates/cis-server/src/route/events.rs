//! Following along: server-sent events, resumable from any position without gap or repeat.
//!
//! A follower holds no event that there is no room for: it first finds room, then reads, or takes what the hub still has.

use std::convert::Infallible;
use std::sync::Weak;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use cis_api::calls::FollowEvents;
use cis_api::event::{Event, EventQuery};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::event::{EventName, UnknownEventName};
use cis_core::id::{Position, RunId};
use cis_store::Reader;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use super::request::ApiRequest;
use crate::State;
use crate::auth::{Session, runs_out};
use crate::hub::News;
use crate::limit::{StreamBuffer, StreamRoom};
use crate::respond::HandlerResult;

/// Pieces that may wait for the connection before no more are told. Their bytes are bounded by the room they need.
const AHEAD: usize = 16;

/// Events read at once are told as one piece, of at most this length; a longer event is a piece of its own.
const BATCH_BYTES: usize = 64 << 10;

/// Events looked at in one read for a follower that is behind.
const BATCH: usize = 256;

/// Events taken from the store at once, of which those that there is no room for are read again: an ordinary one has half a
/// KiB, the longest many.
const ROWS: u32 = 32;

/// A follower that hears nothing for so long is told that there is nothing, so that both sides notice when the other is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const NOTHING: Bytes = Bytes::from_static(b":\n\n");

pub(super) async fn follow(request: ApiRequest<FollowEvents>) -> HandlerResult {
    let ApiRequest { state, session, headers, request, .. } = request;
    let filter = request.query;
    let last = match headers.get("last-event-id") {
        Some(id) => Some(id.to_str().ok().and_then(|id| id.parse().ok()).ok_or_else(|| {
            Refusal::new(ErrorCode::ValidationFailed, "a `Last-Event-ID` is the number of an event")
        })?),
        None => filter.after,
    };
    let name =
        filter.kind.as_deref().map(str::parse).transpose().map_err(|e: UnknownEventName| Refusal::from(e))?;
    let run = filter.run.as_ref().and_then(|run| run.parse().ok());
    let sees_all = session.token.caller.scopes.is_none();
    let look = move |reader: &Reader| begin(reader, last.map(Position), run, sees_all);
    let Begin { from, whole } = state.app.reads().read_for(&session.token.caller.identity, look).await?;
    let (to, pieces) = mpsc::channel(AHEAD);
    let tokens = state.kept.tokens_changed();
    let buffer = StreamBuffer::new(state.limits.clone(), session.share.clone());
    let spoke_at = Instant::now();
    let choice = Choice { filter, name, session };
    tokio::spawn(Follower { state, choice, tokens, from, whole, buffer, to, spoke_at }.follow());
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(pieces)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// Where somebody begins to follow.
struct Begin {
    from: Position,
    /// Whatever was pruned, nothing of it is for them: they follow a run, and that is there.
    whole: bool,
}

/// `sees_all`: the caller may know of every scope, and so how many events there are.
fn begin(
    reader: &Reader,
    last: Option<Position>,
    run: Option<RunId>,
    sees_all: bool,
) -> Result<Begin, Refusal> {
    let newest = reader.last_position()?;
    let Some(from) = last else { return Ok(Begin { from: newest, whole: false }) };
    if from > newest || from < Position(0) {
        let newest = if sees_all { format!(": the last one is {newest}") } else { String::new() };
        let why = format!("there is no event {from}{newest}");
        let hint =
            "begin anew without `Last-Event-ID`; after a restore, what was heard may not be there any more";
        return Err(Refusal::new(ErrorCode::ValidationFailed, why).hint(hint));
    }
    let run = run.map(|run| reader.run_by_id(run)).transpose()?.flatten();
    let (floor, whole) = (reader.log_floor()?, run.is_some());
    if from < floor && !whole {
        return Err(Refusal::new(
            ErrorCode::Gone,
            format!("events after {from} are gone: their runs were pruned"),
        )
        .hint(format!("look at what there is now, then follow with `Last-Event-ID: {floor}`"))
        .details(json!({"floor": floor})));
    }
    Ok(Begin { from, whole })
}

/// Which events a follower hears.
#[derive(Clone)]
struct Choice {
    filter: EventQuery,
    /// Only events of this name.
    name: Option<EventName>,
    session: Session,
}

impl Choice {
    /// Is an event one that the caller may see and follows?
    fn takes(&self, news: &News) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| Some(wanted) == found)
        };
        self.name.is_none_or(|name| name == news.name)
            && self.session.token.caller.sees(&news.scope)
            && is(&self.filter.dag, Some(news.dag_id.as_str()))
            && is(&self.filter.run, news.run_id.map(|run| run.to_string()).as_deref())
    }
}

/// What a follower that is behind is told next.
struct Batch {
    text: Vec<u8>,
    /// Events up to here are in it, or not for the follower.
    read_to: Position,
    /// The next event is for the follower and has so many bytes, more than there was room for.
    needed: Option<usize>,
    /// Events up to here were pruned.
    floor: Position,
}

impl Batch {
    /// The events after `from` that are chosen, within `room` bytes.
    fn read(reader: &Reader, from: Position, choice: &Choice, room: usize) -> Result<Self, Refusal> {
        let page = |after| Ok(reader.log(after, ROWS)?);
        let batch = Self::gather(page, from, |news| choice.takes(news), room)?;
        // The floor is asked for last: it only rises, so what was read above it is all there was.
        Ok(Self { floor: reader.log_floor()?, ..batch })
    }

    fn gather(
        page: impl Fn(Position) -> Result<Vec<Event>, Refusal>,
        from: Position,
        takes: impl Fn(&News) -> bool,
        room: usize,
    ) -> Result<Self, Refusal> {
        let mut batch = Self { text: Vec::new(), read_to: from, needed: None, floor: Position(0) };
        let mut rows = 0;
        while rows < BATCH {
            let lines = page(batch.read_to)?;
            if lines.is_empty() {
                break;
            }
            rows += lines.len();
            for news in lines.into_iter().map(News::of) {
                if takes(&news) {
                    if batch.text.len() + news.text.len() > room {
                        batch.needed = batch.text.is_empty().then_some(news.text.len());
                        batch.text.shrink_to_fit();
                        return Ok(batch);
                    }
                    batch.text.extend_from_slice(&news.text);
                }
                batch.read_to = news.position;
            }
        }
        batch.text.shrink_to_fit();
        Ok(batch)
    }
}

/// Somebody who follows along.
struct Follower {
    state: State,
    choice: Choice,
    tokens: watch::Receiver<u64>,
    /// Up to here everything has been told.
    from: Position,
    whole: bool,
    buffer: StreamBuffer,
    to: mpsc::Sender<Result<Bytes, Infallible>>,
    /// When it was last told something.
    spoke_at: Instant,
}

/// What became of an event for a follower.
enum Heard {
    /// It was told, or was not for the follower.
    Done,
    /// The hub does not have it any more.
    Behind,
    /// The follower has gone.
    Gone,
}

impl Follower {
    async fn follow(mut self) {
        let _counted = self.state.meter.follower();
        let (state, dag) = (self.state.clone(), self.choice.filter.dag.clone());
        // Behind at first, and whenever it has not kept up: then it reads for itself.
        while let Ok(mut following) = state.hub.follow(dag.clone(), state.app.reads(), self.identity()).await
        {
            if !self.catch_up(following.from).await {
                return;
            }
            loop {
                let runs_out = runs_out(self.choice.session.token.expires_at, self.state.app.now());
                let news = tokio::select! {
                    news = following.news.recv() => news,
                    () = crate::gone(self.state.leaving.clone()) => return,
                    () = self.to.closed() => return,
                    () = runs_out => return,
                    () = sleep_until(self.spoke_at + KEEP_ALIVE) => {
                        // Where something waits to be sent, this need not.
                        let _ = self.to.try_send(Ok(NOTHING));
                        self.spoke_at = Instant::now();
                        continue;
                    }
                    changed = self.tokens.changed() => match changed.is_ok() && self.renew().await {
                        true => continue,
                        false => return,
                    },
                };
                match news {
                    Some(news) => match self.hear(news).await {
                        Heard::Done => {}
                        Heard::Behind => break,
                        Heard::Gone => return,
                    },
                    None => break,
                }
            }
        }
    }

    fn identity(&self) -> &str {
        &self.choice.session.token.caller.identity
    }

    /// Reads from the store up to `until`, and whatever is there beyond; false when the follower has gone.
    async fn catch_up(&mut self, until: Position) -> bool {
        let mut needed = None;
        while self.from < until {
            let Some(room) = self.room(needed).await else { return false };
            if !self.may_hear().await {
                return false;
            }
            let (from, choice, bytes) = (self.from, self.choice.clone(), room.bytes());
            let look = move |reader: &Reader| Batch::read(reader, from, &choice, bytes);
            let Ok(batch) = self.state.app.reads().read_for(self.identity(), look).await else {
                return false;
            };
            if batch.floor > from && !self.whole {
                // Something they should have heard is gone; when they come back, they are told so.
                return false;
            }
            if self.tokens.has_changed().unwrap_or(true) {
                // It was chosen by what they might see before.
                continue;
            }
            needed = batch.needed;
            if batch.read_to == from && needed.is_none() {
                return true;
            }
            if !batch.text.is_empty() && !self.tell(room.hold(batch.text.into())).await {
                return false;
            }
            self.from = batch.read_to;
        }
        true
    }

    /// Tells of an event that has just come, if it is for the follower.
    async fn hear(&mut self, news: Weak<News>) -> Heard {
        // Whoever may no longer call hears no more.
        if !self.may_hear().await {
            return Heard::Gone;
        }
        let bytes = match news.upgrade() {
            None => return Heard::Behind,
            Some(news) if news.position <= self.from => return Heard::Done,
            Some(news) if !self.choice.takes(&news) => {
                self.from = news.position;
                return Heard::Done;
            }
            Some(news) => news.text.len(),
        };
        // While it waits for room, the event is not held.
        let Some(room) = self.room(Some(bytes)).await else { return Heard::Gone };
        if !self.may_hear().await {
            return Heard::Gone;
        }
        let Some(news) = news.upgrade() else { return Heard::Behind };
        // What it may see may have changed meanwhile.
        if self.choice.takes(&news) && !self.tell(room.hold(news.text.clone())).await {
            return Heard::Gone;
        }
        self.from = news.position;
        Heard::Done
    }

    /// Room for a piece of `bytes`, or for a batch; none when the follower has gone.
    async fn room(&self, bytes: Option<usize>) -> Option<StreamRoom> {
        let room = async {
            match bytes {
                Some(bytes) => self.buffer.reserve(bytes).await,
                None => self.buffer.reserve_batch(BATCH_BYTES).await,
            }
        };
        tokio::select! {
            biased;
            room = room => Some(room),
            () = crate::gone(self.state.leaving.clone()) => None,
            () = self.to.closed() => None,
        }
    }

    /// Hands a piece on; false when the follower has gone.
    async fn tell(&mut self, piece: Bytes) -> bool {
        let gone = crate::gone(self.state.leaving.clone());
        let sent = tokio::select! { sent = self.to.send(Ok(piece)) => sent.is_ok(), () = gone => false };
        self.spoke_at = Instant::now();
        sent
    }

    /// The caller may still call.
    async fn may_hear(&mut self) -> bool {
        let changed = self.tokens.has_changed().unwrap_or(true);
        self.choice.session.token.is_good(self.state.app.now()) && (!changed || self.renew().await)
    }

    /// Looks at the caller's token again.
    async fn renew(&mut self) -> bool {
        self.tokens.mark_unchanged();
        match self.choice.session.again(&self.state).await {
            Ok(Some(session)) => {
                self.choice.session = session;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(position: i64, bytes: usize) -> Event {
        serde_json::from_value(json!({
            "position": position, "at": "2026-01-01T00:00:00.000Z", "dag_id": "d", "scope": "default",
            "type": "task.failed", "subject": {"kind": "task", "key": "d#1/t"}, "step": "fail", "status": "failed",
            "version": 1, "data": {"cause": "e".repeat(bytes)}
        }))
        .unwrap()
    }

    /// The store's part: events of very different lengths, of which one in eight is as long as a few batches.
    fn page(after: Position) -> Result<Vec<Event>, Refusal> {
        let length = |n: i64| if n % 8 == 0 { 200_000 } else { usize::try_from(n % 100).unwrap() * 100 };
        Ok((after.0 + 1..=100).take(ROWS as usize).map(|n| event(n, length(n))).collect())
    }

    #[test]
    fn follower_that_is_behind_holds_no_more_than_it_has_room_for() {
        let whole: Vec<u8> =
            (0..100).flat_map(|n| News::of(page(Position(n)).unwrap().remove(0)).text).collect();
        for room in [1_000, 16 << 10, BATCH_BYTES] {
            let (mut told, mut from, mut next_room) = (Vec::new(), Position(0), room);
            while from < Position(100) {
                let batch = Batch::gather(page, from, |_| true, next_room).unwrap();
                assert!(batch.text.len() <= next_room && batch.text.capacity() <= next_room);
                // What is too long is not held, but asked for again once there is room for it.
                assert_eq!(batch.needed.is_some(), batch.text.is_empty());
                next_room = batch.needed.unwrap_or(room);
                told.extend(batch.text);
                from = batch.read_to;
            }
            assert!(told == whole, "{room}");
        }
    }

    #[test]
    fn events_that_are_not_chosen_take_no_room() {
        let batch = Batch::gather(page, Position(0), |news| news.position == Position(1), 1_000).unwrap();
        assert_eq!((batch.read_to, batch.needed), (Position(100), None));
        assert_eq!(batch.text, News::of(event(1, 100)).text);
    }
}
