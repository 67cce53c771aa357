//! `cis init`, `cis config show`, `cis completions`.

use clap::CommandFactory;

use super::{Failure, Outcome, Setup, list};
use crate::cli::Cli;
use crate::config::show;
use crate::init::{self, InitError};
use crate::term::out;

/// `cis init`.
pub(super) fn init(json: bool, force: bool) -> Outcome {
    let here = std::env::current_dir().map_err(|e| Failure::usage(format!("no current directory: {e}")))?;
    let outcome = init::init(&here, force, init::installed).map_err(|e| {
        let exit = if matches!(e, InitError::Exists(_)) { 4 } else { 1 };
        Failure { report: Box::new(e.report()), exit }
    })?;
    if json {
        say_json!(outcome.to_json());
    } else {
        say!("{}", outcome.render().trim_end());
    }
    Ok(0)
}

/// `cis config show`.
pub(super) fn show_config(setup: &Setup) -> Outcome {
    if setup.json {
        say_json!(show::to_json(&setup.config));
    } else {
        list::print(&show::table(&setup.config));
    }
    Ok(0)
}

/// `cis completions`.
pub(super) fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cis", &mut script);
    out::put(format_args!("{}", String::from_utf8_lossy(&script)));
    Ok(0)
}
