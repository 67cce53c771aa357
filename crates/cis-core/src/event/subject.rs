//! What an event is about: something of a kind, by the name it has for people. Kinds are added here.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::id::DagId;

/// The kinds of things that events are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SubjectKind {
    /// A revision of a DAG, told by the DAG's name.
    Dag,
    Run,
    Task,
}

impl SubjectKind {
    /// The word stores and people use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dag => "dag",
            Self::Run => "run",
            Self::Task => "task",
        }
    }
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
pub struct Subject {
    pub kind: SubjectKind,
    /// Its name, as people write it: `backup`, `backup#3`, `backup#3/dump`.
    pub key: String,
}

impl Subject {
    /// A DAG.
    pub fn dag(dag: &DagId) -> Self {
        Self { kind: SubjectKind::Dag, key: dag.to_string() }
    }

    /// A run, by the number it has among the runs of its DAG.
    pub fn run(dag: &DagId, number: i64) -> Self {
        Self { kind: SubjectKind::Run, key: format!("{dag}#{number}") }
    }

    /// A task of a run.
    pub fn task(dag: &DagId, number: i64, task: &str) -> Self {
        Self { kind: SubjectKind::Task, key: format!("{dag}#{number}/{task}") }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

impl fmt::Display for SubjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_named_as_people_write_them() {
        let dag: DagId = "backup".parse().unwrap();
        let subjects = [Subject::dag(&dag), Subject::run(&dag, 3), Subject::task(&dag, 3, "dump")];
        let told = subjects.map(|subject| format!("{} {subject}", subject.kind));
        assert_eq!(told, ["dag backup", "run backup#3", "task backup#3/dump"]);
    }
}
