//! `cis agent run`: an agent's command with a token of its own, out of reach of the data directory.
//!
//! ```text
//!   cis agent run ── token ──► cis confined (Landlock) ── exec ──► CMD
//!        └─ passes signals on, waits, takes the token back
//! ```

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command as Process};

use cis_api::calls::{CreateToken, RevokeToken};
use cis_api::token::{NewToken, TokenPath};
use cis_api::{Nothing, Request};
use cis_core::access::Preset;
use cis_core::dag::parse::duration;
use cis_core::did::Did;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::is_name;
use cis_engine::coordinator::Options;
use cis_engine::system::user;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Failure, Outcome, Setup, token};
use crate::cli::{AgentArgs, Sandbox};
use crate::sandbox;
use crate::session::Session;
use crate::term::reveal;

/// What a shell says of a command that is not there, or cannot be run.
const EXIT_MISSING: u8 = 127;
const EXIT_UNUSABLE: u8 = 126;

/// A node, and a token to call it with.
struct Access {
    address: String,
    token: NewToken,
}

/// Runs the command; ends as it ends.
pub(super) fn run(setup: &Setup, args: &AgentArgs) -> Outcome {
    let options = setup.options()?;
    let confine = is_confined(args.sandbox)?;
    // From here on a signal waits until there is a command to pass it on to, and a token to take back.
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).map_err(|e| unable("hear signals", &e))?;
    let access = access(setup, &options, args)?;
    let ended = command(&options, args, &access, confine).and_then(|child| wait(child, signals));
    if let Err(refusal) = take_back(setup, &options, &access.token) {
        let (id, lasts) = (&access.token.token_id, &args.expires);
        tell!("warning: its token `{id}` could not be taken back: {}", reveal(&refusal.to_string()));
        tell!("hint: `cis token revoke {id}`, or it runs out in {lasts}");
    }
    ended
}

/// Is the data directory to be hidden? Says so where it should be and cannot.
fn is_confined(wish: Sandbox) -> Result<bool, Failure> {
    let available = wish != Sandbox::Off && sandbox::is_available();
    if available {
        return Ok(true);
    }
    let why = match wish {
        Sandbox::Off => "the data directory is not hidden from it",
        _ => "this kernel has no Landlock: the data directory cannot be hidden from it",
    };
    if wish == Sandbox::Require {
        return Err(Refusal::new(ErrorCode::Unavailable, why)
            .hint(
                "enable Landlock (`lsm=` on the kernel's command line), or give the agent a user of its own",
            )
            .into());
    }
    tell!("warning: {why}; whoever runs as `{}` can become the owner of the node", user());
    Ok(false)
}

fn access(setup: &Setup, options: &Options, args: &AgentArgs) -> Result<Access, Failure> {
    let name = &args.name;
    if !is_name(name) && name.parse::<Did>().is_err() {
        return Err(Failure::usage(format!("`{name}` is neither a name nor a DID"))
            .hint("use A-Z a-z 0-9 . _ -, or `did:cis:NAME:ID`"));
    }
    let lasts = duration::from_text(&args.expires).map_err(Failure::usage)?;
    let scopes = token::scopes(&args.scopes)?;
    let body = token::token_body(name.clone(), Preset::Agent, scopes, Some(lasts));
    let mut session = Session::open(options.clone(), setup.settings())?;
    let Some(address) = session.coordinator()?.address else {
        return Err(Refusal::new(ErrorCode::Unavailable, "no node serves this data directory")
            .hint("`cis node start` starts one")
            .into());
    };
    let token = session.call(&Request::<CreateToken>::new(Nothing {}, Nothing {}, body))?;
    session.close()?;
    Ok(Access { address, token })
}

/// Starts the command. Of what CIS reads from the environment it gets the way to its data, and no secret but its own.
fn command(options: &Options, args: &AgentArgs, access: &Access, confine: bool) -> Result<Child, Failure> {
    let (program, rest) = args.command.split_first().ok_or_else(|| Failure::usage("there is no command"))?;
    let mut process = match confine {
        true => {
            let mut process = Process::new(&options.exe);
            process.arg("confined").arg("--hide").arg(options.data_dir.root()).arg("--").arg(program);
            process
        }
        false => Process::new(program),
    };
    for (name, _) in std::env::vars_os() {
        if name.as_bytes().starts_with(b"CIS_") && name != "CIS_HOME" && name != "CIS_DATA_DIR" {
            process.env_remove(name);
        }
    }
    process.args(rest).env("CIS_TOKEN", &access.token.token).env("CIS_NODE", &access.address);
    process.spawn().map_err(|e| not_started(program, &e))
}

/// Waits for the command, and passes on what we are told meanwhile.
fn wait(mut child: Child, mut signals: Signals) -> Outcome {
    let (handle, target) = (signals.handle(), pidfd(&child));
    let listening = std::thread::Builder::new().name("cis-signals".into()).spawn(move || {
        for signal in signals.forever() {
            pass_on(target.as_ref(), signal);
        }
    });
    let ended = child.wait();
    handle.close();
    if let Ok(thread) = listening {
        let _ = thread.join();
    }
    let status = ended.map_err(|e| unable("wait for the command", &e))?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ok(u8::try_from(code).unwrap_or(1))
}

fn pidfd(child: &Child) -> Option<OwnedFd> {
    let pid = Pid::from_raw(child.id().cast_signed())?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Passes a signal on, unless a terminal has told the command itself.
fn pass_on(target: Option<&OwnedFd>, signal: i32) {
    let by_terminal = matches!(signal, SIGINT | SIGQUIT) && is_in_foreground();
    if let (Some(target), Some(signal), false) = (target, Signal::from_named_raw(signal), by_terminal) {
        // It may have ended just now.
        let _ = pidfd_send_signal(target, signal);
    }
}

/// Does Ctrl-C at our terminal reach our process group?
fn is_in_foreground() -> bool {
    let group = File::open("/dev/tty").and_then(|terminal| Ok(rustix::termios::tcgetpgrp(&terminal)?));
    group.is_ok_and(|group| group == rustix::process::getpgrp())
}

/// The process that coordinates by now takes the token back; without one, this process does.
fn take_back(setup: &Setup, options: &Options, token: &NewToken) -> Result<(), Refusal> {
    let mut session = Session::open(options.clone(), setup.settings())?;
    let path = TokenPath { id: token.token_id.clone() };
    match session.call(&Request::<RevokeToken>::new(path, Nothing {}, Nothing {})) {
        // It ran out, or was taken back already.
        Err(refusal) if refusal.code != ErrorCode::NotFound => return Err(refusal),
        _ => {}
    }
    session.close()
}

/// `cis confined`: becomes the command, out of reach of `hide`; or nothing at all.
pub(super) fn confined(hide: &Path, command: &[OsString]) -> Outcome {
    let (program, rest) = command.split_first().ok_or_else(|| Failure::usage("there is no command"))?;
    sandbox::hide(hide).map_err(|e| {
        let why = format!("cannot hide `{}`: {e}", hide.display());
        Failure { exit: EXIT_UNUSABLE, ..Failure::new(ErrorCode::Unavailable, why) }
    })?;
    Err(not_started(program, &Process::new(program).args(rest).exec()))
}

fn not_started(program: &OsString, e: &io::Error) -> Failure {
    let why = format!("cannot run `{}`: {e}", program.to_string_lossy());
    match e.kind() {
        io::ErrorKind::NotFound => Failure { exit: EXIT_MISSING, ..Failure::new(ErrorCode::NotFound, why) },
        _ => Failure { exit: EXIT_UNUSABLE, ..Failure::new(ErrorCode::Unavailable, why) },
    }
}

fn unable(what: &str, e: &io::Error) -> Failure {
    Failure::new(ErrorCode::Unavailable, format!("cannot {what}: {e}"))
}
