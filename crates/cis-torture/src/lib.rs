//! What breaks CIS on purpose, and checks that it holds. Every machine takes a [`Dose`] and answers with a [`Finding`]; the
//! same seed gives the same blows. Small doses are tests beside this crate; `cargo xtask torture` gives long ones.
//!
//! | module | what it does |
//! |---|---|
//! | [`crash`] | kills node and runner while clients work |
//! | [`power`] | loses power between a write and its sync |
//! | [`full`] | fills the disk, and makes room again |
//! | [`siege`] | attacks a node beside callers that behave well |
//! | [`sim`] | makes up whole worlds, and all that can go wrong in them |
//! | [`disk`], `vfs` | a disk that remembers and fails on demand, under SQLite |
//! | [`life`] | a store in use, and what it was acknowledged |
//! | [`chance`], [`clock`] | seeds and stopwatches |

pub mod chance;
pub mod clock;
pub mod crash;
pub mod disk;
pub mod full;
pub mod life;
pub mod power;
pub mod siege;
pub mod sim;
mod vfs;

use std::fmt;
use std::path::Path;
use std::time::Duration;

/// How much of it.
#[derive(Debug, Clone)]
pub struct Dose {
    /// Where all randomness comes from.
    pub seed: u64,
    /// Rounds at most.
    pub rounds: u64,
    /// No round begins later than this after the first.
    pub time: Option<Duration>,
}

/// What a machine saw.
#[derive(Debug, Clone, Default)]
pub struct Finding {
    /// What was done and how often, such as `kills between request and answer`: 412.
    pub counts: Vec<(&'static str, u64)>,
    /// What else is worth telling, a line each, such as how long calls took.
    pub lines: Vec<String>,
    /// What must not be, each with the seed that shows it again.
    pub violations: Vec<String>,
}

impl Finding {
    /// Nothing that must not be.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.counts {
            writeln!(f, "   {count:>12}  {what}")?;
        }
        for line in &self.lines {
            writeln!(f, "   {line}")?;
        }
        for violation in &self.violations {
            writeln!(f, "   VIOLATION: {violation}")?;
        }
        Ok(())
    }
}

/// A directory that goes away again; in memory where the system has such a place.
pub(crate) fn place() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::TempDir::new_in(memory) } else { tempfile::TempDir::new() }
}
