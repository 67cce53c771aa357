//! What the store's tests share: small DAGs, short requests, and a place for their files.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub(crate) mod earlier;

use std::path::Path;
use std::sync::Arc;

use cis_core::dag::{self, Approval, Dag, Kind, More, Policy, RunIf, Task};
use cis_core::id::{DagId, ExecutionId, RunId, Scope, TaskIx};
use cis_core::retry::{Backoff, Failure, Retry};
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_store::port::{Approve, Boot, Claimed, Ending, Publish, Report, StartRun};
use serde_json::{Map, Value};
use tempfile::TempDir;

/// A directory that goes away with the test; in memory where the system has such a place.
pub(crate) fn dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("a temporary directory")
}

/// A runtime of the caller's own thread: the store's writer has one of its own.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

/// A machine that has always been up.
pub(crate) fn boot(now: Timestamp) -> Boot {
    Boot { id: "this boot".into(), now: BootTime(now.0) }
}

/// A task that waits for the tasks at these places.
pub(crate) fn task(id: &str, after: &[u32]) -> Task {
    Task {
        id: id.parse().expect("a name"),
        kind: Kind::Shell { command: "true".into() },
        depends_on: after.iter().map(|ix| TaskIx(*ix)).collect(),
        run_if: RunIf::AllSuccess,
        priority: 0,
        idempotent: false,
        detach: false,
        debt_ignorable: false,
        more: None,
    }
}

/// The same task with some of the settings few tasks have.
pub(crate) fn with(mut task: Task, set: impl FnOnce(&mut More)) -> Task {
    set(task.more.get_or_insert_default());
    task
}

/// The same task, which a person has to approve first.
pub(crate) fn confirmed(task: Task) -> Task {
    with(task, |more| more.confirmed = true)
}

/// A question to a person.
pub(crate) fn question(id: &str, after: &[u32], approval: Approval) -> Task {
    Task { kind: Kind::Approval(Box::new(approval)), ..task(id, after) }
}

/// Somebody's answer about a task.
pub(crate) fn approve(execution: ExecutionId, approve: bool, now: Timestamp) -> Approve {
    let (key, input, note) = (None, Map::new(), None);
    Approve { key, execution, approve, input, note, by: "bea".into(), self_confirm: false, now }
}

/// Tries `max` more times, each `wait_ms` after the last.
pub(crate) fn retry(max: u32, wait_ms: u64) -> Retry {
    Retry {
        max,
        backoff: Backoff::Fixed,
        initial: Millis(wait_ms),
        cap: Millis(wait_ms),
        jitter: false,
        on_exit_codes: Vec::new(),
    }
}

/// A DAG of these tasks, everything else by default.
pub(crate) fn dag(id: &str, tasks: Vec<Task>) -> Dag {
    Dag {
        dag_id: id.parse::<DagId>().expect("a name"),
        scope: Scope::global(),
        description: None,
        target_node: None,
        priority: 0,
        policy: Policy::AllSuccess,
        max_parallel: None,
        timeout: None,
        queue_timeout: None,
        env: Default::default(),
        params: Default::default(),
        workdir: None,
        skills: Default::default(),
        tasks,
    }
}

/// The `n`th run id.
pub(crate) fn run_id(n: u64) -> RunId {
    format!("{n:032x}").parse().expect("a run id")
}

/// Asks for `dag` to be published.
pub(crate) fn publish(dag: &Dag, now: Timestamp) -> Publish {
    Publish {
        key: None,
        content_hash: dag::content_hash(dag).to_string(),
        dag: Arc::new(dag.clone()),
        new_revision: false,
        by: "ann".into(),
        by_proven: true,
        now,
        expires_at: None,
    }
}

/// Asks for a run of `definition`.
pub(crate) fn start(definition: i64, run: RunId, now: Timestamp) -> StartRun {
    StartRun {
        key: None,
        run_id: run,
        definition,
        params: Map::new(),
        max_parallel: None,
        attached: false,
        at_node: false,
        traceparent: None,
        fates: None,
        resumed_from: None,
        by_confirmation: false,
        by: "ann".into(),
        by_proven: true,
        now,
    }
}

/// Tells that `claim` came to `ending`.
pub(crate) fn report(claim: &Claimed, ending: Ending, now: Timestamp) -> Report {
    Report {
        execution: claim.execution,
        fence: claim.fence,
        exit_code: match &ending {
            Ending::Succeeded => Some(0),
            Ending::Failed { failure: Failure::Exit(code), .. } => Some(*code),
            _ => None,
        },
        ending,
        started_at: Some(now),
        ended_at: now,
        output: String::new(),
        error: String::new(),
        log_bytes: 0,
        log_cut_bytes: 0,
        outputs: None,
        random: 0,
    }
}

/// An attempt that did not succeed.
pub(crate) fn failed(failure: Failure) -> Ending {
    Ending::Failed { failure, why: None }
}

/// The same report, with what the attempt handed on.
pub(crate) fn handing_on(mut report: Report, outputs: Value) -> Report {
    report.outputs = Some(outputs);
    report
}
