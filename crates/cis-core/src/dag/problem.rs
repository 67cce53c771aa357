//! What can be wrong with a definition: all of it at once, each with its place and a remedy.

use std::fmt;

use serde::Serialize;

/// One thing wrong with a definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub code: ProblemCode,
    /// Where, as `tasks[3].depends_on[0]`; empty for the whole file.
    pub path: String,
    /// From 1, where the format gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    pub problem: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Stable names for what can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ProblemCode {
    /// Not TOML, JSON or YAML at all.
    Syntax,
    /// A key that means nothing here.
    UnknownKey,
    /// The same key twice, or two spellings of one setting.
    DuplicateKey,
    /// A required key is absent.
    MissingKey,
    /// A string where a number belongs, and so on.
    WrongType,
    /// Right type, value outside what is allowed.
    BadValue,
    /// A name outside the alphabet.
    BadName,
    BadDuration,
    BadCron,
    BadTemplate,
    /// Beyond ±2^53, where JSON numbers stop being exact.
    IntegerOutOfRange,
    DuplicateId,
    UnknownDependency,
    SelfDependency,
    Cycle,
    EmptyDag,
    TooManyTasks,
    TooManyEdges,
    FileTooLarge,
    /// Nested deeper than anyone means.
    TooDeep,
    /// More lists, objects and values than a body may have.
    TooManyValues,
    SkillNotFound,
    /// Designed, not built yet.
    NotYetSupported,
}

impl Problem {
    /// A problem at `path`.
    pub fn new(code: ProblemCode, path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { code, path: path.into(), line: None, column: None, problem: problem.into(), hint: None }
    }

    /// The same with a remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Problem {
    /// `line 12, column 3: tasks[3].depends_on[0]: unknown task `dmp``
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (Some(line), Some(column)) => write!(f, "line {line}, column {column}: ")?,
            (Some(line), None) => write!(f, "line {line}: ")?,
            _ => {}
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.problem)
    }
}
