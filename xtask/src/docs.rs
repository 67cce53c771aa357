//! Pages generated from code: the three state machines and the names of events in `docs/lifecycle.md`.
//!
//! The prose around the tables is written by people; what stands between a table's markers is not.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::repo;

/// The page with the tables.
const LIFECYCLE: &str = "docs/lifecycle.md";

/// What ends a generated part.
const END: &str = "<!-- end -->";

/// Writes the generated parts; with `check`, only says whether they are up to date.
pub fn generate(check: bool) -> Result<()> {
    let file = repo::root().join(LIFECYCLE);
    let old = fs::read_to_string(&file).with_context(|| format!("cannot read `{LIFECYCLE}`"))?;
    let new = filled(&old, "<!-- revision table -->", &cis_core::revision::table())?;
    let new = filled(&new, "<!-- task table -->", &cis_core::task::table())?;
    let new = filled(&new, "<!-- event table -->", &cis_core::event::table())?;
    let new = filled(&new, "<!-- run table -->", &cis_core::run::table())?;
    if new == old {
        return Ok(());
    }
    if check {
        bail!("`{LIFECYCLE}` does not show the tables of the code: run `cargo xtask docs`");
    }
    fs::write(&file, new).with_context(|| format!("cannot write `{LIFECYCLE}`"))
}

/// `page` with `part` between `marker` and the end that follows it.
fn filled(page: &str, marker: &str, part: &str) -> Result<String> {
    let missing = || format!("`{LIFECYCLE}` needs a line `{marker}` and, after it, a line `{END}`");
    let (before, rest) = page.split_once(marker).with_context(missing)?;
    let (_, after) = rest.split_once(END).with_context(missing)?;
    Ok(format!("{before}{marker}\n\n{}\n\n{END}{after}", part.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_only_what_is_between_the_markers() {
        let page = "# Life\n<!-- task table -->\nold\n<!-- end -->\nprose\n";
        let new = filled(page, "<!-- task table -->", "| new |\n").unwrap();
        assert_eq!(new, "# Life\n<!-- task table -->\n\n| new |\n\n<!-- end -->\nprose\n");
        assert_eq!(
            filled(&new, "<!-- task table -->", "| new |\n").unwrap(),
            new,
            "filling twice changes nothing"
        );
    }

    #[test]
    fn a_page_without_its_marker_is_told() {
        let problem = filled("# Life\n", "<!-- run table -->", "").unwrap_err().to_string();
        assert!(problem.contains("<!-- run table -->"), "{problem}");
    }
}
