//! Aligned columns without borders, as `gh` and `uv` print them.
//!
//! By hand, because cells carry styles: the table crates that can measure those bring a whole terminal
//! library along.

use std::fmt::Write as _;

use super::face::{DIM, paint};
use super::text::{columns, fit, pad, pad_left};
use super::visible::reveal;

/// Between two columns.
const GAP: &str = "  ";

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
    styled: bool,
}

impl Cell {
    /// Text made here, which may carry styles. Never cut.
    pub fn styled(text: String) -> Self {
        Self { text, styled: true }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    /// A caller's text: what is hidden in it is shown.
    fn from(text: T) -> Self {
        Self { text: reveal(text.as_ref()).into_owned(), styled: false }
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

    /// The table, a line per row. With a `width`, the last column is cut so that no line is longer.
    pub fn render(&self, width: Option<usize>) -> String {
        let widths = self.widths();
        let mut text = String::new();
        if self.heads.iter().any(|head| !head.is_empty()) {
            let heads: Vec<Cell> =
                self.heads.iter().map(|head| Cell::styled(paint(DIM, &head.to_uppercase()))).collect();
            self.line(&mut text, &heads, &widths, width);
        }
        for row in &self.rows {
            self.line(&mut text, row, &widths, width);
        }
        text
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

    fn line(&self, text: &mut String, cells: &[Cell], widths: &[usize], limit: Option<usize>) {
        let last = cells.len().saturating_sub(1);
        let mut line = String::new();
        let mut start = 0;
        for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let shown = match limit {
                Some(limit) if i == last && !cell.styled => fit(&cell.text, limit.saturating_sub(start)),
                _ => cell.text.as_str().into(),
            };
            let padded = if self.right[i] { pad_left(&shown, *width) } else { pad(&shown, *width) };
            line.push_str(if i == last && !self.right[i] { &shown } else { &padded });
            if i != last {
                line.push_str(GAP);
            }
            start += width + GAP.len();
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
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
    fn only_the_last_column_gives_way() {
        assert_eq!(plain(&sample(), Some(33)).lines().nth(1), Some("backup  ✓ completed     12  Nigh…"));
    }

    #[test]
    fn short_rows_are_filled_up() {
        let mut table = Table::new(&["a", "b"]);
        assert!(table.is_empty());
        table.row(["x".into()]);
        assert_eq!(plain(&table, None), "A  B\nx\n");
    }
}
