//! The `cis` program: reads the command line, hands it to [`cis::command`], and turns the result into an exit code.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cis::cli::Cli::try_parse() {
        Ok(cli) => cis::command::main(cli),
        Err(error) => cis::command::misused(&error),
    }
}
