//! Long lists, a page at a time: DAGs, what waits for a person, the runs of a DAG, the tasks of a run.

use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, ExecutionId, RunId, Scope, TaskIx};
use cis_core::run::RunStatus;
use cis_core::task::TaskStatus;
use cis_store::port::RevisionStatus;
use cis_store::sqlite::reader::RunLine;
use cis_store::sqlite::{DagFilter, Reader, WaitingLine};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{Args, dags, runs};
use crate::State;
use crate::answer::{Dags, Pending, Runs, Tasks, Waiting, WaitingTask};
use crate::cursor::Page;
use crate::document::{DAGS, RUNS};
use crate::door::By;
use crate::say::{Said, Yes, yes};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct DagQuery {
    /// Only those that stand so.
    #[param(example = "pending")]
    status: Option<String>,
    scope: Option<Scope>,
    /// Who published the latest revision.
    owner: Option<String>,
    /// Only the DAG of this name.
    dag_id: Option<String>,
    /// A part of the name.
    q: Option<String>,
    #[serde(default)]
    #[param(inline)]
    order: Order,
    /// `next_cursor` of an earlier answer.
    cursor: Option<String>,
    /// At most so many; over 1,000 counts as 1,000.
    limit: Option<u32>,
}

/// How DAGs are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// The newest first, page by page.
    #[default]
    Created,
    /// The latest change first: one page, since what changes meanwhile moves.
    Updated,
}

/// DAGs, the newest first.
#[utoipa::path(get, path = "/api/v1/dag", tag = DAGS, params(DagQuery),
    responses((status = 200, description = "what there is", body = Yes<Dags>)))]
pub(super) async fn dags(Has(state): Has<State>, By(caller): By, Args(query): Args<DagQuery>) -> Said {
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
            let (dags, more) = page.whole(reader.dags_touched(&filter, page.read_limit())?);
            return Ok(Dags { dags, next_cursor: None, more: Some(more) });
        }
        let found = reader.dag_page(&filter, page.last, page.read_limit())?;
        let (dags, next_cursor) = page.cut(found, |dag| dag.key);
        Ok(Dags { dags, next_cursor, more: None })
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

/// Where a list goes on.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    /// `next_cursor` of an earlier answer.
    cursor: Option<String>,
    /// At most so many; over 1,000 counts as 1,000.
    limit: Option<u32>,
}

impl From<WaitingLine> for Waiting {
    fn from(line: WaitingLine) -> Self {
        let url = |what: &str| format!("/api/v1/runs/{}/tasks/{}/{what}", line.run_id, line.task_id);
        Self::Task(Box::new(WaitingTask { approve_url: url("approve"), reject_url: url("reject"), line }))
    }
}

/// Where tasks begin in the list: no definition ever has such a key.
const TASKS: i64 = 1 << 62;

impl Waiting {
    /// Its place in the list.
    fn place(&self) -> i64 {
        match self {
            Self::Dag(line) => line.key,
            Self::Task(task) => TASKS + task.line.execution.0,
        }
    }
}

/// What waits for a person.
///
/// DAGs before tasks, the longest waiting first.
#[utoipa::path(get, path = "/api/v1/pending", tag = DAGS, params(PageQuery),
    responses((status = 200, description = "what waits", body = Yes<Pending>)))]
pub(super) async fn pending(
    Has(state): Has<State>,
    By(caller): By,
    Args(PageQuery { cursor, limit }): Args<PageQuery>,
) -> Said {
    let page = Page::new("pending", &(), cursor.as_deref(), limit)?;
    let look = move |reader: &Reader| {
        let (last, limit) = (page.last.unwrap_or(0), page.read_limit());
        let mut found: Vec<Waiting> = match last {
            ..TASKS => reader
                .pending(caller.scopes.as_deref(), page.last, limit)?
                .into_iter()
                .map(Waiting::Dag)
                .collect(),
            _ => Vec::new(),
        };
        let (after, room) = (ExecutionId((last - TASKS).max(0)), limit as usize - found.len());
        found.extend(reader.waiting(|scope| caller.sees(scope), after, room)?.into_iter().map(Waiting::from));
        let (pending, next_cursor) = page.cut(found, Waiting::place);
        Ok(Pending { pending, next_cursor })
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RunQuery {
    /// Which one is meant, where a name exists in several.
    scope: Option<Scope>,
    /// Only the run with this number.
    number: Option<i64>,
    /// `next_cursor` of an earlier answer.
    cursor: Option<String>,
    /// At most so many; over 1,000 counts as 1,000.
    limit: Option<u32>,
}

/// The runs of a DAG, the latest first.
#[utoipa::path(get, path = "/api/v1/dag/{id}/runs", tag = RUNS,
    params(("id" = DagId, Path, description = "what people call the DAG"), RunQuery),
    responses((status = 200, description = "its runs", body = Yes<Runs>), (status = 409), (status = 410)))]
pub(super) async fn runs(
    Has(state): Has<State>,
    By(caller): By,
    Path(id): Path<String>,
    Args(RunQuery { scope, number, cursor, limit }): Args<RunQuery>,
) -> Said {
    let look = move |reader: &Reader| {
        let dag = dags::find(reader, &caller, &id, scope.as_ref())?;
        let page = Page::new("runs", &dag.key, cursor.as_deref(), limit)?;
        let found = match number {
            Some(number) => numbered(reader, dag.key, number)?,
            None => reader.run_page(dag.key, page.last, page.read_limit())?,
        };
        let (runs, next_cursor) = page.cut(found, |run| run.number);
        Ok(Runs { runs, next_cursor })
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

/// The run with this number, if there is one and it was not pruned.
fn numbered(reader: &Reader, dag: i64, number: i64) -> Result<Vec<RunLine>, Refusal> {
    let run = reader.run_by_number(dag, number)?;
    match reader.pruned_by_number(dag, number)? {
        Some(pruned) if run.is_none() => Err(pruned.refusal()),
        _ => Ok(run.into_iter().collect()),
    }
}

/// All runs, the latest first, of whatever DAG.
#[utoipa::path(get, path = "/api/v1/runs", tag = RUNS, params(PageQuery),
    responses((status = 200, description = "what ran", body = Yes<Runs>)))]
pub(super) async fn all_runs(
    Has(state): Has<State>,
    By(caller): By,
    Args(PageQuery { cursor, limit }): Args<PageQuery>,
) -> Said {
    let page = Page::new("all runs", &caller.scopes, cursor.as_deref(), limit)?;
    let look = move |reader: &Reader| {
        let found = reader.all_runs_page(caller.scopes.as_deref(), page.last, page.read_limit())?;
        let (runs, next_cursor) = page.cut(found, |run| run.key.0);
        Ok(Runs { runs, next_cursor })
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskQuery {
    /// Only the task with this id.
    task: Option<String>,
    /// Only those that stand so.
    #[param(example = "failed")]
    status: Option<String>,
    /// `next_cursor` of an earlier answer.
    cursor: Option<String>,
    /// At most so many; over 1,000 counts as 1,000.
    limit: Option<u32>,
}

/// The tasks of a run, in the order of its definition.
#[utoipa::path(get, path = "/api/v1/runs/{run}/tasks", tag = RUNS, params(("run" = RunId, Path), TaskQuery),
    responses((status = 200, description = "its tasks", body = Yes<Tasks>)))]
pub(super) async fn tasks(
    Has(state): Has<State>,
    By(caller): By,
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
        let (tasks, next_cursor) = page.cut(found, |task| i64::from(task.ix.0));
        Ok(Tasks { tasks, next_cursor })
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

fn no_status(word: &str) -> Refusal {
    Refusal::new(ErrorCode::ValidationFailed, format!("there is no status `{word}` here"))
}
