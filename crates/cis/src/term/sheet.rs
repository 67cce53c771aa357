//! Named values below each other, for what must be read in full: nothing is cut, joined or hidden.
//!
//! ```text
//! build
//!   type       shell
//!   command
//!     │ make test # see README
//!     │ make install
//!   timeout    5m 00s
//! ```
//!
//! A value of one line that fits stands beside its name, any other below it behind a gutter. Whatever a caller wrote, it
//! stays on its side of the gutter, and every line of the sheet that is not behind one was made here.

use anstyle::Style;

use super::Size;
use super::face::{BOLD, DIM, paint};
use super::text::{columns, pad};
use super::visible::{GUTTER, block, reveal, wrap};

/// Before a name.
const MARGIN: &str = "  ";

/// Before a value that stands below its name.
const DEEP: &str = "    ";

/// Columns up to a value that stands beside its name.
const NAMED: usize = 16;

/// A page being filled.
#[derive(Debug)]
pub struct Sheet {
    width: Option<usize>,
    text: String,
}

impl Sheet {
    /// A sheet whose lines are at most `width` columns; without one, lines are as long as they are.
    pub fn new(width: Option<usize>) -> Self {
        Self { width, text: String::new() }
    }

    /// A sheet as wide as the terminal behind stdout, if that is one.
    pub fn for_stdout() -> Self {
        Self::new(Size::of(std::io::stdout()).map(|size| size.cols.into()))
    }

    /// A line that begins something, after an empty one unless it is the first.
    pub fn heading(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.push(BOLD, wrap(text, "", MARGIN, self.width));
    }

    /// A remark below a heading.
    pub fn remark(&mut self, text: &str) {
        self.push(DIM, wrap(text, MARGIN, MARGIN, self.width));
    }

    /// A named value.
    pub fn field(&mut self, name: &str, value: &str) {
        let head = format!("{MARGIN}{}", reveal(name));
        let line = format!("{}{}", pad(&head, NAMED), reveal(value));
        let fits = columns(&head) < NAMED && self.width.is_none_or(|width| columns(&line) <= width);
        if fits && !value.contains('\n') {
            self.push(Style::new(), [line]);
        } else {
            self.verbatim(name, value);
        }
    }

    /// A text that is always below its name, line by line: what will be executed.
    pub fn verbatim(&mut self, name: &str, value: &str) {
        self.name(name);
        self.push(Style::new(), block(value, DEEP, self.width));
    }

    /// One line of a list below its name; a line end in it is spelled out.
    pub fn item(&mut self, line: &str) {
        self.push(Style::new(), wrap(line, &format!("{DEEP}{GUTTER}"), DEEP, self.width));
    }

    /// The name of what stands below it.
    pub fn name(&mut self, name: &str) {
        self.push(Style::new(), wrap(name, MARGIN, MARGIN, self.width));
    }

    /// A line of a change: `+` is new, `-` is gone, a space is as before.
    pub fn change(&mut self, mark: char, line: &str, style: Style) {
        self.push(style, block(line, &format!("{MARGIN}{mark} "), self.width));
    }

    /// What it says.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Prints it on stdout.
    pub fn print(&self) {
        super::out::put(format_args!("{}", self.text));
    }

    fn push(&mut self, style: Style, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            self.text.push_str(&paint(style, &line));
            self.text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_beside_their_names_or_line_by_line_below() {
        let mut sheet = Sheet::new(Some(30));
        sheet.field("type", "shell");
        sheet.field("prompt", "Ship it?\ncis: approved");
        sheet.field("workdir", "/a/very/long/directory/somewhere");
        sheet.verbatim("command", "true");
        let shown = [
            "  type          shell",
            "  prompt",
            "    │ Ship it?",
            "    │ cis: approved",
            "  workdir",
            "    │ /a/very/long/directory/s",
            "    ↳ omewhere",
            "  command",
            "    │ true",
        ];
        assert_eq!(sheet.text().lines().collect::<Vec<_>>(), shown);
    }
}
