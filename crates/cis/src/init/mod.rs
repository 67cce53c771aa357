//! `cis init`: marks a directory as a project and writes a first DAG from what the directory holds.
//!
//! | module | what lives there |
//! |---|---|
//! | `detect` | what each build tool's files say there is to do |
//! | `write` | the DAG file, with comments for whoever edits it next |
//!
//! A Makefile that names the usual steps speaks for the whole project; without one, every tool found speaks for
//! itself.

mod detect;
mod write;

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::project::{self, MARK};
use crate::term::Report;
use crate::term::face::{BOLD, DIM, Tone, paint};
use crate::term::text::count;

/// The file that is written.
pub const FILE: &str = "dag.toml";

const MARK_README: &str = "\
This directory marks a CIS project: DAGs below it share one scope.

Skills of the project go into `skills/NAME/SKILL.md`.
";

/// A step of a project's work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub id: String,
    pub command: String,
    pub after: Vec<String>,
}

/// What one file had to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// `Makefile`.
    pub file: &'static str,
    pub steps: Vec<Step>,
}

/// What was done.
#[derive(Debug)]
pub struct Outcome {
    /// The DAG written.
    pub file: PathBuf,
    pub dag_id: String,
    /// Empty if an example was written.
    pub found: Vec<Found>,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("`{}` exists already", .0.display())]
    Exists(PathBuf),
    #[error("cannot write `{}`: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Makes `dir` a project with a first DAG. `has` tells whether a program is installed: a step that cannot run
/// here is left out.
pub fn init(dir: &Path, force: bool, has: impl Fn(&str) -> bool) -> Result<Outcome, InitError> {
    let found = detect::detect(dir, &has);
    let dag_id =
        dir.canonicalize().ok().and_then(|dir| project::name(&dir)).unwrap_or_else(|| "first".to_owned());
    let text = if found.is_empty() { write::example(&dag_id) } else { write::steps(&dag_id, &found) };
    let file = dir.join(FILE);
    put(&file, &text, force)?;
    mark(&dir.join(MARK))?;
    Ok(Outcome { file, dag_id, found })
}

/// Is `program` on the search path of this process?
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn put(file: &Path, text: &str, force: bool) -> Result<(), InitError> {
    let fail = |error| InitError::Io { path: file.to_owned(), error };
    if force {
        return fs::write(file, text).map_err(fail);
    }
    // Asking first and writing then would leave a moment in which someone else's file could be lost.
    let mut new = File::create_new(file).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => InitError::Exists(file.to_owned()),
        _ => fail(error),
    })?;
    new.write_all(text.as_bytes()).map_err(fail)
}

/// Git keeps no empty directories, so the mark holds a file that says what it is.
fn mark(dir: &Path) -> Result<(), InitError> {
    let fail = |error| InitError::Io { path: dir.to_owned(), error };
    fs::create_dir_all(dir.join("skills")).map_err(fail)?;
    match File::create_new(dir.join("README.md")) {
        Ok(mut file) => file.write_all(MARK_README.as_bytes()).map_err(fail),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(fail(error)),
    }
}

impl Outcome {
    /// For people.
    pub fn render(&self) -> String {
        let mut lines = Vec::new();
        for found in &self.found {
            let ids: Vec<&str> = found.steps.iter().map(|step| step.id.as_str()).collect();
            lines.push(format!("Found {}: {}", paint(BOLD, found.file), ids.join(", ")));
        }
        if self.found.is_empty() {
            lines.push("Found nothing to build or test, so the DAG is an example to edit".to_owned());
        }
        let steps: usize = self.found.iter().map(|found| found.steps.len()).sum();
        let what = if steps > 0 { format!(" with {}", count(steps, "task")) } else { String::new() };
        let tick = paint(Tone::Good.style(), "✓");
        lines.push(format!("{tick} Wrote `{FILE}`{what}, and `{MARK}/` which makes this a project"));
        lines.push(String::new());
        lines.push(format!("{} {}", paint(DIM, "Next:"), paint(BOLD, &format!("cis run {FILE}"))));
        lines.join("\n") + "\n"
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let found: Vec<Value> = self
            .found
            .iter()
            .map(|found| {
                let ids: Vec<&str> = found.steps.iter().map(|step| step.id.as_str()).collect();
                json!({"file": found.file, "tasks": ids})
            })
            .collect();
        json!({
            "success": true,
            "file": self.file.to_string_lossy(),
            "dag_id": self.dag_id,
            "found": found,
            "next": format!("cis run {FILE}"),
        })
    }
}

impl InitError {
    /// The error as it is told.
    pub fn report(&self) -> Report {
        match self {
            Self::Exists(_) => Report::new("AlreadyExists", self.to_string())
                .hint("`cis init --force` writes it anew; `cis run dag.toml` runs it as it is"),
            Self::Io { .. } => Report::new("Io", self.to_string()),
        }
    }
}
