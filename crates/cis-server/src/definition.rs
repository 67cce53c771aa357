//! What a definition looks like in a request. The parser of `cis-core` decides what it takes; this tells readers of the
//! API of the settings most of them need.

use cis_core::id::{DagId, TaskId};
use serde_json::Value;
use utoipa::ToSchema;

/// A DAG, in its JSON form. There are more settings than are shown here, see `docs/dag-format.md`.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "it describes what the parser reads from the text itself")]
#[schema(example = json!({
    "dag_id": "backup",
    "description": "dump, then compress",
    "scope": "global",
    "policy": "all_success",
    "max_parallel": 2,
    "revision": false,
    "tasks": [
        {"id": "dump", "command": "echo dump", "timeout": "10m"},
        {"id": "compress", "command": "echo compress", "depends_on": ["dump"]},
    ],
}))]
pub(crate) struct Definition {
    dag_id: DagId,
    #[schema(required = false)]
    description: String,
    /// `global`, `project-…` or `user-…`; else the only scope of the token, else `global`.
    #[schema(required = false, pattern = "^(global|(project|user)-[A-Za-z0-9._-]+)$", max_length = 128)]
    scope: String,
    /// When it counts as a success.
    #[schema(required = false, pattern = "^(all_success|first_success|allow_debt)$")]
    policy: String,
    #[schema(required = false, minimum = 1, maximum = 100_000)]
    max_parallel: u32,
    #[schema(min_items = 1)]
    tasks: Vec<Task>,
    /// Other content under a name that is taken becomes a new revision.
    #[schema(required = false)]
    revision: bool,
}

/// A task of a DAG.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "it describes what the parser reads from the text itself")]
pub(crate) struct Task {
    id: TaskId,
    /// What it runs, with `/bin/sh -c`; tasks of other kinds have other settings.
    #[schema(required = false, min_length = 1)]
    command: String,
    #[schema(required = false)]
    depends_on: Vec<TaskId>,
    #[schema(required = false, pattern = "^[1-9][0-9]{0,3}(ms|s|m|h)$")]
    timeout: String,
}

/// A task with a DAG around it. There are more settings than are shown here, see `docs/dag-format.md`.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "it describes what the parser reads from the text itself")]
#[schema(example = json!({"id": "review", "name": "Review the report", "input": {"report": 7}, "submitted_by": "ann"}))]
pub(crate) struct Submission {
    #[schema(required = false)]
    id: TaskId,
    /// What people see of it.
    #[schema(required = false)]
    name: String,
    /// What whoever claims it is told.
    #[schema(required = false)]
    input: Value,
    /// Of the DAG; else one of its own.
    #[schema(required = false)]
    dag_id: DagId,
    /// Of the DAG: `global`, `project-…` or `user-…`.
    #[schema(required = false, pattern = "^(global|(project|user)-[A-Za-z0-9._-]+)$", max_length = 128)]
    scope: String,
    /// Becomes the DAG's description.
    #[schema(required = false)]
    submitted_by: String,
}

#[cfg(test)]
mod tests {
    use cis_core::dag::parse::{Defaults, Format, parse};
    use serde_json::json;
    use utoipa::PartialSchema;

    use super::*;

    fn properties(schema: &Value) -> Vec<&String> {
        schema["properties"].as_object().unwrap().keys().collect()
    }

    #[test]
    fn every_setting_it_tells_of_is_in_the_example_and_the_parser_takes_it() {
        let (dag, task) = (json!(Definition::schema()), json!(Task::schema()));
        let mut example = dag["example"].clone();
        for name in properties(&dag) {
            assert!(!example[name].is_null(), "{name}");
        }
        for name in properties(&task) {
            assert!(example["tasks"].as_array().unwrap().iter().any(|task| !task[name].is_null()), "{name}");
        }
        // The route takes this one out itself.
        example.as_object_mut().unwrap().remove("revision");
        let parsed = parse(example.to_string().as_bytes(), Format::Json, &Defaults::default());
        assert_eq!(parsed.unwrap().dag.tasks.len(), 2);
    }
}
