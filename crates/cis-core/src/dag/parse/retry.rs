//! `retry` and `level`: the two places where a task says how often it may be tried again. A level may also ask for a
//! person first.

use super::tree::{Ix, Value};
use super::walk::Walk;
use super::words::{RETRY, RetryKey};
use crate::dag::problem::ProblemCode;
use crate::retry::{Backoff, Retry};
use crate::source::Millis;

/// Most tries after the first.
const RETRY_MAX: i64 = 1_000;

const BACKOFF: [(&str, Backoff); 2] = [("fixed", Backoff::Fixed), ("exponential", Backoff::Exponential)];

/// What a `level` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// It runs by itself; perhaps it also names the tries after the first.
    Mechanical { tries: Option<u32> },
    /// A person must approve before it starts.
    Confirmed,
}

impl Walk<'_> {
    /// What `retry` and `level` say together. No tries at all is the same as not saying anything.
    pub(super) fn retries(&mut self, retry: Option<Ix>, level: Option<Level>) -> Option<Retry> {
        let found = match (retry, level) {
            (Some(ix), Some(Level::Mechanical { tries: Some(_) })) => {
                let problem = "`level.retry` says this already".to_owned();
                self.key_problem(ProblemCode::DuplicateKey, ix, problem, "keep one of the two".to_owned());
                None
            }
            (Some(ix), _) => self.retry(ix),
            (None, Some(Level::Mechanical { tries: Some(max) })) => Some(Retry { max, ..Retry::default() }),
            (None, _) => None,
        };
        found.filter(|retry| retry.max > 0)
    }

    /// `retry = 3` or `retry = { max = 3, … }`.
    fn retry(&mut self, ix: Ix) -> Option<Retry> {
        if let Value::Int(_) = self.tree.value(ix) {
            let max = self.tries(ix)?;
            return Some(Retry { max, ..Retry::default() });
        }
        if !matches!(self.tree.value(ix), Value::Map(..)) {
            self.wrong_type(ix, "an integer or a table");
            return None;
        }
        let tree = self.tree;
        let fields = self.fields(ix, &RETRY, |child| RETRY.meaning(tree.key(child)));
        let get = |key: RetryKey| fields.get(key as u8);
        let defaults = Retry::default();
        let max = match get(RetryKey::Max) {
            Some(max) => self.tries(max),
            None => {
                self.missing(ix, "max", "a retry", "how many tries after the first");
                None
            }
        };
        let backoff = self.word(get(RetryKey::Backoff), &BACKOFF).unwrap_or_default();
        let initial = self.duration(get(RetryKey::Initial), true).unwrap_or(defaults.initial);
        let cap = self.duration(get(RetryKey::Cap), true);
        if let (Some(cap), Some(at)) = (cap, get(RetryKey::Cap))
            && cap < initial
        {
            self.problem(ProblemCode::BadValue, at, "`cap` is shorter than `initial`");
        }
        // A first wait beyond the usual cap is meant as written.
        let cap = cap.unwrap_or(Millis(defaults.cap.0.max(initial.0)));
        let jitter = get(RetryKey::Jitter).is_none_or(|ix| self.boolean(Some(ix)));
        let on_exit_codes = self.exit_codes(get(RetryKey::OnExitCodes));
        Some(Retry { max: max?, backoff, initial, cap, jitter, on_exit_codes })
    }

    fn tries(&mut self, ix: Ix) -> Option<u32> {
        self.integer(ix, 0, RETRY_MAX).and_then(|max| u32::try_from(max).ok())
    }

    fn exit_codes(&mut self, ix: Option<Ix>) -> Vec<i32> {
        let Some(ix) = ix else { return Vec::new() };
        if !matches!(self.tree.value(ix), Value::List(..)) {
            self.wrong_type(ix, "a list of integers");
            return Vec::new();
        }
        let codes = self.tree.children(ix).filter_map(|child| self.integer(child, 1, 255));
        let mut codes: Vec<i32> = codes.filter_map(|code| i32::try_from(code).ok()).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }

    /// `level = "confirmed"` or `level = { type = "mechanical", retry = 3 }`.
    pub(super) fn level(&mut self, ix: Ix) -> Option<Level> {
        if let Value::Text(_) = self.tree.value(ix) {
            return self.level_type(ix, ix);
        }
        if !matches!(self.tree.value(ix), Value::Map(..)) {
            self.wrong_type(ix, "a string or a table");
            return None;
        }
        let tree = self.tree;
        let child = |key: &str| tree.children(ix).find(|child| tree.key(*child) == key);
        let Some(kind) = child("type") else {
            self.missing(ix, "type", "a level", "write `type = \"mechanical\"` or `type = \"confirmed\"`");
            return None;
        };
        let level = self.level_type(ix, kind)?;
        let (known, hint): (&[&str], _) = match level {
            Level::Mechanical { .. } => (&["type", "retry"], "a mechanical level has `type` and `retry`"),
            Level::Confirmed => (&["type"], "a confirmed level has `type` only; `retry` stands on the task"),
        };
        for other in tree.children(ix).filter(|child| !known.contains(&tree.key(*child))) {
            self.unknown_key(other, hint.to_owned());
        }
        Some(match level {
            Level::Mechanical { .. } => {
                Level::Mechanical { tries: child("retry").and_then(|ix| self.tries(ix)) }
            }
            Level::Confirmed => level,
        })
    }

    /// The level of this name, if it is one that is built.
    fn level_type(&mut self, level: Ix, kind: Ix) -> Option<Level> {
        match self.text(kind)? {
            "mechanical" => Some(Level::Mechanical { tries: None }),
            "confirmed" => Some(Level::Confirmed),
            word @ ("recommended" | "arbitrated") => {
                let problem = format!("the level `{word}` is not supported yet");
                let hint = "use `confirmed`, or a task of type `approval` before it".to_owned();
                self.key_problem(ProblemCode::NotYetSupported, level, problem, hint);
                None
            }
            other => {
                let shown: String = other.chars().take(80).collect();
                let problem = format!("`{shown}` is not a level");
                self.problem_hint(ProblemCode::BadValue, kind, problem, "use `mechanical` or `confirmed`");
                None
            }
        }
    }
}
