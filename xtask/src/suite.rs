//! `cargo xtask test`: everything that must hold before a change is merged, in one command.
//!
//! Each check runs whatever became of the ones before it, so that one run tells all there is to fix.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::clock::Stopwatch;
use crate::run::{cargo, run, run_watched};
use crate::{api, docs, repo, tidy, tool};

/// What a check found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

/// One check, done.
struct Done {
    name: &'static str,
    count: Count,
    took: Duration,
}

/// Runs every check.
pub fn test() -> Result<()> {
    let whole = Stopwatch::start();
    let done = [
        check("tools", tools),
        check("format", || run(&mut cargo(&["fmt", "--all", "--check"])?)),
        check("tidy", tidy::check),
        check("docs", || docs::generate(true)),
        check("clippy", clippy),
        check("as released", || run(&mut cargo(&["check", "--package", "cis", "--locked"])?)),
        // With what the tests need: they start programs of other crates. The tests along with it, so that nothing is
        // built twice.
        check("build", build),
        timed("tests", tests),
        check("API as described", api::check),
        check("licences, bans, sources", deny),
    ];
    summary(&done, whole.elapsed())
}

fn tools() -> Result<()> {
    tool::component("rustfmt", "fmt")?;
    tool::component("clippy", "clippy")
}

fn clippy() -> Result<()> {
    // All features, or the benchmark would not be looked at.
    let arguments =
        ["clippy", "--workspace", "--all-targets", "--all-features", "--locked", "--", "-D", "warnings"];
    run(&mut cargo(&arguments)?)
}

fn build() -> Result<()> {
    run(&mut cargo(&["build", "--workspace", "--all-targets", "--all-features", "--locked"])?)
}

/// Not its advisories: those need a database from the network, and would fail a change for what is not in it.
fn deny() -> Result<()> {
    let program = tool::cargo_deny()?;
    let arguments = ["deny", "--all-features", "--locked", "check", "licenses", "bans", "sources"];
    run(Command::new(program).args(arguments).current_dir(repo::root()))
}

fn tests() -> (Count, Result<()>) {
    let mut count = Count::default();
    let result = cargo(&["test", "--workspace", "--all-features", "--locked", "--no-fail-fast"])
        .and_then(|mut command| run_watched(&mut command, |line| count.add_line(line)));
    // A test program that dies says nothing of how many failed.
    if result.is_err() && count.failed == 0 {
        count.failed = 1;
    }
    (count, result)
}

fn check(name: &'static str, work: impl FnOnce() -> Result<()>) -> Done {
    timed(name, || match work() {
        Ok(()) => (Count { passed: 1, failed: 0 }, Ok(())),
        Err(problem) => (Count { passed: 0, failed: 1 }, Err(problem)),
    })
}

fn timed(name: &'static str, work: impl FnOnce() -> (Count, Result<()>)) -> Done {
    println!("── {name}");
    let watch = Stopwatch::start();
    let (count, result) = work();
    let done = Done { name, count, took: watch.elapsed() };
    match result {
        Ok(()) => println!("   {name}: ok, {:.1} s", done.took.as_secs_f64()),
        Err(problem) => println!("   {name}: FAILED, {:.1} s\n{problem:#}", done.took.as_secs_f64()),
    }
    done
}

fn summary(all: &[Done], took: Duration) -> Result<()> {
    println!("\n── summary");
    let mut total = Count::default();
    for Done { name, count, took } in all {
        let word = if count.failed == 0 { "ok" } else { "FAILED" };
        println!("   {word:<6}  {:>7.1} s  {name}", took.as_secs_f64());
        total.passed += count.passed;
        total.failed += count.failed;
    }
    println!("   all of it took {:.1} s", took.as_secs_f64());
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 {
        let failed: Vec<&str> =
            all.iter().filter(|done| done.count.failed > 0).map(|done| done.name).collect();
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

impl Count {
    /// Adds what a line such as `test result: ok. 12 passed; 0 failed; 0 ignored; …` says.
    fn add_line(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else { return };
        let number = |word: &str| {
            let before = result.split_once(word).map_or("", |(before, _)| before.trim_end());
            before.rsplit(' ').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
        };
        self.passed += number("passed;");
        self.failed += number("failed;");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_the_test_programs_say() {
        let mut count = Count::default();
        for line in [
            "running 3 tests",
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ] {
            count.add_line(line);
        }
        assert_eq!(count, Count { passed: 13, failed: 2 });
    }
}
