//! Hearing that files of a directory grow, without looking again and again: one inotify for everybody who listens.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::sync::watch;

/// Room for some dozens of events: file names of logs are short.
const BUFFER_BYTES: usize = 4 << 10;

/// What the kernel says where it had to drop events: any directory may have been meant.
const OVERFLOW: i32 = -1;

/// What the kernel says, handed on to whoever listens.
#[derive(Debug)]
pub(crate) struct Growth {
    inotify: OwnedFd,
    /// By the kernel's number for a directory; the same directory always has the same.
    heard: Mutex<HashMap<i32, watch::Sender<()>>>,
}

/// Somebody who listens. The directory is let go with the last of them.
#[derive(Debug)]
pub struct Ear {
    growth: Arc<Growth>,
    directory: i32,
    news: watch::Receiver<()>,
}

impl Growth {
    /// Begins to listen, on a thread that waits for the kernel and lives as long as the process.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let inotify = inotify::init(CreateFlags::CLOEXEC)?;
        let growth = Arc::new(Self { inotify, heard: Mutex::default() });
        let listening = growth.clone();
        thread::Builder::new().name("cis-growth".into()).spawn(move || listening.listen())?;
        Ok(growth)
    }

    /// Listens for files of `directory` that are made or written to.
    pub(crate) fn ear(self: &Arc<Self>, directory: &Path) -> io::Result<Ear> {
        let mut heard = self.heard();
        let flags = WatchFlags::CREATE | WatchFlags::MODIFY;
        let directory = inotify::add_watch(&self.inotify, directory, flags)?;
        let news = heard.entry(directory).or_insert_with(|| watch::channel(()).0).subscribe();
        Ok(Ear { growth: self.clone(), directory, news })
    }

    fn listen(&self) {
        loop {
            let directories = match self.read() {
                Ok(directories) => directories,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            let missed = directories.contains(&OVERFLOW);
            let heard = self.heard();
            for (_, to) in heard.iter().filter(|(at, _)| missed || directories.contains(at)) {
                to.send_replace(());
            }
        }
    }

    /// The directories that the next events are about.
    fn read(&self) -> io::Result<Vec<i32>> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut directories = vec![events.next()?.wd()];
        while !events.is_buffer_empty() {
            directories.push(events.next()?.wd());
        }
        directories.dedup();
        Ok(directories)
    }

    fn heard(&self) -> MutexGuard<'_, HashMap<i32, watch::Sender<()>>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ear {
    /// Forgets what was heard so far.
    pub fn forget(&mut self) {
        self.news.mark_unchanged();
    }

    /// Waits until something is heard that was not forgotten.
    pub async fn hear(&mut self) {
        // The other end lives as long as this one does.
        let _ = self.news.changed().await;
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut heard = self.growth.heard();
        if heard.get(&self.directory).is_some_and(|to| to.receiver_count() == 1) {
            heard.remove(&self.directory);
            // A directory that is gone has been let go by the kernel.
            let _ = inotify::remove_watch(&self.growth.inotify, self.directory);
        }
    }
}
