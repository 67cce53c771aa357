//! Following a run of this process to its end: a live view on a terminal, lines or JSON elsewhere; Ctrl-C
//! cancels it, a second one kills.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use cis_api::calls::CancelRun;
use cis_api::log::LogQuery;
use cis_api::run::{CancelBody, RunStarted, RunSummary};
use cis_api::task::TaskSummary;
use cis_api::{Nothing, Request};
use cis_core::dag::Dag;
use cis_core::error::ErrorCode;
use cis_core::run::RunStatus;
use cis_core::source::Clock;
use cis_core::task::TaskStatus;
use cis_engine::system::System;
use cis_runner::log::{self, Entry};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::notes::in_words;
use super::watch::Watch;
use super::{Failure, Outcome, Setup};
use crate::config::{self, Setting};
use crate::live::{self, Plain, Screen};
use crate::source::{Source, follow_logs};
use crate::target::Target;
use crate::term::face::{BOLD, DIM, paint};
use crate::term::visible::escape_json;
use crate::term::{Face, Size, clean, reveal, text};

/// The view is drawn at least this often, so that elapsed times move.
const REDRAW: Duration = Duration::from_millis(100);

/// After so many of them in which nothing happened, the coordinator is asked whether the runner answers.
const QUIET_REDRAWS: u32 = 30;

/// Lines of a failed task's output that are shown at the end.
const LAST_LINES: usize = 20;

/// Failed tasks that are shown in full at the end.
const FAILURES_SHOWN: usize = 3;

/// What wakes the loop.
#[derive(Debug)]
enum Wake {
    Changed,
    /// The coordinator went away.
    Lost,
    Interrupted,
}

/// What the person at the keyboard asks for, and whatever else wakes the loop.
#[derive(Debug)]
pub(super) struct Interrupts {
    wake: mpsc::Sender<Wake>,
    woken: mpsc::Receiver<Wake>,
}

/// How the run is shown.
enum Show {
    Live(Box<Screen<std::io::Stderr>>),
    Lines { out: Plain<std::io::Stdout>, colour: bool },
    Json(std::io::BufWriter<std::io::Stdout>),
}

/// Follows the run that `target` has started to its end; the exit code tells how it ended. `skill_dirs` are those that were
/// named for it.
pub(super) fn follow(
    setup: &Setup,
    mut target: Target,
    run: &RunStarted,
    dag: Arc<Dag>,
    skill_dirs: &[PathBuf],
    interrupts: Interrupts,
) -> Outcome {
    let source = match &target {
        Target::Node(client) => Some(Source::Node(client.clone())),
        Target::Here(_) => setup.source()?,
    };
    let source = source.ok_or_else(|| Failure::new(ErrorCode::Internal, "there is no store"))?;
    let mut watch = Watch::new(source.clone(), started(&source, run)?, dag)?;
    let mut show = Show::new(setup.json, source.is_here());
    let Interrupts { wake, woken } = interrupts;
    subscribe(&target, &wake)?;
    let (mut interrupts, mut quiet, mut silent) = (0, 0, false);
    loop {
        show.tell(&mut watch)?;
        if watch.is_over() {
            break;
        }
        match woken.recv_timeout(REDRAW) {
            Ok(Wake::Changed) => quiet = 0,
            Err(RecvTimeoutError::Timeout) => {
                quiet += 1;
                if quiet % QUIET_REDRAWS == 0 {
                    let told = silence(&mut target)?;
                    if let Some(words) = told.as_ref().filter(|_| !silent) {
                        show.note(words)?;
                    }
                    silent = told.is_some();
                }
            }
            Ok(Wake::Lost) => {
                target.reopen()?;
                subscribe(&target, &wake)?;
            }
            Ok(Wake::Interrupted) => {
                interrupts += 1;
                show.note(if interrupts == 1 {
                    "cancelling; press Ctrl-C again to kill"
                } else {
                    "killing"
                })?;
                let body = CancelBody { kill: interrupts > 1 };
                target.call(&Request::<CancelRun>::new(run.run_id.into(), Nothing {}, body))?;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    show.finish(&mut watch)?;
    tell_ending(setup, &watch, skill_dirs)?;
    target.close()?;
    Ok(match watch.run.status {
        RunStatus::Completed => 0,
        _ if interrupts > 0 => 130,
        _ => 1,
    })
}

/// The run that has just started.
fn started(source: &Source, run: &RunStarted) -> Result<RunSummary, Failure> {
    if let Some(local) = source.local_run(run.run_id)? {
        return Ok(local.summary().clone());
    }
    let found = source.run_by_number(&run.dag_id, &run.scope, run.number)?;
    found.ok_or_else(|| Failure::new(ErrorCode::NotFound, "the run is gone"))
}

/// Asks to be woken by what happens; a node is listened to anyway.
fn subscribe(target: &Target, wake: &mpsc::Sender<Wake>) -> Result<(), Failure> {
    let Target::Here(session) = target else { return Ok(()) };
    let wake = wake.clone();
    Ok(session.follow(move |alive| wake.send(if alive { Wake::Changed } else { Wake::Lost }).is_ok())?)
}

/// Why nothing is started at present, if it is for the runner.
fn silence(target: &mut Target) -> Result<Option<String>, Failure> {
    let silent = target.coordinator()?.and_then(|coordinator| coordinator.runner);
    Ok(silent.map(|refusal| format!("waiting: {}", in_words(&refusal))))
}

impl Interrupts {
    /// Catches them from now on.
    pub(super) fn catch() -> Result<Self, Failure> {
        let unable =
            |e: std::io::Error| Failure::new(ErrorCode::Unavailable, format!("cannot catch signals: {e}"));
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(unable)?;
        let (wake, woken) = mpsc::channel();
        let told = wake.clone();
        let thread = std::thread::Builder::new().name("cis-signals".into());
        let caught = thread.spawn(move || signals.forever().all(|_| told.send(Wake::Interrupted).is_ok()));
        caught.map_err(unable)?;
        Ok(Self { wake, woken })
    }

    /// Waits for one, not longer than this.
    pub(super) fn within(&self, time: Duration) -> bool {
        matches!(self.woken.recv_timeout(time), Ok(Wake::Interrupted))
    }
}

impl Show {
    /// What is elsewhere is told line by line: a live view asks more often than a node should be asked.
    fn new(json: bool, here: bool) -> Self {
        let term = std::env::var("TERM").ok();
        if json {
            Self::Json(std::io::BufWriter::new(std::io::stdout()))
        } else if here && live::wanted(std::io::stderr().is_terminal(), term.as_deref()) {
            let colour = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
            Self::Live(Box::new(Screen::new(std::io::stderr(), colour)))
        } else {
            // Colours are taken out line by line: a stream that does it would write every line in pieces.
            let colour = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
            Self::Lines { out: Plain::new(std::io::stdout()), colour }
        }
    }

    /// Takes in what happened and shows it.
    fn tell(&mut self, watch: &mut Watch) -> Result<(), Failure> {
        let now = System.now();
        match self {
            Self::Live(screen) => {
                watch.refresh(|_, _| {})?;
                if screen.due(now) {
                    let size = Size::of(std::io::stderr()).unwrap_or(Size::USUAL);
                    let lines = live::render(&watch.view(now)?, size);
                    screen.draw(lines, size, now).map_err(unwritable)?;
                }
            }
            Self::Lines { out, colour } => {
                let mut told = Ok(());
                watch.refresh(|watch, event| {
                    if let (Ok(()), Ok(Some(line))) = (&told, watch.line(event)) {
                        let plain = anstream::adapter::strip_str(&line);
                        told = if *colour { out.say(&line, now) } else { out.say(&plain.to_string(), now) };
                    }
                })?;
                told.and_then(|()| out.flush()).map_err(unwritable)?;
            }
            Self::Json(out) => {
                let mut told = Ok(());
                watch.refresh(|watch, event| {
                    if told.is_ok() {
                        told = writeln!(out, "{}", escape_json(&watch.json(event).to_string()));
                    }
                })?;
                told.and_then(|()| out.flush()).map_err(unwritable)?;
            }
        }
        Ok(())
    }

    /// A word to the person at the keyboard.
    fn note(&mut self, words: &str) -> Result<(), Failure> {
        match self {
            Self::Live(screen) => screen.print(&format!("{words}\n")).map_err(unwritable),
            _ => {
                tell!("{words}");
                Ok(())
            }
        }
    }

    fn finish(&mut self, watch: &mut Watch) -> Result<(), Failure> {
        if let Self::Live(screen) = self {
            let size = Size::of(std::io::stderr()).unwrap_or(Size::USUAL);
            let now = System.now();
            let lines = live::render(&watch.view(now)?, size);
            screen.draw(lines, size, now).and_then(|()| screen.finish()).map_err(unwritable)?;
        }
        Ok(())
    }
}

/// Nobody reads what is written any more; the run is left to end with this process.
fn unwritable(e: std::io::Error) -> Failure {
    Failure::new(ErrorCode::Unavailable, format!("cannot write: {e}"))
}

/// The last words on a run: how it ended, what failed and how, and what to do about it.
pub(super) fn tell_ending(setup: &Setup, watch: &Watch, skill_dirs: &[PathBuf]) -> Result<(), Failure> {
    let run = &watch.run;
    if setup.json {
        let told = json!({"type": "summary", "success": run.status == RunStatus::Completed, "run": run.label(),
                          "run_id": run.run_id, "status": run.status, "total": run.total,
                          "completed": run.completed, "failed": run.failed + run.debts,
                          "cancelled": run.cancelled, "skipped": run.skipped});
        say_json!(told);
        return Ok(());
    }
    let failed = watch.source.tasks(run, &[TaskStatus::Failed, TaskStatus::TimedOut], 1_000)?;
    for task in failed.iter().take(FAILURES_SHOWN) {
        tell_failure(watch, task);
    }
    if failed.len() > FAILURES_SHOWN {
        tell!("… and {} more", text::count(failed.len() - FAILURES_SHOWN, "failed task"));
    }
    let face = Face::from(run.status);
    let took = run.completed_at.unwrap_or(run.created_at).since(run.created_at);
    tell!(
        "{} {} {} {}",
        face.mark(),
        paint(BOLD, &run.label()),
        paint(face.tone.style(), face.word),
        paint(DIM, &format!("in {took}: {}", counts(watch)))
    );
    tell_remedy(setup, watch, &failed, skill_dirs)
}

fn counts(watch: &Watch) -> String {
    let run = &watch.run;
    let parts = [
        (run.completed, "completed"),
        (run.failed + run.debts, "failed"),
        (run.cancelled, "cancelled"),
        (run.skipped, "skipped"),
    ];
    let told: Vec<String> = parts
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, word)| format!("{} {word}", text::thousands(*n as usize)))
        .collect();
    told.join(", ")
}

fn tell_failure(watch: &Watch, task: &TaskSummary) {
    let face = Face::from(task.status);
    let why = task.cause.as_deref().unwrap_or(face.word);
    let rule = format!("{} {}: {}", face.mark(), reveal(watch.title(task)), reveal(why));
    tell!("\n{rule}");
    for line in last_lines(watch, task) {
        tell!("  {} {}", paint(DIM, "│"), clean(&line));
    }
    tell!();
}

/// The last lines a task printed, both streams as they came.
fn last_lines(watch: &Watch, task: &TaskSummary) -> Vec<String> {
    let client = match (watch.local(), &watch.source) {
        (Some(local), _) => return last_lines_of(&local.log(task)),
        (None, Source::Node(client)) => client,
        (None, Source::Here(_)) => return Vec::new(),
    };
    let mut lines = Vec::new();
    let query = LogQuery { task: Some(task.task_id.clone()), tail: Some(LAST_LINES), ..LogQuery::default() };
    // What cannot be read is not shown, here as there.
    let _ = follow_logs(client, watch.run.run_id, query, |line| {
        lines.push(line.text);
        true
    });
    lines
}

fn last_lines_of(log: &Path) -> Vec<String> {
    let mut bytes = Vec::new();
    if let Ok(entries) = log::read(log) {
        for entry in entries.flatten() {
            if let Entry::Record(record) = entry {
                bytes.extend_from_slice(&record.bytes);
                // Only the end is wanted; what is far from it need not be kept.
                if bytes.len() > 1 << 20 {
                    bytes.drain(..bytes.len() - (64 << 10));
                }
            }
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| (*line).to_owned()).collect()
}

/// What to type next: it works as it stands.
fn tell_remedy(
    setup: &Setup,
    watch: &Watch,
    failed: &[TaskSummary],
    skill_dirs: &[PathBuf],
) -> Result<(), Failure> {
    let run = &watch.run;
    if run.status == RunStatus::Completed {
        return Ok(());
    }
    let mut place = String::new();
    if let Setting { value, source: config::Source::Flag(flag) } = &setup.config.data_dir {
        place = format!(" {flag} {}", text::quoted(&value.to_string_lossy()));
    }
    if watch.source.dags_named(run.dag_id.as_str(), None)?.len() > 1 {
        place += &format!(" --scope {}", run.scope);
    }
    let mut skills = String::new();
    for dir in skill_dirs.iter().filter(|_| !watch.dag.skills.is_empty()) {
        skills += &format!(" --skill-dir {}", text::quoted(&dir.to_string_lossy()));
    }
    let label = run.label();
    match (run.status, failed) {
        (RunStatus::Failed, [TaskSummary { task_id, .. }]) => {
            let typed = typed("cis dag retry", &format!("{place}{skills}"), &[&label, task_id]);
            tell!("hint: `{typed}` tries it again");
        }
        _ => {
            let typed = typed("cis dag resume", &format!("{place}{skills}"), &[&label]);
            tell!("hint: `{typed}` runs what is left");
        }
    }
    if let [TaskSummary { task_id, .. }, ..] = failed {
        let typed = typed(
            "cis logs",
            &format!(" --task{}{task_id}{place}", if task_id.starts_with('-') { "=" } else { " " }),
            &[&label],
        );
        tell!("hint: `{typed}` shows all it printed");
    }
    Ok(())
}

/// A command as it is typed. Words that begin with a dash come last, or they would be taken for options.
fn typed(command: &str, options: &str, words: &[&str]) -> String {
    let (joined, bare) = (words.join(" "), words.iter().all(|word| !word.starts_with('-')));
    if bare { format!("{command} {joined}{options}") } else { format!("{command}{options} -- {joined}") }
}
