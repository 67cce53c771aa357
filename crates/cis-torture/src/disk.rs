//! A disk that remembers and that fails on demand: whatever SQLite writes, truncates, syncs and deletes below one
//! directory comes by here first, through [`crate::vfs`].

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rusqlite::ffi;

/// Every disk that is watched.
static DISKS: Mutex<Vec<Weak<Disk>>> = Mutex::new(Vec::new());

/// One directory, watched for as long as this lives.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    /// How long each file is: what a full disk counts.
    lengths: HashMap<Arc<str>, u64>,
    /// Whether events are kept.
    records: bool,
    events: Vec<Event>,
    /// How often it failed on demand.
    failed: u64,
}

/// What came by, in order.
#[derive(Debug, Clone)]
pub enum Event {
    Write {
        file: Arc<str>,
        at: u64,
        bytes: Arc<[u8]>,
    },
    Truncate {
        file: Arc<str>,
        length: u64,
    },
    /// All of the file so far is durable, and so is its place in the directory.
    Sync {
        file: Arc<str>,
    },
    Delete {
        file: Arc<str>,
        /// And the directory was synced after it.
        durable: bool,
    },
    /// Not the disk's: the caller was told this much by now.
    Acknowledged(usize),
}

/// How it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    #[default]
    None,
    /// Files below the directory may take so many bytes in all, the store's reserve included.
    Full { capacity: u64 },
    /// Every write fails after so many more.
    Write { after: u64 },
    /// Every sync fails after so many more.
    Sync { after: u64 },
    /// Every write finds a disk that may only be read.
    ReadOnly,
    /// Syncs are said to be done, and are not: `synchronous = OFF`.
    NoSync,
}

/// A write that failed, and how much of it was done all the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) code: i32,
    pub(crate) written: usize,
}

impl Disk {
    /// Watches `dir`; whoever opens a database in it from now on opens it on this disk.
    pub fn watch(dir: &Path, records: bool) -> io::Result<Arc<Self>> {
        crate::vfs::install()?;
        let state = Mutex::new(State { records, ..State::default() });
        let disk = Arc::new(Self { dir: dir.canonicalize()?, state });
        let mut disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
        disks.retain(|disk| disk.strong_count() > 0);
        disks.push(Arc::downgrade(&disk));
        Ok(disk)
    }

    /// The disk that `path` is on, if it is watched, and its name there.
    pub(crate) fn of(path: &Path) -> Option<(Arc<Self>, Arc<str>)> {
        let (dir, name) = (path.parent()?, path.file_name()?.to_str()?);
        let disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
        let disk = disks.iter().filter_map(Weak::upgrade).find(|disk| disk.dir == dir)?;
        Some((disk, name.into()))
    }

    /// From now on it fails like this.
    pub fn fail(&self, fault: Fault) {
        self.lock().fault = fault;
    }

    /// How often it failed on demand.
    pub fn failed(&self) -> u64 {
        self.lock().failed
    }

    /// How much its files take.
    pub fn used(&self) -> u64 {
        self.lock().lengths.values().sum::<u64>() + self.reserved()
    }

    /// Notes that callers were told `count` things by now.
    pub fn acknowledged(&self, count: usize) {
        self.lock().note(Event::Acknowledged(count));
    }

    /// What came by so far.
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// The store's reserve is a file like any other to a disk that is full, but SQLite does not write it.
    fn reserved(&self) -> u64 {
        self.dir.join(cis_store::RESERVE).symlink_metadata().map_or(0, |meta| match meta.is_file() {
            true => meta.len(),
            false => 0,
        })
    }

    pub(crate) fn write(&self, file: &Arc<str>, at: u64, bytes: &[u8]) -> Result<(), Refused> {
        let reserved = self.reserved();
        let mut state = self.lock();
        let used = state.lengths.values().sum::<u64>() + reserved;
        let length = state.lengths.get(file).copied().unwrap_or(0);
        let end = at + bytes.len() as u64;
        let refused = match &mut state.fault {
            Fault::Full { capacity } if used + end.saturating_sub(length) > *capacity => {
                // What still fits is written, as a real disk does.
                let room = (capacity.saturating_sub(used) + length).saturating_sub(at);
                Some((ffi::SQLITE_FULL, room.min(bytes.len() as u64)))
            }
            Fault::Write { after } if *after == 0 => Some((ffi::SQLITE_IOERR_WRITE, 0)),
            Fault::Write { after } => {
                *after -= 1;
                None
            }
            Fault::ReadOnly => Some((ffi::SQLITE_READONLY, 0)),
            _ => None,
        };
        let (done, said) = match refused {
            None => (bytes, Ok(())),
            Some((code, room)) => {
                let written = usize::try_from(room).unwrap_or(0);
                state.failed += 1;
                (&bytes[..written], Err(Refused { code, written }))
            }
        };
        let length = length.max(if done.is_empty() { 0 } else { at + done.len() as u64 });
        state.lengths.insert(file.clone(), length);
        if state.records && !done.is_empty() {
            state.note(Event::Write { file: file.clone(), at, bytes: done.into() });
        }
        said
    }

    pub(crate) fn truncate(&self, file: &Arc<str>, length: u64) {
        let mut state = self.lock();
        state.lengths.insert(file.clone(), length);
        state.note(Event::Truncate { file: file.clone(), length });
    }

    /// Says whether the sync is to be done, or how it fails.
    pub(crate) fn sync(&self) -> Result<bool, i32> {
        let mut state = self.lock();
        match &mut state.fault {
            Fault::NoSync => return Ok(false),
            Fault::Sync { after } if *after == 0 => {
                state.failed += 1;
                return Err(ffi::SQLITE_IOERR_FSYNC);
            }
            Fault::Sync { after } => *after -= 1,
            _ => {}
        }
        Ok(true)
    }

    pub(crate) fn synced(&self, file: &Arc<str>) {
        self.lock().note(Event::Sync { file: file.clone() });
    }

    pub(crate) fn deleted(&self, file: &Arc<str>, durable: bool) {
        let mut state = self.lock();
        let durable = durable && state.fault != Fault::NoSync;
        state.lengths.remove(file);
        state.note(Event::Delete { file: file.clone(), durable });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, event: Event) {
        if self.records {
            self.events.push(event);
        }
    }
}
