//! `cis dag logs`: what tasks printed, live if asked.

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use cis_api::log::{LogLine, LogQuery, LogStream};
use cis_api::run::RunSummary;
use cis_client::Client;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::RunId;
use cis_engine::logs::{Next, Wanted};
use regex_lite::Regex;
use serde_json::json;

use super::{Failure, Outcome, Setup, find};
use crate::cli::LogsArgs;
use crate::source::{LocalRun, Source, follow_logs};
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
    /// Long lines that come in parts, by task, attempt and stream.
    parts: HashMap<(String, u32, LogStream), String>,
    out: std::io::BufWriter<anstream::AutoStream<std::io::Stdout>>,
}

/// `cis dag logs`.
pub(super) fn logs(setup: &Setup, args: &LogsArgs) -> Outcome {
    let (source, run) = find_run(setup, args)?;
    let grep = args.grep.as_deref().map(Regex::new).transpose();
    let grep = grep.map_err(|e| Failure::usage(format!("`--grep`: {e}")))?;
    let mut printer = Printer {
        json: setup.json,
        prefix: args.task.len() != 1 && run.total > 1,
        grep,
        parts: HashMap::new(),
        out: std::io::BufWriter::new(anstream::stdout()),
    };
    let printed = match &source {
        Source::Here(here) => print(&LocalRun::open(here, run.run_id)?, args, &mut printer),
        Source::Node(client) => print_from(client, run.run_id, args, &mut printer),
    };
    match printed {
        Err(Trouble::Write(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        Err(Trouble::Write(e)) => Err(Failure::new(ErrorCode::Unavailable, format!("cannot write: {e}"))),
        Err(Trouble::Other(failure)) => Err(failure),
        Ok(()) => Ok(0),
    }
}

/// Prints what there is, and what comes if that is wanted.
fn print(run: &LocalRun, args: &LogsArgs, printer: &mut Printer) -> Result<(), Trouble> {
    let (tasks, attempt, follow) = (args.task.clone(), args.attempt, args.follow);
    let mut lines = run.logs(Wanted { tasks, attempt, follow, ..Wanted::default() })?;
    let (_never, pause) = std::sync::mpsc::channel::<()>();
    loop {
        match lines.next()? {
            Next::Lines(lines) => lines.into_iter().try_for_each(|line| printer.part(line))?,
            Next::Quiet => {
                printer.out.flush()?;
                let _ = pause.recv_timeout(LOOK);
            }
            Next::Over => return Ok(printer.out.flush()?),
        }
    }
}

/// The same from a node, which tells of one task at a time, or of all.
fn print_from(client: &Client, run: RunId, args: &LogsArgs, printer: &mut Printer) -> Result<(), Trouble> {
    if args.follow && args.task.len() > 1 {
        let why = "a node lets one task be followed at a time, or all: one `--task`, or none";
        return Err(Trouble::Other(Failure::usage(why)));
    }
    let tasks: Vec<Option<&String>> = match args.task.as_slice() {
        [] => vec![None],
        named => named.iter().map(Some).collect(),
    };
    for task in tasks {
        let mut written = Ok(());
        let (task, attempt, follow) = (task.cloned(), args.attempt, args.follow);
        let query = LogQuery { task, attempt, follow, ..LogQuery::default() };
        let heard = follow_logs(client, run, query, |line| {
            written = printer.part(line);
            // What comes while it is followed is to be seen right now.
            if written.is_ok() && args.follow {
                written = printer.out.flush();
            }
            written.is_ok()
        });
        written?;
        heard?;
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

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::Other(refusal.into())
    }
}

fn find_run(setup: &Setup, args: &LogsArgs) -> Result<(Source, RunSummary), Failure> {
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
    /// Prints a line, once all its parts are there.
    fn part(&mut self, mut line: LogLine) -> std::io::Result<()> {
        let key = || (line.task_id.clone(), line.attempt, line.stream);
        if line.continues {
            self.parts.entry(key()).or_default().push_str(&line.text);
            return Ok(());
        }
        if !self.parts.is_empty()
            && let Some(mut start) = self.parts.remove(&key())
        {
            start.push_str(&line.text);
            line.text = start;
        }
        self.line(&line)
    }

    fn line(&mut self, line: &LogLine) -> std::io::Result<()> {
        let LogLine { task_id, stream, text, .. } = line;
        if self.grep.as_ref().is_some_and(|grep| !grep.is_match(text)) {
            return Ok(());
        }
        if self.json {
            return writeln!(self.out, "{}", escape_json(&json!(line).to_string()));
        }
        if self.prefix {
            write!(self.out, "{} ", paint(DIM, &format!("{task_id} │")))?;
        }
        match stream {
            LogStream::Stdout => writeln!(self.out, "{}", clean(text)),
            LogStream::Stderr => {
                writeln!(self.out, "{}", paint(anstyle::AnsiColor::Yellow.on_default(), &clean(text)))
            }
            LogStream::Cis => writeln!(self.out, "{}", paint(DIM, &clean(text))),
        }
    }
}
