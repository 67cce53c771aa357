//! Skills on their way to a process. A kept tree is hashed when a coordinator first uses it; before every attempt its
//! files are compared with how they stood then, and hashed again if one of them differs.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cis_core::source::{Millis, Timestamp};
use cis_store::Durability;

use super::kept::{Kept, KeptSkills};
use super::tree::{self, Of, TreeError};
use super::{Skill, SkillPath};
use crate::data_dir::DataDir;

/// Skills remembered; with more, all are forgotten and hashed again when they are next used.
const CHECKED_MAX: usize = 1_000;

/// Two changes of a file that are less than this apart may carry the same time. So a tree that was hashed sooner than
/// this after its last change is hashed again next time: a change right after the hash might not show.
const CTIME_GRAIN: Millis = Millis(1_000);

/// The skills that a coordinator has checked.
#[derive(Debug)]
pub(crate) struct CheckedSkills {
    kept: KeptSkills,
    durability: Durability,
    /// By tree hash and name.
    checked: HashMap<(String, String), Checked>,
}

#[derive(Debug)]
struct Checked {
    skill: Arc<Skill>,
    /// How its files stood just before it was hashed.
    stamps: Vec<Stamp>,
    /// Every change after the hash shows in the stamps.
    settled: bool,
}

/// How a file stands, without its content: none of its content changes and leaves all of this as it was.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    bytes: u64,
    changed: (i64, i64),
    mode: u32,
    inode: u64,
}

impl CheckedSkills {
    pub(crate) fn new(data_dir: &DataDir, durability: Durability) -> Self {
        Self { kept: KeptSkills::of(data_dir), durability, checked: HashMap::new() }
    }

    /// The skill `name` as it was pinned, ready to run, or why it cannot be. One that was published by a version that
    /// kept no skills is looked for in `dirs`, and kept if it is still the same.
    pub(crate) fn get(
        &mut self,
        name: &str,
        pinned: Option<&str>,
        dirs: &[PathBuf],
        now: Timestamp,
    ) -> Result<Arc<Skill>, String> {
        let Some(tree_hash) = pinned else {
            return Err(format!("skill `{name}` was not pinned when this revision was published"));
        };
        let Some(place) = self.kept.place(tree_hash) else {
            return Skill::builtin(name, tree_hash).map(Arc::new).ok_or_else(|| changed(name));
        };
        let before = self.checked.remove(&(tree_hash.to_owned(), name.to_owned()));
        let stamps = match stamp(&place) {
            Ok(stamps) => stamps,
            Err(TreeError::Io { path, .. }) if path == place && !place.exists() => {
                self.keep_from(name, tree_hash, dirs)?;
                stamp(&place).map_err(|e| altered(name, &place, &e.to_string()))?
            }
            Err(e) => return Err(altered(name, &place, &e.to_string())),
        };
        let checked = match before {
            Some(before) if before.settled && before.stamps == stamps => before,
            before => {
                let skill = self.check(name, tree_hash, &place).map_err(|why| {
                    let differs = before.and_then(|before| first_difference(&before.stamps, &stamps));
                    altered(name, &place, &differs.unwrap_or(why))
                })?;
                let settled = is_settled(&stamps, now);
                Checked { skill, stamps, settled }
            }
        };
        if self.checked.len() >= CHECKED_MAX {
            self.checked.clear();
        }
        let skill = checked.skill.clone();
        self.checked.insert((tree_hash.to_owned(), name.to_owned()), checked);
        Ok(skill)
    }

    /// Would the next attempt believe how its files stand?
    #[cfg(test)]
    pub(super) fn trusts_stamps(&self, tree_hash: &str, name: &str) -> bool {
        self.checked[&(tree_hash.to_owned(), name.to_owned())].settled
    }

    /// Reads and hashes a kept tree.
    fn check(&self, name: &str, tree_hash: &str, place: &Path) -> Result<Arc<Skill>, String> {
        // Before it is hashed: what was read and is not what was kept, the hash tells.
        let skill = Skill::read_kept(name, place, tree_hash);
        match self.kept.verify(tree_hash) {
            Kept::Sound => skill.map(Arc::new).map_err(|e| e.to_string()),
            Kept::Altered(why) => Err(why),
            Kept::Missing => Err("it is gone".to_owned()),
        }
    }

    /// Keeps a skill that is not kept yet, if what is in the skill directories is what was pinned.
    fn keep_from(&self, name: &str, tree_hash: &str, dirs: &[PathBuf]) -> Result<(), String> {
        let found = SkillPath::new(dirs.to_vec()).find(name).map_err(|e| e.to_string())?;
        let source = found.dir.filter(|_| found.tree_hash == tree_hash).ok_or_else(|| changed(name))?;
        let lock = self.kept.lock().map_err(|e| format!("skill `{name}` cannot be kept: {e}"))?;
        lock.keep(&source, tree_hash, self.durability)
            .map_err(|e| format!("skill `{name}` cannot be kept: {e}"))
    }
}

fn changed(name: &str) -> String {
    format!("skill `{name}` has changed since this revision was confirmed; publish and confirm it again")
}

fn altered(name: &str, place: &Path, why: &str) -> String {
    format!(
        "skill `{name}` is not what was confirmed: its copy in `{}` was altered ({why}); publish the DAG again to replace it",
        place.display()
    )
}

fn stamp(place: &Path) -> Result<Vec<Stamp>, TreeError> {
    let entries = tree::list(place, Of::Copy)?;
    Ok(entries
        .into_iter()
        .map(|entry| Stamp {
            bytes: entry.meta.len(),
            changed: (entry.meta.ctime(), entry.meta.ctime_nsec()),
            mode: entry.meta.mode(),
            inode: entry.meta.ino(),
            path: entry.path,
        })
        .collect())
}

/// Would every change of these files from `now` on show?
fn is_settled(stamps: &[Stamp], now: Timestamp) -> bool {
    let latest = stamps.iter().map(|stamp| stamp.changed).max().unwrap_or_default();
    let latest = Timestamp(latest.0.saturating_mul(1_000).saturating_add(latest.1 / 1_000_000));
    latest.after(CTIME_GRAIN) < now
}

/// The first file that does not stand as it did.
fn first_difference(before: &[Stamp], now: &[Stamp]) -> Option<String> {
    let differs =
        |(a, b): (&Stamp, &Stamp)| if a == b { None } else { Some(a.path.clone().min(b.path.clone())) };
    let first = before.iter().zip(now).find_map(differs);
    let longer = if before.len() > now.len() { before } else { now };
    let extra = longer.get(before.len().min(now.len())).map(|stamp| stamp.path.clone());
    first.or(extra).map(|path| format!("`{}`", path.display()))
}
