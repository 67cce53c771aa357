//! What is asked of the coordinator, and what follows for the runs it hosts.

use std::sync::Arc;

use cis_core::access::check_identity;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{RunId, RunKey};
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::Timestamp;
use cis_runner::protocol::{AttemptKey, ToRunner};
use cis_store::port::{
    Approve, Approved, Decide, Decided, Once, Prune, Publish, RunRef, Settle, StartRun, StopRun, Store,
};

use super::handle::{Ask, News, Owner};
use super::handover::Leaving;
use super::{Coordinator, LOOK_AGAIN};
use crate::command::{About, Command, Reply};
use crate::context::Context;
use crate::machine::Machine;
use crate::token;

/// Runs kept in mind that were over before the loop heard that they had begun: more than can be on their way to it.
const UNHEARD_MAX: usize = 2_048;

impl<S: Store, M: Machine> Coordinator<S, M> {
    pub(super) async fn handle(&mut self, ask: Ask) -> Result<(), Refusal> {
        match ask {
            Ask::Command { command, owner, reply } => {
                let answer = self.command(command, owner).await.unwrap_or_else(Reply::Refused);
                let _ = reply.send(answer);
            }
            Ask::Look => self.look(),
            Ask::Wrote(News { started, ended, due, ready }) => {
                self.poke |= ready;
                self.due(due);
                if let Some(run) = started {
                    self.begun(run);
                }
                self.ended(ended);
                self.changes.send_modify(|changes| changes.commits += 1);
            }
            Ask::Gone(owner) => {
                let runs: Vec<RunKey> =
                    self.owners.iter().filter(|(_, by)| **by == owner).map(|(run, _)| *run).collect();
                for run in runs {
                    self.stop_run(run, StopReason::OwnerGone).await?;
                }
            }
            Ask::Leave(reply) => self.leaving = Some(Leaving::Now(reply)),
            Ask::HandOver(reply) if self.leaving.is_some() => {
                let why = "the coordinator is leaving already";
                let _ = reply.send(Err(Refusal::new(ErrorCode::Unavailable, why)));
            }
            Ask::HandOver(reply) => self.leaving = Some(Leaving::HandingOver(reply)),
        }
        Ok(())
    }

    pub(super) async fn command(&mut self, command: Command, owner: Owner) -> Result<Reply, Refusal> {
        let now = self.machine.now();
        match command {
            Command::Publish { dag, content_hash, new_revision, by } => {
                let (key, expires_at) = (None, None);
                let dag = dag.0;
                // What comes by the socket can read the data directory.
                let by_proven = true;
                let request =
                    Publish { key, dag, content_hash, new_revision, by, by_proven, now, expires_at };
                let published = self.store.publish(request).await?.plain()?;
                self.look();
                Ok(Reply::Published(published))
            }
            Command::Settle { definition, content_hash, confirm, by } => {
                let request = Settle { definition, content_hash, confirm, by, now };
                let settled = self.store.settle(request).await?;
                self.look();
                Ok(Reply::Settled(settled))
            }
            Command::Decide { request, context } => {
                self.decide(*request, *context).await.map(|once| Reply::Decided(Box::new(once)))
            }
            Command::Start { request, context } => {
                self.start_run(*request, *context, owner).await.map(Reply::Started)
            }
            Command::Attach { run } => {
                self.own(run, owner);
                Ok(Reply::Attached)
            }
            Command::Stop { key, run, kill } => {
                let stopping = self.stop(StopRun { key, run, reason: StopReason::Cancel, now }).await?;
                if kill {
                    let keys: Vec<AttemptKey> =
                        self.flying.iter().filter(|(_, c)| c.run.key == run).map(|(key, _)| *key).collect();
                    keys.into_iter().for_each(|key| self.stop_attempt(key, true));
                }
                Ok(Reply::Stopping(stopping))
            }
            Command::Pause { run, paused } => {
                let status = self.store.pause_run(run, paused, now).await?;
                self.look();
                Ok(Reply::Paused(status))
            }
            Command::PauseScope { scope, paused } => {
                let changed = self.store.pause_scope(scope, paused, now).await?;
                self.look();
                Ok(Reply::Changed(changed))
            }
            Command::Drain { draining } => {
                let changed = std::mem::replace(&mut self.draining, draining) != draining;
                self.changes.send_modify(|changes| changes.draining = draining);
                self.look();
                Ok(Reply::Changed(changed))
            }
            Command::Approve(request) => {
                self.approve(*request).await.map(|once| Reply::Approved(Box::new(once)))
            }
            Command::Prune(request) => {
                let pruned = self.store.prune(Prune { now, ..request }).await?;
                self.changes.send_modify(|changes| changes.commits += 1);
                Ok(Reply::Pruned(pruned))
            }
            Command::CreateToken { caller, by, expires_at } => {
                check_identity(&caller.identity)?;
                let (fresh, new) = token::make(caller, by, now, expires_at)?;
                self.store.create_token(new).await?;
                Ok(Reply::Token(fresh))
            }
            Command::RevokeToken { token_id } => {
                let revoked = self.store.revoke_token(token_id, now).await?;
                // Whoever still listens with it hears that something happened, and no more.
                self.look();
                Ok(Reply::Revoked(revoked))
            }
            Command::Hello => {
                self.look_at_runner();
                // As things stand after everything that was told before.
                if self.poke {
                    self.advance(now).await?;
                }
                Ok(Reply::Hello(About {
                    pid: std::process::id(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    epoch: self.epoch.0,
                    durability: self.options.durability,
                    slots: self.options.slots,
                    address: self.options.address.clone(),
                    draining: self.draining,
                    recovery: Some(self.recovery.clone()),
                    full: self.full,
                    runner: self.silence.clone(),
                }))
            }
        }
    }

    async fn start_run(
        &mut self,
        request: StartRun,
        context: Context,
        owner: Owner,
    ) -> Result<Once<RunRef>, Refusal> {
        let (run_id, attached, at_node) = (request.run_id, request.attached, request.at_node);
        let max = request.max_parallel;
        let context = if at_node { self.node_context(context)? } else { context };
        self.keep(run_id, &context)?;
        let started = self.store.start_run(request).await;
        let run = started.as_ref().ok().and_then(|once| once.answer.as_ref().ok()).cloned();
        let key = self.take_in(run_id, run, max, (!at_node).then_some(context));
        if let Some(key) = key.filter(|_| attached) {
            self.own(key, owner);
        }
        Ok(started?)
    }

    /// Decides about a revision for a caller on this machine, and takes up what that starts.
    async fn decide(&mut self, request: Decide, context: Context) -> Result<Once<Decided>, Refusal> {
        let (run_id, confirm) = (request.run_id, request.confirm);
        if confirm {
            self.keep(run_id, &self.node_context(context)?)?;
        }
        let decided = self.store.decide(request).await;
        let told = decided.as_ref().ok().and_then(|once| once.answer.as_ref().ok());
        let run = told.and_then(|told| told.run.clone());
        self.take_in(run_id, run, None, None);
        self.look();
        Ok(decided?)
    }

    /// What tasks at the node start with: what the node here has kept on disk, or what `built` says where there never was
    /// one. Skills are known by their content, so that they may be found where `built` says in either case.
    fn node_context(&self, built: Context) -> Result<Context, Refusal> {
        let Context { skill_dirs, owner, .. } = built.clone();
        match Context::load(&self.options.data_dir.node_context()) {
            Ok(mut kept) => {
                let more =
                    skill_dirs.into_iter().filter(|dir| !kept.skill_dirs.contains(dir)).collect::<Vec<_>>();
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

    /// Takes in the run that was asked for as `run_id`. Where another one answers, or none, nothing new runs. Without a
    /// `context`, the one that was kept is read when its first task starts; without a `max`, the definition says how many
    /// of its tasks may be under way at once.
    fn take_in(
        &mut self,
        run_id: RunId,
        run: Option<RunRef>,
        max: Option<u32>,
        context: Option<Context>,
    ) -> Option<RunKey> {
        let run = run.filter(|run| run.run_id == run_id && !run.status.is_terminal());
        match &run {
            Some(run) => {
                self.limits.insert(run.key, max);
                self.adopt(run, context);
            }
            None => {
                let _ = std::fs::remove_file(self.options.data_dir.context_of_new(run_id));
            }
        }
        run.map(|run| run.key)
    }

    /// Decides about a task that waits for a person: that may make it claimable, or end its run.
    async fn approve(&mut self, request: Approve) -> Result<Once<Approved>, Refusal> {
        let approved = self.store.approve(request).await?;
        // The same decision again has ended nothing.
        let new = approved.answer.as_ref().ok().filter(|told| told.changed && !approved.replayed);
        if let Some(run) = new.map(|told| &told.run).filter(|run| run.status.is_terminal()) {
            self.run_over(run.key, run.status);
        }
        self.look();
        Ok(approved)
    }

    /// Keeps a run's surroundings before the run exists: killed in between, the next coordinator finds them.
    fn keep(&self, run: RunId, context: &Context) -> Result<(), Refusal> {
        let path = self.options.data_dir.context_of_new(run);
        context.save(&path, self.options.durability).map_err(|e| {
            let _ = std::fs::remove_file(&path);
            Refusal::unwritten("the run's environment", &e)
        })
    }

    /// Takes up a run that has just been created.
    fn adopt(&mut self, run: &RunRef, context: Option<Context>) {
        // Under either name the next coordinator finds it, so the run is not refused for a name.
        let data_dir = &self.options.data_dir;
        let _ = std::fs::rename(data_dir.context_of_new(run.run_id), data_dir.context(run.key.0));
        if let Some(context) = context {
            self.contexts.insert(run.key, Arc::new(context));
        }
        self.begun(run.clone());
        self.look();
    }

    /// A run has begun, unless it has been over before it was heard of.
    fn begun(&mut self, run: RunRef) {
        if let Some(at) = self.over_unheard.iter().position(|key| *key == run.key) {
            self.over_unheard.remove(at);
            return;
        }
        tracing::info!(run = label(&run), run_id = %run.run_id, scope = %run.scope, "run started");
        self.unfinished.insert(run.key, run);
        self.idle.send_replace(false);
    }

    /// Something was written to the store: what can be claimed and what is due may have changed.
    fn look(&mut self) {
        (self.poke, self.more_work, self.next_due) = (true, true, Some(Timestamp(0)));
        self.changes.send_modify(|changes| changes.commits += 1);
    }

    pub(super) fn own(&mut self, run: RunKey, owner: Owner) {
        self.orphans.retain(|orphan| *orphan != run);
        if self.unfinished.contains_key(&run) {
            self.owners.insert(run, owner);
        }
    }

    /// Stops a run for a reason of our own; later, if there is no room to say so now.
    pub(super) async fn stop_run(&mut self, run: RunKey, reason: StopReason) -> Result<(), Refusal> {
        let now = self.machine.now();
        match self.stop(StopRun { key: None, run, reason, now }).await {
            Err(refusal) if refusal.code == ErrorCode::DiskFull => {
                self.orphans.push(run);
                self.orphans_due = Some(now.after(LOOK_AGAIN));
                Ok(())
            }
            stopped => stopped.map(drop),
        }
    }

    async fn stop(&mut self, request: StopRun) -> Result<Once<RunStatus>, Refusal> {
        let run = request.run;
        let stopping = self.store.stop_run(request).await?;
        // A run that had not begun is over by this very commit; the loop finds out as it works off the rest.
        self.more_work = true;
        if let Some(status) = stopping.answer.as_ref().ok().filter(|status| status.is_terminal()) {
            self.run_over(run, *status);
        }
        self.changes.send_modify(|changes| changes.commits += 1);
        Ok(stopping)
    }

    pub(super) async fn end_orphans(&mut self) -> Result<(), Refusal> {
        self.orphans_due = None;
        for run in std::mem::take(&mut self.orphans) {
            self.stop_run(run, StopReason::OwnerGone).await?;
        }
        Ok(())
    }

    pub(super) fn ended(&mut self, runs: Vec<RunRef>) {
        for run in runs {
            self.run_over(run.key, run.status);
        }
    }

    pub(super) fn run_over(&mut self, run: RunKey, status: RunStatus) {
        self.contexts.remove(&run);
        self.owners.remove(&run);
        self.limits.remove(&run);
        match self.unfinished.remove(&run) {
            Some(run) => {
                tracing::info!(run = label(&run), run_id = %run.run_id, status = status.word(), "run ended");
            }
            None if self.over_unheard.contains(&run) => {}
            None => {
                self.over_unheard.truncate(UNHEARD_MAX - 1);
                self.over_unheard.push_front(run);
            }
        }
        if let Some(link) = self.link.as_mut().filter(|_| self.sent.remove(&run)) {
            link.queue(&ToRunner::Forget { context: run.0 });
        }
        // A file that stays behind is found and removed when its run is pruned.
        let _ = std::fs::remove_file(self.options.data_dir.context(run.0));
        self.changes.send_modify(|changes| changes.ended_runs += 1);
        self.idle.send_if_modified(|idle| {
            let changed = *idle != self.unfinished.is_empty();
            *idle = self.unfinished.is_empty();
            changed
        });
    }
}

/// What people call a run.
fn label(run: &RunRef) -> String {
    format!("{}#{}", run.dag_id, run.number)
}
