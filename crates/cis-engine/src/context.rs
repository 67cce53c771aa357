//! The environment and directory a run starts its tasks in: its caller's, as make does. Kept in a file of the
//! data directory (not in the store: an environment holds secrets) until the run is over, so that a coordinator
//! that comes back starts the rest of the tasks in the same surroundings. Runs that came over the network share their
//! node's, each with a directory of its own.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cis_runner::protocol::Text;
use cis_store::Durability;
use serde::{Deserialize, Serialize};

use crate::system::Process;

/// Where tasks of a run start from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Context {
    pub env: Vec<(Text, Text)>,
    pub cwd: PathBuf,
    /// Where its skills are looked for.
    #[serde(default)]
    pub skill_dirs: Vec<PathBuf>,
    /// Who asked for the run; if it is attached, it ends with them.
    #[serde(default)]
    pub owner: Option<Process>,
}

impl Context {
    /// The caller's own environment, in `cwd`. What CIS itself set for a task that is our caller is left out, so
    /// that a run inside a task is not taken for part of it.
    pub fn of_caller(cwd: PathBuf, skill_dirs: Vec<PathBuf>) -> Self {
        let own = |name: &[u8]| name.starts_with(b"CIS_") && !matches!(name, b"CIS_HOME" | b"CIS_DATA_DIR");
        let env = std::env::vars_os()
            .filter(|(name, _)| !own(name.as_bytes()))
            .map(|(name, value)| (text(name.as_bytes()), text(value.as_bytes())))
            .collect();
        Self { env, cwd, skill_dirs, owner: Process::own() }
    }

    /// What tasks of a node start with: the variables named, and nothing else of its own environment. Each run gets a
    /// directory of its own.
    pub fn of_node(passed: &[String], usual: &[&str], skill_dirs: Vec<PathBuf>) -> Self {
        let named = |name: &[u8]| {
            usual.iter().any(|usual| usual.as_bytes() == name)
                || passed.iter().any(|pass| pass.as_bytes() == name)
        };
        let env = std::env::vars_os()
            .filter(|(name, _)| named(name.as_bytes()))
            .map(|(name, value)| (text(name.as_bytes()), text(value.as_bytes())))
            .collect();
        Self { env, cwd: PathBuf::new(), skill_dirs, owner: None }
    }

    /// The same with another variable set.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(known, _)| known != &text(name.as_bytes()));
        self.env.push((text(name.as_bytes()), text(value.as_bytes())));
        self
    }

    /// Writes it to `path`, readable by its owner only.
    pub fn save(&self, path: &Path, durability: Durability) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        if durability == Durability::Power {
            // A run that survives a power loss is of no use without its surroundings.
            file.sync_all()?;
            path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())?;
        }
        cis_fail::point("context.after_save");
        Ok(())
    }

    /// Reads it back.
    pub fn load(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }
}

fn text(bytes: &[u8]) -> Text {
    match std::str::from_utf8(bytes) {
        Ok(text) => Text::Utf8(text.to_owned()),
        Err(_) => Text::Hex { hex: bytes.iter().map(|b| format!("{b:02x}")).collect() },
    }
}
