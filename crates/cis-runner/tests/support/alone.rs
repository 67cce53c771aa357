//! The runner as a program of its own, for tests: `cis-runner-alone runner --data-dir DIR`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(data_dir) = std::env::args_os().nth(3).map(PathBuf::from) else {
        eprintln!("usage: cis-runner-alone runner --data-dir DIR");
        return ExitCode::FAILURE;
    };
    match cis_runner::serve::run(&data_dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cis runner: {error}");
            ExitCode::FAILURE
        }
    }
}
