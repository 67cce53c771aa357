//! A run on the terminal while it happens.
//!
//! ```text
//!  run loop ── RunView ──► render (pure) ── lines ──► Screen: drawn in place, at most ten times a second
//!           └─ Transition ──────────────────────────► Plain: a line each, where there is no terminal
//! ```
//!
//! A small run is shown task by task. A large one as a bar with counts, the tasks that run with the last line
//! they printed, and those that failed.

pub mod plain;
pub mod screen;

#[cfg(test)]
mod tests;

use anstyle::Style;
use cis_core::run::RunStatus;
use cis_core::source::Millis;
use cis_core::task::TaskStatus;

use crate::term::face::{BOLD, DIM, paint};
use crate::term::text::{clean, columns, fit, thousands};
use crate::term::{Face, Size, Tone, reveal};

pub use plain::{Plain, Transition};
pub use screen::Screen;

/// Runs of up to so many tasks are shown task by task, if the screen is high enough.
pub const SMALL_RUN: usize = 24;

/// Widest column of names.
const TITLE_WIDTH: usize = 40;

/// Failures shown while the run goes on; all of them are told at its end.
const FAILURES_SHOWN: usize = 5;

/// What a run looks like at one moment.
#[derive(Debug, Clone)]
pub struct RunView {
    /// `backup#42`.
    pub title: String,
    pub state: RunStatus,
    pub totals: Totals,
    pub elapsed: Millis,
    /// How long it may still take, where past runs tell.
    pub eta: Option<Millis>,
    /// Every task in file order; may stay empty for runs over [`SMALL_RUN`].
    pub tasks: Vec<TaskLine>,
    /// What waits for a person, then what runs now, longest first; only as many are shown as there is room for.
    pub running: Vec<RunningTask>,
    /// What failed, latest last.
    pub failures: Vec<FailedTask>,
}

/// One task of a small run.
#[derive(Debug, Clone)]
pub struct TaskLine {
    pub title: String,
    pub state: TaskStatus,
    pub elapsed: Option<Millis>,
    /// Its last line of output, or what became of it.
    pub note: String,
}

/// A task that runs, or waits for a person.
#[derive(Debug, Clone)]
pub struct RunningTask {
    pub title: String,
    pub state: TaskStatus,
    pub elapsed: Millis,
    /// The last line it printed, or what it asks.
    pub last_line: String,
}

/// A task that failed.
#[derive(Debug, Clone)]
pub struct FailedTask {
    pub title: String,
    /// `exit 1`, `timed out after 10s`.
    pub why: String,
}

/// How many tasks are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals([u32; TaskStatus::ALL.len()]);

impl Totals {
    /// Counts one more task in `status`.
    pub fn add(&mut self, status: TaskStatus) {
        self.0[status as usize] += 1;
    }

    /// Moves one task from one state to another.
    pub fn shift(&mut self, from: TaskStatus, to: TaskStatus) {
        self.0[from as usize] = self.0[from as usize].saturating_sub(1);
        self.add(to);
    }

    /// How many are in `status`.
    pub fn of(&self, status: TaskStatus) -> u32 {
        self.0[status as usize]
    }

    /// How many there are.
    pub fn all(&self) -> u32 {
        self.0.iter().sum()
    }

    /// How many have ended, however.
    pub fn ended(&self) -> u32 {
        self.sum(TaskStatus::is_terminal)
    }

    /// How many have failed or timed out.
    pub fn failed(&self) -> u32 {
        self.of(TaskStatus::Failed) + self.of(TaskStatus::TimedOut)
    }

    fn sum(&self, which: impl Fn(TaskStatus) -> bool) -> u32 {
        TaskStatus::ALL.into_iter().filter(|status| which(*status)).map(|status| self.of(status)).sum()
    }
}

/// Should a run be shown live? Only on a terminal that can move its cursor.
pub fn wanted(is_terminal: bool, term: Option<&str>) -> bool {
    is_terminal && term != Some("dumb")
}

/// The lines of the view, none wider than the screen, and fewer than it is high.
pub fn render(view: &RunView, size: Size) -> Vec<String> {
    let (width, room) = (usize::from(size.cols), usize::from(size.rows).saturating_sub(1).max(1));
    let mut lines = vec![header(view, width)];
    let tasks = view.tasks.len();
    if tasks > 0 && tasks <= SMALL_RUN && tasks < room {
        small(view, width, &mut lines);
    } else {
        large(view, width, room, &mut lines);
    }
    lines.truncate(room);
    lines
}

fn header(view: &RunView, width: usize) -> String {
    let face = Face::from(view.state);
    let totals = &view.totals;
    let mut line = Line::new(width);
    line.put(face.tone.style(), &format!("{} ", face.glyph));
    line.put(BOLD, &reveal(&view.title));
    line.put(face.tone.style(), &format!("  {}", face.word));
    let count = |number: u32| thousands(number as usize);
    line.put(DIM, &format!("  {}/{}  {}", count(totals.ended()), count(totals.all()), view.elapsed));
    if let Some(eta) = view.eta {
        line.put(DIM, &format!("  about {eta} to go"));
    }
    line.text
}

/// Every task on a line of its own.
fn small(view: &RunView, width: usize, lines: &mut Vec<String>) {
    let column = column(view.tasks.iter().map(|task| task.title.as_str()), width);
    for task in &view.tasks {
        let face = Face::from(task.state);
        let elapsed = task.elapsed.map(|elapsed| elapsed.to_string()).unwrap_or_default();
        lines.push(row(face, &task.title, &elapsed, &task.note, column, width));
    }
}

/// A bar, counts, what runs and what failed.
fn large(view: &RunView, width: usize, room: usize, lines: &mut Vec<String>) {
    lines.push(bar(&view.totals, width));
    lines.push(counts(&view.totals, width));
    let left = room.saturating_sub(lines.len());
    // What runs comes first; failures get what it leaves, and a third in any case.
    let spare = left.saturating_sub(view.running.len()).max(left / 3);
    let failures = failures(view, spare.min(FAILURES_SHOWN + 1), width);
    let running = left - failures.len();
    // The last line says how many are not shown, if any are not.
    let shown = if view.running.len() > running { running.saturating_sub(1) } else { view.running.len() };
    let column = column(view.running.iter().take(shown).map(|task| task.title.as_str()), width);
    for task in view.running.iter().take(shown) {
        let face = Face::from(task.state);
        lines.push(row(face, &task.title, &task.elapsed.to_string(), &task.last_line, column, width));
    }
    if shown < view.running.len() && running > 0 {
        lines.push(more(view.running.len() - shown, "running", width));
    }
    lines.extend(failures);
}

fn failures(view: &RunView, room: usize, width: usize) -> Vec<String> {
    let all = (view.totals.failed() as usize).max(view.failures.len());
    let shown =
        view.failures.len().min(if all > room { room.saturating_sub(1) } else { room }).min(FAILURES_SHOWN);
    let mut lines: Vec<String> = view.failures[view.failures.len() - shown..]
        .iter()
        .map(|task| {
            let mut line = Line::new(width);
            line.put(Tone::Bad.style(), "✗ ");
            line.put(Style::new(), &fit(&reveal(&task.title), TITLE_WIDTH));
            line.put(Tone::Bad.style(), &format!("  {}", reveal(&task.why)));
            line.text
        })
        .collect();
    if all > shown && lines.len() < room {
        lines.push(more(all - shown, "failed", width));
    }
    lines
}

fn more(count: usize, what: &str, width: usize) -> String {
    let mut line = Line::new(width);
    line.put(DIM, &format!("  … and {} more {what}", thousands(count)));
    line.text
}

/// `● compile  3.2s  last line of output`.
fn row(face: Face, title: &str, elapsed: &str, note: &str, column: usize, width: usize) -> String {
    let title = fit(&reveal(title), column).into_owned();
    let gap = column.saturating_sub(columns(&title));
    let mut line = Line::new(width);
    line.put(face.tone.style(), &format!("{} ", face.glyph));
    let quiet = matches!(face.tone, Tone::Quiet | Tone::Stopped);
    line.put(if quiet { DIM } else { Style::new() }, &title);
    // What a task prints may be coloured; what a caller wrote is shown for what it is.
    let printed = matches!(face.word, "running" | "cancelling");
    let note = if printed { clean(note) } else { reveal(note) };
    if !elapsed.is_empty() || !note.is_empty() {
        line.put(Style::new(), &format!("{:gap$}  {elapsed:>7}", ""));
    }
    if !note.is_empty() {
        let style = if face.tone == Tone::Bad { face.tone.style() } else { DIM };
        line.put(style, &format!("  {note}"));
    }
    line.text
}

/// How wide the column of these names is: as wide as needed, within reason.
fn column<'a>(titles: impl Iterator<Item = &'a str>, width: usize) -> usize {
    titles.map(|title| columns(&reveal(title))).max().unwrap_or(0).min(TITLE_WIDTH).min(width / 2)
}

/// Ended well, ended badly, running, the rest; as wide as the screen, up to a point.
fn bar(totals: &Totals, width: usize) -> String {
    let cells = width.saturating_sub(6).min(60);
    let all = totals.all().max(1) as usize;
    let failed = totals.failed() as usize;
    let ended = totals.ended() as usize;
    let live = totals.sum(TaskStatus::is_live) as usize;
    // Counting up to each border rounds once per border, so the parts always fill the bar exactly.
    let upto = |count: usize| count * cells / all;
    let part = |from: usize, to: usize, glyph: &str| glyph.repeat(upto(to) - upto(from));
    let mut line = Line::new(width);
    line.put(Tone::Good.style(), &part(0, ended - failed, "━"));
    line.put(Tone::Bad.style(), &part(ended - failed, ended, "━"));
    line.put(Tone::Active.style(), &part(ended, ended + live, "╍"));
    line.put(DIM, &part(ended + live, all, "─"));
    line.put(Style::new(), &format!(" {:>3}%", ended * 100 / all));
    line.text
}

/// The states in the order of what matters while a run goes on: on a narrow screen the last ones are cut.
const BY_WEIGHT: [TaskStatus; TaskStatus::ALL.len()] = [
    TaskStatus::Failed,
    TaskStatus::TimedOut,
    TaskStatus::Waiting,
    TaskStatus::Running,
    TaskStatus::Cancelling,
    TaskStatus::Completed,
    TaskStatus::Ready,
    TaskStatus::Pending,
    TaskStatus::Skipped,
    TaskStatus::Cancelled,
];

fn counts(totals: &Totals, width: usize) -> String {
    let mut line = Line::new(width);
    for (i, status) in BY_WEIGHT.into_iter().filter(|status| totals.of(*status) > 0).enumerate() {
        let (face, gap) = (Face::from(status), if i == 0 { "" } else { "  " });
        let number = thousands(totals.of(status) as usize);
        line.put(face.tone.style(), &format!("{gap}{} {number} {}", face.glyph, face.word));
    }
    line.text
}

/// A line being put together that never gets wider than the screen.
struct Line {
    text: String,
    left: usize,
}

impl Line {
    fn new(width: usize) -> Self {
        Self { text: String::new(), left: width }
    }

    fn put(&mut self, style: Style, text: &str) {
        let shown = fit(text, self.left);
        if !shown.is_empty() {
            self.left -= columns(&shown);
            self.text.push_str(&paint(style, &shown));
        }
    }
}
