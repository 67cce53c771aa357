//! Adding to a log from outside the runner, a piece at a time. A piece that is told twice is written once.
//!
//! Where the next piece goes is kept in memory, so a piece costs the same however long the log is; and so is what the log amounts
//! to, so that its end costs no read. After a restart one pass over the file finds both again.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, Read as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::write::tail_text;
use super::{FRAME_BYTES_MAX, HEADER_BYTES, Header, OVERHEAD_BYTES, Record, Stream, TRAILER_BYTES};
use crate::protocol::{LogSummary, TAIL_BYTES};

/// The last words of a log that takes no more.
const FULL: &[u8] = b"the log is full: what follows is not kept\n";

/// How much of the file is read at once while looking for its end.
const SCAN_BYTES: usize = 128 << 10;

/// The end of a log that is added to. There must be one at a time per log.
#[derive(Debug)]
pub struct Appender {
    path: PathBuf,
    /// The file takes no more than this, frames and all.
    cap_bytes: u64,
    end: LogEnd,
}

/// Where a log ends, and what it amounts to so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct LogEnd {
    /// The whole frames of the file.
    bytes: u64,
    /// How much of each stream has been told.
    told: [u64; 3],
    /// It says that it is full, and stays so.
    is_full: bool,
    /// How much of the task's streams the file has, or shows to be missing.
    output_bytes: u64,
    /// How much of that is missing.
    cut_bytes: u64,
    /// Where the last frame of each stream ends.
    ends: [u64; 3],
    /// The last bytes of the task's streams. Thousands of logs are kept, so there are no more of them than are told.
    tails: [Vec<u8>; 2],
}

impl LogEnd {
    /// Takes in a frame; of its bytes at least the last [`TAIL_BYTES`] are needed.
    fn add_frame(&mut self, header: &Header, last: &[u8]) {
        self.bytes += header.frame_bytes();
        let (index, end) = (usize::from(header.kind), header.offset + u64::from(header.len));
        let Some(before) = self.ends.get_mut(index) else { return };
        let missing = header.offset.saturating_sub(*before);
        *before = end;
        self.told[index] = end;
        self.output_bytes = self.output_bytes.saturating_add(missing);
        self.cut_bytes = self.cut_bytes.saturating_add(missing);
        if let Some(tail) = self.tails.get_mut(index) {
            self.output_bytes = self.output_bytes.saturating_add(header.len.into());
            let last = &last[last.len().saturating_sub(TAIL_BYTES)..];
            tail.drain(..(tail.len() + last.len()).saturating_sub(TAIL_BYTES).min(tail.len()));
            tail.reserve_exact(last.len());
            tail.extend_from_slice(last);
        }
    }
}

impl Appender {
    /// Looks through the log at `path` once; a log that does not exist is empty.
    pub fn open(path: PathBuf, cap_bytes: u64) -> io::Result<Appender> {
        let end = match File::open(&path) {
            Ok(file) => find_end(&file)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => LogEnd::default(),
            Err(e) => return Err(e),
        };
        Ok(Appender { path, cap_bytes, end })
    }

    /// What the log amounts to, as [`summary`](super::summary) reads it from the file.
    pub fn summary(&self) -> LogSummary {
        let LogEnd { output_bytes, cut_bytes, tails: [stdout, stderr], .. } = &self.end;
        LogSummary {
            bytes: *output_bytes,
            cut_bytes: *cut_bytes,
            stdout_tail: tail_text(stdout),
            stderr_tail: tail_text(stderr),
        }
    }

    /// Adds what of `piece` the log does not hold yet, while it is below its cap; answers how much of that stream has now
    /// been told.
    pub fn append(&mut self, piece: &Record) -> io::Result<u64> {
        let told = piece.offset + piece.bytes.len() as u64;
        let known = self.end.told[piece.stream.index()];
        if told <= known {
            return Ok(known);
        }
        if !self.end.is_full {
            self.write_new(piece, known)?;
        }
        self.end.told[piece.stream.index()] = told;
        Ok(told)
    }

    fn write_new(&mut self, piece: &Record, known: u64) -> io::Result<()> {
        let file = open(&self.path)?;
        if file.metadata()?.len() != self.end.bytes {
            // Its writer was killed in the middle of a frame, or the disk was full there.
            let told = self.end.told;
            self.end = find_end(&file)?;
            file.set_len(self.end.bytes)?;
            // What was told stays told, also if it is gone.
            for (found, told) in self.end.told.iter_mut().zip(told) {
                *found = told.max(*found);
            }
        }
        let new = usize::try_from(known.saturating_sub(piece.offset)).unwrap_or(usize::MAX);
        let mut offset = piece.offset + new as u64;
        for part in piece.bytes.get(new..).unwrap_or_default().chunks(FRAME_BYTES_MAX) {
            let needed = (part.len() + 2 * OVERHEAD_BYTES + FULL.len()) as u64;
            if self.end.is_full || self.end.bytes + needed > self.cap_bytes {
                return self.say_full(&file, piece.at_ms);
            }
            // Kept as it goes: if the disk takes no more of the piece, its sender tells the rest again.
            let header = write(&file, self.end.bytes, piece.stream, piece.at_ms, offset, part)?;
            self.end.add_frame(&header, part);
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Says once that the log is full.
    fn say_full(&mut self, file: &File, at_ms: i64) -> io::Result<()> {
        if !self.end.is_full {
            let header = write(file, self.end.bytes, Stream::Runner, at_ms, 0, FULL)?;
            self.end.add_frame(&header, FULL);
            self.end.is_full = true;
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let open =
        || OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    match (open(), path.parent()) {
        (Err(e), Some(parent)) if e.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            open()
        }
        (opened, _) => opened,
    }
}

/// Finds the end of the whole frames, reading the file from its start: as many frames as fit below a cap.
fn find_end(file: &File) -> io::Result<LogEnd> {
    let length = file.metadata()?.len();
    let mut file = BufReader::with_capacity(SCAN_BYTES, file);
    let mut end = LogEnd::default();
    let (mut header, mut last) = ([0; HEADER_BYTES], Vec::new());
    while end.bytes + OVERHEAD_BYTES as u64 <= length {
        file.read_exact(&mut header)?;
        let Some(header) = Header::decode(&header) else { break };
        if end.bytes + header.frame_bytes() > length {
            break;
        }
        let length = header.len as usize;
        last.resize(length.min(TAIL_BYTES), 0);
        file.seek_relative((length - last.len()) as i64)?;
        file.read_exact(&mut last)?;
        file.seek_relative(TRAILER_BYTES as i64)?;
        end.add_frame(&header, &last);
        // Nothing but the last words is the runner's in a log that is written from outside.
        end.is_full |= usize::from(header.kind) == Stream::Runner.index();
    }
    Ok(end)
}

fn write(file: &File, at: u64, stream: Stream, at_ms: i64, offset: u64, bytes: &[u8]) -> io::Result<Header> {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let header = Header { kind: stream.index() as u8, len, at_ms, offset };
    let mut frame = Vec::with_capacity(OVERHEAD_BYTES + bytes.len());
    frame.extend_from_slice(&header.encode());
    frame.extend_from_slice(bytes);
    frame.extend_from_slice(&len.to_le_bytes());
    file.write_all_at(&frame, at)?;
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Entry, read, summary};

    const CAP: u64 = 10_000;

    fn piece(stream: Stream, offset: u64, text: &str) -> Record {
        Record { stream, at_ms: 1, offset, bytes: text.as_bytes().to_vec() }
    }

    fn open_log(path: &Path) -> Appender {
        Appender::open(path.to_owned(), CAP).unwrap()
    }

    fn text(path: &Path, stream: Stream) -> String {
        let records = read(path).unwrap().filter_map(|entry| match entry.unwrap() {
            Entry::Record(record) if record.stream == stream => Some(record.bytes),
            _ => None,
        });
        String::from_utf8(records.flatten().collect()).unwrap()
    }

    /// Each piece is told to the same appender, and to a new one each time, as after a restart.
    fn both_ways(check: impl Fn(&Path, &mut dyn FnMut(Record) -> u64)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1/one.log");
        let mut log = open_log(&path);
        check(&path, &mut |piece| log.append(&piece).unwrap());
        let path = dir.path().join("1/two.log");
        check(&path, &mut |piece| open_log(&path).append(&piece).unwrap());
    }

    #[test]
    fn a_piece_told_twice_is_written_once() {
        both_ways(|path, append| {
            assert_eq!(append(piece(Stream::Stdout, 0, "one ")), 4);
            assert_eq!(append(piece(Stream::Stderr, 0, "oh")), 2);
            assert_eq!(append(piece(Stream::Stdout, 0, "one ")), 4);
            // It begins in what is known and goes on beyond it.
            assert_eq!(append(piece(Stream::Stdout, 2, "e two")), 7);
            assert_eq!(
                (text(path, Stream::Stdout), text(path, Stream::Stderr)),
                ("one two".into(), "oh".into())
            );
        });
    }

    #[test]
    fn half_a_frame_hides_nothing() {
        both_ways(|path, append| {
            append(piece(Stream::Stdout, 0, "one "));
            let file = OpenOptions::new().append(true).open(path).unwrap();
            std::io::Write::write_all(&mut &file, &[0, 9, 0, 0]).unwrap();
            append(piece(Stream::Stdout, 4, "two"));
            assert_eq!(text(path, Stream::Stdout), "one two");
        });
    }

    #[test]
    fn what_is_over_the_cap_is_said_to_be_cut() {
        both_ways(|path, append| {
            for n in 0..20 {
                let told = append(piece(Stream::Stdout, n * 1_000, &"x".repeat(1_000)));
                assert_eq!(told, (n + 1) * 1_000);
            }
            assert!(path.metadata().unwrap().len() <= CAP);
            assert_eq!(text(path, Stream::Stdout).len(), 9_000);
            assert_eq!(text(path, Stream::Runner).as_bytes(), FULL);
            // A full log stays full, also for what would still fit.
            append(piece(Stream::Stderr, 0, "x"));
            append(piece(Stream::Stdout, 20_000, &"x".repeat(1_000)));
            assert_eq!(text(path, Stream::Runner).as_bytes(), FULL);
            assert_eq!(text(path, Stream::Stderr), "");
        });
    }

    #[test]
    fn pieces_of_one_byte_do_not_grow_a_log_beyond_its_cap() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = open_log(&path);
        for n in 0..CAP {
            assert_eq!(log.append(&piece(Stream::Stdout, n, "x")).unwrap(), n + 1);
        }
        assert!(path.metadata().unwrap().len() <= CAP);
        assert_eq!(text(&path, Stream::Runner).as_bytes(), FULL);
    }

    #[test]
    fn the_end_found_after_a_restart_is_the_one_known_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Appender::open(path.clone(), 1 << 20).unwrap();
        for n in 0..300_u64 {
            let stream = if n % 3 == 0 { Stream::Stderr } else { Stream::Stdout };
            let offset = log.end.told[stream.index()];
            log.append(&piece(stream, offset, &"y".repeat(usize::try_from(n * 7 % 2_000).unwrap() + 1)))
                .unwrap();
            let found = Appender::open(path.clone(), 1 << 20).unwrap();
            assert_eq!(found.end, log.end);
            assert_eq!((log.summary(), found.summary()), (summary(&path), summary(&path)));
        }
    }

    #[test]
    fn a_log_amounts_to_the_same_whether_it_is_full_or_has_gaps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = open_log(&path);
        assert_eq!(log.summary(), LogSummary::default());
        for n in 0..12_u64 {
            // Each leaves out a byte, and some are in parts of a character.
            let stream = if n % 4 == 3 { Stream::Stderr } else { Stream::Stdout };
            log.append(&piece(stream, n * 1_001 + 1, &"é".repeat(500))).unwrap();
            assert_eq!(log.summary(), summary(&path), "{n}");
            assert_eq!(open_log(&path).summary(), summary(&path), "{n}");
        }
        assert!(log.end.is_full && log.summary().cut_bytes > 0);
    }

    /// What it amounts to is known without reading it, however long it is.
    #[test]
    fn the_summary_of_a_log_does_not_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Appender::open(path.clone(), 1 << 20).unwrap();
        log.append(&piece(Stream::Stdout, 0, &"x".repeat(100_000))).unwrap();
        std::fs::remove_file(&path).unwrap();
        let LogSummary { bytes, stdout_tail, .. } = log.summary();
        assert_eq!((bytes, stdout_tail), (100_000, "x".repeat(TAIL_BYTES)));
    }

    /// A piece neither reads nor walks what is there: only the length of the file is looked at.
    #[test]
    fn the_next_piece_is_written_without_reading_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = open_log(&path);
        log.append(&piece(Stream::Stdout, 0, "one")).unwrap();
        let length = path.metadata().unwrap().len();
        // Not a frame: if it were read, the log would be found to be empty.
        std::fs::write(&path, vec![0xff; usize::try_from(length).unwrap()]).unwrap();
        assert_eq!(log.append(&piece(Stream::Stderr, 0, "")).unwrap(), 0);
        assert_eq!(log.append(&piece(Stream::Stdout, 3, "two")).unwrap(), 6);
        assert!(path.metadata().unwrap().len() > length);
    }
}
