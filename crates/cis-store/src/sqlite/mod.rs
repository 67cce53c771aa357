//! The embedded store: one SQLite file, one connection that writes, any number of read-only snapshots.
//!
//! ```text
//!  SqliteStore (handle) ──bounded queue──► writer thread: BEGIN IMMEDIATE
//!                                            SAVEPOINT op … RELEASE   (a refusal undoes only its own op)
//!                                            SAVEPOINT op … RELEASE
//!                                          COMMIT ──► only now are the callers answered
//! ```
//!
//! | module | what lives there |
//! |---|---|
//! | `migrate` | opening the file, pragmas, numbered migrations |
//! | `reserve` | room for what must be recorded when the disk is full |
//! | `writer`, `sync` | the thread: queue, group commit, isolation of operations; what it meets its callers by |
//! | `tx` | one operation's view: rows it has loaded, events it writes, what it will answer |
//! | `events` | what an event says, and writing it |
//! | `memory` | what the writer remembers between operations |
//! | `definitions` | publish, settle, decide |
//! | `keys` | requests that are done once |
//! | `tokens` | who may call |
//! | `runs` | create, stop and end runs |
//! | `tasks` | how one task moves, and how its end spreads |
//! | `task_rows` | tasks as they are read, large values left out where there are several |
//! | `claim`, `fences` | taking ready tasks, each with a fence of its own |
//! | `leases` | tasks that somebody outside holds |
//! | `approvals` | tasks that wait for a person |
//! | `reviews` | the ids that people decide by |
//! | `revisions` | public texts, and making room of what was turned down |
//! | `advance` | recording attempts |
//! | `pause` | letting nothing more be claimed |
//! | `pulse` | what has changed |
//! | `quotas` | how much one identity has waiting |
//! | `steps` | large steps in chunks |
//! | `outbox` | what people are still to be told |
//! | `sweep`, `clock` | what becomes due, though somebody sets the clock |
//! | `prune`, `tombstones` | making room, and what stays of what was there |
//! | [`reader`], `log`, `lists`, `standing`, `waiting`, `attempts`, [`census`] | what people, views, followers and meters ask |
//! | [`check`], `fold` | the invariants, checked over a whole store; the event log against the rows |
//! | `skills` | which skills revisions need |
//! | `copy` | one moment of a store in a file of its own, and back |

mod advance;
mod approvals;
mod attempts;
mod cache;
mod causes;
pub mod census;
pub mod check;
mod claim;
mod clock;
mod copy;
mod definitions;
mod events;
mod fences;
mod fold;
mod keys;
mod leases;
mod lists;
mod log;
mod memory;
mod migrate;
mod outbox;
mod pause;
mod prune;
mod pulse;
mod quotas;
mod reader;
mod reserve;
mod reviews;
mod revisions;
mod runs;
mod skills;
mod standing;
mod steps;
mod sweep;
mod sync;
mod task_rows;
mod tasks;
mod tokens;
mod tombstones;
mod tx;
mod waiting;
mod writer;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use cis_core::error::Refusal;
use cis_core::id::{Epoch, Position, RunKey, Scope};
use cis_core::notice::{Wanted, Way};
use cis_core::run::RunStatus;
use cis_core::source::{BootTime, Clock, Millis, Timestamp};
use serde::{Deserialize, Serialize};

use crate::port::{
    Advance, Advanced, Answer, Approve, Approved, Boot, ClaimWork, Conclude, Concluded, CoordinatorStore,
    Decide, Decided, Heartbeat, Held, Holding, NewToken, Once, Opening, Progress, Prune, Pruned, Publish,
    Published, Quotas, RunRef, Settle, Settled, StartRun, Started, StopRun, StoreError, Swept, Tried, Worked,
};

pub use attempts::AttemptOf;
pub use copy::{Copy, Label, Moment};
pub use fences::{RESTORE_LEAP, converted as converted_epoch, used_up as fences_used_up};
pub use leases::{AttemptLine, Offer};
pub use lists::DagFilter;
pub use outbox::Notice;
pub use pulse::Pulse;
pub use reader::Reader;
pub use reserve::{RESERVE, RESERVE_BYTES};
pub use revisions::{PUBLIC_TEXT_FROM, TextSearch};
pub use skills::PinnedSkill;
pub use steps::Chunks;
pub use tombstones::Tombstone;
pub use writer::{Writer, Written};

use reserve::Reserve;

/// How much an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Power loss: every commit waits for the disk.
    #[default]
    Power,
    /// SIGKILL of this process: commits reach the operating system.
    Process,
}

impl Durability {
    /// The word people use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Power => "power",
            Self::Process => "process",
        }
    }
}

/// The embedded store. Cheap to clone; the last handle dropped lets the writer finish and close the file.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    writer: Writer,
    /// Why nothing new is taken on, once there is a reason.
    shut: Arc<OnceLock<Refusal>>,
    /// What its operations are bounded by.
    quotas: Option<Quotas>,
}

impl SqliteStore {
    /// Opens (or creates) `file` for writing. The caller must be the only one who does.
    pub fn open(file: &Path, durability: Durability) -> Answer<Self> {
        Self::open_in_chunks(file, durability, Chunks::default())
    }

    /// The same with steps of another size: small ones let a test see everything that lies between two chunks.
    pub fn open_in_chunks(file: &Path, durability: Durability, chunks: Chunks) -> Answer<Self> {
        let writer = Writer::start(migrate::open(file, durability)?, chunks, Reserve::none())?;
        Ok(Self { writer, shut: Arc::default(), quotas: None })
    }

    /// Opens `file` and keeps `bytes` beside it, so that what ends while the disk is full is recorded.
    pub fn open_reserving(file: &Path, durability: Durability, bytes: u64, now: Timestamp) -> Answer<Self> {
        let conn = match migrate::open(file, durability) {
            Err(StoreError::Full) if reserve::give_up_beside(file) => migrate::open(file, durability)?,
            opened => opened?,
        };
        let reserve = Reserve::beside(file, bytes, now);
        let writer = Writer::start(conn, Chunks::default(), reserve)?;
        Ok(Self { writer, shut: Arc::default(), quotas: None })
    }

    /// The same store for a caller that has nothing better to do than wait: its operations are done on its own
    /// thread when nobody else is writing.
    #[must_use]
    pub fn here(self) -> Self {
        Self { writer: self.writer.here(), ..self }
    }

    /// The same store by this clock, whatever callers say that it is now: when somebody sets it, deadlines stay as far off
    /// as they were.
    #[must_use]
    pub fn by_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { writer: self.writer.by_clock(clock), ..self }
    }

    /// The same store for a caller that may have only so much waiting. Without this nothing is refused for that.
    #[must_use]
    pub fn within(self, quotas: Option<Quotas>) -> Self {
        Self { quotas, ..self }
    }

    /// Takes on nothing new from now on, for this reason: nothing is published, confirmed, started or claimed any more.
    /// What is under way may still end.
    pub fn shut(&self, why: Refusal) {
        // The first reason stands.
        let _ = self.shut.set(why);
    }

    fn takes_on_more(&self) -> Answer<()> {
        self.shut.get().map_or(Ok(()), |why| Err(why.clone().into()))
    }

    /// How much has been written.
    pub fn written(&self) -> Written {
        self.writer.written()
    }

    /// What changes, as it does.
    pub fn pulse(&self) -> Pulse {
        self.writer.pulse()
    }

    /// From now on, keeps notices of what is wanted, until they are settled.
    pub fn keep_notices(&self, wanted: Wanted) {
        self.writer.keep_notices(wanted);
    }

    /// The highest epoch in use. A coordinator may have taken more of them than the one it began with.
    pub fn epoch(&self) -> Answer<Epoch> {
        self.writer.read(migrate::epoch)
    }

    /// Waits until everything is written and the file is closed. Call it on the last handle.
    pub fn close(self) {
        self.writer.close();
    }
}

/// What callers ask for. Each is atomic, durable when it answers (at the store's durability), and safe to ask again after a
/// lost answer.
impl SqliteStore {
    /// Publishes a definition; the same content again is the same revision.
    pub async fn publish(&self, request: Publish) -> Answer<Once<Published>> {
        self.takes_on_more()?;
        let quotas = self.quotas;
        self.writer
            .call(request.now, move |tx| {
                keys::once(tx, request.key.as_ref(), |tx| definitions::publish(tx, &request, quotas))
            })
            .await
    }

    /// Decides about a DAG's latest revision and starts it if that confirms it: one transaction. The same decision
    /// again answers the same run.
    pub async fn decide(&self, request: Decide) -> Answer<Once<Decided>> {
        if request.confirm {
            self.takes_on_more()?;
        }
        let quotas = self.quotas;
        self.writer
            .call(request.now, move |tx| {
                keys::once(tx, request.key.as_ref(), |tx| definitions::decide(tx, &request, quotas))
            })
            .await
    }

    /// Approves or rejects a task that waits for a person; the same decision again is the same answer.
    pub async fn approve(&self, request: Approve) -> Answer<Once<Approved>> {
        self.writer
            .call(request.now, move |tx| {
                keys::once(tx, request.key.as_ref(), |tx| approvals::decide(tx, &request))
            })
            .await
    }

    /// Confirms or rejects a revision; the same decision again is the same answer.
    pub async fn settle(&self, request: Settle) -> Answer<Settled> {
        if request.confirm {
            self.takes_on_more()?;
        }
        self.writer.call(request.now, move |tx| definitions::settle(tx, &request)).await
    }

    /// Creates a run of a confirmed revision; the same run id again is the same run.
    pub async fn start_run(&self, request: StartRun) -> Answer<Once<RunRef>> {
        self.takes_on_more()?;
        let quotas = self.quotas;
        self.writer
            .call(request.now, move |tx| {
                keys::once(tx, request.key.as_ref(), |tx| runs::start(tx, &request, quotas))
            })
            .await
    }

    /// Lets nothing more of a run be claimed, or lets it be again; what is live goes on.
    pub async fn pause_run(
        &self,
        run: RunKey,
        paused: bool,
        by: Option<String>,
        now: Timestamp,
    ) -> Answer<RunStatus> {
        self.writer.call(now, move |tx| pause::run(tx, run, paused, by.as_deref())).await
    }

    /// The same for everything in a scope; false if that changes nothing.
    pub async fn pause_scope(&self, scope: Scope, paused: bool, now: Timestamp) -> Answer<bool> {
        self.writer.call(now, move |tx| pause::scope(tx, &scope, paused)).await
    }

    /// Removes one bounded chunk of runs that are over and that nothing needs any more.
    pub async fn prune(&self, request: Prune) -> Answer<Pruned> {
        // What is damaged is left as it is.
        self.takes_on_more()?;
        self.writer.call(request.now, move |tx| prune::prune(tx, &request)).await
    }

    /// Removes one bounded chunk of the definitions of revisions that were rejected or expired before `before`; answers how
    /// many. Their rows stay, and say so.
    pub async fn remove_definitions(&self, before: Timestamp, now: Timestamp) -> Answer<u32> {
        // What is damaged is left as it is.
        self.takes_on_more()?;
        self.writer.call(now, move |tx| revisions::remove_definitions(tx, before)).await
    }

    /// Keeps the public text of a definition beside its stored form. It must hash to the content hash.
    pub async fn keep_public_text(&self, definition: i64, text: String, now: Timestamp) -> Answer<()> {
        self.takes_on_more()?;
        self.writer.call(now, move |tx| revisions::keep_public_text(tx, definition, &text)).await
    }

    /// Claims tasks for a worker, under a lease; the same claim again is answered with the same tasks.
    pub async fn claim_work(&self, request: ClaimWork) -> Answer<Vec<Held>> {
        self.takes_on_more()?;
        self.writer.call(request.now, move |tx| leases::claim_work(tx, &request)).await
    }

    /// Extends a lease that is alive.
    pub async fn heartbeat(&self, holding: Holding, term: Option<Millis>) -> Answer<Heartbeat> {
        self.writer.call(holding.now, move |tx| leases::heartbeat(tx, &holding, term)).await
    }

    /// Notes how far a holder is; changes no state.
    pub async fn note_progress(&self, holding: Holding, note: Progress) -> Answer<()> {
        self.writer.call(holding.now, move |tx| leases::note_progress(tx, &holding, &note)).await
    }

    /// Records what a holder's attempt came to; the same result again is the same answer.
    pub async fn conclude(&self, request: Conclude) -> Answer<Once<Concluded>> {
        self.writer
            .call(request.holding.now, move |tx| {
                keys::once_if_room(tx, request.key.as_ref(), |tx| leases::conclude(tx, &request))
            })
            .await
    }

    /// Lets a caller in.
    pub async fn create_token(&self, token: NewToken) -> Answer<()> {
        self.writer.call(token.now, move |tx| tokens::create(tx, &token)).await
    }

    /// Takes that back; false if there is nothing to take back.
    pub async fn revoke_token(&self, token_id: String, now: Timestamp) -> Answer<bool> {
        self.writer.call(now, move |tx| tokens::revoke(tx, &token_id)).await
    }

    /// Notes what came of trying to tell people of an event. One that is settled already stays as it is.
    pub async fn settle_notice(&self, of: Position, way: Way, tried: Tried, now: Timestamp) -> Answer<()> {
        self.writer.call(now, move |tx| outbox::settle(tx, of, way, &tried)).await
    }
}

impl CoordinatorStore for SqliteStore {
    async fn open_epoch(&self, now: Timestamp, boot: Boot) -> Answer<Opening> {
        self.writer.call(now, move |tx| runs::open_epoch(tx, &boot)).await
    }

    async fn advance(&self, mut request: Advance) -> Answer<Advanced> {
        request.claim = request.claim.filter(|_| self.takes_on_more().is_ok());
        self.writer.call(request.now, move |tx| advance::advance(tx, &request)).await
    }

    async fn stop_run(&self, request: StopRun) -> Answer<Once<RunStatus>> {
        let StopRun { key, run, reason, by, now } = request;
        self.writer
            .call(now, move |tx| {
                keys::once(tx, key.as_ref(), |tx| runs::stop(tx, run, reason, by.as_deref()))
            })
            .await
    }

    async fn work(&self, now: Timestamp) -> Answer<Worked> {
        self.writer.call(now, steps::work).await
    }

    async fn sweep(&self, epoch: Epoch, now: Timestamp, since_boot: BootTime) -> Answer<Swept> {
        self.writer.call(now, move |tx| sweep::sweep(tx, epoch, since_boot)).await
    }

    async fn note_started(&self, started: Vec<Started>, now: Timestamp) -> Answer<()> {
        self.writer.call(now, move |tx| tasks::note_started(tx, &started)).await
    }

    async fn lost(&self) -> StoreError {
        self.writer.lost().await
    }
}
