//! Lines on their way out: told as long as there is room for them, or counted to find where the last begin.

use std::collections::VecDeque;

use cis_api::log::LogLine;
use cis_core::source::Timestamp;
use cis_runner::log::Stream;

use super::{Piece, shown_stream};

/// What a line of JSON takes beyond its text and the name of its task.
pub(super) const LINE_JSON_BYTES: usize = 110;

/// Output told where the last lines are wanted: of longer ones, only the end.
pub(super) const TAIL_BYTES_MAX: usize = 1 << 20;

/// Lines on their way out.
pub(super) struct Out<'l> {
    task_id: &'l str,
    attempt: u32,
    /// Only lines of this one.
    stream: Option<Stream>,
    /// So many lines are passed over first.
    pub(super) skip: usize,
    pub(super) sink: Sink,
    /// What the next line takes, if there was no room for it.
    needed: Option<usize>,
}

/// What becomes of lines.
pub(super) enum Sink {
    /// They are told, as long as they take no more than `room` as JSON.
    Batch { lines: Vec<LogLine>, bytes: usize, room: usize },
    /// They are counted, to find where the last begin.
    Count(TailCount),
}

/// Finds where the last lines begin.
pub(super) struct TailCount {
    tail: usize,
    /// Lines that are not among the last.
    pub(super) before: usize,
    /// What each of the last takes as JSON, and whether it ends a line, as those do that are not told in parts.
    last: VecDeque<(usize, bool)>,
    bytes: usize,
    ends: usize,
}

impl TailCount {
    pub(super) fn new(tail: usize) -> Self {
        Self { tail, before: 0, last: VecDeque::new(), bytes: 0, ends: 0 }
    }

    pub(super) fn push(&mut self, bytes: usize, continues: bool) {
        self.last.push_back((bytes, !continues));
        self.bytes += bytes;
        self.ends += usize::from(!continues);
        while (self.ends > self.tail || (self.bytes > TAIL_BYTES_MAX && self.last.len() > 1))
            && let Some((bytes, ends)) = self.last.pop_front()
        {
            self.before += 1;
            self.bytes -= bytes;
            self.ends -= usize::from(ends);
        }
    }
}

impl<'l> Out<'l> {
    pub(super) fn new(piece: &'l Piece, stream: Option<Stream>, sink: Sink) -> Self {
        Self { task_id: &piece.task_id, attempt: piece.attempt, stream, skip: 0, sink, needed: None }
    }

    /// Says that something is not there; false if there is no room for it.
    pub(super) fn cut(&mut self, bytes: u64) -> bool {
        let text = format!("… {bytes} bytes were cut here …");
        bytes == 0 || self.line(Stream::Runner, None, text.as_bytes(), false)
    }

    /// Tells a line; false if there is no room for it.
    pub(super) fn line(
        &mut self,
        stream: Stream,
        at: Option<Timestamp>,
        text: &[u8],
        continues: bool,
    ) -> bool {
        if self.stream.is_some_and(|wanted| wanted != stream) {
            return true;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return true;
        }
        let text = String::from_utf8_lossy(text);
        let size = json_bytes(self.task_id, &text);
        match &mut self.sink {
            Sink::Count(count) => count.push(size, continues),
            Sink::Batch { lines, bytes, room } => {
                if *bytes + size > *room {
                    self.needed = Some(size);
                    return false;
                }
                *bytes += size;
                let (task_id, stream) = (self.task_id.to_owned(), shown_stream(stream));
                let text = text.into_owned();
                lines.push(LogLine { task_id, attempt: self.attempt, stream, at, text, continues });
            }
        }
        true
    }

    /// The lines, and what the next one takes that there was no room for.
    pub(super) fn batch(self) -> (Vec<LogLine>, Option<usize>) {
        match self.sink {
            Sink::Batch { lines, .. } => (lines, self.needed),
            Sink::Count(_) => (Vec::new(), None),
        }
    }
}

/// What a line takes as JSON, or a little more.
fn json_bytes(task_id: &str, text: &str) -> usize {
    let escaped = |byte: u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    LINE_JSON_BYTES + task_id.len() + text.bytes().map(escaped).sum::<usize>()
}
