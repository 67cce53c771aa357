//! Long lists, a page at a time: DAGs, what waits for a person, the runs of a DAG, the tasks of a run.

use axum::Extension;
use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{ExecutionId, Scope, TaskIx};
use cis_core::run::RunStatus;
use cis_core::task::TaskStatus;
use cis_store::port::RevisionStatus;
use cis_store::sqlite::reader::PendingLine;
use cis_store::sqlite::{DagFilter, Reader, WaitingLine};
use serde::{Deserialize, Serialize};

use super::{Args, dags, runs};
use crate::State;
use crate::cursor::Page;
use crate::say::{Said, yes};

#[derive(Debug, Deserialize)]
pub(super) struct DagQuery {
    status: Option<String>,
    scope: Option<Scope>,
    owner: Option<String>,
    dag_id: Option<String>,
    q: Option<String>,
    #[serde(default)]
    order: Order,
    cursor: Option<String>,
    limit: Option<u32>,
}

/// How DAGs are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// The newest first, page by page.
    #[default]
    Created,
    /// The latest change first: one page, since what changes meanwhile moves.
    Updated,
}

/// `GET /api/v1/dag`: the newest first.
pub(super) async fn dags(
    Has(state): Has<State>,
    Extension(caller): Extension<Caller>,
    Args(query): Args<DagQuery>,
) -> Said {
    let DagQuery { status, scope, owner, dag_id, q, order, cursor, limit } = query;
    if let Some(word) = &status {
        let known = RunStatus::from_word(word).is_some() || RevisionStatus::from_word(word).is_some();
        known.then_some(()).ok_or_else(|| no_status(word))?;
    }
    let scopes = match scope {
        // Of a scope that is not the caller's there is nothing, as if it were not there.
        Some(scope) => Some(if caller.sees(&scope) { vec![scope] } else { Vec::new() }),
        None => caller.scopes,
    };
    let filter = DagFilter { status, scopes, owner, dag_id, name_part: q };
    let page = Page::new("dags", &filter, cursor.as_deref(), limit)?;
    let look = move |reader: &Reader| {
        if order == Order::Updated {
            return Ok(page.whole("dags", reader.dags_touched(&filter, page.read_limit())?));
        }
        let found = reader.dag_page(&filter, page.last, page.read_limit())?;
        Ok(page.told("dags", found, |dag| dag.key))
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

/// Where a list goes on.
#[derive(Debug, Deserialize)]
pub(super) struct PageQuery {
    cursor: Option<String>,
    limit: Option<u32>,
}

/// Something that waits for a person.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Pending {
    /// A DAG to confirm.
    Dag(PendingLine),
    /// A task to approve.
    Task(WaitingTask),
}

#[derive(Debug, Serialize)]
struct WaitingTask {
    #[serde(flatten)]
    line: WaitingLine,
    approve_url: String,
    reject_url: String,
}

impl From<WaitingLine> for Pending {
    fn from(line: WaitingLine) -> Self {
        let url = |what: &str| format!("/api/v1/runs/{}/tasks/{}/{what}", line.run_id, line.task_id);
        Self::Task(WaitingTask { approve_url: url("approve"), reject_url: url("reject"), line })
    }
}

/// Where tasks begin in the list: no definition ever has such a key.
const TASKS: i64 = 1 << 62;

impl Pending {
    /// Its place in the list.
    fn place(&self) -> i64 {
        match self {
            Self::Dag(line) => line.key,
            Self::Task(task) => TASKS + task.line.execution.0,
        }
    }
}

/// `GET /api/v1/pending`: what waits for a person, DAGs before tasks, the longest waiting first.
pub(super) async fn pending(
    Has(state): Has<State>,
    Extension(caller): Extension<Caller>,
    Args(PageQuery { cursor, limit }): Args<PageQuery>,
) -> Said {
    let page = Page::new("pending", &(), cursor.as_deref(), limit)?;
    let look = move |reader: &Reader| {
        let (last, limit) = (page.last.unwrap_or(0), page.read_limit());
        let mut found: Vec<Pending> = match last {
            ..TASKS => reader
                .pending(caller.scopes.as_deref(), page.last, limit)?
                .into_iter()
                .map(Pending::Dag)
                .collect(),
            _ => Vec::new(),
        };
        let (after, room) = (ExecutionId((last - TASKS).max(0)), limit as usize - found.len());
        found.extend(reader.waiting(|scope| caller.sees(scope), after, room)?.into_iter().map(Pending::from));
        Ok(page.told("pending", found, Pending::place))
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

#[derive(Debug, Deserialize)]
pub(super) struct RunQuery {
    scope: Option<Scope>,
    number: Option<i64>,
    cursor: Option<String>,
    limit: Option<u32>,
}

/// `GET /api/v1/dag/{id}/runs`: the latest first; with `number`, that one alone.
pub(super) async fn runs(
    Has(state): Has<State>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Args(RunQuery { scope, number, cursor, limit }): Args<RunQuery>,
) -> Said {
    let look = move |reader: &Reader| {
        let dag = dags::find(reader, &caller, &id, scope.as_ref())?;
        let page = Page::new("runs", &dag.key, cursor.as_deref(), limit)?;
        let found = match number {
            Some(number) => reader.run_by_number(dag.key, number)?.into_iter().collect(),
            None => reader.run_page(dag.key, page.last, page.read_limit())?,
        };
        Ok(page.told("runs", found, |run| run.number))
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

/// `GET /api/v1/runs`: the latest first, of whatever DAG.
pub(super) async fn all_runs(
    Has(state): Has<State>,
    Extension(caller): Extension<Caller>,
    Args(PageQuery { cursor, limit }): Args<PageQuery>,
) -> Said {
    let page = Page::new("all runs", &caller.scopes, cursor.as_deref(), limit)?;
    let look = move |reader: &Reader| {
        let found = reader.all_runs_page(caller.scopes.as_deref(), page.last, page.read_limit())?;
        Ok(page.told("runs", found, |run| run.key.0))
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

#[derive(Debug, Deserialize)]
pub(super) struct TaskQuery {
    task: Option<String>,
    status: Option<String>,
    cursor: Option<String>,
    limit: Option<u32>,
}

/// `GET /api/v1/runs/{run}/tasks`: in file order; with `task`, that one alone.
pub(super) async fn tasks(
    Has(state): Has<State>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Args(TaskQuery { task, status, cursor, limit }): Args<TaskQuery>,
) -> Said {
    let look = move |reader: &Reader| {
        let run = runs::find(reader, &caller, &id)?;
        let known = |word: &String| TaskStatus::from_word(word).ok_or_else(|| no_status(word));
        let status = status.as_ref().map(known).transpose()?;
        let page = Page::new("tasks", &(run.key, status), cursor.as_deref(), limit)?;
        let after = page.last.and_then(|ix| u32::try_from(ix).ok()).map(TaskIx);
        let found = match task {
            Some(task) => reader.task_named(&run, &task)?.into_iter().collect(),
            None => reader.task_page(&run, status, after, page.read_limit())?,
        };
        Ok(page.told("tasks", found, |task| i64::from(task.ix.0)))
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

fn no_status(word: &str) -> Refusal {
    Refusal::new(ErrorCode::ValidationFailed, format!("there is no status `{word}` here"))
}
