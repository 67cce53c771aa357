//! The connection to the runner: made when there is something to run, made again when it breaks. Nothing here waits for
//! a runner that does not read: what it does not take is sent when it does.

use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Epoch;
use cis_runner::client;
use cis_runner::directory::Directory;
use cis_runner::frame::{self, Decoder};
use cis_runner::protocol::{FromRunner, Known, OLDEST, PROTOCOL, ToRunner, can_talk};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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
    /// How much of it is sent.
    sent: usize,
    buffer: Box<[u8]>,
    /// What the runner knew of when we came.
    pub(crate) known: Vec<Known>,
    pub(crate) peer: Peer,
}

/// The runner at the other end: who it is, and what can be said to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) pid: u32,
    /// The latest protocol that both sides speak.
    pub(crate) protocol: u32,
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
    /// Connects, starting the runner if there is none. For one that is there and does not answer, it waits: for how long
    /// that is good, the caller says.
    pub(crate) async fn connect(
        machine: &impl Machine<Stream = T>,
        address: &RunnerAddress,
    ) -> Result<Self, Refusal> {
        let mut failures = 0;
        loop {
            match Self::handshake(machine, address).await {
                Ok(link) => return link,
                // It holds its lock, and does not listen yet or again.
                Err(e) if e.kind() == io::ErrorKind::TimedOut => {}
                Err(_) if failures + 1 < HANDSHAKES_MAX => failures += 1,
                Err(e) => {
                    let why = format!("cannot reach the runner: {e}");
                    let log = address.data_dir.join("runner.log");
                    return Err(Refusal::new(ErrorCode::Unavailable, why)
                        .hint(format!("`{}` may say why", log.display())));
                }
            }
        }
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
            sent: 0,
            buffer: vec![0; READ_BYTES].into(),
            known: Vec::new(),
            peer: Peer { pid: 0, protocol: OLDEST },
        };
        let key = std::fs::read_to_string(address.data_dir.join(client::DOOR_KEY)).ok();
        let ours = Directory::at(&address.data_dir).ok();
        let (epoch, slots, directory) = (address.epoch.0, address.slots, ours.clone());
        link.queue(&ToRunner::Hello { protocol: PROTOCOL, oldest: OLDEST, epoch, slots, key, directory });
        link.flush().await?;
        match link.next().await? {
            FromRunner::Welcome { protocol, oldest, attempts, pid, directory, .. }
                if can_talk(protocol, oldest) =>
            {
                // A runner of the first version does not say which directory it serves.
                if let (Some(theirs), Some(ours)) = (directory, ours)
                    && !theirs.is_same(&ours)
                {
                    return Ok(Err(wrong_directory(pid, &theirs, &address.data_dir)));
                }
                link.known = attempts;
                link.peer = Peer { pid, protocol: protocol.min(PROTOCOL) };
                Ok(Ok(link))
            }
            FromRunner::Welcome { protocol, oldest, pid, .. }
            | FromRunner::Unfit { protocol, oldest, pid } => Ok(Err(unfit(protocol, oldest, pid))),
            FromRunner::WrongDirectory { pid, directory } => {
                Ok(Err(wrong_directory(pid, &directory, &address.data_dir)))
            }
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
            let n = poll_fn(|cx| self.poll_exchange(cx)).await?;
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

    /// Sends what is queued, as far as the runner takes it now; the rest leaves while [`RunnerLink::next`] waits.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        cis_fail::point("coordinator.before_send");
        let sent = poll_fn(|cx| match self.poll_send(cx) {
            Poll::Pending => Poll::Ready(Ok(())),
            sent => sent,
        })
        .await;
        cis_fail::point("coordinator.after_send");
        sent
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.outgoing.len() {
            let unsent = &self.outgoing[self.sent..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, unsent))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.sent += n,
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Reads into the buffer; meanwhile sends what is left to send.
    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Err(e)) = self.poll_send(cx) {
            return Poll::Ready(Err(e));
        }
        let mut buffer = ReadBuf::new(&mut self.buffer);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
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

/// What answers in a directory is the runner of another one: of what this one was copied from, say, if its socket was
/// copied as a link.
fn wrong_directory(pid: u32, theirs: &Directory, ours: &Path) -> Refusal {
    let (theirs, ours) = (theirs.path().display(), ours.display());
    let why =
        format!("the runner (process {pid}) that answers in `{ours}` serves another directory, `{theirs}`");
    Refusal::new(ErrorCode::Unavailable, why).hint(format!(
        "remove `{ours}/runner.sock`, so that a runner of its own is started; or use `--data-dir {theirs}`"
    ))
}
