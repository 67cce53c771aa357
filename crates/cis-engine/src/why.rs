//! What a DAG or a run waits for: the rules of `cis-core` over what the store knows.

use cis_api::dag::RevisionSummary;
use cis_api::why::{Awaited, Explained};
use cis_core::dag::Plan;
use cis_core::error::Refusal;
use cis_core::source::Timestamp;
use cis_core::why::{Facts, Why, why};
use cis_store::Reader;
use cis_store::port::RevisionStatus;
use cis_store::rows::{DagRow, RevisionRow, RunRow};

use crate::coordinator::KINDS;

/// How many tasks are told at most, by whom they are run, and what time it is.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub limit: usize,
    pub slots: Option<u32>,
    pub now: Timestamp,
}

/// What a run waits for.
pub fn of_run(reader: &Reader, run: &RunRow, terms: Terms) -> Result<Explained, Refusal> {
    Ok(Explained {
        dag_id: run.dag_id.clone(),
        scope: run.scope.clone(),
        status: run.status.word().to_owned(),
        run_id: Some(run.run_id),
        run: Some(run.label()),
        awaits_confirmation: None,
        why: if run.status.is_terminal() { Why::default() } else { held(reader, run, terms)? },
    })
}

/// What a DAG waits for: its latest run, and a decision about the latest revision that waits for one.
pub fn of_dag(reader: &Reader, dag: &DagRow, terms: Terms) -> Result<Explained, Refusal> {
    let run = match dag.latest_run {
        Some(number) => reader.run_by_number(dag.key, number)?,
        None => None,
    };
    let explained = match run {
        Some(run) => of_run(reader, &run, terms)?,
        None => Explained {
            dag_id: dag.dag_id.clone(),
            scope: dag.scope.clone(),
            status: dag.status.clone(),
            run_id: None,
            run: None,
            awaits_confirmation: None,
            why: Why::default(),
        },
    };
    let revisions = reader.revisions(dag.key)?;
    let pending = revisions.into_iter().find(|revision| revision.status == RevisionStatus::Pending);
    Ok(Explained { awaits_confirmation: pending.map(awaited), ..explained })
}

fn awaited(revision: RevisionRow) -> Awaited {
    let RevisionSummary { revision, content_hash, created_by, expires_at, review_id, .. } = revision.shown;
    Awaited { revision, content_hash, published_by: created_by, expires_at, review_id }
}

fn held(reader: &Reader, run: &RunRow, terms: Terms) -> Result<Why, Refusal> {
    let standings = reader.standings(run)?;
    let dag = reader.definition(run.definition)?;
    let plan = Plan::new(&dag);
    let Terms { limit, slots, now } = terms;
    let facts = Facts { dag: &dag, plan: &plan, max_parallel: run.max_parallel, kinds: &KINDS, slots, now };
    Ok(why(&facts, &standings, limit))
}
