//! `cis dag logs`: what tasks printed, live if asked.

use std::io::Write;
use std::time::Duration;

use cis_core::error::ErrorCode;
use cis_core::id::RunId;
use cis_engine::logs::{Line, Lines, Next, Wanted};
use cis_store::sqlite::Reader;
use cis_store::sqlite::reader::RunLine;
use regex_lite::Regex;
use serde_json::json;

use super::view::View;
use super::{Failure, Outcome, Setup, find};
use crate::cli::LogsArgs;
use crate::remote::Remote;
use crate::term::clean;
use crate::term::face::{DIM, paint};
use crate::term::visible::escape_json;

/// How often a followed log is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What is printed, and how.
struct Printer {
    json: bool,
    /// Say which task each line is of.
    prefix: bool,
    grep: Option<Regex>,
    out: std::io::BufWriter<anstream::AutoStream<std::io::Stdout>>,
}

/// `cis dag logs`.
pub(super) fn logs(setup: &Setup, args: &LogsArgs) -> Outcome {
    let (view, run) = find_run(setup, args)?;
    let grep = args.grep.as_deref().map(Regex::new).transpose();
    let grep = grep.map_err(|e| Failure::usage(format!("`--grep`: {e}")))?;
    let mut printer = Printer {
        json: setup.json,
        prefix: args.task.len() != 1 && run.total > 1,
        grep,
        out: std::io::BufWriter::new(anstream::stdout()),
    };
    let printed = match &view {
        View::Here(reader) => {
            let (tasks, attempt, follow) = (args.task.clone(), args.attempt, args.follow);
            let wanted = Wanted { tasks, attempt, follow, ..Wanted::default() };
            print(reader, Lines::open(reader, setup.data_dir(), run, wanted)?, &mut printer)
        }
        View::Node(node) => print_from(node, &run, args, &mut printer),
    };
    match printed {
        Err(Trouble::Write(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        Err(Trouble::Write(e)) => Err(Failure::new(ErrorCode::Unavailable, format!("cannot write: {e}"))),
        Err(Trouble::Other(failure)) => Err(failure),
        Ok(()) => Ok(0),
    }
}

/// Prints what there is, and what comes if that is wanted.
fn print(reader: &Reader, mut lines: Lines, printer: &mut Printer) -> Result<(), Trouble> {
    let (_never, pause) = std::sync::mpsc::channel::<()>();
    loop {
        match lines.next(reader).map_err(|refusal| Trouble::Other(refusal.into()))? {
            Next::Lines(lines) => lines.iter().try_for_each(|line| printer.line(line))?,
            Next::Quiet => {
                printer.out.flush()?;
                let _ = pause.recv_timeout(LOOK);
            }
            Next::Over => return Ok(printer.out.flush()?),
        }
    }
}

/// The same from a node, which tells of one task at a time, or of all.
fn print_from(node: &Remote, run: &RunLine, args: &LogsArgs, printer: &mut Printer) -> Result<(), Trouble> {
    if args.follow && args.task.len() > 1 {
        let why = "a node lets one task be followed at a time, or all: one `--task`, or none";
        return Err(Trouble::Other(Failure::usage(why)));
    }
    let all = [String::new()];
    let tasks = if args.task.is_empty() { &all } else { args.task.as_slice() };
    let attempt = args.attempt.map(|attempt| attempt.to_string()).unwrap_or_default();
    let follow = if args.follow { "true" } else { "" };
    for task in tasks {
        let mut written = Ok(());
        let query = [("task", task.as_str()), ("attempt", &attempt), ("follow", follow)];
        let heard = node.logs(run, &query, |line| {
            written = printer.line(line);
            // What comes while it is followed is for whoever looks right now.
            if written.is_ok() && args.follow {
                written = printer.out.flush();
            }
            written.is_ok()
        });
        written?;
        heard.map_err(|refusal| Trouble::Other(refusal.into()))?;
    }
    Ok(printer.out.flush()?)
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

fn find_run(setup: &Setup, args: &LogsArgs) -> Result<(View, RunLine), Failure> {
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

impl Printer {
    fn line(&mut self, line: &Line) -> std::io::Result<()> {
        let Line { task_id, attempt, stream, at, text } = line;
        if self.grep.as_ref().is_some_and(|grep| !grep.is_match(text)) {
            return Ok(());
        }
        if self.json {
            let told = json!({"task_id": task_id, "attempt": attempt, "stream": stream,
                              "at": at, "text": text});
            return writeln!(self.out, "{}", escape_json(&told.to_string()));
        }
        if self.prefix {
            write!(self.out, "{} ", paint(DIM, &format!("{task_id} │")))?;
        }
        match *stream {
            "stdout" => writeln!(self.out, "{}", clean(text)),
            "stderr" => {
                writeln!(self.out, "{}", paint(anstyle::AnsiColor::Yellow.on_default(), &clean(text)))
            }
            _ => writeln!(self.out, "{}", paint(DIM, &clean(text))),
        }
    }
}
