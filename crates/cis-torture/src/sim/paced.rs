//! The real store, but whoever uses it may be held up before an operation is asked for, and before its answer is heard. So
//! others act in between, and a coordinator can be killed there; one that is not killed but replaced writes late.

use cis_core::id::{Epoch, Position, RunKey, Scope};
use cis_core::notice::Way;
use cis_core::run::RunStatus;
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_store::Store;
use cis_store::port::{
    Advance, Advanced, Answer, Approve, Approved, Boot, ClaimWork, Conclude, Concluded, Decide, Decided,
    Heartbeat, Held, Holding, NewToken, Once, Opening, Progress, Prune, Pruned, Publish, Published, RunRef,
    Settle, Settled, StartRun, Started, StopRun, StoreError, Swept, Tried, Worked,
};
use cis_store::sqlite::SqliteStore;

use super::machine::MadeUp;

/// A store of a machine that is made up.
#[derive(Debug)]
pub(super) struct Paced {
    pub(super) store: SqliteStore,
    pub(super) machine: MadeUp,
}

macro_rules! paced {
    ($($name:ident($($of:ident: $type:ty),*) -> $answer:ty;)+) => {
        impl Store for Paced {
            $(async fn $name(&self, $($of: $type),*) -> Answer<$answer> {
                self.machine.hesitate().await;
                let answer = self.store.$name($($of),*).await;
                self.machine.hesitate().await;
                answer
            })+

            async fn lost(&self) -> StoreError {
                self.store.lost().await
            }
        }
    };
}

paced! {
    open_epoch(now: Timestamp, boot: Boot) -> Opening;
    publish(request: Publish) -> Once<Published>;
    decide(request: Decide) -> Once<Decided>;
    settle(request: Settle) -> Settled;
    approve(request: Approve) -> Once<Approved>;
    start_run(request: StartRun) -> Once<RunRef>;
    advance(request: Advance) -> Advanced;
    claim_work(request: ClaimWork) -> Vec<Held>;
    heartbeat(holding: Holding, term: Option<Millis>) -> Heartbeat;
    note_progress(holding: Holding, note: Progress) -> ();
    conclude(request: Conclude) -> Once<Concluded>;
    stop_run(request: StopRun) -> Once<RunStatus>;
    pause_run(run: RunKey, paused: bool, now: Timestamp) -> RunStatus;
    pause_scope(scope: Scope, paused: bool, now: Timestamp) -> bool;
    work(now: Timestamp) -> Worked;
    sweep(epoch: Epoch, now: Timestamp, since_boot: BootTime) -> Swept;
    create_token(token: NewToken) -> ();
    revoke_token(token_id: String, now: Timestamp) -> bool;
    settle_notice(of: Position, way: Way, tried: Tried, now: Timestamp) -> ();
    note_started(started: Vec<Started>, now: Timestamp) -> ();
    prune(request: Prune) -> Pruned;
}
