//! Rows, bars, and the page.

use std::process::Command;

use anyhow::Result;
use xtask::run::output;

use crate::bed::Bed;
use crate::contest::Spread;
use crate::machine::{self, Conditions};

/// How a figure compares to its bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// Nobody asked for more than to know it.
    Shown,
    /// The machine was too busy for it to mean anything.
    Void,
}

impl Verdict {
    /// Met if the figure is at most the bar.
    pub(crate) fn at_most(figure: f64, bar: f64) -> Self {
        if figure <= bar { Self::Met } else { Self::Missed }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "**missed**",
            Self::Shown => "–",
            Self::Void => "disk too busy",
        }
    }
}

/// One figure.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) figure: String,
    /// What it must be, and in parentheses what we want next.
    pub(crate) bar: String,
    pub(crate) verdict: Verdict,
    /// What was measured to get it.
    pub(crate) detail: String,
    pub(crate) conditions: Conditions,
}

impl Row {
    /// A ratio that should be at most `bar`.
    pub(crate) fn ratio(what: &str, ratio: Spread, bar: f64, goal: Option<f64>, at: Conditions) -> Self {
        let goal = goal.map_or_else(String::new, |goal| format!(" ({goal})"));
        Self {
            what: what.to_owned(),
            figure: format!("{:.2} × ({:.2}–{:.2})", ratio.median, ratio.min, ratio.max),
            bar: format!("≤ {bar}{goal}"),
            verdict: Verdict::at_most(ratio.median, bar),
            detail: String::new(),
            conditions: at,
        }
    }

    /// A share of something else that should be at least `bar`.
    pub(crate) fn share(what: &str, share: Spread, bar: f64, goal: f64, at: Conditions) -> Self {
        let verdict = if share.median >= bar { Verdict::Met } else { Verdict::Missed };
        Self {
            bar: format!("≥ {bar} ({goal})"),
            verdict,
            ..Self::ratio(what, share, f64::INFINITY, None, at)
        }
    }

    /// A figure that should be at most `bar`, in `unit`.
    pub(crate) fn at_most(what: &str, figure: f64, bar: f64, unit: &str, at: Conditions) -> Self {
        Self {
            what: what.to_owned(),
            figure: format!("{figure:.1} {unit}"),
            bar: format!("≤ {bar} {unit}"),
            verdict: Verdict::at_most(figure, bar),
            detail: String::new(),
            conditions: at,
        }
    }

    /// The same without a bar: it is only there to be known.
    pub(crate) fn without_bar(self) -> Self {
        Self { bar: "–".to_owned(), verdict: Verdict::Shown, ..self }
    }

    /// With what was measured to get it.
    pub(crate) fn detail(self, detail: String) -> Self {
        Self { detail, ..self }
    }

    /// For the terminal, while the rest is still being measured.
    pub(crate) fn line(&self) -> String {
        let Self { what, figure, bar, verdict, detail, .. } = self;
        format!("  {what}: {figure}, bar {bar}: {} [{detail}]", verdict.word())
    }

    fn markdown(&self) -> String {
        let Self { what, figure, bar, verdict, detail, conditions } = self;
        let pressure =
            conditions.pressure.map_or_else(|| "–".to_owned(), |percent| format!("{percent:.0} %"));
        let verdict = verdict.word();
        let sync_ms = conditions.sync_ms;
        format!("| {what} | {figure} | {bar} | {verdict} | {detail} | {pressure} | {sync_ms:.2} ms |\n")
    }
}

/// Everything that was measured, and where and when.
#[derive(Debug)]
pub(crate) struct Report {
    heading: String,
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn begin(bed: &Bed) -> Result<Self> {
        let date = output(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))?;
        let commit =
            output(Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(bed.root()))?;
        let ninja = output(Command::new("ninja").arg("--version"))?;
        let make = output(Command::new("make").arg("--version"))?;
        let make = make.lines().next().unwrap_or_default().to_owned();
        let machine = machine::describe(bed.path())?;
        let pairs = bed.pairs();
        Ok(Self {
            heading: format!("{date}, commit {commit}, pairs: {pairs}. {machine}. Ninja {ninja}, {make}."),
            rows: Vec::new(),
        })
    }

    pub(crate) fn add(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    /// Which bars are missed, in one line.
    pub(crate) fn verdict(&self) -> String {
        let named = |verdict| {
            let rows = self.rows.iter().filter(move |row| row.verdict == verdict);
            rows.map(|row| row.what.as_str()).collect::<Vec<_>>()
        };
        let (met, missed, void) = (named(Verdict::Met), named(Verdict::Missed), named(Verdict::Void));
        let mut text = format!("{} bars met, {} missed", met.len(), missed.len());
        for (word, rows) in [("missed", missed), ("not comparable", void)] {
            if !rows.is_empty() {
                text += &format!("\n{word}: {}", rows.join("; "));
            }
        }
        text
    }

    /// `docs/benchmarks.md`.
    pub(crate) fn page(&self) -> String {
        let rows: String = self.rows.iter().map(Row::markdown).collect();
        format!(
            "# Benchmarks\n\n<!-- Written by `cargo xtask bench`. -->\n\n{}\n\n\
             | what | figure | bar (goal) | | measured | CPU pressure | fdatasync p50 |\n\
             |---|---|---|---|---|---|---|\n{rows}\n{PROTOCOL}",
            self.heading
        )
    }
}

/// How the figures came to be.
const PROTOCOL: &str = "\
## How to read it

- A ratio compares two runs that took place one after the other. Each pair of runs gives one ratio; the figure is
  the median of the ratios, with the least and the greatest in parentheses. The order of the tools turns from pair to
  pair.
- Every task is a real `/bin/sh -c true` with its output captured, in a process group of its own, its attempt
  committed before it starts. Ninja runs `true` through `/bin/sh -c` by itself; make is given `true;`, since it would
  start a plain `true` without a shell.
- The same number of tasks runs at once in every tool: one per core. `cis` uses its default configuration but for
  `--durability`, where a row names it; rows that do not name it use `process`.
- Every run starts in a fresh directory, after a `sync`; output goes to a file. Only the time from starting the tool
  to its end counts.
- CPU pressure is `some avg10` of `/proc/pressure/cpu`, fdatasync p50 the median of 200 appends of 4 KiB, both taken
  just before the workload, on the file system of the data directory. Pressure includes the workload before. A figure
  for `power` means nothing when the disk is busy: its bar counts up to 0.3 ms.

| workload | what it is |
|---|---|
| W0 | W1 with a runner that answers at once: processor time of coordinator and runner per task, our own share |
| W1 | 10,000 tasks that do not wait for each other |
| W2 | a chain of 2,000 tasks |
| W3 | 50 layers of 20 tasks, each waiting for all of the layer before |
| W4 | 64 agents, each again and again: publish a DAG of one `external` task, confirm it, claim it, complete it, over HTTP at `power`; beside 64 threads that call the same store operations themselves |
| W5 | 64 connections ask for the status of 1,000 DAGs at random while 100 new revisions a second are published; no answer is older than what was acknowledged before it was asked for; beside an HTTP server that only says hello |
| idle | the node's memory and its runner's after one task; the time from starting `cis node` to its first answer; 5,000 followers and long-polls that nothing happens for, and what they cost a claim |
| recovery | a node killed with its runner while 100 tasks are held, on a store with 100,000 finished runs: from starting the next one until it says that it is ready |
| W6 | W1, reads and claims on a store with 1,000,000 finished tasks, made through store operations; claims behind 1,000,000 ready tasks of a scope the claimant may not touch |
| W7 | 1,000 layers of 100 tasks, each waiting for two of the layer before |
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_tells_whether_its_bar_is_met() {
        let at = Conditions { pressure: Some(3.0), sync_ms: 0.2 };
        let spread = Spread { median: 1.26, min: 1.1, max: 1.4 };
        let row = Row::ratio("W1", spread, 1.25, Some(1.15), at);
        assert_eq!(
            row.markdown(),
            "| W1 | 1.26 × (1.10–1.40) | ≤ 1.25 (1.15) | **missed** |  | 3 % | 0.20 ms |\n"
        );
        let report = Report { heading: String::new(), rows: vec![row] };
        assert_eq!(report.verdict(), "0 bars met, 1 missed\nmissed: W1");
    }
}
