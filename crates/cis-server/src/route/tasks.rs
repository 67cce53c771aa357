//! Tasks that others work on: claiming them, and everything a holder says.

use std::time::Duration;

use axum::Extension;
use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use axum::response::Response;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{ExecutionId, Scope};
use cis_core::source::Millis;
use cis_engine::work::{Job, Outcome, Piece, Stream};
use cis_store::port::{ClaimWork, Concluded, Holding, Once, Progress};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{Asked, WAIT_MAX, dags, mark_replayed};
use crate::State;
use crate::answer::{self, Beat, Claimed, Noted, Written};
use crate::definition::Submission;
use crate::document::TASKS;
use crate::door::Holder;
use crate::fence::SentFence;
use crate::say::{Said, Yes, not_found, said_no, yes};

/// A lease, unless the claim says otherwise, and what it may say.
const LEASE_SECS: u64 = 300;
const LEASE_SECS_MAX: u64 = 24 * 60 * 60;

/// Tasks one claim takes at most.
const CLAIM_MAX: u32 = 100;

/// The longest name of a worker, a claim or a capability, and how many capabilities there may be.
const NAME_MAX: usize = 255;
const CAPABILITIES_MAX: usize = 100;

/// The longest note, and the longest outputs, a holder may leave.
const NOTE_BYTES_MAX: usize = 16 << 10;
const OUTPUTS_BYTES_MAX: usize = 1 << 20;

/// Where a stream of output ends at the latest: every JSON client counts as far, and sums of two streams fit a column.
const LOG_OFFSET_MAX: u64 = (1 << 53) - 1;

/// What a claim may say.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Claim {
    /// The caller's own name for this claim: again, it answers the same tasks.
    #[schema(min_length = 1, max_length = 255)]
    claim_id: Option<String>,
    /// Whom people see as the holder; else the identity of the token.
    #[schema(min_length = 1, max_length = 255)]
    worker: Option<String>,
    /// `external`, which is what there is.
    #[schema(example = json!(["external"]))]
    kinds: Option<Vec<String>>,
    /// What the worker can do; tasks that need more are not for it.
    #[serde(default)]
    #[schema(max_items = 100)]
    capabilities: Vec<String>,
    scopes: Option<Vec<Scope>>,
    /// At most so many tasks; one, unless it is said.
    #[schema(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// How long the lease lasts without a heartbeat; 300, unless it is said.
    #[schema(minimum = 1, maximum = 86_400)]
    lease_secs: Option<u64>,
    /// How long to wait for a task; over 60 counts as 60.
    wait_secs: Option<u64>,
}

/// Claim tasks.
///
/// It answers once there is something, or the time is over.
#[utoipa::path(post, path = "/api/v1/tasks/claim", tag = TASKS, params(Asked), request_body = Option<Claim>,
    responses((status = 200, description = "the caller holds them", body = Yes<Claimed>), (status = 409)))]
pub(super) async fn claim(
    Has(state): Has<State>,
    Extension(holder): Extension<Holder>,
    asked: Asked,
) -> Said {
    let claim: Claim = asked.json()?;
    let wait = Duration::from_secs(claim.wait_secs.unwrap_or(0)).min(WAIT_MAX);
    let request = wanted(&state, claim, &asked)?;
    let jobs = tokio::select! {
        jobs = state.node.claim(request, wait) => jobs?,
        () = crate::gone(state.leaving.clone()) => Vec::new(),
        // What it claimed from then on it could neither keep nor end.
        refusal = holder.no_longer_good(&state) => return Err(refusal.into()),
    };
    Ok(yes(StatusCode::OK, Claimed { tasks: jobs.into_iter().map(job).collect() }))
}

fn wanted(state: &State, claim: Claim, asked: &Asked) -> Result<ClaimWork, Refusal> {
    let identity = asked.caller.identity.clone();
    let kinds = claim.kinds.unwrap_or_default();
    if !kinds.is_empty() && !kinds.iter().any(|kind| kind == "external") {
        return Err(invalid("`kinds`: only `external` tasks are claimed over HTTP"));
    }
    let limit = claim.limit.unwrap_or(1);
    if !(1..=CLAIM_MAX).contains(&limit) {
        return Err(invalid(format!("`limit` is 1 to {CLAIM_MAX}")));
    }
    if claim.capabilities.len() > CAPABILITIES_MAX {
        return Err(invalid(format!("`capabilities`: at most {CAPABILITIES_MAX}")));
    }
    let names = [&claim.claim_id, &claim.worker].into_iter().flatten().chain(&claim.capabilities);
    for name in names {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(invalid(format!("names are 1 to {NAME_MAX} characters long")));
        }
    }
    let key = asked.key()?.map(|key| key.key);
    Ok(ClaimWork {
        // A claim's id is a key by another name.
        claim_id: claim.claim_id.or(key),
        worker: claim.worker.unwrap_or_else(|| identity.clone()),
        identity,
        limit,
        scopes: within(claim.scopes, asked.caller.scopes.as_deref()),
        capabilities: claim.capabilities,
        term: term(claim.lease_secs)?.unwrap_or(Millis(LEASE_SECS * 1_000)),
        now: state.node.now(),
        since_boot: state.node.since_boot(),
    })
}

/// The scopes a claim asks for, as far as its caller sees them.
fn within(asked: Option<Vec<Scope>>, seen: Option<&[Scope]>) -> Option<Vec<Scope>> {
    match (asked, seen) {
        (Some(asked), Some(seen)) => Some(asked.into_iter().filter(|scope| seen.contains(scope)).collect()),
        (asked, seen) => asked.or_else(|| seen.map(<[Scope]>::to_vec)),
    }
}

fn term(secs: Option<u64>) -> Result<Option<Millis>, Refusal> {
    match secs {
        Some(secs) if !(1..=LEASE_SECS_MAX).contains(&secs) => {
            Err(invalid(format!("`lease_secs` is 1 to {LEASE_SECS_MAX}")))
        }
        secs => Ok(secs.map(|secs| Millis(secs * 1_000))),
    }
}

/// A claimed task, with all its holder needs to know.
fn job(job: Job) -> answer::Job {
    let Job { held, input, lease_expires } = job;
    let claim = &held.claim;
    let (dag, task) = (&claim.run.definition.dag, claim.task());
    answer::Job {
        execution_id: claim.execution,
        fence: claim.fence,
        lease_expires,
        lease_secs: held.term.0 / 1_000,
        run_id: claim.run.run_id,
        run: format!("{}#{}", dag.dag_id, claim.run.number),
        dag_id: dag.dag_id.clone(),
        scope: dag.scope.clone(),
        task_id: task.id.clone(),
        name: task.title().to_owned(),
        description: task.more().description.clone(),
        attempt: claim.attempt,
        params: claim.run.params.clone(),
        input,
        handoff: held.handoff,
    }
}

/// What every word of a holder begins with.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Heartbeat {
    fence: SentFence,
    /// How long the lease lasts from now on; else as before.
    #[schema(minimum = 1, maximum = 86_400)]
    lease_secs: Option<u64>,
}

/// Say that it still goes on.
#[utoipa::path(post, path = "/api/v1/tasks/{execution}/heartbeat", tag = TASKS,
    params(("execution" = ExecutionId, Path)), request_body = Heartbeat,
    responses((status = 200, description = "the lease lasts", body = Yes<Beat>), (status = 409)))]
pub(super) async fn heartbeat(Has(state): Has<State>, Path(execution): Path<String>, asked: Asked) -> Said {
    let Heartbeat { fence, lease_secs } = asked.json()?;
    let holding = holding(&state, &execution, fence, &asked)?;
    let (beat, lease_expires) = state.node.heartbeat(holding, term(lease_secs)?).await?;
    let told = Beat { lease_expires, lease_secs: beat.term.0 / 1_000, cancel: beat.cancel };
    Ok(yes(StatusCode::OK, told))
}

/// How far it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Percent {
    fence: SentFence,
    #[schema(minimum = 0, maximum = 100)]
    percent: Option<f64>,
    note: Option<String>,
}

/// Say how far it is.
///
/// Whoever holds the task next is told.
#[utoipa::path(post, path = "/api/v1/tasks/{execution}/progress", tag = TASKS,
    params(("execution" = ExecutionId, Path)), request_body = Percent,
    responses((status = 200, description = "it was noted", body = Yes<Noted>), (status = 409)))]
pub(super) async fn progress(Has(state): Has<State>, Path(execution): Path<String>, asked: Asked) -> Said {
    let Percent { fence, percent, note } = asked.json()?;
    if percent.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
        return Err(invalid("`percent` is 0 to 100").into());
    }
    if note.as_ref().is_some_and(|note| note.len() > NOTE_BYTES_MAX) {
        return Err(invalid(format!("`note` is at most {NOTE_BYTES_MAX} bytes")).into());
    }
    let holding = holding(&state, &execution, fence, &asked)?;
    state.node.progress(holding, Progress { percent, note }).await?;
    Ok(yes(StatusCode::OK, Noted {}))
}

/// A piece of what it prints.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Words {
    fence: SentFence,
    #[serde(default)]
    #[schema(required = false)]
    stream: StreamName,
    /// Where the text stands in its stream: told again, it is written once.
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    offset: u64,
    text: String,
}

#[derive(Debug, Default, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum StreamName {
    #[default]
    Stdout,
    Stderr,
}

/// Tell what it prints.
///
/// The same piece again is written once.
#[utoipa::path(post, path = "/api/v1/tasks/{execution}/log", tag = TASKS,
    params(("execution" = ExecutionId, Path)), request_body = Words,
    responses((status = 200, description = "it was written", body = Yes<Written>), (status = 409)))]
pub(super) async fn log(Has(state): Has<State>, Path(execution): Path<String>, asked: Asked) -> Said {
    let Words { fence, stream, offset, text } = asked.json()?;
    if offset.saturating_add(text.len() as u64) > LOG_OFFSET_MAX {
        let why =
            format!("`offset` counts bytes of the stream: it is, with `text`, at most {LOG_OFFSET_MAX}");
        return Err(invalid(why).into());
    }
    let stream = match stream {
        StreamName::Stdout => Stream::Stdout,
        StreamName::Stderr => Stream::Stderr,
    };
    let holding = holding(&state, &execution, fence, &asked)?;
    let attempt = state.reads.read(move |reader| Ok(reader.attempt(&holding)?)).await?;
    let told = state.node.log(attempt, Piece { stream, offset, bytes: text.into_bytes() }).await?;
    Ok(yes(StatusCode::OK, Written { offset: told }))
}

/// That it is done.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Complete {
    fence: SentFence,
    /// For the tasks after it.
    outputs: Option<Map<String, Value>>,
}

/// Complete a task.
#[utoipa::path(post, path = "/api/v1/tasks/{execution}/complete", tag = TASKS,
    params(("execution" = ExecutionId, Path), Asked), request_body = Complete,
    responses((status = 200, description = "where it stands now", body = Yes<answer::Concluded>), (status = 409)))]
pub(super) async fn complete(Has(state): Has<State>, Path(execution): Path<String>, asked: Asked) -> Said {
    let Complete { fence, outputs } = asked.json()?;
    let outputs = outputs.map(Value::Object);
    if outputs.as_ref().is_some_and(|outputs| outputs.to_string().len() > OUTPUTS_BYTES_MAX) {
        return Err(Refusal::new(
            ErrorCode::PayloadTooLarge,
            format!("`outputs` are over {OUTPUTS_BYTES_MAX} bytes"),
        )
        .hint("leave large things where others find them, and hand on where that is")
        .into());
    }
    conclude(&state, &execution, fence, &asked, Outcome::Completed { outputs }).await
}

/// That it cannot be done.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Fail {
    fence: SentFence,
    /// Why.
    error: String,
    exit_code: Option<i32>,
}

/// Give up a task.
///
/// It is tried again if its definition says so.
#[utoipa::path(post, path = "/api/v1/tasks/{execution}/fail", tag = TASKS,
    params(("execution" = ExecutionId, Path), Asked), request_body = Fail,
    responses((status = 200, description = "where it stands now", body = Yes<answer::Concluded>), (status = 409)))]
pub(super) async fn fail(Has(state): Has<State>, Path(execution): Path<String>, asked: Asked) -> Said {
    let Fail { fence, mut error, exit_code } = asked.json()?;
    error.truncate(error.floor_char_boundary(NOTE_BYTES_MAX));
    conclude(&state, &execution, fence, &asked, Outcome::Failed { error, exit_code }).await
}

/// That somebody else is to do it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Release {
    fence: SentFence,
}

/// Give a task back.
///
/// For whoever claims it next.
#[utoipa::path(post, path = "/api/v1/tasks/{execution}/release", tag = TASKS,
    params(("execution" = ExecutionId, Path), Asked), request_body = Release,
    responses((status = 200, description = "where it stands now", body = Yes<answer::Concluded>), (status = 409)))]
pub(super) async fn release(Has(state): Has<State>, Path(execution): Path<String>, asked: Asked) -> Said {
    let Release { fence } = asked.json()?;
    conclude(&state, &execution, fence, &asked, Outcome::Released).await
}

async fn conclude(state: &State, execution: &str, fence: SentFence, asked: &Asked, outcome: Outcome) -> Said {
    let holding = holding(state, execution, fence, asked)?;
    let Once { answer, replayed } = state.node.conclude(asked.key()?, holding, outcome).await?;
    let told = answer.map_or_else(said_no, say_concluded);
    Ok(mark_replayed(told, replayed))
}

fn say_concluded(concluded: Concluded) -> Response {
    let Concluded { execution, task_id, status, .. } = concluded;
    yes(StatusCode::OK, answer::Concluded { execution_id: execution, task_id, status })
}

/// Who says something of which attempt.
fn holding(state: &State, execution: &str, fence: SentFence, asked: &Asked) -> Result<Holding, Refusal> {
    match execution.parse() {
        Ok(execution) => Ok(state.node.holding(ExecutionId(execution), fence.0, &asked.caller)),
        Err(_) => Err(not_found("task", execution)),
    }
}

/// Publish one task, and a DAG around it.
///
/// The body is a task as a DAG has it, `external` unless it says otherwise, and beside it what belongs to the DAG.
#[utoipa::path(post, path = "/api/v1/tasks", tag = TASKS, params(Asked), request_body = Option<Submission>,
    responses((status = 201, description = "created", body = Yes<answer::Published>),
              (status = 200, description = "it was there already", body = Yes<answer::Published>), (status = 409)))]
pub(super) async fn submit(Has(state): Has<State>, asked: Asked) -> Said {
    let mut task: Map<String, Value> = asked.json()?;
    let mut dag = Map::new();
    for key in ["dag_id", "scope", "priority", "params"] {
        // A task's own `params` are its input.
        if let Some(value) = task.remove(key) {
            dag.insert(key.to_owned(), value);
        }
    }
    if let Some(by) = task.remove("submitted_by") {
        let Some(by) = by.as_str() else { return Err(invalid("`submitted_by` is a name").into()) };
        dag.insert("description".to_owned(), format!("submitted by {by}").into());
    }
    let unnamed = || format!("task-{}", state.node.new_run_id()).into();
    dag.entry("dag_id").or_insert_with(unnamed);
    task.entry("id").or_insert_with(|| "task".into());
    if !["type", "kind", "command", "cmd", "skill"].iter().any(|key| task.contains_key(*key)) {
        task.insert("type".to_owned(), "external".into());
    }
    dag.insert("tasks".to_owned(), json!([task]));
    dags::publish_definition(&state, &asked, Value::Object(dag).to_string().into()).await
}

fn invalid(why: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::ValidationFailed, why)
}
