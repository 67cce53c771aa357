//! Rules of the kernel that shut a directory.
//!
//! Landlock knows what is allowed and nothing that is forbidden, so everything beside the way to the directory is
//! allowed, level by level: to hide `/home/ann/data`, all of `/` but `home`, all of `/home` but `ann`, all of
//! `/home/ann` but `data`. Settings can be read and nothing else, in the same way. What appears later on that way itself was not there to be allowed, and stays shut too.
//! Listing and running are not taken away: a command that cannot list its home directory is of no use. `/sys` can only be
//! read: a user may own control groups there, and a write to `cgroup.kill` ends every process in one.

use std::fs;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

use super::{Guarded, Named, SandboxError, mounts};

/// What the superuser would look into processes and the kernel with: Landlock does not stand in the way of these.
const INSPECTING: [CapabilitySet; 6] = [
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::SYS_PTRACE,
    CapabilitySet::PERFMON,
    CapabilitySet::BPF,
    CapabilitySet::SYS_MODULE,
    CapabilitySet::SYS_RAWIO,
];

/// Can this kernel do it?
pub fn is_available() -> bool {
    shut_files().and_then(Ruleset::create).is_ok()
}

/// Can this kernel keep signals and abstract sockets within the sandbox (Linux 6.12)?
pub fn can_scope() -> bool {
    scope_signals_and_sockets(CompatLevel::HardRequirement).and_then(Ruleset::create).is_ok()
}

/// Paths by which what is guarded can be reached.
struct Shut {
    hidden: Vec<PathBuf>,
    read_only: Vec<PathBuf>,
}

/// From here on, this thread and its children cannot read, write, make or remove any file in the hidden directory, by whichever
/// mount, nor write, make or remove any of what is read-only; nor, where the kernel can do it, send signals or connect to
/// abstract sockets outside.
pub fn hide(guarded: &Guarded) -> Result<(), SandboxError> {
    let hidden = mounts::views_of(&guarded.hidden)?;
    let mut read_only = Vec::new();
    for path in &guarded.read_only {
        read_only.extend(mounts::views_of(path)?);
    }
    let shut = Shut { hidden, read_only };
    let rules = shut_files()?.set_compatibility(CompatLevel::BestEffort).scope(Scope::from_all(ABI::V6))?;
    drop_inspecting_rights()?;
    enforce(allow_beside(rules.create()?, Path::new("/"), &shut, false)?)
}

/// A command run by a plain user has none of them to lose.
fn drop_inspecting_rights() -> Result<(), SandboxError> {
    let sets = capabilities(None).named(|| "read capabilities".into())?;
    if !sets.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for one in INSPECTING {
        remove_capability_from_bounding_set(one).named(|| "give up capabilities".into())?;
    }
    let kept = |set: CapabilitySet| INSPECTING.into_iter().fold(set, CapabilitySet::difference);
    let inheritable = kept(sets.inheritable);
    set_capabilities(None, CapabilitySets { inheritable, ..sets }).named(|| "give up capabilities".into())
}

/// The same for signals and abstract sockets alone; nothing where the kernel cannot do it.
pub fn scope() -> Result<(), SandboxError> {
    if can_scope() {
        enforce(scope_signals_and_sockets(CompatLevel::HardRequirement)?.create()?)?;
    }
    Ok(())
}

fn enforce(rules: RulesetCreated) -> Result<(), SandboxError> {
    match rules.restrict_self()?.ruleset {
        RulesetStatus::NotEnforced => Err(SandboxError::Refused("the kernel did not enforce it".into())),
        _ => Ok(()),
    }
}

/// Takes away reading, writing, making and removing files where no rule allows it. What later kernels added to that
/// is taken where they know it; without what the first one knew there is no sandbox.
fn shut_files() -> Result<Ruleset, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(of_files(AccessFs::from_all(ABI::V1)))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(of_files(AccessFs::from_all(ABI::V5)))
}

fn scope_signals_and_sockets(level: CompatLevel) -> Result<Ruleset, RulesetError> {
    Ruleset::default().set_compatibility(level).scope(Scope::from_all(ABI::V6))
}

/// Without listing, running and asking devices.
fn of_files(access: BitFlags<AccessFs>) -> BitFlags<AccessFs> {
    access & !(AccessFs::ReadDir | AccessFs::Execute | AccessFs::IoctlDev)
}

fn allow_beside(
    mut rules: RulesetCreated,
    dir: &Path,
    shut: &Shut,
    is_read_only: bool,
) -> Result<RulesetCreated, SandboxError> {
    // What cannot be listed cannot be allowed either: the command can reach less then, never more.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_read_only = is_read_only || shut.read_only.contains(&path) || path == Path::new("/sys");
        let mut below = shut.hidden.iter().chain(&shut.read_only).filter(|shut| **shut != path);
        rules = if shut.hidden.contains(&path) {
            rules
        } else if below.any(|shut| shut.starts_with(&path)) {
            allow_beside(rules, &path, shut, is_read_only)?
        } else {
            allow(rules, &entry, is_read_only)?
        };
    }
    Ok(rules)
}

fn allow(
    rules: RulesetCreated,
    entry: &fs::DirEntry,
    is_read_only: bool,
) -> Result<RulesetCreated, SandboxError> {
    let Ok(kind) = entry.file_type() else { return Ok(rules) };
    // What a link leads to is allowed or not where it really is; followed, it might allow the directory itself.
    if kind.is_symlink() {
        return Ok(rules);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Gone meanwhile.
    let Ok(place) = rustix::fs::open(entry.path(), flags, Mode::empty()) else { return Ok(rules) };
    let all = if kind.is_dir() { AccessFs::from_all(ABI::V5) } else { AccessFs::from_file(ABI::V5) };
    let allowed = if is_read_only { AccessFs::from_read(ABI::V5) } else { all };
    Ok(rules.add_rule(PathBeneath::new(place, of_files(allowed)))?)
}
