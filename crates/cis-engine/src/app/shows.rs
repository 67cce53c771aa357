//! One thing, and where it stands: a DAG, a revision, a run, a review, what holds them.

use cis_api::calls::{DagStatus, ShowDag, ShowDagPublish, ShowReview, ShowRun, WhyDag, WhyRun};
use cis_api::dag::{DagPath, DagRevision, DagStanding, RevisionQuery, Versioned};
use cis_api::definition::DefinitionText;
use cis_api::review::Review;
use cis_api::run::{Run, RunProgress, RunSummary};
use cis_api::why::{Explained, WhyQuery};
use cis_api::{Nothing, Request};
use cis_core::error::{ErrorCode, Refusal};
use cis_store::rows::{Keyed, ReviewRow, RunRow};
use serde::Serialize;
use serde_json::json;

use super::look::{Look, Read, not_found};
use super::page::LIMIT_MAX;
use crate::token::sha256_hex;
use crate::why::{self, Terms};

/// What the values of the tasks of one answer come to at most; beyond that they are left out.
const VALUES_BYTES_MAX: usize = 1 << 20;

/// Tasks told of what holds a run, unless asked for fewer or more.
const WHY_LIMIT: u32 = 100;

/// The answer with a version that is another one as soon as anything told is.
fn versioned<T: Serialize>(told: T) -> Versioned<T> {
    // Thirteen hexadecimal digits: as much as every reader of JSON takes for an exact number.
    let digest = sha256_hex(json!(told).to_string().as_bytes());
    let version = digest.get(..13).and_then(|digits| i64::from_str_radix(digits, 16).ok());
    Versioned { told, version: version.unwrap_or_default() }
}

impl Read for ShowDag {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<DagRevision, Refusal> {
        let (DagPath { id }, RevisionQuery { scope, content_hash }) = (request.path, request.query);
        let dag = look.dag(&id, scope.as_ref())?;
        let revisions = look.reader.revisions(dag.key)?;
        let meant = |hash: &str| content_hash.as_deref().is_none_or(|wanted| wanted == hash);
        let revision = revisions.iter().find(|revision| meant(&revision.content_hash)).cloned();
        let revision = revision.ok_or_else(|| not_found("revision with that content of", &id))?;
        // What is known of a DAG is told though its latest definition is gone; a caller that names one hears that it is.
        let definition = match revision.removed_at.is_some() && content_hash.is_none() {
            true => None,
            false => Some(definition_text(look, revision.key)?),
        };
        let (dag, revision) = (dag.shown, revision.shown);
        Ok(DagRevision {
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
            revisions: revisions.into_iter().map(|revision| revision.shown).collect(),
        })
    }
}

fn definition_text(look: Look<'_>, definition: i64) -> Result<DefinitionText, Refusal> {
    DefinitionText::new(look.reader.public_text(definition)?)
        .map_err(|e| Refusal::new(ErrorCode::Internal, format!("a definition does not read back: {e}")))
}

impl Read for ShowDagPublish {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<DagRevision, Refusal> {
        let path = DagPath { id: "publish".to_owned() };
        ShowDag::read(look, Request::new(path, request.query, Nothing {}))
    }
}

impl Read for DagStatus {
    /// How it stands now; the edge that serves it does the waiting.
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Versioned<DagStanding>, Refusal> {
        let dag = look.dag(&request.path.id, request.query.scope.as_ref())?;
        let latest = look.reader.revisions(dag.key)?.into_iter().next().map(|revision| revision.shown);
        let run = match dag.latest_run {
            Some(number) => look.reader.run_by_number(dag.key, number)?,
            None => None,
        };
        let dag = dag.shown;
        Ok(versioned(DagStanding {
            dag_id: dag.dag_id,
            scope: dag.scope,
            status: run.as_ref().map_or(dag.status, |run| run.status.word().to_owned()),
            revision: dag.revision,
            total: run.as_ref().map_or(dag.tasks, |run| run.total),
            revision_status: latest.as_ref().map(|revision| revision.status),
            published_by: latest.as_ref().map(|revision| revision.created_by.clone()),
            review_id: latest.as_ref().and_then(|revision| revision.review_id),
            decision: latest.as_ref().and_then(|revision| revision.decision.clone()),
            content_hash: latest.map(|revision| revision.content_hash),
            run: run.map(|run| progress(look, &run)).transpose()?,
        }))
    }
}

impl Read for ShowRun {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Versioned<Run>, Refusal> {
        let run = look.run(&request.path.run)?;
        let progress = progress(look, &run)?;
        let RunSummary { dag_id, scope, status, total, .. } = run.shown;
        Ok(versioned(Run { dag_id, scope, status, total, progress }))
    }
}

fn progress(look: Look<'_>, run: &RunRow) -> Result<RunProgress, Refusal> {
    let tasks = look.reader.first_tasks(run, LIMIT_MAX, VALUES_BYTES_MAX)?;
    Ok(RunProgress::of(run, tasks.into_iter().map(|Keyed { shown, .. }| shown).collect()))
}

impl Read for ShowReview {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Review, Refusal> {
        look.review(&request.path.review).map(ReviewRow::shown)
    }
}

impl Look<'_> {
    /// What this id is about, if the caller may know of it: an id of another scope is not there.
    pub(super) fn review(&self, id: &str) -> Result<ReviewRow, Refusal> {
        let found = id.parse().ok().map(|id| self.reader.review(id)).transpose()?.flatten();
        found.filter(|review| self.caller.sees(review.scope())).ok_or_else(|| not_found("review", id))
    }

    fn terms(&self, query: &WhyQuery) -> Terms {
        let limit = query.limit.unwrap_or(WHY_LIMIT).clamp(1, self.page_max) as usize;
        Terms { limit, slots: self.slots, now: self.now }
    }
}

impl Read for WhyRun {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Explained, Refusal> {
        why::of_run(look.reader, &look.run(&request.path.run)?, look.terms(&request.query))
    }
}

impl Read for WhyDag {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<Explained, Refusal> {
        let dag = look.dag(&request.path.id, request.query.scope.as_ref())?;
        why::of_dag(look.reader, &dag, look.terms(&request.query))
    }
}
