//! Reading a log, also while it is being written: entries in order, cuts named, and a position to go on from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::write::{keep_tail, tail_text};
use super::{
    FRAME_BYTES_MAX, HEADER_BYTES, Header, KIND_TOTALS, KIND_TURN, Stream, TRAILER_BYTES, tail_path,
};
use crate::protocol::{LogSummary, TAIL_BYTES};

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub stream: Stream,
    /// When the runner read it: wall clock, Unix milliseconds.
    pub at_ms: i64,
    /// Where it stands in its stream.
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// What a log says next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Record(Record),
    /// `bytes` of `stream` from `offset` on are not in the log: its cap, or a full disk.
    Cut {
        stream: Stream,
        offset: u64,
        bytes: u64,
    },
}

/// Where a reader stands; reading goes on from it, in another process if need be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    /// 0 in the head, then the turn of the tail file.
    turn: u64,
    /// Byte in that file.
    at: u64,
    /// How much of each stream has been told or declared cut.
    told: [u64; 3],
}

impl Position {
    /// How much of what the task printed has been told or declared cut.
    pub fn told(&self) -> u64 {
        self.told[Stream::Stdout.index()] + self.told[Stream::Stderr.index()]
    }
}

/// Reads the log at `path` from its beginning. See [`Reader`].
pub fn read(path: &Path) -> io::Result<Reader> {
    Reader::resume(path, Position::default())
}

/// The entries of a log. `None` means: no more at the moment; a log that is still being written can be asked
/// again. A log of which nothing has been written does not exist.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    position: Position,
    file: File,
    buffer: Vec<u8>,
    /// Where in the file the buffer starts.
    buffer_at: u64,
    /// What the last frame still has to say, last first: cuts it revealed, and its record.
    pending: Vec<Entry>,
    /// Where the last frame was found: with something pending, reading goes on from there.
    before: Position,
}

/// How much is read at once: a whole frame fits.
const READ_BYTES: usize = 2 * FRAME_BYTES_MAX;

impl Reader {
    /// Goes on from where an earlier reader stood.
    pub fn resume(path: &Path, position: Position) -> io::Result<Reader> {
        let mut reader = Reader {
            path: path.to_owned(),
            position,
            file: File::open(path)?,
            buffer: Vec::new(),
            buffer_at: 0,
            pending: Vec::new(),
            before: position,
        };
        if position.turn > 0 {
            match turn_of(path, position.turn) {
                Some((turn, file)) if turn == position.turn => reader.file = file,
                // Its file is gone: go on with the oldest that is left.
                _ => {
                    reader.position.at = reader.file.metadata()?.len();
                    reader.enter_next_part();
                }
            }
        }
        Ok(reader)
    }

    /// Where the next entry will be read. Never loses an entry; a cut may be told once more.
    pub fn position(&self) -> Position {
        if self.pending.is_empty() { self.position } else { self.before }
    }

    fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        while self.pending.is_empty() {
            self.before = self.position;
            let Some((header, bytes)) = self.next_frame()? else { return Ok(None) };
            match header.kind {
                KIND_TURN => {}
                KIND_TOTALS => {
                    for (stream, total) in Stream::ALL.into_iter().zip(bytes.chunks_exact(8)) {
                        self.note_cut(stream, u64::from_le_bytes(total.try_into().unwrap_or_default()));
                    }
                }
                kind => {
                    let stream = Stream::ALL[usize::from(kind).min(2)];
                    let offset = header.offset;
                    self.note_cut(stream, offset);
                    self.position.told[stream.index()] = offset + bytes.len() as u64;
                    self.pending.push(Entry::Record(Record { stream, at_ms: header.at_ms, offset, bytes }));
                }
            }
            self.pending.reverse();
        }
        Ok(self.pending.pop())
    }

    fn note_cut(&mut self, stream: Stream, upto: u64) {
        let told = &mut self.position.told[stream.index()];
        if upto > *told {
            self.pending.push(Entry::Cut { stream, offset: *told, bytes: upto - *told });
            *told = upto;
        }
    }

    /// The next whole frame; a torn one at the end is as good as none.
    fn next_frame(&mut self) -> io::Result<Option<(Header, Vec<u8>)>> {
        loop {
            if let Some(frame) = self.frame_here()? {
                return Ok(Some(frame));
            }
            // The writer is done with a part before it starts the next: one more look closes the race.
            let next = self.peek_next_part();
            if let Some(frame) = self.frame_here()? {
                return Ok(Some(frame));
            }
            let Some((turn, file)) = next else { return Ok(None) };
            self.enter(turn, file);
        }
    }

    fn frame_here(&mut self) -> io::Result<Option<(Header, Vec<u8>)>> {
        let Some(header) = self.bytes_here(HEADER_BYTES)? else {
            return Ok(None);
        };
        let Some(header) = header.first_chunk().and_then(Header::decode) else {
            return Ok(None);
        };
        let len = header.len as usize;
        let Some(frame) = self.bytes_here(HEADER_BYTES + len + TRAILER_BYTES)? else {
            return Ok(None);
        };
        let bytes = frame[HEADER_BYTES..HEADER_BYTES + len].to_vec();
        self.position.at += header.frame_bytes();
        Ok(Some((header, bytes)))
    }

    /// `count` bytes at the current position, if the file has them.
    fn bytes_here(&mut self, count: usize) -> io::Result<Option<&[u8]>> {
        let at = self.position.at;
        let have = self.buffer_at + self.buffer.len() as u64;
        if at < self.buffer_at || at + count as u64 > have {
            self.buffer.resize(READ_BYTES, 0);
            let read = self.file.read_at(&mut self.buffer, at)?;
            self.buffer.truncate(read);
            self.buffer_at = at;
        }
        let start = usize::try_from(at - self.buffer_at).unwrap_or(usize::MAX);
        Ok(self.buffer.get(start..start.saturating_add(count)))
    }

    fn peek_next_part(&self) -> Option<(u64, File)> {
        let now = self.position.turn;
        // The one after this is in the other file; if that has been overtaken, both are newer.
        let mut found: Vec<_> =
            [now + 1, now + 2].into_iter().filter_map(|t| turn_of(&self.path, t)).collect();
        found.retain(|(turn, _)| *turn > now);
        found.into_iter().min_by_key(|(turn, _)| *turn)
    }

    fn enter_next_part(&mut self) {
        if let Some((turn, file)) = self.peek_next_part() {
            self.enter(turn, file);
        }
    }

    fn enter(&mut self, turn: u64, file: File) {
        self.file = file;
        self.position.turn = turn;
        self.position.at = 0;
        self.buffer.clear();
        self.buffer_at = 0;
    }
}

impl Iterator for Reader {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<io::Result<Entry>> {
        self.next_entry().transpose()
    }
}

/// Opens the tail file that turn `turn` would be in, and says which turn it really holds.
fn turn_of(path: &Path, turn: u64) -> Option<(u64, File)> {
    let file = File::open(tail_path(path, turn)).ok()?;
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let header = Header::decode(&bytes)?;
    (header.kind == KIND_TURN).then_some((header.offset, file))
}

/// What the log at `path` takes on disk, in all its files; nothing if there is none.
pub fn stored_bytes(path: &Path) -> u64 {
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
    length(path) + [1, 2].into_iter().map(|turn| length(&tail_path(path, turn))).sum::<u64>()
}

/// The last line with something in it, read from the end; for a live view. `None` when there is none yet.
pub fn last_line(path: &Path) -> Option<String> {
    let newest = [turn_of(path, 1), turn_of(path, 2)].into_iter().flatten().max_by_key(|(turn, _)| *turn);
    let file = match newest {
        Some((_, file)) => file,
        None => File::open(path).ok()?,
    };
    let mut end = file.metadata().ok()?.len();
    if frame_before(&file, end).is_none() {
        end = whole_frames_end(&file);
    }
    let mut text: Vec<u8> = Vec::new();
    let mut stream = None;
    while text.len() < TAIL_BYTES {
        let Some(header) = frame_before(&file, end) else {
            break;
        };
        let start = end - header.frame_bytes();
        if header.kind < KIND_TURN && *stream.get_or_insert(header.kind) == header.kind {
            let want = (header.len as usize).min(TAIL_BYTES);
            let mut piece = vec![0; want];
            file.read_exact_at(&mut piece, end - (want + TRAILER_BYTES) as u64).ok()?;
            piece.append(&mut text);
            text = piece;
            if let Some(line) = last_whole_line(&text) {
                return Some(line);
            }
        }
        end = start;
    }
    text.rsplit(|b| *b == b'\n').find(|line| !line.trim_ascii().is_empty()).map(line_text)
}

/// The frame that ends at byte `end`.
fn frame_before(file: &File, end: u64) -> Option<Header> {
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, end.checked_sub(TRAILER_BYTES as u64)?).ok()?;
    let len = u32::from_le_bytes(trailer);
    let start = end.checked_sub(u64::from(len) + (HEADER_BYTES + TRAILER_BYTES) as u64)?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, start).ok()?;
    Header::decode(&header).filter(|header| header.len == len)
}

/// Where the whole frames end, found from the start: for a file whose last frame is torn.
fn whole_frames_end(file: &File) -> u64 {
    let length = file.metadata().map_or(0, |meta| meta.len());
    let mut at = 0;
    let mut bytes = [0; HEADER_BYTES];
    while file.read_exact_at(&mut bytes, at).is_ok()
        && let Some(header) = Header::decode(&bytes)
        && at + header.frame_bytes() <= length
    {
        at += header.frame_bytes();
    }
    at
}

/// The last non-empty line, if its beginning is in `text`.
fn last_whole_line(text: &[u8]) -> Option<String> {
    let mut lines = text.rsplit(|b| *b == b'\n');
    let count = text.iter().filter(|b| **b == b'\n').count();
    // The first line of `text` may have begun in an earlier frame.
    lines.by_ref().take(count).find(|line| !line.trim_ascii().is_empty()).map(line_text)
}

fn line_text(line: &[u8]) -> String {
    String::from_utf8_lossy(line.trim_ascii_end()).into_owned()
}

/// What a log amounts to, read back from its files: for attempts whose runner did not live to say it.
pub fn summary(path: &Path) -> LogSummary {
    let mut summary = LogSummary::default();
    let mut tails: [Vec<u8>; 2] = Default::default();
    let Ok(reader) = read(path) else { return summary };
    for entry in reader.map_while(Result::ok) {
        match entry {
            Entry::Record(record) => {
                if let Some(tail) = tails.get_mut(record.stream.index()) {
                    summary.bytes = summary.bytes.saturating_add(record.bytes.len() as u64);
                    keep_tail(tail, &record.bytes);
                }
            }
            Entry::Cut { bytes, .. } => {
                // As long as a damaged log makes it.
                summary.bytes = summary.bytes.saturating_add(bytes);
                summary.cut_bytes = summary.cut_bytes.saturating_add(bytes);
            }
        }
    }
    summary.stdout_tail = tail_text(&tails[0]);
    summary.stderr_tail = tail_text(&tails[1]);
    summary
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Writer;

    fn written(dir: &Path, cap_bytes: u64, lines: u32) -> PathBuf {
        let path = dir.join("a/log");
        let mut writer = Writer::new(path.clone(), cap_bytes);
        for line in 0..lines {
            writer.write(Stream::Stdout, 1, format!("line {line}\n").as_bytes());
            if line % 100 == 0 {
                writer.write(Stream::Stderr, 2, b"!");
            }
        }
        writer.finish(3);
        path
    }

    #[test]
    fn reading_in_pieces_gives_the_same_as_reading_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path(), 10_000, 5_000);
        let whole: Vec<Entry> = read(&path).unwrap().map(Result::unwrap).collect();
        assert!(whole.iter().any(|entry| matches!(entry, Entry::Cut { .. })));
        let mut position = Position::default();
        let mut pieces = Vec::new();
        loop {
            let mut reader = Reader::resume(&path, position).unwrap();
            let Some(entry) = reader.next() else { break };
            pieces.push(entry.unwrap());
            // A cut is told together with the frame that revealed it.
            while !reader.pending.is_empty() {
                pieces.push(reader.next().unwrap().unwrap());
            }
            position = reader.position();
        }
        assert_eq!(pieces, whole);
    }

    #[test]
    fn every_byte_is_told_or_said_to_be_cut() {
        let dir = tempfile::tempdir().unwrap();
        for cap_bytes in [0, 5_000, 20_000, 1 << 20] {
            let path = written(dir.path(), cap_bytes, 3_000);
            let mut next = [0; 3];
            for entry in read(&path).unwrap() {
                let (stream, offset, bytes) = match entry.unwrap() {
                    Entry::Record(record) => (record.stream, record.offset, record.bytes.len() as u64),
                    Entry::Cut { stream, offset, bytes } => (stream, offset, bytes),
                };
                assert_eq!(next[stream.index()], offset);
                next[stream.index()] += bytes;
            }
            let stdout: usize = (0..3_000).map(|line| format!("line {line}\n").len()).sum();
            assert_eq!(next, [stdout as u64, 30, 0]);
        }
    }

    /// Found by fuzzing: what no stream can hold is no frame, rather than a sum that overflows.
    #[test]
    fn a_place_beyond_every_stream_is_no_frame() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let frame = |kind, offset, body: &[u8]| {
            let header = Header { kind, len: body.len() as u32, at_ms: 1, offset };
            [&header.encode(), body, &header.len.to_le_bytes()].concat()
        };
        let totals = [u64::MAX; 3].map(u64::to_le_bytes).concat();
        let good = [frame(0, 0, b"x"), frame(KIND_TOTALS, 0, &totals)].concat();
        for damaged in [frame(0, u64::MAX, b"y"), frame(KIND_TURN, u64::MAX, b"")] {
            std::fs::write(&path, [&good[..], &good, &damaged].concat()).unwrap();
            std::fs::write(tail_path(&path, 1), &damaged).unwrap();
            assert_eq!(read(&path).unwrap().filter(|e| matches!(e, Ok(Entry::Record(_)))).count(), 2);
            assert_eq!(summary(&path).cut_bytes, u64::MAX);
            assert_eq!(last_line(&path).as_deref(), Some("xx"));
        }
    }

    #[test]
    fn a_torn_end_is_passed_over_and_read_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path(), 1 << 20, 3);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut reader = read(&path).unwrap();
            let before = reader.by_ref().count();
            let line = last_line(&path);
            assert!(line.is_none_or(|line| line.starts_with("line ") || line == "!"));
            std::fs::write(&path, &whole).unwrap();
            assert_eq!(before + reader.count(), 4);
        }
        assert_eq!(last_line(&path).as_deref(), Some("line 2"));
    }
}
