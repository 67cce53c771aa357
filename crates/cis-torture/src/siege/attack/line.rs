//! An attacker's connection: it sends whatever it is given, reads as little as it likes, and never waits for long.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};

use super::Attacker;

/// Longer than this no attacker waits for anything, so that all of them end when the attack does.
const PATIENCE: Duration = Duration::from_secs(5);

/// As small as the kernel allows: what is not read stays with the node.
const SMALL_BUFFER: usize = 2048;

/// No answer is read further than this.
const ANSWER_MAX: u64 = 64 << 20;

/// A connection to the node.
#[derive(Debug)]
pub(super) struct Line(BufReader<TcpStream>);

/// Ready to be sent: head and body.
pub(super) fn request(method: &str, path: &str, token: &str, body: &[u8]) -> Vec<u8> {
    let authorization = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

impl Line {
    pub(super) fn open(attacker: &Attacker<'_>) -> io::Result<Self> {
        Self::counted(attacker, TcpStream::connect_timeout(&attacker.plan.node, PATIENCE)?)
    }

    /// With a receive buffer so small that an answer which is not read stays with the node.
    pub(super) fn open_narrow(attacker: &Attacker<'_>) -> io::Result<Self> {
        let narrow = |node: &SocketAddr| -> io::Result<OwnedFd> {
            let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            sockopt::set_socket_recv_buffer_size(&fd, SMALL_BUFFER)?;
            connect(&fd, node)?;
            Ok(fd)
        };
        Self::counted(attacker, narrow(&attacker.plan.node)?.into())
    }

    fn counted(attacker: &Attacker<'_>, stream: TcpStream) -> io::Result<Self> {
        attacker.connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // Closed with a reset: a port that is kept for a minute after each would soon be the last, for good callers too.
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(super) fn send(&mut self, attacker: &Attacker<'_>, bytes: &[u8]) -> io::Result<()> {
        attacker.count(bytes.len());
        self.0.get_mut().write_all(bytes)
    }

    /// Sends as much as the node takes at once, and does not mind how little that is.
    pub(super) fn send_without_waiting(&mut self, attacker: &Attacker<'_>, bytes: &[u8]) -> io::Result<()> {
        attacker.count(bytes.len());
        let stream = self.0.get_mut();
        stream.set_nonblocking(true)?;
        let sent = stream.write(bytes);
        stream.set_nonblocking(false)?;
        match sent {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(()),
        }
    }

    /// Has the node closed it, whatever there still is to read?
    pub(super) fn is_closed(&self) -> bool {
        let end = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::new(self.0.get_ref(), end)];
        poll(&mut fds, Some(&Timespec::default())).map_or(true, |_| fds[0].revents().intersects(end))
    }

    /// Is there something to read?
    pub(super) fn has_answer(&self) -> bool {
        let mut fds = [PollFd::new(self.0.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Reads so many bytes of what is there, without waiting.
    pub(super) fn sip(&mut self, bytes: usize) {
        let stream = self.0.get_mut();
        let _ = stream.set_nonblocking(true);
        let _ = stream.read(&mut vec![0; bytes]);
        let _ = stream.set_nonblocking(false);
    }

    /// Reads one whole answer with a length; its status and body.
    pub(super) fn answer(&mut self) -> io::Result<(u16, Vec<u8>)> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("no status"))?;
        let mut length: Option<u64> = None;
        loop {
            line.clear();
            self.0.read_line(&mut line)?;
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().ok();
                }
                Some(_) => {}
                None => break,
            }
        }
        let Some(length) = length.filter(|length| *length <= ANSWER_MAX) else {
            return Err(io::Error::other("an answer without an end"));
        };
        let mut body = Vec::new();
        (&mut self.0).take(length).read_to_end(&mut body)?;
        Ok((status, body))
    }

    /// Reads whatever comes, up to so many bytes, until it ends or nothing comes any more.
    pub(super) fn drain(&mut self, limit: u64) -> u64 {
        io::copy(&mut (&mut self.0).take(limit), &mut io::sink()).unwrap_or(0)
    }
}
