use std::path::PathBuf;

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
        let (stream, bytes) = (Stream::Stdout, text.to_vec());
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
