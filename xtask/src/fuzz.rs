//! The long dose for the parsers: the same targets as in the test command, with as many inputs as asked for, in a build
//! that is fast and still panics where a sum overflows.

use anyhow::{Result, bail};
use clap::Args;

use crate::clock::Stopwatch;
use crate::run::{cargo, output, run_watched};

/// Where targets are: beside the library that makes inputs, and among the tests of those who keep a parser to themselves.
const BESIDE: [&str; 2] = ["-p", "cis-fuzz"];
const AMONG: [&str; 7] = ["-p", "cis-runner", "-p", "cis-engine", "-p", "cis-server", "--lib"];

/// How many, and which.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Inputs for each parser
    #[arg(long, default_value_t = 1_000_000)]
    pub inputs: u64,
    /// Only the targets with this in their names
    #[arg(long, default_value = "")]
    pub only: String,
}

/// What became of one target.
#[derive(Debug, PartialEq, Eq)]
struct Fed {
    target: String,
    inputs: u64,
    taken: u64,
}

/// Feeds every parser, and tells what came of it as a table for `docs/reliability.md`.
pub fn start(options: &Options) -> Result<()> {
    let watch = Stopwatch::start();
    let (mut fed, mut failed) = (Vec::new(), false);
    for place in [&BESIDE[..], &AMONG] {
        let mut test = cargo(&["test", "--profile", "fuzz", "--locked", "--no-fail-fast"])?;
        test.args(place).arg(format!("fuzz_{}", options.only)).args(["--", "--nocapture"]);
        test.env("BOLERO_RANDOM_ITERATIONS", options.inputs.to_string());
        failed |= run_watched(&mut test, |line| fed.extend(Fed::read(line))).is_err();
    }
    let commit = output(std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]))?;
    println!(
        "\ncommit {commit}, {:.0} s\n\n| parser | inputs | of these taken |\n|---|---:|---:|",
        watch.seconds()
    );
    fed.sort_by(|a, b| a.target.cmp(&b.target));
    for Fed { target, inputs, taken } in &fed {
        println!("| {target} | {inputs} | {taken} |");
    }
    if failed {
        bail!(
            "a parser tripped: the input and its seed are above; keep the input in `crates/cis-fuzz/corpus`"
        );
    }
    Ok(())
}

impl Fed {
    /// Of a line such as `fuzz journal: 2003 inputs, 1204 taken`.
    fn read(line: &str) -> Option<Self> {
        let (target, rest) = line.strip_prefix("fuzz ")?.split_once(": ")?;
        let (inputs, taken) = rest.split_once(" inputs, ")?;
        let taken = taken.strip_suffix(" taken")?.parse().ok()?;
        Some(Self { target: target.to_owned(), inputs: inputs.parse().ok()?, taken })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_targets_say() {
        let fed = Fed { target: "journal".to_owned(), inputs: 2003, taken: 1204 };
        assert_eq!(Fed::read("fuzz journal: 2003 inputs, 1204 taken"), Some(fed));
        assert_eq!(Fed::read("test fuzz_journals ... ok"), None);
    }
}
