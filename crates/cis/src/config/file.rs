//! Reading `config.toml`: every key it may hold is in one list, anything else is a problem with its place and
//! the nearest key.

use std::path::Path;

use cis_core::dag::{Problem, ProblemCode};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::value::{Given, Raw};
use super::{Setting, Source};

/// Every key of the file.
const KEYS: [&str; 28] = [
    "dag.mode",
    "dag.durability",
    "dag.slots",
    "dag.grace",
    "dag.log_cap",
    "skills.dirs",
    "node.env_pass",
    "node.hosts",
    "node.id",
    "node.metrics",
    "node.name",
    "node.auth",
    "node.pending_for",
    "node.auto_execute",
    "node.rate",
    "node.pending_max",
    "node.pending_bytes_max",
    "node.unfinished_runs_max",
    "retention.max_age",
    "retention.max_size",
    "retention.keep",
    "retention.rejected_max_age",
    "notify.on",
    "notify.command",
    "notify.url",
    "notify.secret",
    "notify.secret_file",
    "notify.allow_private",
];

/// Those that are `true` or `false`.
const FLAGS: [&str; 2] = ["node.auto_execute", "notify.allow_private"];

/// What `text` gives, by key. What is wrong with it is added to `problems`.
pub(super) fn given(path: &Path, text: &str, problems: &mut Vec<Problem>) -> Given {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        problems.push(placed(Problem::new(ProblemCode::Syntax, "", error.message()), text, at));
    }
    let mut file = File { path, text, problems, given: Given::new() };
    for (name, value) in table.get_ref() {
        file.section(name, value);
    }
    file.given
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
    problems: &'a mut Vec<Problem>,
    given: Given,
}

impl File<'_> {
    fn section(&mut self, name: &Spanned<std::borrow::Cow<'_, str>>, value: &Spanned<DeValue<'_>>) {
        let (section, at) = (name.get_ref().as_ref(), name.span().start);
        if !sections().any(|known| known == section) {
            let hint = elsewhere(section).or_else(|| nearest(section, sections()));
            return self.unknown(section, at, hint);
        }
        let DeValue::Table(table) = value.get_ref() else {
            let problem = Problem::new(
                ProblemCode::WrongType,
                section,
                format!("`{section}` is a table: `[{section}]`"),
            );
            return self.problem(problem, at);
        };
        for (key, value) in table {
            let full = format!("{section}.{}", key.get_ref());
            match KEYS.iter().find(|known| **known == full) {
                Some(known) => self.key(known, value),
                None => {
                    let tails = KEYS.iter().filter_map(|key| key.strip_prefix(section)?.strip_prefix('.'));
                    let hint = elsewhere(key.get_ref()).or_else(|| nearest(key.get_ref(), tails));
                    self.unknown(&full, key.span().start, hint);
                }
            }
        }
    }

    fn key(&mut self, key: &'static str, value: &Spanned<DeValue<'_>>) {
        let at = value.span().start;
        match raw(value.get_ref()).filter(|raw| FLAGS.contains(&key) || !matches!(raw, Raw::Truth(_))) {
            Some(value) => {
                let source = Source::File { path: self.path.to_owned(), line: place(self.text, at).0 };
                self.given.insert(key, Setting { value, source });
            }
            None => {
                let told = format!("this key takes no {} like that", value.get_ref().type_str());
                self.problem(Problem::new(ProblemCode::WrongType, key, told), at);
            }
        }
    }

    fn unknown(&mut self, path: &str, at: usize, hint: Option<String>) {
        let mut problem = Problem::new(ProblemCode::UnknownKey, path, "unknown key");
        problem.hint = hint;
        self.problem(problem, at);
    }

    fn problem(&mut self, problem: Problem, at: usize) {
        self.problems.push(placed(problem, self.text, at));
    }
}

/// A key that has a section of its own is most likely meant to be in it.
fn elsewhere(wanted: &str) -> Option<String> {
    let (home, _) = KEYS.iter().find_map(|key| key.split_once('.').filter(|(_, tail)| *tail == wanted))?;
    Some(format!("`{wanted}` belongs under `[{home}]`"))
}

fn sections() -> impl Iterator<Item = &'static str> {
    let mut sections: Vec<&str> =
        KEYS.iter().filter_map(|key| key.split_once('.')).map(|(head, _)| head).collect();
    sections.dedup();
    sections.into_iter()
}

/// The value as far as any key wants it.
fn raw(value: &DeValue<'_>) -> Option<Raw> {
    match value {
        DeValue::String(text) => Some(Raw::Text(text.to_string())),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            i64::from_str_radix(&digits, number.radix()).ok().map(Raw::Integer)
        }
        DeValue::Boolean(truth) => Some(Raw::Truth(*truth)),
        DeValue::Array(items) => items
            .iter()
            .map(|item| item.get_ref().as_str().map(str::to_owned))
            .collect::<Option<_>>()
            .map(Raw::List),
        _ => None,
    }
}

/// `did you mean …?` for the closest of `known`, else all of them.
pub(super) fn nearest<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let known: Vec<&str> = known.collect();
    let close = 1 + wanted.len() / 3;
    let best = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(wanted, name), *name))
        .filter(|(distance, _)| *distance <= close)
        .min();
    match best {
        Some((_, name)) => Some(format!("did you mean `{name}`?")),
        None => {
            let all: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            Some(format!("known here: {}", all.join(", ")))
        }
    }
}

fn placed(mut problem: Problem, text: &str, at: usize) -> Problem {
    let (line, column) = place(text, at);
    problem.line = Some(line);
    problem.column = Some(column);
    problem
}

/// Line and column of a byte, from 1.
fn place(text: &str, at: usize) -> (u32, u32) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
}
