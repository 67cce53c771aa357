//! Whose an attempt is that somebody met outside: a process, a file.

use cis_core::id::{ExecutionId, Fence, RunKey, TaskIx};
use rusqlite::params;

use super::reader::Reader;
use crate::port::Answer;

/// What the store knows of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptOf {
    pub run: RunKey,
    pub task: TaskIx,
    /// This very attempt is under way.
    pub live: bool,
}

impl Reader {
    /// The task that an attempt is of; nothing if there is no such task.
    pub fn attempt_of(&self, execution: ExecutionId, fence: Fence) -> Answer<Option<AttemptOf>> {
        let sql = "SELECT run_key, execution_id - first_execution,
                          t.status IN ('running', 'cancelling') AND t.fence IS ?2
                   FROM task_executions t JOIN dag_runs USING (run_key) WHERE execution_id = ?1";
        self.one(sql, params![execution.0, fence.0], |row| {
            Ok(AttemptOf { run: RunKey(row.get(0)?), task: TaskIx(row.get(1)?), live: row.get(2)? })
        })
    }
}
