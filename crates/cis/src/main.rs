//! The `cis` program: reads the command line, hands it to [`cis::command`], and turns the result into an exit code.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    cis::command::main(cis::cli::Cli::parse())
}
