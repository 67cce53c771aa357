//! From what people type (`backup`, `backup#42`, a run id) to what the store has.

use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::RunId;
use cis_engine::select::nearest;
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
}

impl Found {
    /// Its latest revision in full.
    pub(super) fn latest(&self) -> Result<Dag, Failure> {
        let latest = self.view.revisions(&self.dag)?.into_iter().next();
        let latest = latest.ok_or_else(|| Failure::new(ErrorCode::Internal, "a DAG without a revision"))?;
        self.view.definition(&self.dag, &latest)
    }
}

/// Finds what `name` means.
pub(super) fn find(setup: &Setup, name: &str, scope: Option<&str>) -> Result<Found, Failure> {
    let Some(view) = setup.view()? else { return Err(unknown(name, &[])) };
    if let Ok(run_id) = name.parse::<RunId>() {
        let run = view.run_by_id(run_id)?.ok_or_else(|| no_run(name))?;
        let dag = one_dag(setup, &view, run.dag_id.as_str(), Some(run.scope.as_str()))?;
        return Ok(Found { view, dag, run: Some(run), named: true });
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
    Ok(Found { view, dag, run, named: number.is_some() })
}

/// Finds a run; a DAG that never ran is no match.
pub(super) fn find_run(setup: &Setup, name: &str, scope: Option<&str>) -> Result<(View, RunLine), Failure> {
    let found = find(setup, name, scope)?;
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
