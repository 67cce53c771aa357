//! Following along: server-sent events, resumable from any position without gap or repeat.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State as Has;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Position;
use cis_engine::coordinator::handle::next_look;
use cis_store::sqlite::{LogLine, Reader};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::Args;
use crate::State;
use crate::document::EVENTS;
use crate::door::Holder;
use crate::say::Said;

/// The log is looked at no more often than this, however much happens.
const TICK: Duration = Duration::from_millis(20);

/// Events read at once, and events that may wait for a slow follower before it is read no further.
const BATCH: u32 = 256;
const AHEAD: usize = 64;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    dag: Option<String>,
    run: Option<String>,
    /// Such as `cis.run.completed`.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Where to begin, for those who cannot send `Last-Event-ID`.
    after: Option<i64>,
}

/// Follow along.
///
/// Server-sent events in the shape of CloudEvents, from `Last-Event-ID` on, or from now. The stream has no end.
#[utoipa::path(get, path = "/api/v1/events", tag = EVENTS,
    params(Filter, ("Last-Event-ID" = Option<i64>, Header, description = "the last event that was heard")),
    responses((status = 200, description = "events", body = String, content_type = "text/event-stream")))]
pub(super) async fn follow(
    Has(state): Has<State>,
    Extension(holder): Extension<Holder>,
    Args(filter): Args<Filter>,
    headers: HeaderMap,
) -> Said {
    let last = match headers.get("last-event-id") {
        Some(id) => Some(id.to_str().ok().and_then(|id| id.parse().ok()).ok_or_else(|| {
            Refusal::new(ErrorCode::ValidationFailed, "a `Last-Event-ID` is the number of an event")
        })?),
        None => filter.after,
    };
    let from = match last {
        Some(last) => Position(last),
        None => state.reads.read(|reader| Ok(reader.last_position()?)).await?,
    };
    let (to, events) = mpsc::channel(AHEAD);
    tokio::spawn(tell(state, holder, filter, from, to));
    Ok(Sse::new(ReceiverStream::new(events)).keep_alive(KeepAlive::default()).into_response())
}

async fn tell(
    state: State,
    holder: Holder,
    filter: Filter,
    mut from: Position,
    to: mpsc::Sender<Result<Event, Infallible>>,
) {
    let _follower = state.meter.follower();
    let mut changes = state.node.changes();
    loop {
        let seen = *changes.borrow_and_update();
        let (asked, now) = (holder.clone(), state.node.now());
        let look = move |reader: &Reader| Ok((asked.look_up(reader)?, reader.log(from, BATCH)?));
        let Ok((token, lines)) = state.reads.read(look).await else { return };
        // Whoever may no longer call hears no more.
        let Some(token) = token.filter(|token| token.is_good(now)) else { return };
        let more = lines.len() == BATCH as usize;
        for line in lines {
            from = line.position;
            if !filter.wants(&token.caller, &line) {
                continue;
            }
            let gone = crate::gone(state.leaving.clone());
            let sent =
                tokio::select! { sent = to.send(Ok(event(&line))) => sent.is_ok(), () = gone => false };
            if !sent {
                return;
            }
        }
        if more {
            continue;
        }
        let runs_out = async {
            match token.expires_at {
                Some(at) => tokio::time::sleep(Duration::from_millis(at.since(now).0)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            looks = next_look(&mut changes, seen, TICK) => if !looks { return },
            () = crate::gone(state.leaving.clone()) => return,
            () = to.closed() => return,
            () = runs_out => return,
        }
    }
}

impl Filter {
    fn wants(&self, caller: &Caller, line: &LogLine) -> bool {
        let is =
            |wanted: &Option<String>, found: Option<&str>| wanted.as_deref().is_none_or(|w| Some(w) == found);
        caller.sees(&line.scope)
            && is(&self.dag, Some(line.dag_id.as_str()))
            && is(&self.run, line.run_id.map(|run| run.to_string()).as_deref())
            && is(&self.kind, Some(&line.kind()))
    }
}

fn event(line: &LogLine) -> Event {
    Event::default().id(line.position.to_string()).event(line.kind()).data(line.cloud_event().to_string())
}
