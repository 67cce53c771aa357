//! The settings under `[notify]`: whom a node tells of what, without being asked.

use std::fmt;
use std::path::PathBuf;

use cis_core::dag::{Problem, ProblemCode};
use cis_core::notice::Occasion;
use cis_notify::webhook::Url;

use super::value::Reader;
use super::{Setting, Source};

/// What is told if nothing else is said: what needs a person.
const USUAL: [Occasion; 2] = [Occasion::Waiting, Occasion::Failed];

/// Whom to tell of what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notify {
    pub on: Setting<Vec<Occasion>>,
    /// Run by the shell.
    pub command: Setting<Option<String>>,
    pub url: Setting<Option<Url>>,
    /// What messages to `url` are signed with, or the file that holds it.
    pub secret: Setting<Option<Secret>>,
    pub secret_file: Setting<Option<PathBuf>>,
    /// May `url` lead into this machine's own network?
    pub allow_private: Setting<bool>,
}

/// Something that is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Notify {
    pub(super) fn read(values: &mut Reader<'_>) -> Self {
        let secret = values.text("notify.secret");
        let this = Self {
            on: values.occasions("notify.on", &USUAL),
            command: values.text("notify.command"),
            url: values.url("notify.url"),
            secret: Setting { value: secret.value.map(Secret), source: secret.source },
            secret_file: values.path("notify.secret_file"),
            allow_private: values.truth("notify.allow_private"),
        };
        values.problems.extend(this.problem());
        this
    }

    /// What does not go together.
    fn problem(&self) -> Option<Problem> {
        let given = (self.url.value.is_some(), self.secret.value.is_some(), self.secret_file.value.is_some());
        let (key, at, told) = match given {
            (true, false, false) => ("notify.url", &self.url.source, "a webhook needs a secret to sign with"),
            (_, true, true) => ("notify.secret", &self.secret.source, "there is a `secret_file` as well"),
            _ => return None,
        };
        let line = if let Source::File { line, .. } = at { Some(*line) } else { None };
        let problem = Problem::new(ProblemCode::BadValue, key, told);
        Some(Problem {
            line,
            ..problem.hint("set `secret_file` to a file that holds at least 16 random bytes")
        })
    }
}
