//! Drawing lines in place on a terminal: up to the first of the last frame, over it, and clear what is left.

use std::fmt::Write as _;
use std::io::{self, Write};

use cis_core::source::{Millis, Timestamp};

use crate::term::Size;
use crate::term::text::columns;

/// Between two frames. Faster is work nobody sees.
pub const FRAME: Millis = Millis(100);

const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
/// Terminals that know this show a frame as a whole; the others ignore it.
const FRAME_BEGIN: &str = "\x1b[?2026h";
const FRAME_END: &str = "\x1b[?2026l";

/// The part of a terminal the view is drawn on. Shows the cursor again when it goes away.
#[derive(Debug)]
pub struct Screen<W: Write> {
    out: W,
    colour: bool,
    frame: Vec<String>,
    drawn_at: Option<Timestamp>,
    drawn_on: Option<Size>,
}

impl<W: Write> Screen<W> {
    /// A screen on `out`, a terminal. Without `colour` styles are left out, but the cursor still moves.
    pub fn new(out: W, colour: bool) -> Self {
        Self { out, colour, frame: Vec::new(), drawn_at: None, drawn_on: None }
    }

    /// Is it time for another frame?
    pub fn due(&self, now: Timestamp) -> bool {
        self.drawn_at.is_none_or(|at| now.since(at) >= FRAME || now < at)
    }

    /// Draws `lines` over the last frame.
    pub fn draw(&mut self, lines: Vec<String>, size: Size, now: Timestamp) -> io::Result<()> {
        self.drawn_at = Some(now);
        if self.drawn_on == Some(size) && self.frame == lines {
            return Ok(());
        }
        let mut text = String::from(FRAME_BEGIN);
        if self.drawn_on.is_none() {
            text.push_str(HIDE_CURSOR);
        }
        self.go_to_top(&mut text, size);
        // A frame as high as the screen would scroll it, and the next one could not reach its top.
        let room = usize::from(size.rows).saturating_sub(1).max(1);
        self.frame = lines;
        self.frame.truncate(room);
        for line in &self.frame {
            text.push_str(&shown(line, self.colour));
            text.push_str("\x1b[K\r\n");
        }
        text.push_str("\x1b[J");
        text.push_str(FRAME_END);
        self.drawn_on = Some(size);
        self.write(&text)
    }

    /// Prints lines that stay, above the view.
    pub fn print(&mut self, lines: &str) -> io::Result<()> {
        let mut text = String::from(FRAME_BEGIN);
        let size = self.drawn_on.unwrap_or(Size::USUAL);
        self.go_to_top(&mut text, size);
        text.push_str("\x1b[J");
        for line in lines.lines() {
            let _ = write!(text, "{}\r\n", shown(line, self.colour));
        }
        for line in &self.frame {
            let _ = write!(text, "{}\x1b[K\r\n", shown(line, self.colour));
        }
        text.push_str(FRAME_END);
        self.write(&text)
    }

    /// Removes the view.
    pub fn clear(&mut self) -> io::Result<()> {
        let Some(size) = self.drawn_on.take() else {
            return Ok(());
        };
        let mut text = String::new();
        self.go_to_top(&mut text, size);
        text.push_str("\x1b[J");
        text.push_str(SHOW_CURSOR);
        self.frame.clear();
        self.write(&text)
    }

    /// Leaves the last frame where it is and gives the cursor back.
    pub fn finish(&mut self) -> io::Result<()> {
        if self.drawn_on.take().is_none() {
            return Ok(());
        }
        self.frame.clear();
        self.write(SHOW_CURSOR)
    }

    /// Moves to the first line of the last frame. On a screen that has become narrower since, its lines have
    /// been broken into several.
    fn go_to_top(&self, text: &mut String, size: Size) {
        let cols = usize::from(size.cols).max(1);
        let rows: usize = self.frame.iter().map(|line| columns(line).div_ceil(cols).max(1)).sum();
        let rows = rows.min(usize::from(size.rows).saturating_sub(1));
        text.push('\r');
        if rows > 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "\x1b[{rows}A");
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

fn shown(line: &str, colour: bool) -> String {
    if colour { line.to_owned() } else { anstream::adapter::strip_str(line).to_string() }
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        // A terminal that is gone needs no cursor.
        let _ = self.finish();
    }
}
