//! What tasks of a run printed, a line at a time: what there is, and if that is wanted, what comes.
//!
//! It is asked for the next lines again and again and reads no further than it is asked, so that neither a slow reader
//! nor a long log takes room. Which tasks have something new is learnt from events, so that of a large run only those
//! are looked at that move.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;

use cis_api::log::{LogLine, LogStream};
use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::event::Change;
use cis_core::id::{ExecutionId, Position, TaskIx};
use cis_core::source::Timestamp;
use cis_runner::log::{self, Entry, Stream};
use cis_store::Reader;
use cis_store::rows::{RunRow, TaskRow};

use crate::data_dir::DataDir;
use crate::select;

/// Output read before it is handed on.
const BATCH_BYTES: usize = 256 << 10;

/// Tasks and events looked at at once.
const PAGE: u32 = 1_000;

/// What is wanted of a run's output.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Only these tasks; all, if none is named.
    pub tasks: Vec<String>,
    /// This attempt instead of the latest.
    pub attempt: Option<u32>,
    pub stream: Option<Stream>,
    /// Of what there is at first, so many lines of each task.
    pub tail: Option<usize>,
    /// Also what comes, until the tasks are over.
    pub follow: bool,
}

/// What comes next.
#[derive(Debug)]
pub enum Next {
    Lines(Vec<LogLine>),
    /// Nothing at present.
    Quiet,
    /// Nothing ever.
    Over,
}

/// The lines of a run.
#[derive(Debug)]
pub struct Lines {
    data_dir: DataDir,
    run: RunRow,
    dag: Dag,
    tasks: Vec<TaskIx>,
    wanted: Wanted,
    stage: Stage,
    /// Attempts to read before anything else is looked at.
    queue: VecDeque<Piece>,
    /// Logs of attempts that are not over, by task and attempt.
    open: HashMap<(TaskIx, u32), Open>,
    /// The attempt of each task to tell next.
    next: HashMap<TaskIx, u32>,
    /// Events up to here have been taken in.
    position: Position,
}

/// What to do once everything found so far has been told.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Look at the tasks after this one, for what is there.
    First(Option<TaskIx>),
    /// Look at what has moved since.
    Again,
    /// Nothing, until asked again.
    Rest,
    /// Nothing ever.
    Done,
}

/// The output of one attempt.
#[derive(Debug, Clone, Copy)]
struct Piece {
    task: TaskIx,
    execution: ExecutionId,
    attempt: u32,
    /// Nothing will be added to it.
    over: bool,
    /// How much there was of it, where that is known.
    bytes: Option<u64>,
    /// Only so many of its lines.
    tail: Option<usize>,
}

/// Where reading a log stands, and the line each stream has not ended.
#[derive(Debug, Default)]
struct Open {
    position: log::Position,
    partial: [Vec<u8>; 3],
}

/// A stream as callers see it.
fn shown_stream(stream: Stream) -> LogStream {
    match stream {
        Stream::Stdout => LogStream::Stdout,
        Stream::Stderr => LogStream::Stderr,
        Stream::Runner => LogStream::Cis,
    }
}

/// The stream with this word.
pub fn stream(text: &str) -> Result<Stream, Refusal> {
    Stream::ALL.into_iter().find(|stream| shown_stream(*stream).as_str() == text).ok_or_else(|| {
        Refusal::new(ErrorCode::ValidationFailed, format!("there is no stream `{text}`"))
            .hint("one of stdout, stderr, cis")
    })
}

impl Lines {
    /// The lines of `run`; a task that it does not have is refused.
    pub fn open(reader: &Reader, data_dir: DataDir, run: RunRow, wanted: Wanted) -> Result<Self, Refusal> {
        let dag = reader.definition(run.definition)?;
        let tasks = select::named(&dag, &wanted.tasks)?;
        Ok(Self {
            data_dir,
            run,
            dag,
            tasks,
            wanted,
            stage: Stage::First(None),
            queue: VecDeque::new(),
            open: HashMap::new(),
            next: HashMap::new(),
            // What happens from here on is looked at again, so nothing falls between the two looks.
            position: reader.last_position()?,
        })
    }

    /// The next lines.
    pub fn next(&mut self, reader: &Reader) -> Result<Next, Refusal> {
        loop {
            while let Some(piece) = self.queue.front().copied() {
                let lines = self.read(piece)?;
                if !lines.is_empty() {
                    // Much may happen while they are told: it is quiet only if a look after that finds nothing.
                    if matches!(self.stage, Stage::Rest) {
                        self.stage = Stage::Again;
                    }
                    return Ok(Next::Lines(lines));
                }
            }
            match self.stage {
                Stage::First(after) => self.look_through(reader, after)?,
                Stage::Again => self.look_again(reader)?,
                Stage::Rest => {
                    self.stage = Stage::Again;
                    return Ok(Next::Quiet);
                }
                Stage::Done => return Ok(Next::Over),
            }
        }
    }

    /// Finds what is there: the tasks that were named, or all of them, a page at a time.
    fn look_through(&mut self, reader: &Reader, after: Option<TaskIx>) -> Result<(), Refusal> {
        let page = match self.tasks.as_slice() {
            [] => reader.task_page(&self.run, None, after, PAGE)?,
            named => {
                let rows = named.iter().map(|ix| reader.task(&self.run, *ix));
                rows.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()
            }
        };
        for task in &page {
            self.enqueue(task, task.attempt, self.wanted.tail);
        }
        self.stage = match page.last() {
            Some(last) if page.len() == PAGE as usize => Stage::First(Some(last.key)),
            _ if self.wanted.follow => Stage::Again,
            _ => Stage::Done,
        };
        Ok(())
    }

    /// Finds what has moved since the last look, and what may have grown.
    fn look_again(&mut self, reader: &Reader) -> Result<(), Refusal> {
        // Read before the logs, so that whatever is seen as over has all its output told after it.
        let over = self.is_over(reader)?;
        let (events, read_to) = reader.events(&self.run, self.position, PAGE)?;
        let mut moved: BTreeSet<TaskIx> = self.open.keys().map(|(task, _)| *task).collect();
        for event in &events {
            if let Change::Task { task, .. } = event.change
                && (self.tasks.is_empty() || self.tasks.contains(&task))
            {
                moved.insert(task);
            }
        }
        for ix in moved {
            if let Some(task) = reader.task(&self.run, ix)? {
                self.enqueue(&task, 1, None);
            }
        }
        let more = read_to > self.position;
        self.position = read_to;
        self.stage = match (more, over) {
            (true, _) => Stage::Again,
            (false, true) => Stage::Done,
            (false, false) => Stage::Rest,
        };
        Ok(())
    }

    fn is_over(&self, reader: &Reader) -> Result<bool, Refusal> {
        if reader.run(self.run.key)?.is_none_or(|run| run.status.is_terminal()) {
            return Ok(true);
        }
        for ix in &self.tasks {
            if reader.task(&self.run, *ix)?.is_none_or(|task| !task.status.is_terminal()) {
                return Ok(false);
            }
        }
        Ok(!self.tasks.is_empty())
    }

    /// Puts what has not been told of a task into the queue, from attempt `from` on if none was told yet.
    fn enqueue(&mut self, task: &TaskRow, from: u32, tail: Option<usize>) {
        if task.attempt == 0 {
            return;
        }
        let first = *self.next.entry(task.key).or_insert(self.wanted.attempt.unwrap_or(from));
        let last = self.wanted.attempt.unwrap_or(task.attempt).min(task.attempt);
        for attempt in first..=last {
            let lives = attempt == task.attempt && task.status.is_live() && self.wanted.follow;
            let (execution, over) = (task.execution_id, !lives);
            let ended = attempt == task.attempt && !task.status.is_live();
            let bytes = ended.then_some(task.log_bytes);
            self.queue.push_back(Piece { task: task.key, execution, attempt, over, bytes, tail });
        }
    }

    /// Some lines of the piece at the head of the queue, which leaves it once there are no more at present.
    fn read(&mut self, piece: Piece) -> Result<Vec<LogLine>, Refusal> {
        let path = self.data_dir.log(self.run.key.0, piece.execution.0, piece.attempt);
        let mut open = self.open.remove(&(piece.task, piece.attempt)).unwrap_or_default();
        let mut out = Out {
            task_id: self.dag.tasks[piece.task.index()].id.as_str(),
            piece,
            wanted: &self.wanted,
            lines: Vec::new(),
        };
        let whole = match log::Reader::resume(&path, open.position) {
            Ok(log) => open.take(log, &mut out).map_err(unreadable)?,
            // A task that printed nothing has no file.
            Err(e) if e.kind() == io::ErrorKind::NotFound => true,
            Err(e) => return Err(unreadable(e)),
        };
        if whole && piece.over {
            open.end(&mut out);
            // A disk that had no room for them had none to say so either.
            let missing = piece.bytes.map_or(0, |bytes| bytes.saturating_sub(open.position.told()));
            out.cut(missing);
        }
        let lines = out.told();
        if whole {
            self.queue.pop_front();
        }
        if whole && piece.over {
            self.next.insert(piece.task, piece.attempt + 1);
        } else {
            self.open.insert((piece.task, piece.attempt), open);
        }
        Ok(lines)
    }
}

fn unreadable(e: io::Error) -> Refusal {
    Refusal::new(ErrorCode::Unavailable, format!("cannot read a log: {e}"))
}

impl Open {
    /// Reads on, a batch at most; true once there is no more at present.
    fn take(&mut self, mut log: log::Reader, out: &mut Out<'_>) -> io::Result<bool> {
        let mut bytes = 0;
        let whole = loop {
            match log.next().transpose()? {
                None => break true,
                Some(Entry::Cut { bytes, .. }) => {
                    self.end(out);
                    out.cut(bytes);
                }
                Some(Entry::Record(record)) => {
                    bytes += record.bytes.len();
                    self.record(&record, out);
                    // Between two records: a cut that was told is not told again.
                    if bytes >= BATCH_BYTES && out.piece.tail.is_none() {
                        break false;
                    }
                }
            }
        };
        self.position = log.position();
        Ok(whole)
    }

    fn record(&mut self, record: &log::Record, out: &mut Out<'_>) {
        let partial = &mut self.partial[place(record.stream)];
        partial.extend_from_slice(&record.bytes);
        let mut from = 0;
        while let Some(length) = partial[from..].iter().position(|byte| *byte == b'\n') {
            out.line(record.stream, Some(Timestamp(record.at_ms)), &partial[from..from + length]);
            from += length + 1;
        }
        partial.drain(..from);
    }

    /// Tells what was left without a line end.
    fn end(&mut self, out: &mut Out<'_>) {
        for stream in Stream::ALL {
            let rest = std::mem::take(&mut self.partial[place(stream)]);
            if !rest.is_empty() {
                out.line(stream, None, &rest);
            }
        }
    }
}

fn place(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
        Stream::Runner => 2,
    }
}

/// Lines on their way out.
struct Out<'l> {
    task_id: &'l str,
    piece: Piece,
    wanted: &'l Wanted,
    lines: Vec<LogLine>,
}

impl Out<'_> {
    fn line(&mut self, stream: Stream, at: Option<Timestamp>, text: &[u8]) {
        if self.wanted.stream.is_some_and(|wanted| wanted != stream) {
            return;
        }
        let (task_id, attempt) = (self.task_id.to_owned(), self.piece.attempt);
        let text = String::from_utf8_lossy(text).into_owned();
        self.lines.push(LogLine { task_id, attempt, stream: shown_stream(stream), at, text });
        // Cut now and then only, so that each line is moved a few times at most.
        if let Some(tail) = self.piece.tail.filter(|tail| self.lines.len() > 2 * tail) {
            self.lines.drain(..self.lines.len() - tail);
        }
    }

    /// Says that something is not there.
    fn cut(&mut self, bytes: u64) {
        if bytes > 0 {
            self.line(Stream::Runner, None, format!("… {bytes} bytes were cut here …").as_bytes());
        }
    }

    fn told(mut self) -> Vec<LogLine> {
        let tail = self.piece.tail.unwrap_or(usize::MAX);
        let over = self.lines.len().saturating_sub(tail);
        self.lines.drain(..over);
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{KINDS, tests};
    use crate::report;
    use cis_core::id::RunKey;
    use cis_core::source::BootTime;
    use cis_runner::protocol::{AttemptKey, Ended, LogSummary, Outcome};
    use cis_store::port::{Advance, Boot, Claim, CoordinatorStore as _};
    use cis_store::{Durability, SqliteStore};

    /// Whoever waits for the next change after it was quiet would wait for ever, if the last one came before that.
    #[tokio::test(flavor = "current_thread")]
    async fn it_is_not_quiet_if_the_run_ended_while_lines_were_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dag.db");
        let store = SqliteStore::open(&file, Durability::Process).unwrap();
        tests::run(&store, "command = 'true'").await;
        let now = Timestamp(2);
        let epoch = store.open_epoch(now, Boot { id: "one".into(), now: BootTime(1) }).await.unwrap().epoch;
        let (holder, kinds, capabilities) = ("local".to_owned(), KINDS.to_vec(), Vec::new());
        let claim = Some(Claim { epoch, holder, limit: 1, kinds, scopes: None, capabilities });
        let advanced = store.advance(Advance { reports: Vec::new(), claim, now }).await.unwrap();
        let claimed = &advanced.claimed[0];
        let (execution, fence) = (claimed.execution.0, claimed.fence.0);

        let reader = Reader::open(&file).unwrap();
        let of = reader.run(RunKey(1)).unwrap().unwrap();
        let data_dir = DataDir::create(dir.path()).unwrap();
        let path = data_dir.log(of.key.0, execution, 1);
        let print = |offset: u64, text: &str| {
            let (stream, bytes) = (Stream::Stdout, text.as_bytes().to_vec());
            log::append(&path, 1 << 20, &log::Record { stream, at_ms: 1, offset, bytes }).unwrap();
        };
        let wanted = Wanted { follow: true, ..Wanted::default() };
        let mut lines = Lines::open(&reader, data_dir, of, wanted).unwrap();
        print(0, "one\n");
        assert!(matches!(lines.next(&reader).unwrap(), Next::Lines(told) if told[0].text == "one"));
        assert!(matches!(lines.next(&reader).unwrap(), Next::Quiet));
        print(4, "two\n");
        assert!(matches!(lines.next(&reader).unwrap(), Next::Lines(told) if told[0].text == "two"));
        let (key, outcome) = (AttemptKey { execution, fence }, Outcome::Exited { code: 0 });
        let log = LogSummary { bytes: 8, ..LogSummary::default() };
        let ended = Ended { key, outcome, started_ms: 1, ended_ms: 2, log, outputs: None };
        let reports = vec![report::report(ended, Some(claimed), 0)];
        store.advance(Advance { reports, claim: None, now }).await.unwrap();
        assert!(matches!(lines.next(&reader).unwrap(), Next::Over));
    }
}
