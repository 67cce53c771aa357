//! What a coordinator finds around it: time, chance, and the way to its runner. The loop asks nobody else for any of them,
//! so a simulation can stand in for all of them and have it all again.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use cis_core::source::{BootTime, Clock, Millis, Random, Timestamp};
use cis_runner::client::{self, RunnerProcess};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use crate::quiet::Quiet;
use crate::system::{self, System};

/// The machine a coordinator runs on.
pub trait Machine: Clock + Random + 'static {
    /// A connection to the runner.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send;

    /// Identifies this boot of the machine.
    fn boot_id(&self) -> String;

    /// Waits. The time the machine itself sleeps meanwhile may not count.
    fn pause(&self, time: Millis) -> impl Future<Output = ()> + Send;

    /// Connects to the runner of `data_dir`, which is also `exe`; starts it if there is none.
    fn reach_runner(
        &self,
        data_dir: &Path,
        exe: &Path,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// The process of the runner of `data_dir`, as far as it can be told without asking it.
    fn find_runner(&self, _data_dir: &Path) -> Option<RunnerProcess> {
        None
    }
}

/// The machine this process runs on.
#[derive(Debug, Default)]
pub(crate) struct Real {
    /// A connection that was begun before anybody asked for it.
    early: Mutex<Option<Connecting>>,
}

impl Real {
    /// Begins to connect to the runner of `data_dir`, for whoever will soon ask for it.
    pub(crate) fn reaching(data_dir: &Path, exe: &Path) -> Self {
        Self { early: Mutex::new(Some(connecting(data_dir, exe))) }
    }
}

impl Clock for Real {
    fn now(&self) -> Timestamp {
        System.now()
    }

    fn since_boot(&self) -> BootTime {
        System.since_boot()
    }
}

impl Random for Real {
    fn bits(&self) -> u64 {
        System.bits()
    }
}

impl Machine for Real {
    type Stream = Quiet;

    fn boot_id(&self) -> String {
        system::boot_id()
    }

    async fn pause(&self, time: Millis) {
        tokio::time::sleep(std::time::Duration::from_millis(time.0)).await;
    }

    async fn reach_runner(&self, data_dir: &Path, exe: &Path) -> io::Result<Quiet> {
        let early = self.early.lock().unwrap_or_else(PoisonError::into_inner).take();
        let connecting = early.unwrap_or_else(|| connecting(data_dir, exe));
        Quiet::new(connecting.await.map_err(io::Error::other)??)
    }

    fn find_runner(&self, data_dir: &Path) -> Option<RunnerProcess> {
        client::find_runner(data_dir)
    }
}

/// A connection that is being made.
type Connecting = oneshot::Receiver<io::Result<UnixStream>>;

/// On a thread that nobody waits for: a runner that does not answer holds up only those who ask for it.
fn connecting(data_dir: &Path, exe: &Path) -> Connecting {
    let (data_dir, exe) = (data_dir.to_owned(), exe.to_owned());
    let (made, connecting) = oneshot::channel();
    let connect = move || drop(made.send(client::connect_or_spawn(&data_dir, &exe)));
    // Without a thread it is dropped, and whoever waits hears that.
    let _ = std::thread::Builder::new().name("cis-reach".into()).spawn(connect);
    connecting
}
