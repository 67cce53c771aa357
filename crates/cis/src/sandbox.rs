//! Running a command out of reach of one directory, by Landlock.
//!
//! Landlock knows what is allowed and nothing that is forbidden, so everything beside the way to the directory is
//! allowed, level by level: to hide `/home/ann/data`, all of `/` but `home`, all of `/home` but `ann`, all of
//! `/home/ann` but `data`. What appears later on that way itself was not there to be allowed, and stays shut too.
//! Listing and running are not taken away: a command that cannot list its home directory is of no use.

use std::fs;
use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus,
};
use rustix::fs::{Mode, OFlags};

/// Why a command cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("{0}")]
    Landlock(#[from] RulesetError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the kernel did not enforce it")]
    NotEnforced,
}

/// Can this kernel do it?
pub fn is_available() -> bool {
    ruleset().is_ok()
}

/// From here on, this process and its children cannot read, write, make or remove any file in `dir`. To be called by
/// a process of one thread that does nothing else than become the command: only the calling thread is confined.
pub fn hide(dir: &Path) -> Result<(), SandboxError> {
    let dir = dir.canonicalize()?;
    let mut rules = ruleset()?;
    for hidden in dir.ancestors() {
        // What cannot be listed cannot be allowed either: the command can reach less then, never more.
        let Some(Ok(beside)) = hidden.parent().map(fs::read_dir) else { continue };
        for entry in beside.flatten().filter(|entry| entry.path() != hidden) {
            rules = allow(rules, &entry)?;
        }
    }
    match rules.restrict_self()?.ruleset {
        RulesetStatus::NotEnforced => Err(SandboxError::NotEnforced),
        _ => Ok(()),
    }
}

/// Takes away reading, writing, making and removing files where no rule allows it. What later kernels added to that
/// is taken where they know it; without what the first one knew there is no sandbox.
fn ruleset() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(of_files(AccessFs::from_all(ABI::V1)))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(of_files(AccessFs::from_all(ABI::V5)))?
        .create()
}

/// Without listing, running and asking devices.
fn of_files(access: BitFlags<AccessFs>) -> BitFlags<AccessFs> {
    access & !(AccessFs::ReadDir | AccessFs::Execute | AccessFs::IoctlDev)
}

fn allow(rules: RulesetCreated, entry: &fs::DirEntry) -> Result<RulesetCreated, SandboxError> {
    let Ok(kind) = entry.file_type() else { return Ok(rules) };
    // What a link leads to is allowed or not where it really is; followed, it might allow the directory itself.
    if kind.is_symlink() {
        return Ok(rules);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Gone meanwhile.
    let Ok(place) = rustix::fs::open(entry.path(), flags, Mode::empty()) else { return Ok(rules) };
    let all = if kind.is_dir() { AccessFs::from_all(ABI::V5) } else { AccessFs::from_file(ABI::V5) };
    Ok(rules.add_rule(PathBeneath::new(place, of_files(all)))?)
}
