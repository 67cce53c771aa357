//! Builds and starts the benchmark. It is a program of its own (`src/bin/cis-bench/`), built with the optimisations that
//! users get: it calls the store in-process, and a debug build would measure something nobody uses.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;

use crate::run::{cargo, run};
use crate::{repo, tool};

/// How to measure.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Interleaved pairs per workload
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub pairs: u32,
    /// Only these workloads, such as `W1,W2`; prints, and writes nothing
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Small sizes and one pair, to see that it works; prints, and writes nothing
    #[arg(long)]
    pub smoke: bool,
    /// Compare with another `cis`, such as the one before a change, instead of with other tools; prints, and writes nothing.
    /// It takes `--pairs 31` to tell a few percent
    #[arg(long, value_name = "PROGRAM")]
    pub against: Option<PathBuf>,
}

/// Builds `cis` and the benchmark, and runs it.
pub fn start(options: &Options) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("the benchmark reads `/proc`: run it on Linux");
    }
    tool::program("ninja", "ninja-build")?;
    tool::program("make", "make")?;
    let both =
        ["-p", "cis", "-p", "xtask", "--bin", "cis", "--bin", "cis-bench", "--features", "xtask/bench"];
    run(cargo(&["build", "--release", "--locked"])?.args(both))?;
    let programs = repo::target()?.join("release");
    let mut bench = Command::new(programs.join("cis-bench"));
    bench.arg("--cis").arg(programs.join("cis")).arg("--root").arg(repo::root());
    bench.arg("--cache").arg(repo::cache()?.join("bench"));
    bench.args(["--pairs", &options.pairs.to_string()]);
    bench.args(options.smoke.then_some("--smoke"));
    if let Some(program) = &options.against {
        bench.arg("--against").arg(program);
    }
    for workload in &options.only {
        bench.args(["--only", workload]);
    }
    run(&mut bench)
}
