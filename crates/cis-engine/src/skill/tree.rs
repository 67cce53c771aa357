//! A skill's files as one sequence of bytes, the *packed tree*. Its SHA-256 is the tree hash, what a confirmation of a
//! DAG covers of the skills it names; backups hold it as it is.
//!
//! ```text
//!   for each file, in order of the relative paths' bytes:
//!   kind: f plain, x executable, l link │ length of path │ path │ length of content │ content (a link: its target)
//! ```
//!
//! Lengths come first (64 bits, little-endian), so that no two trees can look alike. Empty directories are not part of
//! it, nor is a `.git` directory at the top of a skill that is being written: fetching changes nothing that runs.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::data_dir::hex;

/// A skill with more files than this has something in its directory that does not belong there.
pub(super) const FILES_MAX: usize = 10_000;

/// The same for its size: hashing and copying more would be felt.
pub(super) const BYTES_MAX: u64 = 64 << 20;

/// Directories inside each other, so that every path of a copy is one the system takes.
pub(super) const DEPTH_MAX: usize = 32;

/// Links that one path may lead through, as the kernel has it.
const LINKS_MAX: usize = 40;

/// What is never part of a skill: `.git` at its top.
const GIT: &str = ".git";

pub(super) const PLAIN: u8 = b'f';
pub(super) const EXECUTABLE: u8 = b'x';
pub(super) const LINK: u8 = b'l';

/// Why a directory has no tree hash.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    #[error("its directory holds more than {FILES_MAX} files")]
    TooManyFiles,
    #[error("its directory holds more than {} MiB", BYTES_MAX >> 20)]
    TooLarge,
    #[error("`{}` is deeper than {DEPTH_MAX} directories", .0.display())]
    TooDeep(PathBuf),
    #[error("`{}` is neither a file, a directory nor a link", .0.display())]
    Strange(PathBuf),
    #[error("`{}` links to `{}`, outside the skill's tree", path.display(), target.display())]
    LinkLeaves { path: PathBuf, target: PathBuf },
    #[error("`{}` links to itself", .0.display())]
    LinkLoops(PathBuf),
    #[error("its packed tree is damaged: {0}")]
    Malformed(&'static str),
    #[error("cannot read `{}`: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

impl TreeError {
    /// What to do about it.
    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::LinkLeaves { .. } | Self::LinkLoops(_) => Some(
                "a confirmation covers the skill's own files: copy the file into it, or link within it"
                    .into(),
            ),
            Self::TooManyFiles | Self::TooLarge | Self::TooDeep(_) => {
                Some("keep what the skill does not need to run elsewhere".into())
            }
            _ => None,
        }
    }
}

/// Whose directory is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// A skill where it is written: `.git` at its top is left out.
    Source,
    /// The kept copy of one, which has no `.git` unless it was put there.
    Copy,
}

/// A file or link of a tree.
#[derive(Debug)]
pub(super) struct Entry {
    /// Below the tree's directory.
    pub(super) path: PathBuf,
    /// Where it points, if it is a link.
    pub(super) target: Option<PathBuf>,
    pub(super) meta: Metadata,
}

/// `sha256:…` over everything in `dir`.
pub(super) fn hash(dir: &Path, of: Of) -> Result<String, TreeError> {
    let mut hasher = Sha256::new();
    write(dir, of, |bytes| hasher.update(bytes))?;
    Ok(named(&hasher.finalize()))
}

/// Everything in `dir` as one sequence of bytes.
pub(super) fn pack(dir: &Path, of: Of) -> Result<Vec<u8>, TreeError> {
    let mut packed = Vec::new();
    write(dir, of, |bytes| packed.extend_from_slice(bytes))?;
    Ok(packed)
}

/// The tree hash of a packed tree.
pub(super) fn hash_packed(packed: &[u8]) -> String {
    named(&Sha256::digest(packed))
}

fn named(digest: &[u8]) -> String {
    format!("sha256:{}", hex(digest))
}

fn write(dir: &Path, of: Of, mut put: impl FnMut(&[u8])) -> Result<(), TreeError> {
    let entries = list(dir, of)?;
    check_links(entries.iter().map(|entry| (entry.path.as_path(), entry.target.as_deref())))?;
    let mut bytes_left = BYTES_MAX;
    for entry in entries {
        let (kind, content) = match &entry.target {
            Some(target) => (LINK, target.as_os_str().as_bytes().to_vec()),
            None => read(&dir.join(&entry.path), bytes_left)?,
        };
        bytes_left = bytes_left.checked_sub(content.len() as u64).ok_or(TreeError::TooLarge)?;
        put(&[kind]);
        for part in [entry.path.as_os_str().as_bytes(), &content] {
            put(&(part.len() as u64).to_le_bytes());
            put(part);
        }
    }
    Ok(())
}

/// Every file and link under `dir`, by path.
pub(super) fn list(dir: &Path, of: Of) -> Result<Vec<Entry>, TreeError> {
    let mut found = Vec::new();
    let mut seen = 0;
    let mut open = vec![(PathBuf::new(), 0)];
    while let Some((below, depth)) = open.pop() {
        let at = dir.join(&below);
        for entry in at.read_dir().map_err(|error| fail(&at, error))? {
            let name = entry.map_err(|error| fail(&at, error))?.file_name();
            let (path, full) = (below.join(&name), at.join(&name));
            seen += 1;
            if seen > FILES_MAX {
                return Err(TreeError::TooManyFiles);
            }
            let meta = fs::symlink_metadata(&full).map_err(|error| fail(&full, error))?;
            if meta.is_dir() {
                if of == Of::Source && path == Path::new(GIT) {
                    continue;
                }
                if depth + 1 == DEPTH_MAX {
                    return Err(TreeError::TooDeep(path));
                }
                open.push((path, depth + 1));
            } else if meta.is_symlink() {
                let target = Some(fs::read_link(&full).map_err(|error| fail(&full, error))?);
                found.push(Entry { path, target, meta });
            } else if meta.is_file() {
                found.push(Entry { path, target: None, meta });
            } else {
                // Reading a pipe would wait for ever.
                return Err(TreeError::Strange(path));
            }
        }
    }
    found.sort_by(|a, b| a.path.as_os_str().as_bytes().cmp(b.path.as_os_str().as_bytes()));
    Ok(found)
}

/// Refuses links that lead out of the tree, by whatever way: what is behind them is in no hash.
pub(super) fn check_links<'a>(
    entries: impl Iterator<Item = (&'a Path, Option<&'a Path>)>,
) -> Result<(), TreeError> {
    let links: HashMap<&Path, &Path> =
        entries.filter_map(|(path, target)| target.map(|target| (path, target))).collect();
    links.iter().try_for_each(|(path, target)| follow(path, target, &links))
}

/// Goes where a link leads, through other links if need be. A target that is not there is fine as long as it would be
/// inside.
fn follow(path: &Path, target: &Path, links: &HashMap<&Path, &Path>) -> Result<(), TreeError> {
    let leaves = || TreeError::LinkLeaves { path: path.to_owned(), target: target.to_owned() };
    let mut at: PathBuf = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut ahead: Vec<Component<'_>> = target.components().rev().collect();
    let mut followed = 1;
    while let Some(part) = ahead.pop() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if at.pop() => {}
            Component::Normal(name) => {
                at.push(name);
                let Some(next) = links.get(at.as_path()) else { continue };
                followed += 1;
                if followed > LINKS_MAX {
                    return Err(TreeError::LinkLoops(path.to_owned()));
                }
                at.pop();
                ahead.extend(next.components().rev());
            }
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(leaves()),
        }
    }
    if at.components().next() == Some(Component::Normal(OsStr::new(GIT))) { Err(leaves()) } else { Ok(()) }
}

/// The kind and content of the file at `path`, both of the very file that is open: it may be replaced meanwhile.
fn read(path: &Path, bytes_left: u64) -> Result<(u8, Vec<u8>), TreeError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|error| fail(path, error))?;
    let meta = file.metadata().map_err(|error| fail(path, error))?;
    if !meta.is_file() {
        return Err(TreeError::Strange(path.to_owned()));
    }
    let kind = if meta.permissions().mode() & 0o111 != 0 { EXECUTABLE } else { PLAIN };
    let mut content = Vec::new();
    file.take(bytes_left + 1).read_to_end(&mut content).map_err(|error| fail(path, error))?;
    if content.len() as u64 > bytes_left { Err(TreeError::TooLarge) } else { Ok((kind, content)) }
}

fn fail(path: &Path, error: io::Error) -> TreeError {
    TreeError::Io { path: path.to_owned(), error }
}
