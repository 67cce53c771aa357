//! Publish, confirm, reject, and where things stand.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State as Has};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use cis_core::access::Caller;
use cis_core::dag::parse::{Defaults, Format, parse};
use cis_core::dag::{Dag, canonical};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, Scope};
use cis_engine::node::Node;
use cis_engine::skill::KeptLock;
use cis_store::port::{Decide, Decided, Once, Publish, Published, RunRef};
use cis_store::sqlite::Reader;
use cis_store::sqlite::reader::DagLine;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::{Args, Asked, InScope, mark_replayed, wait};
use crate::State;
use crate::answer::{self, Novelty, Progress, Shown, Standing, Versioned};
use crate::cursor::LIMIT_MAX;
use crate::definition::Definition;
use crate::document::DAGS;
use crate::door::{By, Holder};
use crate::kept::{Stand, View};
use crate::say::{self, No, Said, Yes, not_found, said_no, yes};

/// Publish a DAG.
///
/// It waits until somebody confirms it. The same content again is `already_exists`; other content under a name that is
/// taken is refused, unless `revision` asks for a new revision.
#[utoipa::path(post, path = "/api/v1/dag/publish", tag = DAGS, params(Asked), request_body = Definition,
    responses((status = 201, description = "created", body = Yes<answer::Published>),
              (status = 200, description = "it was there already", body = Yes<answer::Published>), (status = 409)))]
pub(super) async fn publish(Has(state): Has<State>, asked: Asked) -> Said {
    asked.check_kind()?;
    publish_definition(&state, &asked, asked.body.clone()).await
}

/// Publishes what `asked` asks for, once it is a definition.
pub(super) async fn publish_definition(state: &State, asked: &Asked, body: Bytes) -> Said {
    let caller = &asked.caller;
    // Until it is published: so many definitions are in memory at once, and no more.
    let turn = state.limits.parsing(body.len()).await?;
    let (by, node) = (caller.clone(), state.node.clone());
    let reading = tokio::task::spawn_blocking(move || wanted(&body, &by, &node));
    let gone = |_| Refusal::new(ErrorCode::Unavailable, "the node is shutting down");
    let Wanted { dag, content_hash, new_revision, kept } = reading.await.map_err(gone)??;
    let now = state.node.now();
    let request = Publish {
        key: asked.key()?,
        content_hash,
        dag: Arc::new(dag),
        new_revision,
        by: caller.identity.clone(),
        by_proven: asked.is_proven,
        now,
        expires_at: Some(now.after(state.options.pending_for)),
    };
    let Once { answer, replayed } = state.node.publish(request, kept).await?;
    drop(turn);
    let published = match answer {
        Ok(published) => published,
        Err(refusal) => return Ok(mark_replayed(said_no(refusal), replayed)),
    };
    let decided = match state.options.auto_execute {
        true => Some(execute(state, &published, asked).await?),
        false => None,
    };
    Ok(mark_replayed(say_published(&published, decided.as_ref()), replayed))
}

/// Confirms what was published on behalf of whoever published it. The same again answers the same run.
async fn execute(state: &State, published: &Published, asked: &Asked) -> Result<Decided, Refusal> {
    let request = Decide {
        key: None,
        scope: published.scope.clone(),
        dag_id: published.dag_id.clone(),
        content_hash: Some(published.content_hash.clone()),
        review: published.review_id,
        confirm: true,
        note: None,
        by: asked.caller.identity.clone(),
        self_confirm: true,
        run_id: state.node.new_run_id(),
        traceparent: asked.traceparent.clone(),
        now: state.node.now(),
    };
    state.node.decide(request).await?.answer
}

/// What a body asks to publish.
struct Wanted {
    dag: Dag,
    content_hash: String,
    new_revision: bool,
    kept: Option<KeptLock>,
}

/// Reads and checks it, and keeps its skills: processor work, and work on files.
fn wanted(body: &[u8], caller: &Caller, node: &Node) -> Result<Wanted, Refusal> {
    let (text, new_revision) = without_revision(body);
    let scope = match caller.scopes.as_deref() {
        Some([only]) => Some(only.clone()),
        _ => None,
    };
    let parsed = parse(&text, Format::Json, &Defaults { dag_id: None, scope })
        .map_err(|problems| invalid(&json!(problems)))?;
    let mut dag = parsed.dag;
    if !caller.sees(&dag.scope) {
        return Err(Refusal::new(ErrorCode::Forbidden, format!("your token is not for `{}`", dag.scope)));
    }
    let problems = node.pin_skills(&mut dag);
    if !problems.is_empty() {
        return Err(invalid(&json!(problems)));
    }
    let content_hash = canonical::content_hash(&dag).as_str().to_owned();
    let kept = node.keep_skills(&dag)?;
    Ok(Wanted { dag, content_hash, new_revision, kept })
}

fn say_published(published: &Published, decided: Option<&Decided>) -> Response {
    let Published { dag_id, scope, revision, content_hash, status, created, waits, review_id, .. } =
        published;
    let (waits, review_id) = (waits.filter(|_| decided.is_none()), review_id.filter(|_| decided.is_none()));
    let run = decided.and_then(|decided| decided.run.as_ref());
    let (novelty, code) = match created {
        true => (Novelty::Created, StatusCode::CREATED),
        false => (Novelty::AlreadyExists, StatusCode::OK),
    };
    let told = answer::Published {
        status: novelty,
        dag_id: dag_id.clone(),
        scope: scope.clone(),
        revision: *revision,
        revision_status: decided.map_or(*status, |decided| decided.status),
        content_hash: content_hash.clone(),
        confirm_url: format!("/api/v1/dag/{dag_id}/confirm"),
        review_id,
        expire_sec: waits.map(|waits| waits.0 / 1_000),
        auto_executed: run.is_some(),
        run_id: run.map(|run| run.run_id),
        run: run.map(|run| format!("{dag_id}#{}", run.number)),
    };
    yes(code, told)
}

/// The definition alone, and whether it was asked for as a new revision.
fn without_revision(body: &[u8]) -> (Cow<'_, [u8]>, bool) {
    #[derive(Deserialize)]
    struct Wish {
        revision: Option<bool>,
    }
    // What is wrong with it is not ours to judge: the parser knows what to say.
    let as_it_is = || (body.into(), false);
    let Ok(Wish { revision: Some(wanted) }) = serde_json::from_slice(body) else { return as_it_is() };
    let Ok(Value::Object(mut object)) = serde_json::from_slice(body) else { return as_it_is() };
    object.remove("revision");
    (Value::Object(object).to_string().into_bytes().into(), wanted)
}

fn invalid(problems: &Value) -> Refusal {
    let count = problems.as_array().map_or(0, Vec::len);
    let problem = if count == 1 { "problem" } else { "problems" };
    Refusal::new(ErrorCode::ValidationFailed, format!("the definition has {count} {problem}"))
        .details(problems.clone())
}

/// What a decision may say.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Decision {
    /// Which revision, by its whole hash; needed once there are several.
    content_hash: Option<String>,
    /// Why; kept with the decision.
    #[schema(max_length = 4096)]
    note: Option<String>,
}

/// Confirm a DAG and start it.
///
/// Again, it answers the same run. Whoever published it does not confirm it, owners excepted.
#[utoipa::path(post, path = "/api/v1/dag/{id}/confirm", tag = DAGS,
    params(("id" = DagId, Path, description = "what people call the DAG"), InScope, Asked),
    request_body = Option<Decision>,
    responses((status = 200, description = "confirmed, and started", body = Yes<answer::Decided>), (status = 409)))]
pub(super) async fn confirm(
    Has(state): Has<State>,
    Path(id): Path<String>,
    Args(scope): Args<InScope>,
    asked: Asked,
) -> Said {
    decide(&state, id, scope, &asked, true).await
}

/// Refuse a DAG.
#[utoipa::path(post, path = "/api/v1/dag/{id}/reject", tag = DAGS,
    params(("id" = DagId, Path, description = "what people call the DAG"), InScope, Asked),
    request_body = Option<Decision>,
    responses((status = 200, description = "refused", body = Yes<answer::Decided>), (status = 409)))]
pub(super) async fn reject(
    Has(state): Has<State>,
    Path(id): Path<String>,
    Args(scope): Args<InScope>,
    asked: Asked,
) -> Said {
    decide(&state, id, scope, &asked, false).await
}

async fn decide(state: &State, id: String, InScope { scope }: InScope, asked: &Asked, confirm: bool) -> Said {
    let Decision { content_hash, note } = asked.json()?;
    let (key, caller) = (asked.key()?, asked.caller.clone());
    let dag = state.reads.read(move |reader| find(reader, &caller, &id, scope.as_ref())).await?;
    let request = Decide {
        key,
        scope: dag.scope,
        dag_id: dag.dag_id,
        content_hash,
        review: None,
        confirm,
        note,
        by: asked.caller.identity.clone(),
        self_confirm: asked.caller.self_confirm,
        run_id: state.node.new_run_id(),
        traceparent: asked.traceparent.clone(),
        now: state.node.now(),
    };
    let Once { answer, replayed } = state.node.decide(request).await?;
    let say = |decided: Decided| yes(StatusCode::OK, told(&decided));
    Ok(mark_replayed(answer.map_or_else(said_no, say), replayed))
}

pub(super) fn told(decided: &Decided) -> answer::Decided {
    let Decided { status, dag_id, scope, revision, content_hash, tasks, decision, run, .. } = decided;
    let label = |run: &RunRef| format!("{dag_id}#{}", run.number);
    answer::Decided {
        status: *status,
        dag_id: dag_id.clone(),
        scope: scope.clone(),
        revision: *revision,
        content_hash: content_hash.clone(),
        tasks_count: *tasks,
        decided_by: decision.as_ref().map(|decision| decision.decided_by.clone()),
        decided_at: decision.as_ref().map(|decision| decision.decided_at),
        note: decision.as_ref().and_then(|decision| decision.note.clone()),
        run_id: run.as_ref().map(|run| run.run_id),
        run: run.as_ref().map(label),
        number: run.as_ref().map(|run| run.number),
        run_status: run.as_ref().map(|run| run.status),
        message: run.as_ref().map(|run| format!("{} has started, tasks: {tasks}", label(run))),
    }
}

/// The DAG of this name that the caller may know of; it says which if there are several.
pub(super) fn find(
    reader: &Reader,
    caller: &Caller,
    id: &str,
    scope: Option<&Scope>,
) -> Result<DagLine, Refusal> {
    let known = id.parse::<DagId>().is_ok();
    let found = if known { reader.dag(id, scope.map(Scope::as_str))? } else { Vec::new() };
    let mut seen = found.into_iter().filter(|dag| caller.sees(&dag.scope));
    let Some(first) = seen.next() else { return Err(not_found("DAG", id)) };
    let mut scopes: Vec<Scope> = seen.map(|dag| dag.scope).collect();
    if scopes.is_empty() {
        return Ok(first);
    }
    scopes.insert(0, first.scope);
    Err(Refusal::new(ErrorCode::Ambiguous, format!("`{id}` exists in several scopes"))
        .hint("add `?scope=`")
        .details(json!({"scopes": scopes})))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RevisionQuery {
    /// Which one is meant, where a name exists in several.
    scope: Option<Scope>,
    /// Which revision; else the latest.
    content_hash: Option<String>,
}

/// What would be confirmed, or was.
///
/// The latest revision, unless a hash says which.
#[utoipa::path(get, path = "/api/v1/dag/{id}", tag = DAGS,
    params(("id" = DagId, Path, description = "what people call the DAG"), RevisionQuery),
    responses((status = 200, description = "a revision in full, and a list of all", body = Yes<Shown>),
              (status = 409)))]
pub(super) async fn show(
    Has(state): Has<State>,
    By(caller): By,
    Path(id): Path<String>,
    Args(RevisionQuery { scope, content_hash }): Args<RevisionQuery>,
) -> Said {
    let look = move |reader: &Reader| {
        let dag = find(reader, &caller, &id, scope.as_ref())?;
        let revisions = reader.revisions(dag.key)?;
        let meant = |hash: &str| content_hash.as_deref().is_none_or(|wanted| wanted == hash);
        let revision = revisions.iter().find(|revision| meant(&revision.content_hash)).cloned();
        let revision = revision.ok_or_else(|| not_found("revision with that content of", &id))?;
        let text = canonical::canonical_json(&reader.definition(revision.key)?);
        let definition: Value = serde_json::from_str(&text).map_err(|e| {
            Refusal::new(ErrorCode::Internal, format!("a definition does not read back: {e}"))
        })?;
        Ok(Shown {
            dag_id: dag.dag_id,
            scope: dag.scope,
            revision: revision.revision,
            status: revision.status,
            content_hash: revision.content_hash,
            published_by: revision.created_by,
            published_at: revision.created_at,
            expires_at: revision.expires_at,
            review_id: revision.review_id,
            decision: revision.decision,
            definition,
            revisions,
        })
    };
    Ok(yes(StatusCode::OK, state.reads.read(look).await?))
}

/// What would be confirmed, or was, of a DAG named `publish`.
///
/// Its path is also that of the call that publishes.
#[utoipa::path(get, path = "/api/v1/dag/publish", tag = DAGS, params(RevisionQuery),
    responses((status = 200, description = "a revision in full, and a list of all", body = Yes<Shown>),
              (status = 404), (status = 409)))]
pub(super) async fn show_publish(state: Has<State>, by: By, query: Args<RevisionQuery>) -> Said {
    show(state, by, Path("publish".to_owned()), query).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct StatusQuery {
    /// Which one is meant, where a name exists in several.
    scope: Option<Scope>,
    /// How long to wait for a version other than `after`; over a minute counts as one.
    #[param(example = "30s")]
    wait: Option<String>,
    /// The version the caller knows.
    after: Option<i64>,
}

/// Where a DAG stands.
///
/// With `wait` and `after`, once it is no longer what the caller knows.
#[utoipa::path(get, path = "/api/v1/dag/{id}/status", tag = DAGS,
    params(("id" = DagId, Path, description = "what people call the DAG"), StatusQuery,
           ("If-None-Match" = Option<String>, Header, description = "the `ETag` of what the caller knows")),
    responses((status = 200, description = "where it stands", body = Yes<Versioned<Standing>>,
               headers(("ETag" = String, description = "its version"))),
              (status = 304, description = "as the caller knows it"), (status = 409)))]
pub(super) async fn status(
    Has(state): Has<State>,
    Extension(holder): Extension<Holder>,
    Path(id): Path<String>,
    Args(query): Args<StatusQuery>,
    headers: HeaderMap,
) -> Said {
    let wait = wait(query.wait.as_deref())?;
    let caller = &holder.token.caller;
    let view = View { dag_id: id, scope: query.scope, scopes: caller.scopes.clone() };
    let told = match query.after {
        None => stand(&state, caller, &view).await,
        Some(known) => tokio::select! {
            told = stand_after(&state, caller, &view, known) => told,
            () = tokio::time::sleep(wait.max(Duration::from_millis(1))) => stand(&state, caller, &view).await,
            () = crate::gone(state.leaving.clone()) => stand(&state, caller, &view).await,
            refusal = holder.no_longer_good(&state) => Err(refusal),
        },
    };
    let Stand { tag, body, .. } = told.map_err(|refusal: Refusal| {
        let missing = refusal.code == ErrorCode::NotFound;
        No(refusal, if missing { json!({"status": "not_found"}) } else { Value::Null })
    })?;
    let same = headers.get(header::IF_NONE_MATCH).is_some_and(|known| *known == tag);
    let mut response = match same {
        true => Response::new(Body::empty()),
        false => say::json(StatusCode::OK, body.into()),
    };
    if same {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    response.headers_mut().insert(header::ETAG, tag);
    Ok(response)
}

/// Where a DAG stands once that is no longer what the caller knows.
async fn stand_after(state: &State, caller: &Caller, view: &View, known: i64) -> Result<Stand, Refusal> {
    loop {
        let stand = stand(state, caller, view).await?;
        if stand.version != known {
            return Ok(stand);
        }
        state.hub.changed(&view.dag_id, stand.beat).await;
    }
}

/// Where a DAG stands, as a caller sees it.
async fn stand(state: &State, caller: &Caller, view: &View) -> Result<Stand, Refusal> {
    if let Some(stand) = state.kept.stand(view) {
        return Ok(stand);
    }
    let (by, of, at) = (caller.clone(), view.clone(), state.clone());
    let stand = state.reads.read(move |reader| {
        // Somebody else may have looked while this one waited for its turn.
        if let Some(stand) = at.kept.stand(&of) {
            return Ok(stand);
        }
        let beat = at.kept.beat(&of);
        let told = stands(reader, &by, &of.dag_id, of.scope.as_ref())?;
        let version = told.version;
        let tag = HeaderValue::from_str(&format!("\"{version}\""));
        let tag = tag.map_err(|e| Refusal::new(ErrorCode::Internal, e.to_string()))?;
        let stand = Stand { beat, version, tag, body: Yes::new(told).text().into() };
        at.kept.keep_stand(of, stand.clone());
        Ok(stand)
    });
    stand.await
}

/// Where a DAG stands: its latest run, or its latest revision.
fn stands(
    reader: &Reader,
    caller: &Caller,
    id: &str,
    scope: Option<&Scope>,
) -> Result<Versioned<Value>, Refusal> {
    let dag = find(reader, caller, id, scope)?;
    let latest = reader.revisions(dag.key)?.into_iter().next();
    let run = match dag.latest_run {
        Some(number) => reader.run_by_number(dag.key, number)?,
        None => None,
    };
    let progress = match &run {
        Some(run) => Some(Progress::of(run, reader.tasks(run, &[], LIMIT_MAX)?)),
        None => None,
    };
    Ok(Versioned::of(Standing {
        dag_id: dag.dag_id,
        scope: dag.scope,
        status: dag.status,
        revision: dag.revision,
        total: dag.tasks,
        revision_status: latest.as_ref().map(|revision| revision.status),
        published_by: latest.as_ref().map(|revision| revision.created_by.clone()),
        review_id: latest.as_ref().and_then(|revision| revision.review_id),
        decision: latest.as_ref().and_then(|revision| revision.decision.clone()),
        content_hash: latest.map(|revision| revision.content_hash),
        run: progress,
    }))
}
