//! The hash of a skill's directory: what a confirmation of a DAG covers of the skills it names.
//!
//! SHA-256 over the files in order of their relative paths; each contributes its kind (plain, executable, link),
//! its path and its content (a link: its target), lengths first, so that no two trees can look alike.
//! A `.git` directory at the top is left out: fetching changes nothing that runs.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A skill with more files than this has something in its directory that does not belong there.
const FILES_MAX: usize = 10_000;

/// The same for its size: hashing more at every run would be felt.
const BYTES_MAX: u64 = 64 << 20;

/// Why a directory has no hash.
#[derive(Debug, thiserror::Error)]
pub(super) enum TreeError {
    #[error("its directory holds more than {FILES_MAX} files")]
    TooManyFiles,
    #[error("its directory holds more than {} MiB", BYTES_MAX >> 20)]
    TooLarge,
    #[error("`{}` is neither a file, a directory nor a link", .0.display())]
    Strange(PathBuf),
    #[error("cannot read `{}`: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// `sha256:…` over everything in `dir`.
pub(super) fn hash(dir: &Path) -> Result<String, TreeError> {
    let mut hasher = Sha256::new();
    let mut bytes_left = BYTES_MAX;
    for (path, meta) in files(dir)? {
        let kind = match () {
            () if meta.is_symlink() => b'l',
            () if meta.permissions().mode() & 0o111 != 0 => b'x',
            () => b'f',
        };
        let content = if meta.is_symlink() {
            fs::read_link(&path).map_err(|error| fail(&path, error))?.as_os_str().as_bytes().to_vec()
        } else {
            read(&path, bytes_left)?
        };
        bytes_left = bytes_left.saturating_sub(content.len() as u64);
        let relative = path.strip_prefix(dir).unwrap_or(&path).as_os_str().as_bytes();
        hasher.update([kind]);
        for part in [relative, &content] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    let hex: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}

/// Every file and link under `dir` by path.
fn files(dir: &Path) -> Result<Vec<(PathBuf, Metadata)>, TreeError> {
    let mut found = Vec::new();
    let mut seen = 0;
    let mut open = vec![dir.to_owned()];
    while let Some(at) = open.pop() {
        for entry in at.read_dir().map_err(|error| fail(&at, error))? {
            let entry = entry.map_err(|error| fail(&at, error))?;
            let path = entry.path();
            seen += 1;
            if seen > FILES_MAX {
                return Err(TreeError::TooManyFiles);
            }
            let meta = fs::symlink_metadata(&path).map_err(|error| fail(&path, error))?;
            if meta.is_dir() {
                if !(at == dir && entry.file_name() == ".git") {
                    open.push(path);
                }
            } else if meta.is_file() || meta.is_symlink() {
                found.push((path, meta));
            } else {
                // Reading a pipe would wait for ever.
                return Err(TreeError::Strange(path));
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(found)
}

fn read(path: &Path, bytes_left: u64) -> Result<Vec<u8>, TreeError> {
    let file = File::open(path).map_err(|error| fail(path, error))?;
    let mut content = Vec::new();
    file.take(bytes_left + 1).read_to_end(&mut content).map_err(|error| fail(path, error))?;
    if content.len() as u64 > bytes_left { Err(TreeError::TooLarge) } else { Ok(content) }
}

fn fail(path: &Path, error: io::Error) -> TreeError {
    TreeError::Io { path: path.to_owned(), error }
}
