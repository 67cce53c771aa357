//! What source files may look like.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::repo;

/// A longer file is two ideas.
const LINES_MAX: usize = 600;

/// Names that say nothing of what a module is about.
const EMPTY_NAMES: [&str; 8] = ["manager", "handler", "helper", "util", "utils", "common", "service", "dto"];

/// What must not be left in code. In two parts, so that this file does not break its own rule.
const LEFTOVERS: [&str; 4] =
    [concat!("#[", "ignore"), concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("db", "g!(")];

/// Places that exist on one machine only.
const SOMEBODYS_PATHS: [&str; 4] =
    [concat!("../", "shared"), concat!("/", "root/"), concat!("/", "work/main"), concat!("/", "work/shared")];

/// Every rule this tree breaks.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for file in repo::files(root)? {
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        // What is not text has no lines to look at.
        let Ok(text) = fs::read_to_string(&file) else { continue };
        broken.extend(paths(&name, &text));
        if name.ends_with(".rs") {
            broken.extend(rust(&name, &text));
        }
    }
    Ok(broken)
}

fn rust(name: &str, text: &str) -> Vec<String> {
    let mut broken = leftovers(name, text);
    if !name.contains("/src/") {
        return broken;
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        broken.push(format!("{name}: {lines} lines, at most {LINES_MAX}: split it where the idea changes"));
    }
    // What tests are for, their name says.
    if !text.starts_with("//!") && !name.ends_with("/tests.rs") {
        broken.push(format!("{name}: begins without `//!`: say what it is for"));
    }
    let module =
        name.trim_end_matches("/mod.rs").trim_end_matches(".rs").rsplit('/').next().unwrap_or_default();
    if EMPTY_NAMES.contains(&module) {
        broken.push(format!("{name}: `{module}` names no idea: name it by what it is about"));
    }
    broken
}

fn leftovers(name: &str, text: &str) -> Vec<String> {
    found(text, &LEFTOVERS, |line, what| format!("{name}:{line}: `{what}` must not be left in"))
}

fn paths(name: &str, text: &str) -> Vec<String> {
    found(text, &SOMEBODYS_PATHS, |line, what| {
        format!("{name}:{line}: `{what}` is a path on somebody's machine")
    })
}

fn found(text: &str, words: &[&str], tell: impl Fn(usize, &str) -> String) -> Vec<String> {
    let mut told = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in words.iter().filter(|word| line.contains(**word)) {
            told.push(tell(index + 1, word));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_file_breaks_nothing() {
        assert_eq!(rust("crates/a/src/lease.rs", "//! Leases.\n"), Vec::<String>::new());
    }

    #[test]
    fn every_rule_can_be_broken() {
        let long = "//! Long.\n".to_owned() + &"\n".repeat(LINES_MAX);
        assert_eq!(rust("crates/a/src/lease.rs", &long).len(), 1, "too long");
        assert_eq!(rust("crates/a/src/lease.rs", "fn f() {}\n").len(), 1, "no opening words");
        for name in ["crates/a/src/util.rs", "crates/a/src/common/mod.rs"] {
            assert_eq!(rust(name, "//! Odds and ends.\n").len(), 1, "{name}");
        }
        for what in LEFTOVERS {
            assert_eq!(rust("crates/a/tests/t.rs", &format!("    {what}\n")).len(), 1, "{what}");
        }
        for what in SOMEBODYS_PATHS {
            assert_eq!(
                paths("README.md", &format!("see {what}\n")),
                [format!("README.md:1: `{what}` is a path on somebody's machine")]
            );
        }
    }
}
