//! A definition as a document that can be read back: JSON for a node, JSON or TOML for people. It is the canonical text with
//! durations as people write them. What a terminal would hide is written as an escape of the format.

use std::fmt::Write as _;

use cis_core::dag::parse::{Defaults, Format, parse};
use cis_core::dag::{Dag, canonical};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, Scope};
use serde_json::{Map, Value};

use crate::term::visible::{Looker, escape_json};

/// Before each line of a text of several.
const INDENT: &str = "    ";

/// `dag` as the format of files has it. Skills are named in it, but not pinned: the node that publishes it does that.
pub fn to_value(dag: &Dag) -> Result<Value, Refusal> {
    let text = canonical::canonical_json(dag);
    let mut definition = written(serde_json::from_str(&text).map_err(unreadable)?);
    definition["dag_id"] = dag.dag_id.as_str().into();
    definition["scope"] = dag.scope.as_str().into();
    Ok(definition)
}

/// The DAG that a node tells as `canonical`, with the skills that are pinned in it.
pub fn from_canonical(canonical: &str, dag_id: &DagId, scope: &Scope) -> Result<Dag, Refusal> {
    let canonical: Value = serde_json::from_str(canonical).map_err(unreadable)?;
    let skills = match canonical.get("skills") {
        Some(skills) => serde_json::from_value(skills.clone()).map_err(unreadable)?,
        None => std::collections::BTreeMap::new(),
    };
    // What earlier versions took as the id of a DAG need not be one that is taken now.
    let defaults = Defaults { dag_id: Some("stored".to_owned()), scope: Some(scope.clone()) };
    let mut canonical = written(canonical);
    if let Some(fields) = canonical.as_object_mut() {
        fields.remove("dag_id");
    }
    match parse(canonical.to_string().as_bytes(), Format::Json, &defaults) {
        Ok(parsed) => Ok(Dag { dag_id: dag_id.clone(), skills, ..parsed.dag }),
        Err(problems) => Err(unreadable(problems.first().map(ToString::to_string).unwrap_or_default())),
    }
}

/// `dag` as a JSON file.
pub fn to_json(dag: &Dag) -> Result<String, Refusal> {
    Ok(escape_json(&format!("{:#}\n", to_value(dag)?)).into_owned())
}

/// `dag` as a TOML file; the hashes of its skills are remarks in it.
pub fn to_toml(dag: &Dag) -> Result<String, Refusal> {
    let mut text = String::new();
    for (name, hash) in &dag.skills {
        let _ = writeln!(text, "# skill {} is {}", basic_string(name), basic_string(hash));
    }
    let mut definition = to_value(dag)?;
    let tasks = definition["tasks"].take();
    if let Value::Object(settings) = &mut definition {
        settings.remove("tasks");
        write_settings(&mut text, settings, "")?;
    }
    for task in tasks.as_array().into_iter().flatten() {
        text.push_str("\n[[tasks]]\n");
        if let Value::Object(settings) = task {
            write_settings(&mut text, settings, "tasks.")?;
        }
    }
    Ok(text)
}

/// Plain values first, then those that are tables, each under a header of its own.
fn write_settings(text: &mut String, settings: &Map<String, Value>, path: &str) -> Result<(), Refusal> {
    for (name, value) in settings.iter().filter(|(_, value)| !value.is_object()) {
        let _ = writeln!(text, "{} = {}", key(name), inline(value, true)?);
    }
    for (name, value) in settings {
        let Value::Object(table) = value else { continue };
        let _ = writeln!(text, "\n[{path}{}]", key(name));
        for (name, value) in table {
            let _ = writeln!(text, "{} = {}", key(name), inline(value, true)?);
        }
    }
    Ok(())
}

fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(bare) { name.to_owned() } else { basic_string(name) }
}

/// A value on one line, but for a text of several lines where those are allowed.
fn inline(value: &Value, lines: bool) -> Result<String, Refusal> {
    Ok(match value {
        Value::Null => {
            return Err(Refusal::new(
                ErrorCode::ValidationFailed,
                "TOML has no `null`, and a value of this DAG is",
            )
            .hint("`--format json` shows it"));
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if lines && text.contains('\n') => lines_string(text),
        Value::String(text) => basic_string(text),
        Value::Array(values) => {
            let values: Result<Vec<String>, Refusal> =
                values.iter().map(|value| inline(value, false)).collect();
            format!("[{}]", values?.join(", "))
        }
        Value::Object(table) => {
            let pairs =
                table.iter().map(|(name, value)| Ok(format!("{} = {}", key(name), inline(value, false)?)));
            format!("{{ {} }}", pairs.collect::<Result<Vec<_>, Refusal>>()?.join(", "))
        }
    })
}

fn basic_string(text: &str) -> String {
    let mut string = String::from('"');
    let mut looker = Looker::default();
    text.chars().for_each(|c| push_char(&mut string, c, c == '"', &mut looker));
    string.push('"');
    string
}

/// A string of several lines, each on an indented line of its own that ends in an escaped line end: none can pass for a line
/// of the document.
fn lines_string(text: &str) -> String {
    let mut string = String::from("\"\"\"\\\n");
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            string.push_str("\\n\\\n");
        }
        string.push_str(INDENT);
        let mut looker = Looker::default();
        for (at, c) in line.char_indices() {
            let rest = &line[at + c.len_utf8()..];
            match c {
                // It would be taken for indentation.
                ' ' if at == 0 => string.push_str("\\u0020"),
                // Three of them end the string.
                c => {
                    let quote = c == '"' && (rest.is_empty() || rest.starts_with('"'));
                    push_char(&mut string, c, quote, &mut looker);
                }
            }
        }
    }
    string + "\\\n" + INDENT + "\"\"\""
}

fn push_char(string: &mut String, c: char, escaped: bool, looker: &mut Looker) {
    let hidden = looker.misses(c);
    match c {
        '\n' => string.push_str("\\n"),
        '\t' => string.push_str("\\t"),
        '\r' => string.push_str("\\r"),
        '\\' => string.push_str("\\\\"),
        c if escaped => {
            string.push('\\');
            string.push(c);
        }
        c if hidden => {
            let _ = match u32::from(c) {
                code @ 0..=0xffff => write!(string, "\\u{code:04x}"),
                code => write!(string, "\\U{code:08x}"),
            };
        }
        c => string.push(c),
    }
}

/// The same as the format of files has it.
fn written(mut canonical: Value) -> Value {
    if let Value::Object(dag) = &mut canonical {
        dag.remove("skills");
        spell(dag);
        for task in dag.get_mut("tasks").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(task) = task {
                spell(task);
                task.get_mut("retry").and_then(Value::as_object_mut).into_iter().for_each(spell);
            }
        }
    }
    canonical
}

/// `timeout_ms: 500` becomes `timeout: "500ms"`.
fn spell(settings: &mut Map<String, Value>) {
    let spans: Vec<String> = settings.keys().filter(|key| key.ends_with("_ms")).cloned().collect();
    for key in spans {
        if let Some(ms) = settings.remove(&key) {
            settings.insert(key.trim_end_matches("_ms").to_owned(), format!("{ms}ms").into());
        }
    }
}

fn unreadable(why: impl std::fmt::Display) -> Refusal {
    Refusal::new(ErrorCode::Internal, format!("a definition does not read back: {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::term::visible::hides;

    fn dag(definition: &Value) -> Dag {
        parse(definition.to_string().as_bytes(), Format::Json, &Defaults::default()).unwrap().dag
    }

    fn full() -> Value {
        json!({
            "dag_id": "d", "scope": "project-x", "timeout": "1h", "env": {"wait_ms": "5"},
            "params": {"day": "x", "odd name": {"n": [1, 2.5, {"a": "b"}], "e": {}}},
            "tasks": [
                {"id": "a", "command": "make # see\nrm \\\"x\\\" 'Q'  \"\"\" \u{200b}\t\u{e0041} \n", "timeout": 1.5,
                 "retry": {"max": 2, "initial": "10ms", "cap": "2s"}, "env": {"A": "{{ params.day }}"}},
                {"id": "b", "type": "approval", "prompt": "Go?\u{202e}\n\"", "input": {"n_ms": "integer"}, "timeout": "3m"},
                {"id": "c", "type": "external", "input": {"wait_ms": 7, "text": "x\ny"}, "needs": ["x"], "depends_on": ["a"]},
            ],
        })
    }

    #[test]
    fn a_definition_arrives_as_it_left() {
        let mut dag = dag(&full());
        let back = parse(to_value(&dag).unwrap().to_string().as_bytes(), Format::Json, &Defaults::default());
        assert_eq!(back.unwrap().dag, dag);
        dag.skills = [("lint".to_owned(), "sha256:1".to_owned())].into();
        let text = canonical::canonical_json(&dag);
        assert_eq!(from_canonical(&text, &dag.dag_id, &dag.scope).unwrap(), dag);
    }

    /// Both documents of `dag` say the same, and show everything that they say.
    fn check(dag: &Dag) {
        for (format, text) in [(Format::Toml, to_toml(dag).unwrap()), (Format::Json, to_json(dag).unwrap())] {
            assert!(!hides(&text), "{text}");
            let back = parse(text.as_bytes(), format, &Defaults::default());
            let back = back.unwrap_or_else(|problems| panic!("{problems:?}\n{text}")).dag;
            assert_eq!(canonical::content_hash(&back), canonical::content_hash(dag), "{text}");
            assert_eq!((&back.dag_id, &back.scope), (&dag.dag_id, &dag.scope));
        }
    }

    #[test]
    fn documents_read_back_to_the_same_content() {
        check(&dag(&full()));
        let null = json!({"dag_id": "d", "params": {"a": null}, "tasks": [{"id": "a", "command": "true"}]});
        assert_eq!(to_toml(&dag(&null)).unwrap_err().hint.as_deref(), Some("`--format json` shows it"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_reads_back(text in "([ \\n\\t\"'\\\\u{}=#\\[\\]]|\\PC|\\p{Cf}){1,40}") {
            let value = json!({"dag_id": "d", "description": text, "params": {&text: text, "list": [text, {&text: 1}]},
                               "tasks": [{"id": "a", "type": "external", "input": {"t": text}}]});
            if let Ok(parsed) = parse(value.to_string().as_bytes(), Format::Json, &Defaults::default()) {
                check(&parsed.dag);
            }
        }
    }
}
