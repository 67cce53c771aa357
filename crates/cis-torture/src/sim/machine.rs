//! A machine that is made up: its clocks go as they are told, its chance comes from a seed, and what is sent to the runner
//! lies in a pipe until somebody decides that it arrives.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use cis_core::source::{BootTime, Clock, Millis, Random, Timestamp};
use cis_engine::machine::Machine;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::chance::Chance;

/// Where the clocks of a world begin: on a Tuesday in 2027, an hour after the machine was started.
const WALL_MS: i64 = 1_800_000_000_000;
const BOOT_MS: i64 = 3_600_000;

/// Whoever may let others go first does so once in so many times, while that is allowed.
const HESITATES_ONE_IN: u64 = 6;

/// The machine. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct MadeUp(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    /// What people set.
    wall: AtomicI64,
    /// Goes on while the machine sleeps.
    boot: AtomicI64,
    /// Does not: timers are measured by it.
    awake: AtomicI64,
    boots: AtomicI64,
    chance: Mutex<Chance>,
    hesitates: AtomicBool,
    /// Connections the runner has not taken in.
    door: Mutex<Vec<Pipe>>,
}

impl MadeUp {
    pub(super) fn new(chance: Chance) -> Self {
        Self(Arc::new(Parts {
            wall: WALL_MS.into(),
            boot: BOOT_MS.into(),
            awake: 0.into(),
            boots: 1.into(),
            chance: Mutex::new(chance),
            hesitates: true.into(),
            door: Mutex::default(),
        }))
    }

    /// Time goes by, for every clock.
    pub(super) fn pass(&self, ms: i64) {
        self.0.awake.fetch_add(ms, Ordering::Relaxed);
        self.sleep(ms);
    }

    /// The machine sleeps that long.
    pub(super) fn sleep(&self, ms: i64) {
        self.0.boot.fetch_add(ms, Ordering::Relaxed);
        self.set(ms);
    }

    /// Somebody sets the clock on the wall that much forwards, or back.
    pub(super) fn set(&self, ms: i64) {
        self.0.wall.fetch_add(ms, Ordering::Relaxed);
    }

    /// It was off for a while, and is started again.
    pub(super) fn restart(&self, off_ms: i64) {
        self.0.boots.fetch_add(1, Ordering::Relaxed);
        self.0.boot.store(BOOT_MS / 1_000, Ordering::Relaxed);
        self.set(off_ms);
        locked(&self.0.door).clear();
    }

    pub(super) fn awake(&self) -> i64 {
        self.0.awake.load(Ordering::Relaxed)
    }

    pub(super) fn boot_ms(&self) -> i64 {
        self.since_boot().0
    }

    pub(super) fn wall_ms(&self) -> i64 {
        self.now().0
    }

    /// From now on everybody does at once what is to be done.
    pub(super) fn settle_down(&self) {
        self.0.hesitates.store(false, Ordering::Relaxed);
    }

    /// Lets others go first, perhaps, for a while.
    pub(super) async fn hesitate(&self) {
        let hesitates = self.0.hesitates.load(Ordering::Relaxed);
        let mut turns = match hesitates && locked(&self.0.chance).one_in(HESITATES_ONE_IN) {
            true => 1 + locked(&self.0.chance).below(3),
            false => 0,
        };
        std::future::poll_fn(|_| {
            if turns == 0 || !self.0.hesitates.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            turns -= 1;
            Poll::Pending
        })
        .await;
    }

    /// Those who wait to be let in.
    pub(super) fn knocking(&self) -> Vec<Pipe> {
        std::mem::take(&mut locked(&self.0.door))
    }

    pub(super) fn is_knocked(&self) -> bool {
        !locked(&self.0.door).is_empty()
    }
}

impl Clock for MadeUp {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.wall.load(Ordering::Relaxed))
    }

    fn since_boot(&self) -> BootTime {
        BootTime(self.0.boot.load(Ordering::Relaxed))
    }
}

impl Random for MadeUp {
    fn bits(&self) -> u64 {
        locked(&self.0.chance).bits()
    }
}

impl Machine for MadeUp {
    type Stream = Stream;

    fn boot_id(&self) -> String {
        format!("boot-{}", self.0.boots.load(Ordering::Relaxed))
    }

    async fn pause(&self, time: Millis) {
        let until = self.awake().saturating_add_unsigned(time.0);
        std::future::poll_fn(|_| if self.awake() >= until { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    async fn reach_runner(&self, _: &Path, _: &Path) -> io::Result<Stream> {
        self.hesitate().await;
        let pipe = Pipe::default();
        locked(&self.0.door).push(pipe.clone());
        Ok(Stream(pipe))
    }
}

/// Both directions of a connection. What is in it has arrived.
#[derive(Debug, Clone, Default)]
pub(super) struct Pipe(Arc<Mutex<Ends>>);

#[derive(Debug, Default)]
struct Ends {
    to_runner: Vec<u8>,
    to_coordinator: Vec<u8>,
    coordinator_gone: bool,
    runner_gone: bool,
}

impl Pipe {
    /// What the coordinator has said, and whether it is still there.
    pub(super) fn take(&self) -> (Vec<u8>, bool) {
        let mut ends = locked(&self.0);
        (std::mem::take(&mut ends.to_runner), !ends.coordinator_gone)
    }

    /// Is there anything to hear from the coordinator, be it that it has gone?
    pub(super) fn has_news(&self) -> bool {
        let ends = locked(&self.0);
        !ends.to_runner.is_empty() || ends.coordinator_gone
    }

    pub(super) fn give(&self, bytes: &[u8]) {
        locked(&self.0).to_coordinator.extend_from_slice(bytes);
    }

    /// The runner's end is closed.
    pub(super) fn close(&self) {
        locked(&self.0).runner_gone = true;
    }
}

/// The coordinator's end of a pipe.
#[derive(Debug)]
pub(super) struct Stream(Pipe);

impl Drop for Stream {
    fn drop(&mut self) {
        locked(&self.0.0).coordinator_gone = true;
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut ends = locked(&self.0.0);
        if ends.to_coordinator.is_empty() {
            return if ends.runner_gone { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let count = ends.to_coordinator.len().min(into.remaining());
        into.put_slice(&ends.to_coordinator[..count]);
        ends.to_coordinator.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut ends = locked(&self.0.0);
        if ends.runner_gone {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ends.to_runner.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// One thread does everything: nobody can have panicked while holding it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
