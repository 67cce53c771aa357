//! What a sandbox keeps from a command, by real paths that are found once: a link on the way to them could lead elsewhere by the
//! time it is followed again.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::geteuid;

use super::{Named, SandboxError};

/// Tells a stage of the sandbox what can only be read. The command does not get it.
const READ_ONLY: &str = "CIS_READ_ONLY";

/// Among the bits of a mode.
const STICKY: u32 = 0o1000;

/// As many links as the kernel follows.
const LINKS_MAX: u32 = 40;

/// What a command is kept from.
#[derive(Debug, Clone)]
pub struct Guarded {
    /// The data directory, which is not there for it.
    pub hidden: PathBuf,
    /// Settings, which it cannot change: they say what a node runs without asking.
    pub read_only: Vec<PathBuf>,
}

impl Guarded {
    /// What the caller of this stage said.
    pub(crate) fn of_stage(hide: &Path) -> Result<Self, SandboxError> {
        let hidden = hide.canonicalize().named(|| format!("find `{}`", hide.display()))?;
        let paths = std::env::var_os(READ_ONLY).unwrap_or_default();
        let read_only = std::env::split_paths(&paths).filter(|path| path.is_absolute());
        // What is in the hidden directory is hidden.
        let read_only = read_only.filter(|path| !path.starts_with(&hidden)).collect();
        Ok(Self { hidden, read_only })
    }

    /// Starts another stage with the same.
    pub(crate) fn hand_on(&self, stage: &mut Command) -> Result<(), SandboxError> {
        let paths = std::env::join_paths(&self.read_only)
            .map_err(|_| SandboxError::Refused("the path of the settings has a `:` in it".into()))?;
        stage.arg("--hide").arg(&self.hidden).env(READ_ONLY, paths);
        Ok(())
    }

    /// Keeps what stages tell each other from the command itself.
    pub(crate) fn forget(command: &mut Command) -> &mut Command {
        command.env_remove(READ_ONLY)
    }
}

/// Makes a directory for settings where there is none: one that is not there cannot be kept from being made. Nothing where this
/// user, and so the command, cannot make it.
pub fn make_settings_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(e) if matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            Ok(())
        }
        made => made,
    }
}

/// The first link on the way to `path` that a process of this user could replace, unless it is below one of `held`.
pub fn replaceable_link(path: &Path, held: &[PathBuf]) -> io::Result<Option<PathBuf>> {
    let mut at = PathBuf::from("/");
    let mut ahead = parts_backwards(&std::path::absolute(path)?);
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        if part == OsStr::new("..") {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        if !fs::symlink_metadata(&next)?.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(io::Error::from(rustix::io::Errno::LOOP));
        }
        // A directory above it that can be renamed makes room for another one with another link.
        let is_held = held.iter().any(|held| at.starts_with(held));
        if !is_held && next.ancestors().any(can_replace) {
            return Ok(Some(next));
        }
        let target = fs::read_link(&next)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        ahead.extend(parts_backwards(&target));
    }
    Ok(None)
}

fn parts_backwards(path: &Path) -> Vec<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(part).collect()
}

/// Can this user rename or remove what is at `path`, or let itself?
fn can_replace(path: &Path) -> bool {
    let Some(dir) = path.parent() else { return false };
    let is_own = |found: &fs::Metadata| found.uid() == geteuid().as_raw();
    let Ok(found) = fs::metadata(dir) else { return false };
    if is_own(&found) {
        return true;
    }
    let is_writable = accessat(CWD, dir, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    // As in `/tmp`: everybody makes entries there, and removes their own.
    let is_sticky = found.mode() & STICKY != 0;
    is_writable && (!is_sticky || fs::symlink_metadata(path).is_ok_and(|entry| is_own(&entry)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_that_the_user_can_replace_are_found_wherever_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir_all(dir.join("real/data")).unwrap();
        symlink("real", dir.join("relative")).unwrap();
        symlink(dir.join("relative"), dir.join("absolute")).unwrap();
        symlink("../relative/data", dir.join("real/inner")).unwrap();
        let found = |path: &str| replaceable_link(&dir.join(path), &[]).unwrap();
        assert_eq!(found("real/data"), None);
        assert_eq!(found("real/../real/data"), None);
        assert_eq!(found("relative/data"), Some(dir.join("relative")));
        assert_eq!(found("absolute/data"), Some(dir.join("absolute")));
        assert_eq!(found("real/inner"), Some(dir.join("real/inner")));
        // What the command cannot change, it cannot replace a link in; what that leads through counts for itself.
        let held = [dir.join("real")];
        let inner = replaceable_link(&dir.join("real/inner"), &held).unwrap();
        assert_eq!(inner, Some(dir.join("relative")));
        symlink("data", dir.join("real/beside")).unwrap();
        assert_eq!(replaceable_link(&dir.join("real/beside"), &held).unwrap(), None);
        symlink("round", dir.join("round")).unwrap();
        assert!(replaceable_link(&dir.join("round"), std::slice::from_ref(&dir)).is_err());
    }
}
