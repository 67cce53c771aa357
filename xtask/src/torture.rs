//! Builds and starts what breaks CIS on purpose: a program of its own (`crates/cis-torture`), on the program that users get.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::repo;
use crate::run::{cargo, run};

/// How long, from where, and what.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Minutes for all machines together
    #[arg(long, default_value_t = 10)]
    pub minutes: u64,
    /// Where all randomness comes from; else one is made up and printed
    #[arg(long)]
    pub seed: Option<u64>,
    /// Only these machines
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
}

/// Builds `cis` and the machines, and runs them.
pub fn start(options: &Options) -> Result<()> {
    // With points at which it can be told to die, which the program that users get has not.
    let failpoints = ["--features", "cis/failpoints"];
    let both = ["-p", "cis", "-p", "cis-torture"];
    run(cargo(&["build", "--release", "--locked"])?.args(both).args(failpoints))?;
    let mut torture = Command::new(repo::target()?.join("release").join("cis-torture"));
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
    torture.args(["--minutes", &options.minutes.to_string(), "--seed", &seed.to_string()]);
    for machine in &options.only {
        torture.args(["--only", machine]);
    }
    run(&mut torture)
}
