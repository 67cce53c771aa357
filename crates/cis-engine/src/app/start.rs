//! Starting runs: of a definition that is published with it, of what was confirmed, of what an earlier run left.

use cis_api::Request;
use cis_api::calls::{ResumeRun, RetryTask, RunDefinition, StartRun};
use cis_api::dag::{DagPath, InScope};
use cis_api::run::{
    OwnerOptions, ResumeBody, RetryBody, RunContext, RunDefinitionBody, RunPath, RunStarted, StartBody,
    run_label,
};
use cis_core::dag::plan::Plan;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{RunId, RunKey};
use cis_core::revision::RevisionStatus;
use cis_core::source::Timestamp;
use cis_store::port::{Fate, Once, Published, Quotas, RunRef, Settle, StartRun as StoreStart};
use serde_json::{Map, Value};

use super::look::Look;
use super::{Answer, App, Permit, Sender, begun, broke_off, changed};
use crate::again::{Again, confirmed, sequel};
use crate::context::Context;
use crate::coordinator::Expected;
use crate::coordinator::handle::News;
use crate::select;

/// What is run, and how.
struct Wish {
    definition: i64,
    params: Map<String, Value>,
    max_parallel: Option<u32>,
    fates: Option<Vec<Fate>>,
    resumed_from: Option<RunKey>,
    /// Its tasks start where the node says, also for the owner.
    at_node: bool,
    owner: Option<OwnerOptions>,
}

impl Answer<RunDefinition> for App {
    /// Publishes, confirms and runs in one go: running a file is its owner's own act.
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<RunDefinition>,
    ) -> Result<Once<RunStarted>, Refusal> {
        let RunDefinitionBody { definition, start } = request.body;
        let StartBody { params, max_parallel, owner, .. } = start;
        // Three operations, each safe to repeat by itself: a key is of one.
        let sender = &Sender { key: None, ..sender.clone() };
        let mut checked = self.check_definition(sender, definition).await?;
        checked.new_revision = true;
        let (dag, content_hash) = (checked.dag.clone(), checked.content_hash.clone());
        let selection = owner.as_ref().filter(|owner| !owner.only.is_empty() || !owner.from.is_empty());
        if let Some(owner) = selection {
            // Before anything is published: a task that does not exist must not confirm anything.
            select::named(&dag, &owner.only)?;
            select::named(&dag, &owner.from)?;
        }
        let published = self.store_definition(sender, checked).await?.answer?;
        self.confirm_own(sender, &published, content_hash).await?;
        let definition = published.definition;
        let (fates, resumed_from) = match selection.cloned() {
            None => (None, None),
            Some(owner) => self.look(sender, move |look| select_tasks(look, definition, &owner)).await?,
        };
        let at_node = false;
        self.start(sender, Wish { definition, params, max_parallel, fates, resumed_from, at_node, owner })
            .await
    }
}

impl Answer<StartRun> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<StartRun>,
    ) -> Result<Once<RunStarted>, Refusal> {
        let (DagPath { id }, InScope { scope }) = (request.path, request.query);
        let StartBody { params, max_parallel, content_hash, owner } = request.body;
        let wish = self.look(sender, move |look| {
            let dag = look.dag(&id, scope.as_ref())?;
            let revisions = look.reader.revisions(dag.key)?;
            let definition = confirmed(&dag.dag_id, &revisions, content_hash.as_deref())?.key;
            let (fates, resumed_from) = match &owner {
                Some(owner) => select_tasks(look, definition, owner)?,
                None => (None, None),
            };
            Ok(Wish { definition, params, max_parallel, fates, resumed_from, at_node: false, owner })
        });
        self.start(sender, wish.await?).await
    }
}

impl Answer<ResumeRun> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<ResumeRun>,
    ) -> Result<Once<RunStarted>, Refusal> {
        let ResumeBody { max_parallel, owner } = request.body;
        self.carry_on(sender, request.path, None, max_parallel, owner).await
    }
}

impl Answer<RetryTask> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<RetryTask>,
    ) -> Result<Once<RunStarted>, Refusal> {
        let RetryBody { task, max_parallel, owner } = request.body;
        self.carry_on(sender, request.path, Some(task), max_parallel, owner).await
    }
}

impl App {
    async fn carry_on(
        &self,
        sender: &Sender,
        RunPath { run }: RunPath,
        task: Option<String>,
        max_parallel: Option<u32>,
        owner: Option<OwnerOptions>,
    ) -> Result<Once<RunStarted>, Refusal> {
        let wish = self.look(sender, move |look| {
            let run = look.run(&run)?;
            let again = task.as_deref().map_or(Again::Rest, Again::Task);
            let fates = sequel(look.reader, &run, again, look.caller)?;
            Ok(Wish {
                definition: run.definition,
                params: run.given_params(),
                max_parallel: max_parallel.or(run.max_parallel),
                fates: Some(fates),
                resumed_from: Some(run.key),
                at_node: run.at_node,
                owner,
            })
        });
        self.start(sender, wish.await?).await
    }

    /// Confirms what the owner has just published, if it waits for that.
    async fn confirm_own(
        &self,
        sender: &Sender,
        published: &Published,
        content_hash: String,
    ) -> Result<(), Refusal> {
        if published.status != RevisionStatus::Pending {
            return Ok(());
        }
        let (definition, by, now) = (published.definition, sender.by(), self.now());
        let request = Settle { definition, content_hash, confirm: true, by, now };
        let settle = |store: cis_store::SqliteStore| async move { store.settle(request).await };
        self.write_plain("confirming", settle, |_| changed()).await.map(drop)
    }

    async fn start(&self, sender: &Sender, wish: Wish) -> Result<Once<RunStarted>, Refusal> {
        let Wish { definition, params, max_parallel, fates, resumed_from, at_node, owner } = wish;
        let OwnerOptions { run_id, attached, context, .. } = match (owner, sender.connection) {
            (Some(_), None) => {
                let why = "`owner` is taken from the owner of the data directory only, on its machine";
                return Err(Refusal::new(ErrorCode::Forbidden, why));
            }
            (owner, _) => owner.unwrap_or_default(),
        };
        let run_id = run_id.unwrap_or_else(|| self.new_run_id());
        let context = self.owner_context(sender, context)?;
        let at_node = at_node || context.is_none();
        let request = StoreStart {
            key: sender.key.clone(),
            run_id,
            definition,
            params,
            max_parallel,
            attached,
            at_node,
            traceparent: sender.traceparent.clone(),
            fates,
            resumed_from,
            by_confirmation: false,
            by: sender.by(),
            by_proven: sender.is_proven,
            now: self.now(),
        };
        let quotas = self.quotas_of(sender);
        let Some(context) = context else { return self.store_start(request, quotas).await };
        let context = if at_node { self.node_context(context)? } else { context };
        let expected = Expected {
            owner: sender.connection.filter(|_| attached),
            is_owner_gone: false,
            context: (!at_node).then(|| context.clone()),
        };
        let app = self.clone();
        let start = async move { app.store_start(request, quotas).await };
        self.start_expected(run_id, context, expected, start, |started| {
            Some(started.run_id).filter(|_| !started.status.is_terminal())
        })
        .await
    }

    /// Starts a run with an environment of its own, which is kept before the run exists: killed in between, the next
    /// coordinator finds it; a task that is claimed at once finds it as well. On a task of its own: a caller that goes away
    /// meanwhile leaves nothing half done.
    pub(super) async fn start_expected<T: Send + 'static>(
        &self,
        run: RunId,
        context: Context,
        expected: Expected,
        start: impl Future<Output = Result<Once<T>, Refusal>> + Send + 'static,
        started: impl Fn(&T) -> Option<RunId> + Send + 'static,
    ) -> Result<Once<T>, Refusal> {
        let app = self.clone();
        let starting = tokio::spawn(async move {
            app.handle.expect_run(run, expected).await?;
            let (path, durability) = (app.options.data_dir.context_of_new(run), app.options.durability);
            let kept = path.clone();
            let saved = app.on_disk("starting", move || context.save(&kept, durability)).await;
            let saved =
                saved.and_then(|saved| saved.map_err(|e| Refusal::unwritten("the run's environment", &e)));
            let answer = match saved {
                Ok(()) => start.await,
                Err(refusal) => Err(refusal),
            };
            let new = answer.as_ref().ok().and_then(|once| once.answer.as_ref().ok()).and_then(started);
            if new != Some(run) {
                let _ = app.on_disk("starting", move || std::fs::remove_file(&path)).await;
                app.handle.forget_expected(run).await;
            }
            answer
        });
        starting.await.map_err(|_| broke_off("starting"))?
    }

    async fn store_start(
        &self,
        request: StoreStart,
        quotas: Option<Quotas>,
    ) -> Result<Once<RunStarted>, Refusal> {
        let run_id = request.run_id;
        let started = self
            .write(
                "starting",
                move |store| async move { store.within(quotas).start_run(request).await },
                move |run: &RunRef| News {
                    // When it must have begun, the definition may say.
                    due: Some(Timestamp(0)),
                    ..begun(run_id, Some(run))
                },
            )
            .await?;
        Ok(started.map(|run| told_started(&run)))
    }

    /// The environment and directory that the owner sent. From any other caller they would be code execution.
    pub(super) fn owner_context(
        &self,
        sender: &Sender,
        context: Option<RunContext>,
    ) -> Result<Option<Context>, Refusal> {
        let Some(RunContext(context)) = context else { return Ok(None) };
        if sender.connection.is_none() {
            let why = "`context` is taken from the owner of the data directory only, on its machine";
            return Err(Refusal::new(ErrorCode::Forbidden, why));
        }
        let read = serde_json::from_value(context);
        read.map(Some).map_err(|e| {
            Refusal::new(ErrorCode::ValidationFailed, format!("the run's environment cannot be read: {e}"))
        })
    }

    /// What tasks at the node start with: what the node has kept on disk, or what `built` says where there never was one.
    /// Skills are known by their content, so that they may be found where `built` says in either case.
    pub(super) fn node_context(&self, built: Context) -> Result<Context, Refusal> {
        let Context { skill_dirs, owner, .. } = built.clone();
        match Context::load(&self.options.data_dir.node_context()) {
            Ok(mut kept) => {
                let more: Vec<_> =
                    skill_dirs.into_iter().filter(|dir| !kept.skill_dirs.contains(dir)).collect();
                kept.skill_dirs.extend(more);
                Ok(Context { owner, ..kept })
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(built),
            Err(e) => {
                let why = format!("the node's environment cannot be read: {e}");
                Err(Refusal::new(ErrorCode::Unavailable, why))
            }
        }
    }
}

/// What `only` and `from` select of a definition, carrying over what its latest run completed.
fn select_tasks(
    look: Look<'_>,
    definition: i64,
    owner: &OwnerOptions,
) -> Result<(Option<Vec<Fate>>, Option<RunKey>), Refusal> {
    if owner.only.is_empty() && owner.from.is_empty() {
        return Ok((None, None));
    }
    let dag = look.reader.definition(definition)?;
    let plan = Plan::new(&dag);
    let (resumed_from, before) = match look.reader.latest_ended_run(definition)? {
        Some(run) => (Some(run.key), Some(look.reader.statuses(&run)?)),
        None => (None, None),
    };
    let fates = match owner.only.is_empty() {
        false => select::only(&plan, &select::named(&dag, &owner.only)?, before.as_deref()),
        true => select::from(&plan, &select::named(&dag, &owner.from)?, before.as_deref()),
    };
    Ok((Some(fates), resumed_from))
}

/// Told from what was committed alone: with a key, it must be the same whenever it is told again.
pub(super) fn told_started(run: &RunRef) -> RunStarted {
    let RunRef { run_id, dag_id, scope, number, status, .. } = run;
    let label = run_label(dag_id, *number);
    RunStarted {
        run_id: *run_id,
        message: format!("{label} has started"),
        run: label,
        dag_id: dag_id.clone(),
        scope: scope.clone(),
        number: *number,
        status: *status,
    }
}
