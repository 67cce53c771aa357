//! From what people type (`backup`, `backup#42`, a run id, a review id) to what the store has.

use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Revision, RunId};
use cis_core::review::ReviewId;
use cis_engine::select::nearest;
use cis_store::sqlite::ReviewLine;
use cis_store::sqlite::reader::{DagLine, RunLine};
use serde_json::json;

use super::view::View;
use super::{Failure, Setup};
use crate::project;

/// A DAG, and the run of it that was meant: the named one, else the latest.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) view: View,
    pub(super) dag: DagLine,
    pub(super) run: Option<RunLine>,
    /// Was a run named?
    pub(super) named: bool,
    /// The revision that was named, by its review.
    pub(super) revision: Option<Revision>,
}

impl Found {
    /// The revision that was named, else the latest one, in full.
    pub(super) fn meant(&self) -> Result<Dag, Failure> {
        let revisions = self.view.revisions(&self.dag)?;
        let meant =
            revisions.into_iter().find(|line| self.revision.is_none_or(|named| line.revision == named));
        let meant = meant.ok_or_else(|| Failure::new(ErrorCode::Internal, "a DAG without a revision"))?;
        self.view.definition(&self.dag, &meant)
    }
}

/// Finds what `name` means to a command that only looks: with a review id, exactly what the review is about.
pub(super) fn find(setup: &Setup, name: &str, scope: Option<&str>) -> Result<Found, Failure> {
    let Some(view) = setup.view()? else { return Err(unknown(name, &[])) };
    match find_review(&view, name, scope)? {
        Some(review) => reviewed(view, &review),
        None => find_named(setup, name, scope),
    }
}

/// The review with this id. Where a DAG has the same name, which versions before this one took, neither is meant.
pub(super) fn find_review(
    view: &View,
    name: &str,
    scope: Option<&str>,
) -> Result<Option<ReviewLine>, Failure> {
    let Ok(id) = name.parse::<ReviewId>() else { return Ok(None) };
    let is_dag = !view.dag(name, scope)?.is_empty();
    match view.review(id)? {
        Some(review) if is_dag => {
            Err(Failure::new(ErrorCode::Ambiguous, format!("`{name}` is a review id and the name of a DAG"))
                .hint(match &review {
                    ReviewLine::Dag(review) => {
                        let line = &review.line;
                        format!("the review is of revision {} of `{}`: name that", line.revision, line.dag_id)
                    }
                    ReviewLine::Task(review) => {
                        format!(
                            "the review is of `{} {}`: name that",
                            review.line.run_id, review.line.task_id
                        )
                    }
                }))
        }
        None if !is_dag => Err(Failure::new(ErrorCode::NotFound, format!("there is no review `{id}`"))
            .hint("`cis pending` shows what waits; what is published again has another review id")),
        review => Ok(review),
    }
}

fn reviewed(view: View, review: &ReviewLine) -> Result<Found, Failure> {
    let (dag_id, run_id) = match review {
        ReviewLine::Dag(review) => (&review.line.dag_id, None),
        ReviewLine::Task(review) => (&review.line.dag_id, Some(review.line.run_id)),
    };
    let dag = view.dag(dag_id.as_str(), Some(review.scope().as_str()))?.into_iter().next();
    let dag = dag.ok_or_else(|| unknown(dag_id.as_str(), &[]))?;
    let run = run_id.map(|id| view.run_by_id(id)).transpose()?.flatten();
    let revision = match review {
        ReviewLine::Dag(review) => Some(review.line.revision),
        ReviewLine::Task(_) => run.as_ref().map(|run| run.revision),
    };
    Ok(Found { view, dag, named: run.is_some(), run, revision })
}

/// Finds the DAG or the run that `name` names.
pub(super) fn find_named(setup: &Setup, name: &str, scope: Option<&str>) -> Result<Found, Failure> {
    let Some(view) = setup.view()? else { return Err(unknown(name, &[])) };
    if let Ok(run_id) = name.parse::<RunId>() {
        let run = view.run_by_id(run_id)?.ok_or_else(|| no_run(name))?;
        let dag = one_dag(setup, &view, run.dag_id.as_str(), Some(run.scope.as_str()))?;
        return Ok(Found { view, dag, run: Some(run), named: true, revision: None });
    }
    let (dag_id, number) = match name.rsplit_once('#') {
        Some((dag_id, number)) => {
            let number =
                number.parse().map_err(|_| Failure::usage(format!("`{number}` is not a run number")))?;
            (dag_id, Some(number))
        }
        None => (name, None),
    };
    let dag = one_dag(setup, &view, dag_id, scope)?;
    let run = match number.or(dag.latest_run) {
        Some(number) => Some(view.run_by_number(&dag, number)?.ok_or_else(|| no_run(name))?),
        None => None,
    };
    Ok(Found { view, dag, run, named: number.is_some(), revision: None })
}

/// Finds a run; a DAG that never ran is no match.
pub(super) fn find_run(setup: &Setup, name: &str, scope: Option<&str>) -> Result<(View, RunLine), Failure> {
    let found = find_named(setup, name, scope)?;
    match found.run {
        Some(run) => Ok((found.view, run)),
        None if found.dag.runs > 0 => {
            Err(Failure::new(ErrorCode::Gone, format!("every run of `{name}` was pruned"))
                .hint(format!("`cis run {name}` runs it again")))
        }
        None => Err(Failure::new(ErrorCode::NotFound, format!("`{name}` has never run")).hint(
            match found.dag.status.as_str() {
                "pending" => "it waits to be confirmed: `cis pending` shows what to type".to_owned(),
                status => format!("it is {status}; `cis run {name}` runs what was confirmed"),
            },
        )),
    }
}

/// The one DAG of this name: in `scope`, else in this project's, else the only one there is.
fn one_dag(setup: &Setup, view: &View, dag_id: &str, scope: Option<&str>) -> Result<DagLine, Failure> {
    let mut dags = view.dag(dag_id, scope)?;
    if dags.len() > 1 {
        let here = std::env::current_dir().unwrap_or_default();
        let own = project::root(&here, &setup.config.home.value).map(|root| project::scope(&root));
        let own = own.unwrap_or_else(cis_core::id::Scope::global);
        if dags.iter().any(|dag| dag.scope == own) {
            dags.retain(|dag| dag.scope == own);
        }
    }
    match dags.len() {
        0 => Err(unknown(dag_id, &view.dag_ids()?)),
        1 => Ok(dags.remove(0)),
        _ => {
            let scopes: Vec<&str> = dags.iter().map(|dag| dag.scope.as_str()).collect();
            Err(Refusal::new(
                ErrorCode::Ambiguous,
                format!("`{dag_id}` exists in several scopes: {}", scopes.join(", ")),
            )
            .hint(format!("say which: `--scope {}`", scopes[0]))
            .details(json!({"scopes": scopes}))
            .into())
        }
    }
}

fn unknown(name: &str, known: &[String]) -> Failure {
    let failure = Failure::new(ErrorCode::NotFound, format!("there is no DAG `{name}`"));
    match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None if known.is_empty() => {
            failure.hint("nothing has been published yet: `cis run FILE` runs a DAG from a file")
        }
        None => failure.hint("`cis dag list` shows what there is"),
    }
}

fn no_run(name: &str) -> Failure {
    Failure::new(ErrorCode::NotFound, format!("there is no run `{name}`"))
        .hint("`cis dag runs` shows what there is")
}
