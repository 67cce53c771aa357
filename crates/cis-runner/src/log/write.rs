//! Writing one attempt's log: nothing until the first byte, then a frame per piece of output, never more on
//! disk than the cap and never more in memory than the two tails.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{
    FRAME_BYTES_MAX, HEADER_BYTES, Header, KIND_TOTALS, KIND_TURN, OVERHEAD_BYTES, Stream, tail_path,
};
use crate::protocol::{LogSummary, TAIL_BYTES};

/// A cap below this is taken as this: each part must hold some frames.
const CAP_BYTES_MIN: u64 = 4096;

/// The log of one running attempt.
#[derive(Debug)]
pub(crate) struct Writer {
    path: PathBuf,
    cap_bytes: u64,
    file: Option<File>,
    /// 0 while the head is written, then the turn of the tail file being written.
    turn: u64,
    /// Length of the file being written.
    file_bytes: u64,
    /// Output bytes in the tail files of this turn and the one before, this turn's first.
    kept: [u64; 2],
    /// How much each stream has written so far.
    lengths: [u64; 3],
    cut_bytes: u64,
    tails: [Vec<u8>; 2],
}

impl Writer {
    pub(crate) fn new(path: PathBuf, cap_bytes: u64) -> Writer {
        Writer {
            path,
            cap_bytes: cap_bytes.max(CAP_BYTES_MIN),
            file: None,
            turn: 0,
            file_bytes: 0,
            kept: [0; 2],
            lengths: [0; 3],
            cut_bytes: 0,
            tails: [Vec::new(), Vec::new()],
        }
    }

    /// Adds output. A disk that takes no more costs bytes of the log, which then count as cut, and never the task.
    pub(crate) fn write(&mut self, stream: Stream, at_ms: i64, bytes: &[u8]) {
        if let Some(tail) = self.tails.get_mut(stream.index()) {
            keep_tail(tail, bytes);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(self.room().min(rest.len()).min(FRAME_BYTES_MAX));
            if piece.is_empty() {
                if self.next_turn(at_ms).is_err() {
                    self.skip(stream, rest);
                    return;
                }
                continue;
            }
            let header = self.header(stream, at_ms, piece);
            match self.append(header, piece) {
                Ok(()) => {
                    self.lengths[stream.index()] += piece.len() as u64;
                    if self.turn > 0 {
                        self.kept[0] += piece.len() as u64;
                    }
                }
                Err(_) => self.skip(stream, piece),
            }
            rest = after;
        }
    }

    /// Writes what a reader needs to account for everything, and says what it all came to.
    pub(crate) fn finish(mut self, at_ms: i64) -> LogSummary {
        if self.cut_bytes > 0 {
            let mut totals = [0; 24];
            for (place, length) in totals.chunks_exact_mut(8).zip(self.lengths) {
                place.copy_from_slice(&length.to_le_bytes());
            }
            let header = Header { kind: KIND_TOTALS, len: 24, at_ms, offset: 0 };
            // Without it a reader cannot name a cut at the very end; the summary still counts it.
            let _ = self.append(header, &totals);
        }
        let [stdout, stderr] = &self.tails;
        LogSummary {
            bytes: self.lengths[0] + self.lengths[1],
            cut_bytes: self.cut_bytes,
            stdout_tail: tail_text(stdout),
            stderr_tail: tail_text(stderr),
        }
    }

    fn header(&self, stream: Stream, at_ms: i64, piece: &[u8]) -> Header {
        let index = stream.index();
        Header { kind: index as u8, len: piece.len() as u32, at_ms, offset: self.lengths[index] }
    }

    fn skip(&mut self, stream: Stream, bytes: &[u8]) {
        self.lengths[stream.index()] += bytes.len() as u64;
        self.cut_bytes += bytes.len() as u64;
    }

    /// How many bytes of output the file being written still takes.
    fn room(&self) -> usize {
        let part = if self.turn == 0 { self.cap_bytes / 2 } else { self.cap_bytes / 4 };
        let room = part.saturating_sub(self.file_bytes + OVERHEAD_BYTES as u64);
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Goes on in the other tail file, losing what that one held.
    fn next_turn(&mut self, at_ms: i64) -> io::Result<()> {
        let turn = self.turn + 1;
        let path = tail_path(&self.path, turn);
        // Removed, not truncated: whoever reads the old one keeps it.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => self.file = Some(create(&path)?),
        }
        self.cut_bytes += self.kept[1];
        self.kept = [0, self.kept[0]];
        self.turn = turn;
        self.file_bytes = 0;
        self.append(Header { kind: KIND_TURN, len: 0, at_ms, offset: turn }, &[])
    }

    fn append(&mut self, header: Header, bytes: &[u8]) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => create_head(&self.path)?,
        };
        let head = header.encode();
        let trailer = header.len.to_le_bytes();
        let whole = HEADER_BYTES + bytes.len() + trailer.len();
        let mut parts = [IoSlice::new(&head), IoSlice::new(bytes), IoSlice::new(&trailer)];
        let written = file.write_vectored(&parts).and_then(|n| {
            let mut rest = &mut parts[..];
            IoSlice::advance_slices(&mut rest, n);
            write_all_vectored(&mut file, rest)
        });
        match written {
            Ok(()) => self.file_bytes += whole as u64,
            // Half a frame in the middle would hide all that follows.
            Err(_) => {
                file.set_len(self.file_bytes)?;
                file.seek(SeekFrom::Start(self.file_bytes))?;
            }
        }
        self.file = Some(file);
        written
    }
}

fn write_all_vectored(file: &mut File, mut rest: &mut [IoSlice<'_>]) -> io::Result<()> {
    while rest.iter().any(|part| !part.is_empty()) {
        match file.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut rest, n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Creates the head, and with it the directories above; an earlier log of that name goes.
fn create_head(path: &Path) -> io::Result<File> {
    loop {
        match create(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().ok_or(error)?;
                DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                for turn in [1, 2] {
                    let _ = fs::remove_file(tail_path(path, turn));
                }
                fs::remove_file(path)?;
            }
            other => return other,
        }
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Keeps at least the last [`TAIL_BYTES`] of what went through, and at most twice that.
pub(super) fn keep_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    let last = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
    if tail.len() + last.len() > 2 * TAIL_BYTES {
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
    }
    tail.extend_from_slice(last);
}

pub(super) fn tail_text(tail: &[u8]) -> String {
    String::from_utf8_lossy(&tail[tail.len().saturating_sub(TAIL_BYTES)..]).into_owned()
}
