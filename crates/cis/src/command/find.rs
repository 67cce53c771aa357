//! From what people type (`backup`, `backup#42`, a run id, a review id) to what the store has.

use cis_api::dag::{DagSummary, RevisionSummary};
use cis_api::review::Review;
use cis_api::run::RunSummary;
use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Revision, RunId};
use cis_core::review::ReviewId;
use cis_engine::select::nearest;
use serde_json::json;

use super::{Failure, Setup};
use crate::project;
use crate::source::Source;

/// Names among which a mistyped one is looked for.
const NAMES_SHOWN: usize = 1_000;

/// A DAG, and the run of it that was meant: the named one, else the latest.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) source: Source,
    pub(super) dag: DagSummary,
    pub(super) run: Option<RunSummary>,
    /// Was a run named?
    pub(super) named: bool,
    /// The revision that was named, by its review.
    pub(super) revision: Option<Revision>,
}

impl Found {
    /// The revision that was named, else the latest one, in full.
    pub(super) fn meant(&self) -> Result<Dag, Failure> {
        let revisions = self.source.revisions(&self.dag)?;
        let meant =
            revisions.into_iter().find(|line| self.revision.is_none_or(|named| line.revision == named));
        let meant = meant.ok_or_else(|| Failure::new(ErrorCode::Internal, "a DAG without a revision"))?;
        self.definition(&meant)
    }

    /// A revision in full. Where it was removed, the refusal names the latest that is kept.
    pub(super) fn definition(&self, meant: &RevisionSummary) -> Result<Dag, Failure> {
        let dag_id = &self.dag.dag_id;
        let Some(removed_at) = meant.removed_at else {
            return Ok(self.source.definition(dag_id, &self.dag.scope, &meant.content_hash)?);
        };
        let kept = self.source.revisions(&self.dag)?.into_iter().find(|line| line.removed_at.is_none());
        let hint = match kept {
            Some(RevisionSummary { revision, .. }) => {
                format!("`cis dag show {dag_id} --revision {revision}` shows the latest that is kept")
            }
            None => "publish it again to open a new request".to_owned(),
        };
        let why = format!(
            "revision {} of `{dag_id}` is {}, and its definition was removed on {}",
            meant.revision,
            meant.status.word(),
            removed_at.day()
        );
        Err(Failure::new(ErrorCode::Gone, why).hint(hint))
    }
}

/// Finds what `name` means to a command that only looks: with a review id, exactly what the review is about.
pub(super) fn find(setup: &Setup, name: &str, scope: Option<&str>) -> Result<Found, Failure> {
    let Some(source) = setup.source()? else { return Err(unknown(name, &[])) };
    match find_review(&source, name, scope)? {
        Some(review) => reviewed(source, &review),
        None => find_named(setup, name, scope),
    }
}

/// The review with this id. Where a DAG has the same name, which versions before this one took, neither is meant.
pub(super) fn find_review(
    source: &Source,
    name: &str,
    scope: Option<&str>,
) -> Result<Option<Review>, Failure> {
    let Ok(id) = name.parse::<ReviewId>() else { return Ok(None) };
    let is_dag = !source.dags_named(name, scope)?.is_empty();
    match source.review(id)? {
        Some(review) if is_dag => {
            Err(Failure::new(ErrorCode::Ambiguous, format!("`{name}` is a review id and the name of a DAG"))
                .hint(match &review {
                    Review::Dag(review) => {
                        let line = &review.line;
                        format!("the review is of revision {} of `{}`: name that", line.revision, line.dag_id)
                    }
                    Review::Task(review) => {
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

fn reviewed(source: Source, review: &Review) -> Result<Found, Failure> {
    let (dag_id, run_id) = match review {
        Review::Dag(review) => (&review.line.dag_id, None),
        Review::Task(review) => (&review.line.dag_id, Some(review.line.run_id)),
    };
    let dag = source.dags_named(dag_id.as_str(), Some(review.scope().as_str()))?.into_iter().next();
    let dag = dag.ok_or_else(|| unknown(dag_id.as_str(), &[]))?;
    let run = run_id.map(|id| source.run_by_id(id)).transpose()?.flatten();
    let revision = match review {
        Review::Dag(review) => Some(review.line.revision),
        Review::Task(_) => run.as_ref().map(|run| run.revision),
    };
    Ok(Found { source, dag, named: run.is_some(), run, revision })
}

/// Finds the DAG or the run that `name` names.
pub(super) fn find_named(setup: &Setup, name: &str, scope: Option<&str>) -> Result<Found, Failure> {
    let Some(source) = setup.source()? else { return Err(unknown(name, &[])) };
    if let Ok(run_id) = name.parse::<RunId>() {
        let run = source.run_by_id(run_id)?.ok_or_else(|| no_run(name))?;
        let dag = one_dag(setup, &source, run.dag_id.as_str(), Some(run.scope.as_str()))?;
        return Ok(Found { source, dag, run: Some(run), named: true, revision: None });
    }
    let (dag_id, number) = match name.rsplit_once('#') {
        Some((dag_id, number)) => {
            let number =
                number.parse().map_err(|_| Failure::usage(format!("`{number}` is not a run number")))?;
            (dag_id, Some(number))
        }
        None => (name, None),
    };
    let dag = one_dag(setup, &source, dag_id, scope)?;
    let run = match number.or(dag.latest_run) {
        Some(number) => {
            Some(source.run_by_number(&dag.dag_id, &dag.scope, number)?.ok_or_else(|| no_run(name))?)
        }
        None => None,
    };
    Ok(Found { source, dag, run, named: number.is_some(), revision: None })
}

/// Finds a run; a DAG that never ran is no match.
pub(super) fn find_run(
    setup: &Setup,
    name: &str,
    scope: Option<&str>,
) -> Result<(Source, RunSummary), Failure> {
    let found = find_named(setup, name, scope)?;
    match found.run {
        Some(run) => Ok((found.source, run)),
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
fn one_dag(setup: &Setup, source: &Source, dag_id: &str, scope: Option<&str>) -> Result<DagSummary, Failure> {
    let mut dags = source.dags_named(dag_id, scope)?;
    if dags.len() > 1 {
        let here = std::env::current_dir().unwrap_or_default();
        let own = project::root(&here, &setup.config.home.value).map(|root| project::scope(&root));
        let own = own.unwrap_or_else(cis_core::id::Scope::global);
        if dags.iter().any(|dag| dag.scope == own) {
            dags.retain(|dag| dag.scope == own);
        }
    }
    match dags.len() {
        0 => Err(unknown(dag_id, &source.dag_ids(NAMES_SHOWN)?)),
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
