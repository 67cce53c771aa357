//! Mutation testing of what must never be wrong: the transition tables, the decision about another try, and the guards of
//! claims and leases. What no test notices is told; each that stays has its reason in `docs/reliability.md`.
//!
//! | module | what lives there |
//! |---|---|
//! | `text` | moves in the tables and guards in SQL, which `cargo-mutants` does not know |
//!
//! Everything happens in a copy of the checkout, outside it.

mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::run::{cargo, output, run, works};
use crate::{repo, tool};

/// Of a hundred mutants, as many are caught at least.
const CAUGHT_MIN: usize = 90;

/// A test that takes longer than this goes round in circles, which is noticed too.
const TIMEOUT_S: &str = "600";

/// The tests that must notice, the quickest first: whatever one of them notices, the next is not asked about.
const CORE_TESTS: [&str; 3] = ["--lib", "--test", "tables"];
const STORE_TESTS: [&str; 8] =
    ["--test", "attempt", "--test", "guards", "--test", "conformance", "--test", "model"];

/// What is changed in Rust.
const RUST: [Subject; 2] = [
    Subject {
        package: "cis-core",
        files: &["revision.rs", "run.rs", "task.rs", "retry.rs"],
        // How things are called and shown is no rule.
        except: "fmt|markdown|word|table",
        tests: &CORE_TESTS,
    },
    Subject {
        package: "cis-store",
        files: &["sqlite/claim.rs", "sqlite/leases.rs", "sqlite/advance.rs"],
        // What is written and told beside the guard and the decision.
        except: "in (advance|record|write|note|note_progress|next_due)$|Reader::(progress|offers)|event_data|non_empty|cause|uses_templates",
        tests: &STORE_TESTS,
    },
];

/// It takes our name for an answer for a type that could be made from nothing, which never compiles.
const NO_RUST: &str = "with (Answer::|rusqlite::Result|.*Default::default)";

/// A part of the code, and who watches over it.
struct Subject {
    package: &'static str,
    /// Below its `src`.
    files: &'static [&'static str],
    /// Mutants that are left alone, as a regular expression.
    except: &'static str,
    tests: &'static [&'static str],
}

/// Which of them.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Only moves in the tables and guards in SQL
    #[arg(long)]
    pub text: bool,
}

/// How many there were, and those nobody noticed.
#[derive(Debug, Default)]
struct Finding {
    caught: usize,
    survivors: Vec<String>,
}

/// Changes one thing after the other, and tells what no test noticed.
pub fn start(options: &Options) -> Result<()> {
    let scratch = copy()?;
    let mut finding = Finding::default();
    if !options.text {
        let program = tool::cargo_mutants()?;
        for subject in &RUST {
            finding.add(subject.mutate(&program, &scratch)?);
        }
    }
    finding.add(in_text(&scratch)?);
    let Finding { caught, survivors } = &finding;
    let all = caught + survivors.len();
    println!("\n{all} mutants, {caught} caught; not noticed:");
    survivors.iter().for_each(|survivor| println!("- {survivor}"));
    if caught * 100 < all * CAUGHT_MIN {
        bail!("fewer than {CAUGHT_MIN} % were caught: the tests do not hold the rules");
    }
    Ok(())
}

/// The files of the checkout as they stand, in the cache.
fn copy() -> Result<PathBuf> {
    let (root, scratch) = (repo::root(), repo::cache()?.join("mutants"));
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    let names = output(Command::new("git").args(["ls-files", "--cached"]).current_dir(&root))?;
    for name in names.lines() {
        let (from, to) = (root.join(name), scratch.join(name));
        to.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy `{name}`"))?;
    }
    Ok(scratch)
}

impl Subject {
    fn mutate(&self, program: &Path, scratch: &Path) -> Result<Finding> {
        let out = scratch.with_extension(self.package);
        let mut command = Command::new(program);
        command.args(["mutants", "--in-place", "--no-shuffle", "--baseline", "skip", "--timeout", TIMEOUT_S]);
        command.args(["--package", self.package, "--exclude-re", self.except, "--exclude-re", NO_RUST]);
        command.arg("--output").arg(&out);
        for file in self.files {
            command.args(["--file", &format!("crates/{}/src/{file}", self.package)]);
        }
        command.arg("--").args(self.tests).current_dir(scratch).env("CARGO_TARGET_DIR", repo::target()?);
        // It fails where something survived; what that is stands in its files.
        let _ = run(&mut command);
        Finding::read(&out.join("mutants.out"))
    }
}

/// Changes what stands in text, one place after the other.
fn in_text(scratch: &Path) -> Result<Finding> {
    let mut finding = Finding::default();
    for mutant in text::all(|file| Ok(fs::read_to_string(scratch.join(file))?))? {
        let file = scratch.join(&mutant.file);
        let text = fs::read_to_string(&file)?;
        fs::write(&file, mutant.apply(&text)?)?;
        let mut tests = cargo(&["test", "--quiet", "--locked", "--package", mutant.package])?;
        let those: &[&str] = if mutant.package == "cis-core" { &CORE_TESTS } else { &STORE_TESTS };
        let survives = works(tests.args(those).current_dir(scratch));
        fs::write(&file, text)?;
        println!("{} {mutant}", if survives { "MISSED" } else { "caught" });
        match survives {
            true => finding.survivors.push(mutant.to_string()),
            false => finding.caught += 1,
        }
    }
    Ok(finding)
}

impl Finding {
    /// What `cargo-mutants` left: a line for each.
    fn read(dir: &Path) -> Result<Self> {
        let lines = |name: &str| -> Result<Vec<String>> {
            let text = fs::read_to_string(dir.join(name)).with_context(|| format!("no `{name}`"))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        Ok(Self {
            caught: lines("caught.txt")?.len() + lines("timeout.txt")?.len(),
            survivors: lines("missed.txt")?,
        })
    }

    fn add(&mut self, more: Self) {
        self.caught += more.caught;
        self.survivors.extend(more.survivors);
    }
}
