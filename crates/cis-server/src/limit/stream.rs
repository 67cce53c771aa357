//! What a stream holds ready for its reader: in its channel, and in hyper's buffer. A little of it is the stream's own, the rest is
//! counted with the answers that are not yet read. A stream that finds no room waits until there is some, and reads nothing
//! meanwhile: it is not refused midway.
//!
//! ```text
//!   own bytes ([`STREAM_BYTES`]) ──┐
//!                                  ├─► StreamRoom ─► a piece of the stream ─► hyper ─► sent: the room is given back
//!   unread answers of the identity ┘
//! ```
//!
//! Because of its own bytes a stream of short pieces goes on while others have used up what there is for all.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Limits, PIECE, Place, Share};

/// Bytes that a stream holds without a count: the number of streams bounds them.
const STREAM_BYTES: usize = 16 << 10;

/// What a piece takes beyond its text.
const OVERHEAD_BYTES: usize = 128;

/// The bytes of one stream.
#[derive(Debug)]
pub(crate) struct StreamBuffer {
    limits: Arc<Limits>,
    share: Arc<Share>,
    own: Arc<Semaphore>,
}

/// Room for a piece of a stream, until the piece is sent or dropped.
#[derive(Debug)]
pub(crate) struct StreamRoom {
    own: Arc<Semaphore>,
    bytes: usize,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Own(#[allow(dead_code, reason = "held, not read")] OwnedSemaphorePermit),
    Counted(Place),
}

impl StreamBuffer {
    pub(crate) fn new(limits: Arc<Limits>, share: Arc<Share>) -> Self {
        Self { limits, share, own: Arc::new(Semaphore::new(STREAM_BYTES)) }
    }

    /// Room for a batch of at most `most` bytes, to be had before the batch is read. Where callers have left too much unread it
    /// is for a short batch, once nothing else of this stream waits.
    pub(crate) async fn reserve_batch(&self, most: usize) -> StreamRoom {
        if let Ok(place) = self.limits.answer(&self.share, most + OVERHEAD_BYTES) {
            return StreamRoom { own: self.own.clone(), bytes: most, held: Held::Counted(place) };
        }
        self.reserve_own(most.min(STREAM_BYTES - OVERHEAD_BYTES), STREAM_BYTES).await
    }

    /// Room for a piece of this many bytes, once there is some.
    pub(crate) async fn reserve(&self, bytes: usize) -> StreamRoom {
        let needed = bytes + OVERHEAD_BYTES;
        if let Some(permit) = take_own(&self.own, needed) {
            return StreamRoom { own: self.own.clone(), bytes, held: Held::Own(permit) };
        }
        if let Ok(place) = self.limits.answer(&self.share, needed) {
            return StreamRoom { own: self.own.clone(), bytes, held: Held::Counted(place) };
        }
        match needed <= STREAM_BYTES {
            true => self.reserve_own(bytes, needed).await,
            false => {
                let place = self.limits.answer_in_turn(&self.share, needed).await;
                StreamRoom { own: self.own.clone(), bytes, held: Held::Counted(place) }
            }
        }
    }

    async fn reserve_own(&self, bytes: usize, permits: usize) -> StreamRoom {
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        match self.own.clone().acquire_many_owned(permits).await {
            Ok(permit) => StreamRoom { own: self.own.clone(), bytes, held: Held::Own(permit) },
            // It is never closed.
            Err(_) => std::future::pending().await,
        }
    }
}

impl StreamRoom {
    /// How long the piece may be.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The piece, which holds what it needs of the room until it is dropped.
    pub(crate) fn hold(self, piece: Bytes) -> Bytes {
        let needed = piece.len() + OVERHEAD_BYTES;
        let held = match self.held {
            Held::Own(mut permit) => {
                let rest = permit.num_permits().saturating_sub(needed);
                drop(permit.split(rest));
                Held::Own(permit)
            }
            Held::Counted(mut place) => match take_own(&self.own, needed) {
                Some(permit) => Held::Own(permit),
                None => {
                    place.keep(needed.div_ceil(PIECE));
                    Held::Counted(place)
                }
            },
        };
        Bytes::from_owner(HeldPiece { piece, _held: held })
    }
}

fn take_own(own: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    own.clone().try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
}

impl Place {
    /// Gives back all but `pieces` of it.
    fn keep(&mut self, pieces: usize) {
        for permit in [&mut self._own, &mut self._all] {
            let rest = permit.num_permits().saturating_sub(pieces);
            drop(permit.split(rest));
        }
    }
}

impl Limits {
    /// Room for an answer of this size, however long it takes until there is some.
    async fn answer_in_turn(&self, share: &Share, bytes: usize) -> Place {
        let pieces = super::answer_pieces(bytes);
        let own = share.own.answers.clone().acquire_many_owned(pieces).await;
        let all = self.all.answers.clone().acquire_many_owned(pieces).await;
        match (own, all) {
            (Ok(_own), Ok(_all)) => Place { _own, _all },
            // Neither is ever closed.
            _ => std::future::pending().await,
        }
    }
}

/// The bytes of a piece, and the room they take.
struct HeldPiece {
    piece: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for HeldPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, timeout};

    use super::super::OWN_ANSWERS_MAX;
    use super::*;

    const BATCH: usize = 64 << 10;

    fn piece(bytes: usize) -> Bytes {
        vec![b'x'; bytes].into()
    }

    /// Whether something is still not there after a long time, which passes at once.
    async fn is_parked<T>(waiting: impl Future<Output = T>) -> bool {
        timeout(Duration::from_secs(3_600), waiting).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn unread_streams_hold_their_share_and_a_little_each() {
        let limits = Arc::new(Limits::new(10_000));
        let share = || limits.admit("a", Instant::now()).unwrap();
        let mut unread = Vec::new();
        for _ in 0..1_000 {
            let stream = StreamBuffer::new(limits.clone(), share());
            loop {
                let room = match timeout(Duration::ZERO, stream.reserve_batch(BATCH)).await {
                    Ok(room) => room,
                    Err(_) => break,
                };
                let full = room.bytes();
                unread.push(room.hold(piece(full)));
            }
        }
        let held: usize = unread.iter().map(Bytes::len).sum();
        assert!(held <= OWN_ANSWERS_MAX + 1_000 * STREAM_BYTES, "{held}");
        // Another stream of the same caller goes on, in short pieces; a long one waits until something was read.
        let stream = StreamBuffer::new(limits.clone(), share());
        for _ in 0..3 {
            let room = stream.reserve_batch(BATCH).await;
            assert!((1..STREAM_BYTES).contains(&room.bytes()), "{}", room.bytes());
            drop(room.hold(piece(300)));
        }
        assert!(is_parked(stream.reserve(BATCH)).await);
        let other = StreamBuffer::new(limits.clone(), limits.admit("b", Instant::now()).unwrap());
        assert_eq!(other.reserve_batch(BATCH).await.bytes(), BATCH, "another caller has room of its own");
        unread.clear();
        assert_eq!(stream.reserve(BATCH).await.bytes(), BATCH);
        assert!(limits.answer(&share(), OWN_ANSWERS_MAX).is_ok(), "all of it was given back");
    }

    #[tokio::test(start_paused = true)]
    async fn short_pieces_are_not_counted_until_they_are_many() {
        let limits = Arc::new(Limits::new(10));
        let share = limits.admit("a", Instant::now()).unwrap();
        let stream = StreamBuffer::new(limits.clone(), share.clone());
        let few: Vec<Bytes> = [stream.reserve(300).await.hold(piece(300)), {
            // What was reserved for a batch and not used is given back.
            stream.reserve_batch(BATCH).await.hold(piece(300))
        }]
        .into();
        let whole = limits.answer(&share, OWN_ANSWERS_MAX).unwrap();
        // With nothing left to count, the stream's own bytes last for a while, and then it waits for its reader.
        let mut held = few;
        while let Ok(room) = timeout(Duration::ZERO, stream.reserve(300)).await {
            held.push(room.hold(piece(300)));
        }
        assert!((20..=STREAM_BYTES / 300).contains(&held.len()), "{}", held.len());
        assert!(is_parked(stream.reserve(300)).await);
        held.pop();
        assert_eq!(stream.reserve(300).await.bytes(), 300);
        drop(whole);
    }
}
