//! Running a command out of reach of the data directory.
//!
//! | module | what lives there |
//! |---|---|
//! | [`guarded`] | what is kept from the command: real paths, and links that could be replaced |
//! | [`namespaces`] | namespaces of the command's own, in which the directory is not there |
//! | [`mounts`] | which paths lead to a directory, and how they are covered |
//! | [`landlock`] | rules of the kernel that shut the directory, where there are no namespaces |
//! | [`supervise`] | waiting for the command, passing signals on |

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

pub mod guarded;
pub mod landlock;
mod mounts;
pub mod namespaces;
pub mod supervise;

pub use guarded::Guarded;

/// How a command is kept from the data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Namespaces,
    Landlock,
}

/// One of the processes on the way to a confined command, each started by the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    /// Restricts itself by Landlock and becomes the command.
    Landlock,
    /// Makes the namespaces, starts the next two, and waits for the command.
    Namespaces,
    /// The first process of the namespaces: mounts what the command sees, then reaps.
    Init,
    /// Gives up its rights over the namespaces and becomes the command.
    Command,
}

/// Why a command cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("{0}")]
    Landlock(#[from] ::landlock::RulesetError),
    #[error("cannot {what}: {source}")]
    Step { what: String, source: io::Error },
    #[error("{0}")]
    Refused(String),
}

/// Names the step that failed.
trait Named<T> {
    fn named(self, what: impl FnOnce() -> String) -> Result<T, SandboxError>;
}

impl<T, E: Into<io::Error>> Named<T> for Result<T, E> {
    fn named(self, what: impl FnOnce() -> String) -> Result<T, SandboxError> {
        self.map_err(|e| SandboxError::Step { what: what(), source: e.into() })
    }
}

/// Tries the namespaces from the first step to the last, but for the command: a kernel, a container or AppArmor may refuse
/// any of them, and half a sandbox is none. The text says what was refused.
pub fn probe_namespaces(exe: &Path, guarded: &Guarded) -> Result<(), String> {
    let mut probe = Command::new(exe);
    probe.args(["confined", "--stage", "namespaces", "--probe"]).env("NO_COLOR", "1");
    guarded.hand_on(&mut probe).map_err(|e| e.to_string())?;
    let ran = probe.stdin(Stdio::null()).stdout(Stdio::null()).output().map_err(|e| e.to_string())?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    let line = said.lines().next().unwrap_or("the probe was ended");
    Err(line.split_once("no sandbox: ").map_or(line, |(_, why)| why).to_owned())
}
