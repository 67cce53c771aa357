//! Programs that must be there, and how they get there on a machine that has nothing but a Rust toolchain.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::repo;
use crate::run::{run, works};

/// The version that is built: the same rules everywhere, whatever is newest.
const CARGO_DENY: &str = "0.20.2";
const CARGO_MUTANTS: &str = "27.1.0";
const SCHEMATHESIS: &str = "4.32.5";

/// A component of the Rust toolchain, such as `clippy`.
pub fn component(name: &str, probe: &str) -> Result<()> {
    if works(Command::new("cargo").args([probe, "--version"])) {
        return Ok(());
    }
    println!("installing {name}");
    run(Command::new("rustup").args(["component", "add", name]))
}

/// `cargo-deny`: the reader's own, else one built into the cache once.
pub fn cargo_deny() -> Result<PathBuf> {
    cargo_tool("deny", CARGO_DENY)
}

/// `cargo-mutants`, the same way.
pub fn cargo_mutants() -> Result<PathBuf> {
    cargo_tool("mutants", CARGO_MUTANTS)
}

/// The program behind `cargo {word}`.
fn cargo_tool(word: &str, version: &str) -> Result<PathBuf> {
    let (cached, name) = (repo::cache()?.join("tools"), format!("cargo-{word}"));
    let program = cached.join("bin").join(&name);
    for found in [name.clone().into(), program.clone()] {
        // As cargo would call it: not every one of them answers without its word.
        if works(Command::new(&found).args([word, "--version"])) {
            return Ok(found);
        }
    }
    println!("building {name} {version}, once: this takes some minutes");
    let mut install = Command::new("cargo");
    // Unoptimised it takes half as long to build, and still answers in a second or two.
    install.args(["install", &name, "--locked", "--quiet", "--debug", "--version", version, "--root"]);
    install.arg(&cached).env("CARGO_PROFILE_DEV_DEBUG", "0");
    // Its build has nothing to share with ours.
    run(install.env("CARGO_TARGET_DIR", cached.join("target")))?;
    let _ = std::fs::remove_dir_all(cached.join("target"));
    Ok(program)
}

/// `schemathesis`, installed into the cache once, in an environment of its own.
pub fn schemathesis() -> Result<PathBuf> {
    let cached = repo::cache()?.join("tools").join(format!("schemathesis-{SCHEMATHESIS}"));
    let program = cached.join("bin/schemathesis");
    if works(Command::new(&program).arg("--version")) {
        return Ok(program);
    }
    println!("installing schemathesis {SCHEMATHESIS}, once");
    if !works(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&cached)) {
        bail!("schemathesis needs `python3` with `venv`: install the packages `python3` and `python3-venv`");
    }
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    let package = format!("schemathesis=={SCHEMATHESIS}");
    run(Command::new(cached.join("bin/python")).args(install).arg(package))?;
    Ok(program)
}

/// A program of the system, from `package` if it is missing.
pub fn program(name: &str, package: &str) -> Result<()> {
    if works(Command::new(name).arg("--version")) {
        return Ok(());
    }
    println!("installing {package} for `{name}`");
    if install(package) && works(Command::new(name).arg("--version")) {
        return Ok(());
    }
    bail!("`{name}` is missing and could not be installed: install the package `{package}` and try again")
}

/// Only `apt-get`, and only as root or through a `sudo` that asks nothing: anything else is the reader's choice.
fn install(package: &str) -> bool {
    let install = ["apt-get", "install", "--yes", "--no-install-recommends", package];
    let direct = |args: &[&str]| works(Command::new(args[0]).args(&args[1..]));
    let through_sudo = |args: &[&str]| works(Command::new("sudo").arg("--non-interactive").args(args));
    let update = ["apt-get", "update"];
    // A fresh machine has no package lists yet, hence the second round.
    direct(&install)
        || through_sudo(&install)
        || ((direct(&update) || through_sudo(&update)) && (direct(&install) || through_sudo(&install)))
}
