//! Processes of attempts that are not under way. There should never be any: what ends an attempt ends its processes first.

use cis_core::error::Refusal;
use cis_core::id::{ExecutionId, Fence};
use cis_runner::marked::{Marked, marked};
use cis_store::Reader;

use super::{Examined, Hand, State};
use crate::data_dir::DataDir;

/// Finds them by the mark in their environment.
pub(super) fn strays(data_dir: &DataDir, reader: &Reader, hand: Hand) -> Result<Examined, Refusal> {
    // First the processes, then the store, then the processes again: what ended in between is gone by then.
    let candidates = match marked(data_dir.root()) {
        Ok(candidates) => candidates,
        Err(e) => {
            return Ok(Examined::new("strays", State::Unknown, format!("cannot look at processes: {e}")));
        }
    };
    let (mut found, mut repaired) = (Vec::new(), Vec::new());
    for process in candidates {
        if belongs(reader, &process)? || !process.lives() {
            continue;
        }
        let (pid, command) = (process.pid(), process.command());
        match hand.free.then(|| process.kill()) {
            Some(Ok(true)) => repaired.push(format!("killed process {pid} ({command})")),
            Some(Ok(false)) => {}
            Some(Err(e)) => found.push(format!("process {pid} ({command}) cannot be killed: {e}")),
            None => found.push(format!("process {pid} ({command}) is of an attempt that is over")),
        }
    }
    Ok(Examined::repairable(
        "strays",
        "every process of a task is of an attempt under way",
        found,
        repaired,
        hand,
    ))
}

/// Is its attempt under way, or was it left behind on purpose?
fn belongs(reader: &Reader, process: &Marked) -> Result<bool, Refusal> {
    let (execution, fence) = (ExecutionId(process.key.execution), Fence(process.key.fence));
    let Some(attempt) = reader.attempt_of(execution, fence)? else { return Ok(false) };
    if attempt.live {
        return Ok(true);
    }
    let Some(run) = reader.run(attempt.run)? else { return Ok(false) };
    let dag = reader.definition(run.definition)?;
    Ok(dag.tasks.get(attempt.task.index()).is_some_and(|task| task.detach))
}
