//! Log files: one per attempt, framed, capped, with head and tail kept.
//!
//! ```text
//!  frame:  stream u8 │ len u32 │ at_ms u64 │ offset u64 │ len bytes │ len u32        (little endian)
//!
//!  <log>          the first half of the cap
//!  <log>.tail.0   the end, in two files of a quarter each that take turns;
//!  <log>.tail.1   the first frame of each says which turn it is
//! ```
//!
//! `offset` is where the bytes stand in their stream, so a reader can say exactly what was cut. The length is
//! repeated after the bytes so that the last line can be found from the end.

mod append;
mod read;
mod write;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use append::Appender;
pub use read::{Entry, Position, Reader, Record, last_line, read, stored_bytes, summary};
pub(crate) use write::Writer;

/// Where bytes of a log came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
    /// What the runner itself has to say about the attempt.
    Runner,
}

impl Stream {
    /// All of them, in the order of their numbers in frames.
    pub const ALL: [Stream; 3] = [Stream::Stdout, Stream::Stderr, Stream::Runner];

    pub(crate) fn index(self) -> usize {
        match self {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
            Stream::Runner => 2,
        }
    }
}

const HEADER_BYTES: usize = 21;
const TRAILER_BYTES: usize = 4;
const OVERHEAD_BYTES: usize = HEADER_BYTES + TRAILER_BYTES;

/// No frame carries more than this; anything else at its place is not a frame.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// No stream is as long as this, nor does a log take as many turns; below it, sums of places and lengths do not overflow.
const OFFSET_MAX: u64 = 3 << 62;

/// First frame of a tail file: its offset is the turn the file was written in, from 1.
const KIND_TURN: u8 = 3;
/// Last frame of a log of which something was cut: 3 × u64, how long each stream was.
const KIND_TOTALS: u8 = 4;

/// The start of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    kind: u8,
    len: u32,
    at_ms: i64,
    offset: u64,
}

impl Header {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind;
        bytes[1..5].copy_from_slice(&self.len.to_le_bytes());
        bytes[5..13].copy_from_slice(&self.at_ms.to_le_bytes());
        bytes[13..21].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let (kind, rest) = bytes.split_first()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (at_ms, rest) = rest.split_first_chunk::<8>()?;
        let header = Header {
            kind: *kind,
            len: u32::from_le_bytes(*len),
            at_ms: i64::from_le_bytes(*at_ms),
            offset: u64::from_le_bytes(*rest.first_chunk::<8>()?),
        };
        let is_frame = header.kind <= KIND_TOTALS
            && header.len as usize <= FRAME_BYTES_MAX
            && header.offset <= OFFSET_MAX;
        is_frame.then_some(header)
    }

    fn frame_bytes(self) -> u64 {
        OVERHEAD_BYTES as u64 + u64::from(self.len)
    }
}

/// The file that holds turn `turn` (from 1) of the log at `path`.
fn tail_path(path: &Path, turn: u64) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(if turn % 2 == 1 { ".tail.0" } else { ".tail.1" });
    PathBuf::from(name)
}
