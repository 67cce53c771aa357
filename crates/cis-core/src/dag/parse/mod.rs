//! From text to a [`Dag`], or to everything that is wrong with it.
//!
//! ```text
//!  TOML ─► toml ─┐
//!  JSON ─► json ─┼─► tree ─► file, task, …, graph ─► Dag
//!  YAML ─► yaml ─┘   (what was written, where)    └────► problems, with place and remedy
//! ```
//!
//! The readers stop at the first thing that is not their format; everything after them goes on to the end, so
//! that one run shows all there is to fix. No input makes any of it panic, recurse without bound, or take more
//! than a few times the file's size in memory.

mod approval;
pub mod duration;
mod file;
mod format;
mod graph;
mod json;
mod report;
mod retry;
mod task;
mod template;
mod toml;
mod tree;
mod walk;
pub(crate) mod words;
mod yaml;

pub use file::TASKS_MAX;
pub use format::Format;
pub use graph::EDGES_MAX;

use super::model::Dag;
use super::problem::{Problem, ProblemCode};
use crate::id::Scope;
use report::Report;
use tree::Fault;
use walk::Walk;

/// Largest file.
pub const FILE_MAX: usize = 32 * 1024 * 1024;

/// What holds where a file does not say.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// The stem of the file's name.
    pub dag_id: Option<String>,
    pub scope: Option<Scope>,
}

/// A definition without problems.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    pub dag: Dag,
    /// What stops nobody but may not be meant.
    pub warnings: Vec<Problem>,
    /// Did the file name its scope itself?
    pub explicit_scope: bool,
}

/// Reads a definition. The error holds every problem that can be told at once.
pub fn parse(text: &[u8], format: Format, defaults: &Defaults) -> Result<Parsed, Vec<Problem>> {
    if text.len() > FILE_MAX {
        let problem = format!("{} bytes, more than {FILE_MAX}", text.len());
        let problem = Problem::new(ProblemCode::FileTooLarge, "", problem);
        return Err(vec![problem.hint("a definition is at most 32 MiB; split it into several DAGs")]);
    }
    let text = match std::str::from_utf8(text) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(error) => return Err(not_utf8(text, error.valid_up_to())),
    };
    // TOML leaves it to its reader what ends a line within a text. A command means the same whatever wrote the file; YAML
    // says so, and a shell trips over anything else.
    let lines = (format == Format::Toml && text.contains('\r')).then(|| text.replace("\r\n", "\n"));
    let text = lines.as_deref().unwrap_or(text);
    let read = match format {
        Format::Toml => toml::read(text),
        Format::Json => json::read(text),
        Format::Yaml => yaml::read(text),
    };
    let tree = match read {
        Ok(tree) => tree,
        Err(fault) => return Err(stopped(text, format, fault)),
    };
    let mut walk = Walk::new(&tree);
    let parsed = walk.file(defaults);
    let clean = walk.report.is_clean();
    let (problems, warnings) = walk.report.finish();
    match parsed {
        Some(parsed) if clean => Ok(Parsed { warnings, ..parsed }),
        _ => Err(problems),
    }
}

fn not_utf8(text: &[u8], at: usize) -> Vec<Problem> {
    let before = String::from_utf8_lossy(&text[..at]);
    let mut report = Report::new(&before);
    let hint = "save the file as UTF-8";
    report.fault(Fault::syntax(before.len(), format!("not UTF-8 at byte {at}")).hint(hint));
    report.finish().0
}

fn stopped(text: &str, format: Format, mut fault: Fault) -> Vec<Problem> {
    let mut report = Report::new(text);
    if fault.code == ProblemCode::Syntax {
        fault.problem = format!("not {}: {}", format.word(), fault.problem);
        if fault.hint.is_none() {
            let guess = Format::guess(text.as_bytes());
            fault.hint = (guess != format).then(|| format!("this looks like {}", guess.word()));
        }
    }
    report.fault(fault);
    report.finish().0
}
