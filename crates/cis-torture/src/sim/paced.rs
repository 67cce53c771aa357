//! The real store, but whoever uses it may be held up before an operation is asked for, and before its answer is heard. So
//! others act in between, and a coordinator can be killed there; one that is not killed but replaced writes late.

use cis_core::id::Epoch;
use cis_core::run::RunStatus;
use cis_core::source::{BootTime, Timestamp};
use cis_store::SqliteStore;
use cis_store::port::{
    Advance, Advanced, Answer, Boot, CoordinatorStore, Once, Opening, Started, StopRun, StoreError, Swept,
    Worked,
};

use super::machine::MadeUp;

/// A store of a machine that is made up.
#[derive(Debug)]
pub(super) struct Paced {
    pub(super) store: SqliteStore,
    pub(super) machine: MadeUp,
}

macro_rules! paced {
    ($($name:ident($($of:ident: $type:ty),*) -> $answer:ty;)+) => {
        impl CoordinatorStore for Paced {
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
    advance(request: Advance) -> Advanced;
    note_started(started: Vec<Started>, now: Timestamp) -> ();
    work(now: Timestamp) -> Worked;
    sweep(epoch: Epoch, now: Timestamp, since_boot: BootTime) -> Swept;
    stop_run(request: StopRun) -> Once<RunStatus>;
}
