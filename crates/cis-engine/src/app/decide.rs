//! Decisions of people: about revisions, and about tasks that wait.

use cis_api::Request;
use cis_api::calls::{ApproveReview, ApproveTask, ConfirmDag, RejectDag, RejectReview, RejectTask};
use cis_api::dag::{DagDecided, DagDecision, DagPath, InScope};
use cis_api::review::{ReviewDecided, ReviewDecision, ReviewPath};
use cis_api::run::{RunContext, run_label};
use cis_api::task::{TaskDecided, TaskDecision, TaskPath, Verdict};
use cis_core::error::Refusal;
use cis_core::id::{DagId, ExecutionId, Scope};
use cis_core::review::ReviewId;
use cis_store::port::{Approve, Approved, Decide, Decided, Once, Quotas, RunRef};
use cis_store::rows::ReviewRow;

use super::look::not_found;
use super::{Answer, App, Permit, Sender, begun, changed, invalid};
use crate::coordinator::Expected;
use crate::coordinator::handle::News;

/// Which revision is decided about.
struct Meant {
    scope: Scope,
    dag_id: DagId,
    content_hash: Option<String>,
    review: Option<ReviewId>,
}

impl Answer<ConfirmDag> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<ConfirmDag>,
    ) -> Result<Once<DagDecided>, Refusal> {
        self.decide_dag(sender, request.path, request.query, request.body, true).await
    }
}

impl Answer<RejectDag> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<RejectDag>,
    ) -> Result<Once<DagDecided>, Refusal> {
        self.decide_dag(sender, request.path, request.query, request.body, false).await
    }
}

impl Answer<ApproveReview> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<ApproveReview>,
    ) -> Result<Once<ReviewDecided>, Refusal> {
        self.decide_review(sender, request.path, request.body, true).await
    }
}

impl Answer<RejectReview> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<RejectReview>,
    ) -> Result<Once<ReviewDecided>, Refusal> {
        self.decide_review(sender, request.path, request.body, false).await
    }
}

impl Answer<ApproveTask> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<ApproveTask>,
    ) -> Result<Once<TaskDecided>, Refusal> {
        self.decide_task(sender, request.path, request.body, true).await
    }
}

impl Answer<RejectTask> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<RejectTask>,
    ) -> Result<Once<TaskDecided>, Refusal> {
        self.decide_task(sender, request.path, request.body, false).await
    }
}

impl App {
    async fn decide_dag(
        &self,
        sender: &Sender,
        path: DagPath,
        query: InScope,
        body: DagDecision,
        confirm: bool,
    ) -> Result<Once<DagDecided>, Refusal> {
        let DagDecision { content_hash, note, context } = body;
        let dag = self.look(sender, move |look| look.dag(&path.id, query.scope.as_ref())).await?.shown;
        let meant = Meant { scope: dag.scope, dag_id: dag.dag_id, content_hash, review: None };
        self.decide_revision(sender, meant, note, context, confirm).await
    }

    async fn decide_review(
        &self,
        sender: &Sender,
        path: ReviewPath,
        body: ReviewDecision,
        approve: bool,
    ) -> Result<Once<ReviewDecided>, Refusal> {
        let ReviewDecision { input, note, context } = body;
        match self.look(sender, move |look| look.review(&path.review)).await? {
            ReviewRow::Dag(review) => {
                if !input.is_empty() {
                    return Err(invalid("a DAG is confirmed or rejected without `input`"));
                }
                let line = review.line;
                let meant = Meant {
                    scope: line.scope,
                    dag_id: line.dag_id,
                    content_hash: Some(line.content_hash),
                    review: Some(line.review_id),
                };
                let decided = self.decide_revision(sender, meant, note, context, approve).await?;
                Ok(decided.map(ReviewDecided::Dag))
            }
            ReviewRow::Task { execution, .. } => {
                let body = TaskDecision { input, note };
                let decided = self.decide_execution(sender, execution, body, approve).await?;
                Ok(decided.map(ReviewDecided::Task))
            }
        }
    }

    async fn decide_task(
        &self,
        sender: &Sender,
        path: TaskPath,
        body: TaskDecision,
        approve: bool,
    ) -> Result<Once<TaskDecided>, Refusal> {
        let TaskPath { run, task } = path;
        let found = self.look(sender, move |look| {
            let run = look.run(&run)?;
            look.reader.task_named(&run, &task)?.ok_or_else(|| not_found("task", &task))
        });
        let execution = found.await?.execution_id;
        self.decide_execution(sender, execution, body, approve).await
    }

    /// Decides about a revision, and starts it if that confirms it. What runs then starts where the node says; where no node
    /// ever served the data directory, where its owner is.
    async fn decide_revision(
        &self,
        sender: &Sender,
        meant: Meant,
        note: Option<String>,
        context: Option<RunContext>,
        confirm: bool,
    ) -> Result<Once<DagDecided>, Refusal> {
        let Meant { scope, dag_id, content_hash, review } = meant;
        let run_id = self.new_run_id();
        let request = Decide {
            key: sender.key.clone(),
            scope,
            dag_id,
            content_hash,
            review,
            confirm,
            note,
            by: sender.by(),
            self_confirm: sender.caller.self_confirm,
            run_id,
            traceparent: sender.traceparent.clone(),
            now: self.now(),
        };
        let quotas = self.quotas_of(sender);
        let context = self.owner_context(sender, context)?.filter(|_| confirm);
        let Some(context) = context else { return self.told_decision(request, quotas).await };
        let context = self.node_context(context)?;
        let expected = Expected { owner: None, is_owner_gone: false, context: None };
        let app = self.clone();
        let decide = async move { app.told_decision(request, quotas).await };
        self.start_expected(run_id, context, expected, decide, |decided| {
            decided.run_id.filter(|_| decided.run_status.is_some_and(|status| !status.is_terminal()))
        })
        .await
    }

    async fn told_decision(
        &self,
        request: Decide,
        quotas: Option<Quotas>,
    ) -> Result<Once<DagDecided>, Refusal> {
        Ok(self.store_decision(request, quotas).await?.map(|decided| told_decided(&decided)))
    }

    pub(super) async fn store_decision(
        &self,
        request: Decide,
        quotas: Option<Quotas>,
    ) -> Result<Once<Decided>, Refusal> {
        let run_id = request.run_id;
        self.write(
            "deciding",
            move |store| async move { store.within(quotas).decide(request).await },
            move |decided: &Decided| News { due: decided.next_due, ..begun(run_id, decided.run.as_ref()) },
        )
        .await
    }

    /// Decides about a task that waits for a person: that may make it claimable, or end its run.
    async fn decide_execution(
        &self,
        sender: &Sender,
        execution: ExecutionId,
        body: TaskDecision,
        approve: bool,
    ) -> Result<Once<TaskDecided>, Refusal> {
        let TaskDecision { input, note } = body;
        let request = Approve {
            key: sender.key.clone(),
            execution,
            approve,
            input,
            note,
            by: sender.by(),
            self_confirm: sender.caller.self_confirm,
            now: self.now(),
        };
        let approved = self
            .write(
                "deciding",
                move |store| async move { store.approve(request).await },
                |approved: &Approved| {
                    // The same decision again has ended nothing.
                    let ended =
                        Some(&approved.run).filter(|run| approved.changed && run.status.is_terminal());
                    News { ended: ended.into_iter().cloned().collect(), ..changed() }
                },
            )
            .await?;
        Ok(approved.map(|approved| told_approved(&approved)))
    }
}

fn told_decided(decided: &Decided) -> DagDecided {
    let Decided { status, dag_id, scope, revision, content_hash, tasks, decision, run, .. } = decided;
    let label = |run: &RunRef| run_label(dag_id, run.number);
    DagDecided {
        status: *status,
        dag_id: dag_id.clone(),
        scope: scope.clone(),
        revision: *revision,
        content_hash: content_hash.clone(),
        tasks_count: *tasks,
        decided_by: decision.as_ref().map(|decision| decision.decided_by.clone()),
        decided_at: decision.as_ref().map(|decision| decision.decided_at),
        note: decision.as_ref().and_then(|decision| decision.note.clone()),
        run_id: run.as_ref().map(|run| run.run_id),
        run: run.as_ref().map(label),
        number: run.as_ref().map(|run| run.number),
        run_status: run.as_ref().map(|run| run.status),
        message: run.as_ref().map(|run| format!("{} has started, tasks: {tasks}", label(run))),
    }
}

fn told_approved(approved: &Approved) -> TaskDecided {
    let Approved { approved, run, task_id, status, by, at, note, outputs, .. } = approved;
    TaskDecided {
        status: if *approved { Verdict::Approved } else { Verdict::Rejected },
        run_id: run.run_id,
        run: run_label(&run.dag_id, run.number),
        task_id: task_id.clone(),
        task_status: *status,
        decided_by: by.clone(),
        decided_at: *at,
        note: note.clone(),
        outputs: outputs.clone(),
    }
}
