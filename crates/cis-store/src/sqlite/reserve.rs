//! Room kept for what must be recorded: a file beside the database that is given up when the disk is full. From then on
//! there is no room for new work, until the file could be made again: that is how it is known that space has returned.
//!
//! Whoever else fills the disk may take the room that was given up. Then what has ended waits where it is, in the runner
//! or with whoever worked on it, and is recorded later.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cis_core::source::{Millis, Timestamp};
use rustix::fs::{FallocateFlags, fallocate};

/// Its name.
pub const RESERVE: &str = "reserve";

/// How large it usually is: the log may grow to a quarter of it before it is folded back, and the rest is for rows.
pub const RESERVE_BYTES: u64 = 16 << 20;

/// Between two tries to make it again.
pub(super) const LOOK_AGAIN: Millis = Millis(1_000);

/// The room that is kept.
#[derive(Debug)]
pub(super) struct Reserve {
    /// None is kept.
    file: Option<PathBuf>,
    bytes: u64,
    /// When it was given up, or last could not be made; it is there otherwise.
    missed_at: Option<Timestamp>,
}

impl Reserve {
    /// No room is kept: a disk that is full is full for everybody.
    pub(super) fn none() -> Self {
        Self { file: None, bytes: 0, missed_at: None }
    }

    /// Keeps `bytes` beside `database`.
    pub(super) fn beside(database: &Path, bytes: u64, now: Timestamp) -> Self {
        let mut reserve = Self { file: Some(database.with_file_name(RESERVE)), bytes, missed_at: Some(now) };
        reserve.make(now);
        reserve
    }

    /// Is there room for new work? Where there was none, looks again, but not all the time.
    pub(super) fn is_kept(&mut self, now: Timestamp) -> bool {
        // A clock that was set back must not put that off.
        if self.missed_at.is_some_and(|missed| now < missed || now.since(missed) >= LOOK_AGAIN) {
            self.make(now);
        }
        self.missed_at.is_none()
    }

    /// Lets it go; false if there is nothing to let go.
    pub(super) fn give_up(&mut self, now: Timestamp) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| self.missed_at.is_none()) else { return false };
        self.missed_at = Some(now);
        fs::remove_file(file).is_ok()
    }

    fn make(&mut self, now: Timestamp) {
        let made = self.file.as_ref().map_or(Ok(()), |file| allocate(file, self.bytes));
        self.missed_at = match made.map_err(|e| e.kind()) {
            Err(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => Some(now),
            // Whatever else is wrong with it, the disk is not full.
            _ => None,
        };
    }
}

/// Gives up what an earlier life kept beside `database`; false if there is nothing.
pub(super) fn give_up_beside(database: &Path) -> bool {
    fs::remove_file(database.with_file_name(RESERVE)).is_ok()
}

/// Makes a file that has all of its blocks.
fn allocate(file: &Path, bytes: u64) -> io::Result<()> {
    if fs::symlink_metadata(file).is_ok_and(|meta| meta.is_file() && 512 * meta.blocks() >= bytes) {
        return Ok(());
    }
    let made = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(file).and_then(
        |mut to| match fallocate(&to, FallocateFlags::empty(), 0, bytes) {
            // Not every file system can; then it is written.
            Err(e) if !matches!(io::Error::from(e).kind(), io::ErrorKind::StorageFull) => {
                io::copy(&mut io::repeat(0).take(bytes), &mut to).map(drop)
            }
            other => Ok(other?),
        },
    );
    if made.is_err() {
        // Half of it is of no use, and in the way.
        let _ = fs::remove_file(file);
    }
    made
}
