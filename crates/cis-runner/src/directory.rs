//! Which directory something was written in: so that what is found in a copy of it is not taken for the copy's own.
//!
//! A directory is known by its file system and inode, which a copy does not share and a renamed directory keeps. Device
//! numbers may change when a file system is mounted again, so the same inode under the same path counts as well. A
//! snapshot of a file system has the same inodes, but not under the same path.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A directory, as it was at some moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Directory {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    path: PathBuf,
}

impl Directory {
    /// The directory that is at `path` now.
    pub fn at(path: &Path) -> io::Result<Directory> {
        let path = path.canonicalize()?;
        let meta = path.metadata()?;
        Ok(Directory { device: meta.dev(), inode: meta.ino(), path })
    }

    /// Where it was.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Is it the same directory, wherever it is now?
    pub fn is_same(&self, other: &Directory) -> bool {
        self.inode == other.inode && (self.device == other.device || self.path == other.path)
    }
}

/// In one line, as it is written into files and messages.
impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = serde_json::Value::from(self.path.to_string_lossy());
        write!(f, "{:x}-{:x} {path}", self.device, self.inode)
    }
}

/// A line does not name a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `DEVICE-INODE \"PATH\"`")]
pub struct NoDirectory;

impl FromStr for Directory {
    type Err = NoDirectory;

    fn from_str(line: &str) -> Result<Directory, NoDirectory> {
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| NoDirectory);
        let (numbers, path) = line.split_once(' ').ok_or(NoDirectory)?;
        let (device, inode) = numbers.split_once('-').ok_or(NoDirectory)?;
        let path: String = serde_json::from_str(path).map_err(|_| NoDirectory)?;
        Ok(Directory { device: number(device)?, inode: number(inode)?, path: path.into() })
    }
}

impl From<Directory> for String {
    fn from(directory: Directory) -> String {
        directory.to_string()
    }
}

impl TryFrom<String> for Directory {
    type Error = NoDirectory;

    fn try_from(line: String) -> Result<Directory, NoDirectory> {
        line.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(device: u64, inode: u64, path: &str) -> Directory {
        Directory { device, inode, path: path.into() }
    }

    #[test]
    fn directory_is_read_back_as_written() {
        let directory = directory(0x801, 77, "/a \"b\"\n/c");
        assert_eq!(directory.to_string().lines().count(), 1);
        assert_eq!(directory.to_string().parse(), Ok(directory));
        for bad in ["", "1-2", "1 \"/a\"", "x-2 \"/a\"", "1-2 /a"] {
            assert_eq!(bad.parse::<Directory>(), Err(NoDirectory), "{bad}");
        }
    }

    #[test]
    fn moved_and_remounted_directories_are_the_same_and_copies_are_not() {
        let original = directory(1, 7, "/data");
        assert!(original.is_same(&directory(1, 7, "/elsewhere")), "moved");
        assert!(original.is_same(&directory(2, 7, "/data")), "mounted again");
        assert!(!original.is_same(&directory(1, 8, "/copy")), "copied");
        assert!(!original.is_same(&directory(1, 8, "/data")), "replaced by a copy");
        assert!(!original.is_same(&directory(2, 7, "/snapshot/data")), "a snapshot of its file system");
    }
}
