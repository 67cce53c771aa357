//! Following along: server-sent events, resumable from any position without gap or repeat.

use std::convert::Infallible;

use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use cis_api::calls::FollowEvents;
use cis_api::event::EventQuery;
use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::event::{EventName, UnknownEventName};
use cis_core::id::{Position, RunId};
use cis_store::Reader;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::request::ApiRequest;
use crate::State;
use crate::auth::{Session, runs_out};
use crate::hub::{BATCH, News};
use crate::respond::HandlerResult;

/// Events that may wait for the connection before no more are told.
const AHEAD: usize = 8;

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
    let (to, events) = mpsc::channel(AHEAD);
    let tokens = state.kept.tokens_changed();
    tokio::spawn(Follower { state, session, tokens, filter, name, from, whole, to }.follow());
    Ok(Sse::new(ReceiverStream::new(events)).keep_alive(KeepAlive::default()).into_response())
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

/// Somebody who follows along.
struct Follower {
    state: State,
    session: Session,
    tokens: watch::Receiver<u64>,
    filter: EventQuery,
    /// Only events of this name.
    name: Option<EventName>,
    /// Up to here everything has been told.
    from: Position,
    whole: bool,
    to: mpsc::Sender<Result<Event, Infallible>>,
}

impl Follower {
    fn identity(&self) -> &str {
        &self.session.token.caller.identity
    }

    async fn follow(mut self) {
        let _counted = self.state.meter.follower();
        // Behind at first, and whenever it has not kept up: then it reads for itself.
        while let Ok(mut following) =
            self.state.hub.follow(self.filter.dag.clone(), self.state.app.reads(), self.identity()).await
        {
            if !self.catch_up(following.from).await {
                return;
            }
            loop {
                let runs_out = runs_out(self.session.token.expires_at, self.state.app.now());
                let news = tokio::select! {
                    news = following.news.recv() => news,
                    () = crate::gone(self.state.leaving.clone()) => return,
                    () = self.to.closed() => return,
                    () = runs_out => return,
                    changed = self.tokens.changed() => match changed.is_ok() && self.may_hear().await {
                        true => continue,
                        false => return,
                    },
                };
                match news {
                    Some(news) => {
                        if !self.hear(&news).await {
                            return;
                        }
                    }
                    None => break,
                }
            }
        }
    }

    /// Reads from the store up to `until`, and whatever is there beyond; false when there is nobody to tell.
    async fn catch_up(&mut self, until: Position) -> bool {
        while self.from < until {
            let from = self.from;
            let look = move |reader: &Reader| Ok((reader.log(from, BATCH)?, reader.log_floor()?));
            let read = self.state.app.reads().read_for(self.identity(), look);
            let Ok((lines, floor)) = read.await else { return false };
            if floor > from && !self.whole {
                // Something they should have heard is gone; when they come back, they are told so.
                return false;
            }
            if lines.is_empty() {
                return true;
            }
            for line in lines {
                if !self.hear(&News::of(line)).await {
                    return false;
                }
            }
        }
        true
    }

    /// Tells of an event, if it is for them; false when there is nobody to tell.
    async fn hear(&mut self, news: &News) -> bool {
        if news.line.position <= self.from {
            return true;
        }
        self.from = news.line.position;
        // Whoever may no longer call hears no more.
        let changed = self.tokens.has_changed().unwrap_or(true);
        if !self.session.token.is_good(self.state.app.now()) || (changed && !self.may_hear().await) {
            return false;
        }
        let named = self.name.is_none_or(|name| name == news.line.name);
        if !named || !wants(&self.filter, &self.session.token.caller, &news.line) {
            return true;
        }
        let gone = crate::gone(self.state.leaving.clone());
        tokio::select! { sent = self.to.send(Ok(news.event.clone())) => sent.is_ok(), () = gone => false }
    }

    async fn may_hear(&mut self) -> bool {
        self.tokens.mark_unchanged();
        match self.session.again(&self.state).await {
            Ok(Some(session)) => {
                self.session = session;
                true
            }
            _ => false,
        }
    }
}

/// Is an event one that the caller may see and follows?
fn wants(filter: &EventQuery, caller: &Caller, line: &cis_api::event::Event) -> bool {
    let is =
        |wanted: &Option<String>, found: Option<&str>| wanted.as_deref().is_none_or(|w| Some(w) == found);
    caller.sees(&line.scope)
        && is(&filter.dag, Some(line.dag_id.as_str()))
        && is(&filter.run, line.run_id.map(|run| run.to_string()).as_deref())
}
