//! Errors, as a person reads them on stderr and as a program reads them on stdout.
//!
//! ```text
//! error[ValidationFailed]: `build.toml` has 2 problems
//!   line 12, column 3: tasks[3].depends_on[0]: unknown task `dmp`
//!     hint: did you mean `dump`?
//!   tasks[4].comand: unknown key `comand`
//! hint: `cis dag validate build.toml` checks a file without running it
//! ```

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anstyle::{AnsiColor, Style};
use cis_api::error::docs_path;
use cis_core::dag::Problem;
use cis_core::error::ErrorCode;
use serde_json::{Value, json};

use super::face::{BOLD, paint};
use super::text::count;
use super::visible::{escape_json, reveal};

const RED: Style = AnsiColor::Red.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();
const CYAN: Style = AnsiColor::Cyan.on_default().bold();

/// People read this many problems; the JSON has them all.
const PROBLEMS_SHOWN: usize = 50;

/// An error, ready to be told.
#[derive(Debug, Clone)]
pub struct Report {
    /// Stable, `UpperCamelCase`.
    pub code: String,
    pub message: String,
    /// What was wrong with a file, all of it.
    pub problems: Vec<Problem>,
    /// What led to it, outermost first.
    pub causes: Vec<String>,
    pub hints: Vec<String>,
    /// What a program may want to know; `problems` stand in for it when it is null.
    pub details: Value,
}

impl Report {
    /// An error with nothing but a code and a message.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            problems: Vec::new(),
            causes: Vec::new(),
            hints: Vec::new(),
            details: Value::Null,
        }
    }

    /// The error of a file that says something wrong.
    pub fn invalid(file: &str, problems: Vec<Problem>) -> Self {
        let message = format!("`{file}` has {}", count(problems.len(), "problem"));
        Self { problems, ..Self::new("ValidationFailed", message) }
    }

    /// The same with a remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The same with what a program may want to know.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    /// For people.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}{} {}",
            paint(RED, &format!("error[{}]", reveal(&self.code))),
            paint(BOLD, ":"),
            indented(&self.message)
        );
        for cause in &self.causes {
            let _ = writeln!(text, "  caused by: {}", reveal(cause));
        }
        for problem in self.problems.iter().take(PROBLEMS_SHOWN) {
            let _ = writeln!(text, "  {}", reveal(&problem.to_string()));
            if let Some(hint) = &problem.hint {
                let _ = writeln!(text, "    {} {}", paint(CYAN, "hint:"), reveal(hint));
            }
        }
        if let Some(more) = self.problems.len().checked_sub(PROBLEMS_SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(text, "  … and {} (`--json` lists them all)", count(more, "more problem"));
        }
        for hint in &self.hints {
            let _ = writeln!(text, "{} {}", paint(CYAN, "hint:"), reveal(hint));
        }
        text
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        let details = match (&self.details, self.problems.is_empty()) {
            (Value::Null, false) => json!(self.problems),
            (details, _) => details.clone(),
        };
        if !details.is_null() {
            error["details"] = details;
        }
        if !self.hints.is_empty() {
            error["hint"] = json!(self.hints.join("; "));
        }
        // What is wrong with a command line has no code of the API, and no page.
        if let Ok(code) = serde_json::from_value::<ErrorCode>(json!(self.code)) {
            error["docs"] = json!(docs_path(code));
        }
        json!({"success": false, "error": error})
    }

    /// Tells it: as JSON on stdout, or for people on stderr.
    pub fn print(&self, as_json: bool) -> io::Result<()> {
        if as_json {
            return writeln!(anstream::stdout().lock(), "{}", escape_json(&self.to_json().to_string()));
        }
        anstream::stderr().lock().write_all(self.render().as_bytes())
    }
}

/// A message of several lines: those after the first are set off, so that none passes for a line of another kind.
fn indented(message: &str) -> String {
    let lines: Vec<_> = message.lines().map(reveal).collect();
    lines.join("\n  ")
}

/// Says on stderr what someone should know although the command goes on.
pub fn warn(message: &str) {
    // A warning nobody can be told is no reason to stop.
    let _ = writeln!(anstream::stderr().lock(), "{} {}", paint(YELLOW, "warning:"), indented(message));
}

#[cfg(test)]
mod tests {
    use super::*;
    use cis_core::dag::ProblemCode;

    fn report() -> Report {
        let mut first =
            Problem::new(ProblemCode::UnknownDependency, "tasks[3].depends_on[0]", "unknown task `dmp`")
                .hint("did you mean `dump`?");
        first.line = Some(12);
        first.column = Some(3);
        let second = Problem::new(ProblemCode::UnknownKey, "tasks[4].x\u{1b}[2J", "unknown key");
        Report::invalid("build.toml", vec![first, second]).hint("look again")
    }

    #[test]
    fn people_get_every_problem_with_its_place_and_remedy() {
        assert_eq!(
            anstream::adapter::strip_str(&report().render()).to_string(),
            "error[ValidationFailed]: `build.toml` has 2 problems\n  \
             line 12, column 3: tasks[3].depends_on[0]: unknown task `dmp`\n    \
             hint: did you mean `dump`?\n  \
             tasks[4].x\\u{1b}[2J: unknown key\n\
             hint: look again\n"
        );
    }

    #[test]
    fn programs_get_the_same_as_json() {
        let told = report().to_json();
        assert_eq!(told["success"], false);
        assert_eq!(told["error"]["code"], "ValidationFailed");
        assert_eq!(told["error"]["details"][0]["path"], "tasks[3].depends_on[0]");
        assert_eq!(told["error"]["hint"], "look again");
        assert_eq!(told["error"]["docs"], "/docs/errors/ValidationFailed");
        assert!(Report::new("Usage", "no such flag").to_json()["error"]["docs"].is_null());
        let bare = Report::new("NotFound", "no such run").to_json();
        assert_eq!(
            bare.to_string(),
            r#"{"error":{"code":"NotFound","docs":"/docs/errors/NotFound","message":"no such run"},"success":false}"#
        );
    }

    #[test]
    fn a_flood_of_problems_is_cut_for_people_only() {
        let many = vec![Problem::new(ProblemCode::UnknownKey, "x", "unknown key"); 60];
        let report = Report::invalid("f", many);
        assert!(report.render().contains("… and 10 more problems"));
        assert_eq!(report.to_json()["error"]["details"].as_array().map(Vec::len), Some(60));
    }
}
