//! What the loop is asked and told, and what follows for the runs it hosts.

use std::sync::Arc;

use cis_api::node::CoordinatorInfo;
use cis_api::run::run_label;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{RunId, RunKey};
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::Timestamp;
use cis_runner::protocol::{AttemptKey, ToRunner};
use cis_store::port::{CoordinatorStore, Once, RunRef, StopRun};

use super::handle::{Ask, Expected, News, Owner, leaving};
use super::handover::Leaving;
use super::{Coordinator, LOOK_AGAIN, ORPHAN_GRACE};
use crate::machine::Machine;
use crate::recovery::Recovery;

/// Runs kept in mind that were over before the loop heard that they had begun: more than can be on their way to it.
const UNHEARD_MAX: usize = 2_048;

/// Owners that have gone which are kept in mind: more than can have a run on its way.
const GONE_OWNERS_MAX: usize = 2_048;

impl<S: CoordinatorStore, M: Machine> Coordinator<S, M> {
    pub(super) async fn handle(&mut self, ask: Ask) -> Result<(), Refusal> {
        match ask {
            Ask::Look => self.look(),
            Ask::Wrote(news) => self.hear_news(news),
            Ask::Expect { run, mut expected, noted } => {
                expected.is_owner_gone |=
                    expected.owner.is_some_and(|owner| self.gone_owners.contains(&owner));
                self.expected.insert(run, expected);
                let _ = noted.send(());
            }
            Ask::Forget(run) => drop(self.expected.remove(&run)),
            Ask::Attach { run, owner, noted } => {
                self.own(run, owner);
                let _ = noted.send(());
            }
            Ask::Drain { draining, changed } => {
                let was = std::mem::replace(&mut self.draining, draining);
                self.changes.send_modify(|changes| changes.draining = draining);
                self.look();
                let _ = changed.send(was != draining);
            }
            Ask::Describe(reply) => {
                self.look_at_runner();
                // As things stand after everything that was told before.
                if self.poke {
                    self.advance(self.machine.now()).await?;
                }
                let _ = reply.send(Box::new(self.describe()));
            }
            Ask::Gone(owner) => {
                let runs: Vec<RunKey> =
                    self.owners.iter().filter(|(_, by)| **by == owner).map(|(run, _)| *run).collect();
                for run in runs {
                    self.stop_run(run, StopReason::OwnerGone).await?;
                }
                let expected = self.expected.values_mut().filter(|expected| expected.owner == Some(owner));
                expected.for_each(|expected| expected.is_owner_gone = true);
                self.gone_owners.truncate(GONE_OWNERS_MAX - 1);
                self.gone_owners.push_front(owner);
            }
            Ask::Leave(reply) => self.leaving = Some(Leaving::Now(reply)),
            Ask::HandOver(reply) if self.leaving.is_some() => {
                let _ = reply.send(Err(leaving()));
            }
            Ask::HandOver(reply) => self.leaving = Some(Leaving::HandingOver(reply)),
        }
        Ok(())
    }

    fn hear_news(&mut self, news: News) {
        let News { started, ended, due, ready, kill } = news;
        self.poke |= ready;
        self.due(due);
        if let Some(run) = started {
            self.take_expected(run.key, run.run_id);
            self.begun(run);
        }
        self.ended(ended);
        if let Some(run) = kill {
            let keys: Vec<AttemptKey> =
                self.flying.iter().filter(|(_, claim)| claim.run.key == run).map(|(key, _)| *key).collect();
            keys.into_iter().for_each(|key| self.stop_attempt(key, true));
        }
        self.changes.send_modify(|changes| changes.commits += 1);
    }

    fn describe(&self) -> CoordinatorInfo {
        CoordinatorInfo {
            pid: std::process::id(),
            kind: self.options.kind,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: self.epoch.0,
            durability: self.options.durability.word().to_owned(),
            slots: self.options.slots,
            address: self.options.address.clone(),
            draining: self.draining,
            recovery: Some(&self.recovery).filter(|recovery| recovery.took_up()).map(Recovery::to_string),
            full: self.full,
            runner: self.silence.clone(),
        }
    }

    /// Takes up what was said of a run before it was committed, if anything was: with its first task, or when its start is
    /// heard of, whichever comes first.
    pub(super) fn take_expected(&mut self, run: RunKey, run_id: RunId) {
        let Some(Expected { owner, is_owner_gone, context }) = self.expected.remove(&run_id) else { return };
        // Under either name the next coordinator finds it, so the run is not refused for a name.
        let data_dir = &self.options.data_dir;
        let _ = std::fs::rename(data_dir.context_of_new(run_id), data_dir.context(run.0));
        if let Some(context) = context {
            self.contexts.insert(run, Arc::new(context));
        }
        if let Some(owner) = owner {
            self.owners.insert(run, owner);
        }
        if is_owner_gone {
            self.forsaken.push(run);
            self.orphans_due = Some(self.machine.now());
        }
    }

    /// A run has begun, unless it has been over before it was heard of.
    fn begun(&mut self, run: RunRef) {
        if let Some(at) = self.over_unheard.iter().position(|key| *key == run.key) {
            self.over_unheard.remove(at);
            return;
        }
        tracing::info!(run = run_label(&run.dag_id, run.number), run_id = %run.run_id, scope = %run.scope, "run started");
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
        match self.stop(StopRun { key: None, run, reason, by: None, now }).await {
            Err(refusal) if refusal.code == ErrorCode::DiskFull => {
                self.forsaken.push(run);
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
        // A process that is only stopped may come back to its run.
        let (lost, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.orphans).into_iter().partition(|run| !self.has_living_owner(*run));
        self.orphans = kept;
        if !self.orphans.is_empty() {
            self.orphans_due = Some(self.machine.now().after(ORPHAN_GRACE));
        }
        let forsaken = std::mem::take(&mut self.forsaken);
        for run in lost.into_iter().chain(forsaken) {
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
        match self.unfinished.remove(&run) {
            Some(run) => {
                tracing::info!(run = run_label(&run.dag_id, run.number), run_id = %run.run_id, status = status.word(), "run ended");
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
