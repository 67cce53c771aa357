//! `cis agent run`: an agent's command with a token of its own, out of reach of the data directory.
//!
//! ```text
//!   cis agent run ── token ──► cis confined (namespaces, or Landlock) ──► CMD
//!        └─ passes signals on, waits, takes the token back
//! ```

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
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
use cis_engine::data_dir::DataDir;
use cis_engine::system::user;

use super::{Failure, Outcome, Setup, identity, token};
use crate::cli::{AgentArgs, Sandbox};
use crate::config::Source;
use crate::sandbox::guarded::{make_settings_dir, replaceable_link};
use crate::sandbox::supervise::{has_terminal, hear_signals, supervise};
use crate::sandbox::{Guarded, Kind, SandboxError, Stage, landlock, namespaces, probe_namespaces};
use crate::session::Session;
use crate::term::reveal;

/// What a shell says of a command that is not there, or cannot be run.
const EXIT_MISSING: u8 = 127;
const EXIT_UNUSABLE: u8 = 126;

/// A node, and a token to call it with.
struct Access {
    address: String,
    did: Did,
    token: NewToken,
}

/// Runs the command; ends as it ends.
pub(super) fn run(setup: &Setup, args: &AgentArgs) -> Outcome {
    let given = setup.options()?;
    // By one path to the end: what the command could replace on the way to it must not lead this process elsewhere.
    let root = given.data_dir.root().canonicalize().map_err(|e| unable("find the data directory", &e))?;
    let options = Options { data_dir: DataDir::at(&root), ..given };
    let guarded = match args.sandbox {
        Sandbox::Off => Guarded { hidden: root, read_only: Vec::new() },
        _ => guard(setup, root)?,
    };
    let kind = choose(args.sandbox, &options, &guarded)?;
    // From here on a signal waits until there is a command to pass it on to, and a token to take back.
    let signals = hear_signals().map_err(|e| unable("hear signals", &e))?;
    let access = access(setup, &options, args)?;
    let ended = command(&options, args, &access, kind.map(|kind| (kind, &guarded)))
        .and_then(|child| supervise(&child, signals).map_err(|e| unable("wait for the command", &e)));
    if let Err(refusal) = take_back(setup, &options, &access.token) {
        let (id, lasts) = (&access.token.token_id, &args.expires);
        tell!("warning: its token `{id}` could not be taken back: {}", reveal(&refusal.to_string()));
        tell!("hint: `cis token revoke {id}`, or it runs out in {lasts}");
    }
    ended
}

/// What the sandbox keeps from the command. Refuses where the command could replace a link by which the owner finds it later.
fn guard(setup: &Setup, hidden: PathBuf) -> Result<Guarded, Failure> {
    let (home, file) = (&setup.config.home, &setup.config.file);
    let mut read_only = Vec::new();
    // Without a home it stands for the place of the file that was named.
    if !matches!(home.source, Source::Flag(_)) {
        make_settings_dir(&home.value).map_err(|e| unable("make the directory of the settings", &e))?;
        let hint = "say the real path with `CIS_HOME`, here and wherever else `cis` is started";
        read_only.extend(real_path("the directory of the settings", &home.value, &[], hint)?);
    }
    let hint = "say the real path with `--config`, here and wherever else `cis` is started";
    let file = real_path("the file of the settings", &file.value, &read_only, hint)?;
    let is_new = |file: &PathBuf| !read_only.iter().any(|dir| file.starts_with(dir));
    let file = file.filter(is_new);
    read_only.extend(file);
    let data_dir = &setup.config.data_dir.value;
    let hint =
        "say the real path with `--data-dir` or `CIS_DATA_DIR`, here and wherever else `cis` is started";
    real_path("the data directory", data_dir, &read_only, hint)?;
    Ok(Guarded { hidden, read_only })
}

/// The real path of what is there, if it stays that.
fn real_path(what: &str, path: &Path, held: &[PathBuf], hint: &str) -> Result<Option<PathBuf>, Failure> {
    if !path.try_exists().map_err(|e| unable(&format!("find {what}"), &e))? {
        return Ok(None);
    }
    let link = replaceable_link(path, held).map_err(|e| unable(&format!("find {what}"), &e))?;
    if let Some(link) = link {
        let (path, link) = (path.display(), link.display());
        let why = format!(
            "{what} is named as `{path}`, and the command could replace the link `{link}` on the way to it"
        );
        return Err(Failure::usage(why).hint(hint));
    }
    path.canonicalize().map(Some).map_err(|e| unable(&format!("find {what}"), &e))
}

/// Says which sandbox it is to be, or that there is none; refuses where one is asked for that does not work here.
fn choose(wish: Sandbox, options: &Options, guarded: &Guarded) -> Result<Option<Kind>, Failure> {
    if wish == Sandbox::Off {
        warn("`--sandbox off`: the data directory is not hidden from it");
        return Ok(None);
    }
    let namespaces = match wish {
        Sandbox::Landlock => Err("not asked for".to_owned()),
        _ => probe_namespaces(&options.exe, guarded),
    };
    let scoped = landlock::can_scope();
    let Err(why) = namespaces else {
        let sockets =
            if scoped { "" } else { "; abstract sockets are open to it: this kernel cannot scope them" };
        tell!("sandbox: namespaces{sockets}");
        return Ok(Some(Kind::Namespaces));
    };
    let why = format!("namespaces do not work here ({})", reveal(&why));
    if wish == Sandbox::Namespaces {
        return Err(refuse(&why, "`--sandbox auto` takes Landlock instead"));
    }
    if landlock::is_available() {
        let fallback = if wish == Sandbox::Landlock { String::new() } else { format!("; {why}") };
        let open = if scoped {
            ""
        } else {
            "; signals and abstract sockets are open to it: this kernel cannot scope them"
        };
        tell!("sandbox: Landlock{open}{fallback}");
        return Ok(Some(Kind::Landlock));
    }
    let none = "this kernel has no Landlock";
    match wish {
        Sandbox::Landlock => Err(refuse(none, "`--sandbox auto` takes namespaces where they work")),
        Sandbox::Require => Err(refuse(
            &format!("{why}, and {none}"),
            "allow user namespaces or enable Landlock (`lsm=` on the kernel's command line), or give the agent a user of its own",
        )),
        _ => {
            warn(&format!("{why}, and {none}: the data directory cannot be hidden from it"));
            Ok(None)
        }
    }
}

fn warn(why: &str) {
    tell!("warning: no sandbox: {why}; a process of `{}` can become the owner of the node", user());
}

fn refuse(why: &str, hint: &str) -> Failure {
    Refusal::new(ErrorCode::Unavailable, format!("no such sandbox: {why}")).hint(hint).into()
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
    let did = identity::own(setup, &options.data_dir)?.did;
    let token = session.call(&Request::<CreateToken>::new(Nothing {}, Nothing {}, body))?;
    session.close()?;
    Ok(Access { address, did, token })
}

/// Starts the command. Of what CIS reads from the environment it gets the way to its data, and no secret but its own.
fn command(
    options: &Options,
    args: &AgentArgs,
    access: &Access,
    sandbox: Option<(Kind, &Guarded)>,
) -> Result<Child, Failure> {
    let (program, rest) = args.command.split_first().ok_or_else(|| Failure::usage("there is no command"))?;
    let mut process = match sandbox {
        Some(_) => Process::new(&options.exe),
        None => Process::new(program),
    };
    for (name, _) in std::env::vars_os() {
        if name.as_bytes().starts_with(b"CIS_") && name != "CIS_HOME" && name != "CIS_DATA_DIR" {
            process.env_remove(name);
        }
    }
    if let Some((kind, guarded)) = sandbox {
        let stage = if kind == Kind::Namespaces { "namespaces" } else { "landlock" };
        process.args(["confined", "--stage", stage]);
        guarded.hand_on(&mut process).map_err(|e| refuse(&e.to_string(), "choose a path without it"))?;
        process.arg("--").arg(program);
    }
    // Signals to one's own process group would reach what was started beside this process. A terminal needs them to: it
    // stops and interrupts what is in one group.
    if sandbox.is_some() && !has_terminal() {
        process.process_group(0);
    }
    process.args(rest).env("CIS_TOKEN", &access.token.token).env("CIS_NODE", &access.address);
    // Should the node go and another process take its port, that one is not sent the token.
    process.env("CIS_NODE_DID", access.did.as_str());
    process.spawn().map_err(|e| not_started(program, &e))
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

/// `cis confined`: becomes the command, or starts it, out of reach of `hide`; or does nothing at all.
pub(super) fn confined(stage: Stage, hide: &Path, probe: bool, command: &[OsString]) -> Outcome {
    if command.is_empty() && !probe && stage != Stage::Init {
        return Err(Failure::usage("there is no command"));
    }
    let refused = |e: SandboxError| Failure {
        exit: EXIT_UNUSABLE,
        ..Failure::new(ErrorCode::Unavailable, format!("no sandbox: {e}"))
    };
    match stage {
        Stage::Landlock => {
            landlock::hide(&Guarded::of_stage(hide).map_err(refused)?).map_err(refused)?;
            let Some((program, rest)) = command.split_first() else { return Ok(0) };
            Err(not_started(program, &Guarded::forget(Process::new(program).args(rest)).exec()))
        }
        Stage::Namespaces => {
            namespaces::run(&Guarded::of_stage(hide).map_err(refused)?, command).map_err(refused)
        }
        Stage::Init => {
            match namespaces::run_init(&Guarded::of_stage(hide).map_err(refused)?).map_err(refused)? {}
        }
        Stage::Command => match (namespaces::become_command(command).map_err(refused)?, command.first()) {
            (Some(e), Some(program)) => Err(not_started(program, &e)),
            _ => Ok(0),
        },
    }
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
