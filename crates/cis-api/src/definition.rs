//! How a definition is sent. The parser of `cis-core` decides what it takes; the types here tell readers of the API of the
//! settings most of them need.

use std::sync::Arc;

use cis_core::dag::Dag;
use cis_core::error::Refusal;
use cis_core::id::{DagId, TaskId};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::call::{Body, read_object, write_object};

/// What is published.
#[derive(Debug, Clone)]
pub enum DefinitionBody {
    /// As it was sent. Beside the definition, `revision` asks for a new revision; the owner on the socket may send `skills`,
    /// the hashes of those that it has kept in the data directory.
    Text(Vec<u8>),
    /// As the owner has parsed it, its skills kept in the data directory: so it is taken in the coordinator's own process.
    Parsed {
        dag: Arc<Dag>,
        content_hash: String,
        new_revision: bool,
        /// Writes it as it is sent to another process: as [`DefinitionBody::Text`] says.
        write: fn(&Dag, bool) -> Vec<u8>,
    },
}

impl Body for DefinitionBody {
    type Shown = Definition;
    const IS_OPTIONAL: bool = false;

    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        Ok(Self::Text(bytes.to_vec()))
    }

    fn read_owned(bytes: Vec<u8>) -> Result<Self, Refusal> {
        Ok(Self::Text(bytes))
    }

    fn write(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parsed { dag, new_revision, write, .. } => write(dag, *new_revision),
        }
    }
}

/// A definition in its JSON form, as the text it is kept as: it is answered without being taken apart.
#[derive(Debug, Clone)]
pub struct DefinitionText(Box<RawValue>);

impl DefinitionText {
    /// Fails if `text` is no JSON.
    pub fn new(text: String) -> serde_json::Result<Self> {
        RawValue::from_string(text).map(Self)
    }

    pub fn get(&self) -> &str {
        self.0.get()
    }
}

impl Serialize for DefinitionText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for DefinitionText {
    /// By way of a tree: answers are read with `success` beside them, where no text is left of what they hold.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::new(value.to_string()).map_err(D::Error::custom)
    }
}

/// A task to publish with a DAG around it.
#[derive(Debug, Clone, Default)]
pub struct SubmissionBody(pub Map<String, Value>);

impl Body for SubmissionBody {
    type Shown = Submission;
    const IS_OPTIONAL: bool = true;

    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        read_object(bytes).map(Self)
    }

    fn write(&self) -> Vec<u8> {
        write_object(&self.0)
    }
}

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
pub struct Definition {
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
pub struct Task {
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
pub struct Submission {
    #[schema(required = false)]
    id: TaskId,
    /// What people see of it.
    #[schema(required = false)]
    name: String,
    /// What the worker that claims it is told.
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
    fn every_described_setting_is_in_the_example_and_parses() {
        let (dag, task) = (json!(Definition::schema()), json!(Task::schema()));
        let mut example = dag["example"].clone();
        for name in properties(&dag) {
            assert!(!example[name].is_null(), "{name}");
        }
        for name in properties(&task) {
            assert!(example["tasks"].as_array().unwrap().iter().any(|task| !task[name].is_null()), "{name}");
        }
        // Publishing takes this one out itself.
        example.as_object_mut().unwrap().remove("revision");
        let parsed = parse(example.to_string().as_bytes(), Format::Json, &Defaults::default());
        assert_eq!(parsed.unwrap().dag.tasks.len(), 2);
    }
}
