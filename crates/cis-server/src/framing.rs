//! Requests whose head says twice, or in two ways, where their body ends or for whom they are. A proxy before the node may
//! have read them otherwise, so they are refused. Hyper drops such headers silently, so the bytes are looked at as well:
//!
//! ```text
//!   socket ─► Watched (keeps each head) ─► hyper ─► service: Heads::check, then the router
//! ```

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::http::{HeaderValue, Request, header};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::places::Place;

/// Bytes kept until their request is checked. Hyper reads no further ahead than its own buffer.
const KEPT_BYTES_MAX: usize = 2 * crate::listen::BUFFER_BYTES;

/// Why a request is malformed: beside a request that is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The heads of a connection's requests that have come in and are not checked yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heads(Arc<Mutex<Unchecked>>);

#[derive(Debug, Default)]
struct Unchecked {
    bytes: Vec<u8>,
    /// Bytes still to come that belong to the body of a request that was checked.
    body_left: u64,
    /// There is a whole head among the bytes, which is about to be checked.
    whole: bool,
    /// Where requests begin is known no longer.
    lost: bool,
}

impl Heads {
    /// Takes in what was read; answers as [`Heads::unfinished_bytes`].
    fn add(&self, bytes: &[u8]) -> usize {
        let mut unchecked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unchecked.add(bytes);
        unchecked.unfinished_bytes()
    }

    /// Bytes of a head that has not come in whole.
    pub(crate) fn unfinished_bytes(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).unfinished_bytes()
    }

    /// Checks the next request, which hyper has just read. Once one is chunked, the connection must take no other: where
    /// its body ends is for hyper to know.
    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<(), Malformed> {
        let mut unchecked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let head = unchecked.take_head(request.method().as_str());
        let is_chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
        if is_chunked {
            unchecked.lose_track();
        } else {
            let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
            unchecked.skip(length.and_then(|length| length.parse().ok()).unwrap_or(0));
        }
        let head = head.ok_or(Malformed("its head cannot be checked on this connection"))?;
        check_head(&head)?;
        check_meaning(request)
    }
}

impl Unchecked {
    fn add(&mut self, bytes: &[u8]) {
        let body = usize::try_from(self.body_left).unwrap_or(usize::MAX).min(bytes.len());
        self.body_left -= body as u64;
        if !self.lost {
            // An empty line may have begun with what was there before.
            let new = self.bytes.len().saturating_sub(2);
            self.bytes.extend_from_slice(&bytes[body..]);
            self.whole = self.whole || has_empty_line(&self.bytes[new..]);
        }
        if self.bytes.len() > KEPT_BYTES_MAX {
            self.lose_track();
        }
    }

    /// The first head, without the empty lines that may stand before it.
    fn take_head(&mut self, method: &str) -> Option<Vec<u8>> {
        let begin = self.bytes.iter().position(|b| !matches!(b, b'\r' | b'\n'))?;
        let mut end = begin;
        for line in self.bytes[begin..].split_inclusive(|b| *b == b'\n') {
            end += line.len();
            if matches!(line, b"\n" | b"\r\n") {
                let rest = self.bytes.split_off(end);
                let head = std::mem::replace(&mut self.bytes, rest).split_off(begin);
                if head.starts_with(method.as_bytes()) {
                    return Some(head);
                }
                break;
            }
        }
        self.lose_track();
        None
    }

    /// Leaves out so many bytes, which are a body.
    fn skip(&mut self, length: u64) {
        let here = usize::try_from(length).unwrap_or(usize::MAX).min(self.bytes.len());
        self.bytes.drain(..here);
        self.whole = has_empty_line(&self.bytes);
        self.body_left = length - here as u64;
        if self.bytes.is_empty() {
            // A connection that waits for its next request keeps nothing.
            self.bytes = Vec::new();
        }
    }

    fn lose_track(&mut self) {
        *self = Self { lost: true, ..Self::default() };
    }

    fn unfinished_bytes(&self) -> usize {
        if self.whole { 0 } else { self.bytes.len() }
    }
}

/// Does a head end here?
fn has_empty_line(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|two| two == b"\n\n") || bytes.windows(3).any(|three| three == b"\n\r\n")
}

fn check_head(head: &[u8]) -> Result<(), Malformed> {
    let count = |wanted: &str| {
        let names = head.split(|b| *b == b'\n').skip(1).filter_map(|line| line.split(|b| *b == b':').next());
        names.filter(|name| name.eq_ignore_ascii_case(wanted.as_bytes())).count()
    };
    if count("authorization") > 1 {
        return Err(Malformed("there is more than one `Authorization`"));
    }
    match (count("host"), count("content-length"), count("transfer-encoding")) {
        (2.., ..) => Err(Malformed("there is more than one `Host`")),
        (_, 2.., _) => Err(Malformed("there is more than one `Content-Length`")),
        (.., 2..) => Err(Malformed("there is more than one `Transfer-Encoding`")),
        (_, 1, 1) => Err(Malformed("there are both `Content-Length` and `Transfer-Encoding`")),
        _ => Ok(()),
    }
}

/// What is said once and could still be taken in two ways: an encoding that hyper does not undo, and an address in the
/// request line that is not the `Host`.
fn check_meaning<B>(request: &Request<B>) -> Result<(), Malformed> {
    let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
    if header(header::TRANSFER_ENCODING).is_some_and(|coding| !coding.eq_ignore_ascii_case(b"chunked")) {
        return Err(Malformed("`Transfer-Encoding` is not `chunked`"));
    }
    let named = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    if named.is_some_and(|named| header(header::HOST).is_none_or(|host| !host.eq_ignore_ascii_case(named))) {
        return Err(Malformed("the address of the request is not its `Host`"));
    }
    Ok(())
}

/// A connection whose incoming bytes are kept in [`Heads`] too.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    pub(crate) stream: S,
    pub(crate) heads: Heads,
    pub(crate) place: Place,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        if read.is_pending() {
            self.place.note_silence();
        }
        ready!(read)?;
        let kept = self.heads.add(&into.filled()[before..]);
        if !self.place.hold_head(kept) {
            return Poll::Ready(Err(io::Error::other("long heads take up too much")));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, headers: &[(&str, &str)]) -> Request<()> {
        let request = Request::builder().method(method).uri("/");
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(()).unwrap()
    }

    #[test]
    fn pipelined_requests_are_checked_one_by_one() {
        let heads = Heads::default();
        let (plain, long) = (request("GET", &[]), request("POST", &[("content-length", "9")]));
        let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\nPOST / HTTP/1.1\nhost: a\nContent-Length: 9\n\nHost:\nHo\r\n\
                    GET / HTTP/1.1\r\nHost: a\r\nhOST: b\r\n\r\n";
        // However the bytes come in.
        for byte in text.as_bytes() {
            heads.add(&[*byte]);
        }
        assert!(heads.check(&plain).is_ok() && heads.check(&long).is_ok());
        assert_eq!(heads.check(&plain).unwrap_err().0, "there is more than one `Host`");
    }

    #[test]
    fn bodies_that_come_later_are_no_heads() {
        let heads = Heads::default();
        heads.add(b"POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\nab");
        assert!(heads.check(&request("POST", &[("content-length", "6")])).is_ok());
        heads.add(b"\r\n\r\nGET / HTTP/1.1\r\nContent-Length: 0\r\ncontent-length: 0\r\n\r\n");
        let twice = heads.check(&request("GET", &[("content-length", "0")]));
        assert_eq!(twice.unwrap_err().0, "there is more than one `Content-Length`");
    }

    #[test]
    fn after_a_chunked_request_no_other_chunked_one_is_taken() {
        let (heads, chunked) = (Heads::default(), request("POST", &[("transfer-encoding", "chunked")]));
        let head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        heads.add(head);
        assert!(heads.check(&chunked).is_ok());
        heads.add(head);
        assert!(heads.check(&chunked).is_err());
    }

    #[test]
    fn bytes_of_a_head_count_until_it_has_come_in_whole() {
        let heads = Heads::default();
        assert_eq!(heads.add(b"POST / HTTP/1.1\r\nContent-Length: 6\r\n"), 36);
        assert_eq!((heads.add(b"\r"), heads.add(b"\nabc")), (37, 0), "what follows is its body");
        assert!(heads.check(&request("POST", &[("content-length", "6")])).is_ok());
        assert_eq!(heads.add(b"defGET /"), 5, "and then comes the next head");
        assert_eq!(heads.unfinished_bytes(), 5);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let heads = Heads::default();
        for _ in 0..1_000 {
            heads.add(&[b'x'; 1_024]);
        }
        let unchecked = heads.0.lock().unwrap();
        assert!(unchecked.lost && unchecked.bytes.is_empty());
    }
}
