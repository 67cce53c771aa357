//! `retry` and `level`: the two places where a task says how often it may be tried again.

use super::tree::{Ix, Value};
use super::walk::Walk;
use super::words::{RETRY, RetryKey};
use crate::dag::problem::ProblemCode;
use crate::retry::{Backoff, Retry};
use crate::source::Millis;

/// Most tries after the first.
const RETRY_MAX: i64 = 1_000;

const BACKOFF: [(&str, Backoff); 2] = [("fixed", Backoff::Fixed), ("exponential", Backoff::Exponential)];

impl Walk<'_> {
    /// What `retry` and `level` say together. No tries at all is the same as not saying anything.
    pub(super) fn retries(&mut self, retry: Option<Ix>, level: Option<Ix>) -> Option<Retry> {
        let by_level = level.and_then(|ix| self.level(ix));
        if let (Some(retry), Some((in_level, _))) = (retry, by_level) {
            let problem = "`level.retry` says this already".to_owned();
            self.key_problem(ProblemCode::DuplicateKey, retry, problem, "keep one of the two".to_owned());
            let _ = in_level;
            return None;
        }
        let found = match (retry, by_level) {
            (Some(ix), _) => self.retry(ix),
            (None, Some((_, max))) => Some(Retry { max, ..Retry::default() }),
            (None, None) => None,
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

    /// `level = "mechanical"` or `level = { type = "mechanical", retry = 3 }`; gives the tries, if it names any.
    fn level(&mut self, ix: Ix) -> Option<(Ix, u32)> {
        if let Value::Text(_) = self.tree.value(ix) {
            self.level_type(ix, ix);
            return None;
        }
        if !matches!(self.tree.value(ix), Value::Map(..)) {
            self.wrong_type(ix, "a string or a table");
            return None;
        }
        let tree = self.tree;
        let child = |key: &str| tree.children(ix).find(|child| tree.key(*child) == key);
        let Some(kind) = child("type") else {
            self.missing(ix, "type", "a level", "write `type = \"mechanical\"`");
            return None;
        };
        if !self.level_type(ix, kind) {
            return None;
        }
        for other in tree.children(ix).filter(|child| !matches!(tree.key(*child), "type" | "retry")) {
            self.unknown_key(other, "a mechanical level has `type` and `retry`".to_owned());
        }
        let retry = child("retry")?;
        Some((retry, self.tries(retry)?))
    }

    /// Is it the one level that is built?
    fn level_type(&mut self, level: Ix, kind: Ix) -> bool {
        match self.text(kind) {
            Some("mechanical") => true,
            Some(word @ ("recommended" | "confirmed" | "arbitrated")) => {
                let problem = format!("the level `{word}` is not supported yet");
                let hint = "use `mechanical`, or start the rest by hand as a DAG of its own".to_owned();
                self.key_problem(ProblemCode::NotYetSupported, level, problem, hint);
                false
            }
            Some(other) => {
                let shown: String = other.chars().take(80).collect();
                let problem = format!("`{shown}` is not a level");
                self.problem_hint(ProblemCode::BadValue, kind, problem, "use `mechanical`");
                false
            }
            None => false,
        }
    }
}
