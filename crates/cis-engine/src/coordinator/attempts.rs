//! Attempts on their way to the runner and back, and the connection they travel on.

use std::collections::BTreeMap;
use std::sync::Arc;

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::RunKey;
use cis_core::run::StopReason;
use cis_core::source::Timestamp;
use cis_runner::protocol::{AttemptKey, Ended, FromRunner, Known, KnownState, Outcome, ToRunner};
use cis_store::port::{Claimed, RunInfo, Started, Store};

use super::{Coordinator, SELF, key_of};
use crate::context::Context;
use crate::machine::Machine;
use crate::report;
use crate::runner_link::{RunnerAddress, RunnerLink};

/// How many runners in a row may die at once before it is pointless to start another.
const RECONNECTS_MAX: u32 = 10;

impl<S: Store, M: Machine> Coordinator<S, M> {
    pub(super) async fn hear(&mut self, message: FromRunner) -> Result<(), Refusal> {
        match message {
            FromRunner::Ended(ended) => self.attempt_ended(*ended).await?,
            FromRunner::Started { key, at_ms, .. } => {
                if let Some(claim) = self.flying.get(&key) {
                    let (execution, fence) = (claim.execution, claim.fence);
                    self.started.push(Started { execution, fence, at: Timestamp(at_ms) });
                }
            }
            FromRunner::Refused { epoch } => {
                let why = format!("a later coordinator (epoch {epoch}) has taken over");
                return Err(Refusal::new(ErrorCode::Unavailable, why));
            }
            FromRunner::Welcome { .. } | FromRunner::Unfit { .. } => {}
        }
        Ok(())
    }

    pub(super) async fn attempt_ended(&mut self, ended: Ended) -> Result<(), Refusal> {
        let claim = self.flying.remove(&ended.key);
        if let (Outcome::OwnerGone, Some(claim)) = (&ended.outcome, &claim) {
            self.stop_run(claim.run.key, StopReason::OwnerGone).await?;
        }
        // Only a retry looks at it, and most attempts succeed.
        let random = if ended.outcome == (Outcome::Exited { code: 0 }) { 0 } else { self.machine.bits() };
        self.reports.push(report::report(ended, claim.as_deref(), random));
        Ok(())
    }

    /// Hands a claimed task to the runner; what cannot be started is reported as such.
    pub(super) async fn launch(&mut self, claim: Arc<Claimed>) -> Result<(), Refusal> {
        let run = claim.run.key;
        let context = match self.context(&claim.run) {
            Ok(context) => context,
            Err(why) => {
                self.reports.push(report::never_started(&claim, why, self.machine.now()));
                return Ok(());
            }
        };
        let tied = self.owners.get(&run) == Some(&SELF);
        match self.dispatch.start(&claim, &context, tied) {
            Ok(start) => {
                self.flying.insert(start.key, claim);
                if self.link.is_none() {
                    // Connecting sends whatever the runner does not know of, this one included.
                    return self.reconnect().await;
                }
                self.send_start(run, &context, start);
            }
            Err(why) => self.reports.push(report::never_started(&claim, why, self.machine.now())),
        }
        Ok(())
    }

    pub(super) fn send_start(&mut self, run: RunKey, context: &Context, start: cis_runner::protocol::Start) {
        let Some(link) = &mut self.link else { return };
        if self.sent.insert(run) {
            let (env, cwd) = (context.env.clone(), context.cwd.clone());
            link.queue(&ToRunner::Context { context: run.0, env, cwd });
        }
        cis_fail::point("coordinator.before_start");
        link.queue(&ToRunner::Start(Box::new(start)));
    }

    fn context(&mut self, run: &RunInfo) -> Result<Arc<Context>, String> {
        if let Some(context) = self.contexts.get(&run.key) {
            return Ok(context.clone());
        }
        let context = Arc::new(self.load_context(run)?);
        self.contexts.insert(run.key, context.clone());
        Ok(context)
    }

    /// The surroundings of a run: its caller's, or its node's and a directory of its own.
    fn load_context(&self, run: &RunInfo) -> Result<Context, String> {
        let data_dir = &self.options.data_dir;
        let path = if run.at_node { data_dir.node_context() } else { data_dir.context(run.key.0) };
        let context =
            Context::load(&path).map_err(|e| format!("its run's environment cannot be read: {e}"))?;
        if !run.at_node {
            return Ok(context);
        }
        let cwd = data_dir.work(run.run_id);
        std::fs::create_dir_all(&cwd).map_err(|e| format!("its run's directory cannot be made: {e}"))?;
        let context = Context { cwd, ..context };
        Ok(match &run.traceparent {
            Some(traceparent) => context.with("TRACEPARENT", traceparent),
            None => context,
        })
    }

    pub(super) fn stop_attempt(&mut self, key: AttemptKey, kill: bool) {
        if let Some(link) = self.link.as_mut().filter(|_| self.flying.contains_key(&key)) {
            link.queue(&ToRunner::Stop { key, kill });
        }
    }

    pub(super) async fn flush(&mut self) -> Result<(), Refusal> {
        let broken = match &mut self.link {
            Some(link) => link.flush().await.is_err(),
            None => false,
        };
        if broken { self.reconnect().await } else { Ok(()) }
    }

    /// Connects to the runner; answers what it knows of. What it has and we do not want is ended.
    pub(super) async fn connect(&mut self) -> Result<BTreeMap<AttemptKey, Known>, Refusal> {
        self.link = None;
        self.sent.clear();
        let address = RunnerAddress {
            data_dir: self.options.data_dir.root().to_owned(),
            exe: self.options.exe.clone(),
            epoch: self.epoch,
            slots: self.options.slots,
        };
        let mut link = RunnerLink::connect(&self.machine, &address).await?;
        let known: BTreeMap<AttemptKey, Known> =
            std::mem::take(&mut link.known).into_iter().map(|known| (known.key, known)).collect();
        for (key, known) in &known {
            if !self.flying.contains_key(key) && known.state != KnownState::Ended {
                link.queue(&ToRunner::Stop { key: *key, kill: true });
            }
        }
        self.link = Some(link);
        Ok(known)
    }

    /// After a lost connection (or before the first): connects and hands over again what the runner has not
    /// heard of. It starts nothing twice.
    pub(super) async fn reconnect(&mut self) -> Result<(), Refusal> {
        let mut last = None;
        for _ in 0..RECONNECTS_MAX {
            self.hand_over().await?;
            let Some(link) = &mut self.link else { return Ok(()) };
            match link.flush().await {
                Ok(()) => return Ok(()),
                // It died as soon as it had said Welcome: the next one will be told.
                Err(e) => last = Some(e),
            }
        }
        let why = last.map_or_else(String::new, |e| format!(": {e}"));
        Err(Refusal::new(ErrorCode::Unavailable, format!("the runner closes its connection at once{why}")))
    }

    /// Connects, and queues what the runner has not heard of.
    async fn hand_over(&mut self) -> Result<(), Refusal> {
        let known = self.connect().await?;
        let unknown: Vec<Arc<Claimed>> = self
            .flying
            .iter()
            .filter(|(key, _)| !known.contains_key(*key))
            .map(|(_, claim)| claim.clone())
            .collect();
        for claim in unknown {
            let run = claim.run.key;
            let tied = self.owners.get(&run) == Some(&SELF);
            let started = self.context(&claim.run).and_then(|context| {
                let start = self.dispatch.start(&claim, &context, tied)?;
                self.send_start(run, &context, start);
                Ok(())
            });
            if let Err(why) = started {
                self.flying.remove(&key_of(&claim));
                self.reports.push(report::never_started(&claim, why, self.machine.now()));
            }
        }
        Ok(())
    }
}
