//! A named pipe between a machine and the tasks it runs: tasks say that they are up (`echo up > fifo`), or wait at it as
//! at a gate (`read -r _ < gate`).

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// Held open for both directions, so that no side ever waits for the other to open it.
#[derive(Debug)]
pub(super) struct Fifo(File);

impl Fifo {
    pub(super) fn new(path: &Path) -> Result<Self> {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let file = OpenOptions::new().read(true).write(true).open(path);
        Ok(Self(file.with_context(|| format!("cannot open `{}`", path.display()))?))
    }

    /// Lets this many through the gate: each waiter takes one byte, which is a whole line.
    pub(super) fn let_through(&self, count: usize) -> Result<()> {
        Ok((&self.0).write_all(&b"\n".repeat(count))?)
    }

    /// The next lines, sorted; an error if they do not come.
    pub(super) fn lines(&self, count: usize, patience: Duration) -> Result<Vec<String>> {
        let mut lines = Vec::with_capacity(count);
        for _ in 0..count {
            let line = self.line(patience)?;
            lines.push(line.with_context(|| format!("{} of {count} came", lines.len()))?);
        }
        lines.sort();
        Ok(lines)
    }

    fn line(&self, patience: Duration) -> Result<Option<String>> {
        let mut line = Vec::new();
        loop {
            let tv_sec = i64::try_from(patience.as_secs())?;
            let ready =
                poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&Timespec { tv_sec, tv_nsec: 0 }))?;
            if ready == 0 {
                ensure!(line.is_empty(), "half a line: {}", String::from_utf8_lossy(&line));
                return Ok(None);
            }
            let mut byte = [0];
            (&self.0).read_exact(&mut byte)?;
            if byte == *b"\n" {
                return Ok(Some(String::from_utf8(line)?));
            }
            line.extend(byte);
        }
    }
}
