//! Long lists, a page at a time: DAGs, what waits for a person, runs, tasks, tokens.

use cis_api::Request;
use cis_api::calls::{ListDagRuns, ListDags, ListPending, ListRuns, ListTasks, ListTokens};
use cis_api::dag::{DagOrder, DagPath, DagQuery, Dags};
use cis_api::review::{Pending, PendingItem, PendingTask};
use cis_api::run::{PageQuery, RunPath, RunQuery, Runs};
use cis_api::task::{TaskQuery, Tasks};
use cis_api::token::Tokens;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{ExecutionId, TaskIx};
use cis_core::revision::RevisionStatus;
use cis_core::run::RunStatus;
use cis_core::task::TaskStatus;
use cis_store::rows::{Keyed, RunRow, WaitingRow};
use cis_store::{DagFilter, Reader};

use super::look::{Look, Read};
use super::page::Page;
use super::tokens::check_governs_tokens;

/// What is shown of rows.
fn shown<K, T>(rows: Vec<Keyed<K, T>>) -> Vec<T> {
    rows.into_iter().map(|row| row.shown).collect()
}

fn shown_runs(rows: Vec<RunRow>) -> Vec<cis_api::run::RunSummary> {
    rows.into_iter().map(|row| row.shown).collect()
}

impl Read for ListDags {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Dags, Refusal> {
        let DagQuery { status, scope, owner, dag_id, q, order, cursor, limit } = request.query;
        if let Some(word) = &status {
            let known = RunStatus::from_word(word).is_some() || RevisionStatus::from_word(word).is_some();
            known.then_some(()).ok_or_else(|| no_status(word))?;
        }
        let scopes = match scope {
            // Of a scope that is not the caller's there is nothing, as if it were not there.
            Some(scope) => Some(if look.caller.sees(&scope) { vec![scope] } else { Vec::new() }),
            None => look.caller.scopes.clone(),
        };
        let filter = DagFilter { status, scopes, owner, dag_id, name_part: q };
        let page = Page::new("dags", &filter, cursor.as_deref(), limit, look.page_max)?;
        if order == DagOrder::Updated {
            let (dags, more) = look.reader.dags_touched(&filter, page.limit)?;
            return Ok(Dags { dags: shown(dags), next_cursor: None, more: Some(more) });
        }
        let found = look.reader.dag_page(&filter, page.last, page.limit)?;
        let (dags, next_cursor) = page.cut(found, |dag| dag.key);
        Ok(Dags { dags: shown(dags), next_cursor, more: None })
    }
}

/// Where tasks begin in the list of what waits: no definition ever has such a key.
const TASKS: i64 = 1 << 62;

fn pending_task(row: WaitingRow) -> PendingItem {
    let task = row.shown;
    let url = |what: &str| format!("/api/v1/runs/{}/tasks/{}/{what}", task.run_id, task.task_id);
    PendingItem::Task(Box::new(PendingTask { approve_url: url("approve"), reject_url: url("reject"), task }))
}

impl Read for ListPending {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Pending, Refusal> {
        let PageQuery { cursor, limit } = request.query;
        let page = Page::new("pending", &(), cursor.as_deref(), limit, look.page_max)?;
        let last = page.last.unwrap_or(0);
        let (dags, mut more) = match last {
            ..TASKS => look.reader.pending(look.caller.scopes.as_deref(), page.last, page.limit)?,
            _ => Default::default(),
        };
        let mut found: Vec<(i64, PendingItem)> =
            dags.into_iter().map(|row| (row.key, PendingItem::Dag(row.shown))).collect();
        if !more {
            let (after, room) = (ExecutionId((last - TASKS).max(0)), page.limit as usize - found.len());
            let tasks = look.reader.waiting(|scope| look.caller.sees(scope), after, room)?;
            found.extend(tasks.0.into_iter().map(|row| (TASKS + row.key.0, pending_task(row))));
            more = tasks.1;
        }
        let (found, next_cursor) = page.cut((found, more), |(place, _)| *place);
        Ok(Pending { pending: found.into_iter().map(|(_, item)| item).collect(), next_cursor })
    }
}

impl Read for ListDagRuns {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Runs, Refusal> {
        let (DagPath { id }, RunQuery { scope, number, cursor, limit }) = (request.path, request.query);
        let dag = look.dag(&id, scope.as_ref())?;
        let page = Page::new("runs", &dag.key, cursor.as_deref(), limit, look.page_max)?;
        let found = match number {
            Some(number) => (numbered(look.reader, dag.key, number)?, false),
            None => look.reader.run_page(dag.key, page.last, page.limit)?,
        };
        let (runs, next_cursor) = page.cut(found, |run| run.number);
        Ok(Runs { runs: shown_runs(runs), next_cursor })
    }
}

/// The run with this number, if there is one and it was not pruned.
fn numbered(reader: &Reader, dag: i64, number: i64) -> Result<Vec<RunRow>, Refusal> {
    let run = reader.run_by_number(dag, number)?;
    match reader.pruned_by_number(dag, number)? {
        Some(pruned) if run.is_none() => Err(pruned.refusal()),
        _ => Ok(run.into_iter().collect()),
    }
}

impl Read for ListRuns {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Runs, Refusal> {
        let PageQuery { cursor, limit } = request.query;
        let page = Page::new("all runs", &look.caller.scopes, cursor.as_deref(), limit, look.page_max)?;
        let found = look.reader.all_runs_page(look.caller.scopes.as_deref(), page.last, page.limit)?;
        let (runs, next_cursor) = page.cut(found, |run| run.key.0);
        Ok(Runs { runs: shown_runs(runs), next_cursor })
    }
}

impl Read for ListTasks {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Tasks, Refusal> {
        let (RunPath { run }, TaskQuery { task, status, cursor, limit }) = (request.path, request.query);
        let run = look.run(&run)?;
        let known = |word: &String| TaskStatus::from_word(word).ok_or_else(|| no_status(word));
        let status = status.as_ref().map(known).transpose()?;
        let page = Page::new("tasks", &(run.key, status), cursor.as_deref(), limit, look.page_max)?;
        let after = page.last.and_then(|ix| u32::try_from(ix).ok()).map(TaskIx);
        let found = match task {
            Some(task) => (look.reader.task_named(&run, &task)?.into_iter().collect(), false),
            None => look.reader.task_page(&run, status, after, page.limit)?,
        };
        let (tasks, next_cursor) = page.cut(found, |task| i64::from(task.key.0));
        Ok(Tasks { tasks: shown(tasks), next_cursor })
    }
}

impl Read for ListTokens {
    fn read(look: Look<'_>, _: Request<Self>) -> Result<Tokens, Refusal> {
        check_governs_tokens(look.caller)?;
        Ok(Tokens { tokens: look.reader.tokens()? })
    }
}

fn no_status(word: &str) -> Refusal {
    Refusal::new(ErrorCode::ValidationFailed, format!("there is no status `{word}` here"))
}
