//! What there is to judge by when the storm is over: the clients' records, the lines that tasks wrote themselves, and
//! what the store holds, put into plain words.

use std::path::Path;

use anyhow::Result;
use cis_store::Reader;
use serde_json::Value;

use super::record::{Entry, Kill};

/// All of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Evidence {
    pub(super) entries: Vec<Entry>,
    pub(super) kills: Vec<Kill>,
    pub(super) lines: Vec<Line>,
    pub(super) revisions: Vec<Revision>,
    pub(super) runs: Vec<Run>,
}

/// A line that a task wrote when it began, or when it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) began: bool,
    pub(super) run: String,
    pub(super) task: String,
    pub(super) attempt: u32,
}

/// A content that the store has.
#[derive(Debug, Clone)]
pub(super) struct Revision {
    pub(super) dag: String,
    pub(super) content_hash: String,
}

/// A run that the store has.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) id: String,
    pub(super) dag: String,
    pub(super) status: String,
    pub(super) tasks: Vec<Task>,
}

/// A task that the store has.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) execution: i64,
    pub(super) id: String,
    pub(super) status: String,
    pub(super) attempt: u32,
    pub(super) outputs: Option<Value>,
    pub(super) cause: Option<String>,
}

impl Task {
    /// Did it complete with these outputs?
    pub(super) fn has(&self, outputs: &Value) -> bool {
        self.status == "completed" && self.outputs.as_ref() == Some(outputs)
    }
}

impl Evidence {
    /// Adds what the store holds.
    pub(super) fn read_store(&mut self, database: &Path) -> Result<()> {
        let store = Reader::open(database)?;
        for dag in store.dags(None, None, u32::MAX)? {
            let (id, revisions) = (dag.dag_id.to_string(), store.revisions(dag.key)?);
            self.revisions.extend(
                revisions
                    .into_iter()
                    .map(|line| Revision { dag: id.clone(), content_hash: line.shown.content_hash }),
            );
        }
        for run in store.runs(None, u32::MAX)? {
            let tasks = store.tasks(&run, &[], u32::MAX)?.into_iter().map(|task| task.shown);
            let tasks = tasks.map(|task| Task {
                execution: task.execution_id.0,
                id: task.task_id,
                status: task.status.word().to_owned(),
                attempt: task.attempt,
                outputs: task.outputs,
                cause: task.cause,
            });
            self.runs.push(Run {
                id: run.run_id.to_string(),
                dag: run.dag_id.to_string(),
                status: run.status.word().to_owned(),
                tasks: tasks.collect(),
            });
        }
        Ok(())
    }

    /// Adds what tasks wrote. A line that is cut short is none: its task was killed while it wrote.
    pub(super) fn read_lines(&mut self, text: &str) {
        let line = |line: &str| {
            let mut words = line.split(' ');
            let began = words.next()? == "begin";
            let (run, task) = (words.next()?.to_owned(), words.next()?.to_owned());
            Some(Line { began, run, task, attempt: words.next()?.parse().ok()? })
        };
        self.lines.extend(text.lines().filter_map(line));
    }
}
