//! The way to the runner. The loop never waits for a runner that does not answer, because it is stopped or its socket is
//! gone: it serves what it can, says what is wrong, and goes on by itself when the runner does.
//!
//! ```text
//!   connect ─► answers ─► reattach: compare what it knows with what is under way, hand over the rest
//!      │  ▲        │
//!      │  └─ lost ─┘
//!      └─ silent for PATIENCE ─► nothing more is claimed; `/ready` and the log say so
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::{BootTime, Millis};
use cis_runner::client::RunnerProcess;
use cis_runner::protocol::{AttemptKey, Known, KnownState, ToRunner};
use cis_store::port::{Claimed, CoordinatorStore};

use super::{Coordinator, key_of};
use crate::machine::Machine;
use crate::runner_link::{RunnerAddress, RunnerLink};
use crate::{origin, report};

/// How long a runner may take to answer before that is called silence. One that is started takes milliseconds.
pub(super) const PATIENCE: Millis = Millis(3_000);

/// How long the loop itself waits for a connection that it has just begun: a client waits for what is to run, and
/// the next commit would keep it waiting for longer.
const AT_ONCE: Millis = Millis(100);

/// How often a runner that was found stopped is looked at.
pub(super) const LOOK_AT_RUNNER: Millis = Millis(1_000);

/// How many runners in a row may die at once before it is pointless to start another.
const RECONNECTS_MAX: u32 = 10;

/// A connection that is being made.
pub(super) struct Connecting<T> {
    answer: Pin<Box<dyn Future<Output = Result<RunnerLink<T>, Refusal>>>>,
    since: BootTime,
    /// The loop has waited for it.
    awaited: bool,
}

impl<T> Connecting<T> {
    /// The connection, when it is there.
    pub(super) async fn answer(&mut self) -> Result<RunnerLink<T>, Refusal> {
        self.answer.as_mut().await
    }
}

impl<S: CoordinatorStore, M: Machine> Coordinator<S, M> {
    /// Begins to connect, unless that is under way.
    pub(super) fn connect(&mut self) {
        if self.connecting.is_some() {
            return;
        }
        let address = RunnerAddress {
            data_dir: self.options.data_dir.root().to_owned(),
            exe: self.options.exe.clone(),
            epoch: self.epoch,
            slots: self.options.slots,
        };
        let (machine, since) = (self.machine.clone(), self.machine.since_boot());
        let answer = Box::pin(async move { RunnerLink::connect(&*machine, &address).await });
        self.connecting = Some(Connecting { answer, since, awaited: false });
    }

    /// Waits for a connection that was begun, not longer than this.
    pub(super) async fn reach(&mut self, within: Millis) -> Result<(), Refusal> {
        let Some(connecting) = &mut self.connecting else { return Ok(()) };
        connecting.awaited = true;
        let link = tokio::select! {
            biased;
            link = connecting.answer() => link?,
            () = self.machine.pause(within) => {
                self.note_silence();
                return Ok(());
            }
        };
        self.connecting = None;
        self.reattach(link).await
    }

    /// Waits a moment for a connection that has just been begun.
    pub(super) async fn reach_at_once(&mut self) -> Result<(), Refusal> {
        match &self.connecting {
            Some(connecting) if !connecting.awaited => self.reach(AT_ONCE).await,
            _ => Ok(()),
        }
    }

    /// The connection is gone: makes another one.
    pub(super) fn lose_link(&mut self) -> Result<(), Refusal> {
        self.link = None;
        self.reconnects += 1;
        if self.reconnects > RECONNECTS_MAX {
            let why = "the runner closes its connection at once";
            return Err(Refusal::new(ErrorCode::Unavailable, why));
        }
        self.connect();
        Ok(())
    }

    /// The runner answers: ends what it has and we do not want, and hands over what it has not heard of. It starts nothing
    /// twice.
    pub(super) async fn reattach(&mut self, mut link: RunnerLink<M::Stream>) -> Result<(), Refusal> {
        self.sent.clear();
        self.unsent.clear();
        let known: BTreeMap<AttemptKey, Known> =
            std::mem::take(&mut link.known).into_iter().map(|known| (known.key, known)).collect();
        for (key, known) in &known {
            if !self.flying.contains_key(key) && known.state != KnownState::Ended {
                link.queue(&ToRunner::Stop { key: *key, kill: true });
            }
        }
        self.link = Some(link);
        self.recovery.count_known(known.values().filter(|known| self.inherited.contains(&known.key)));
        self.untied = known.keys().copied().filter(|key| self.flying.contains_key(key)).collect();
        let mut unknown: Vec<Arc<Claimed>> =
            self.flying.values().filter(|claim| !known.contains_key(&key_of(claim))).cloned().collect();
        // In the order in which they were claimed: the most urgent first.
        unknown.sort_unstable_by_key(|claim| claim.fence);
        for claim in unknown {
            self.start_unknown(claim);
        }
        for (key, kill) in &self.stopping {
            if let Some(link) = &mut self.link {
                link.queue(&ToRunner::Stop { key: *key, kill: *kill });
            }
        }
        self.inherited.clear();
        self.end_silence();
        self.flush().await?;
        if self.link.is_some() {
            self.reconnects = 0;
        }
        Ok(())
    }

    /// Has the runner start an attempt that it has not heard of, or records why not.
    fn start_unknown(&mut self, claim: Arc<Claimed>) {
        let (key, now) = (key_of(&claim), self.machine.now());
        let inherited = self.inherited.contains(&key);
        if self.stopping.remove(&key).is_some() {
            // Never started: nothing of it can be alive.
            self.flying.remove(&key);
            self.reports.push(report::stopped(claim.execution, claim.fence, now));
            self.recovery.stopped += usize::from(inherited);
            return;
        }
        if self.new_origin.is_some() && inherited {
            // The runner's journal is not forced to disk, and may have been copied before the database was: whether it
            // was started cannot be told, so it counts as interrupted.
            let why = match self.elsewhere.remove(&key) {
                Some(original) => origin::runs_elsewhere(&original),
                None => "the machine restarted under it".to_owned(),
            };
            self.flying.remove(&key);
            self.forget_output(key);
            self.reports.push(report::interrupted(claim.execution, claim.fence, why, now));
            self.recovery.interrupted += 1;
            return;
        }
        let run = claim.run.key;
        // Whose it is decides what it is tied to.
        self.take_expected(run, claim.run.run_id);
        let (tied, lane) = (self.is_tied(run), Self::lane_of(&claim.run));
        let started = self.context(&claim.run).and_then(|context| {
            let start = self.dispatch.start(&claim, &context, tied, lane, self.machine.now())?;
            self.send_start(run, &context, start);
            Ok(())
        });
        match started {
            Ok(()) => self.recovery.started += usize::from(inherited),
            Err(why) => {
                self.flying.remove(&key);
                self.reports.push(report::never_started(&claim, why, now));
            }
        }
    }

    /// Says once that the runner does not answer, when it has been asked for long enough.
    pub(super) fn note_silence(&mut self) {
        let Some(connecting) = self.connecting.as_ref().filter(|_| self.silence.is_none()) else { return };
        if self.machine.since_boot().since(connecting.since) < PATIENCE {
            return;
        }
        let runner = self.machine.find_runner(self.options.data_dir.root());
        self.begin_silence(runner);
    }

    /// When a connection that is being made counts as silence, if it does not yet.
    pub(super) fn silence_due(&self) -> Option<Millis> {
        let connecting = self.connecting.as_ref().filter(|_| self.silence.is_none())?;
        let waited = self.machine.since_boot().since(connecting.since);
        Some(Millis(PATIENCE.0.saturating_sub(waited.0)))
    }

    /// Now and then: does the runner still go on? Asked only while something depends on it.
    pub(super) fn watch_runner(&mut self) {
        if self.silence.is_some() || !self.flying.is_empty() {
            self.look_at_runner();
        }
    }

    /// Looks at the runner from outside: one that is stopped keeps its connections, and answers none of them.
    pub(super) fn look_at_runner(&mut self) {
        let found = self.machine.find_runner(self.options.data_dir.root());
        let stopped = found.filter(|runner| runner.stopped);
        match (stopped, self.silence.is_some()) {
            (Some(_), false) => self.begin_silence(stopped),
            // While a connection is being made, its answer ends the silence.
            (None, true) if self.connecting.is_none() => self.end_silence(),
            _ => {}
        }
    }

    fn begin_silence(&mut self, runner: Option<RunnerProcess>) {
        let refusal = silent(runner, self.options.data_dir.root());
        tracing::warn!(hint = refusal.hint, "{refusal}: no task is started until it does");
        self.silence = Some(refusal);
    }

    /// The runner answers.
    pub(super) fn end_silence(&mut self) {
        if self.silence.take().is_some() {
            tracing::info!("the runner answers again");
            // Whatever could not be claimed meanwhile can be now.
            self.poke = true;
        }
    }
}

/// What is wrong with a runner that says nothing, and what to type.
pub(super) fn silent(runner: Option<RunnerProcess>, data_dir: &Path) -> Refusal {
    let log = data_dir.join("runner.log").display().to_string();
    let (why, hint) = match runner {
        Some(RunnerProcess { pid, stopped: true }) => (
            format!("the runner (process {pid}) is stopped and does not answer"),
            format!("`kill -CONT {pid}` lets it go on; its tasks are where they were"),
        ),
        Some(RunnerProcess { pid, .. }) => (
            format!("the runner (process {pid}) does not answer"),
            format!(
                "`{log}` may say why; `kill -KILL {pid}` replaces it, and its tasks count as interrupted"
            ),
        ),
        None => ("the runner does not answer".to_owned(), format!("`{log}` may say why")),
    };
    Refusal::new(ErrorCode::Unavailable, why).hint(hint)
}
