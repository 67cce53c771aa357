//! Holding things up, and letting them go on: pausing a run or a scope, draining the node; and how it is doing.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State as Has};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{RunId, Scope};
use cis_engine::command::About;
use tokio::time::Instant;

use super::{Asked, runs};
use crate::State;
use crate::answer::{Drained, PausedRun, PausedScope, Ready};
use crate::document::{NODE, RUNS};
use crate::door::Holder;
use crate::meter::Seen;
use crate::say::{Said, Yes, expected, not_found, yes};

/// Start nothing more of a run.
#[utoipa::path(post, path = "/api/v1/runs/{run}/pause", tag = RUNS, params(("run" = RunId, Path)),
    responses((status = 200, description = "paused", body = Yes<PausedRun>), (status = 409)))]
pub(super) async fn pause(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    pause_run(&state, id, asked, true).await
}

/// Let a run go on.
#[utoipa::path(post, path = "/api/v1/runs/{run}/unpause", tag = RUNS, params(("run" = RunId, Path)),
    responses((status = 200, description = "it goes on", body = Yes<PausedRun>), (status = 409)))]
pub(super) async fn unpause(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    pause_run(&state, id, asked, false).await
}

async fn pause_run(state: &State, id: String, asked: Asked, paused: bool) -> Said {
    asked.check_kind()?;
    let caller = asked.caller;
    let run = state.reads.read(move |reader| runs::find(reader, &caller, &id)).await?;
    let status = state.node.pause(run.key, paused).await?;
    Ok(yes(StatusCode::OK, PausedRun { run_id: run.run_id, status, paused }))
}

/// Start nothing more in a scope.
#[utoipa::path(post, path = "/api/v1/scopes/{scope}/pause", tag = NODE,
    params(("scope" = String, Path, pattern = "^(global|(project|user)-[A-Za-z0-9._-]+)$", max_length = 128)),
    responses((status = 200, description = "paused", body = Yes<PausedScope>)))]
pub(super) async fn pause_scope(Has(state): Has<State>, Path(scope): Path<String>, asked: Asked) -> Said {
    set_scope(&state, &scope, &asked, true).await
}

/// Let a scope go on.
#[utoipa::path(post, path = "/api/v1/scopes/{scope}/unpause", tag = NODE,
    params(("scope" = String, Path, pattern = "^(global|(project|user)-[A-Za-z0-9._-]+)$", max_length = 128)),
    responses((status = 200, description = "it goes on", body = Yes<PausedScope>)))]
pub(super) async fn unpause_scope(Has(state): Has<State>, Path(scope): Path<String>, asked: Asked) -> Said {
    set_scope(&state, &scope, &asked, false).await
}

async fn set_scope(state: &State, scope: &str, asked: &Asked, paused: bool) -> Said {
    asked.check_kind()?;
    let known = Some(scope).filter(|scope| Scope::is_well_formed(scope));
    let known = known.and_then(|scope| scope.parse::<Scope>().ok()).filter(|scope| asked.caller.sees(scope));
    let Some(known) = known else { return Err(not_found("scope", scope).into()) };
    let changed = state.node.pause_scope(known.clone(), paused).await?;
    Ok(yes(StatusCode::OK, PausedScope { scope: known, paused, changed }))
}

/// Start nothing more on this node.
///
/// Until it is undrained, or ends.
#[utoipa::path(post, path = "/api/v1/node/drain", tag = NODE,
    responses((status = 200, description = "it drains", body = Yes<Drained>)))]
pub(super) async fn drain(Has(state): Has<State>, asked: Asked) -> Said {
    set_draining(&state, &asked, true).await
}

/// Let the node go on.
#[utoipa::path(post, path = "/api/v1/node/undrain", tag = NODE,
    responses((status = 200, description = "it goes on", body = Yes<Drained>)))]
pub(super) async fn undrain(Has(state): Has<State>, asked: Asked) -> Said {
    set_draining(&state, &asked, false).await
}

async fn set_draining(state: &State, asked: &Asked, draining: bool) -> Said {
    asked.check_kind()?;
    of_the_whole_node(&asked.caller)?;
    let changed = state.node.drain(draining).await?;
    Ok(yes(StatusCode::OK, Drained { draining, changed }))
}

fn of_the_whole_node(caller: &Caller) -> Result<(), Refusal> {
    match caller.scopes {
        None => Ok(()),
        Some(_) => Err(Refusal::new(
            ErrorCode::Forbidden,
            "this is about the whole node, a token for some scopes is not",
        )),
    }
}

/// Would work that comes in be done? If not, it says why, and what to do about it.
#[utoipa::path(get, path = "/ready", tag = NODE,
    responses((status = 200, description = "it would", body = Yes<Ready>)))]
pub(super) async fn ready(Has(state): Has<State>) -> Said {
    let about = state.node.about().await;
    let refuse = |why: &str| Ok(expected(Refusal::new(ErrorCode::Unavailable, why)));
    match about {
        Ok(about) if about.draining => refuse("draining"),
        Ok(about) if about.full => refuse("the disk is full"),
        Ok(About { runner: Some(silent), .. }) => Ok(expected(silent)),
        Ok(_) if !*state.leaving.borrow() => {
            let told = Ready { status: "ready".to_owned(), node: state.options.node.did.clone() };
            Ok(yes(StatusCode::OK, told))
        }
        _ => refuse("the node is not ready"),
    }
}

/// How it is doing, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = NODE,
    responses((status = 200, description = "numbers", body = String, content_type = "text/plain")))]
pub(super) async fn metrics(Has(state): Has<State>, holder: Option<Extension<Holder>>) -> Said {
    if let Some(Extension(holder)) = holder {
        of_the_whole_node(&holder.token.caller)?;
    }
    let look = |reader: &cis_store::sqlite::Reader| Ok((reader.census()?, rss_bytes()));
    let (census, rss_bytes) = state.reads.read(look).await?;
    let draining = state.node.about().await.is_ok_and(|about| about.draining);
    let (written, in_use) = (state.node.written(), state.limits.in_use());
    let seen = Seen { census, written, in_use, rss_bytes, draining };
    let mut response = Response::new(Body::from(state.meter.text(&seen, Instant::now())));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// The memory this process uses, where the system says so.
fn rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1_024)
}
