//! A named pipe between a test and its tasks: tasks report through it (`echo up > fifo`) or wait at it as at a
//! gate (`read -r _ < gate`).

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::PATIENCE;

/// Held open for both directions, so that no side ever waits for the other to open it.
pub struct Fifo {
    file: File,
}

impl Fifo {
    pub fn new(path: &Path) -> Self {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        Self { file: OpenOptions::new().read(true).write(true).open(path).unwrap() }
    }

    /// Lets this many through the gate: each waiter takes one byte, which is a whole line.
    pub fn let_through(&self, count: usize) {
        (&self.file).write_all(&b"\n".repeat(count)).unwrap();
    }

    /// The next line somebody wrote.
    pub fn line(&self) -> String {
        let mut line = Vec::new();
        loop {
            let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&timeout)).unwrap();
            assert_eq!(ready, 1, "nobody writes: {:?}", String::from_utf8_lossy(&line));
            let mut byte = [0];
            (&self.file).read_exact(&mut byte).unwrap();
            if byte == *b"\n" {
                return String::from_utf8(line).unwrap();
            }
            line.extend(byte);
        }
    }

    /// The next lines, sorted.
    pub fn lines(&self, count: usize) -> Vec<String> {
        let mut lines: Vec<String> = (0..count).map(|_| self.line()).collect();
        lines.sort();
        lines
    }

    /// Has nobody written anything?
    pub fn is_silent(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&now)).unwrap() == 0
    }
}
