//! Where commands read from: the store of the data directory, or a node over HTTP. The lines are the same.

use cis_core::dag::Dag;
use cis_core::id::{ExecutionId, RunId, Scope, TaskIx};
use cis_core::review::ReviewId;
use cis_core::task::TaskStatus;
use cis_store::StoreError;
use cis_store::sqlite::reader::{DagLine, PendingLine, RevisionLine, RunLine, TaskLine};
use cis_store::sqlite::{Reader, ReviewLine, TokenLine, Tombstone, WaitingLine};

use super::Failure;
use crate::remote::Remote;

/// Tasks waiting for a person that are listed at most.
const WAITING_SHOWN: usize = 1_000;

/// Names among which a mistyped one is looked for.
const NAMES_SHOWN: u32 = 1_000;

/// What is known, wherever it is known.
#[derive(Debug)]
pub(super) enum View {
    Here(Box<Reader>),
    Node(Remote),
}

/// Lines, and whether there are more.
type Cut<T> = (Vec<T>, bool);

impl View {
    /// DAGs, most recently touched first.
    pub(super) fn dags(
        &self,
        status: Option<&str>,
        scope: Option<&str>,
        limit: u32,
    ) -> Result<Cut<DagLine>, Failure> {
        Ok(match self {
            Self::Here(reader) => cut(reader.dags(status, scope, limit.saturating_add(1))?, limit),
            Self::Node(node) => node.dags(status, scope, limit)?,
        })
    }

    /// The DAGs of this name: one per scope that has it.
    pub(super) fn dag(&self, dag_id: &str, scope: Option<&str>) -> Result<Vec<DagLine>, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.dag(dag_id, scope)?,
            Self::Node(node) => node.dag(dag_id, scope)?,
        })
    }

    /// Names of DAGs, for suggestions.
    pub(super) fn dag_ids(&self) -> Result<Vec<String>, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.dag_ids(NAMES_SHOWN)?,
            Self::Node(node) => {
                node.dags(None, None, NAMES_SHOWN)?.0.iter().map(|dag| dag.dag_id.to_string()).collect()
            }
        })
    }

    pub(super) fn run_by_id(&self, run_id: RunId) -> Result<Option<RunLine>, Failure> {
        match self {
            Self::Here(reader) => there(reader.run_by_id(run_id)?, || reader.pruned_by_id(run_id)),
            Self::Node(node) => Ok(node.run_by_id(run_id)?),
        }
    }

    pub(super) fn run_by_number(&self, dag: &DagLine, number: i64) -> Result<Option<RunLine>, Failure> {
        match self {
            Self::Here(reader) => {
                there(reader.run_by_number(dag.key, number)?, || reader.pruned_by_number(dag.key, number))
            }
            Self::Node(node) => Ok(node.run_by_number(&dag.dag_id, &dag.scope, number)?),
        }
    }

    /// The same run, as it is by now.
    pub(super) fn run_now(&self, run: &RunLine) -> Result<Option<RunLine>, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.run(run.key)?,
            Self::Node(node) => node.run_by_number(&run.dag_id, &run.scope, run.number)?,
        })
    }

    /// The runs of a DAG (or of all), latest first.
    pub(super) fn runs(&self, dag: Option<&DagLine>, limit: u32) -> Result<Cut<RunLine>, Failure> {
        Ok(match self {
            Self::Here(reader) => cut(reader.runs(dag.map(|dag| dag.key), limit.saturating_add(1))?, limit),
            Self::Node(node) => node.runs(dag, limit)?,
        })
    }

    /// The contents a DAG has had, latest first.
    pub(super) fn revisions(&self, dag: &DagLine) -> Result<Vec<RevisionLine>, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.revisions(dag.key)?,
            Self::Node(node) => node.revisions(dag)?,
        })
    }

    /// One of these contents in full.
    pub(super) fn definition(&self, dag: &DagLine, revision: &RevisionLine) -> Result<Dag, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.definition(revision.key)?,
            Self::Node(node) => node.definition(&dag.dag_id, &dag.scope, &revision.content_hash)?,
        })
    }

    /// What a run runs.
    pub(super) fn definition_of(&self, run: &RunLine) -> Result<Dag, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.definition(run.definition)?,
            Self::Node(node) => node.definition_of(run)?,
        })
    }

    /// Tasks of a run in file order: those in one of `statuses` (all, if it is empty), at most `limit`.
    pub(super) fn tasks(
        &self,
        run: &RunLine,
        statuses: &[TaskStatus],
        limit: u32,
    ) -> Result<Vec<TaskLine>, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.tasks(run, statuses, limit)?,
            Self::Node(node) => node.tasks(run, statuses, limit)?,
        })
    }

    /// Tasks of a run that somebody works on, longest first.
    pub(super) fn live(&self, run: &RunLine, limit: u32) -> Result<Vec<TaskLine>, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.live(run, limit)?,
            Self::Node(node) => {
                let mut live = node.tasks(run, &[TaskStatus::Running, TaskStatus::Cancelling], limit)?;
                live.sort_by_key(|task| (task.started_at.is_none(), task.started_at, task.ix));
                live
            }
        })
    }

    /// One task of a run.
    pub(super) fn task(&self, run: &RunLine, dag: &Dag, ix: TaskIx) -> Result<Option<TaskLine>, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.task(run, ix)?,
            Self::Node(node) => node.task(run, dag.tasks[ix.index()].id.as_str())?,
        })
    }

    /// How each task of a run stands, in file order.
    pub(super) fn statuses(&self, run: &RunLine) -> Result<Vec<TaskStatus>, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.statuses(run)?,
            Self::Node(node) => node.tasks(run, &[], u32::MAX)?.iter().map(|task| task.status).collect(),
        })
    }

    /// What waits for a person: DAGs to confirm, and tasks to approve.
    pub(super) fn pending(&self) -> Result<(Vec<PendingLine>, Vec<WaitingLine>), Failure> {
        Ok(match self {
            Self::Here(reader) => {
                let sees = |_: &Scope| true;
                (reader.pending(None, None, u32::MAX)?, reader.waiting(sees, ExecutionId(0), WAITING_SHOWN)?)
            }
            Self::Node(node) => node.pending()?,
        })
    }

    /// What a review id is about.
    pub(super) fn review(&self, id: ReviewId) -> Result<Option<ReviewLine>, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.review(id)?,
            Self::Node(node) => node.review(id)?,
        })
    }

    /// Who may call, the latest first.
    pub(super) fn tokens(&self) -> Result<Vec<TokenLine>, Failure> {
        Ok(match self {
            Self::Here(reader) => reader.tokens()?,
            Self::Node(node) => node.tokens()?,
        })
    }
}

fn cut<T>(mut lines: Vec<T>, limit: u32) -> Cut<T> {
    let more = lines.len() > limit as usize;
    lines.truncate(limit as usize);
    (lines, more)
}

/// A run, or that it was pruned.
fn there(
    run: Option<RunLine>,
    pruned: impl FnOnce() -> Result<Option<Tombstone>, StoreError>,
) -> Result<Option<RunLine>, Failure> {
    match run {
        Some(run) => Ok(Some(run)),
        None => pruned()?.map_or(Ok(None), |pruned| Err(pruned.refusal().into())),
    }
}
