//! What tasks of a run printed, a line at a time: what there is, and if that is wanted, what comes.
//!
//! It is asked for the next lines again and again and reads no further than it is asked, so that neither a slow reader
//! nor a long log takes room: between two batches it keeps where each log stands, and the beginnings of lines that have not
//! ended. Which tasks have something new is learnt from events, so that of a large run only those are looked at that move.

mod out;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;

use cis_api::log::{LogLine, LogStream};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::event::Change;
use cis_core::id::{ExecutionId, Position, TaskIx};
use cis_core::source::Timestamp;
use cis_runner::log::{self, Entry, Record, Stream};
use cis_store::Reader;
use cis_store::rows::{RunRow, TaskRow};

use crate::data_dir::DataDir;
use crate::select;
use out::{Out, Sink, TailCount};

/// Lines handed on at once, by what they take as lines of JSON. A byte of output may become a hundred of JSON, so output
/// that was read says nothing of what it comes to.
pub const BATCH_BYTES: usize = 64 << 10;

/// A line longer than this is told in parts.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Beginnings of lines that have not ended, of all tasks together: beyond that they are told as parts.
const PARTIALS_BYTES_MAX: usize = 32 << 10;

/// Tasks whose output is found at once, and kept in mind until it is told.
const TASKS_PAGE: u32 = 100;

/// Events looked at at once.
const EVENTS_PAGE: u32 = 1_000;

/// What is kept of a task while its run is followed.
const TASK_BYTES: usize = 64;

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

/// What comes next, as far as there is room for it.
#[derive(Debug)]
pub enum Within {
    Next(Next),
    /// A line that takes so many bytes: nothing was told.
    TooLong(usize),
}

/// The lines of a run.
#[derive(Debug)]
pub struct Lines {
    data_dir: DataDir,
    run: RunRow,
    tasks: Vec<TaskIx>,
    wanted: Wanted,
    stage: Stage,
    /// Attempts to read before anything else is looked at.
    queue: VecDeque<Piece>,
    /// Logs of attempts that are being read, or are not over, by task and attempt.
    open: HashMap<(TaskIx, u32), Open>,
    /// What of `open` are beginnings of lines.
    partial_bytes: usize,
    /// The attempt of each task to tell next, if they are followed.
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
#[derive(Debug, Clone)]
struct Piece {
    task: TaskIx,
    task_id: Arc<str>,
    execution: ExecutionId,
    attempt: u32,
    /// Nothing will be added to it.
    over: bool,
    /// How much there was of it, where that is known.
    bytes: Option<u64>,
    /// Only so many of its lines.
    tail: Option<usize>,
}

/// Where reading a log stands.
#[derive(Debug, Default)]
struct Open {
    position: log::Position,
    /// Lines to be passed over before one is told.
    skip: usize,
    /// Of the frame at `position`, the output of each stream up to here has been taken: there was no room for the rest.
    taken: [u64; 3],
    /// The last line of each stream, while it has not ended.
    partial: [Vec<u8>; 3],
    /// Of its last line a part has been told.
    is_split: [bool; 3],
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
        // A definition may be large: where no task is named it is not read, and nowhere is it kept.
        let tasks = match wanted.tasks.is_empty() {
            true => Vec::new(),
            false => select::named(&reader.definition(run.definition)?, &wanted.tasks)?,
        };
        Ok(Self {
            data_dir,
            run,
            tasks,
            wanted,
            stage: Stage::First(None),
            queue: VecDeque::new(),
            open: HashMap::new(),
            partial_bytes: 0,
            next: HashMap::new(),
            // What happens from here on is looked at again, so nothing falls between the two looks.
            position: reader.last_position()?,
        })
    }

    /// What following may come to keep in memory, beyond what it tells.
    pub fn kept_bytes(&self) -> usize {
        let tasks = if self.tasks.is_empty() { self.run.total as usize } else { self.tasks.len() };
        if self.wanted.follow { tasks * TASK_BYTES } else { 0 }
    }

    /// The next lines: a batch, or one line that is longer.
    pub fn next(&mut self, reader: &Reader) -> Result<Next, Refusal> {
        let mut room = BATCH_BYTES;
        loop {
            match self.next_within(reader, room)? {
                Within::Next(next) => return Ok(next),
                Within::TooLong(bytes) => room = bytes,
            }
        }
    }

    /// The next lines, of which no more are read than take `room` bytes as lines of JSON.
    pub fn next_within(&mut self, reader: &Reader, room: usize) -> Result<Within, Refusal> {
        loop {
            while let Some(piece) = self.queue.front().cloned() {
                let (lines, needed) = self.read(piece, room)?;
                if !lines.is_empty() {
                    // Much may happen while they are told: it is quiet only if a look after that finds nothing.
                    if matches!(self.stage, Stage::Rest) {
                        self.stage = Stage::Again;
                    }
                    return Ok(Within::Next(Next::Lines(lines)));
                }
                if let Some(bytes) = needed {
                    return Ok(Within::TooLong(bytes));
                }
            }
            match self.stage {
                Stage::First(after) => self.look_through(reader, after)?,
                Stage::Again => self.look_again(reader)?,
                Stage::Rest => {
                    self.stage = Stage::Again;
                    return Ok(Within::Next(Next::Quiet));
                }
                Stage::Done => return Ok(Within::Next(Next::Over)),
            }
        }
    }

    /// Finds what is there: the tasks that were named, or all of them, a page at a time.
    fn look_through(&mut self, reader: &Reader, after: Option<TaskIx>) -> Result<(), Refusal> {
        let (page, more) = match self.tasks.as_slice() {
            [] => reader.task_page(&self.run, None, after, TASKS_PAGE)?,
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
        let (events, read_to) = reader.events(&self.run, self.position, EVENTS_PAGE)?;
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
        let begin = self.wanted.attempt.unwrap_or(from);
        // Where it is not followed, each task comes by once.
        let first = if self.wanted.follow { *self.next.entry(task.key).or_insert(begin) } else { begin };
        let task_id: Arc<str> = task.task_id.as_str().into();
        let last = self.wanted.attempt.unwrap_or(task.attempt).min(task.attempt);
        for attempt in first..=last {
            let lives = attempt == task.attempt && task.status.is_live() && self.wanted.follow;
            let (execution, over) = (task.execution_id, !lives);
            let ended = attempt == task.attempt && !task.status.is_live();
            let bytes = ended.then_some(task.log_bytes);
            let (task, task_id) = (task.key, task_id.clone());
            self.queue.push_back(Piece { task, task_id, execution, attempt, over, bytes, tail });
        }
    }

    /// Some lines of the piece at the head of the queue, which leaves it once there are no more at present; and if there was no
    /// room for the next line, what that takes.
    fn read(&mut self, piece: Piece, room: usize) -> Result<(Vec<LogLine>, Option<usize>), Refusal> {
        let path = self.data_dir.log(self.run.key.0, piece.execution.0, piece.attempt);
        let mut open = self.open.remove(&(piece.task, piece.attempt)).unwrap_or_default();
        self.partial_bytes -= open.partial_bytes();
        if let Some(tail) = piece.tail {
            open.skip = self.count_before_tail(&path, &piece, tail)?;
            if let Some(piece) = self.queue.front_mut() {
                piece.tail = None;
            }
        }
        let mut out = Out::new(&piece, self.wanted.stream, Sink::Batch { lines: Vec::new(), bytes: 0, room });
        out.skip = open.skip;
        let mut done = open.read(&path, &piece, &mut out).map_err(unreadable)?;
        if done && !piece.over && self.partial_bytes + open.partial_bytes() > PARTIALS_BYTES_MAX {
            done = open.tell_partials(&mut out);
        }
        open.skip = out.skip;
        let (lines, needed) = out.batch();
        if done {
            self.queue.pop_front();
        }
        if done && piece.over {
            if self.wanted.follow {
                self.next.insert(piece.task, piece.attempt + 1);
            }
        } else {
            open.partial.iter_mut().for_each(Vec::shrink_to_fit);
            self.partial_bytes += open.partial_bytes();
            self.open.insert((piece.task, piece.attempt), open);
        }
        Ok((lines, needed))
    }

    /// How many lines there are before the last `tail`. Only their number is kept: the last are then told as any others.
    fn count_before_tail(&self, path: &Path, piece: &Piece, tail: usize) -> Result<usize, Refusal> {
        let mut out = Out::new(piece, self.wanted.stream, Sink::Count(TailCount::new(tail)));
        Open::default().read(path, piece, &mut out).map_err(unreadable)?;
        Ok(match out.sink {
            Sink::Count(count) => count.before,
            Sink::Batch { .. } => 0,
        })
    }
}

fn unreadable(e: io::Error) -> Refusal {
    Refusal::new(ErrorCode::Unavailable, format!("cannot read a log: {e}"))
}

impl Open {
    fn partial_bytes(&self) -> usize {
        self.partial.iter().map(Vec::len).sum()
    }

    /// Reads on while there is room; true once there is no more at present.
    fn read(&mut self, path: &Path, piece: &Piece, out: &mut Out<'_>) -> io::Result<bool> {
        let whole = match log::Reader::resume(path, self.position) {
            Ok(log) => self.take(log, out)?,
            // A task that printed nothing has no file.
            Err(e) if e.kind() == io::ErrorKind::NotFound => true,
            Err(e) => return Err(e),
        };
        if !whole || !piece.over {
            return Ok(whole);
        }
        // A disk that had no room for them had none to say so either.
        let missing = piece.bytes.map_or(0, |bytes| bytes.saturating_sub(self.position.told()));
        Ok(self.end(out) && out.cut(missing))
    }

    fn take(&mut self, mut log: log::Reader, out: &mut Out<'_>) -> io::Result<bool> {
        loop {
            // With something of a frame still to be told, that is before the frame: `taken` says what of it was told.
            let before = log.position();
            let is_told = match log.next().transpose()? {
                None => {
                    (self.position, self.taken) = (log.position(), [0; 3]);
                    return Ok(true);
                }
                Some(Entry::Cut { stream, offset, bytes }) => self.take_cut(stream, offset, bytes, out),
                Some(Entry::Record(record)) => self.take_record(&record, out),
            };
            if !is_told {
                self.position = before;
                return Ok(false);
            }
        }
    }

    /// Tells what is not there, once; false if there is no room to.
    fn take_cut(&mut self, stream: Stream, offset: u64, bytes: u64, out: &mut Out<'_>) -> bool {
        let (end, taken) = (offset.saturating_add(bytes), self.taken[place(stream)]);
        let missing = end.saturating_sub(offset.max(taken));
        let is_told = missing == 0 || (self.end(out) && out.cut(missing));
        if is_told {
            self.taken[place(stream)] = end.max(taken);
        }
        is_told
    }

    /// Tells the lines of a record that have ended, and of one that is too long what there is; false if there is no room for all
    /// of them.
    fn take_record(&mut self, record: &Record, out: &mut Out<'_>) -> bool {
        let (stream, at) = (record.stream, Some(Timestamp(record.at_ms)));
        let taken = self.taken[place(stream)].saturating_sub(record.offset);
        let mut from = usize::try_from(taken).unwrap_or(usize::MAX).min(record.bytes.len());
        let (partial, is_split) = (&mut self.partial[place(stream)], &mut self.is_split[place(stream)]);
        while from < record.bytes.len() {
            let (rest, begun) = (&record.bytes[from..], partial.len());
            let start = &rest[..rest.len().min(LINE_BYTES_MAX + 1 - begun.min(LINE_BYTES_MAX))];
            let end = start.iter().position(|byte| *byte == b'\n');
            partial.extend_from_slice(&start[..end.unwrap_or(start.len())]);
            let length = match end {
                Some(_) => partial.len(),
                None if partial.len() > LINE_BYTES_MAX => floor_char_boundary(partial, LINE_BYTES_MAX),
                None => {
                    from += start.len();
                    continue;
                }
            };
            if !out.line(stream, at, &partial[..length], end.is_none()) {
                partial.truncate(begun);
                self.taken[place(stream)] = record.offset + from as u64;
                return false;
            }
            *is_split = end.is_none();
            from += end.map_or(start.len(), |end| end + 1);
            partial.drain(..length);
        }
        self.taken = [0; 3];
        true
    }

    /// Tells what was left without a line end; false if there is no room for all of it.
    fn end(&mut self, out: &mut Out<'_>) -> bool {
        for stream in Stream::ALL {
            let (rest, is_split) = (&mut self.partial[place(stream)], &mut self.is_split[place(stream)]);
            if !rest.is_empty() || *is_split {
                if !out.line(stream, None, rest, false) {
                    return false;
                }
                rest.clear();
                *is_split = false;
            }
        }
        true
    }

    /// Tells the beginnings of lines that have not ended; false if there is no room for all of them.
    fn tell_partials(&mut self, out: &mut Out<'_>) -> bool {
        for stream in Stream::ALL {
            let rest = &mut self.partial[place(stream)];
            // Without the first bytes of a character of which the others are still to come.
            let length = match std::str::from_utf8(rest) {
                Err(e) if e.error_len().is_none() => e.valid_up_to(),
                _ => rest.len(),
            };
            if length > 0 {
                if !out.line(stream, None, &rest[..length], true) {
                    return false;
                }
                rest.drain(..length);
                self.is_split[place(stream)] = true;
            }
        }
        true
    }
}

/// The last place at or before `at` where no character is split, if what is there is text.
fn floor_char_boundary(bytes: &[u8], at: usize) -> usize {
    let continues = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0xC0 == 0x80);
    (at.saturating_sub(3)..=at).rev().find(|at| !continues(at)).unwrap_or(at)
}

fn place(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
        Stream::Runner => 2,
    }
}

#[cfg(test)]
mod tests;
