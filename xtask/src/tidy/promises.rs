//! Pages that name tests as proof name tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::repo;

/// Pages whose tables say in their last column which tests hold what the row promises.
const PAGES: [&str; 2] = ["ARCHITECTURE.md", "docs/security.md"];

/// Every test that a page names and no source file has.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut functions = BTreeSet::new();
    for file in repo::files(root)? {
        if file.extension().is_some_and(|extension| extension == "rs") {
            functions.extend(functions_in(&fs::read_to_string(&file)?));
        }
    }
    let mut broken = Vec::new();
    for page in PAGES {
        let text = fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {page}"))?;
        let missing = tests_named(&text).into_iter().filter(|name| !functions.contains(name));
        broken.extend(missing.map(|name| format!("{page}: names `{name}`, and there is no such test")));
    }
    Ok(broken)
}

fn functions_in(text: &str) -> impl Iterator<Item = String> {
    let names = text
        .split("fn ")
        .skip(1)
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>());
    names.filter(|name| !name.is_empty())
}

/// Names of tests in the last column of a page's tables. A test is named in words, so there are at least three.
fn tests_named(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_end().trim_end_matches('|').rsplit('|').next());
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let is_test = |text: &&str| {
        text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && text.matches('_').count() >= 2
    };
    quoted.filter(is_test).map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_read_from_the_last_column() {
        let page = "`not_in_a_table`\n| promise `a_b_c` | held by |\n|---|---|\n| x | `one_test_here`, `sim`; `has::path_a_b` |\n";
        assert_eq!(tests_named(page), ["one_test_here"]);
    }

    #[test]
    fn functions_are_found_by_name() {
        let found: Vec<String> = functions_in("pub async fn a_b(x: u8) {}\nfn c<T>() {}\n").collect();
        assert_eq!(found, ["a_b", "c"]);
    }
}
