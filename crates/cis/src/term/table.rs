//! Aligned columns without borders, as `gh` and `uv` print them.
//!
//! By hand, because cells carry styles: the table crates that can measure those bring a whole terminal
//! library along.

use std::fmt::Write as _;

use super::face::{DIM, paint};
use super::text::{columns, pad, pad_left};
use super::visible::{CONTINUED, TEXT_COLUMNS_MIN, fold, reveal};

/// Between two columns, which no cell has in it.
const GAP: &str = "  ";

/// Words of at most so many columns, ids and names among them, are not broken; nor is a column narrower than one of them.
const WORD_COLUMNS_MAX: usize = 24;

/// Lines that one cell gets on a terminal; what is left of it after these is cut.
const CELL_LINES_MAX: usize = 8;

/// A table being filled.
#[derive(Debug)]
pub struct Table {
    heads: Vec<&'static str>,
    right: Vec<bool>,
    rows: Vec<Vec<Cell>>,
}

/// One cell.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    whole: bool,
}

impl Cell {
    /// Text made here, which may carry styles. Neither cut nor broken.
    pub fn styled(text: String) -> Self {
        Self { text, whole: true }
    }

    /// Columns that it needs, its lines below each other.
    fn least(&self) -> usize {
        if self.whole {
            return columns(&self.text);
        }
        // A word may stand behind the mark of a line that goes on.
        let words = self.text.split(' ').map(columns).filter(|word| *word <= WORD_COLUMNS_MAX);
        words.max().unwrap_or(0) + columns(CONTINUED)
    }

    /// Its lines in a column of this width.
    fn lines(&self, width: usize) -> Vec<String> {
        if self.whole || columns(&self.text) <= width {
            vec![self.text.clone()]
        } else {
            fold(&self.text, width, CELL_LINES_MAX)
        }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    /// A caller's text: what is hidden in it is shown, and so is room that would pass for the end of a column.
    fn from(text: T) -> Self {
        Self { text: reveal(text.as_ref()).into_owned(), whole: false }
    }
}

impl Table {
    /// A table with these headings. A heading that starts with `>` stands over right-aligned cells.
    pub fn new(heads: &[&'static str]) -> Self {
        Self {
            right: heads.iter().map(|head| head.starts_with('>')).collect(),
            heads: heads.iter().map(|head| head.trim_start_matches('>')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty, those beyond the headings are dropped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let mut row: Vec<Cell> = cells.into_iter().take(self.heads.len()).collect();
        row.resize_with(self.heads.len(), || Cell::from(""));
        self.rows.push(row);
    }

    /// Has it no rows?
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table, a line per row. With a `width`, no line is longer but for what must stay in one piece: cells go on below,
    /// in their column and behind a mark, and where that is too narrow a row is its cells below each other.
    pub fn render(&self, width: Option<usize>) -> String {
        let natural = self.widths();
        let widths = match width {
            None => natural,
            Some(limit) => match self.narrowed(natural, limit) {
                Some(widths) => widths,
                None => return self.stacked(limit),
            },
        };
        let mut text = String::new();
        if self.is_headed() {
            self.write_row(&mut text, &self.headings(), &widths);
        }
        for row in &self.rows {
            self.write_row(&mut text, row, &widths);
        }
        text
    }

    fn is_headed(&self) -> bool {
        self.heads.iter().any(|head| !head.is_empty())
    }

    fn headings(&self) -> Vec<Cell> {
        self.heads.iter().map(|head| Cell::styled(paint(DIM, &head.to_uppercase()))).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.heads.iter().map(|head| columns(head)).collect();
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(columns(&cell.text));
            }
        }
        widths
    }

    /// Widths with which no line is longer than `limit`, the widest columns made narrower first; none if there are none.
    fn narrowed(&self, mut widths: Vec<usize>, limit: usize) -> Option<Vec<usize>> {
        let least = |i: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(i)).map(Cell::least);
            cells.max().unwrap_or(0).max(columns(self.heads[i])).max(TEXT_COLUMNS_MIN)
        };
        let least: Vec<usize> = (0..widths.len()).map(least).collect();
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        loop {
            let over = (widths.iter().sum::<usize>() + gaps).saturating_sub(limit);
            if over == 0 {
                return Some(widths);
            }
            let widest = (0..widths.len()).filter(|i| widths[*i] > least[*i]).max_by_key(|i| widths[*i])?;
            // Down to the next widest, so that long texts share the room.
            let next =
                (0..widths.len()).filter(|i| *i != widest).map(|i| widths[i]).filter(|w| *w < widths[widest]);
            let floor = next.max().unwrap_or(0).max(least[widest]).min(widths[widest] - 1);
            widths[widest] = floor.max(widths[widest].saturating_sub(over));
        }
    }

    fn write_row(&self, text: &mut String, cells: &[Cell], widths: &[usize]) {
        let cells: Vec<Vec<String>> =
            cells.iter().zip(widths).map(|(cell, width)| cell.lines(*width)).collect();
        for number in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
            let mut line = String::new();
            for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
                let shown = cell.get(number).map_or("", String::as_str);
                line.push_str(if i > 0 { GAP } else { "" });
                line.push_str(&if self.right[i] { pad_left(shown, *width) } else { pad(shown, *width) });
            }
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }

    /// Each row as its first cell and, below it, the others behind their headings.
    fn stacked(&self, limit: usize) -> String {
        let named = self.heads.iter().skip(1).map(|head| columns(head)).max().unwrap_or(0);
        let widths = [named, limit.saturating_sub(2 * GAP.len() + named)];
        let mut text = String::new();
        for row in &self.rows {
            for (i, (head, cell)) in self.headings().iter().zip(row).enumerate() {
                if i == 0 {
                    cell.lines(limit).iter().for_each(|line| text.push_str(&format!("{line}\n")));
                    continue;
                }
                for (number, line) in
                    cell.lines(widths[1]).iter().enumerate().filter(|(_, line)| !line.is_empty())
                {
                    let head = if number == 0 { pad(&head.text, named) } else { pad("", named) };
                    let _ = writeln!(text, "{GAP}{head}{GAP}{line}");
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::face;
    use super::*;

    fn plain(table: &Table, width: Option<usize>) -> String {
        anstream::adapter::strip_str(&table.render(width)).to_string()
    }

    fn sample() -> Table {
        let mut table = Table::new(&["dag", "status", ">tasks", "description"]);
        table.row([
            "backup".into(),
            Cell::styled(face::run("completed").label()),
            "12".into(),
            "Nightly".into(),
        ]);
        table.row([
            "日本".into(),
            Cell::styled(face::run("failed").label()),
            "1,000".into(),
            "a\u{1b}[2Jb".into(),
        ]);
        table
    }

    #[test]
    fn columns_line_up_whatever_they_hold() {
        assert_eq!(
            plain(&sample(), None),
            "DAG     STATUS       TASKS  DESCRIPTION\n\
             backup  ✓ completed     12  Nightly\n\
             日本    ✗ failed     1,000  a\\u{1b}[2Jb\n"
        );
    }

    #[test]
    fn long_cells_go_on_below_in_their_column() {
        let mut table = sample();
        table.row(["c".into(), "x".into(), "1".into(), "What a long description this is".into()]);
        let shown = plain(&table, Some(48));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1], "backup  ✓ completed     12  Nightly");
        let below = [
            "c       x                1  What a long",
            "                            ↳ description this",
            "                            ↳ is",
        ];
        assert_eq!(lines[3..], below);
    }

    #[test]
    fn padded_cell_cannot_fake_a_row() {
        const FAKE: &str = "cis approve r-aaaa-bbbb-cccc  x  ann  now  Fine?";
        const COMMAND: &str = "cis approve r-7k3q-9xwm-t2bv";
        for width in [20, 60, 80, 120] {
            for forged in [0, 1, 2] {
                let mut table = Table::new(&["TO APPROVE, TYPE", "WHAT", "BY", "SINCE", "QUESTION"]);
                let mut cells = ["d#1 t", "ann", "Ship it?"].map(str::to_owned);
                cells[forged] = format!("t{}{FAKE}{}x", " ".repeat(width), " ".repeat(width));
                let [what, by, question] = cells;
                table.row([
                    Cell::styled(COMMAND.into()),
                    what.into(),
                    by.into(),
                    "now".into(),
                    question.into(),
                ]);
                let shown = plain(&table, Some(width));
                assert!(shown.contains(COMMAND), "{shown}");
                for line in shown.lines() {
                    assert!(columns(line) <= width.max(COMMAND.len()), "{width}: {line:?}\n{shown}");
                    assert!(!line.starts_with("cis approve r-a") && !line.contains("x  ann"), "{shown}");
                }
            }
        }
    }

    #[test]
    fn narrow_screen_gets_rows_as_cells_below_each_other() {
        let mut table = Table::new(&["TO APPROVE, TYPE", "WHAT", "BY", "SINCE", "QUESTION"]);
        let command = "cis confirm r-7k3q-9xwm-t2bv";
        table.row([
            Cell::styled(command.into()),
            "backup revision 12".into(),
            "did:cis:agent:a".into(),
            "3m ago".into(),
            "run its tasks (3)?".into(),
        ]);
        let shown = [
            command,
            "  WHAT      backup revision 12",
            "  BY        did:cis:agent:a",
            "  SINCE     3m ago",
            "  QUESTION  run its tasks (3)?",
        ];
        assert_eq!(plain(&table, Some(60)).lines().collect::<Vec<_>>(), shown);
    }

    #[test]
    fn short_rows_are_filled_up() {
        let mut table = Table::new(&["a", "b"]);
        assert!(table.is_empty());
        table.row(["x".into()]);
        assert_eq!(plain(&table, None), "A  B\nx\n");
    }
}
