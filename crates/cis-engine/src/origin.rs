//! Where a data directory comes from. The `boot` file says in which directory, and on which boot of the machine, a
//! coordinator last worked; found in another directory, that one is a copy. Attempts that were under way are the
//! original's then: nothing of them is ended, and in the copy they count as interrupted.
//!
//! ```text
//!   boot-id                   of the machine
//!   device-inode "path"       the directory; absent in files of earlier versions
//!   "path"                    what it was copied from, if it was
//! ```

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cis_runner::directory::Directory;

use crate::data_dir::DataDir;

/// A data directory, compared with what its last coordinator wrote down.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    boot: String,
    directory: Option<Directory>,
    copied_from: Option<PathBuf>,
    /// No coordinator has worked in this directory since this boot.
    pub(crate) is_new: bool,
    /// It is a copy in which no coordinator has worked yet, of this one.
    pub(crate) copy_of: Option<PathBuf>,
}

/// A directory that was made by copying another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    pub from: PathBuf,
    /// No coordinator has worked in the copy yet.
    pub is_new: bool,
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a copy of `{}`", self.from.display())?;
        if self.is_new {
            f.write_str(": what runs there goes on there, and counts as interrupted here")?;
        }
        Ok(())
    }
}

impl Origin {
    /// What is known of a directory on this boot of the machine.
    pub(crate) fn of(data_dir: &DataDir, boot: String) -> Self {
        let text = fs::read_to_string(data_dir.boot()).unwrap_or_default();
        let mut lines = text.lines();
        let same_boot = lines.next().is_some_and(|seen| seen == boot);
        let seen: Option<Directory> = lines.next().and_then(|line| line.parse().ok());
        let before = lines.next().and_then(|line| serde_json::from_str(line).ok());
        let directory = Directory::at(data_dir.root()).ok();
        let copy_of = match (&seen, &directory) {
            (Some(seen), Some(now)) if !seen.is_same(now) => Some(seen.path().to_owned()),
            _ => None,
        };
        let copied_from = copy_of.clone().or(before);
        let origin = Self { boot, directory, copied_from, is_new: !same_boot || copy_of.is_some(), copy_of };
        if same_boot && seen.is_none() {
            // An earlier version worked here: now it says where. If it cannot, the next one does.
            let _ = origin.write(data_dir);
        }
        origin
    }

    /// Notes that a coordinator works in this directory, on this boot.
    pub(crate) fn write(&self, data_dir: &DataDir) -> io::Result<()> {
        let mut text = format!("{}\n", self.boot);
        if let Some(directory) = &self.directory {
            text += &format!("{directory}\n");
            if let Some(from) = &self.copied_from {
                text += &format!("{}\n", serde_json::Value::from(from.to_string_lossy()));
            }
        }
        // Whole or not at all: half of it would be another boot.
        let new = data_dir.boot().with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, data_dir.boot())
    }
}

/// Was this directory made by copying another one, as far as is known?
pub fn copied(data_dir: &DataDir) -> Option<Copied> {
    let text = fs::read_to_string(data_dir.boot()).ok()?;
    let mut lines = text.lines().skip(1);
    let seen: Directory = lines.next()?.parse().ok()?;
    let is_new = !seen.is_same(&Directory::at(data_dir.root()).ok()?);
    let before = lines.next().and_then(|line| serde_json::from_str(line).ok());
    let from = if is_new { Some(seen.path().to_owned()) } else { before }?;
    Some(Copied { from, is_new })
}

/// Why an attempt counts as interrupted in a copy of the directory that it runs in.
pub(crate) fn runs_elsewhere(original: &Path) -> String {
    format!("it was under way in `{}`, of which this data directory is a copy", original.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(from: &DataDir, to: &Path) -> DataDir {
        let copy = DataDir::create(to).unwrap();
        fs::copy(from.boot(), copy.boot()).unwrap();
        copy
    }

    #[test]
    fn copy_is_told_until_a_coordinator_has_worked_in_it_and_remembered_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let original = DataDir::create(&root.join("data")).unwrap();
        let origin = Origin::of(&original, "one".to_owned());
        assert!(origin.is_new && origin.copy_of.is_none());
        origin.write(&original).unwrap();
        assert!(!Origin::of(&original, "one".to_owned()).is_new);
        assert_eq!(copied(&original), None);

        let copy = copy(&original, &root.join("copy"));
        let from = root.join("data");
        assert_eq!(copied(&copy), Some(Copied { from: from.clone(), is_new: true }));
        let origin = Origin::of(&copy, "one".to_owned());
        assert_eq!((origin.is_new, origin.copy_of.as_ref()), (true, Some(&from)));
        origin.write(&copy).unwrap();
        assert!(!Origin::of(&copy, "one".to_owned()).is_new);
        assert_eq!(copied(&copy), Some(Copied { from, is_new: false }));
    }

    #[test]
    fn moved_directory_is_no_copy() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::create(&dir.path().join("data")).unwrap();
        Origin::of(&data, "one".to_owned()).write(&data).unwrap();
        fs::rename(data.root(), dir.path().join("moved")).unwrap();
        let moved = DataDir::at(&dir.path().join("moved"));
        assert!(!Origin::of(&moved, "one".to_owned()).is_new);
        assert_eq!(copied(&moved), None);
        assert!(Origin::of(&moved, "two".to_owned()).is_new, "after a restart of the machine");
    }

    #[test]
    fn file_of_an_earlier_version_is_trusted_and_completed() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::create(dir.path()).unwrap();
        fs::write(data.boot(), "one").unwrap();
        assert!(!Origin::of(&data, "one".to_owned()).is_new);
        assert_eq!(fs::read_to_string(data.boot()).unwrap().lines().count(), 2);
        fs::write(data.boot(), "restored").unwrap();
        assert!(Origin::of(&data, "one".to_owned()).is_new);
    }
}
