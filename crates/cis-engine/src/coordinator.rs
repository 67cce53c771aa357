//! The loop that decides what happens next. It alone talks to the store and to the runner.
//!
//! ```text
//!            ┌───────────── asks (commands, owners that went away) ─────────────┐
//!            ▼                                                                  │
//!   wait ─► settle: advance │ work │ sweep │ note ── commit ──► Start/Stop/Ack ─┤
//!            ▲                                                                  │
//!            └───────────── runner: how attempts ended ─────────────────────────┘
//! ```
//!
//! While one transaction commits, whatever arrives is collected; the next one takes all of it.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Epoch, RunKey};
use cis_core::run::{RunStatus, StopReason};
use cis_core::source::{Clock, Millis, Random, Timestamp};
use cis_core::task::TaskStatus;
use cis_runner::protocol::{AttemptKey, Ended, FromRunner, KnownState, Outcome, ToRunner};
use cis_store::port::{
    Advance, Claim, Claimed, Ending, Opening, Publish, Report, RunRef, Settle, StartRun, Started, Store,
};
use cis_store::sqlite::Durability;
use tokio::sync::{mpsc, oneshot, watch};

use crate::command::{About, Command, Reply, Start};
use crate::context::Context;
use crate::data_dir::DataDir;
use crate::dispatch::Dispatch;
use crate::report;
use crate::runner_link::{RunnerAddress, RunnerLink};
use crate::system;

pub use crate::dispatch::Limits;

/// Tasks handed to the runner beyond its free slots, so that it never waits for a commit. The runner's journal
/// tells started from unstarted, so a crash loses none of them.
const CLAIM_AHEAD: usize = 8;

/// How long a commit may wait for more outcomes while the runner still has enough to do.
const GATHER: Duration = Duration::from_millis(1);

/// How long the run of a foreground process that lost its coordinator may stay unclaimed.
const ORPHAN_GRACE: Millis = Millis(5_000);

/// Asks that may wait for the loop.
const INBOX_MAX: usize = 256;

/// What kinds of task this coordinator's runner can do.
const KINDS: [&str; 2] = ["shell", "skill"];

/// How a coordinator is set up.
#[derive(Debug, Clone)]
pub struct Options {
    pub data_dir: DataDir,
    /// The program that is also the runner.
    pub exe: PathBuf,
    pub slots: u32,
    pub durability: Durability,
    pub limits: Limits,
}

/// Who asks: a connection, or this process itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(pub u64);

/// This process itself. Its runs' tasks are tied to it: they end when it is killed.
pub const SELF: Owner = Owner(0);

/// A message to the loop.
#[derive(Debug)]
pub enum Ask {
    Command {
        command: Command,
        owner: Owner,
        reply: oneshot::Sender<Reply>,
    },
    /// A connection closed: what it owned ends.
    Gone(Owner),
    /// Stop once the present step is done; answers how many runs are left for others.
    Leave(oneshot::Sender<usize>),
}

/// How others reach the loop. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    asks: mpsc::Sender<Ask>,
    changes: watch::Receiver<u64>,
    idle: watch::Receiver<bool>,
}

impl Handle {
    /// Asks and waits for the answer.
    pub async fn call(&self, command: Command, owner: Owner) -> Reply {
        let (reply, answer) = oneshot::channel();
        if self.asks.send(Ask::Command { command, owner, reply }).await.is_err() {
            return Reply::Going;
        }
        answer.await.unwrap_or(Reply::Going)
    }

    /// [`Handle::call`], for threads outside the loop's runtime.
    pub fn call_blocking(&self, command: Command, owner: Owner) -> Reply {
        let (reply, answer) = oneshot::channel();
        if self.asks.blocking_send(Ask::Command { command, owner, reply }).is_err() {
            return Reply::Going;
        }
        answer.blocking_recv().unwrap_or(Reply::Going)
    }

    /// Says that a connection closed.
    pub async fn gone(&self, owner: Owner) {
        let _ = self.asks.send(Ask::Gone(owner)).await;
    }

    /// Ends the loop; answers how many runs are left for others.
    pub fn leave_blocking(&self) -> usize {
        let (reply, answer) = oneshot::channel();
        let _ = self.asks.blocking_send(Ask::Leave(reply));
        answer.blocking_recv().unwrap_or(0)
    }

    /// Changes with every commit.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// True while no run is unfinished.
    pub fn idle(&self) -> watch::Receiver<bool> {
        self.idle.clone()
    }
}

/// The coordinator's state.
pub struct Coordinator<S> {
    store: S,
    options: Options,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    epoch: Epoch,
    dispatch: Dispatch,
    asks: mpsc::Receiver<Ask>,
    changes: watch::Sender<u64>,
    idle: watch::Sender<bool>,
    link: Option<RunnerLink>,
    /// Attempts handed to the runner and not yet over.
    flying: HashMap<AttemptKey, Arc<Claimed>>,
    contexts: HashMap<RunKey, Arc<Context>>,
    /// Contexts the runner has been sent on this connection.
    sent: HashSet<RunKey>,
    owners: HashMap<RunKey, Owner>,
    /// Attached runs nobody has claimed since this coordinator started.
    orphans: Vec<RunKey>,
    orphans_due: Option<Timestamp>,
    unfinished: HashSet<RunKey>,
    reports: Vec<Report>,
    started: Vec<Started>,
    /// Something may have become claimable.
    poke: bool,
    more_work: bool,
    next_due: Option<Timestamp>,
    leaving: Option<oneshot::Sender<usize>>,
}

impl<S> std::fmt::Debug for Coordinator<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl<S: Store> Coordinator<S> {
    /// Begins a coordinator's life on a store nobody else writes to: a higher epoch, and whatever an earlier one
    /// left unfinished taken up again.
    pub async fn start(
        store: S,
        options: Options,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<(Self, Handle), Refusal> {
        let opening = store.open_epoch(clock.now()).await?;
        let (asks_in, asks) = mpsc::channel(INBOX_MAX);
        let (changes, changes_out) = watch::channel(0);
        let (idle, idle_out) = watch::channel(opening.unfinished.is_empty());
        let mut this = Self {
            dispatch: Dispatch::new(options.data_dir.clone(), options.limits),
            store,
            options,
            clock,
            random,
            epoch: opening.epoch,
            asks,
            changes,
            idle,
            link: None,
            flying: HashMap::new(),
            contexts: HashMap::new(),
            sent: HashSet::new(),
            owners: HashMap::new(),
            orphans: Vec::new(),
            orphans_due: None,
            unfinished: HashSet::new(),
            reports: Vec::new(),
            started: Vec::new(),
            poke: true,
            more_work: true,
            next_due: Some(Timestamp(0)),
            leaving: None,
        };
        this.take_up(opening).await?;
        Ok((this, Handle { asks: asks_in, changes: changes_out, idle: idle_out }))
    }

    /// Takes up what an earlier coordinator left.
    async fn take_up(&mut self, opening: Opening) -> Result<(), Refusal> {
        self.unfinished = opening.unfinished.iter().map(|unfinished| unfinished.run.key).collect();
        self.orphans = opening.unfinished.iter().filter(|u| u.attached).map(|u| u.run.key).collect();
        if !self.orphans.is_empty() {
            self.orphans_due = Some(self.clock.now().after(ORPHAN_GRACE));
        }
        let same_boot = self.note_boot();
        if opening.live.is_empty() {
            return Ok(());
        }
        let cancelling: HashSet<AttemptKey> = (opening.live.iter())
            .filter(|live| live.status == TaskStatus::Cancelling)
            .map(|live| key_of(&live.claim))
            .collect();
        for live in opening.live {
            self.flying.insert(key_of(&live.claim), live.claim);
        }
        let known = self.connect().await?;
        let now = self.clock.now();
        let unknown: Vec<AttemptKey> =
            self.flying.keys().filter(|key| !known.contains_key(*key)).copied().collect();
        for key in unknown {
            // Never started: nothing of it can be alive. After a restart of the machine that cannot be told
            // (the runner's journal is not forced to disk), so it counts as interrupted.
            let Some(claim) = self.flying.remove(&key) else { continue };
            if cancelling.contains(&key) {
                let mut report = report::interrupted(claim.execution, claim.fence, now);
                report.ending = Ending::Stopped;
                self.reports.push(report);
            } else if same_boot {
                self.launch(claim).await?;
            } else {
                self.reports.push(report::interrupted(claim.execution, claim.fence, now));
            }
        }
        for key in cancelling {
            self.stop_attempt(key, false);
        }
        self.flush().await
    }

    /// Is the machine still in the boot the last coordinator saw? Notes the present one.
    fn note_boot(&self) -> bool {
        let (path, now) = (self.options.data_dir.boot(), system::boot_id());
        let same = std::fs::read_to_string(&path).is_ok_and(|before| before == now);
        if !same {
            // If it cannot be written, the next coordinator will believe in a restart: safe, merely cautious.
            let _ = std::fs::write(&path, &now);
        }
        same
    }

    /// Runs until it is asked to leave, or the store or the runner is lost for good.
    pub async fn run(mut self) -> Result<S, Refusal> {
        loop {
            self.settle().await?;
            if let Some(reply) = self.leaving.take() {
                let _ = reply.send(self.unfinished.len());
                return Ok(self.store);
            }
            self.wait().await?;
            self.gather().await?;
        }
    }

    /// Does everything there is to do now.
    async fn settle(&mut self) -> Result<(), Refusal> {
        loop {
            let now = self.clock.now();
            let due = self.next_due.is_some_and(|due| due <= now);
            if !self.reports.is_empty() || self.poke {
                self.advance(now).await?;
            } else if self.more_work {
                self.work(now).await?;
            } else if due {
                let swept = self.store.sweep(now).await?;
                self.next_due = swept.next_due;
                self.more_work |= swept.more_work;
                self.poke = true;
                self.ended(swept.ended);
            } else if self.orphans_due.is_some_and(|due| due <= now) {
                self.end_orphans(now).await?;
            } else if !self.started.is_empty() {
                self.store.note_started(std::mem::take(&mut self.started)).await?;
            } else {
                return self.flush().await;
            }
            self.changes.send_modify(|count| *count += 1);
            self.flush().await?;
        }
    }

    /// Records what ended and claims what is next, in one transaction.
    async fn advance(&mut self, now: Timestamp) -> Result<(), Refusal> {
        self.poke = false;
        let reports = std::mem::take(&mut self.reports);
        let keys: Vec<AttemptKey> = (reports.iter())
            .map(|report| AttemptKey { execution: report.execution.0, fence: report.fence.0 })
            .collect();
        let room = (self.options.slots as usize + CLAIM_AHEAD).saturating_sub(self.flying.len());
        let claim = Claim {
            epoch: self.epoch,
            holder: "local".to_owned(),
            limit: if self.leaving.is_some() { 0 } else { u32::try_from(room).unwrap_or(u32::MAX) },
            kinds: KINDS.to_vec(),
            scopes: None,
        };
        let advanced = self.store.advance(Advance { reports, claim: Some(claim), now }).await?;
        if let Some(link) = self.link.as_mut().filter(|_| !keys.is_empty()) {
            link.queue(&ToRunner::Ack { keys });
        }
        self.more_work |= advanced.more_work;
        self.due(advanced.next_due);
        for claim in advanced.claimed {
            self.launch(claim).await?;
        }
        for (execution, fence) in advanced.stop {
            self.stop_attempt(AttemptKey { execution: execution.0, fence: fence.0 }, false);
        }
        self.ended(advanced.ended);
        Ok(())
    }

    /// One chunk of the large steps under way.
    async fn work(&mut self, now: Timestamp) -> Result<(), Refusal> {
        let worked = self.store.work(now).await?;
        self.more_work = worked.more;
        self.due(worked.next_due);
        for (execution, fence) in worked.stop {
            self.stop_attempt(AttemptKey { execution: execution.0, fence: fence.0 }, false);
        }
        self.ended(worked.ended);
        self.poke = true;
        Ok(())
    }

    fn due(&mut self, at: Option<Timestamp>) {
        self.next_due = match (self.next_due, at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Waits for anything to happen.
    async fn wait(&mut self) -> Result<(), Refusal> {
        let due = match (self.next_due, self.orphans_due) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let pause = due.map(|due| Duration::from_millis(due.since(self.clock.now()).0));
        let timer = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        let runner = async {
            match &mut self.link {
                Some(link) => link.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ask = self.asks.recv() => match ask {
                Some(ask) => self.handle(ask).await?,
                // Every handle is gone: nobody can ask for anything any more.
                None => self.leaving = Some(oneshot::channel().0),
            },
            message = runner => match message {
                Ok(message) => self.hear(message).await?,
                Err(_) => self.reconnect().await?,
            },
            () = timer => {}
        }
        Ok(())
    }

    /// Takes in whatever else has arrived. While the runner still has enough to do, waits a moment for more, so
    /// that one commit serves several outcomes.
    async fn gather(&mut self) -> Result<(), Refusal> {
        self.hear_all().await?;
        let enough = self.options.slots as usize + CLAIM_AHEAD / 2;
        let mut waited = false;
        while !self.reports.is_empty() && self.flying.len() >= enough && !waited {
            let Some(link) = &mut self.link else { break };
            match tokio::time::timeout(GATHER, link.next()).await {
                Ok(Ok(message)) => self.hear(message).await?,
                Ok(Err(_)) => self.reconnect().await?,
                Err(_) => waited = true,
            }
            self.hear_all().await?;
        }
        while let Ok(ask) = self.asks.try_recv() {
            self.handle(ask).await?;
        }
        Ok(())
    }

    /// Takes in the runner's messages that are already here.
    async fn hear_all(&mut self) -> Result<(), Refusal> {
        while let Some(link) = &mut self.link {
            match link.pull() {
                Ok(Some(message)) => self.hear(message).await?,
                Ok(None) => break,
                Err(_) => self.reconnect().await?,
            }
        }
        Ok(())
    }

    async fn hear(&mut self, message: FromRunner) -> Result<(), Refusal> {
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
            FromRunner::Welcome { .. } => {}
        }
        Ok(())
    }

    async fn attempt_ended(&mut self, ended: Ended) -> Result<(), Refusal> {
        let claim = self.flying.remove(&ended.key);
        if let (Outcome::OwnerGone, Some(claim)) = (&ended.outcome, &claim) {
            self.stop_run(claim.run.key, StopReason::OwnerGone).await?;
        }
        self.reports.push(report::report(ended, claim.as_deref(), self.random.bits()));
        Ok(())
    }

    /// Hands a claimed task to the runner; what cannot be started is reported as such.
    async fn launch(&mut self, claim: Arc<Claimed>) -> Result<(), Refusal> {
        let run = claim.run.key;
        let context = match self.context(run) {
            Ok(context) => context,
            Err(why) => {
                self.reports.push(report::never_started(&claim, why, self.clock.now()));
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
            Err(why) => self.reports.push(report::never_started(&claim, why, self.clock.now())),
        }
        Ok(())
    }

    fn send_start(&mut self, run: RunKey, context: &Context, start: cis_runner::protocol::Start) {
        let Some(link) = &mut self.link else { return };
        if self.sent.insert(run) {
            let (env, cwd) = (context.env.clone(), context.cwd.clone());
            link.queue(&ToRunner::Context { context: run.0, env, cwd });
        }
        link.queue(&ToRunner::Start(Box::new(start)));
    }

    fn context(&mut self, run: RunKey) -> Result<Arc<Context>, String> {
        if let Some(context) = self.contexts.get(&run) {
            return Ok(context.clone());
        }
        let path = self.options.data_dir.context(run.0);
        let context =
            Context::load(&path).map_err(|e| format!("its run's environment cannot be read: {e}"))?;
        let context = Arc::new(context);
        self.contexts.insert(run, context.clone());
        Ok(context)
    }

    fn stop_attempt(&mut self, key: AttemptKey, kill: bool) {
        if let Some(link) = self.link.as_mut().filter(|_| self.flying.contains_key(&key)) {
            link.queue(&ToRunner::Stop { key, kill });
        }
    }

    async fn flush(&mut self) -> Result<(), Refusal> {
        let broken = match &mut self.link {
            Some(link) => link.flush().await.is_err(),
            None => false,
        };
        if broken { self.reconnect().await } else { Ok(()) }
    }

    /// Connects to the runner; answers what it knows of. What it has and we do not want is ended.
    async fn connect(&mut self) -> Result<HashMap<AttemptKey, KnownState>, Refusal> {
        self.link = None;
        self.sent.clear();
        let address = RunnerAddress {
            data_dir: self.options.data_dir.root().to_owned(),
            exe: self.options.exe.clone(),
            epoch: self.epoch,
            slots: self.options.slots,
        };
        let mut link = RunnerLink::connect(&address).await?;
        let known: HashMap<AttemptKey, KnownState> =
            std::mem::take(&mut link.known).into_iter().map(|known| (known.key, known.state)).collect();
        for (key, state) in &known {
            if !self.flying.contains_key(key) && *state != KnownState::Ended {
                link.queue(&ToRunner::Stop { key: *key, kill: true });
            }
        }
        self.link = Some(link);
        Ok(known)
    }

    /// After a lost connection (or before the first): connects and hands over again what the runner has not
    /// heard of. It starts nothing twice.
    async fn reconnect(&mut self) -> Result<(), Refusal> {
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
            let started = self.context(run).and_then(|context| {
                let start = self.dispatch.start(&claim, &context, tied)?;
                self.send_start(run, &context, start);
                Ok(())
            });
            if let Err(why) = started {
                self.flying.remove(&key_of(&claim));
                self.reports.push(report::never_started(&claim, why, self.clock.now()));
            }
        }
        match &mut self.link {
            Some(link) => link.flush().await.map_err(|e| {
                Refusal::new(ErrorCode::Unavailable, format!("the runner closes its connection at once: {e}"))
            }),
            None => Ok(()),
        }
    }

    async fn handle(&mut self, ask: Ask) -> Result<(), Refusal> {
        match ask {
            Ask::Command { command, owner, reply } => {
                let answer = self.command(command, owner).await.unwrap_or_else(Reply::Refused);
                let _ = reply.send(answer);
            }
            Ask::Gone(owner) => {
                let runs: Vec<RunKey> =
                    self.owners.iter().filter(|(_, by)| **by == owner).map(|(run, _)| *run).collect();
                for run in runs {
                    self.stop_run(run, StopReason::OwnerGone).await?;
                }
            }
            Ask::Leave(reply) => self.leaving = Some(reply),
        }
        Ok(())
    }

    async fn command(&mut self, command: Command, owner: Owner) -> Result<Reply, Refusal> {
        let now = self.clock.now();
        match command {
            Command::Publish { dag, content_hash, new_revision, by } => {
                let request = Publish { dag: dag.0, content_hash, new_revision, by, now, expires_at: None };
                Ok(Reply::Published(self.store.publish(request).await?))
            }
            Command::Settle { definition, content_hash, confirm, by } => {
                let request = Settle { definition, content_hash, confirm, by, now };
                Ok(Reply::Settled(self.store.settle(request).await?))
            }
            Command::Start(start) => self.start_run(*start, owner).await.map(Reply::Started),
            Command::Attach { run } => {
                self.own(run, owner);
                Ok(Reply::Attached)
            }
            Command::Stop { run, kill } => {
                let status = self.stop_run(run, StopReason::Cancel).await?;
                if kill {
                    let keys: Vec<AttemptKey> =
                        self.flying.iter().filter(|(_, c)| c.run.key == run).map(|(key, _)| *key).collect();
                    keys.into_iter().for_each(|key| self.stop_attempt(key, true));
                }
                Ok(Reply::Stopping(status))
            }
            Command::Hello => Ok(Reply::Hello(About {
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                epoch: self.epoch.0,
                durability: self.options.durability,
                slots: self.options.slots,
            })),
        }
    }

    async fn start_run(&mut self, start: Start, owner: Owner) -> Result<RunRef, Refusal> {
        let request = StartRun {
            run_id: start.run_id,
            definition: start.definition,
            params: start.params,
            max_parallel: start.max_parallel,
            attached: start.attached,
            fates: start.fates,
            resumed_from: start.resumed_from,
            by_confirmation: start.by_confirmation,
            by: start.by,
            now: self.clock.now(),
        };
        let run = self.store.start_run(request).await?;
        if run.status.is_terminal() {
            return Ok(run);
        }
        start.context.save(&self.options.data_dir.context(run.key.0)).map_err(|e| {
            Refusal::new(ErrorCode::Unavailable, format!("cannot keep the run's environment: {e}"))
        })?;
        self.contexts.insert(run.key, Arc::new(start.context));
        self.unfinished.insert(run.key);
        self.idle.send_replace(false);
        if start.attached {
            self.own(run.key, owner);
        }
        (self.poke, self.more_work, self.next_due) = (true, true, Some(Timestamp(0)));
        Ok(run)
    }

    fn own(&mut self, run: RunKey, owner: Owner) {
        self.orphans.retain(|orphan| *orphan != run);
        if self.unfinished.contains(&run) {
            self.owners.insert(run, owner);
        }
    }

    async fn stop_run(&mut self, run: RunKey, reason: StopReason) -> Result<RunStatus, Refusal> {
        let status = self.store.stop_run(run, reason, self.clock.now()).await?;
        // A run that had not begun is over by this very commit; the loop finds out as it works off the rest.
        self.more_work = true;
        if status.is_terminal() {
            self.run_over(run);
        }
        self.changes.send_modify(|count| *count += 1);
        Ok(status)
    }

    async fn end_orphans(&mut self, _now: Timestamp) -> Result<(), Refusal> {
        self.orphans_due = None;
        for run in std::mem::take(&mut self.orphans) {
            self.stop_run(run, StopReason::OwnerGone).await?;
        }
        Ok(())
    }

    fn ended(&mut self, runs: Vec<RunRef>) {
        for run in runs {
            self.run_over(run.key);
        }
    }

    fn run_over(&mut self, run: RunKey) {
        self.dispatch.forget(run);
        self.contexts.remove(&run);
        self.owners.remove(&run);
        self.unfinished.remove(&run);
        if self.sent.remove(&run) {
            if let Some(link) = &mut self.link {
                link.queue(&ToRunner::Forget { context: run.0 });
            }
        }
        // A file that stays behind is found and removed when its run is pruned.
        let _ = std::fs::remove_file(self.options.data_dir.context(run.0));
        self.idle.send_if_modified(|idle| {
            let changed = *idle != self.unfinished.is_empty();
            *idle = self.unfinished.is_empty();
            changed
        });
    }
}

fn key_of(claim: &Claimed) -> AttemptKey {
    AttemptKey { execution: claim.execution.0, fence: claim.fence.0 }
}
