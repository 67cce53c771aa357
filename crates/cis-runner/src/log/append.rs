//! Adding to a log from outside the runner, a piece at a time. Nothing is kept in memory between pieces, so whoever
//! adds may be another process each time; a piece that is told twice is written once.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use super::read::{frame_before, whole_frames_end};
use super::{FRAME_BYTES_MAX, Header, OVERHEAD_BYTES, Record, Stream};

/// The last words of a log that takes no more.
const FULL: &[u8] = b"the log is full: what follows is not kept\n";

/// Adds what of `piece` the log at `path` does not hold yet, while it is below `cap_bytes`; answers how much of that
/// stream has now been told.
pub fn append(path: &Path, cap_bytes: u64, piece: &Record) -> io::Result<u64> {
    let file = open(path)?;
    let mut end = file.metadata()?.len();
    if end > 0 && frame_before(&file, end).is_none() {
        // Whoever wrote last was killed in the middle.
        end = whole_frames_end(&file);
        file.set_len(end)?;
    }
    let told = piece.offset + piece.bytes.len() as u64;
    let known = length_of(&file, end, piece.stream);
    if told <= known {
        return Ok(known);
    }
    let new = usize::try_from(known.saturating_sub(piece.offset)).unwrap_or(usize::MAX);
    let mut offset = piece.offset + new as u64;
    for part in piece.bytes.get(new..).unwrap_or_default().chunks(FRAME_BYTES_MAX) {
        let is_full = end + (part.len() + 2 * OVERHEAD_BYTES + FULL.len()) as u64 > cap_bytes;
        if is_full {
            say_full(&file, end, piece.at_ms)?;
            break;
        }
        end += write(&file, end, piece.stream, piece.at_ms, offset, part)?;
        offset += part.len() as u64;
    }
    Ok(told)
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

/// How much of `stream` the frames before `end` hold, from the last one that has any of it.
fn length_of(file: &File, mut end: u64, stream: Stream) -> u64 {
    while let Some(header) = frame_before(file, end) {
        if usize::from(header.kind) == stream.index() {
            return header.offset + u64::from(header.len);
        }
        end -= header.frame_bytes();
    }
    0
}

/// Says once that the log is full.
fn say_full(file: &File, end: u64, at_ms: i64) -> io::Result<()> {
    let said = frame_before(file, end).is_some_and(|last| usize::from(last.kind) == Stream::Runner.index());
    if said { Ok(()) } else { write(file, end, Stream::Runner, at_ms, 0, FULL).map(drop) }
}

fn write(file: &File, at: u64, stream: Stream, at_ms: i64, offset: u64, bytes: &[u8]) -> io::Result<u64> {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let header = Header { kind: stream.index() as u8, len, at_ms, offset };
    let mut frame = Vec::with_capacity(OVERHEAD_BYTES + bytes.len());
    frame.extend_from_slice(&header.encode());
    frame.extend_from_slice(bytes);
    frame.extend_from_slice(&len.to_le_bytes());
    file.write_all_at(&frame, at)?;
    Ok(header.frame_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Entry, read};

    const CAP: u64 = 10_000;

    fn piece(stream: Stream, offset: u64, text: &str) -> Record {
        Record { stream, at_ms: 1, offset, bytes: text.as_bytes().to_vec() }
    }

    fn text(path: &Path, stream: Stream) -> String {
        let records = read(path).unwrap().filter_map(|entry| match entry.unwrap() {
            Entry::Record(record) if record.stream == stream => Some(record.bytes),
            _ => None,
        });
        String::from_utf8(records.flatten().collect()).unwrap()
    }

    #[test]
    fn a_piece_told_twice_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1/2.log");
        assert_eq!(append(&path, CAP, &piece(Stream::Stdout, 0, "one ")).unwrap(), 4);
        assert_eq!(append(&path, CAP, &piece(Stream::Stderr, 0, "oh")).unwrap(), 2);
        assert_eq!(append(&path, CAP, &piece(Stream::Stdout, 0, "one ")).unwrap(), 4);
        // It begins in what is known and goes on beyond it.
        assert_eq!(append(&path, CAP, &piece(Stream::Stdout, 2, "e two")).unwrap(), 7);
        assert_eq!(
            (text(&path, Stream::Stdout), text(&path, Stream::Stderr)),
            ("one two".into(), "oh".into())
        );
    }

    #[test]
    fn half_a_frame_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        append(&path, CAP, &piece(Stream::Stdout, 0, "one ")).unwrap();
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut &file, &[0, 9, 0, 0]).unwrap();
        append(&path, CAP, &piece(Stream::Stdout, 4, "two")).unwrap();
        assert_eq!(text(&path, Stream::Stdout), "one two");
    }

    #[test]
    fn what_is_over_the_cap_is_said_to_be_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for n in 0..20 {
            let told = append(&path, CAP, &piece(Stream::Stdout, n * 1_000, &"x".repeat(1_000))).unwrap();
            assert_eq!(told, (n + 1) * 1_000);
        }
        assert!(path.metadata().unwrap().len() <= CAP);
        assert_eq!(text(&path, Stream::Stdout).len(), 9_000);
        assert_eq!(text(&path, Stream::Runner).as_bytes(), FULL);
    }
}
