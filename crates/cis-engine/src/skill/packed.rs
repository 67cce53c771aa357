//! From a packed tree (see [`super::tree`]) back to files.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use cis_store::Durability;

use super::tree::{BYTES_MAX, DEPTH_MAX, EXECUTABLE, FILES_MAX, LINK, PLAIN, TreeError, check_links};

/// A file of a packed tree.
struct Packed<'a> {
    kind: u8,
    path: &'a Path,
    content: &'a [u8],
}

impl<'a> Packed<'a> {
    fn target(&self) -> Option<&'a Path> {
        (self.kind == LINK).then(|| Path::new(OsStr::from_bytes(self.content)))
    }
}

/// Makes the files of a packed tree in `dir`, which is to be new and empty. Files are for reading only. Nothing is made
/// outside `dir`, whatever the bytes say.
pub(super) fn unpack(packed: &[u8], dir: &Path, durability: Durability) -> Result<(), TreeError> {
    let files = parse(packed)?;
    let mut made = vec![dir.to_owned()];
    for file in &files {
        let path = dir.join(file.path);
        make(file, &path, durability, &mut made).map_err(|error| TreeError::Io { path, error })?;
    }
    if durability == Durability::Power {
        for path in made {
            File::open(&path)
                .and_then(|dir| dir.sync_all())
                .map_err(|error| TreeError::Io { path, error })?;
        }
    }
    Ok(())
}

/// Makes one file, and the directories it is in; those are added to `made`.
fn make(file: &Packed<'_>, path: &Path, durability: Durability, made: &mut Vec<PathBuf>) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().skip(1).take_while(|dir| !dir.exists()).collect();
    for dir in missing.into_iter().rev() {
        DirBuilder::new().mode(0o700).create(dir)?;
        made.push(dir.to_owned());
    }
    if let Some(target) = file.target() {
        return symlink(target, path);
    }
    let mode = if file.kind == EXECUTABLE { 0o500 } else { 0o400 };
    let mut new = OpenOptions::new().create_new(true).write(true).mode(mode).open(path)?;
    new.write_all(file.content)?;
    if durability == Durability::Power { new.sync_all() } else { Ok(()) }
}

fn parse(packed: &[u8]) -> Result<Vec<Packed<'_>>, TreeError> {
    if packed.len() as u64 > 2 * BYTES_MAX {
        return Err(TreeError::TooLarge);
    }
    let (mut rest, mut files, mut paths) = (packed, Vec::new(), HashSet::new());
    while let Some((kind, after)) = rest.split_first() {
        let (path, after) = take_part(after)?;
        let (content, after) = take_part(after)?;
        rest = after;
        let path = Path::new(OsStr::from_bytes(path));
        if ![PLAIN, EXECUTABLE, LINK].contains(kind) {
            return Err(TreeError::Malformed("a file of no kind"));
        }
        check_path(path)?;
        if !paths.insert(path) {
            return Err(TreeError::Malformed("a file twice"));
        }
        if files.len() == FILES_MAX {
            return Err(TreeError::TooManyFiles);
        }
        files.push(Packed { kind: *kind, path, content });
    }
    // Otherwise a link could be made first, and a file behind it.
    if files.iter().any(|file| file.path.ancestors().skip(1).any(|dir| paths.contains(dir))) {
        return Err(TreeError::Malformed("a file below a file"));
    }
    check_links(files.iter().map(|file| (file.path, file.target())))?;
    Ok(files)
}

/// A part and what comes after it.
fn take_part(bytes: &[u8]) -> Result<(&[u8], &[u8]), TreeError> {
    let short = TreeError::Malformed("it ends too early");
    let Some((length, rest)) = bytes.split_first_chunk() else { return Err(short) };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    rest.split_at_checked(length).ok_or(short)
}

/// Only names, as they would be written.
fn check_path(path: &Path) -> Result<(), TreeError> {
    let names: Option<PathBuf> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let plain =
        names.is_some_and(|names| !names.as_os_str().is_empty() && names.as_os_str() == path.as_os_str());
    match (plain, path.components().count() > DEPTH_MAX) {
        (true, false) => Ok(()),
        (true, true) => Err(TreeError::TooDeep(path.to_owned())),
        (false, _) => Err(TreeError::Malformed("a path that leads elsewhere")),
    }
}
