//! The connection to the runner: made when there is something to run, made again when it breaks.

use std::io;
use std::path::PathBuf;

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Epoch;
use cis_runner::client;
use cis_runner::frame::{self, Decoder};
use cis_runner::protocol::{FromRunner, Known, OLDEST, PROTOCOL, ToRunner, can_talk};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::machine::Machine;

/// Bytes read from the runner at once: some dozens of outcomes.
const READ_BYTES: usize = 64 << 10;

/// How often a runner that goes just as we come is asked again.
const HANDSHAKES_MAX: u32 = 5;

/// A connection on which the handshake is done.
#[derive(Debug)]
pub(crate) struct RunnerLink<T> {
    stream: T,
    decoder: Decoder,
    outgoing: Vec<u8>,
    buffer: Box<[u8]>,
    /// What the runner knew of when we came.
    pub(crate) known: Vec<Known>,
}

/// How to reach the runner of a data directory.
#[derive(Debug, Clone)]
pub(crate) struct RunnerAddress {
    pub(crate) data_dir: PathBuf,
    /// The program that is also the runner.
    pub(crate) exe: PathBuf,
    pub(crate) epoch: Epoch,
    pub(crate) slots: u32,
}

impl<T: AsyncRead + AsyncWrite + Unpin> RunnerLink<T> {
    /// Connects, starting the runner if there is none.
    pub(crate) async fn connect(
        machine: &impl Machine<Stream = T>,
        address: &RunnerAddress,
    ) -> Result<Self, Refusal> {
        let mut last = None;
        for _ in 0..HANDSHAKES_MAX {
            match Self::handshake(machine, address).await {
                Ok(link) => return link,
                Err(e) => last = Some(e),
            }
        }
        let why = last.map_or_else(String::new, |e| format!(": {e}"));
        Err(Refusal::new(ErrorCode::Unavailable, format!("cannot reach the runner{why}"))
            .hint(format!("`{}` may say why", address.data_dir.join("runner.log").display())))
    }

    /// An outer error is worth another try; an inner one is an answer.
    async fn handshake(
        machine: &impl Machine<Stream = T>,
        address: &RunnerAddress,
    ) -> io::Result<Result<Self, Refusal>> {
        let mut link = Self {
            stream: machine.reach_runner(&address.data_dir, &address.exe).await?,
            decoder: Decoder::new(),
            outgoing: Vec::new(),
            buffer: vec![0; READ_BYTES].into(),
            known: Vec::new(),
        };
        let key = std::fs::read_to_string(address.data_dir.join(client::DOOR_KEY)).ok();
        let (epoch, slots) = (address.epoch.0, address.slots);
        link.queue(&ToRunner::Hello { protocol: PROTOCOL, oldest: OLDEST, epoch, slots, key });
        link.flush().await?;
        match link.next().await? {
            FromRunner::Welcome { protocol, oldest, attempts, .. } if can_talk(protocol, oldest) => {
                link.known = attempts;
                Ok(Ok(link))
            }
            FromRunner::Welcome { protocol, oldest, pid, .. }
            | FromRunner::Unfit { protocol, oldest, pid } => Ok(Err(unfit(protocol, oldest, pid))),
            FromRunner::Refused { epoch } => Ok(Err(Refusal::new(
                ErrorCode::Unavailable,
                format!("the runner serves a later coordinator (epoch {epoch}, ours is {})", address.epoch),
            ))),
            other => Err(io::Error::other(format!("the runner answered Hello with {other:?}"))),
        }
    }

    /// The next message; an error means the connection is gone. Safe to cancel.
    pub(crate) async fn next(&mut self) -> io::Result<FromRunner> {
        loop {
            if let Some(message) = self.pull()? {
                return Ok(message);
            }
            let n = self.stream.read(&mut self.buffer).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.decoder.push(&self.buffer[..n]);
        }
    }

    /// A message that is already here.
    pub(crate) fn pull(&mut self) -> io::Result<Option<FromRunner>> {
        self.decoder.pull().map_err(io::Error::other)
    }

    /// Adds a message to what the next flush sends.
    pub(crate) fn queue(&mut self, message: &ToRunner) {
        // Only a message beyond the frame limit does not encode, and commands are bounded far below it.
        if let Ok(bytes) = frame::encode(message) {
            self.outgoing.extend_from_slice(&bytes);
        }
    }

    /// Sends what is queued.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        cis_fail::point("coordinator.before_send");
        let sent = self.stream.write_all(&self.outgoing).await;
        cis_fail::point("coordinator.after_send");
        self.outgoing.clear();
        sent
    }
}

/// The runner was started by another version of the program, and still has tasks.
fn unfit(protocol: u32, oldest: u32, pid: u32) -> Refusal {
    let why = format!(
        "the runner (process {pid}) understands protocols {oldest} to {protocol}, this `cis` {OLDEST} to {PROTOCOL}"
    );
    Refusal::new(ErrorCode::Unavailable, why)
        .hint("let its tasks end under the `cis` that started it: it then goes by itself, and this one starts its own")
}
