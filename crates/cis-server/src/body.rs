//! Taking in a body: bounded in size, in depth and in time, and only while there is room for it.

use std::time::Duration;

use axum::body::{Body, Bytes};
use cis_core::dag::{Problem, ProblemCode};
use cis_core::error::{ErrorCode, Refusal};
use serde_json::json;
use tokio_stream::StreamExt;

use crate::limit::BodyRoom;

/// A body has come in by then, or its sender is too slow to wait for.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Deepest nesting of lists and objects: what reads JSON calls itself for each level.
const DEPTH_MAX: u32 = 64;

/// The whole body, if it has at most `bytes_max` bytes and comes in time.
pub(crate) async fn read(body: Body, bytes_max: usize, room: &mut BodyRoom) -> Result<Bytes, Refusal> {
    let reading = tokio::time::timeout(TIME_MAX, gather(body, bytes_max, room));
    reading.await.map_err(|_| {
        let why = format!("the body did not come in within {} seconds", TIME_MAX.as_secs());
        Refusal::new(ErrorCode::RequestTimeout, why).hint("send it faster, or in smaller requests")
    })?
}

async fn gather(body: Body, bytes_max: usize, room: &mut BodyRoom) -> Result<Bytes, Refusal> {
    let mut pieces = body.into_data_stream();
    let (mut whole, mut depth) = (Vec::new(), Depth::default());
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| Refusal::new(ErrorCode::ValidationFailed, "the body broke off"))?;
        if whole.len() + piece.len() > bytes_max {
            let why = format!("the body is over {bytes_max} bytes");
            return Err(Refusal::new(ErrorCode::PayloadTooLarge, why));
        }
        depth.follow(&piece)?;
        room.grow(piece.len())?;
        whole.extend_from_slice(&piece);
    }
    Ok(whole.into())
}

/// Where in a JSON text we are, as far as nesting goes. What is no JSON at all is found out later.
#[derive(Debug, Default)]
struct Depth {
    depth: u32,
    in_string: bool,
    escaped: bool,
    lines: u32,
    /// Bytes since the last line began.
    column: u32,
}

impl Depth {
    fn follow(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        for byte in piece {
            self.column = self.column.saturating_add(1);
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'[' | b'{' if !self.in_string => self.depth += 1,
                b']' | b'}' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                b'\n' => (self.lines, self.column) = (self.lines.saturating_add(1), 0),
                _ => {}
            }
            if self.depth > DEPTH_MAX {
                return Err(self.too_deep());
            }
        }
        Ok(())
    }

    fn too_deep(&self) -> Refusal {
        let told = format!("nested more than {DEPTH_MAX} levels deep");
        let mut problem = Problem::new(ProblemCode::TooDeep, "", told);
        (problem.line, problem.column) = (Some(self.lines.saturating_add(1)), Some(self.column));
        Refusal::new(ErrorCode::ValidationFailed, format!("the body: {problem}")).details(json!([problem]))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

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
            let mut depth = Depth::default();
            assert!(good.as_bytes().chunks(size).all(|piece| depth.follow(piece).is_ok()), "{size}");
        }
        let deep = format!("{{\n \"a\": {}", "[".repeat(64));
        let told = Depth::default().follow(deep.as_bytes()).unwrap_err();
        assert_eq!(told.message, "the body: line 2, column 70: nested more than 64 levels deep");
        assert_eq!(told.details[0]["code"], "TooDeep");
    }

    /// Cut anywhere it is judged the same, and what is JSON is judged by how deep it is.
    #[test]
    fn fuzz_depths() {
        let follow = |text: &[u8], size: usize| {
            let mut depth = Depth::default();
            text.chunks(size).try_for_each(|piece| depth.follow(piece))
        };
        cis_fuzz::fuzz(&cis_fuzz::Corpus::of("body"), |text| {
            let step = 1 + text.len() % 7;
            let judged = follow(text, text.len().max(1));
            assert_eq!(follow(text, step), judged);
            if let Ok(value) = serde_json::from_slice(text) {
                assert_eq!(judged.is_ok(), levels(&value) <= DEPTH_MAX);
            }
            if let Err(refusal) = &judged {
                assert!(refusal.details[0]["line"].is_u64() && refusal.details[0]["column"].is_u64());
            }
            judged.is_ok()
        });
    }

    fn levels(value: &serde_json::Value) -> u32 {
        match value {
            serde_json::Value::Array(items) => 1 + items.iter().map(levels).max().unwrap_or(0),
            serde_json::Value::Object(items) => 1 + items.values().map(levels).max().unwrap_or(0),
            _ => 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_sends_too_slowly_is_not_waited_for() {
        let pieces = tokio_stream::iter([Ok::<_, std::io::Error>("{")]).chain(tokio_stream::pending());
        let told = read(Body::from_stream(pieces), 100, &mut room()).await.unwrap_err();
        assert_eq!(told.code, ErrorCode::RequestTimeout);
    }

    #[tokio::test]
    async fn a_body_has_its_bounds() {
        assert_eq!(read(Body::from("12345"), 5, &mut room()).await.unwrap(), "12345");
        let told = read(Body::from("123456"), 5, &mut room()).await.unwrap_err();
        assert_eq!(told.code, ErrorCode::PayloadTooLarge);
    }
}
