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

/// Lines handed on at once, by what they take as lines of JSON: a line that takes it over this is the last. A byte of output
/// may become a hundred of JSON, so output that was read says nothing of what it comes to.
const BATCH_BYTES: usize = 64 << 10;

/// What a line of JSON takes beyond its text and the name of its task.
const LINE_JSON_BYTES: usize = 110;

/// A line longer than this is told in parts.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Output kept where the last lines are wanted: of longer ones, only the end.
const TAIL_BYTES_MAX: usize = 1 << 20;

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
    /// The last lines of an attempt, to tell before anything else is read.
    found: VecDeque<LogLine>,
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

/// Where reading a log stands, and what each stream has printed that is not told yet.
#[derive(Debug, Default)]
struct Open {
    position: log::Position,
    partial: [Vec<u8>; 3],
    /// Of its last line a part has been told.
    is_split: [bool; 3],
    /// The stream that may have whole lines left, and when they were read: the batch was full.
    left: Option<(Stream, Timestamp)>,
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
            found: VecDeque::new(),
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
            while !self.found.is_empty() || !self.queue.is_empty() {
                let lines = match self.queue.front().copied() {
                    Some(piece) if self.found.is_empty() => self.read(piece)?,
                    _ => self.take_found(),
                };
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
        let (page, more) = match self.tasks.as_slice() {
            [] => reader.task_page(&self.run, None, after, PAGE)?,
            named => {
                let rows = named.iter().map(|ix| reader.task(&self.run, *ix));
                (rows.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect(), false)
            }
        };
        for task in &page {
            self.enqueue(task, task.attempt, self.wanted.tail);
        }
        self.stage = match page.last() {
            Some(last) if more => Stage::First(Some(last.key)),
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
            lines: VecDeque::new(),
            bytes: 0,
            ends: 0,
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
        let lines = out.lines;
        if whole {
            self.queue.pop_front();
        }
        if whole && piece.over {
            self.next.insert(piece.task, piece.attempt + 1);
        } else {
            self.open.insert((piece.task, piece.attempt), open);
        }
        if piece.tail.is_some() {
            self.found = lines;
            return Ok(self.take_found());
        }
        Ok(lines.into())
    }

    /// As many of the last lines that were found as make a batch.
    fn take_found(&mut self) -> Vec<LogLine> {
        let mut bytes = 0;
        let fits = |line: &&LogLine| {
            let room = bytes < BATCH_BYTES;
            bytes += json_bytes(line);
            room
        };
        let count = self.found.iter().take_while(fits).count();
        self.found.drain(..count).collect()
    }
}

fn unreadable(e: io::Error) -> Refusal {
    Refusal::new(ErrorCode::Unavailable, format!("cannot read a log: {e}"))
}

impl Open {
    /// Reads on, a batch at most; true once there is no more at present.
    fn take(&mut self, mut log: log::Reader, out: &mut Out<'_>) -> io::Result<bool> {
        if let Some((stream, at)) = self.left.take()
            && !self.tell_lines(stream, at, out)
        {
            return Ok(false);
        }
        let whole = loop {
            match log.next().transpose()? {
                None => break true,
                Some(Entry::Cut { bytes, .. }) => {
                    self.end(out);
                    out.cut(bytes);
                }
                Some(Entry::Record(record)) => {
                    self.partial[place(record.stream)].extend_from_slice(&record.bytes);
                    // Between two records: a cut that was told is not told again.
                    if !self.tell_lines(record.stream, Timestamp(record.at_ms), out) {
                        break false;
                    }
                }
            }
        };
        self.position = log.position();
        Ok(whole)
    }

    /// Tells the lines that have ended, and of one that is too long what there is; false if the batch is full.
    fn tell_lines(&mut self, stream: Stream, at: Timestamp, out: &mut Out<'_>) -> bool {
        let (partial, is_split) = (&mut self.partial[place(stream)], &mut self.is_split[place(stream)]);
        let mut from = 0;
        let goes_on = loop {
            if out.is_full() {
                self.left = Some((stream, at));
                break false;
            }
            let rest = &partial[from..];
            let start = &rest[..rest.len().min(LINE_BYTES_MAX + 1)];
            match start.iter().position(|byte| *byte == b'\n') {
                Some(length) => {
                    out.line(stream, Some(at), &rest[..length], false);
                    *is_split = false;
                    from += length + 1;
                }
                None if rest.len() > LINE_BYTES_MAX => {
                    let length = floor_char_boundary(rest, LINE_BYTES_MAX);
                    out.line(stream, Some(at), &rest[..length], true);
                    *is_split = true;
                    from += length;
                }
                None => break true,
            }
        };
        partial.drain(..from);
        goes_on
    }

    /// Tells what was left without a line end.
    fn end(&mut self, out: &mut Out<'_>) {
        for stream in Stream::ALL {
            let rest = std::mem::take(&mut self.partial[place(stream)]);
            let is_split = std::mem::take(&mut self.is_split[place(stream)]);
            if !rest.is_empty() || is_split {
                out.line(stream, None, &rest, false);
            }
        }
    }
}

/// The last place at or before `at` where no character is split, if what is there is text.
fn floor_char_boundary(bytes: &[u8], at: usize) -> usize {
    let continues = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0xC0 == 0x80);
    (at.saturating_sub(3)..=at).rev().find(|at| !continues(at)).unwrap_or(at)
}

/// What a line takes as JSON, or a little more.
fn json_bytes(line: &LogLine) -> usize {
    let escaped = |byte: u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    LINE_JSON_BYTES + line.task_id.len() + line.text.bytes().map(escaped).sum::<usize>()
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
    lines: VecDeque<LogLine>,
    /// What they take as JSON.
    bytes: usize,
    /// How many of them end a line, as those do that are not told in parts.
    ends: usize,
}

impl Out<'_> {
    /// There is a batch; never so where only the last lines are wanted, as the last are not known before the end.
    fn is_full(&self) -> bool {
        self.piece.tail.is_none() && self.bytes >= BATCH_BYTES
    }

    fn line(&mut self, stream: Stream, at: Option<Timestamp>, text: &[u8], continues: bool) {
        if self.wanted.stream.is_some_and(|wanted| wanted != stream) {
            return;
        }
        let (task_id, attempt) = (self.task_id.to_owned(), self.piece.attempt);
        let text = String::from_utf8_lossy(text).into_owned();
        let line = LogLine { task_id, attempt, stream: shown_stream(stream), at, text, continues };
        self.bytes += json_bytes(&line);
        self.ends += usize::from(!continues);
        self.lines.push_back(line);
        let Some(tail) = self.piece.tail else { return };
        while self.ends > tail || (self.bytes > TAIL_BYTES_MAX && self.lines.len() > 1) {
            let Some(first) = self.lines.pop_front() else { return };
            self.bytes -= json_bytes(&first);
            self.ends -= usize::from(!first.continues);
        }
    }

    /// Says that something is not there.
    fn cut(&mut self, bytes: u64) {
        if bytes > 0 {
            self.line(Stream::Runner, None, format!("… {bytes} bytes were cut here …").as_bytes(), false);
        }
    }
}

#[cfg(test)]
mod tests;
