//! What a coordinator finds around it: time, chance, and the way to its runner. The loop asks nobody else for any of them,
//! so a simulation can stand in for all of them and have it all again.

use std::io;
use std::path::Path;

use cis_core::source::{Clock, Millis, Random};
use cis_runner::client;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use crate::system::{self, System};

/// The machine a coordinator runs on.
pub trait Machine: Clock + Random {
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
}

impl Machine for System {
    type Stream = UnixStream;

    fn boot_id(&self) -> String {
        system::boot_id()
    }

    async fn pause(&self, time: Millis) {
        tokio::time::sleep(std::time::Duration::from_millis(time.0)).await;
    }

    async fn reach_runner(&self, data_dir: &Path, exe: &Path) -> io::Result<UnixStream> {
        let (data_dir, exe) = (data_dir.to_owned(), exe.to_owned());
        let connect = move || client::connect_or_spawn(&data_dir, &exe);
        let stream = tokio::task::spawn_blocking(connect).await.map_err(io::Error::other)??;
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    }
}
