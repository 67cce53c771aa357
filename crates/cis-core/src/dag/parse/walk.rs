//! Reads typed values out of a [`Tree`] and reports whatever does not fit. Everything that knows the schema
//! goes through here, so that a wrong type reads the same wherever it is found.

use std::collections::BTreeMap;

use serde_json::{Map, Number};

use super::duration;
use super::report::Report;
use super::template::Templates;
use super::tree::{Ix, Tree, Value};
use super::words::{Meaning, Words, nearest};
use crate::dag::model::Values;
use crate::dag::problem::{Problem, ProblemCode};
use crate::source::Millis;

/// Beyond this JSON numbers stop being exact.
const INTEGER_MAX: u64 = 1 << 53;

/// More keys than any level has.
const KEYS_MAX: usize = 32;

/// A file being understood.
pub(super) struct Walk<'t> {
    pub(super) tree: &'t Tree<'t>,
    pub(super) report: Report<'t>,
    pub(super) templates: Templates<'t>,
}

/// The values of a table, by what their keys mean.
pub(super) struct Fields {
    by_key: [Option<Ix>; KEYS_MAX],
    /// Was another tool's word for the list of tasks there?
    pub(super) foreign_tasks: bool,
}

impl Fields {
    pub(super) fn get(&self, key: u8) -> Option<Ix> {
        self.by_key.get(key as usize).copied().flatten()
    }
}

impl<'t> Walk<'t> {
    pub(super) fn new(tree: &'t Tree<'t>) -> Self {
        Self { tree, report: Report::new(tree.source()), templates: Templates::new() }
    }

    pub(super) fn problem(&mut self, code: ProblemCode, ix: Ix, problem: impl Into<String>) {
        self.report.value(self.tree, code, ix, problem);
    }

    pub(super) fn problem_hint(
        &mut self,
        code: ProblemCode,
        ix: Ix,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.report.value_hint(self.tree, code, ix, problem, hint);
    }

    /// Something wrong with the key of `ix`.
    pub(super) fn key_problem(&mut self, code: ProblemCode, ix: Ix, problem: String, hint: String) {
        self.report.key(self.tree, ix, Problem::new(code, "", problem).hint(hint));
    }

    /// `key` is absent from the table `ix`, which goes by `what`.
    pub(super) fn missing(&mut self, ix: Ix, key: &str, what: &str, hint: &str) {
        // The report puts the table's own path in front; the outermost one has none.
        let dot = if self.tree.parent(ix).is_some() { "." } else { "" };
        let problem =
            Problem::new(ProblemCode::MissingKey, format!("{dot}{key}"), format!("{what} needs `{key}`"));
        self.report.key(self.tree, ix, problem.hint(hint));
    }

    /// What a whole file may not hold, wherever it stands.
    pub(super) fn check_numbers_and_repeats(&mut self) {
        for ix in 0..u32::try_from(self.tree.len()).unwrap_or(u32::MAX) {
            let huge = match self.tree.value(ix) {
                Value::Int(int) => int.int().unsigned_abs() > INTEGER_MAX,
                Value::Huge => true,
                Value::Float(float) if !float.float().is_finite() => {
                    self.problem(ProblemCode::BadValue, ix, "not a finite number");
                    false
                }
                _ => false,
            };
            if huge {
                self.problem_hint(
                    ProblemCode::IntegerOutOfRange,
                    ix,
                    "an integer beyond ±2^53",
                    "write it as a string",
                );
            }
        }
        for ix in &self.tree.repeats {
            let problem = format!("`{}` is there already", self.tree.key(*ix));
            self.key_problem(ProblemCode::DuplicateKey, *ix, problem, "keep one of the two".to_owned());
        }
    }

    /// Sorts the values of the table `ix` by what `meanings` says of their keys, and reports the rest.
    pub(super) fn fields(&mut self, ix: Ix, words: &Words, meaning: impl Fn(Ix) -> Meaning) -> Fields {
        let mut fields = Fields { by_key: [None; KEYS_MAX], foreign_tasks: false };
        for child in self.tree.children(ix) {
            let key = self.tree.key(child);
            match meaning(child) {
                Meaning::Known(known) => {
                    let slot = &mut fields.by_key[known as usize];
                    if let Some(first) = *slot {
                        let problem = format!(
                            "`{}` and `{key}` are two spellings of one setting",
                            self.tree.key(first)
                        );
                        let hint =
                            format!("keep one of the two; `{}` is the usual one", words.spelling(known));
                        self.key_problem(ProblemCode::DuplicateKey, child, problem, hint);
                    } else {
                        *slot = Some(child);
                    }
                }
                Meaning::Later(hint) => {
                    let problem = format!("`{key}` is not supported yet");
                    self.key_problem(ProblemCode::NotYetSupported, child, problem, hint.to_owned());
                }
                Meaning::Foreign(hint) => self.unknown_key(child, hint.to_owned()),
                Meaning::ForeignTasks(hint) => {
                    fields.foreign_tasks = true;
                    self.unknown_key(child, hint.to_owned());
                }
                Meaning::Unknown if key == "<<" => {
                    self.unknown_key(
                        child,
                        "merge keys are not supported; write the settings out".to_owned(),
                    );
                }
                // Looking for the nearest word takes its time.
                Meaning::Unknown if self.report.is_full() => self.unknown_key(child, String::new()),
                Meaning::Unknown => self.unknown_key(child, words.hint(key)),
            }
        }
        fields
    }

    pub(super) fn unknown_key(&mut self, ix: Ix, hint: String) {
        let shown: String = self.tree.key(ix).chars().take(80).collect();
        self.key_problem(ProblemCode::UnknownKey, ix, format!("unknown key `{shown}`"), hint);
    }

    pub(super) fn wrong_type(&mut self, ix: Ix, wanted: &str) {
        let value = self.tree.value(ix);
        let problem = format!("expected {wanted}, found {}", value.word());
        match value {
            // Reported where numbers are checked.
            Value::Huge => {}
            Value::Float(float) if !float.float().is_finite() => {}
            Value::Int(int) if int.int().unsigned_abs() > INTEGER_MAX => {}
            Value::Null => {
                self.problem_hint(ProblemCode::WrongType, ix, problem, "give it a value or remove the key")
            }
            Value::Date if wanted.contains("string") => {
                self.problem_hint(ProblemCode::WrongType, ix, problem, "put it in quotes");
            }
            Value::Int(_) | Value::Float(_) | Value::Bool(_) if wanted.contains("string") => {
                self.problem_hint(ProblemCode::WrongType, ix, problem, "put it in quotes");
            }
            Value::Text(text) if wanted == "true or false" => {
                let hint = match self.tree.str(text) {
                    "yes" | "on" | "true" | "True" | "1" => "write true, without quotes",
                    _ => "write true or false, without quotes",
                };
                self.problem_hint(ProblemCode::WrongType, ix, problem, hint);
            }
            Value::Text(_) if wanted.contains("integer") => {
                self.problem_hint(ProblemCode::WrongType, ix, problem, "write it without quotes");
            }
            _ => self.problem(ProblemCode::WrongType, ix, problem),
        }
    }

    /// Is `ix` a table? If not, says so.
    pub(super) fn is_map(&mut self, ix: Ix) -> bool {
        let map = matches!(self.tree.value(ix), Value::Map(..));
        if !map {
            self.wrong_type(ix, "a table");
        }
        map
    }

    /// A string without NUL characters, which no process could be given.
    pub(super) fn text(&mut self, ix: Ix) -> Option<&'t str> {
        let Value::Text(text) = self.tree.value(ix) else {
            self.wrong_type(ix, "a string");
            return None;
        };
        let text = self.tree.str(text);
        if text.contains('\0') {
            self.problem(ProblemCode::BadValue, ix, "contains a NUL character");
            return None;
        }
        Some(text)
    }

    /// A string that says something.
    pub(super) fn some_text(&mut self, ix: Ix) -> Option<&'t str> {
        let text = self.text(ix)?;
        if text.trim().is_empty() {
            self.problem(ProblemCode::BadValue, ix, format!("`{}` is empty", self.tree.key(ix)));
            return None;
        }
        Some(text)
    }

    /// A string for people; an empty one says nothing.
    pub(super) fn remark(&mut self, ix: Option<Ix>) -> Option<String> {
        self.text(ix?).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    pub(super) fn boolean(&mut self, ix: Option<Ix>) -> bool {
        let Some(ix) = ix else { return false };
        match self.tree.value(ix) {
            Value::Bool(value) => value,
            _ => {
                self.wrong_type(ix, "true or false");
                false
            }
        }
    }

    /// A whole number within `from..=to`.
    pub(super) fn integer(&mut self, ix: Ix, from: i64, to: i64) -> Option<i64> {
        let number = match self.tree.value(ix) {
            Value::Int(int) if int.int().unsigned_abs() <= INTEGER_MAX => int.int(),
            _ => {
                self.wrong_type(ix, "an integer");
                return None;
            }
        };
        if !(from..=to).contains(&number) {
            self.problem(ProblemCode::BadValue, ix, format!("{number} is not within {from} to {to}"));
            return None;
        }
        Some(number)
    }

    pub(super) fn priority(&mut self, ix: Option<Ix>) -> i32 {
        let number = ix.and_then(|ix| self.integer(ix, i32::MIN.into(), i32::MAX.into()));
        number.and_then(|number| i32::try_from(number).ok()).unwrap_or(0)
    }

    /// One of `choices`.
    pub(super) fn word<T: Copy>(&mut self, ix: Option<Ix>, choices: &[(&'static str, T)]) -> Option<T> {
        let ix = ix?;
        let text = self.text(ix)?;
        if let Some((_, value)) = choices.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let hint = match nearest(text, choices.iter().map(|(word, _)| *word)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                let words: Vec<String> = choices.iter().map(|(word, _)| format!("`{word}`")).collect();
                format!("one of {}", words.join(", "))
            }
        };
        let shown: String = text.chars().take(80).collect();
        let key = self.tree.key(ix);
        self.problem_hint(ProblemCode::BadValue, ix, format!("`{shown}` is not a `{key}`"), hint);
        None
    }

    /// A span of time; `zero` says whether none at all makes sense.
    pub(super) fn duration(&mut self, ix: Option<Ix>, zero: bool) -> Option<Millis> {
        let ix = ix?;
        let seconds_only = self.tree.key(ix).ends_with("_secs");
        let span = match self.tree.value(ix) {
            Value::Text(text) if !seconds_only => duration::from_text(self.tree.str(text)),
            Value::Int(int) if int.int().unsigned_abs() <= INTEGER_MAX => {
                duration::from_seconds(int.int() as f64)
            }
            Value::Float(float) if float.float().is_finite() => duration::from_seconds(float.float()),
            _ if seconds_only => {
                self.wrong_type(ix, "a number of seconds");
                return None;
            }
            _ => {
                self.wrong_type(ix, "a duration such as \"90s\"");
                return None;
            }
        };
        match span {
            Ok(Millis(0)) if !zero => {
                self.problem(ProblemCode::BadDuration, ix, "a duration must be more than zero");
                None
            }
            Ok(span) => Some(span),
            Err(problem) => {
                let hint = "write \"90s\", \"10m\", \"1h30m\", \"250ms\", \"2d\", or a number of seconds";
                self.problem_hint(ProblemCode::BadDuration, ix, problem, hint);
                None
            }
        }
    }

    /// Environment variables. Numbers and truth values become the text that was written.
    pub(super) fn env(&mut self, ix: Option<Ix>) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        let Some(ix) = ix.filter(|ix| self.is_map(*ix)) else {
            return env;
        };
        for child in self.tree.children(ix) {
            let key = self.tree.key(child);
            if !is_env_name(key) {
                let problem = "not a name for an environment variable".to_owned();
                let hint = "use A-Z a-z 0-9 _, not starting with a digit".to_owned();
                self.key_problem(ProblemCode::BadName, child, problem, hint);
            } else if key.starts_with("CIS_") {
                let problem = "names starting with `CIS_` are set by CIS".to_owned();
                self.key_problem(ProblemCode::BadName, child, problem, "choose another name".to_owned());
            }
            let value = match self.tree.value(child) {
                Value::Text(_) => self.text(child).map(str::to_owned),
                Value::Bool(value) => Some(value.to_string()),
                Value::Int(int) => Some(self.as_written(child).unwrap_or_else(|| int.int().to_string())),
                Value::Float(float) => {
                    Some(self.as_written(child).unwrap_or_else(|| float.float().to_string()))
                }
                _ => {
                    self.wrong_type(child, "a string");
                    None
                }
            };
            env.insert(key.to_owned(), value.unwrap_or_default());
        }
        env
    }

    /// A number as it stands in the file, so that `1.10` stays `1.10` and `007` stays `007`; `None` where the
    /// format's own notation (`1_000`, `0x1F`) would surprise a program.
    fn as_written(&self, ix: Ix) -> Option<String> {
        let rest = self.tree.source().get(self.tree.at(ix)..)?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '-' | '.' | '_'));
        let written = &rest[..end.unwrap_or(rest.len())];
        let plain = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
        (!written.is_empty() && written.chars().all(plain)).then(|| written.to_owned())
    }

    /// A table of any values.
    pub(super) fn values(&mut self, ix: Option<Ix>) -> Values {
        let Some(ix) = ix.filter(|ix| self.is_map(*ix)) else {
            return Values::new();
        };
        self.tree.children(ix).map(|child| (self.tree.key(child).to_owned(), self.json(child))).collect()
    }

    /// Any value. Recursion is bounded by the tree's depth.
    pub(super) fn json(&mut self, ix: Ix) -> serde_json::Value {
        use serde_json::Value as Json;
        match self.tree.value(ix) {
            Value::Null | Value::Huge => Json::Null,
            Value::Bool(value) => Json::Bool(value),
            Value::Int(int) => Json::Number(int.int().into()),
            Value::Float(float) => number(float.float()).map_or(Json::Null, Json::Number),
            Value::Text(_) => self.text(ix).map_or(Json::Null, |text| Json::String(text.to_owned())),
            Value::Date => {
                self.problem_hint(
                    ProblemCode::WrongType,
                    ix,
                    "dates are not a type of their own here",
                    "put it in quotes",
                );
                Json::Null
            }
            Value::List(..) => Json::Array(self.tree.children(ix).map(|child| self.json(child)).collect()),
            Value::Map(..) => {
                let entries =
                    self.tree.children(ix).map(|child| (self.tree.key(child).to_owned(), self.json(child)));
                Json::Object(entries.collect::<Map<_, _>>())
            }
        }
    }
}

/// A whole number written as `2.0` is the integer 2: the content hash does not tell them apart either.
fn number(float: f64) -> Option<Number> {
    if float.fract() == 0.0 && float.abs() <= INTEGER_MAX as f64 {
        return Some((float as i64).into());
    }
    Number::from_f64(float)
}

fn is_env_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
