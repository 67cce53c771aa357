//! Every living process that carries the mark of an attempt of a data directory, whoever its parent is: for whoever looks
//! after the directory from outside. Whether the attempt is under way is not known here.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::Signal;

use crate::process::{self, Process, Variable};
use crate::protocol::AttemptKey;
use crate::stray::{COOKIE, Cookies};

/// A process, and the attempt it says it is of.
#[derive(Debug)]
pub struct Marked {
    pub key: AttemptKey,
    process: Process,
}

/// All of them, but for this process: `cis` may be called by a task.
pub fn marked(data_dir: &Path) -> io::Result<Vec<Marked>> {
    let directory = data_dir.metadata()?;
    let cookies = Cookies::new(directory.dev(), directory.ino());
    let us = std::process::id().cast_signed();
    let living = process::all().into_iter().filter(|process| !process.zombie && process.pid != us);
    let marked = living.filter_map(|process| match process::variable(process.pid, COOKIE) {
        Variable::Is(cookie) => cookies.key(&cookie).map(|key| Marked { key, process }),
        _ => None,
    });
    Ok(marked.collect())
}

impl Marked {
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Its command line, for people.
    pub fn command(&self) -> String {
        self.process.command()
    }

    /// Is it still there?
    pub fn lives(&self) -> bool {
        let now = Process::look(self.process.pid);
        now.is_some_and(|now| now.start_ticks == self.process.start_ticks && !now.zombie)
    }

    /// Kills it, and nobody else; false if it was gone already.
    pub fn kill(&self) -> io::Result<bool> {
        Ok(self.process.signal(Signal::KILL)?)
    }
}
