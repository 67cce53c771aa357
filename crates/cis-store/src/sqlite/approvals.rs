//! Tasks that wait for a person: asking, what is answered, and what happens if nobody answers in time.

use cis_core::access::Publisher;
use cis_core::dag::approval::{self, Approval, OnTimeout};
use cis_core::dag::{Kind, Task};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{ExecutionId, RunKey, Version};
use cis_core::readiness::Skip;
use cis_core::review::Opening;
use cis_core::source::Timestamp;
use cis_core::task::{TaskMove, TaskStatus};
use rusqlite::{OptionalExtension, Row, params};
use serde_json::{Map, Value, json};

use super::causes::cut_cause;
use super::claim;
use super::definitions::check_note;
use super::events::Told;
use super::reviews;
use super::runs;
use super::tasks::{self, TaskRow};
use super::tx::{Tx, parsed};
use crate::port::{Answer, Approve, Approved};

/// What is said of a task that nobody answered for.
const NO_ANSWER: &str = "nobody answered in time";

/// A pending task whose dependencies are met waits for a person from now on. That takes no place among the tasks that
/// may run, and begins its run.
pub(super) fn ask(tx: &mut Tx<'_>, task: TaskRow) -> Answer<()> {
    let run = tx.run(task.run)?;
    let (definition, run_id) = (run.definition().clone(), run.info.run_id);
    let asked = &definition.dag.tasks[task.ix.index()];
    // The `timeout` of other kinds is for their attempts.
    let limit = asked.more().timeout.filter(|_| question(asked).is_some());
    let deadline = limit.map(|limit| tx.now.after(limit));
    if let Some(at) = deadline {
        tx.due(at);
    }
    claim::begin_run(tx, task.run)?;
    let (execution, opened_at) = (task.execution, tx.now);
    let opening = Opening::Task { definition: definition.key, run: run_id, execution, opened_at };
    let review = reviews::open(tx, &opening)?;
    let to = task.status.after(TaskMove::NeedsPerson).map_err(Refusal::from)?;
    let changed = tx
        .conn
        .prepare_cached(
            "UPDATE task_executions SET status = 'waiting', version = version + 1, asked_at = ?3, answer_deadline = ?4,
                    review_id = ?5
             WHERE execution_id = ?1 AND status = 'pending' AND version = ?2 AND deps_left = 0",
        )?
        .execute(params![
            task.execution.0,
            task.version.0,
            tx.now.0,
            deadline.map(|t| t.0),
            review.to_string()
        ])?;
    tasks::guarded(changed, task)?;
    let version = Version(task.version.0 + 1);
    let data = json!({"review_id": review});
    tx.event(task.run, Some(task.ix), version, TaskMove::NeedsPerson.word(), to.word(), Told::data(&data))
}

fn question(task: &Task) -> Option<&Approval> {
    match &task.kind {
        Kind::Approval(approval) => Some(approval),
        _ => None,
    }
}

/// See [`crate::Store::approve`].
pub(super) fn decide(tx: &mut Tx<'_>, request: &Approve) -> Answer<Approved> {
    let task = find(tx, request.execution)?;
    let run = tx.run(task.run)?;
    let (definition, stopping) = (run.definition().clone(), run.is_stopping());
    let asked = &definition.dag.tasks[task.ix.index()];
    if let Some(before) = decided(tx, request.execution)? {
        return same(tx, task, asked, request, before);
    }
    if task.status != TaskStatus::Waiting || stopping {
        return Err(not_waiting(asked, task.status, stopping).into());
    }
    check(tx, request, asked, definition.key, task.run)?;
    settle(tx, task, asked, request)?;
    let (approved, by, note) = (request.approve, request.by.clone(), request.note.clone());
    let decision = Decision { approved, by, at: tx.now, note };
    answer(tx, task, asked, decision, true)
}

fn find(tx: &mut Tx<'_>, execution: ExecutionId) -> Answer<TaskRow> {
    let row = tx
        .conn
        .prepare_cached("SELECT run_key, status, version FROM task_executions WHERE execution_id = ?1")?
        .query_row([execution.0], |row| {
            Ok((RunKey(row.get(0)?), parsed(row, 1, TaskStatus::from_word)?, Version(row.get(2)?)))
        })
        .optional()?;
    let (run, status, version) =
        row.ok_or_else(|| Refusal::new(ErrorCode::NotFound, format!("no task {execution}")))?;
    Ok(TaskRow { execution, run, ix: tx.run(run)?.ix(execution), status, version })
}

/// What was decided about a task, and by whom.
struct Decision {
    approved: bool,
    by: String,
    at: Timestamp,
    note: Option<String>,
}

impl Decision {
    fn word(approved: bool) -> &'static str {
        if approved { "approved" } else { "rejected" }
    }
}

fn decided(tx: &Tx<'_>, execution: ExecutionId) -> Answer<Option<Decision>> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT decision, decided_by, note, decided_at FROM task_decisions WHERE execution_id = ?1",
    )?;
    let row = statement.query_row([execution.0], |row| {
        let approved = row.get_ref(0)?.as_str()? == "approved";
        Ok(Decision { approved, by: row.get(1)?, at: Timestamp(row.get(3)?), note: row.get(2)? })
    });
    Ok(row.optional()?)
}

/// The answer to a decision that had been made; another one comes too late.
fn same(
    tx: &mut Tx<'_>,
    task: TaskRow,
    asked: &Task,
    request: &Approve,
    before: Decision,
) -> Answer<Approved> {
    let (was, by) = (Decision::word(before.approved), before.by.clone());
    let told = answer(tx, task, asked, before, false)?;
    let agrees = told.approved == request.approve;
    let other_input = agrees && request.approve && told.outputs.clone().unwrap_or_default() != request.input;
    if agrees && !other_input {
        return Ok(told);
    }
    let other = if other_input { " with other input" } else { "" };
    Err(Refusal::new(ErrorCode::InvalidTransition, format!("`{}` was {was} by {by}{other}", asked.id))
        .hint("a decision is final; a new run asks again")
        .details(json!({"from": was, "to": Decision::word(request.approve), "by": by}))
        .into())
}

fn not_waiting(asked: &Task, status: TaskStatus, stopping: bool) -> Refusal {
    let why = match status {
        TaskStatus::Waiting if stopping => "its run is being stopped".to_owned(),
        TaskStatus::Pending if asked.needs_person() => "it still waits for other tasks".to_owned(),
        _ => format!("it is {status}, and waits for nobody's approval"),
    };
    Refusal::new(ErrorCode::InvalidTransition, format!("`{}` cannot be decided about: {why}", asked.id))
        .details(json!({"from": status.word()}))
}

/// May this caller say this?
fn check(tx: &Tx<'_>, request: &Approve, asked: &Task, definition: i64, run: RunKey) -> Answer<()> {
    if request.approve {
        let publisher = tx
            .conn
            .prepare_cached(
                "SELECT created_by, publisher_proven FROM dag_definitions WHERE definition_key = ?1",
            )?
            .query_row([definition], |row| Ok(Publisher { identity: row.get(0)?, proven: row.get(1)? }))?;
        publisher.check_decider(&request.by, request.self_confirm)?;
        if let Some(starter) = starter(tx, run)? {
            starter.check_approver_of_run(&request.by, request.self_confirm)?;
        }
    }
    check_note(request.note.as_deref())?;
    let nothing = Approval::default();
    let takes = question(asked).filter(|_| request.approve).unwrap_or(&nothing);
    Ok(approval::check_input(&takes.input, &request.input)?)
}

/// The caller that started a run and chose what it was given. A confirmation gives nothing: the caller that confirmed a DAG
/// may also approve the tasks of the run that this started.
fn starter(tx: &Tx<'_>, run: RunKey) -> Answer<Option<Publisher>> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT created_by, starter_proven FROM dag_runs r WHERE run_key = ?1 AND NOT EXISTS
             (SELECT 1 FROM dag_confirmations c WHERE c.definition_key = r.definition_key AND c.run_key = r.run_key)",
    )?;
    let read = |row: &Row<'_>| Ok(Publisher { identity: row.get(0)?, proven: row.get(1)? });
    Ok(statement.query_row([run.0], read).optional()?)
}

/// Writes the decision and lets the task go where it says.
fn settle(tx: &mut Tx<'_>, task: TaskRow, asked: &Task, request: &Approve) -> Answer<()> {
    tx.conn.prepare_cached("INSERT INTO task_decisions VALUES (?1, ?2, ?3, ?4, ?5)")?.execute(params![
        task.execution.0,
        Decision::word(request.approve),
        request.by,
        tx.now.0,
        request.note
    ])?;
    let mut data = Map::new();
    data.insert("by".into(), json!(request.by));
    if let Some(note) = &request.note {
        data.insert("note".into(), json!(note));
    }
    let by = Some(request.by.as_str());
    match (request.approve, question(asked)) {
        (true, Some(question)) => {
            let outputs = (!question.input.is_empty()).then_some(&request.input);
            complete(tx, task, outputs, Told::data(&Value::Object(data)).by(by))
        }
        (true, None) => {
            tasks::make_ready(tx, task, TaskMove::Approve, Told::data(&Value::Object(data)).by(by))
        }
        (false, _) => {
            let note = request.note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
            let cause = format!("rejected by {}{note}", request.by);
            data.insert("cause".into(), json!(cut_cause(cause.clone())));
            end(tx, task, TaskMove::Reject, &cause, Told::data(&Value::Object(data)).by(by))
        }
    }
}

fn complete(
    tx: &mut Tx<'_>,
    task: TaskRow,
    outputs: Option<&Map<String, Value>>,
    told: Told<'_>,
) -> Answer<()> {
    let status = tasks::move_task(tx, task, TaskMove::ApproveAsDone, told)?;
    if let Some(outputs) = outputs {
        let text = serde_json::to_string(outputs).unwrap_or_default();
        tx.conn
            .prepare_cached("UPDATE task_executions SET outputs_json = ?2 WHERE execution_id = ?1")?
            .execute(params![task.execution.0, text])?;
    }
    tasks::ended(tx, task.run, task.ix, status)?;
    tasks::tell_ending(tx)
}

/// Ends a task that does not go on.
fn end(tx: &mut Tx<'_>, task: TaskRow, step: TaskMove, cause: &str, told: Told<'_>) -> Answer<()> {
    let status = tasks::move_task(tx, task, step, told)?;
    tx.conn
        .prepare_cached("UPDATE task_executions SET cause = ?2 WHERE execution_id = ?1")?
        .execute(params![task.execution.0, cause])?;
    tasks::ended(tx, task.run, task.ix, status)?;
    tasks::tell_ending(tx)
}

/// What is answered to everybody who decides the same: where the decision led, not how far the task has got since.
fn answer(
    tx: &mut Tx<'_>,
    task: TaskRow,
    asked: &Task,
    decision: Decision,
    changed: bool,
) -> Answer<Approved> {
    let question = question(asked);
    let step = match (decision.approved, question) {
        (true, Some(_)) => TaskMove::ApproveAsDone,
        (true, None) => TaskMove::Approve,
        (false, _) => TaskMove::Reject,
    };
    let outputs = match question.filter(|question| decision.approved && !question.input.is_empty()) {
        Some(_) => outputs(tx, task.execution)?,
        None => None,
    };
    Ok(Approved {
        approved: decision.approved,
        changed,
        run: tx.run(task.run)?.reference(),
        task_id: asked.id.clone(),
        status: TaskStatus::Waiting.after(step).map_err(Refusal::from)?,
        by: decision.by,
        at: Some(decision.at),
        note: decision.note,
        outputs,
    })
}

fn outputs(tx: &Tx<'_>, execution: ExecutionId) -> Answer<Option<Map<String, Value>>> {
    let mut statement =
        tx.conn.prepare_cached("SELECT outputs_json FROM task_executions WHERE execution_id = ?1")?;
    let text: Option<String> = statement.query_row([execution.0], |row| row.get(0))?;
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
}

/// A task that waited for longer than it may: what its definition says.
pub(super) fn no_answer(
    tx: &mut Tx<'_>,
    execution: ExecutionId,
    run: RunKey,
    version: Version,
) -> Answer<()> {
    let ix = tx.run(run)?.ix(execution);
    let task = TaskRow { execution, run, ix, status: TaskStatus::Waiting, version };
    let definition = tx.run(run)?.definition().clone();
    let action = question(&definition.dag.tasks[ix.index()]).map(|question| question.on_timeout);
    match action.unwrap_or_default() {
        OnTimeout::Fail => {
            end(tx, task, TaskMove::NoAnswer, NO_ANSWER, Told::data(&json!({"cause": NO_ANSWER})))
        }
        OnTimeout::Approve => complete(tx, task, None, Told::data(&json!({"note": NO_ANSWER}))),
        OnTimeout::Skip => {
            // By no choice of its own: what needs it does not run either.
            let impact = tasks::skip(tx, task, Skip::ByFailure, NO_ANSWER)?;
            let budget = tx.memory.chunks.told_at_once;
            tasks::spread(tx, run, ix, impact, 1, 0, budget)?;
            runs::end_if_over(tx, run)
        }
    }
}
