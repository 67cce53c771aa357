//! What tasks printed.

use cis_core::source::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// One line that a task printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    pub task_id: String,
    pub attempt: u32,
    pub stream: LogStream,
    /// When its end was read.
    pub at: Option<Timestamp>,
    pub text: String,
    /// This is a part of a long line, which goes on in the next line of the same stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub continues: bool,
}

/// Where a line was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogStream {
    Stdout,
    Stderr,
    /// What the runner has to say about the attempt.
    Cis,
}

impl LogStream {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Cis => "cis",
        }
    }
}

/// Which lines are wanted.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// Only this one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Only this one's, from 1; else every attempt's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// `stdout` or `stderr`; else both.
    #[param(pattern = "^std(out|err)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// Only so many lines of each task, from its end, and no more than 1 MiB of them; over 10,000 counts as 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<usize>,
    /// Until the run is over.
    #[serde(default)]
    #[param(required = false)]
    pub follow: bool,
}
