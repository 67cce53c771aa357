//! A valid document, and how to wrap and write it.

pub(crate) mod random;

use cis_core::dag::{Defaults, Format, Problem, parse};
use serde_json::{Value, json};

pub(crate) const FORMATS: [Format; 3] = [Format::Toml, Format::Json, Format::Yaml];
pub(crate) const WRAPPERS: [&str; 3] = ["bare", "dag", "skill"];

/// A definition that says a little of everything.
pub(crate) fn base() -> Value {
    json!({
        "dag_id": "base",
        "description": "d",
        "scope": "project-a",
        "policy": "all_success",
        "priority": 1,
        "max_parallel": 4,
        "timeout": "1h",
        "queue_timeout": "10m",
        "workdir": "w",
        "env": {"A": "1"},
        "params": {"day": "x", "deep": {"n": [1, 2]}},
        "tasks": [
            {"id": "a", "command": "true", "timeout": "5m", "env": {"X": "y"}, "retry": {"max": 2, "initial": "1s"}},
            {"id": "b", "skill": "echo", "input": {"k": "v"}, "depends_on": ["a"]},
            {"id": "c", "type": "shell", "command": "true", "depends_on": ["a", "b"], "when": "params.day"},
            {"id": "d", "command": "true", "level": {"type": "mechanical", "retry": 1}},
        ],
    })
}

pub(crate) fn wrap(wrapper: &str, dag: &Value) -> Value {
    match wrapper {
        "dag" => json!({"dag": dag}),
        "skill" => json!({"skill": {"version": "1.0.0", "type": "dag", "author": "someone"}, "dag": dag}),
        _ => dag.clone(),
    }
}

pub(crate) fn render(document: &Value, format: Format) -> String {
    match format {
        Format::Toml => toml::to_string(document).unwrap(),
        Format::Json => serde_json::to_string_pretty(document).unwrap(),
        Format::Yaml => serde_saphyr::to_string(document).unwrap(),
    }
}

/// What is wrong with `text`; nothing, if nothing is.
pub(crate) fn refused(text: &str, format: Format) -> Vec<Problem> {
    let defaults = Defaults { dag_id: Some("stem".to_owned()), scope: None };
    parse(text.as_bytes(), format, &defaults).err().unwrap_or_default()
}
