//! `cargo xtask …`: the command line of the chores in the library beside it.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{api, bench, docs, fuzz, mutants, suite, tidy, torture};

/// Tests, benches and chores of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Check everything: format, lints, build, tests, licences, and the repository's own rules
    Test,
    /// Check the rules about the repository itself that no compiler knows
    Tidy,
    /// Call a node as its OpenAPI document says, thousands of times; it must have been built
    Api,
    /// Write the parts of `docs/` that are generated from code
    Docs {
        /// Only say whether they are up to date
        #[arg(long)]
        check: bool,
    },
    /// Measure beside ninja and make, and write `docs/benchmarks.md`
    Bench(bench::Options),
    /// Feed every parser a million inputs
    Fuzz(fuzz::Options),
    /// Change the rules one by one, and see whether the tests notice
    Mutants(mutants::Options),
    /// Break CIS on purpose, for as long as you like, and check that it holds
    Torture(torture::Options),
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Test => suite::test(),
        Chore::Tidy => tidy::check(),
        Chore::Api => api::check(),
        Chore::Docs { check } => docs::generate(check),
        Chore::Bench(options) => bench::start(&options),
        Chore::Fuzz(options) => fuzz::start(&options),
        Chore::Mutants(options) => mutants::start(&options),
        Chore::Torture(options) => torture::start(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem:#}");
            ExitCode::FAILURE
        }
    }
}
