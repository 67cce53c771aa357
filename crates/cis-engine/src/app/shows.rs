//! One thing, and where it stands: a DAG, a revision, a run, a review, what holds them.

use std::io;

use cis_api::calls::{DagStatus, ShowDag, ShowDagPublish, ShowReview, ShowRun, WhyDag, WhyRun};
use cis_api::dag::{DagPath, DagRevision, DagStanding, RevisionQuery, Versioned};
use cis_api::definition::DefinitionText;
use cis_api::review::Review;
use cis_api::run::{Run, RunProgress, RunSummary};
use cis_api::why::{Explained, WhyQuery};
use cis_api::{Nothing, Request};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Scope;
use cis_store::rows::{DagRow, Keyed, ReviewRow, RevisionRow, RunRow};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::look::{Look, Read, not_found};
use super::page::LIMIT_MAX;
use crate::why::{self, Terms};

/// What the values of the tasks of one answer come to at most; beyond that they are left out.
const VALUES_BYTES_MAX: usize = 1 << 20;

/// How often a definition is in memory while it is answered: as it was read, and in the answer.
const DEFINITION_COPIES: usize = 2;

/// Tasks told of what holds a run, unless asked for fewer or more.
const WHY_LIMIT: u32 = 100;

/// The answer with a version that is another one as soon as anything told is.
fn versioned<T: Serialize>(told: T) -> Versioned<T> {
    let mut hash = Hashing(Sha256::new());
    // Neither hashing nor what is told can fail.
    let _ = serde_json::to_writer(&mut hash, &told);
    let bytes: [u8; 32] = hash.0.finalize().into();
    let [a, b, c, d, e, f, g, h, ..] = bytes;
    // Fifty-two bits: as much as every reader of JSON takes for an exact number.
    let version = (u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 12).cast_signed();
    Versioned { told, version }
}

/// Hashes what is written to it: an answer of a megabyte need not be made to be hashed.
struct Hashing(Sha256);

impl io::Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for ShowDag {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<DagRevision, Refusal> {
        let (DagPath { id }, RevisionQuery { scope, content_hash }) = (request.path, request.query);
        let (dag, revisions, meant) = find_revision(look, &id, scope.as_ref(), content_hash.as_deref())?;
        // What is known of a DAG is told though its latest definition is gone; a caller that names one hears that it is.
        let definition = match meant.removed_at.is_some() && content_hash.is_none() {
            true => None,
            false => Some(definition_text(look, meant.key)?),
        };
        let (dag, revision) = (dag.shown, meant.shown);
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

    fn expected_bytes(look: Look<'_>, request: &Request<Self>) -> Result<usize, Refusal> {
        let RevisionQuery { scope, content_hash } = &request.query;
        let (_, _, meant) = find_revision(look, &request.path.id, scope.as_ref(), content_hash.as_deref())?;
        Ok(look.reader.definition_bytes(meant.key)?.saturating_mul(DEFINITION_COPIES))
    }
}

/// A DAG, its revisions, and the one of them that is meant: the one with that content, else the latest.
fn find_revision(
    look: Look<'_>,
    id: &str,
    scope: Option<&Scope>,
    content_hash: Option<&str>,
) -> Result<(DagRow, Vec<RevisionRow>, RevisionRow), Refusal> {
    let dag = look.dag(id, scope)?;
    let revisions = look.reader.revisions(dag.key)?;
    let is_meant = |revision: &&RevisionRow| content_hash.is_none_or(|hash| hash == revision.content_hash);
    let meant = revisions.iter().find(is_meant).cloned();
    let meant = meant.ok_or_else(|| not_found("revision with that content of", id))?;
    Ok((dag, revisions, meant))
}

fn definition_text(look: Look<'_>, definition: i64) -> Result<DefinitionText, Refusal> {
    DefinitionText::new(look.reader.public_text(definition)?)
        .map_err(|e| Refusal::new(ErrorCode::Internal, format!("a definition does not read back: {e}")))
}

impl Read for ShowDagPublish {
    fn read(look: Look<'_>, request: Request<Self>) -> Result<DagRevision, Refusal> {
        ShowDag::read(look, of_dag_publish(request.query))
    }

    fn expected_bytes(look: Look<'_>, request: &Request<Self>) -> Result<usize, Refusal> {
        ShowDag::expected_bytes(look, &of_dag_publish(request.query.clone()))
    }
}

fn of_dag_publish(query: RevisionQuery) -> Request<ShowDag> {
    Request::new(DagPath { id: "publish".to_owned() }, query, Nothing {})
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
