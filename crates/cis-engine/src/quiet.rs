//! A connection that is watched for what comes in; for room to send, only while there is none. A stream of tokio's is always
//! watched for both, and wakes its owner whenever the other side reads, for nothing.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// The connection.
#[derive(Debug)]
pub(crate) struct Quiet {
    stream: AsyncFd<UnixStream>,
    /// The same, while there is no room.
    full: Option<AsyncFd<OwnedFd>>,
}

impl Quiet {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream: watched(stream, Interest::READABLE)?, full: None })
    }
}

#[allow(deprecated, reason = "unsound for a descriptor that changes: what is taken here owns its own")]
fn watched<T: AsRawFd + Into<OwnedFd>>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, interest)
}

impl AsyncRead for Quiet {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.stream.poll_read_ready(cx))?;
            let read = ready.try_io(|stream| stream.get_ref().read(buffer.initialize_unfilled()));
            if let Ok(read) = read {
                return Poll::Ready(read.map(|bytes| buffer.advance(bytes)));
            }
        }
    }
}

impl AsyncWrite for Quiet {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.stream.get_ref().write(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.full = None;
                    return Poll::Ready(written);
                }
            }
            let full = match self.full.take() {
                Some(full) => full,
                None => {
                    let same = OwnedFd::from(self.stream.get_ref().try_clone()?);
                    watched(same, Interest::WRITABLE)?
                }
            };
            let full = self.full.insert(full);
            ready!(full.poll_write_ready(cx))?.clear_ready();
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.get_ref().shutdown(std::net::Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// More than fits between them, both ways at once.
    #[tokio::test]
    async fn what_does_not_fit_waits_for_room() {
        const BYTES: usize = 4 << 20;
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (Quiet::new(one).unwrap(), Quiet::new(other).unwrap());
        let sent: Vec<u8> = (0..BYTES).map(|n| (n % 251) as u8).collect();
        let mut got = vec![0; BYTES];
        for _ in 0..3 {
            let (wrote, read) = tokio::join!(one.write_all(&sent), other.read_exact(&mut got));
            assert!(wrote.is_ok() && read.is_ok() && sent == got);
            assert!(one.full.is_none());
            std::mem::swap(&mut one, &mut other);
        }
    }

    #[tokio::test]
    async fn the_end_is_heard() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (Quiet::new(one).unwrap(), Quiet::new(other).unwrap());
        one.write_all(b"last words").await.unwrap();
        drop(one);
        let mut got = String::new();
        other.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "last words");
        assert!(other.write_all(b"to nobody").await.is_err());
    }
}
