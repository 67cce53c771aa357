//! A definition as it is sent to a node, and as it comes back: its canonical text with durations as people write them.

use cis_core::dag::parse::{Defaults, Format, parse};
use cis_core::dag::{Dag, canonical};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, Scope};
use serde_json::{Map, Value};

/// What to publish for `dag`. The node pins its own skills.
pub(super) fn sent(dag: &Dag) -> Result<Value, Refusal> {
    let text = canonical::canonical_json(dag);
    let mut definition = written(serde_json::from_str(&text).map_err(unreadable)?);
    definition["dag_id"] = dag.dag_id.as_str().into();
    definition["scope"] = dag.scope.as_str().into();
    Ok(definition)
}

/// The DAG that a node tells as `canonical`.
pub(super) fn received(canonical: Value, dag_id: &DagId, scope: &Scope) -> Result<Dag, Refusal> {
    let defaults = Defaults { dag_id: Some(dag_id.to_string()), scope: Some(scope.clone()) };
    let text = written(canonical).to_string();
    match parse(text.as_bytes(), Format::Json, &defaults) {
        Ok(parsed) => Ok(parsed.dag),
        Err(problems) => Err(unreadable(problems.first().map(ToString::to_string).unwrap_or_default())),
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
    use super::*;

    #[test]
    fn a_definition_arrives_as_it_left() {
        let text = "
            dag_id = 'd'
            scope = 'project-x'
            timeout = '1h'
            env = { wait_ms = '5' }
            tasks = [
                { id = 'a', command = 'true', timeout = 1.5, retry = { max = 2, initial = '10ms', cap = '2s' } },
                { id = 'b', type = 'approval', prompt = 'Go?', input = { n_ms = 'integer' }, timeout = '3m' },
                { id = 'c', type = 'external', input = { wait_ms = 7 }, needs = ['x'], depends_on = ['a'] },
            ]";
        let dag = parse(text.as_bytes(), Format::Toml, &Defaults::default()).unwrap().dag;
        let back = parse(sent(&dag).unwrap().to_string().as_bytes(), Format::Json, &Defaults::default());
        assert_eq!(back.unwrap().dag, dag);
        let canonical = serde_json::from_str(&canonical::canonical_json(&dag)).unwrap();
        assert_eq!(received(canonical, &dag.dag_id, &dag.scope).unwrap(), dag);
    }
}
