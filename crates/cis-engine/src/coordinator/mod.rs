//! The loop that decides what happens next. It alone talks to the runner; of what others write to the store it hears.
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
//!
//! | module | what lives there |
//! |---|---|
//! | [`handle`] | how others reach the loop |
//! | `attempts` | attempts on their way to the runner and back |
//! | `reach` | the connection they travel on, and what is done while there is none |
//! | `handover` | leaving while they go on |
//! | `commands` | what is asked, and what follows for the runs |

mod attempts;
mod commands;
pub mod handle;
mod handover;
mod reach;
#[cfg(test)]
mod runner_tests;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cis_api::node::CoordinatorKind;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{Epoch, RunId, RunKey};
use cis_core::notice::Wanted;
use cis_core::run::StopReason;
use cis_core::source::{Millis, Timestamp};
use cis_core::task::TaskStatus;
use cis_runner::protocol::{AttemptKey, ToRunner};
pub use cis_store::Durability;
use cis_store::port::{Advance, Boot, Claim, Claimed, CoordinatorStore, Opening, Report, RunRef, Started};
use tokio::sync::{mpsc, oneshot, watch};

use crate::context::Context;
use crate::data_dir::DataDir;
use crate::dispatch::Dispatch;
use crate::machine::Machine;
use crate::origin::Origin;
use crate::recovery::Recovery;
use crate::runner_link::RunnerLink;
use handover::Leaving;
use reach::{Connecting, LOOK_AT_RUNNER, PATIENCE};

pub use crate::dispatch::Limits;
pub use handle::{Ask, Changes, Expected, Handle, Owner, SELF};

/// Tasks handed to the runner beyond its free slots, so that it never waits for a commit. The runner's journal
/// tells started from unstarted, so a crash loses none of them. With 8 the commits were half as large and W1
/// took 1.20 times as long as ninja instead of 1.12; more than this only lets more urgent tasks wait longer.
const CLAIM_AHEAD: usize = 16;

/// How long the run of a foreground process that lost its coordinator may stay unclaimed.
const ORPHAN_GRACE: Millis = Millis(5_000);

/// Before it is tried again to record what there was no room for.
const LOOK_AGAIN: Millis = Millis(1_000);

/// The longest the loop waits. Timers do not count the time the machine is suspended, and nothing
/// announces that somebody sets the clock: this is how late either is noticed.
const CLOCK_LOOK: Millis = Millis(5_000);

/// By how much the clock on the wall and the one nobody sets may drift apart before that counts as set.
const DRIFT: Millis = Millis(1_000);

/// Asks that may wait for the loop.
const INBOX_MAX: usize = 256;

/// What kinds of task this coordinator's runner can do.
pub(crate) const KINDS: [&str; 2] = ["shell", "skill"];

/// How a coordinator is set up.
#[derive(Debug, Clone)]
pub struct Options {
    pub data_dir: DataDir,
    /// The program that is also the runner.
    pub exe: PathBuf,
    /// The settings file, if it is not the usual one: a coordinator in the background reads it again.
    pub config: Option<PathBuf>,
    pub slots: u32,
    pub durability: Durability,
    pub limits: Limits,
    /// Something is going to be run as soon as the coordinator is there.
    pub runs_at_once: bool,
    /// What kind of process this is.
    pub kind: CoordinatorKind,
    /// Where this process serves others over HTTP, if it does.
    pub address: Option<String>,
    /// What to keep for whoever tells people.
    pub notices: Wanted,
}

/// The coordinator's state.
pub struct Coordinator<S, M: Machine> {
    store: S,
    options: Options,
    machine: Arc<M>,
    epoch: Epoch,
    dispatch: Dispatch,
    asks: mpsc::Receiver<Ask>,
    changes: watch::Sender<Changes>,
    idle: watch::Sender<bool>,
    link: Option<RunnerLink<M::Stream>>,
    connecting: Option<Connecting<M::Stream>>,
    /// Connections in a row that broke before anything could be sent on them.
    reconnects: u32,
    /// Why the runner does not answer: nothing more is claimed for it until it does.
    silence: Option<Refusal>,
    /// Attempts handed to the runner and not yet over. In order: what is handed over again goes in the order it came.
    flying: BTreeMap<AttemptKey, Arc<Claimed>>,
    /// Those of them that an earlier coordinator had handed over, until the runner has said what it knows of them.
    inherited: BTreeSet<AttemptKey>,
    /// Those of them that run in the directory that this one is a copy of.
    elsewhere: BTreeMap<AttemptKey, Arc<Path>>,
    /// Those of them that no runner has been told of.
    unsent: BTreeSet<AttemptKey>,
    /// Those of them that the runner had before this connection: they do not end with it.
    untied: BTreeSet<AttemptKey>,
    /// Those of them that are to end; with SIGKILL, if that is said.
    stopping: BTreeMap<AttemptKey, bool>,
    contexts: HashMap<RunKey, Arc<Context>>,
    /// Runs that are about to start.
    expected: HashMap<RunId, Expected>,
    /// Contexts the runner has been sent on this connection.
    sent: HashSet<RunKey>,
    owners: HashMap<RunKey, Owner>,
    /// Attached runs nobody has claimed since this coordinator started.
    orphans: Vec<RunKey>,
    /// Runs whose owner has closed its connection before they were there.
    forsaken: Vec<RunKey>,
    /// Owners that have gone lately, the latest first: a run of theirs may still be on its way.
    gone_owners: VecDeque<Owner>,
    /// It has handed over.
    handed_over: Arc<AtomicBool>,
    orphans_due: Option<Timestamp>,
    unfinished: HashMap<RunKey, RunRef>,
    /// Runs others started that were over before this loop heard of them, the latest first.
    over_unheard: VecDeque<RunKey>,
    reports: Vec<Report>,
    started: Vec<Started>,
    /// Something may have become claimable.
    poke: bool,
    more_work: bool,
    next_due: Option<Timestamp>,
    leaving: Option<Leaving>,
    /// Nothing more is claimed, until somebody says otherwise.
    draining: bool,
    /// What was found when this life began.
    recovery: Recovery,
    /// Nothing more is claimed, until there is room on the disk.
    full: bool,
    /// When the machine was started, by the clock on the wall: it moves when somebody sets that.
    started_at: Timestamp,
    /// Where the directory comes from, if the last coordinator saw another boot or another directory; until what was cut
    /// short is recorded, and it can be noted.
    new_origin: Option<Origin>,
}

impl<S, M: Machine> std::fmt::Debug for Coordinator<S, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl<S: CoordinatorStore, M: Machine> Coordinator<S, M> {
    /// Begins a coordinator's life on a store nobody else writes to: a higher epoch, and whatever an earlier one
    /// left unfinished taken up again.
    pub async fn start(store: S, options: Options, machine: M) -> Result<(Self, Handle), Refusal> {
        let boot = Boot { id: machine.boot_id().into(), now: machine.since_boot() };
        let opening = store.open_epoch(machine.now(), boot).await?;
        let (asks_in, asks) = mpsc::channel(INBOX_MAX);
        let (changes, changes_out) = watch::channel(Changes::default());
        let (idle, idle_out) = watch::channel(opening.unfinished.is_empty());
        let recovery = Recovery::of(&opening, options.data_dir.last_stop());
        let mut this = Self {
            dispatch: Dispatch::new(options.data_dir.clone(), options.limits, options.durability),
            store,
            options,
            machine: Arc::new(machine),
            epoch: opening.epoch,
            asks,
            changes,
            idle,
            link: None,
            connecting: None,
            reconnects: 0,
            silence: None,
            flying: BTreeMap::new(),
            inherited: BTreeSet::new(),
            elsewhere: BTreeMap::new(),
            unsent: BTreeSet::new(),
            untied: BTreeSet::new(),
            stopping: BTreeMap::new(),
            contexts: HashMap::new(),
            expected: HashMap::new(),
            sent: HashSet::new(),
            owners: HashMap::new(),
            orphans: Vec::new(),
            forsaken: Vec::new(),
            gone_owners: VecDeque::new(),
            handed_over: Arc::default(),
            orphans_due: None,
            unfinished: HashMap::new(),
            over_unheard: VecDeque::new(),
            reports: Vec::new(),
            started: Vec::new(),
            poke: true,
            more_work: true,
            next_due: Some(Timestamp(0)),
            leaving: None,
            draining: false,
            recovery,
            full: false,
            started_at: Timestamp(0),
            new_origin: None,
        };
        this.take_up(opening).await?;
        this.recovery.log();
        Ok((this, Handle { asks: asks_in, changes: changes_out, idle: idle_out }))
    }

    /// What was found when this life began, and done about it.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Becomes true when it has handed over.
    pub fn has_handed_over(&self) -> Arc<AtomicBool> {
        self.handed_over.clone()
    }

    /// Takes up what an earlier coordinator left.
    async fn take_up(&mut self, opening: Opening) -> Result<(), Refusal> {
        self.unfinished = opening.unfinished.iter().map(|u| (u.run.key, u.run.clone())).collect();
        for run in opening.unfinished.iter().map(|unfinished| &unfinished.run) {
            // Nearly always in its place already: only a kill in the midst of starting the run leaves it.
            let data_dir = &self.options.data_dir;
            let _ = std::fs::rename(data_dir.context_of_new(run.run_id), data_dir.context(run.key.0));
        }
        self.forget_others();
        let attached = opening.unfinished.iter().filter(|u| u.attached).map(|u| u.run.key);
        let (ownerless, orphans): (Vec<_>, Vec<_>) = attached.partition(|run| self.has_lost_its_owner(*run));
        self.orphans = orphans;
        for run in &ownerless {
            self.stop_run(*run, StopReason::OwnerGone).await?;
        }
        if !self.orphans.is_empty() {
            self.orphans_due = Some(self.machine.now().after(ORPHAN_GRACE));
        }
        let origin = Origin::of(&self.options.data_dir, self.machine.boot_id());
        if let Some(original) = &origin.copy_of {
            let original = original.display();
            tracing::warn!(
                "this data directory is a copy of `{original}`: what runs there counts as interrupted here"
            );
        }
        self.new_origin = Some(origin).filter(|origin| origin.is_new);
        let live = opening.live.iter().map(|live| key_of(&live.claim)).collect();
        self.forget_outputs(&live);
        if live.is_empty() {
            return Ok(());
        }
        for live in opening.live {
            let key = key_of(&live.claim);
            if live.status == TaskStatus::Cancelling || ownerless.contains(&live.run) {
                self.stopping.insert(key, false);
            }
            self.flying.insert(key, live.claim);
        }
        if let Some(original) = self.new_origin.as_ref().and_then(|origin| origin.copy_of.as_deref()) {
            let original: Arc<Path> = original.into();
            self.elsewhere = live.iter().map(|key| (*key, original.clone())).collect();
        }
        self.inherited = live;
        self.connect();
        self.reach(PATIENCE).await
    }

    /// Removes the surroundings of runs that are over or never came to be: a coordinator that was killed left them, and
    /// nobody would look for them again. They may hold what nobody else should read.
    fn forget_others(&self) {
        let data_dir = &self.options.data_dir;
        let mut ours: HashSet<PathBuf> = self.unfinished.keys().map(|run| data_dir.context(run.0)).collect();
        ours.insert(data_dir.node_context());
        for entry in std::fs::read_dir(data_dir.contexts()).into_iter().flatten().flatten() {
            if !ours.contains(&entry.path()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Is the process that an attached run belongs to known, and alive?
    fn has_living_owner(&self, run: RunKey) -> bool {
        Context::load(&self.options.data_dir.context(run.0))
            .is_ok_and(|context| context.owner.as_ref().is_some_and(|owner| owner.lives()))
    }

    /// Is the process that an attached run belongs to gone? If that cannot be told, it is given time to return.
    fn has_lost_its_owner(&self, run: RunKey) -> bool {
        Context::load(&self.options.data_dir.context(run.0))
            .is_ok_and(|context| context.owner.as_ref().is_some_and(|owner| !owner.lives()))
    }

    /// Notes a new boot or directory once every attempt that was cut short is recorded as such: to a coordinator that came
    /// before that, and found it noted, they would look as if they had never begun.
    fn note_origin(&mut self) {
        if let Some(origin) = self.new_origin.take_if(|_| self.inherited.is_empty()) {
            // If it cannot be written, the next coordinator will believe in a restart: safe, merely cautious.
            let _ = origin.write(&self.options.data_dir);
        }
    }

    /// Runs until it is asked to leave, or the store or the runner is lost for good.
    pub async fn run(mut self) -> Result<S, Refusal> {
        loop {
            self.settle().await?;
            if let Some(leaving) = self.leaving.take() {
                if self.leave(leaving).await? {
                    return Ok(self.store);
                }
                continue;
            }
            self.wait().await?;
            self.gather().await?;
        }
    }

    /// Does everything there is to do now, and there is room for.
    async fn settle(&mut self) -> Result<(), Refusal> {
        self.notice_clock();
        self.note_silence();
        loop {
            self.reach_at_once().await?;
            let now = self.machine.now();
            match self.step(now).await {
                Ok(true) => {}
                Ok(false) => return self.flush().await,
                Err(refusal) if refusal.code == ErrorCode::DiskFull => {
                    self.note_room(false);
                    // What there is to record is still here, and is tried again by then, or when somebody asks for
                    // something.
                    self.next_due = Some(now.after(LOOK_AGAIN));
                    return self.flush().await;
                }
                Err(refusal) => return Err(refusal),
            }
            // The runner first: tasks wait for it.
            let flushed = self.flush().await;
            self.changes.send_modify(|changes| changes.commits += 1);
            flushed?;
        }
    }

    /// After somebody has set the clock, looks anew at what is due: when a lease runs out, which that clock has no say in,
    /// is kept by it, and would come hours late or early.
    fn notice_clock(&mut self) {
        let now = self.machine.now();
        let started_at = Timestamp(now.0.saturating_sub(self.machine.since_boot().0));
        let (was, is) = (self.started_at, started_at);
        if was.since(is).max(is.since(was)) > DRIFT {
            self.started_at = is;
            self.next_due = Some(Timestamp(0));
            self.orphans_due = self.orphans_due.map(|_| now.after(ORPHAN_GRACE));
        }
    }

    /// Does what is next; false if there is nothing.
    async fn step(&mut self, now: Timestamp) -> Result<bool, Refusal> {
        let due = self.next_due.is_some_and(|due| due <= now);
        if !self.reports.is_empty() || self.poke {
            self.advance(now).await?;
        } else if self.more_work {
            self.work(now).await?;
        } else if due {
            let swept = self.store.sweep(self.epoch, now, self.machine.since_boot()).await?;
            self.next_due = swept.next_due;
            self.more_work |= swept.more_work;
            self.poke = true;
            self.ended(swept.ended);
        } else if self.orphans_due.is_some_and(|due| due <= now) {
            self.end_orphans().await?;
        } else if !self.started.is_empty() {
            self.store.note_started(self.started.clone(), now).await?;
            self.started.clear();
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Says once that the disk is full, and once that it is not any more.
    fn note_room(&mut self, room: bool) {
        match (std::mem::replace(&mut self.full, !room), room) {
            (false, false) => tracing::warn!("the disk is full: nothing new is begun until there is room"),
            (true, true) => tracing::info!("there is room on the disk again"),
            _ => {}
        }
    }

    /// Records what ended and claims what is next, in one transaction.
    async fn advance(&mut self, now: Timestamp) -> Result<(), Refusal> {
        // Kept until they are recorded: there may be no room for them.
        let reports = self.reports.clone();
        let keys: Vec<AttemptKey> = (reports.iter())
            .map(|report| AttemptKey { execution: report.execution.0, fence: report.fence.0 })
            .collect();
        let slots = self.options.slots as usize;
        let room = match self.flying.len() {
            _ if self.leaving.is_some() || self.draining || self.silence.is_some() => 0,
            // The runner has nothing to do: it gets its first tasks soon, and the rest when it reports on them.
            0 => 2 * slots,
            flying => (slots + CLAIM_AHEAD).saturating_sub(flying),
        };
        let claim = Claim {
            epoch: self.epoch,
            holder: "local".to_owned(),
            limit: u32::try_from(room).unwrap_or(u32::MAX),
            kinds: KINDS.to_vec(),
            scopes: None,
            capabilities: Vec::new(),
        };
        let advanced = self.store.advance(Advance { reports, claim: Some(claim), now }).await?;
        self.poke = false;
        self.reports.clear();
        self.note_origin();
        self.note_room(!advanced.full);
        if let Some(link) = self.link.as_mut().filter(|_| !keys.is_empty()) {
            cis_fail::point("coordinator.before_ack");
            link.queue(&ToRunner::Ack { keys });
        }
        self.more_work |= advanced.more_work;
        self.due(advanced.next_due);
        for claim in advanced.claimed {
            self.launch(claim);
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

    pub(super) fn due(&mut self, at: Option<Timestamp>) {
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
        let pause = due.map_or(CLOCK_LOOK, |due| due.since(self.machine.now()).min(CLOCK_LOOK));
        let silence_due = self.silence_due().unwrap_or(CLOCK_LOOK);
        let look = if self.silence.is_some() { LOOK_AT_RUNNER } else { silence_due };
        let timer = self.machine.pause(pause.min(look));
        let runner = async {
            match &mut self.link {
                Some(link) => link.next().await,
                None => std::future::pending().await,
            }
        };
        let connected = async {
            match &mut self.connecting {
                Some(connecting) => connecting.answer().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Always in this order, so that the same things happening do the same. Nobody waits for ever behind the
            // runner: asks are taken in by `gather` as well, and what is due is found by the clock.
            biased;
            lost = self.store.lost() => return Err(lost.into()),
            message = runner => match message {
                Ok(message) => self.hear(message).await?,
                Err(_) => self.lose_link()?,
            },
            link = connected => {
                self.connecting = None;
                self.reattach(link?).await?;
            }
            ask = self.asks.recv() => match ask {
                Some(ask) => self.handle(ask).await?,
                // Every handle is gone: nobody can ask for anything any more.
                None => self.leaving = Some(Leaving::Now(oneshot::channel().0)),
            },
            () = timer => self.watch_runner(),
        }
        Ok(())
    }

    /// Takes in whatever else has arrived, so that one commit serves all of it.
    async fn gather(&mut self) -> Result<(), Refusal> {
        self.hear_all().await?;
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
                Err(_) => self.lose_link()?,
            }
        }
        Ok(())
    }
}

fn key_of(claim: &Claimed) -> AttemptKey {
    AttemptKey { execution: claim.execution.0, fence: claim.fence.0 }
}
