//! What a task of type `approval` asks of a person, and whether an answer fits.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::error::{ErrorCode, Refusal};

/// The longest remark a decision may carry: it becomes part of a line people read.
pub const NOTE_BYTES_MAX: usize = 4 << 10;

/// Values of one answer at most, as JSON: what a task may hand on.
pub const INPUT_BYTES_MAX: usize = 1 << 20;

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Approval {
    /// What the person is asked.
    pub prompt: Option<String>,
    /// What approving takes, all of it; it becomes the task's outputs.
    pub input: BTreeMap<String, InputType>,
    /// What happens if nobody answers within the task's `timeout`.
    pub on_timeout: OnTimeout,
}

/// What kind of value an approval takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputType {
    String,
    Number,
    Integer,
    Boolean,
}

/// What happens if nobody answers in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnTimeout {
    /// The task has timed out, which fails the run as any timeout does.
    #[default]
    Fail,
    /// It is skipped, and what needs it too; that alone fails no run.
    Skip,
    /// It goes on as if somebody had approved.
    Approve,
}

impl InputType {
    /// Every type with its word.
    pub const WORDS: [(&'static str, Self); 4] = [
        ("string", Self::String),
        ("number", Self::Number),
        ("integer", Self::Integer),
        ("boolean", Self::Boolean),
    ];

    /// The word a definition uses for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Number => "number",
            Self::Integer => "integer",
            Self::Boolean => "boolean",
        }
    }

    /// Is `value` of this type?
    pub fn takes(self, value: &Value) -> bool {
        match self {
            Self::String => value.is_string(),
            Self::Number => value.is_number(),
            Self::Integer => value.is_i64() || value.is_u64(),
            Self::Boolean => value.is_boolean(),
        }
    }
}

impl OnTimeout {
    /// Every action with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("fail", Self::Fail), ("skip", Self::Skip), ("approve", Self::Approve)];

    /// The word a definition uses for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Skip => "skip",
            Self::Approve => "approve",
        }
    }
}

/// Refuses values that are not exactly what was asked for, telling all that is wrong at once.
pub fn check_input(asked: &BTreeMap<String, InputType>, given: &Map<String, Value>) -> Result<(), Refusal> {
    let mut problems = Vec::new();
    let mut problem = |name: &str, problem: String| {
        problems.push(json!({"path": format!("input.{name}"), "problem": problem}));
    };
    for (name, kind) in asked {
        match given.get(name) {
            None => problem(name, format!("needs `{name}`, a value of type {}", kind.word())),
            Some(value) if !kind.takes(value) => problem(name, format!("expected {}", kind.word())),
            Some(_) => {}
        }
    }
    for name in given.keys().filter(|name| !asked.contains_key(*name)) {
        let shown: String = name.chars().take(80).collect();
        problem(&shown, format!("nobody asks for `{shown}`"));
    }
    if problems.is_empty() {
        let bytes = Value::Object(given.clone()).to_string().len();
        return if bytes > INPUT_BYTES_MAX {
            let why = format!("the input is {bytes} bytes, {INPUT_BYTES_MAX} are allowed");
            Err(Refusal::new(ErrorCode::ValidationFailed, why))
        } else {
            Ok(())
        };
    }
    let told: Vec<String> = problems
        .iter()
        .map(|one| {
            format!(
                "{}: {}",
                one["path"].as_str().unwrap_or_default(),
                one["problem"].as_str().unwrap_or_default()
            )
        })
        .collect();
    Err(Refusal::new(ErrorCode::ValidationFailed, told.join("; "))
        .hint(hint(asked))
        .details(Value::Array(problems)))
}

fn hint(asked: &BTreeMap<String, InputType>) -> String {
    if asked.is_empty() {
        return "it takes no input".to_owned();
    }
    let wanted: Vec<String> = asked.iter().map(|(name, kind)| format!("{name} ({})", kind.word())).collect();
    format!("it takes {}", wanted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn an_answer_fits_or_hears_all_that_does_not() {
        let asked = InputType::WORDS.map(|(word, kind)| (word.to_owned(), kind)).into();
        let fits = json!({"string": "x", "number": 1.5, "integer": 2, "boolean": false});
        assert!(check_input(&asked, &object(fits)).is_ok());
        let wrong = json!({"string": 1, "integer": 1.5, "boolean": "true", "more": 1});
        let refusal = check_input(&asked, &object(wrong)).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::ValidationFailed);
        assert_eq!(refusal.details.as_array().map(Vec::len), Some(5), "{refusal:?}");
        assert!(refusal.message.contains("input.more: nobody asks for `more`"), "{refusal}");
        assert!(
            refusal.message.contains("input.number: needs `number`, a value of type number"),
            "{refusal}"
        );
    }

    #[test]
    fn a_plain_approval_takes_nothing() {
        assert!(check_input(&BTreeMap::new(), &Map::new()).is_ok());
        assert!(check_input(&BTreeMap::new(), &object(json!({"a": 1}))).is_err());
    }

    #[test]
    fn what_cannot_be_handed_on_is_refused() {
        let asked = [("text".to_owned(), InputType::String)].into();
        let large = json!({"text": "x".repeat(INPUT_BYTES_MAX)});
        assert!(check_input(&asked, &object(large)).unwrap_err().message.contains("are allowed"));
    }
}
