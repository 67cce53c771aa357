//! A run where there is no terminal: one line per thing that happened.

use std::io::{self, BufWriter, Write};

use cis_core::source::{Millis, Timestamp};
use cis_core::task::TaskStatus;

use super::screen::FRAME;
use crate::term::face::{DIM, paint};
use crate::term::{Face, reveal};

/// Something that happened to a task.
#[derive(Debug, Clone, Copy)]
pub struct Transition<'a> {
    pub title: &'a str,
    /// What it became. A failed attempt that is tried again is told as `failed` with `retry_in`.
    pub state: TaskStatus,
    pub elapsed: Option<Millis>,
    /// `exit 1`; empty where there is nothing to say.
    pub why: &'a str,
    /// Which attempt of how many, where there may be several.
    pub attempt: Option<(u32, u32)>,
    pub retry_in: Option<Millis>,
}

impl Transition<'_> {
    /// `✓ build  1.2s`, `✗ test  exit 1 (attempt 2/3, retry in 2.0s)`.
    pub fn line(&self) -> String {
        let face = Face::from(self.state);
        let mut line = format!("{} {}", face.mark(), reveal(self.title));
        if self.why.is_empty() {
            if let Some(elapsed) = self.elapsed {
                line.push_str(&paint(DIM, &format!("  {elapsed}")));
            }
        } else {
            line.push_str(&paint(face.tone.style(), &format!("  {}", reveal(self.why))));
        }
        let attempt = self.attempt.map(|(number, of)| format!("attempt {number}/{of}"));
        let retry = self.retry_in.map(|wait| format!("retry in {wait}"));
        let also: Vec<String> = attempt.into_iter().chain(retry).collect();
        if !also.is_empty() {
            line.push_str(&paint(DIM, &format!(" ({})", also.join(", "))));
        }
        line
    }
}

/// Lines on their way out, gathered so that ten thousand of them cost a few writes.
#[derive(Debug)]
pub struct Plain<W: Write> {
    out: BufWriter<W>,
    flushed_at: Option<Timestamp>,
}

/// What is gathered at most between two flushes.
const BUFFER_BYTES: usize = 64 << 10;

impl<W: Write> Plain<W> {
    /// Lines to `out`.
    pub fn new(out: W) -> Self {
        Self { out: BufWriter::with_capacity(BUFFER_BYTES, out), flushed_at: None }
    }

    /// Says one line. It is out at once if the last one was a while ago; else call [`Plain::flush`] when idle.
    pub fn say(&mut self, line: &str, now: Timestamp) -> io::Result<()> {
        writeln!(self.out, "{line}")?;
        if self.flushed_at.is_none_or(|at| now.since(at) >= FRAME || now < at) {
            self.flushed_at = Some(now);
            return self.out.flush();
        }
        Ok(())
    }

    /// Lets out what is gathered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
