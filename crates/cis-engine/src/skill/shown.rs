//! Kept skills as people see them before they confirm: what a tree has in it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Skill;
use super::kept::{Kept, KeptSkills};
use super::tree::{self, Of};

/// What is kept of a skill.
#[derive(Debug)]
pub enum Shown {
    /// Exactly the files that have its hash.
    Tree(KeptTree),
    /// It is built in, and has no files.
    BuiltIn,
    /// There is no copy.
    Missing,
    /// The copy does not have the hash, and would not run; why.
    Altered(String),
}

/// A kept tree that has its hash.
#[derive(Debug)]
pub struct KeptTree {
    /// Where it is.
    pub place: PathBuf,
    /// What runs, or why nothing does.
    pub program: Result<Vec<String>, String>,
    /// By path below the place.
    pub files: BTreeMap<PathBuf, KeptFile>,
}

/// A file of a kept tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFile {
    pub bytes: u64,
    pub executable: bool,
    /// Where it points, if it is a link.
    pub target: Option<PathBuf>,
}

impl KeptSkills {
    /// The skill `name` as it was pinned with `tree_hash`, its files compared with that hash.
    pub fn look(&self, name: &str, tree_hash: &str) -> Shown {
        let Some(place) = self.place(tree_hash) else { return Shown::BuiltIn };
        match self.verify(tree_hash) {
            Kept::Missing => return Shown::Missing,
            Kept::Altered(why) => return Shown::Altered(why),
            Kept::Sound => {}
        }
        let entries = match tree::list(&place, Of::Copy) {
            Ok(entries) => entries,
            Err(e) => return Shown::Altered(e.to_string()),
        };
        let file = |entry: tree::Entry| {
            let executable = entry.target.is_none() && entry.meta.permissions().mode() & 0o111 != 0;
            (entry.path, KeptFile { bytes: entry.meta.len(), executable, target: entry.target })
        };
        let program = Skill::read_kept(name, &place, tree_hash)
            .and_then(|skill| skill.argv().map(<[String]>::to_vec))
            .map_err(|e| e.to_string());
        Shown::Tree(KeptTree { files: entries.into_iter().map(file).collect(), place, program })
    }
}

impl KeptTree {
    /// The content of one of its files; nothing for a link, or what cannot be read.
    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        let file = self.files.get(path).filter(|file| file.target.is_none());
        file.and_then(|_| fs::read(self.place.join(path)).ok())
    }
}
