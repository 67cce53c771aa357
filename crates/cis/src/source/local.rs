//! A run as the store and the files of this machine have it: what a live view looks at many times a second, what is read of
//! runs of a hundred thousand tasks, and what no node tells.

use std::path::PathBuf;
use std::rc::Rc;

use cis_api::dag::{DagSummary, RevisionSummary};
use cis_api::run::RunSummary;
use cis_api::task::TaskSummary;
use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::event::Event;
use cis_core::id::{DagId, Position, RunId, Scope, TaskIx};
use cis_core::task::TaskStatus;
use cis_engine::context::Context;
use cis_engine::logs::{Lines, Next, Wanted};
use cis_store::rows::{Keyed, RunRow};

use super::Here;

impl Here {
    /// By the index of names, which a list with filters does not go by.
    pub(super) fn dags_named(&self, dag_id: &str, scope: Option<&Scope>) -> Result<Vec<DagSummary>, Refusal> {
        Ok(shown(self.reader.dag(dag_id, scope.map(Scope::as_str))?))
    }

    fn dag_key(&self, dag_id: &DagId, scope: &Scope) -> Result<i64, Refusal> {
        let found = self.reader.dag(dag_id.as_str(), Some(scope.as_str()))?.into_iter().next();
        found.map(|dag| dag.key).ok_or_else(|| gone(&format!("DAG `{dag_id}`")))
    }

    pub(super) fn revisions(&self, dag: &DagSummary) -> Result<Vec<RevisionSummary>, Refusal> {
        Ok(shown(self.reader.revisions(self.dag_key(&dag.dag_id, &dag.scope)?)?))
    }

    /// Parsed once, and not written as JSON in between.
    pub(super) fn definition(
        &self,
        dag_id: &DagId,
        scope: &Scope,
        content_hash: &str,
    ) -> Result<Dag, Refusal> {
        let revisions = self.reader.revisions(self.dag_key(dag_id, scope)?)?;
        let meant = revisions.iter().find(|revision| revision.content_hash == content_hash);
        let meant = meant.ok_or_else(|| gone(&format!("that revision of `{dag_id}`")))?;
        Ok(self.reader.definition(meant.key)?)
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct LocalRun {
    here: Rc<Here>,
    row: RunRow,
}

impl LocalRun {
    pub fn open(here: &Rc<Here>, run_id: RunId) -> Result<Self, Refusal> {
        let row = here.reader.run_by_id(run_id)?.ok_or_else(|| gone(&format!("run `{run_id}`")))?;
        Ok(Self { here: here.clone(), row })
    }

    /// The run as it was when it was last looked at.
    pub fn summary(&self) -> &RunSummary {
        &self.row
    }

    /// Looks at it again.
    pub fn refresh(&mut self) -> Result<(), Refusal> {
        if let Some(row) = self.here.reader.run(self.row.key)? {
            self.row = row;
        }
        Ok(())
    }

    /// What it runs.
    pub fn definition(&self) -> Result<Dag, Refusal> {
        Ok(self.here.reader.definition(self.row.definition)?)
    }

    /// The status each task is created in; its events tell the rest.
    pub fn first_statuses(&self, dag: &Dag) -> Vec<TaskStatus> {
        (0..self.row.total).map(|ix| self.row.first_status(dag, TaskIx(ix))).collect()
    }

    /// How each task stands, in file order.
    pub fn statuses(&self) -> Result<Vec<TaskStatus>, Refusal> {
        Ok(self.here.reader.statuses(&self.row)?)
    }

    /// Its events after `after`, at most `limit`, and up to where they were read.
    pub fn events(&self, after: Position, limit: u32) -> Result<(Vec<Event>, Position), Refusal> {
        Ok(self.here.reader.events(&self.row, after, limit)?)
    }

    /// Tasks in file order: those in one of `statuses` (all, if it is empty), at most `limit`.
    pub fn tasks(&self, statuses: &[TaskStatus], limit: u32) -> Result<Vec<TaskSummary>, Refusal> {
        Ok(shown(self.here.reader.tasks(&self.row, statuses, limit)?))
    }

    /// Tasks that are worked on, the longest first.
    pub fn live(&self, limit: u32) -> Result<Vec<TaskSummary>, Refusal> {
        Ok(shown(self.here.reader.live(&self.row, limit)?))
    }

    pub fn task(&self, ix: TaskIx) -> Result<Option<TaskSummary>, Refusal> {
        Ok(self.here.reader.task(&self.row, ix)?.map(|task| task.shown))
    }

    /// Where the output of a task's latest attempt is.
    pub fn log(&self, task: &TaskSummary) -> PathBuf {
        self.here.data_dir.log(self.row.key.0, task.execution_id.0, task.attempt)
    }

    /// What its tasks printed.
    pub fn logs(&self, wanted: Wanted) -> Result<LocalLogs, Refusal> {
        let lines = Lines::open(&self.here.reader, self.here.data_dir.clone(), self.row.clone(), wanted)?;
        Ok(LocalLogs { here: self.here.clone(), lines })
    }

    /// The directory that its tasks start in, while that is known.
    pub fn directory(&self) -> Option<PathBuf> {
        let context = Context::load(&self.here.data_dir.context(self.row.key.0)).ok();
        context.map(|context| context.cwd)
    }
}

/// What tasks of a run printed, a batch at a time.
#[derive(Debug)]
pub struct LocalLogs {
    here: Rc<Here>,
    lines: Lines,
}

impl LocalLogs {
    pub fn next(&mut self) -> Result<Next, Refusal> {
        self.lines.next(&self.here.reader)
    }
}

fn shown<K, T>(rows: Vec<Keyed<K, T>>) -> Vec<T> {
    rows.into_iter().map(|row| row.shown).collect()
}

/// It was there a moment ago.
pub(super) fn gone(what: &str) -> Refusal {
    Refusal::new(ErrorCode::NotFound, format!("{what} is not in the store"))
}
