//! What coordinator and runner say to each other, and the logs they leave.

#![allow(clippy::unwrap_used)]

mod support;

use std::fmt::Debug;
use std::fs;
use std::path::Path;

use cis_fuzz::{Corpus, fuzz};
use cis_runner::frame::{Decoder, FrameError, encode};
use cis_runner::log::{Appender, Entry, Position, Reader, Record, Stream, last_line, read, summary};
use cis_runner::protocol::{FromRunner, ToRunner};
use serde::Serialize;
use serde::de::DeserializeOwned;
use support::{dir, put};

/// Records after which reading is not broken off and taken up again any more: each time costs a file opened.
const RESUMED_MAX: usize = 4;

#[test]
fn fuzz_frames() {
    fuzz(&Corpus::of("frame"), |text| {
        // As bytes off a socket, and with every line in a frame of its own.
        let framed: Vec<u8> = text.split(|b| *b == b'\n').flat_map(frame).collect();
        let seen = [text, &framed].map(|bytes| decode::<ToRunner>(bytes) + decode::<FromRunner>(bytes));
        seen.iter().sum::<usize>() > 0
    });
}

fn frame(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_le_bytes(), body].concat()
}

/// How many messages there are: the same however the bytes come in, and the same when they are sent on.
fn decode<T: Debug + Serialize + DeserializeOwned>(bytes: &[u8]) -> usize {
    let (whole, told) = pull::<T>(bytes, bytes.len().max(1));
    // The bytes themselves say how they are cut: every input is cut in its own way, and always in the same.
    let step = 1 + bytes.iter().map(|b| usize::from(*b)).sum::<usize>() % 13;
    let (pieces, told_in_pieces) = pull::<T>(bytes, step);
    assert_eq!((&pieces, told_in_pieces.is_some()), (&whole, told.is_some()));
    let sent: Vec<u8> =
        whole.iter().flat_map(|json| encode(&serde_json::from_str::<T>(json).unwrap()).unwrap()).collect();
    assert_eq!(pull::<T>(&sent, step).0, whole);
    whole.len()
}

/// The messages, as JSON, and what ended them.
fn pull<T: Serialize + DeserializeOwned>(bytes: &[u8], step: usize) -> (Vec<String>, Option<FrameError>) {
    let (mut decoder, mut messages) = (Decoder::new(), Vec::new());
    for piece in bytes.chunks(step) {
        decoder.push(piece);
        loop {
            match decoder.pull::<T>() {
                Ok(Some(message)) => messages.push(serde_json::to_string(&message).unwrap()),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}

/// Logs as they are written, in both halves.
fn logs() -> Vec<Vec<u8>> {
    let dir = dir();
    let path = dir.path().join("log");
    let mut log = Appender::open(path.clone(), 1 << 20).unwrap();
    for (stream, offset, bytes) in [
        (Stream::Stdout, 0, "one\ntwo\n"),
        (Stream::Stderr, 0, "oh\n"),
        (Stream::Stdout, 8, "three"),
        (Stream::Stdout, 500, "after a cut\n"),
        (Stream::Runner, 0, "said by the runner\n"),
    ] {
        log.append(&Record { stream, at_ms: 17, offset, bytes: bytes.as_bytes().to_vec() }).unwrap();
    }
    let log = fs::read(&path).unwrap();
    // The first frame of a tail says which turn it is; the last of a log that was cut, how long the streams were.
    let frame = |kind: u8, offset: u64, body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        [&[kind], &length[..], &17_i64.to_le_bytes(), &offset.to_le_bytes(), body, &length].concat()
    };
    let totals = [600_u64, 3, 19].map(u64::to_le_bytes).concat();
    vec![
        [frame(3, 1, b""), log.clone()].concat(),
        [frame(3, 2, b""), log.clone(), frame(4, 0, &totals)].concat(),
        log,
    ]
}

#[test]
fn fuzz_logs() {
    let dir = dir();
    let path = dir.path().join("log");
    let tails = [".tail.0", ".tail.1"].map(|end| dir.path().join(format!("log{end}")));
    fuzz(&Corpus::of("log").with(logs()).inputs(500), |bytes| {
        // The last byte says how much of it is in which file.
        let (last, bytes) = bytes.split_last().unwrap_or((&0, &[]));
        let (head, rest) = bytes.split_at(bytes.len() * usize::from(last % 4) / 3);
        let (first, second) = rest.split_at(rest.len() * usize::from(last / 4 % 3) / 2);
        put(&path, head);
        put(&tails[0], first);
        put(&tails[1], second);
        let records = read_all(&path, bytes.len(), rest.is_empty());
        let told = summary(&path);
        assert!(told.cut_bytes <= told.bytes);
        assert!(last_line(&path).is_none_or(|line| !line.contains('\n') && !line.is_empty()));
        add(&path);
        records > 0
    });
}

/// Reads to the end: no more is told than is there. In pieces it is the same as at once, unless the parts of the log
/// contradict each other; then it ends at least.
fn read_all(path: &Path, length: usize, is_one_file: bool) -> usize {
    let records = |reader: &mut Reader, count: usize| -> Vec<Record> {
        let records = reader.map(Result::unwrap).filter_map(|entry| match entry {
            Entry::Record(record) => Some(record),
            Entry::Cut { .. } => None,
        });
        records.take(count).collect()
    };
    let whole = records(&mut read(path).unwrap(), usize::MAX);
    assert!(whole.iter().map(|record| record.bytes.len()).sum::<usize>() <= length);
    let (mut position, mut pieces) = (Position::default(), Vec::new());
    while pieces.len() < RESUMED_MAX {
        let mut reader = Reader::resume(path, position).unwrap();
        let Some(record) = records(&mut reader, 1).pop() else { break };
        pieces.push(record);
        assert!(pieces.len() <= whole.len(), "it goes round in circles");
        position = reader.position();
    }
    assert!(pieces[..] == whole[..whole.len().min(RESUMED_MAX)] || !is_one_file);
    whole.len()
}

/// What is added after whatever was there is read back, and what is told twice is written once.
fn add(path: &Path) {
    let piece = |offset| Record { stream: Stream::Stderr, at_ms: 1, offset, bytes: b"added\n".to_vec() };
    // Opened anew for each, so that the end is found in the file.
    let append = |piece| Appender::open(path.to_owned(), 1 << 20).unwrap().append(&piece).unwrap();
    let known = append(piece(0));
    let told = append(piece(known));
    assert!(told >= known);
    let length = fs::metadata(path).unwrap().len();
    assert_eq!(append(piece(known)), told);
    assert_eq!(fs::metadata(path).unwrap().len(), length);
}
