//! An HTTP exchange on a connection of its own, driven by the thread that waits for it: no task is left behind on a
//! runtime, and dropping an exchange closes its connection.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::Shutdown;
use tokio::runtime::Runtime;

use crate::connect::Connected;

/// What an answer holds at most: a definition's worth.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The longest line of a stream.
const LINE_BYTES_MAX: usize = 16 << 20;

/// What is left of an exchange once the head of the answer is there.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    body: Incoming,
    connection: Connection,
    socket: OwnedFd,
}

/// The part of a connection that does the reading and writing.
struct Connection(Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>);

impl Connection {
    /// Waits for `work`, and lets the connection do its part meanwhile.
    async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            // Once it has ended, `work` has what came until then, and what was wrong.
            if self.0.as_mut().is_some_and(|connection| connection.as_mut().poll(cx).is_ready()) {
                self.0 = None;
            }
            work.as_mut().poll(cx)
        })
        .await
    }
}

/// A connection that nothing is under way on.
pub(crate) struct Exchange {
    sender: http1::SendRequest<Full<Bytes>>,
    connection: Connection,
    socket: OwnedFd,
}

impl Exchange {
    pub(crate) async fn open(connected: Connected) -> Result<Self, String> {
        let Connected { transport, socket, .. } = connected;
        let (sender, connection) = http1::handshake(TokioIo::new(transport)).await.map_err(explain)?;
        Ok(Self { sender, connection: Connection(Some(Box::pin(connection))), socket })
    }

    /// Sends a request before the one that matters, and reads the whole answer, of `bytes_max` at most.
    pub(crate) async fn ask(
        &mut self,
        request: Request<Full<Bytes>>,
        bytes_max: usize,
    ) -> Result<(StatusCode, Bytes), String> {
        let response = self.connection.drive(self.sender.send_request(request)).await.map_err(explain)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), bytes_max).collect();
        let body = self.connection.drive(body).await.map_err(|e| e.to_string())?;
        self.connection.drive(self.sender.ready()).await.map_err(explain)?;
        Ok((status, body.to_bytes()))
    }

    /// Sends a request, and waits for the head of its answer.
    pub(crate) async fn send(mut self, request: Request<Full<Bytes>>) -> Result<Answer, String> {
        let response = self.connection.drive(self.sender.send_request(request)).await.map_err(explain)?;
        let (connection, socket) = (self.connection, self.socket);
        Ok(Answer { status: response.status(), body: response.into_body(), connection, socket })
    }
}

/// What went wrong, and what with the system's call below it.
#[allow(clippy::needless_pass_by_value, reason = "handed to `map_err`")]
fn explain(e: hyper::Error) -> String {
    e.source().map_or_else(|| e.to_string(), |source| format!("{e}: {source}"))
}

impl Answer {
    /// The whole of it.
    pub(crate) async fn read(mut self) -> Result<Bytes, String> {
        let body = Limited::new(self.body, ANSWER_BYTES_MAX).collect();
        self.connection.drive(body).await.map(|body| body.to_bytes()).map_err(|e| e.to_string())
    }

    /// Line by line.
    pub(crate) fn lines(self) -> Lines {
        Lines { answer: self, read: Vec::new(), begin: 0, searched: 0 }
    }
}

/// An answer that comes line by line, and may never end.
pub(crate) struct Lines {
    answer: Answer,
    read: Vec<u8>,
    /// Where in `read` the next line begins.
    begin: usize,
    /// Up to where in `read` it does not end.
    searched: usize,
}

impl Lines {
    /// Waits for the next line, without its end; nothing if the answer is over. A last line without an end is none: it may
    /// have been cut off.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            if let Some(length) = self.read[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + length;
                let line = self.read[self.begin..end].trim_ascii_end().to_vec();
                (self.begin, self.searched) = (end + 1, end + 1);
                return Ok(Some(line));
            }
            self.read.drain(..self.begin);
            (self.begin, self.searched) = (0, self.read.len());
            if self.read.len() > LINE_BYTES_MAX {
                return Err("a line of its answer has no end".into());
            }
            let Answer { body, connection, .. } = &mut self.answer;
            let Some(frame) = connection.drive(body.frame()).await else { return Ok(None) };
            // A frame that is no data is a trailer, which says nothing here.
            if let Ok(bytes) = frame.map_err(explain)?.into_data() {
                self.read.extend_from_slice(&bytes);
            }
        }
    }

    /// Keeps the connection open, and reads no further.
    pub(crate) fn hold(self, runtime: Arc<Runtime>) -> Held {
        Held { lines: self, _runtime: runtime }
    }
}

/// An open answer that stands for an ownership: the other side knows by the connection that this side is there. Nothing of
/// it is read. It is closed when this is dropped, and by the kernel when the process ends.
pub struct Held {
    lines: Lines,
    /// What the connection is registered with.
    _runtime: Arc<Runtime>,
}

impl Held {
    /// A way to learn from another thread that the connection is closed.
    pub fn watch(&self) -> io::Result<HeldWatch> {
        self.lines.answer.socket.try_clone().map(HeldWatch)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A watch has the socket open as well; this ends the connection whatever is open.
        let _ = rustix::net::shutdown(&self.lines.answer.socket, Shutdown::Both);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("socket", &self.lines.answer.socket).finish_non_exhaustive()
    }
}

/// Tells when a held connection is closed.
#[derive(Debug)]
pub struct HeldWatch(OwnedFd);

impl HeldWatch {
    /// Blocks until either side has closed the connection.
    pub fn wait_closed(&self) {
        // That there is something to read is no reason to wake: nothing is read.
        let mut socket = [PollFd::new(&self.0, PollFlags::RDHUP)];
        while matches!(poll(&mut socket, None), Ok(0) | Err(rustix::io::Errno::INTR)) {}
    }
}
