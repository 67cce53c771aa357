//! Running again what was confirmed: a revision from the start, or what carries on an earlier run of it.

use std::ops::Deref;

use cis_api::dag::RevisionSummary;
use cis_core::access::Caller;
use cis_core::dag::plan::Plan;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::DagId;
use cis_core::review::check_content_hash;
use cis_store::Reader;
use cis_store::port::{Fate, RevisionStatus};
use cis_store::rows::RunRow;

use crate::select;

/// What of a run is run again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Again<'t> {
    /// What it did not complete.
    Rest,
    /// A task and everything that depends on it.
    Task(&'t str),
}

/// What carries on `run`, which must be over: until then it is not known what is left. An approval is carried over only
/// for a `caller` that could have given it; otherwise it is asked for again, and what depends on it runs again.
pub(crate) fn sequel(
    reader: &Reader,
    run: &RunRow,
    again: Again<'_>,
    caller: &Caller,
) -> Result<Vec<Fate>, Refusal> {
    refuse_unfinished(run)?;
    let before = reader.statuses(run)?;
    let dag = reader.definition(run.definition)?;
    let plan = Plan::new(&dag);
    let mut first = match again {
        Again::Rest => select::incomplete(&plan, &before),
        Again::Task(task) => select::named(&dag, &[task.to_owned()])?,
    };
    if !first.is_empty() {
        if !caller.may_approve(&reader.publisher(run.definition)?) {
            first.extend(select::approved(&dag, &before));
        }
        return Ok(select::rerun(&plan, &first, &before));
    }
    let why = format!("{} completed: nothing is left to run", run.label());
    Err(Refusal::new(ErrorCode::InvalidTransition, why)
        .hint(format!("`cis run {}` runs it again from the start", run.dag_id)))
}

/// The revision that runs when a DAG is run again: the latest that was confirmed, or the one with this content.
pub fn confirmed<'r, R: Deref<Target = RevisionSummary>>(
    name: &DagId,
    revisions: &'r [R],
    content_hash: Option<&str>,
) -> Result<&'r R, Refusal> {
    content_hash.map_or(Ok(()), check_content_hash)?;
    let meant = match content_hash {
        Some(hash) => revisions.iter().find(|revision| revision.content_hash == hash),
        None => {
            let confirmed = |revision: &&R| revision.status == RevisionStatus::Confirmed;
            revisions.iter().find(confirmed).or(revisions.first())
        }
    };
    let Some(revision) = meant else {
        return Err(Refusal::new(ErrorCode::NotFound, format!("no revision of `{name}` has that content")));
    };
    match revision.status {
        RevisionStatus::Confirmed => Ok(revision),
        RevisionStatus::Pending => {
            let why = format!("`{name}` is pending: nobody has confirmed it");
            let how = match revision.review_id {
                Some(review) => format!("`cis confirm {review}` confirms and starts it"),
                None => "`cis pending` shows how to confirm it".to_owned(),
            };
            Err(Refusal::new(ErrorCode::AwaitingConfirmation, why).hint(how))
        }
        over => Err(Refusal::new(ErrorCode::InvalidTransition, format!("`{name}` is {}", over.word()))
            .hint("`cis dag publish FILE` asks for it again")),
    }
}

fn refuse_unfinished(run: &RunRow) -> Result<(), Refusal> {
    if run.status.is_terminal() {
        return Ok(());
    }
    let label = run.label();
    Err(Refusal::new(ErrorCode::InvalidTransition, format!("{label} is still {}", run.status))
        .hint(format!("`cis status {label} --watch` shows it, `cis dag cancel {label}` stops it")))
}
