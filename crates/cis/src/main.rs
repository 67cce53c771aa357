//! The `cis` program: reads the command line, hands it to [`cis::command`], and turns the result into an exit code.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    // Only a coordinator starts a runner, always like this. It stays small: it does without what reads all the rest.
    if let [command, flag, data_dir] = args.as_slice()
        && command == "runner"
        && flag == "--data-dir"
    {
        return cis::command::runner(Path::new(data_dir));
    }
    match cis::cli::Cli::try_parse() {
        Ok(cli) => cis::command::main(cli),
        Err(error) => cis::command::misused(&error),
    }
}
