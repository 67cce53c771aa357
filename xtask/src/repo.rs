//! Where things are: the checkout, and the cache outside it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Directories that are not ours to look into.
const NOT_OURS: [&str; 2] = [".git", "target"];

/// The root of the checkout.
pub fn root() -> PathBuf {
    // Asked when running, not when compiling: one build cache may serve several checkouts.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    match manifest.as_deref().and_then(Path::parent) {
        Some(root) => root.to_owned(),
        None => PathBuf::from("."),
    }
}

/// Where build output, tools and benchmark stores are kept between runs: outside the checkout, so that a fresh
/// clone is quick to test.
pub fn cache() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = match (var("CIS_CACHE"), var("XDG_CACHE_HOME"), var("HOME")) {
        (Some(own), ..) => own,
        (None, Some(xdg), _) => xdg.join("cis-build"),
        (None, None, Some(home)) => home.join(".cache/cis-build"),
        (None, None, None) => std::env::temp_dir().join("cis-build"),
    };
    fs::create_dir_all(&cache).with_context(|| format!("cannot make `{}`", cache.display()))?;
    Ok(cache)
}

/// Where cargo builds to: what the caller chose, else the cache.
pub fn target() -> Result<PathBuf> {
    match std::env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty()) {
        Some(chosen) => Ok(PathBuf::from(chosen)),
        None => Ok(cache()?.join("target")),
    }
}

/// Every file below `dir`, in order, without build output.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot read `{}`", dir.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_file() {
                found.push(entry.path());
            } else if kind.is_dir() && !NOT_OURS.iter().any(|name| entry.file_name() == *name) {
                waiting.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}
