//! Deciding by review id, about a DAG or a task alike: exactly what was looked at.

use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::review::ReviewId;
use cis_store::port::{Approve, Decide, Once};
use cis_store::sqlite::{Reader, ReviewLine};

use super::approvals::{self, Decision};
use super::{Asked, dags, mark_replayed};
use crate::State;
use crate::answer::ReviewDecided;
use crate::document::DAGS;
use crate::door::By;
use crate::say::{Said, Yes, not_found, said_no, yes};

/// What a review id is about, decided or not.
#[utoipa::path(get, path = "/api/v1/pending/{review}", tag = DAGS, params(("review" = ReviewId, Path)),
    responses((status = 200, description = "a revision or a task", body = Yes<ReviewLine>)))]
pub(super) async fn show(Has(state): Has<State>, By(caller): By, Path(id): Path<String>) -> Said {
    Ok(yes(StatusCode::OK, state.reads.read(move |reader| find(reader, &caller, &id)).await?))
}

/// Confirm exactly this revision and start it, or let exactly this task go on.
///
/// Again, it answers the same. A DAG's publisher decides about neither, owners excepted.
#[utoipa::path(post, path = "/api/v1/pending/{review}/approve", tag = DAGS,
    params(("review" = ReviewId, Path), Asked), request_body = Option<Decision>,
    responses((status = 200, description = "confirmed or approved", body = Yes<ReviewDecided>), (status = 409)))]
pub(super) async fn approve(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    decide(&state, id, &asked, true).await
}

/// Refuse exactly this revision or task.
#[utoipa::path(post, path = "/api/v1/pending/{review}/reject", tag = DAGS,
    params(("review" = ReviewId, Path), Asked), request_body = Option<Decision>,
    responses((status = 200, description = "refused", body = Yes<ReviewDecided>), (status = 409)))]
pub(super) async fn reject(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    decide(&state, id, &asked, false).await
}

/// What this id is about, if the caller may know of it: an id of another scope is not there.
fn find(reader: &Reader, caller: &Caller, id: &str) -> Result<ReviewLine, Refusal> {
    let found = id.parse().ok().map(|id| reader.review(id)).transpose()?.flatten();
    found.filter(|review| caller.sees(review.scope())).ok_or_else(|| not_found("review", id))
}

async fn decide(state: &State, id: String, asked: &Asked, approve: bool) -> Said {
    let Decision { input, note } = asked.json()?;
    let (key, caller, by) = (asked.key()?, asked.caller.clone(), asked.caller.identity.clone());
    let (self_confirm, now) = (asked.caller.self_confirm, state.node.now());
    let (answer, replayed) = match state.reads.read(move |reader| find(reader, &caller, &id)).await? {
        ReviewLine::Dag(review) => {
            if !input.is_empty() {
                let why = "a DAG is confirmed or rejected without `input`";
                return Err(Refusal::new(ErrorCode::ValidationFailed, why).into());
            }
            let request = Decide {
                key,
                scope: review.line.scope,
                dag_id: review.line.dag_id,
                content_hash: Some(review.line.content_hash),
                review: Some(review.line.review_id),
                confirm: approve,
                note,
                by,
                self_confirm,
                run_id: state.node.new_run_id(),
                traceparent: asked.traceparent.clone(),
                now,
            };
            let Once { answer, replayed } = state.node.decide(request).await?;
            (answer.map(|decided| ReviewDecided::Dag(dags::told(&decided))), replayed)
        }
        ReviewLine::Task(review) => {
            let execution = review.line.execution;
            let request = Approve { key, execution, approve, input, note, by, self_confirm, now };
            let Once { answer, replayed } = state.node.approve(request).await?;
            (answer.map(|approved| ReviewDecided::Task(approvals::told(&approved))), replayed)
        }
    };
    Ok(mark_replayed(answer.map_or_else(said_no, |told| yes(StatusCode::OK, told)), replayed))
}
