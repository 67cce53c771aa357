//! Namespaces of the command's own, in which the directory is not there.
//!
//! ```text
//!   cis agent run
//!    └─ namespaces   outside; makes user, mount, PID and IPC namespaces, waits for the command
//!        ├─ init     process 1 inside: mounts what the command sees, gives up its rights, reaps
//!        └─ command  inside: a user namespace further in, no rights over the mounts ── exec ──► CMD
//! ```
//!
//! Every process makes its namespaces before it has a second thread. The command is in a user namespace inside the one that
//! owns the mounts, as the user that it was started by: it has no rights over the mounts, and mounts that it copies into
//! namespaces of its own are locked by the kernel. `init` ends when `namespaces` does, and all processes inside end with it.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{
    DumpableBehavior, Signal, WaitOptions, getegid, geteuid, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::Signals;

use super::supervise::{hear_signals, supervise};
use super::{Guarded, Named, SandboxError, landlock, mounts};

/// What `init` says when all is mounted; any other line says why it is not.
const READY: &str = "ready";

/// How many namespaces of control groups a user namespace may have.
const CGROUP_NAMESPACES_MAX: &str = "/proc/sys/user/max_cgroup_namespaces";

/// `close-on-exec` among the flags of `/proc/self/fdinfo`.
const CLOEXEC: u32 = 0o2_000_000;

/// Stage [`Namespaces`](super::Stage::Namespaces): runs `command` out of reach of what is guarded, and returns its exit code. Without a command it tries
/// everything up to it.
pub fn run(guarded: &Guarded, command: &[OsString]) -> Result<u8, SandboxError> {
    let exe = std::env::current_exe().named(|| "find this program".into())?;
    refuse_open_directories()?;
    let signals = hear_signals().named(|| "hear signals".into())?;
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER).named(|| "make a user namespace".into())?;
    map_user((0, uid), (0, gid))?;
    forbid_cgroup_namespaces()?;
    set_parent_process_death_signal(Some(Signal::KILL)).named(|| "be ended with `cis agent run`".into())?;
    let inner = UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWIPC;
    unshare(inner).named(|| "make mount, PID and IPC namespaces".into())?;
    let mut init = start_init(&exe, guarded)?;
    let ended = start_command(&exe, guarded, command)
        .and_then(|child| supervise(&child, signals).named(|| "wait for the command".into()));
    // Everything inside ends with it, and it is gone only when all of that is.
    let _ = init.kill();
    let _ = init.wait();
    ended
}

/// The first process of the namespaces, once everything is mounted.
fn start_init(exe: &Path, guarded: &Guarded) -> Result<Child, SandboxError> {
    let mut init = Command::new(exe);
    init.env_clear();
    stage(&mut init, "init", guarded)?;
    init.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = init.spawn().named(|| "start the first process of the namespaces".into())?;
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = BufReader::new(stdout).read_line(&mut said);
    }
    match said.trim_end() {
        READY => Ok(child),
        why => {
            let _ = child.kill();
            let _ = child.wait();
            let why = if why.is_empty() { "the first process of the namespaces was ended" } else { why };
            Err(SandboxError::Refused(why.into()))
        }
    }
}

fn start_command(exe: &Path, guarded: &Guarded, command: &[OsString]) -> Result<Child, SandboxError> {
    let mut start = Command::new(exe);
    stage(&mut start, "command", guarded)?;
    if command.is_empty() {
        start.arg("--probe");
    }
    start.arg("--").args(command).spawn().named(|| "start the command".into())
}

fn stage(command: &mut Command, name: &str, guarded: &Guarded) -> Result<(), SandboxError> {
    command.args(["confined", "--stage", name]);
    guarded.hand_on(command)
}

/// Stage [`Init`](super::Stage::Init): says on standard output how it went.
pub fn run_init(guarded: &Guarded) -> Result<Infallible, SandboxError> {
    let prepared = prepare(guarded);
    let said = match &prepared {
        Ok(_) => READY.to_owned(),
        Err(e) => e.to_string().replace('\n', " "),
    };
    let _ = writeln!(io::stdout(), "{said}");
    let mut signals = prepared?;
    loop {
        for _ in signals.wait() {
            while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        }
    }
}

fn prepare(guarded: &Guarded) -> Result<Signals, SandboxError> {
    set_parent_process_death_signal(Some(Signal::KILL)).named(|| "be ended with its parent".into())?;
    let (uid, _) = outer_ids()?;
    mounts::prepare(guarded, uid == 0)?;
    drop_rights()?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).named(|| "forbid inspection".into())?;
    Signals::new([SIGCHLD]).named(|| "hear of children".into())
}

/// Stage [`Command`](super::Stage::Command): becomes the command, or returns `Ok` where there is none to become.
pub fn become_command(command: &[OsString]) -> Result<Option<io::Error>, SandboxError> {
    // A directory that was entered before it was covered is still the one beneath.
    let here = std::env::current_dir().named(|| "find the working directory".into())?;
    std::env::set_current_dir(&here)
        .named(|| format!("enter `{}` (is it in the data directory?)", here.display()))?;
    let (uid, gid) = outer_ids()?;
    unshare(UnshareFlags::NEWUSER).named(|| "make a second user namespace".into())?;
    map_user((uid, 0), (gid, 0))?;
    drop_rights()?;
    landlock::scope()?;
    let Some((program, rest)) = command.split_first() else { return Ok(None) };
    Ok(Some(Guarded::forget(Command::new(program).args(rest)).exec()))
}

#[expect(
    deprecated,
    reason = "what is unsafe about it is a table of descriptors of one's own, which is not asked for"
)]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}

/// Gives the user and the group of this process, each `(inside, outside)`, their ids in its new user namespace.
fn map_user(uid: (u32, u32), gid: (u32, u32)) -> Result<(), SandboxError> {
    let maps = [
        // Without it a user could leave a group that a file is shut for.
        ("setgroups", "deny".to_owned()),
        ("gid_map", format!("{} {} 1", gid.0, gid.1)),
        ("uid_map", format!("{} {} 1", uid.0, uid.1)),
    ];
    for (file, text) in maps {
        let path = format!("/proc/self/{file}");
        fs::write(&path, text).named(|| format!("write `{path}`"))?;
    }
    Ok(())
}

/// In a namespace of control groups of its own, a command could mount them anew, and end every process of its group by
/// `cgroup.kill`. To be called in the new user namespace, for which and for all within the limit holds.
fn forbid_cgroup_namespaces() -> Result<(), SandboxError> {
    match fs::write(CGROUP_NAMESPACES_MAX, "0") {
        // A kernel without control groups.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written.named(|| format!("write `{CGROUP_NAMESPACES_MAX}`")),
    }
}

/// Who this process is outside the user namespace in which it is 0.
fn outer_ids() -> Result<(u32, u32), SandboxError> {
    let read = |file: &str| {
        let text = fs::read_to_string(file).named(|| format!("read `{file}`"))?;
        let outside = text.split_whitespace().nth(1).and_then(|id| id.parse().ok());
        outside.ok_or_else(|| SandboxError::Refused(format!("`{file}` says `{}`", text.trim())))
    };
    Ok((read("/proc/self/uid_map")?, read("/proc/self/gid_map")?))
}

/// Gives up every capability, for good.
fn drop_rights() -> Result<(), SandboxError> {
    set_no_new_privs(true).named(|| "forbid new rights".into())?;
    // The kernel knows fewer than 64, and says which is the last.
    for bit in 0..64 {
        if remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)).is_err() {
            break;
        }
    }
    clear_ambient_capability_set().named(|| "give up capabilities".into())?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).named(|| "give up capabilities".into())
}

/// A directory that is open and inherited leads past everything that is mounted later.
fn refuse_open_directories() -> Result<(), SandboxError> {
    let open = fs::read_dir("/proc/self/fd").named(|| "list descriptors".into())?;
    for entry in open.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let Ok(info) = fs::read_to_string(format!("/proc/self/fdinfo/{name}")) else { continue };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
        if flags & CLOEXEC == 0 && fs::metadata(entry.path()).is_ok_and(|file| file.is_dir()) {
            return Err(SandboxError::Refused(format!(
                "descriptor {name} is an open directory, which would lead out of the sandbox: close it (`{name}<&-`)"
            )));
        }
    }
    Ok(())
}
