//! Following a run of this process to its end: a live view on a terminal, lines or JSON elsewhere; Ctrl-C
//! cancels it, a second one kills.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use cis_core::dag::Dag;
use cis_core::error::ErrorCode;
use cis_core::run::RunStatus;
use cis_core::source::Clock;
use cis_core::task::TaskStatus;
use cis_engine::command::Command;
use cis_engine::session::Session;
use cis_engine::system::System;
use cis_runner::log::{self, Entry};
use cis_store::port::RunRef;
use cis_store::sqlite::Reader;
use cis_store::sqlite::reader::{RunLine, TaskLine};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::notes::in_words;
use super::view::View;
use super::watch::Watch;
use super::{Failure, Outcome, Setup};
use crate::config::{Setting, Source};
use crate::live::{self, Plain, Screen};
use crate::remote::Remote;
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

/// Whoever a run is asked of.
pub(super) enum Hand {
    /// A coordinator of this data directory.
    Here(Box<Session>),
    Node(Remote),
}

impl Hand {
    /// The run, and where it is looked at.
    fn look(&self, setup: &Setup, run: &RunRef) -> Result<(View, RunLine), Failure> {
        let (view, line) = match self {
            Self::Here(_) => {
                let reader = Reader::open(&setup.data_dir().database())?;
                let line = reader.run(run.key)?;
                (View::Here(Box::new(reader)), line)
            }
            Self::Node(node) => {
                (View::Node(node.clone()), node.run_by_number(&run.dag_id, &run.scope, run.number)?)
            }
        };
        let line = line.ok_or_else(|| Failure::new(ErrorCode::Internal, "the run is not in the store"))?;
        Ok((view, line))
    }

    /// Asks to be woken by what happens; a node is listened to anyway.
    fn subscribe(&self, wake: &mpsc::Sender<Wake>) -> Result<(), Failure> {
        let Self::Here(session) = self else { return Ok(()) };
        let wake = wake.clone();
        Ok(session.follow(move |alive| wake.send(if alive { Wake::Changed } else { Wake::Lost }).is_ok())?)
    }

    fn reopen(&mut self) -> Result<(), Failure> {
        match self {
            Self::Here(session) => Ok(session.reopen()?),
            Self::Node(_) => Ok(()),
        }
    }

    /// Why nothing is started at present, if it is for the runner.
    fn silence(&mut self) -> Result<Option<String>, Failure> {
        let Self::Here(session) = self else { return Ok(None) };
        let silent = session.ask(Command::Hello)?.hello()?.runner;
        Ok(silent.map(|refusal| format!("waiting: {}", in_words(&refusal))))
    }

    fn stop(&mut self, run: &RunRef, kill: bool) -> Result<(), Failure> {
        match self {
            Self::Here(session) => {
                session.ask(Command::Stop { key: None, run: run.key, kill })?.stopping()?;
            }
            Self::Node(node) => {
                node.stop(run.run_id, kill)?;
            }
        }
        Ok(())
    }

    fn close(self) -> Result<(), Failure> {
        match self {
            Self::Here(session) => Ok(session.close()?),
            Self::Node(_) => Ok(()),
        }
    }
}

/// How the run is shown.
enum Show {
    Live(Box<Screen<std::io::Stderr>>),
    Lines { out: Plain<std::io::Stdout>, colour: bool },
    Json(std::io::BufWriter<std::io::Stdout>),
}

/// Follows `run` to its end; the exit code tells how it ended. `skill_dirs` are those that were named for it.
pub(super) fn follow(
    setup: &Setup,
    mut hand: Hand,
    run: &RunRef,
    dag: Arc<Dag>,
    skill_dirs: &[PathBuf],
    interrupts: Interrupts,
) -> Outcome {
    let (view, line) = hand.look(setup, run)?;
    let mut watch = Watch::new(view, line, dag, setup.data_dir())?;
    let mut show = Show::new(setup.json, watch.is_here());
    let Interrupts { wake, woken } = interrupts;
    hand.subscribe(&wake)?;
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
                    let told = hand.silence()?;
                    if let Some(words) = told.as_ref().filter(|_| !silent) {
                        show.note(words)?;
                    }
                    silent = told.is_some();
                }
            }
            Ok(Wake::Lost) => {
                hand.reopen()?;
                hand.subscribe(&wake)?;
            }
            Ok(Wake::Interrupted) => {
                interrupts += 1;
                show.note(if interrupts == 1 {
                    "cancelling; press Ctrl-C again to kill"
                } else {
                    "killing"
                })?;
                hand.stop(run, interrupts > 1)?;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    show.finish(&mut watch)?;
    tell_ending(setup, &watch, skill_dirs)?;
    hand.close()?;
    Ok(match watch.run.status {
        RunStatus::Completed => 0,
        _ if interrupts > 0 => 130,
        _ => 1,
    })
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
    let failed = watch.view.tasks(run, &[TaskStatus::Failed, TaskStatus::TimedOut], 1_000)?;
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

fn tell_failure(watch: &Watch, task: &TaskLine) {
    let title = watch.dag.tasks[task.ix.index()].title();
    let face = Face::from(task.status);
    let why = task.cause.as_deref().unwrap_or(face.word);
    let rule = format!("{} {}: {}", face.mark(), reveal(title), reveal(why));
    tell!("\n{rule}");
    for line in last_lines(watch, task) {
        tell!("  {} {}", paint(DIM, "│"), clean(&line));
    }
    tell!();
}

/// The last lines a task printed, both streams as they came.
fn last_lines(watch: &Watch, task: &TaskLine) -> Vec<String> {
    let View::Node(node) = &watch.view else { return last_lines_here(watch, task) };
    let (mut lines, tail) = (Vec::new(), LAST_LINES.to_string());
    // What cannot be read is not shown, here as there.
    let _ = node.logs(&watch.run, &[("task", task.task_id.as_str()), ("tail", &tail)], |line| {
        lines.push(line.text.clone());
        true
    });
    lines
}

fn last_lines_here(watch: &Watch, task: &TaskLine) -> Vec<String> {
    let mut bytes = Vec::new();
    if let Ok(entries) = log::read(&watch.log(task)) {
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
    failed: &[TaskLine],
    skill_dirs: &[PathBuf],
) -> Result<(), Failure> {
    let run = &watch.run;
    if run.status == RunStatus::Completed {
        return Ok(());
    }
    let mut place = String::new();
    if let Setting { value, source: Source::Flag(flag) } = &setup.config.data_dir {
        place = format!(" {flag} {}", text::quoted(&value.to_string_lossy()));
    }
    if watch.view.dag(run.dag_id.as_str(), None)?.len() > 1 {
        place += &format!(" --scope {}", run.scope);
    }
    let mut skills = String::new();
    for dir in skill_dirs.iter().filter(|_| !watch.dag.skills.is_empty()) {
        skills += &format!(" --skill-dir {}", text::quoted(&dir.to_string_lossy()));
    }
    let label = run.label();
    match (run.status, failed) {
        (RunStatus::Failed, [TaskLine { task_id, .. }]) => {
            let typed = typed("cis dag retry", &format!("{place}{skills}"), &[&label, task_id]);
            tell!("hint: `{typed}` tries it again");
        }
        _ => {
            let typed = typed("cis dag resume", &format!("{place}{skills}"), &[&label]);
            tell!("hint: `{typed}` runs what is left");
        }
    }
    if let [TaskLine { task_id, .. }, ..] = failed {
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
