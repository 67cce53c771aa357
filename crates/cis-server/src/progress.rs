//! A peer that takes its answers: one that takes nothing for [`STALLED_TIME_MAX`], or less than [`SLOWEST_RATE`] once it is
//! behind, is dropped, and with its connection all that waits for it. A peer that there is nothing to tell is left in peace.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// How long a peer may take nothing of an answer, or send nothing of a body.
pub(crate) const STALLED_TIME_MAX: Duration = Duration::from_secs(30);

/// Bytes a second that a peer takes, or sends, at least: a little now and then is as good as nothing.
pub(crate) const SLOWEST_RATE: u64 = 32 << 10;

/// How much longer a transfer may take for the bytes that have been moved.
pub(crate) fn time_earned(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1_000) / SLOWEST_RATE)
}

/// A stream whose peer has to take what is written to it.
#[derive(Debug)]
pub(crate) struct Progress<S> {
    stream: S,
    /// Not for the owner on the socket: one that is stopped keeps what it has started.
    is_required: bool,
    behind: Option<Behind>,
}

/// The peer has not taken all that was written.
#[derive(Debug)]
struct Behind {
    since: Instant,
    taken: u64,
    until: Pin<Box<Sleep>>,
}

impl Behind {
    fn begin() -> Self {
        let since = Instant::now();
        Self { since, taken: 0, until: Box::pin(sleep_until(since + STALLED_TIME_MAX)) }
    }

    fn advance(&mut self, bytes: usize) {
        self.taken += bytes as u64;
        let by_rate = self.since + STALLED_TIME_MAX + time_earned(self.taken);
        self.until.as_mut().reset(by_rate.min(Instant::now() + STALLED_TIME_MAX));
    }
}

impl<S> Progress<S> {
    pub(crate) fn new(stream: S, is_required: bool) -> Self {
        Self { stream, is_required, behind: None }
    }

    /// Notes what became of a write.
    fn watch(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Pending if self.is_required => {
                let behind = self.behind.get_or_insert_with(Behind::begin);
                match behind.until.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                    Poll::Pending => Poll::Pending,
                }
            }
            Poll::Ready(Ok(bytes)) => {
                if let Some(behind) = &mut self.behind {
                    behind.advance(bytes);
                }
                wrote
            }
            _ => wrote,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Progress<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Progress<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.watch(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Hyper flushes when all that it had to write is written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.behind = None;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::sleep;

    use super::*;

    const PIPE_BYTES: usize = 1 << 10;

    /// How long writing `bytes` is tried while the peer reads `step` of them every `pause`.
    async fn write_for(bytes: usize, step: usize, pause: Duration) -> (io::Result<()>, Duration) {
        let (ours, mut theirs) = duplex(PIPE_BYTES);
        let reading = tokio::spawn(async move {
            let mut piece = vec![0; step];
            loop {
                sleep(pause).await;
                if step > 0 && theirs.read(&mut piece).await.is_ok_and(|read| read == 0) {
                    return;
                }
            }
        });
        let (mut stream, began) = (Progress::new(ours, true), Instant::now());
        let wrote = async { stream.write_all(&vec![0; bytes]).await };
        let wrote = wrote.await;
        reading.abort();
        (wrote, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn peer_that_takes_nothing_is_dropped() {
        let (wrote, took) = write_for(1 << 20, 0, Duration::from_secs(1)).await;
        assert_eq!(wrote.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(took.as_secs(), STALLED_TIME_MAX.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn peer_that_takes_a_little_now_and_then_is_dropped() {
        let (wrote, took) = write_for(1 << 20, 1, Duration::from_secs(10)).await;
        assert_eq!(wrote.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(took < 2 * STALLED_TIME_MAX, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_peer_that_keeps_taking_is_waited_for() {
        let (wrote, took) = write_for(8 << 20, 64 << 10, Duration::from_millis(20)).await;
        assert!(wrote.is_ok() && took > 2 * STALLED_TIME_MAX, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn peer_that_stops_after_taking_much_is_dropped() {
        let (ours, mut theirs) = duplex(PIPE_BYTES);
        let mut stream = Progress::new(ours, true);
        let reading = async {
            theirs.read_exact(&mut vec![0; 4 << 20]).await.unwrap();
            Instant::now()
        };
        let all = vec![0; 8 << 20];
        let (wrote, stopped) = tokio::join!(stream.write_all(&all), reading);
        assert_eq!(wrote.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(stopped.elapsed().as_secs(), STALLED_TIME_MAX.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn peer_with_nothing_to_take_is_left_in_peace() {
        let (ours, mut theirs) = duplex(PIPE_BYTES);
        let mut stream = Progress::new(ours, true);
        for _ in 0..3 {
            let (wrote, _) = tokio::join!(
                async {
                    stream.write_all(&[0; 2 * PIPE_BYTES]).await?;
                    stream.flush().await
                },
                async {
                    sleep(STALLED_TIME_MAX / 2).await;
                    theirs.read_exact(&mut [0; 2 * PIPE_BYTES]).await.unwrap();
                }
            );
            wrote.unwrap();
            sleep(10 * STALLED_TIME_MAX).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_owner_is_waited_for() {
        let (ours, mut theirs) = duplex(PIPE_BYTES);
        let mut stream = Progress::new(ours, false);
        let all = [0; 4 * PIPE_BYTES];
        let (wrote, _) = tokio::join!(stream.write_all(&all), async {
            sleep(100 * STALLED_TIME_MAX).await;
            theirs.read_exact(&mut [0; 4 * PIPE_BYTES]).await.unwrap();
        });
        wrote.unwrap();
    }
}
