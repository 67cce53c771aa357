//! Taking in a body: bounded in size, in depth, in the number of its values and in time, and only while there is room for it
//! and for what is made of it.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use cis_core::dag::{Problem, ProblemCode};
use cis_core::error::{ErrorCode, Refusal};
use serde_json::json;
use tokio::time::{Instant, timeout_at};
use tokio_stream::StreamExt;

use crate::limit::BodyRoom;
use crate::progress::{SLOWEST_RATE, STALLED_TIME_MAX, time_earned};

/// What a body may take beside the time that its bytes earn it.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Deepest nesting of lists and objects: what reads JSON calls itself for each level.
const DEPTH_MAX: u32 = 64;

/// What one value takes up at most once it is parsed, beside its text: a small object alone takes so much.
const VALUE_BYTES: usize = 512;

/// How large a body may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) bytes: usize,
    /// Lists, objects and what is in them. Three bytes of text can be a value, and a value takes hundreds of bytes.
    pub(crate) values: u32,
    /// The values take room, too: they are parsed as soon as the body is there. What is parsed in turns does not.
    pub(crate) is_parsed_at_once: bool,
}

/// The body of a definition: room for 100,000 tasks with a million edges. Large ones are parsed one at a time.
pub(crate) const DEFINITION: Bounds = Bounds { bytes: 32 << 20, values: 2_500_000, is_parsed_at_once: false };

/// Any other body.
pub(crate) const PLAIN: Bounds = Bounds { bytes: 8 << 20, values: 50_000, is_parsed_at_once: true };

/// A body that comes in: a large one may take long, a sender that has stalled or only drips is not waited for.
struct Incoming {
    pieces: BodyDataStream,
    began: Instant,
    bytes: usize,
}

impl Incoming {
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        let by_rate = self.began + TIME_MAX + time_earned(self.bytes as u64);
        let until = by_rate.min(Instant::now() + STALLED_TIME_MAX);
        let Some(piece) = timeout_at(until, self.pieces.next()).await.map_err(|_| too_slow())? else {
            return Ok(None);
        };
        let piece = piece.map_err(|_| Refusal::new(ErrorCode::ValidationFailed, "the body broke off"))?;
        self.bytes += piece.len();
        Ok(Some(piece))
    }

    /// Reads what is left of a body that is refused, and keeps nothing of it: most callers look for an answer only when they
    /// have sent all, and would find the connection closed instead.
    async fn discard(mut self, bytes_max: usize) {
        while let Ok(Some(_)) = self.next().await {
            if self.bytes > bytes_max {
                return;
            }
        }
    }
}

/// The whole body, if it is within `bounds` and keeps coming.
pub(crate) async fn read(body: Body, bounds: Bounds, room: &mut BodyRoom) -> Result<Vec<u8>, Refusal> {
    let bytes_max = bounds.bytes;
    // As long as it says: growing by doubling, it would take up to three times the room that is counted. What does not come
    // is never touched, and takes no memory.
    let said = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    let mut incoming = Incoming { pieces: body.into_data_stream(), began: Instant::now(), bytes: 0 };
    let (mut whole, mut shape) = (Vec::with_capacity(said.min(bytes_max)), Shape::new(bounds.values));
    while let Some(piece) = incoming.next().await? {
        if whole.len() + piece.len() > bytes_max {
            let why = format!("the body is over {bytes_max} bytes");
            return Err(Refusal::new(ErrorCode::PayloadTooLarge, why));
        }
        let before = shape.values;
        let values = |shape: &Shape| match bounds.is_parsed_at_once {
            true => (shape.values - before) as usize,
            false => 0,
        };
        let taken = shape.follow(&piece).and_then(|()| room.grow(piece.len() + values(&shape) * VALUE_BYTES));
        if let Err(refusal) = taken {
            drop(whole);
            incoming.discard(bytes_max).await;
            return Err(refusal);
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

fn too_slow() -> Refusal {
    let (stalled, rate) = (STALLED_TIME_MAX.as_secs(), SLOWEST_RATE >> 10);
    let why = format!("nothing of the body came for {stalled} seconds, or less than {rate} KiB a second");
    Refusal::new(ErrorCode::RequestTimeout, why).hint("send it faster, or in smaller requests")
}

/// Where in a JSON text we are, as far as nesting goes, and how many values came by. What is no JSON at all is found out
/// later.
#[derive(Debug)]
struct Shape {
    depth: u32,
    /// Lists, objects and commas: never fewer than there are values in them.
    values: u32,
    values_max: u32,
    in_string: bool,
    escaped: bool,
    lines: u32,
    /// Bytes since the last line began.
    column: u32,
}

impl Shape {
    fn new(values_max: u32) -> Self {
        Self { depth: 0, values: 0, values_max, in_string: false, escaped: false, lines: 0, column: 0 }
    }

    fn follow(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        for byte in piece {
            self.column = self.column.saturating_add(1);
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'[' | b'{' if !self.in_string => {
                    (self.depth, self.values) = (self.depth + 1, self.values + 1);
                    if self.depth > DEPTH_MAX {
                        let told = format!("nested more than {DEPTH_MAX} levels deep");
                        return Err(self.refuse(ProblemCode::TooDeep, told));
                    }
                }
                b']' | b'}' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                b',' if !self.in_string => self.values += 1,
                b'\n' => (self.lines, self.column) = (self.lines.saturating_add(1), 0),
                _ => {}
            }
            if self.values > self.values_max {
                let told = format!("more than {} lists, objects and values", self.values_max);
                return Err(self.refuse(ProblemCode::TooManyValues, told));
            }
        }
        Ok(())
    }

    /// Refuses the body at the place where it is too much.
    fn refuse(&self, code: ProblemCode, told: String) -> Refusal {
        let mut problem = Problem::new(code, "", told);
        (problem.line, problem.column) = (Some(self.lines.saturating_add(1)), Some(self.column));
        let refusal = Refusal::new(ErrorCode::ValidationFailed, format!("the body: {problem}"));
        let refusal = refusal.details(json!([problem]));
        match code {
            ProblemCode::TooManyValues => {
                refusal.hint("send large data as one text, or leave it where others find it")
            }
            _ => refusal,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::limit::Limits;

    fn room() -> BodyRoom {
        let limits = Arc::new(Limits::new(10));
        let share = limits.admit("a", Instant::now()).unwrap();
        limits.body(share)
    }

    #[test]
    fn depth_is_counted_outside_strings_and_across_pieces() {
        let good = format!("{}\"[[[\\\"{{\"{}", "[".repeat(64), "]".repeat(64));
        for size in [1, 7, 4096] {
            let mut shape = Shape::new(u32::MAX);
            assert!(good.as_bytes().chunks(size).all(|piece| shape.follow(piece).is_ok()), "{size}");
        }
        let deep = format!("{{\n \"a\": {}", "[".repeat(64));
        let told = Shape::new(u32::MAX).follow(deep.as_bytes()).unwrap_err();
        assert_eq!(told.message, "the body: line 2, column 70: nested more than 64 levels deep");
        assert_eq!(told.details[0]["code"], "TooDeep");
    }

    #[test]
    fn values_beyond_the_bound_are_refused_with_their_place() {
        let follow = |text: &str| Shape::new(3).follow(text.as_bytes());
        assert_eq!(follow("[{},1]"), Ok(()));
        assert_eq!(follow("[\",,,,[[[[\",1]"), Ok(()), "what stands in a string is text");
        let told = follow("[{},\n {}]").unwrap_err();
        assert_eq!(told.message, "the body: line 2, column 2: more than 3 lists, objects and values");
        assert_eq!(told.details[0]["code"], "TooManyValues");
    }

    #[tokio::test]
    async fn values_of_a_body_take_room_until_it_is_dropped() {
        let limits = Arc::new(Limits::new(10));
        let share = || limits.admit("a", Instant::now()).unwrap();
        let text = || format!("[{}0]", "{},".repeat(20_000));
        let mut held = Vec::new();
        let full = loop {
            let mut room = limits.body(share());
            match read(Body::from(text()), PLAIN, &mut room).await {
                Ok(_) => held.push(room),
                Err(full) => break full,
            }
        };
        assert_eq!(full.code, ErrorCode::RateLimited);
        assert!((1..8).contains(&held.len()), "{} bodies", held.len());
        held.clear();
        assert!(read(Body::from(text()), PLAIN, &mut limits.body(share())).await.is_ok());
        let definition = read(Body::from(text()), DEFINITION, &mut limits.body(share())).await;
        assert!(definition.is_ok(), "definitions are parsed in turns instead");
    }

    /// Cut anywhere it is judged the same, and what is JSON is judged by how deep it is.
    #[test]
    fn fuzz_depths() {
        let follow = |text: &[u8], size: usize| {
            let mut shape = Shape::new(u32::MAX);
            text.chunks(size).try_for_each(|piece| shape.follow(piece)).map(|()| shape.values)
        };
        cis_fuzz::fuzz(&cis_fuzz::Corpus::of("body"), |text| {
            let step = 1 + text.len() % 7;
            let judged = follow(text, text.len().max(1));
            assert_eq!(follow(text, step), judged);
            if let Ok(value) = serde_json::from_slice(text) {
                assert_eq!(judged.is_ok(), levels(&value) <= DEPTH_MAX);
                assert!(judged.as_ref().is_ok_and(|counted| *counted >= inner(&value)) || judged.is_err());
            }
            if let Err(refusal) = &judged {
                assert!(refusal.details[0]["line"].is_u64() && refusal.details[0]["column"].is_u64());
            }
            judged.is_ok()
        });
    }

    /// Values inside of one.
    fn inner(value: &serde_json::Value) -> u32 {
        match value {
            serde_json::Value::Array(items) => items.iter().map(|item| 1 + inner(item)).sum(),
            serde_json::Value::Object(items) => items.values().map(|item| 1 + inner(item)).sum(),
            _ => 0,
        }
    }

    fn levels(value: &serde_json::Value) -> u32 {
        match value {
            serde_json::Value::Array(items) => 1 + items.iter().map(levels).max().unwrap_or(0),
            serde_json::Value::Object(items) => 1 + items.values().map(levels).max().unwrap_or(0),
            _ => 0,
        }
    }

    #[tokio::test]
    async fn a_refused_body_is_read_to_its_end() {
        let (heard, pieces) = (Arc::new(AtomicUsize::new(0)), ["[[", "[[[", "]]]]]"]);
        let counted = heard.clone();
        let pieces = tokio_stream::iter(pieces).map(move |piece| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(piece)
        });
        let bounds = Bounds { values: 1, ..PLAIN };
        let told = read(Body::from_stream(pieces), bounds, &mut room()).await.unwrap_err();
        assert_eq!((told.code, heard.load(Ordering::Relaxed)), (ErrorCode::ValidationFailed, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_sends_too_slowly_is_not_waited_for() {
        let pieces = tokio_stream::iter([Ok::<_, std::io::Error>("{")]).chain(tokio_stream::pending());
        let told = read(Body::from_stream(pieces), PLAIN, &mut room()).await.unwrap_err();
        assert_eq!(told.code, ErrorCode::RequestTimeout);
    }

    /// What becomes of a body that comes `step` bytes at a time, with a second between them.
    async fn read_in_steps(bytes: usize, step: usize) -> (Result<Vec<u8>, Refusal>, Duration) {
        let pieces = tokio_stream::iter(0..bytes / step).then(move |_| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, std::io::Error>(vec![b' '; step])
        });
        let began = Instant::now();
        let bounds = Bounds { bytes, ..PLAIN };
        (read(Body::from_stream(Box::pin(pieces)), bounds, &mut room()).await, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn large_body_that_keeps_coming_is_waited_for() {
        let (read, took) = read_in_steps(16 << 20, 64 << 10).await;
        assert!(read.is_ok() && took > 2 * TIME_MAX, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_only_drips_is_refused() {
        let (read, took) = read_in_steps(1 << 20, 1 << 10).await;
        assert_eq!(read.unwrap_err().code, ErrorCode::RequestTimeout);
        assert!(took < TIME_MAX + Duration::from_secs(5), "{took:?}");
    }

    #[tokio::test]
    async fn a_body_has_its_bounds() {
        let five = Bounds { bytes: 5, ..PLAIN };
        assert_eq!(read(Body::from("12345"), five, &mut room()).await.unwrap(), b"12345");
        let told = read(Body::from("123456"), five, &mut room()).await.unwrap_err();
        assert_eq!(told.code, ErrorCode::PayloadTooLarge);
    }
}
