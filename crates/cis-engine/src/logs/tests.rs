use std::path::PathBuf;

use super::out::{LINE_JSON_BYTES, TAIL_BYTES_MAX};
use super::*;
use crate::coordinator::{KINDS, tests};
use crate::report;
use cis_core::id::RunKey;
use cis_core::source::BootTime;
use cis_runner::protocol::{AttemptKey, Ended, LogSummary, Outcome};
use cis_store::port::{Advance, Boot, Claim, CoordinatorStore as _};
use cis_store::{Durability, SqliteStore};

/// A run of one task, whose first attempt is under way.
struct Running {
    _dir: tempfile::TempDir,
    store: SqliteStore,
    reader: Reader,
    data_dir: DataDir,
    claimed: std::sync::Arc<cis_store::port::Claimed>,
    run: RunRow,
}

const NOW: Timestamp = Timestamp(2);

impl Running {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dag.db");
        let store = SqliteStore::open(&file, Durability::Process).unwrap();
        tests::run(&store, "command = 'true'").await;
        let epoch = store.open_epoch(NOW, Boot { id: "one".into(), now: BootTime(1) }).await.unwrap().epoch;
        let (holder, kinds, capabilities) = ("local".to_owned(), KINDS.to_vec(), Vec::new());
        let claim = Some(Claim { epoch, holder, limit: 1, kinds, scopes: None, capabilities });
        let mut advanced = store.advance(Advance { reports: Vec::new(), claim, now: NOW }).await.unwrap();
        let reader = Reader::open(&file).unwrap();
        let run = reader.run(RunKey(1)).unwrap().unwrap();
        let data_dir = DataDir::create(dir.path()).unwrap();
        Self { _dir: dir, store, reader, data_dir, claimed: advanced.claimed.remove(0), run }
    }

    fn log(&self) -> PathBuf {
        self.data_dir.log(self.run.key.0, self.claimed.execution.0, 1)
    }

    fn print(&self, offset: u64, text: &[u8]) {
        self.print_to(Stream::Stdout, offset, text);
    }

    fn print_to(&self, stream: Stream, offset: u64, text: &[u8]) {
        let bytes = text.to_vec();
        let mut log = log::Appender::open(self.log(), 16 << 20).unwrap();
        log.append(&log::Record { stream, at_ms: 1, offset, bytes }).unwrap();
    }

    async fn end(&self) {
        let key = AttemptKey { execution: self.claimed.execution.0, fence: self.claimed.fence.0 };
        let log = LogSummary { bytes: 8, ..LogSummary::default() };
        let outcome = Outcome::Exited { code: 0 };
        let ended = Ended { key, outcome, started_ms: 1, ended_ms: 2, log, outputs: None };
        let reports = vec![report::report(ended, Some(&self.claimed), 0)];
        self.store.advance(Advance { reports, claim: None, now: NOW }).await.unwrap();
    }

    fn lines(&self, wanted: Wanted) -> Lines {
        Lines::open(&self.reader, self.data_dir.clone(), self.run.clone(), wanted).unwrap()
    }

    /// All there is, in batches that take no more than `room`, but for a line that is longer.
    fn read_within(&self, wanted: Wanted, room: usize) -> Vec<LogLine> {
        let (mut lines, mut all, mut next_room) = (self.lines(wanted), Vec::new(), room);
        loop {
            match lines.next_within(&self.reader, next_room).unwrap() {
                Within::TooLong(bytes) => {
                    assert!(bytes > next_room);
                    next_room = bytes;
                }
                Within::Next(Next::Lines(batch)) => {
                    let json: usize =
                        batch.iter().map(|line| serde_json::to_vec(line).unwrap().len() + 1).sum();
                    assert!(
                        json <= next_room && (next_room == room || batch.len() == 1),
                        "{json} of {next_room}"
                    );
                    assert!(lines.partial_bytes <= PARTIALS_BYTES_MAX);
                    next_room = room;
                    all.extend(batch);
                }
                Within::Next(_) => return all,
            }
        }
    }

    /// All there is, and what the largest batch of it took as JSON.
    fn read_all(&self, wanted: Wanted) -> (Vec<LogLine>, usize) {
        let (mut lines, mut all, mut largest) = (self.lines(wanted), Vec::new(), 0);
        while let Next::Lines(batch) = lines.next(&self.reader).unwrap() {
            let json: usize = batch.iter().map(|line| serde_json::to_vec(line).unwrap().len() + 1).sum();
            largest = largest.max(json);
            all.extend(batch);
        }
        (all, largest)
    }
}

/// A follower that waits for the next change after it was quiet would wait for ever, if the last one came before that.
#[tokio::test(flavor = "current_thread")]
async fn it_is_not_quiet_if_the_run_ended_while_lines_were_told() {
    let running = Running::new().await;
    let mut lines = running.lines(Wanted { follow: true, ..Wanted::default() });
    let reader = &running.reader;
    running.print(0, b"one\n");
    assert!(matches!(lines.next(reader).unwrap(), Next::Lines(told) if told[0].text == "one"));
    assert!(matches!(lines.next(reader).unwrap(), Next::Quiet));
    running.print(4, b"two\n");
    assert!(matches!(lines.next(reader).unwrap(), Next::Lines(told) if told[0].text == "two"));
    running.end().await;
    assert!(matches!(lines.next(reader).unwrap(), Next::Over));
}

#[tokio::test(flavor = "current_thread")]
async fn a_batch_of_short_lines_is_bounded_by_what_is_sent() {
    let running = Running::new().await;
    running.print(0, &[b'\n'; 200_000]);
    for (tail, lines) in [(None, 200_000), (Some(5_000), 5_000)] {
        let (all, largest) = running.read_all(Wanted { tail, ..Wanted::default() });
        assert_eq!(all.len(), lines);
        assert!(all.iter().all(|line| line.text.is_empty() && !line.continues));
        assert!(largest <= BATCH_BYTES + LINE_JSON_BYTES, "{largest}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_long_line_is_told_in_parts_that_make_it_up() {
    let running = Running::new().await;
    // Parts of it end within a character, and all of it is escaped.
    let long = format!("x{}", "é\u{1}".repeat(200_000));
    running.print(0, format!("first\n{long}\nlast").as_bytes());
    let (all, largest) = running.read_all(Wanted::default());
    assert!(largest <= BATCH_BYTES + 6 * LINE_BYTES_MAX + LINE_JSON_BYTES, "{largest}");
    let mut lines = vec![String::new()];
    for line in &all {
        lines.last_mut().unwrap().push_str(&line.text);
        if !line.continues {
            lines.push(String::new());
        }
    }
    assert_eq!(lines, ["first", &long, "last", ""]);
    let (all, _) = running.read_all(Wanted { tail: Some(1), ..Wanted::default() });
    assert_eq!(all.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), ["last"]);
}

#[tokio::test(flavor = "current_thread")]
async fn the_last_lines_of_a_log_of_long_ones_are_bounded_in_bytes() {
    let running = Running::new().await;
    running.print(0, &[b'x'; 4 << 20]);
    let (all, _) = running.read_all(Wanted { tail: Some(10), ..Wanted::default() });
    let told: usize = all.iter().map(|line| line.text.len()).sum();
    assert!((TAIL_BYTES_MAX - 2 * LINE_BYTES_MAX..=TAIL_BYTES_MAX).contains(&told), "{told}");
    assert!(!all.last().unwrap().continues);
}

/// Lines of both streams of all lengths, some in parts, some with gaps before them, and the last without an end.
fn print_much(running: &Running) -> usize {
    let mut offsets = [0_u64; 2];
    for n in 0..300_u64 {
        let index = usize::from(n % 3 == 0);
        let length = usize::try_from(n * n % 977 + if n % 50 == 49 { 20_000 } else { 0 }).unwrap();
        let text = format!("{n} {}{}", "\u{1}é\"".repeat(length / 4), if n % 7 == 6 { "" } else { "\n" });
        offsets[index] += if n % 40 == 39 { 11 } else { 0 };
        let stream = [Stream::Stdout, Stream::Stderr][index];
        running.print_to(stream, offsets[index], text.as_bytes());
        offsets[index] += text.len() as u64;
    }
    running.read_all(Wanted::default()).0.len()
}

#[tokio::test(flavor = "current_thread")]
async fn lines_are_the_same_however_little_room_there_is() {
    let running = Running::new().await;
    assert!(print_much(&running) > 250);
    let all = running.read_all(Wanted::default()).0;
    assert!(all.iter().any(|line| line.text.contains("11 bytes were cut here")));
    assert!(all.iter().any(|line| line.continues));
    for room in [0, 500, 5_000, 16 << 10, BATCH_BYTES] {
        assert_eq!(running.read_within(Wanted::default(), room), all, "{room}");
    }
    let cis = Wanted { stream: Some(Stream::Runner), ..Wanted::default() };
    let cuts: Vec<_> = all.iter().filter(|line| line.stream == LogStream::Cis).cloned().collect();
    assert_eq!(running.read_within(cis, 500), cuts);
}

#[tokio::test(flavor = "current_thread")]
async fn last_lines_are_told_in_batches_as_any_others() {
    let running = Running::new().await;
    print_much(&running);
    let all = running.read_all(Wanted::default()).0;
    for tail in [0, 1, 2, 17, 200, 10_000] {
        let last = all.iter().rev().scan(0, |ends, line| {
            *ends += usize::from(!line.continues);
            (*ends <= tail).then_some(line)
        });
        let mut last: Vec<_> = last.cloned().collect();
        last.reverse();
        for room in [500, 16 << 10] {
            let wanted = Wanted { tail: Some(tail), ..Wanted::default() };
            assert_eq!(running.read_within(wanted, room), last, "{tail} {room}");
        }
    }
}

/// While the reader does not read, hardly anything is held of a record that was read.
#[tokio::test(flavor = "current_thread")]
async fn rest_of_a_record_is_read_again_rather_than_held() {
    let running = Running::new().await;
    running.print(0, format!("{}\n", "x".repeat(100)).repeat(10_000).as_bytes());
    for tail in [None, Some(9_000)] {
        let mut lines = running.lines(Wanted { tail, ..Wanted::default() });
        assert!(matches!(lines.next_within(&running.reader, 4_000).unwrap(), Within::Next(Next::Lines(_))));
        let held: usize = lines.open.values().flat_map(|open| &open.partial).map(Vec::capacity).sum();
        assert!(held <= LINE_BYTES_MAX, "{held}");
    }
}
