//! Where commands read from: the store of the data directory, or a node. What they are answered is the same, and they do not
//! know which of the two it was.
//!
//! ```text
//!   command ── Request<C> ──► Source ──┬─ Here ──► app::read_as_owner (the store, whether it has a coordinator or not)
//!                                      └─ Node ──► Client::call
//! ```
//!
//! | module | what lives there |
//! |---|---|
//! | `page` | lists, page by page |
//! | `local` | what only the store of this machine can tell, and what would be slow any other way |
//! | `news` | the events of a run at a node, as they happen |

mod local;
mod news;
mod page;

use std::rc::Rc;

use cis_api::calls::{
    ListDagRuns, ListDags, ListPending, ListRuns, ListTasks, ListTokens, RunLogs, ShowDag, ShowReview,
    ShowRun,
};
use cis_api::dag::{DagOrder, DagPath, DagQuery, DagRevision, DagSummary, RevisionQuery, RevisionSummary};
use cis_api::log::{LogLine, LogQuery};
use cis_api::review::{PendingItem, Review, ReviewPath};
use cis_api::run::{PageQuery, RunPath, RunQuery, RunSummary};
use cis_api::task::{TaskQuery, TaskSummary};
use cis_api::token::TokenSummary;
use cis_api::{Nothing, Request};
use cis_client::Client;
use cis_core::dag::{Dag, Task};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, RunId, Scope};
use cis_core::review::ReviewId;
use cis_core::task::TaskStatus;
use cis_engine::app::{Read, read_as_owner};
use cis_engine::data_dir::DataDir;
use cis_store::Reader;

use crate::document;

pub use local::LocalRun;
use local::gone;
pub use news::News;

/// Lines, and whether there are more.
pub type Cut<T> = (Vec<T>, bool);

/// Where commands read from. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Source {
    /// The store of this data directory.
    Here(Rc<Here>),
    /// A node, which may be the one of this data directory.
    Node(Client),
}

/// A data directory that is read.
#[derive(Debug)]
pub struct Here {
    reader: Reader,
    data_dir: DataDir,
}

impl Source {
    pub fn here(reader: Reader, data_dir: DataDir) -> Self {
        Self::Here(Rc::new(Here { reader, data_dir }))
    }

    /// Is it the data directory of this machine?
    pub fn is_here(&self) -> bool {
        matches!(self, Self::Here(_))
    }

    /// Makes a call that only reads.
    pub fn get<C: Read>(&self, request: Request<C>) -> Result<C::Response, Refusal> {
        match self {
            Self::Here(here) => read_as_owner(&here.reader, None, request),
            Self::Node(client) => client.call(&request),
        }
    }

    /// The same; nothing, where what it asks for is not there.
    fn find<C: Read>(&self, request: Request<C>) -> Result<Option<C::Response>, Refusal> {
        match self.get(request) {
            Err(refusal) if refusal.code == ErrorCode::NotFound => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// DAGs, the latest change first.
    pub fn dags(
        &self,
        status: Option<&str>,
        scope: Option<&str>,
        limit: u32,
    ) -> Result<Cut<DagSummary>, Refusal> {
        let Some(scope) = named_scope(scope) else { return Ok((Vec::new(), false)) };
        let (status, order, limit) = (status.map(str::to_owned), DagOrder::Updated, Some(limit));
        let query = DagQuery { status, scope, order, limit, ..DagQuery::default() };
        let found = self.get(Request::<ListDags>::new(Nothing {}, query, Nothing {}))?;
        Ok((found.dags, found.more.unwrap_or(false)))
    }

    /// The DAGs of this name: one per scope that has it.
    pub fn dags_named(&self, dag_id: &str, scope: Option<&str>) -> Result<Vec<DagSummary>, Refusal> {
        let Some(scope) = named_scope(scope) else { return Ok(Vec::new()) };
        if let Self::Here(here) = self {
            return here.dags_named(dag_id, scope.as_ref());
        }
        let query = DagQuery { dag_id: Some(dag_id.to_owned()), scope, ..DagQuery::default() };
        let (mut dags, _) = self.list(Request::<ListDags>::new(Nothing {}, query, Nothing {}), usize::MAX)?;
        dags.sort_by(|a, b| a.scope.cmp(&b.scope));
        Ok(dags)
    }

    /// Names of DAGs, for suggestions: at most `limit`.
    pub fn dag_ids(&self, limit: usize) -> Result<Vec<String>, Refusal> {
        let request = Request::<ListDags>::new(Nothing {}, DagQuery::default(), Nothing {});
        let (dags, _) = self.list(request, limit)?;
        Ok(dags.into_iter().map(|dag| dag.dag_id.to_string()).collect())
    }

    /// The run with this id; that it was pruned is a refusal.
    pub fn run_by_id(&self, run_id: RunId) -> Result<Option<RunSummary>, Refusal> {
        let Some(found) = self.find(Request::<ShowRun>::new(run_id.into(), Nothing {}, Nothing {}))? else {
            return Ok(None);
        };
        let run = found.told;
        match run.progress.run.rsplit_once('#').and_then(|(_, number)| number.parse().ok()) {
            Some(number) => self.run_by_number(&run.dag_id, &run.scope, number),
            None => Ok(None),
        }
    }

    /// The run of a DAG with this number; that it was pruned is a refusal.
    pub fn run_by_number(
        &self,
        dag_id: &DagId,
        scope: &Scope,
        number: i64,
    ) -> Result<Option<RunSummary>, Refusal> {
        let query = RunQuery { scope: Some(scope.clone()), number: Some(number), ..RunQuery::default() };
        let runs = self.get(Request::<ListDagRuns>::new(dag_path(dag_id), query, Nothing {}))?.runs;
        Ok(runs.into_iter().next())
    }

    /// The same run, as it is by now.
    pub fn run_now(&self, run: &RunSummary) -> Result<Option<RunSummary>, Refusal> {
        self.run_by_number(&run.dag_id, &run.scope, run.number)
    }

    /// The runs of a DAG (or of all), latest first.
    pub fn runs(&self, dag: Option<&DagSummary>, limit: u32) -> Result<Cut<RunSummary>, Refusal> {
        let limit = limit as usize;
        match dag {
            Some(dag) => {
                let query = RunQuery { scope: Some(dag.scope.clone()), ..RunQuery::default() };
                self.list(Request::<ListDagRuns>::new(dag_path(&dag.dag_id), query, Nothing {}), limit)
            }
            None => self.list(Request::<ListRuns>::new(Nothing {}, PageQuery::default(), Nothing {}), limit),
        }
    }

    /// The contents a DAG has had, latest first.
    pub fn revisions(&self, dag: &DagSummary) -> Result<Vec<RevisionSummary>, Refusal> {
        match self {
            Self::Here(here) => here.revisions(dag),
            Self::Node(_) => Ok(self.revision(&dag.dag_id, &dag.scope, None)?.revisions),
        }
    }

    /// One of these contents in full.
    pub fn definition(&self, dag_id: &DagId, scope: &Scope, content_hash: &str) -> Result<Dag, Refusal> {
        match self {
            Self::Here(here) => here.definition(dag_id, scope, content_hash),
            Self::Node(_) => {
                let told = self.revision(dag_id, scope, Some(content_hash))?.definition;
                let text = told.ok_or_else(|| gone(&format!("that revision of `{dag_id}`")))?;
                document::from_canonical(text.get(), dag_id, scope)
            }
        }
    }

    /// What a run runs.
    pub fn definition_of(&self, run: &RunSummary) -> Result<Dag, Refusal> {
        if let Some(local) = self.local_run(run.run_id)? {
            return local.definition();
        }
        let told = self.revision(&run.dag_id, &run.scope, None)?;
        let own = told.revisions.iter().find(|revision| revision.revision == run.revision);
        let own = own.ok_or_else(|| gone(&format!("revision {} of `{}`", run.revision, run.dag_id)))?;
        match &told.definition {
            Some(latest) if own.content_hash == told.content_hash => {
                document::from_canonical(latest.get(), &run.dag_id, &run.scope)
            }
            _ => self.definition(&run.dag_id, &run.scope, &own.content_hash),
        }
    }

    fn revision(
        &self,
        dag_id: &DagId,
        scope: &Scope,
        content_hash: Option<&str>,
    ) -> Result<DagRevision, Refusal> {
        let query =
            RevisionQuery { scope: Some(scope.clone()), content_hash: content_hash.map(str::to_owned) };
        self.get(Request::<ShowDag>::new(dag_path(dag_id), query, Nothing {}))
    }

    /// Tasks of a run in file order: those in one of `statuses` (all, if it is empty), at most `limit`.
    pub fn tasks(
        &self,
        run: &RunSummary,
        statuses: &[TaskStatus],
        limit: usize,
    ) -> Result<Vec<TaskSummary>, Refusal> {
        let list = |status: Option<TaskStatus>| {
            let query =
                TaskQuery { status: status.map(|status| status.word().to_owned()), ..TaskQuery::default() };
            self.list(Request::<ListTasks>::new(run.run_id.into(), query, Nothing {}), limit)
        };
        if statuses.is_empty() {
            return Ok(list(None)?.0);
        }
        let mut tasks = Vec::new();
        for status in statuses {
            tasks.extend(list(Some(*status))?.0);
        }
        tasks.sort_by_key(|task| task.execution_id);
        tasks.truncate(limit);
        Ok(tasks)
    }

    /// Tasks of a run that are worked on, the longest first.
    pub fn live(&self, run: &RunSummary, limit: usize) -> Result<Vec<TaskSummary>, Refusal> {
        if let Some(local) = self.local_run(run.run_id)? {
            return local.live(u32::try_from(limit).unwrap_or(u32::MAX));
        }
        let mut live = self.tasks(run, &[TaskStatus::Running, TaskStatus::Cancelling], limit)?;
        live.sort_by_key(|task| (task.started_at.is_none(), task.started_at, task.execution_id));
        Ok(live)
    }

    /// One task of a run.
    pub fn task(&self, run: &RunSummary, task_id: &str) -> Result<Option<TaskSummary>, Refusal> {
        let query = TaskQuery { task: Some(task_id.to_owned()), ..TaskQuery::default() };
        let tasks = self.get(Request::<ListTasks>::new(run.run_id.into(), query, Nothing {}))?.tasks;
        Ok(tasks.into_iter().next())
    }

    /// How each task of a run stands, in file order.
    pub fn statuses(&self, run: &RunSummary) -> Result<Vec<TaskStatus>, Refusal> {
        match self.local_run(run.run_id)? {
            Some(local) => local.statuses(),
            None => Ok(self.tasks(run, &[], usize::MAX)?.iter().map(|task| task.status).collect()),
        }
    }

    /// What waits for a person: DAGs to confirm, then tasks to approve.
    pub fn pending(&self) -> Result<Vec<PendingItem>, Refusal> {
        let request = Request::<ListPending>::new(Nothing {}, PageQuery::default(), Nothing {});
        Ok(self.list(request, usize::MAX)?.0)
    }

    /// What a review id is about.
    pub fn review(&self, id: ReviewId) -> Result<Option<Review>, Refusal> {
        self.find(Request::<ShowReview>::new(ReviewPath::from(id), Nothing {}, Nothing {}))
    }

    /// Who may call, the latest first.
    pub fn tokens(&self) -> Result<Vec<TokenSummary>, Refusal> {
        Ok(self.get(Request::<ListTokens>::bare())?.tokens)
    }

    /// The run as the store of this machine has it; nothing, where a node is read.
    pub fn local_run(&self, run_id: RunId) -> Result<Option<LocalRun>, Refusal> {
        match self {
            Self::Here(here) => LocalRun::open(here, run_id).map(Some),
            Self::Node(_) => Ok(None),
        }
    }
}

/// Hands each line that tasks of a run at a node printed to `hear`, until there is no more, or it has heard enough.
pub fn follow_logs(
    client: &Client,
    run: RunId,
    query: LogQuery,
    hear: impl FnMut(LogLine) -> bool,
) -> Result<(), Refusal> {
    client.follow(&Request::<RunLogs>::new(RunPath::from(run), query, Nothing {}), hear)
}

/// A task of a run in its definition: executions count up in file order.
pub fn task_of<'d>(dag: &'d Dag, run: &RunSummary, task: &TaskSummary) -> Option<&'d Task> {
    let place = task.execution_id.0.checked_sub(run.first_execution.0)?;
    dag.tasks.get(usize::try_from(place).ok()?)
}

fn dag_path(dag_id: &DagId) -> DagPath {
    DagPath { id: dag_id.to_string() }
}

/// The scope that was named, if one was; nothing, if what was named cannot be one.
#[allow(clippy::option_option, reason = "a name that is none is not the same as no name")]
fn named_scope(scope: Option<&str>) -> Option<Option<Scope>> {
    scope.map(|scope| scope.parse().ok()).map_or(Some(None), |scope| scope.map(Some))
}
