//! How the unfinished tasks of a run stand: what it takes to say why.

use cis_core::id::TaskIx;
use cis_core::source::Timestamp;
use cis_core::task::TaskStatus;
use cis_core::why::Standing;
use rusqlite::Row;

use super::causes::cut_cause;
use super::reader::Reader;
use super::tx::parsed;
use crate::port::{Answer, Fate};
use crate::rows::RunRow;

impl Reader {
    /// Every task of a run that has not ended, in file order; one whose row is not written yet is pending.
    pub fn standings(&self, run: &RunRow) -> Answer<Vec<Standing>> {
        let (first, last) = (run.first_execution.0, run.first_execution.0 + i64::from(run.total) - 1);
        let ix = |execution: i64| TaskIx(u32::try_from(execution - first).unwrap_or(u32::MAX));
        let mut standings = self.collect(
            "SELECT execution_id, status, hold, not_before, attempt, holder, started_at, cause FROM task_executions
             WHERE execution_id BETWEEN ?1 AND ?2
                 AND status IN ('pending', 'waiting', 'ready', 'running', 'cancelling')
             ORDER BY execution_id",
            [first, last],
            |row| standing(row, ix(row.get(0)?)),
        )?;
        // Tasks are written in file order, so whatever is missing is missing at the end.
        let written: Option<i64> = self
            .one(
                "SELECT max(execution_id) FROM task_executions WHERE execution_id BETWEEN ?1 AND ?2",
                [first, last],
                |row| row.get(0),
            )?
            .flatten();
        let missing = (written.map_or(first, |written| written + 1)..=last).map(ix);
        standings.extend(missing.filter(|ix| run.fate(*ix) == Fate::Run).map(Standing::unwritten));
        Ok(standings)
    }
}

fn standing(row: &Row<'_>, task: TaskIx) -> rusqlite::Result<Standing> {
    Ok(Standing {
        task,
        status: parsed(row, 1, TaskStatus::from_word)?,
        over_limit: row.get::<_, i64>(2)? == 1,
        not_before: row.get::<_, Option<i64>>(3)?.map(Timestamp),
        attempt: row.get(4)?,
        holder: row.get(5)?,
        started_at: row.get::<_, Option<i64>>(6)?.map(Timestamp),
        cause: row.get::<_, Option<String>>(7)?.map(cut_cause),
    })
}
