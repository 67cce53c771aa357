//! What a node knows.

use cis_core::dag::Dag;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, RunId, Scope, TaskIx};
use cis_core::review::ReviewId;
use cis_core::task::TaskStatus;
use cis_engine::why::Explained;
use cis_store::sqlite::reader::{DagLine, PendingLine, RevisionLine, RunLine, TaskLine};
use cis_store::sqlite::{ReviewLine, TokenLine, WaitingLine};
use serde_json::Value;

use super::{PAGE, Remote, escaped, took, with};
use crate::document;

impl Remote {
    /// DAGs, most recently touched first, at most `limit`; and whether there are more.
    pub fn dags(
        &self,
        status: Option<&str>,
        scope: Option<&str>,
        limit: u32,
    ) -> Result<(Vec<DagLine>, bool), Refusal> {
        let (status, scope) = (status.unwrap_or_default(), scope.unwrap_or_default());
        let room = limit.to_string();
        let query = [("status", status), ("scope", scope), ("order", "updated"), ("limit", &room)];
        let mut answer = self.client.get(&with("/api/v1/dag", &query))?;
        let mut dags: Vec<DagLine> = took(answer["dags"].take())?;
        let more = answer["more"] == true || dags.len() > limit as usize;
        dags.truncate(limit as usize);
        Ok((dags, more))
    }

    /// The DAGs of this name: one per scope that has it.
    pub fn dag(&self, dag_id: &str, scope: Option<&str>) -> Result<Vec<DagLine>, Refusal> {
        let query = [("dag_id", dag_id), ("scope", scope.unwrap_or_default())];
        let (mut dags, _) = self.list::<DagLine>("/api/v1/dag", "dags", &query, usize::MAX)?;
        dags.sort_by(|a, b| a.scope.cmp(&b.scope));
        Ok(dags)
    }

    pub fn run_by_id(&self, run_id: RunId) -> Result<Option<RunLine>, Refusal> {
        let told = match self.client.get(&format!("/api/v1/runs/{run_id}")) {
            Err(refusal) if refusal.code == ErrorCode::NotFound => return Ok(None),
            told => told?,
        };
        let (dag_id, scope): (DagId, Scope) = (took(told["dag_id"].clone())?, took(told["scope"].clone())?);
        let label = told["run"].as_str().and_then(|label| label.rsplit_once('#'));
        match label.and_then(|(_, number)| number.parse().ok()) {
            Some(number) => self.run_by_number(&dag_id, &scope, number),
            None => Ok(None),
        }
    }

    pub fn run_by_number(
        &self,
        dag_id: &DagId,
        scope: &Scope,
        number: i64,
    ) -> Result<Option<RunLine>, Refusal> {
        let query = [("scope", scope.as_str()), ("number", &number.to_string())];
        let runs: Vec<RunLine> = self.field(&with(&format!("/api/v1/dag/{dag_id}/runs"), &query), "runs")?;
        Ok(runs.into_iter().next())
    }

    /// The runs of a DAG, or of all, latest first, at most `limit`; and whether there are more.
    pub fn runs(&self, dag: Option<&DagLine>, limit: u32) -> Result<(Vec<RunLine>, bool), Refusal> {
        match dag {
            Some(dag) => {
                let path = format!("/api/v1/dag/{}/runs", dag.dag_id);
                self.list(&path, "runs", &[("scope", dag.scope.as_str())], limit as usize)
            }
            None => self.list("/api/v1/runs", "runs", &[], limit as usize),
        }
    }

    /// The contents a DAG has had, latest first.
    pub fn revisions(&self, dag: &DagLine) -> Result<Vec<RevisionLine>, Refusal> {
        took(self.revision(&dag.dag_id, &dag.scope, "")?["revisions"].take())
    }

    /// The definition with this content.
    pub fn definition(&self, dag_id: &DagId, scope: &Scope, content_hash: &str) -> Result<Dag, Refusal> {
        let mut told = self.revision(dag_id, scope, content_hash)?;
        document::from_canonical(told["definition"].take(), dag_id, scope)
    }

    /// The definition that a run runs.
    pub fn definition_of(&self, run: &RunLine) -> Result<Dag, Refusal> {
        let mut told = self.revision(&run.dag_id, &run.scope, "")?;
        let revisions: Vec<RevisionLine> = took(told["revisions"].take())?;
        match revisions.iter().find(|revision| revision.revision == run.revision) {
            Some(own) if told["content_hash"] != own.content_hash.as_str() => {
                self.definition(&run.dag_id, &run.scope, &own.content_hash)
            }
            _ => document::from_canonical(told["definition"].take(), &run.dag_id, &run.scope),
        }
    }

    fn revision(&self, dag_id: &DagId, scope: &Scope, content_hash: &str) -> Result<Value, Refusal> {
        let query = [("scope", scope.as_str()), ("content_hash", content_hash)];
        self.client.get(&with(&format!("/api/v1/dag/{dag_id}"), &query))
    }

    /// Tasks of a run in file order: those in one of `statuses` (all, if it is empty), at most `limit`.
    pub fn tasks(
        &self,
        run: &RunLine,
        statuses: &[TaskStatus],
        limit: u32,
    ) -> Result<Vec<TaskLine>, Refusal> {
        let words: Vec<&str> = match statuses {
            [] => vec![""],
            some => some.iter().map(|status| status.word()).collect(),
        };
        let (path, mut tasks) = (format!("/api/v1/runs/{}/tasks", run.run_id), Vec::new());
        for word in words {
            tasks.extend(self.list::<TaskLine>(&path, "tasks", &[("status", word)], limit as usize)?.0);
        }
        tasks.iter_mut().for_each(|task| place(run, task));
        tasks.sort_by_key(|task| task.ix);
        tasks.truncate(limit as usize);
        Ok(tasks)
    }

    /// One task of a run.
    pub fn task(&self, run: &RunLine, task_id: &str) -> Result<Option<TaskLine>, Refusal> {
        let path = with(&format!("/api/v1/runs/{}/tasks", run.run_id), &[("task", task_id)]);
        let mut found = self.field::<Vec<TaskLine>>(&path, "tasks")?.into_iter().next();
        found.iter_mut().for_each(|task| place(run, task));
        Ok(found)
    }

    /// What waits for a person: DAGs to confirm, and tasks to approve.
    pub fn pending(&self) -> Result<(Vec<PendingLine>, Vec<WaitingLine>), Refusal> {
        let (waiting, _) = self.list::<Value>("/api/v1/pending", "pending", &[], usize::MAX)?;
        let (mut dags, mut tasks) = (Vec::new(), Vec::new());
        for one in waiting {
            match one["kind"] == "dag" {
                true => dags.push(took(one)?),
                false => tasks.push(took(one)?),
            }
        }
        Ok((dags, tasks))
    }

    /// What a review id is about.
    pub fn review(&self, id: ReviewId) -> Result<Option<ReviewLine>, Refusal> {
        match self.client.get(&format!("/api/v1/pending/{id}")) {
            Err(refusal) if refusal.code == ErrorCode::NotFound => Ok(None),
            told => took(told?).map(Some),
        }
    }

    pub fn tokens(&self) -> Result<Vec<TokenLine>, Refusal> {
        self.field("/api/v1/tokens", "tokens")
    }

    /// What a run waits for.
    pub fn why_run(&self, run: &RunLine, limit: u32) -> Result<Explained, Refusal> {
        self.why(&format!("/api/v1/runs/{}/why", run.run_id), "", limit)
    }

    /// What a DAG waits for.
    pub fn why_dag(&self, dag: &DagLine, limit: u32) -> Result<Explained, Refusal> {
        self.why(&format!("/api/v1/dag/{}/why", escaped(dag.dag_id.as_str())), dag.scope.as_str(), limit)
    }

    fn why(&self, path: &str, scope: &str, limit: u32) -> Result<Explained, Refusal> {
        let limit = limit.min(u32::try_from(PAGE).unwrap_or(u32::MAX)).to_string();
        took(self.client.get(&with(path, &[("scope", scope), ("limit", &limit)]))?)
    }
}

/// Which task of its run it is: executions count up in file order.
fn place(run: &RunLine, task: &mut TaskLine) {
    let ix = task.execution_id.0 - run.first_execution.0;
    task.ix = TaskIx(u32::try_from(ix).unwrap_or(u32::MAX));
}
