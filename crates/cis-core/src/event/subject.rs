//! What an event is about.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Dag, Self::Run, Self::Task];

    /// The word stores and people use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dag => "dag",
            Self::Run => "run",
            Self::Task => "task",
        }
    }
}

impl fmt::Display for SubjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
