//! A round of telling that is broken off anywhere, and the one after it: whatever was to be told is told, and what is no
//! longer kept was.

#![allow(clippy::expect_used, reason = "a scenario says so by failing")]

use std::sync::{Arc, Mutex, PoisonError};

use cis_core::error::Refusal;
use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};

use crate::store::{Leaving, Table};

#[path = "../../cis-notify/src/round.rs"]
mod round;

/// Notices there are, and how many of them one round takes at once.
const NOTICES: i64 = 5;
const AT_ONCE: usize = 2;

/// Chances for others before whoever tells is stopped, at most: enough for all of it to be told before.
const STOPPED_MAX: u32 = 40;

/// When a notice is taken out of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Once it was given.
    After,
    /// While it is being looked up: a mistake.
    Before,
}

/// An outbox whose notices are numbers in a table, and what was given of them.
#[derive(Debug, Clone)]
struct Numbers {
    table: Table,
    given: Arc<Mutex<Vec<i64>>>,
    settled: Settled,
}

impl Numbers {
    fn given(&self) -> Vec<i64> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl round::Outbox for Numbers {
    type Notice = i64;
    type Given = ();

    fn due(&mut self) -> Result<Vec<i64>, Refusal> {
        let due: Vec<i64> = self.table.look.rows().into_iter().take(AT_ONCE).collect();
        if self.settled == Settled::Before {
            due.iter().for_each(|n| block_on(self.table.delete(*n)).expect("deleted"));
        }
        Ok(due)
    }

    fn give(&self, notice: i64) -> impl Future<Output = (i64, ())> + Send + 'static {
        let given = self.given.clone();
        async move {
            yield_now().await;
            given.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
            // The receiver has it; that this is known here is another matter.
            yield_now().await;
            (notice, ())
        }
    }

    async fn settle(&mut self, notice: i64, (): ()) -> Result<(), Refusal> {
        if self.settled == Settled::After {
            self.table.delete(notice).await.expect("deleted");
        }
        Ok(())
    }
}

/// One who tells is stopped at any point; then another comes.
pub fn stopped(settled: Settled) {
    let outbox = Numbers { table: Table::new(), given: Arc::default(), settled };
    (1..=NOTICES).for_each(|n| block_on(outbox.table.insert(n)).expect("kept"));
    let mut first = outbox.clone();
    let life = spawn(async move { round::give_due(&mut first).await });
    block_on(async {
        for _ in 0..thread_rng().gen_range(0..STOPPED_MAX) {
            yield_now().await;
        }
        life.abort();
        let _ = life.await;
    });
    let (kept, given) = (outbox.table.look.rows(), outbox.given());
    assert!((1..=NOTICES).all(|n| kept.contains(&n) || given.contains(&n)), "{kept:?} kept, {given:?} given");
    let mut second = outbox.clone();
    block_on(round::give_due(&mut second)).expect("told");
    let given = outbox.given();
    for n in 1..=NOTICES {
        let times = given.iter().filter(|given| **given == n).count();
        assert!((1..=2).contains(&times), "{n} was given {times} times");
    }
    assert!(outbox.table.look.rows().is_empty(), "given and still kept");
    drop(second);
    outbox.table.leave(Leaving::Close);
}
