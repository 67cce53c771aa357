//! Holding things up and letting them go on: cancel, pause, drain, prune; and what the coordinator says of itself.

use cis_api::Request;
use cis_api::calls::{
    AttachRun, CancelRun, DrainNode, HandOver, ListNodes, PauseRun, PauseScope, PruneRuns, ShowCoordinator,
    ShowReady, UndrainNode, UnpauseRun, UnpauseScope,
};
use cis_api::node::{
    CoordinatorInfo, CoordinatorKind, Drained, HandingOver, NodeInfo, Nodes, PausedScope, Ready, ScopePath,
};
use cis_api::run::{PausedRun, PruneBody, PrunedChunk, RunPath, RunStarted, RunStopping};
use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Scope;
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::Timestamp;
use cis_store::SqliteStore;
use cis_store::port::{CoordinatorStore as _, Once, Prune, RunRef, StopRun};
use cis_store::rows::RunRow;

use super::look::not_found;
use super::start::told_started;
use super::{Answer, App, Permit, Sender, changed};
use crate::coordinator::handle::News;

fn reference(run: &RunRow, status: RunStatus) -> RunRef {
    RunRef {
        key: run.key,
        run_id: run.run_id,
        dag_id: run.dag_id.clone(),
        scope: run.scope.clone(),
        number: run.number,
        status,
    }
}

impl Answer<CancelRun> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<CancelRun>,
    ) -> Result<Once<RunStopping>, Refusal> {
        let (RunPath { run }, kill) = (request.path, request.body.kill);
        let run = self.look(sender, move |look| look.run(&run)).await?;
        let (run_id, stop) = (
            run.run_id,
            StopRun {
                key: sender.key.clone(),
                run: run.key,
                reason: StopReason::Cancel,
                by: Some(sender.by()),
                now: self.now(),
            },
        );
        let stopping = self
            .write(
                "stopping",
                move |store| async move { store.stop_run(stop).await },
                move |status: &RunStatus| {
                    // A run that had not begun is over by this very commit.
                    let ended = status.is_terminal().then(|| reference(&run, *status));
                    let kill = kill.then_some(run.key);
                    News { ended: ended.into_iter().collect(), kill, ..changed() }
                },
            )
            .await?;
        Ok(stopping.map(|status| RunStopping { run_id, status }))
    }
}

impl Answer<PauseRun> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<PauseRun>,
    ) -> Result<Once<PausedRun>, Refusal> {
        self.set_run_paused(sender, request.path, true).await
    }
}

impl Answer<UnpauseRun> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<UnpauseRun>,
    ) -> Result<Once<PausedRun>, Refusal> {
        self.set_run_paused(sender, request.path, false).await
    }
}

impl Answer<PauseScope> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<PauseScope>,
    ) -> Result<Once<PausedScope>, Refusal> {
        self.set_scope_paused(sender, request.path, true).await
    }
}

impl Answer<UnpauseScope> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<UnpauseScope>,
    ) -> Result<Once<PausedScope>, Refusal> {
        self.set_scope_paused(sender, request.path, false).await
    }
}

impl Answer<DrainNode> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        _: Request<DrainNode>,
    ) -> Result<Once<Drained>, Refusal> {
        self.set_draining(sender, true).await
    }
}

impl Answer<UndrainNode> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        _: Request<UndrainNode>,
    ) -> Result<Once<Drained>, Refusal> {
        self.set_draining(sender, false).await
    }
}

impl Answer<ListNodes> for App {
    async fn answer(&self, _: Permit, _: &Sender, _: Request<ListNodes>) -> Result<Once<Nodes>, Refusal> {
        Ok(Once::new(Nodes { nodes: vec![self.node_info()?.clone()] }))
    }
}

impl Answer<ShowReady> for App {
    async fn answer(&self, _: Permit, _: &Sender, _: Request<ShowReady>) -> Result<Once<Ready>, Refusal> {
        let info = self.coordinator_info().await?;
        let refuse = |why: &str| Err(Refusal::new(ErrorCode::Unavailable, why));
        match info {
            info if info.draining => refuse("draining"),
            info if info.full => refuse("the disk is full"),
            CoordinatorInfo { runner: Some(silent), .. } => Err(silent),
            _ => Ok(Once::new(Ready { status: "ready".to_owned(), node: self.node_info()?.did.clone() })),
        }
    }
}

impl Answer<ShowCoordinator> for App {
    async fn answer(
        &self,
        _: Permit,
        _: &Sender,
        _: Request<ShowCoordinator>,
    ) -> Result<Once<CoordinatorInfo>, Refusal> {
        self.coordinator_info().await.map(Once::new)
    }
}

impl Answer<AttachRun> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<AttachRun>,
    ) -> Result<Once<RunStarted>, Refusal> {
        let RunPath { run } = request.path;
        let run = self.look(sender, move |look| look.run(&run)).await?;
        if let Some(connection) = sender.connection {
            self.handle.attach(run.key, connection).await?;
        }
        Ok(Once::new(told_started(&reference(&run, run.status))))
    }
}

impl Answer<HandOver> for App {
    /// Lets the process that asks become the coordinator. Tasks do not notice: they live in the runner.
    async fn answer(
        &self,
        _: Permit,
        _: &Sender,
        _: Request<HandOver>,
    ) -> Result<Once<HandingOver>, Refusal> {
        let pid = std::process::id();
        if self.options.kind == CoordinatorKind::Node {
            let why = format!("process {pid} is a node: it does not hand over");
            return Err(Refusal::new(ErrorCode::InvalidTransition, why).hint("stop it first"));
        }
        Ok(Once::new(HandingOver { pid, runs: self.handle.hand_over().await? }))
    }
}

impl Answer<PruneRuns> for App {
    async fn answer(
        &self,
        _: Permit,
        _: &Sender,
        request: Request<PruneRuns>,
    ) -> Result<Once<PrunedChunk>, Refusal> {
        self.prune(request.body).await.map(Once::new)
    }
}

impl App {
    async fn set_run_paused(
        &self,
        sender: &Sender,
        RunPath { run }: RunPath,
        paused: bool,
    ) -> Result<Once<PausedRun>, Refusal> {
        let run = self.look(sender, move |look| look.run(&run)).await?;
        let (key, run_id, by, now) = (run.key, run.run_id, Some(sender.by()), self.now());
        let pause = |store: SqliteStore| async move { store.pause_run(key, paused, by, now).await };
        let status = self.write_plain("pausing", pause, |_| changed()).await?;
        Ok(Once::new(PausedRun { run_id, status, paused }))
    }

    async fn set_scope_paused(
        &self,
        sender: &Sender,
        ScopePath { scope }: ScopePath,
        paused: bool,
    ) -> Result<Once<PausedScope>, Refusal> {
        let known = Some(&scope).filter(|scope| Scope::is_well_formed(scope));
        let known = known.and_then(|scope| scope.parse::<Scope>().ok());
        let known = known.filter(|scope| sender.caller.sees(scope));
        let known = known.ok_or_else(|| not_found("scope", &scope))?;
        let (meant, now) = (known.clone(), self.now());
        let pause = |store: SqliteStore| async move { store.pause_scope(meant, paused, now).await };
        let changed = self.write_plain("pausing", pause, |_| changed()).await?;
        Ok(Once::new(PausedScope { scope: known, paused, changed }))
    }

    async fn set_draining(&self, sender: &Sender, draining: bool) -> Result<Once<Drained>, Refusal> {
        check_whole_node(&sender.caller)?;
        let changed = self.handle.drain(draining).await?;
        Ok(Once::new(Drained { draining, changed }))
    }

    /// Does one chunk of making room.
    pub async fn prune(&self, body: PruneBody) -> Result<PrunedChunk, Refusal> {
        let prune = Prune::of(body, self.now());
        let work = |store: SqliteStore| async move { store.prune(prune).await };
        self.write_plain("pruning", work, |_| News::default()).await.map(PrunedChunk::from)
    }

    /// Removes one chunk of the definitions of revisions that were turned down before `before`; answers how many.
    pub(crate) async fn remove_definitions(&self, before: Timestamp) -> Result<u32, Refusal> {
        let now = self.now();
        let work = |store: SqliteStore| async move { store.remove_definitions(before, now).await };
        self.write_plain("making room", work, |_| News::default()).await
    }

    /// What the loop says of itself, if it still answers.
    pub async fn coordinator_info(&self) -> Result<CoordinatorInfo, Refusal> {
        self.handle.describe().await
    }

    /// What this node says of itself.
    pub(super) fn node_info(&self) -> Result<&NodeInfo, Refusal> {
        let none = || Refusal::new(ErrorCode::Unavailable, "no node serves this data directory");
        self.settings.node.as_ref().ok_or_else(none)
    }
}

/// Refuses a caller that may see only a part of the node.
pub fn check_whole_node(caller: &Caller) -> Result<(), Refusal> {
    match caller.scopes {
        None => Ok(()),
        Some(_) => Err(Refusal::new(
            ErrorCode::Forbidden,
            "this is about the whole node, a token for some scopes is not",
        )),
    }
}
