//! Attempts on their way to the runner and back.

use std::collections::{BTreeSet, HashSet};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::RunKey;
use cis_core::run::StopReason;
use cis_core::source::Timestamp;
use cis_runner::protocol::{AttemptKey, Ended, FromRunner, LANES_SINCE, Lane, Outcome, Start, ToRunner};
use cis_store::port::{Claimed, CoordinatorStore, RunInfo, Started};

use super::{Coordinator, SELF, key_of};
use crate::context::Context;
use crate::data_dir::names;
use crate::machine::Machine;
use crate::{origin, report};

impl<S: CoordinatorStore, M: Machine> Coordinator<S, M> {
    pub(super) async fn hear(&mut self, message: FromRunner) -> Result<(), Refusal> {
        self.end_silence();
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
            FromRunner::Welcome { .. }
            | FromRunner::Unfit { .. }
            | FromRunner::WrongDirectory { .. }
            | FromRunner::HandOverReady => {}
        }
        Ok(())
    }

    pub(super) async fn attempt_ended(&mut self, ended: Ended) -> Result<(), Refusal> {
        let (key, interrupted) = (ended.key, ended.outcome == Outcome::Interrupted);
        let claim = self.flying.remove(&key);
        self.stopping.remove(&key);
        if let (Outcome::OwnerGone, Some(claim)) = (&ended.outcome, &claim) {
            self.stop_run(claim.run.key, StopReason::OwnerGone).await?;
        }
        // Only a retry looks at it, and most attempts succeed.
        let random = if ended.outcome == (Outcome::Exited { code: 0 }) { 0 } else { self.machine.bits() };
        let mut report = report::report(ended, claim.as_deref(), random);
        self.dispatch.remove_values(key);
        if interrupted {
            self.forget_output(key);
            if let Some(original) = self.elsewhere.remove(&key) {
                report.ending = report::interruption(origin::runs_elsewhere(&original));
            }
        }
        self.reports.push(report);
        Ok(())
    }

    /// Removes what attempts that are over may have written as their outputs, and were given as files: a kill leaves it, and
    /// it is not read again.
    pub(super) fn forget_outputs(&mut self, live: &BTreeSet<AttemptKey>) {
        live.iter().for_each(|key| self.dispatch.adopt(*key));
        let data_dir = &self.options.data_dir;
        let of = |key: &AttemptKey| {
            [data_dir.output(key.execution, key.fence), data_dir.values(key.execution, key.fence)]
        };
        let kept: HashSet<PathBuf> = live.iter().flat_map(of).collect();
        for path in names(&data_dir.outputs()).into_iter().map(|name| data_dir.outputs().join(name)) {
            if !kept.contains(&path)
                && std::fs::remove_file(&path).is_err_and(|e| e.kind() == ErrorKind::IsADirectory)
            {
                let _ = std::fs::remove_dir_all(path);
            }
        }
    }

    /// Removes what an attempt that was cut short may have written as its outputs: it is not read any more.
    pub(super) fn forget_output(&mut self, key: AttemptKey) {
        self.dispatch.remove_values(key);
        let _ = std::fs::remove_file(self.options.data_dir.output(key.execution, key.fence));
    }

    /// Hands a claimed task to the runner; what cannot be started is reported as such.
    pub(super) fn launch(&mut self, claim: Arc<Claimed>) {
        if self.link.is_none() {
            // Connecting hands over whatever the runner does not know of, this one included.
            let key = key_of(&claim);
            self.flying.insert(key, claim);
            self.unsent.insert(key);
            return self.connect();
        }
        let run = claim.run.key;
        let context = match self.context(&claim.run) {
            Ok(context) => context,
            Err(why) => {
                return self.reports.push(report::never_started(&claim, why, self.machine.now()));
            }
        };
        let (tied, lane) = (self.is_tied(run), Self::lane_of(&claim.run));
        match self.dispatch.start(&claim, &context, tied, lane, self.machine.now()) {
            Ok(start) => {
                self.flying.insert(start.key, claim);
                self.send_start(run, &context, start);
            }
            Err(why) => self.reports.push(report::never_started(&claim, why, self.machine.now())),
        }
    }

    /// Do attempts of a run end with this process' connection to the runner?
    pub(super) fn is_tied(&self, run: RunKey) -> bool {
        self.owners.get(&run) == Some(&SELF)
    }

    /// At most so many tasks of a run are under way at once, if it says how many.
    pub(super) fn lane_of(run: &RunInfo) -> Option<Lane> {
        run.max_parallel.map(|max| Lane { id: run.key.0, max })
    }

    pub(super) fn send_start(&mut self, run: RunKey, context: &Context, mut start: Start) {
        let Some(link) = &mut self.link else { return };
        if link.peer.protocol < LANES_SINCE {
            start.lane = None;
        }
        if self.sent.insert(run) {
            let (env, cwd) = (context.env.clone(), context.cwd.clone());
            link.queue(&ToRunner::Context { context: run.0, env, cwd });
        }
        cis_fail::point("coordinator.before_start");
        link.queue(&ToRunner::Start(Box::new(start)));
    }

    /// The environment and directory of a run; with it, its owner is known.
    pub(super) fn context(&mut self, run: &RunInfo) -> Result<Arc<Context>, String> {
        self.take_expected(run.key, run.run_id);
        if let Some(context) = self.contexts.get(&run.key) {
            return Ok(context.clone());
        }
        let context = Arc::new(self.load_context(run)?);
        self.contexts.insert(run.key, context.clone());
        Ok(context)
    }

    /// The surroundings of a run: its caller's, or its node's and a directory of its own. A run that was confirmed on this
    /// machine has kept its node's as they were then; one that came over the network shares them.
    fn load_context(&self, run: &RunInfo) -> Result<Context, String> {
        let data_dir = &self.options.data_dir;
        let own = data_dir.context(run.key.0);
        let path = if run.at_node && !own.exists() { data_dir.node_context() } else { own };
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

    /// Has an attempt ended. What no runner has heard of is over at once; of the rest the runner is told, and told again if
    /// the connection is lost.
    pub(super) fn stop_attempt(&mut self, key: AttemptKey, kill: bool) {
        if self.unsent.remove(&key) {
            if let Some(claim) = self.flying.remove(&key) {
                let now = self.machine.now();
                self.reports.push(report::stopped(claim.execution, claim.fence, now));
            }
        } else if self.flying.contains_key(&key) {
            let wanted = self.stopping.entry(key).or_insert(kill);
            *wanted |= kill;
            if let Some(link) = &mut self.link {
                link.queue(&ToRunner::Stop { key, kill });
            }
        }
    }

    pub(super) async fn flush(&mut self) -> Result<(), Refusal> {
        let broken = match &mut self.link {
            Some(link) => link.flush().await.is_err(),
            None => false,
        };
        if broken { self.lose_link() } else { Ok(()) }
    }
}
