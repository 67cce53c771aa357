//! A DAG on a terminal: a row per task, in an order that respects dependencies, and a lane per task that
//! others still wait for.
//!
//! ```text
//! ● fetch
//! ├─● lint          waits for fetch, whose lane goes on
//! ● │ build         the last to wait for fetch: takes its lane over
//! ●─╯ test          waits for build and lint
//! ```
//!
//! Tasks that wait for the same and are waited for by the same share a row, or a wide step would bury the
//! shape of the graph.

use std::collections::HashMap;
use std::fmt::Write as _;

use cis_core::id::TaskIx;

use super::Subject;
use crate::term::face::{DIM, paint};
use crate::term::text::{columns, count, thousands};

/// More tasks than this are listed by layer.
const TASKS_MAX: usize = 200;

/// More lanes than this side by side are a tangle.
const LANES_MAX: usize = 24;

/// This many twins and more share a row.
const TWINS_MIN: usize = 4;

/// Where a row of twins, and a line of the list, is broken or cut.
const TEXT_WIDTH: usize = 76;

/// Layers shown in a list, from its start and from its end.
const LAYERS_HEAD: usize = 60;
const LAYERS_TAIL: usize = 10;

pub(super) fn render(subject: &Subject<'_>) -> String {
    let tasks = subject.plan.len();
    if tasks > TASKS_MAX {
        return list(subject, "too many to draw");
    }
    lanes(subject).unwrap_or_else(|| list(subject, "too entangled to draw"))
}

/// A row of the drawing: one task, or twins.
struct Row {
    tasks: Vec<TaskIx>,
    after: Vec<usize>,
    before: Vec<usize>,
}

/// Draws lanes; `None` if there would be too many.
fn lanes(subject: &Subject<'_>) -> Option<String> {
    let rows = rows(subject);
    let mut waited_for: Vec<usize> = rows.iter().map(|row| row.before.len()).collect();
    let mut lanes: Vec<Option<usize>> = Vec::new();
    let mut text = String::new();
    let mut above = None;
    for place in order(&rows) {
        let row = &rows[place];
        let mut joins = vec![Join::None; lanes.len()];
        for (lane, join) in lanes.iter().zip(&mut joins) {
            let Some(owner) = *lane else { continue };
            if row.after.contains(&owner) {
                waited_for[owner] -= 1;
                *join = if waited_for[owner] == 0 { Join::Ends } else { Join::GoesOn };
            }
        }
        let at = joins
            .iter()
            .position(|join| *join == Join::Ends)
            .or_else(|| lanes.iter().position(Option::is_none))
            .unwrap_or(lanes.len());
        if at == lanes.len() {
            lanes.push(None);
            joins.push(Join::None);
        }
        if lanes.len() > LANES_MAX {
            return None;
        }
        if above.replace(at) == Some(at) && joins[at] == Join::None {
            // Right below a task it does not wait for, it would look as if it did.
            let gap: String = lanes.iter().map(|lane| if lane.is_some() { "│ " } else { "  " }).collect();
            let _ = writeln!(text, "{}", gap.trim_end());
        }
        let picture = picture(&lanes, &joins, at, &mark(subject, row));
        for (lane, join) in lanes.iter_mut().zip(&joins) {
            if *join == Join::Ends {
                *lane = None;
            }
        }
        lanes[at] = (!row.before.is_empty()).then_some(place);
        while lanes.last().is_some_and(Option::is_none) {
            lanes.pop();
        }
        label(&mut text, subject, row, &picture, &lanes);
    }
    Some(text)
}

/// What a lane has to do with the row being drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Join {
    None,
    /// The row waits for its owner, and so do others.
    GoesOn,
    /// The row is the last that waits for its owner.
    Ends,
}

/// The lanes of one row, with `mark` at lane `at` and lines to it from every lane it waits for.
fn picture(lanes: &[Option<usize>], joins: &[Join], at: usize, mark: &str) -> String {
    let joined = |lane: usize| joins[lane] != Join::None;
    let ends = (0..lanes.len()).filter(|lane| joined(*lane) || *lane == at);
    let (first, last) = (ends.clone().min().unwrap_or(at), ends.max().unwrap_or(at));
    let mut text = String::new();
    for lane in 0..lanes.len() {
        let inside = first <= lane && lane <= last;
        let line = match joins[lane] {
            _ if lane == at => mark,
            Join::GoesOn if lane == first => "├",
            Join::GoesOn if lane == last => "┤",
            Join::GoesOn => "┼",
            Join::Ends if lane == first => "╰",
            Join::Ends if lane == last => "╯",
            Join::Ends => "┴",
            Join::None if lanes[lane].is_some() => "│",
            Join::None if inside => "─",
            Join::None => " ",
        };
        text.push_str(line);
        text.push(if inside && lane < last { '─' } else { ' ' });
    }
    text
}

fn mark(subject: &Subject<'_>, row: &Row) -> String {
    match row.tasks.as_slice() {
        [task] => subject.face(*task).map_or_else(|| "●".to_owned(), |face| face.mark()),
        _ => "◇".to_owned(),
    }
}

/// Writes a row's lanes and names; names of twins go on over as many lines as they need.
fn label(text: &mut String, subject: &Subject<'_>, row: &Row, picture: &str, lanes: &[Option<usize>]) {
    // Writing to a string cannot fail.
    if let [task] = row.tasks.as_slice() {
        let (title, id) = (subject.title(*task, TEXT_WIDTH), subject.id(*task));
        let also = if title == id { String::new() } else { paint(DIM, &format!("  {id}")) };
        let _ = writeln!(text, "{picture}{title}{also}");
        return;
    }
    let mut line = format!("{picture}{}", paint(DIM, &format!("{}:", count(row.tasks.len(), "task"))));
    for task in &row.tasks {
        let title = subject.title(*task, TEXT_WIDTH / 2);
        let title = match subject.face(*task) {
            Some(face) => format!("{} {title}", face.mark()),
            None => title,
        };
        if columns(&line) + columns(&title) + 2 > columns(picture) + TEXT_WIDTH {
            let _ = writeln!(text, "{}", line.trim_end());
            line = lanes.iter().map(|lane| if lane.is_some() { "│ " } else { "  " }).collect::<String>();
            let indent = (columns(picture) + 2).saturating_sub(columns(&line));
            line.push_str(&" ".repeat(indent));
        } else {
            line.push_str("  ");
        }
        line.push_str(&title);
    }
    let _ = writeln!(text, "{line}");
}

/// Tasks gathered into rows, with the rows each waits for and is waited for by.
fn rows(subject: &Subject<'_>) -> Vec<Row> {
    let plan = subject.plan;
    let mut twins: HashMap<_, Vec<TaskIx>> = HashMap::new();
    for task in plan.tasks() {
        twins.entry((plan.depends_on(task), plan.dependents(task))).or_default().push(task);
    }
    let mut row_of = vec![usize::MAX; plan.len()];
    let mut rows: Vec<Row> = Vec::new();
    for task in plan.tasks() {
        let (after, before) = (plan.depends_on(task), plan.dependents(task));
        let alone = after.is_empty() && before.is_empty();
        let together = twins.get(&(after, before)).filter(|twins| !alone && twins.len() >= TWINS_MIN);
        if row_of[task.index()] != usize::MAX {
            continue;
        }
        let tasks = together.cloned().unwrap_or_else(|| vec![task]);
        for task in &tasks {
            row_of[task.index()] = rows.len();
        }
        rows.push(Row { tasks, after: Vec::new(), before: Vec::new() });
    }
    let rows_of = |tasks: &[TaskIx]| {
        let mut rows: Vec<usize> = tasks.iter().map(|task| row_of[task.index()]).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    };
    for row in &mut rows {
        if let Some(first) = row.tasks.first() {
            row.after = rows_of(plan.depends_on(*first));
            row.before = rows_of(plan.dependents(*first));
        }
    }
    rows
}

/// Depth first as far as dependencies allow: what belongs together stays together, and lanes stay short.
fn order(rows: &[Row]) -> Vec<usize> {
    let mut left: Vec<usize> = rows.iter().map(|row| row.after.len()).collect();
    let mut free: Vec<usize> = (0..rows.len()).rev().filter(|row| left[*row] == 0).collect();
    let mut order = Vec::with_capacity(rows.len());
    while let Some(row) = free.pop() {
        order.push(row);
        for next in rows[row].before.iter().rev() {
            left[*next] -= 1;
            if left[*next] == 0 {
                free.push(*next);
            }
        }
    }
    order
}

/// The tasks by layer: those of one layer wait only for earlier ones.
fn list(subject: &Subject<'_>, why: &str) -> String {
    let layers = subject.layers();
    let mut text = format!(
        "{} in {}, {why}: here they are by layer (`--format svg` draws them)\n",
        count(subject.plan.len(), "task"),
        count(layers.len(), "layer")
    );
    let hidden = layers.len().saturating_sub(LAYERS_HEAD + LAYERS_TAIL);
    let digits = layers.len().to_string().len();
    for (i, layer) in layers.iter().enumerate() {
        if hidden > 0 && (LAYERS_HEAD..LAYERS_HEAD + hidden).contains(&i) {
            if i == LAYERS_HEAD {
                let _ = writeln!(text, "{:digits$}  … {} …", "", count(hidden, "more layer"));
            }
            continue;
        }
        let tally = subject.tally(layer, |face, text| paint(face.tone.style(), text));
        let tally = if tally.is_empty() { tally } else { format!("{tally}  ") };
        let _ = writeln!(text, "{:>digits$}  {tally}{}", i + 1, names(subject, layer));
    }
    text
}

fn names(subject: &Subject<'_>, layer: &[TaskIx]) -> String {
    let mut text = String::new();
    for (i, task) in layer.iter().enumerate() {
        let title = subject.title(*task, TEXT_WIDTH / 2);
        if i > 0 && columns(&text) + columns(&title) + 2 > TEXT_WIDTH {
            let _ = write!(text, ", … and {} more", thousands(layer.len() - i));
            break;
        }
        let _ = write!(text, "{}{title}", if i == 0 { "" } else { ", " });
    }
    text
}

#[cfg(test)]
mod tests {
    use cis_core::task::TaskStatus;

    use super::super::Format;
    use super::super::sample::{dag, drawn, named, numbered, wide};
    use super::*;

    fn lines(tasks: &[(&str, &[&str])]) -> Vec<String> {
        drawn(&dag(tasks), None, Format::Ascii).lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_diamond() {
        assert_eq!(
            lines(&[
                ("fetch", &[]),
                ("lint", &["fetch"]),
                ("build", &["fetch"]),
                ("test", &["build", "lint"])
            ]),
            ["● fetch", "├─● lint", "● │ build", "●─╯ test"]
        );
    }

    #[test]
    fn lanes_cross_without_touching() {
        assert_eq!(
            lines(&[
                ("a", &[]),
                ("b", &["a"]),
                ("c", &["a"]),
                ("d", &["a"]),
                ("e", &["b", "d"]),
                ("f", &["c", "e"]),
                ("g", &["a"]),
            ]),
            ["● a", "├─● b", "├─│─● c", "├─│─│─● d", "│ ●─│─╯ e", "│ ●─╯ f", "● g"]
        );
    }

    #[test]
    fn separate_tasks_and_chains() {
        assert_eq!(lines(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]), ["● a", "● b", "● c"]);
        assert_eq!(lines(&[("a", &[]), ("b", &["a"]), ("c", &[])]), ["● a", "● b", "", "● c"]);
        assert_eq!(lines(&[("a", &[]), ("b", &[]), ("c", &[])]), ["● a", "", "● b", "", "● c"]);
    }

    #[test]
    fn twins_share_a_row_and_it_is_broken_where_it_gets_long() {
        let mut tasks = vec![("first".to_owned(), vec![])];
        tasks.extend((1..=12).map(|i| (format!("shard-{i:02}"), vec![TaskIx(0)])));
        tasks.push(("last".to_owned(), (1..=12).map(TaskIx).collect()));
        tasks.push(("side".to_owned(), vec![TaskIx(0)]));
        let text = drawn(&numbered(tasks), None, Format::Ascii);
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "● first",
                "├─◇ 12 tasks:  shard-01  shard-02  shard-03  shard-04  shard-05  shard-06",
                "│ │   shard-07  shard-08  shard-09  shard-10  shard-11  shard-12",
                "│ ● last",
                "● side",
            ]
        );
    }

    #[test]
    fn states_and_names_are_shown_safely() {
        let dag = named("t1", "Dump \u{1b}[2J the database");
        let shown = "✗ Dump \\u{1b}[2J the database  t1\n";
        assert_eq!(drawn(&dag, Some(&[TaskStatus::Failed]), Format::Ascii), shown);
    }

    #[test]
    fn large_graphs_are_listed_by_layer_and_say_so() {
        let text = drawn(&wide(3, 100, 2), None, Format::Ascii);
        assert!(text.starts_with("300 tasks in 3 layers, too many to draw"), "{text}");
        assert_eq!(text.lines().count(), 4);
        assert!(text.lines().nth(1).unwrap().starts_with("1  t0, t1, "), "{text}");
        assert!(text.lines().nth(1).unwrap().ends_with(" more"), "{text}");
        let deep = drawn(&wide(1_000, 1, 1), Some(&[TaskStatus::Completed; 1_000]), Format::Ascii);
        assert_eq!(deep.lines().count(), 72);
        assert!(deep.contains("… 930 more layers …") && deep.contains("1000  ✓ 1  t999"), "{deep}");
    }

    #[test]
    fn a_tangle_is_listed_too() {
        // Thirty chains that all stay open until the end.
        let mut tasks: Vec<(String, Vec<TaskIx>)> = (0..30).map(|i| (format!("a{i}"), vec![])).collect();
        tasks.extend((0..30).map(|i| (format!("b{i}"), (0..=i).map(TaskIx).collect())));
        assert!(drawn(&numbered(tasks), None, Format::Ascii).contains("too entangled to draw"));
    }
}
