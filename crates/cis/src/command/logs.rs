//! `cis dag logs`: what tasks printed, live if asked.

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use cis_core::dag::Dag;
use cis_core::error::ErrorCode;
use cis_core::id::{RunId, TaskIx};
use cis_core::source::Timestamp;
use cis_engine::data_dir::DataDir;
use cis_runner::log::{Entry, Position, Reader as LogReader, Record, Stream};
use cis_store::sqlite::Reader;
use cis_store::sqlite::reader::{RunLine, TaskLine};
use regex_lite::Regex;
use serde_json::json;

use super::{Failure, Outcome, Setup, definition, find};
use crate::cli::LogsArgs;
use crate::term::face::{DIM, paint};
use crate::term::{clean, time};

/// How often a followed log is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What is printed, and how.
struct Printer {
    json: bool,
    /// Say which task each line is of.
    prefix: bool,
    grep: Option<Regex>,
    out: std::io::BufWriter<anstream::AutoStream<std::io::Stdout>>,
    /// A line each stream of a task has not ended yet.
    partial: HashMap<(u32, u8), Vec<u8>>,
}

/// `cis dag logs`.
pub(super) fn logs(setup: &Setup, args: &LogsArgs) -> Outcome {
    let (reader, run) = find_run(setup, args)?;
    let dag = reader.definition(run.definition)?;
    let chosen = definition::tasks(&dag, &args.task)?;
    let grep = args.grep.as_deref().map(Regex::new).transpose();
    let grep = grep.map_err(|e| Failure::usage(format!("`--grep`: {e}")))?;
    let mut printer = Printer {
        json: setup.json,
        prefix: chosen.len() != 1 && dag.tasks.len() > 1,
        grep,
        out: std::io::BufWriter::new(anstream::stdout()),
        partial: HashMap::new(),
    };
    let printed = if args.follow {
        follow(setup, &reader, run, &dag, &chosen, &mut printer)
    } else {
        show(setup, args, &reader, &run, &dag, &chosen, &mut printer)
    };
    match printed.and_then(|()| printer.out.flush().map_err(Into::into)) {
        Err(Trouble::Write(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        Err(Trouble::Write(e)) => Err(Failure::new(ErrorCode::Unavailable, format!("cannot write: {e}"))),
        Err(Trouble::Other(failure)) => Err(failure),
        Ok(()) => Ok(0),
    }
}

/// Writing fails for other reasons than reading, and a reader that has seen enough is no error.
enum Trouble {
    Write(std::io::Error),
    Other(Failure),
}

impl From<std::io::Error> for Trouble {
    fn from(e: std::io::Error) -> Self {
        Self::Write(e)
    }
}

impl From<cis_store::StoreError> for Trouble {
    fn from(e: cis_store::StoreError) -> Self {
        Self::Other(e.into())
    }
}

fn find_run(setup: &Setup, args: &LogsArgs) -> Result<(Reader, RunLine), Failure> {
    let scope = args.scope.scope.as_deref();
    match &args.run {
        None => find::find_run(setup, &args.id, scope),
        Some(run) if run.parse::<RunId>().is_ok() => find::find_run(setup, run, scope),
        Some(number) => {
            let number = number.trim_start_matches(&args.id).trim_start_matches('#');
            find::find_run(setup, &format!("{}#{number}", args.id), scope)
        }
    }
}

fn show(
    setup: &Setup,
    args: &LogsArgs,
    reader: &Reader,
    run: &RunLine,
    dag: &Dag,
    chosen: &[TaskIx],
    printer: &mut Printer,
) -> Result<(), Trouble> {
    for task in reader.tasks(run, &[], u32::MAX)? {
        if !chosen.is_empty() && !chosen.contains(&task.ix) {
            continue;
        }
        let attempt = args.attempt.unwrap_or(task.attempt);
        let path = log_path(&setup.data_dir(), run, &task, attempt);
        // A task that printed nothing has no file.
        let Ok(mut log) = cis_runner::log::read(&path) else { continue };
        printer.drain(dag, task.ix, &mut log)?;
        printer.end(dag, task.ix)?;
    }
    Ok(())
}

fn log_path(data_dir: &DataDir, run: &RunLine, task: &TaskLine, attempt: u32) -> std::path::PathBuf {
    data_dir.log(run.key.0, task.execution_id.0, attempt)
}

/// Prints what there is, then what comes, until the run is over.
fn follow(
    setup: &Setup,
    reader: &Reader,
    mut run: RunLine,
    dag: &Dag,
    chosen: &[TaskIx],
    printer: &mut Printer,
) -> Result<(), Trouble> {
    let mut read: HashMap<(u32, u32), Position> = HashMap::new();
    let (_never, pause) = std::sync::mpsc::channel::<()>();
    loop {
        // Read before the logs, so that a run seen as over has all its output printed after it.
        let over = run.status.is_terminal();
        for task in reader.tasks(&run, &[], u32::MAX)? {
            let unwanted = !chosen.is_empty() && !chosen.contains(&task.ix);
            if unwanted || task.attempt == 0 {
                continue;
            }
            let path = log_path(&setup.data_dir(), &run, &task, task.attempt);
            let at = read.entry((task.ix.0, task.attempt)).or_default();
            if let Ok(mut log) = LogReader::resume(&path, *at) {
                printer.drain(dag, task.ix, &mut log)?;
                *at = log.position();
            }
        }
        printer.out.flush()?;
        if over {
            return Ok(());
        }
        let _ = pause.recv_timeout(LOOK);
        if let Some(now) = reader.run(run.key)? {
            run = now;
        }
    }
}

impl Printer {
    fn drain(&mut self, dag: &Dag, ix: TaskIx, log: &mut LogReader) -> Result<(), Trouble> {
        for entry in log.by_ref() {
            match entry? {
                Entry::Record(record) => self.record(dag, ix, &record)?,
                Entry::Cut { bytes, .. } => {
                    self.end(dag, ix)?;
                    self.line(dag, ix, 2, &format!("… {bytes} bytes were cut here …"), None)?;
                }
            }
        }
        Ok(())
    }

    fn record(&mut self, dag: &Dag, ix: TaskIx, record: &Record) -> Result<(), Trouble> {
        let stream = number(record.stream);
        let mut rest = self.partial.remove(&(ix.0, stream)).unwrap_or_default();
        rest.extend_from_slice(&record.bytes);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&rest[..end]).into_owned();
            self.line(dag, ix, stream, &line, Some(Timestamp(record.at_ms)))?;
            rest.drain(..=end);
        }
        if !rest.is_empty() {
            self.partial.insert((ix.0, stream), rest);
        }
        Ok(())
    }

    /// Prints what a task left without a line end.
    fn end(&mut self, dag: &Dag, ix: TaskIx) -> Result<(), Trouble> {
        for stream in 0..3 {
            if let Some(rest) = self.partial.remove(&(ix.0, stream)) {
                self.line(dag, ix, stream, &String::from_utf8_lossy(&rest), None)?;
            }
        }
        Ok(())
    }

    fn line(
        &mut self,
        dag: &Dag,
        ix: TaskIx,
        stream: u8,
        line: &str,
        at: Option<Timestamp>,
    ) -> Result<(), Trouble> {
        if self.grep.as_ref().is_some_and(|grep| !grep.is_match(line)) {
            return Ok(());
        }
        let id = dag.tasks[ix.index()].id.as_str();
        let name = ["stdout", "stderr", "cis"][usize::from(stream.min(2))];
        if self.json {
            let told = json!({"task_id": id, "stream": name, "at": at.map(time::rfc3339), "text": line});
            writeln!(self.out, "{told}")?;
            return Ok(());
        }
        if self.prefix {
            write!(self.out, "{} ", paint(DIM, &format!("{id} │")))?;
        }
        match stream {
            0 => writeln!(self.out, "{}", clean(line))?,
            1 => writeln!(self.out, "{}", paint(anstyle::AnsiColor::Yellow.on_default(), &clean(line)))?,
            _ => writeln!(self.out, "{}", paint(DIM, &clean(line)))?,
        }
        Ok(())
    }
}

fn number(stream: Stream) -> u8 {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
        Stream::Runner => 2,
    }
}
