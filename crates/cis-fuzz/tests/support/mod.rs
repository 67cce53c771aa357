//! A place for the files that targets read.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// A directory that goes away with the test; in memory where the system has such a place.
pub(crate) fn dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.unwrap()
}

/// A file of its own each time: to cut an old one short would wait for some disks.
pub(crate) fn put(path: &Path, bytes: &[u8]) {
    let _ = fs::remove_file(path);
    fs::write(path, bytes).unwrap();
}
