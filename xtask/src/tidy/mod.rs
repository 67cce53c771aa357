//! Rules about the repository itself that no compiler knows. All broken ones are told at once, each with its place.
//!
//! | module | what it looks at |
//! |---|---|
//! | [`source`] | source files: length, opening words, names, what must not be left in |
//! | [`arrows`] | which crate may know which |
//! | [`edges`] | what the edges may name of the store, and where calls are answered |
//! | [`pages`] | README in both languages, CHANGELOG |
//! | [`promises`] | tests that pages name as proof |

mod arrows;
mod edges;
mod pages;
mod promises;
mod source;

use anyhow::{Result, bail};

use crate::repo;

/// Checks every rule.
pub fn check() -> Result<()> {
    let root = repo::root();
    let mut broken = source::check(&root)?;
    broken.extend(arrows::check()?);
    broken.extend(edges::check(&root)?);
    broken.extend(pages::check(&root)?);
    broken.extend(promises::check(&root)?);
    if broken.is_empty() {
        return Ok(());
    }
    bail!("{} of the repository's rules are broken:\n  {}", broken.len(), broken.join("\n  "));
}
