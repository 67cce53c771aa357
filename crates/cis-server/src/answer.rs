//! Answers on their way out: what a caller has not taken yet is counted, so that callers that do not read cannot fill the
//! memory. All answers to callers that are known pass here.
//!
//! ```text
//!   handler ─► answer ── small: as it is; a definition: room was made before it was read
//!                └─ large: room of the identity and of the node ── none: 429 or 503
//!                                └─► hyper's buffer ─► sent, or the connection closed: the room is given back
//! ```
//!
//! A connection has at most two answers at a time: hyper makes the next one while the last is being sent, and no more. Streams
//! count what they hold themselves (`limit/stream.rs`).

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use cis_core::error::Refusal;

use crate::limit::{Limits, Place, SMALL_ANSWER, Share};
use crate::respond::{expected, json};

/// How long an answer that tells of something done waits for room before it is refused. What only reads is refused at once:
/// it can be asked again.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The bytes of an answer, and the room they take.
struct Counted {
    bytes: Bytes,
    _room: Place,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Beside an answer that room was made for already.
#[derive(Debug, Clone, Copy)]
struct IsCounted;

/// An answer that room was made for before it was read; it takes the room until it is sent or dropped.
pub(crate) fn counted(status: StatusCode, text: String, room: Place) -> Response {
    let bytes = Bytes::from_owner(Counted { bytes: text.into(), _room: room });
    let mut response = json(status, bytes.into());
    response.extensions_mut().insert(IsCounted);
    response
}

/// Counts an answer until it is sent or dropped; refuses one that there is no room for.
pub(crate) async fn count(limits: &Limits, share: &Share, method: &Method, response: Response) -> Response {
    if response.extensions().get::<IsCounted>().is_some() {
        return response;
    }
    match response.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok()) {
        Some(bytes) if bytes > SMALL_ANSWER => count_large(limits, share, method, response, bytes).await,
        _ => response,
    }
}

async fn count_large(
    limits: &Limits,
    share: &Share,
    method: &Method,
    response: Response,
    bytes: usize,
) -> Response {
    let only_reads = *method == Method::GET || *method == Method::HEAD;
    let room = match only_reads {
        true => limits.answer(share, bytes),
        false => limits.answer_within(share, bytes, WAIT_MAX).await,
    };
    let room = match room {
        Ok(room) => room,
        Err(full) if only_reads => return expected(full),
        Err(full) => return expected(was_done(full)),
    };
    let (parts, body) = response.into_parts();
    // It is one piece already: nothing is copied.
    match to_bytes(body, usize::MAX).await {
        Ok(bytes) => {
            Response::from_parts(parts, Body::from(Bytes::from_owner(Counted { bytes, _room: room })))
        }
        Err(_) => Response::from_parts(parts, Body::empty()),
    }
}

/// Says of a refused answer that what was asked for has happened.
fn was_done(full: Refusal) -> Refusal {
    let message = format!("it was done, but there is no room for its answer: {}", full.message);
    Refusal::new(full.code, message)
        .hint("read your other answers, then ask again with the same `claim_id` or `Idempotency-Key`")
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_large_answer_is_counted_until_its_bytes_are_dropped() {
        let limits = Limits::new(10);
        let share = limits.admit("a", Instant::now()).unwrap();
        let large = || Response::new(Body::from(vec![b'x'; 20 << 20]));
        let ask = || count(&limits, &share, &Method::GET, large());
        let first = ask().await;
        assert_eq!(first.status(), StatusCode::OK);
        // As hyper takes it: the body is gone, its bytes are still to be written.
        let unsent = to_bytes(first.into_body(), usize::MAX).await.unwrap();
        assert_eq!(unsent.len(), 20 << 20);
        let refused = ask().await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        let small = count(&limits, &share, &Method::GET, Response::new(Body::from("ok"))).await;
        assert_eq!(small.status(), StatusCode::OK);
        drop(unsent);
        assert_eq!(ask().await.status(), StatusCode::OK);
    }
}
