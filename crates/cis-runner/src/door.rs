//! The runner's side of `runner.sock`: who may come in, bytes in, bytes out. What the messages mean is decided
//! elsewhere.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::frame::{self, Decoder, FrameError};
use crate::protocol::ToRunner;

/// The socket's name in the data directory.
pub(crate) const SOCKET: &str = "runner.sock";

/// A path to `name` in an open directory, short enough for a socket address however deep the directory is.
pub(crate) fn short_path(directory: BorrowedFd<'_>, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

/// The socket, open.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    /// Device and inode of the file it is reached by.
    file: (u64, u64),
}

impl Listener {
    /// Opens the socket in a directory whose lock the caller holds: a socket that is there is stale.
    pub(crate) fn open(directory: BorrowedFd<'_>) -> io::Result<Listener> {
        let path = short_path(directory, SOCKET);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        socket.set_nonblocking(true)?;
        let meta = fs::symlink_metadata(&path)?;
        Ok(Listener { socket, file: (meta.dev(), meta.ino()) })
    }

    /// Can it still be reached, or was its file removed or replaced?
    pub(crate) fn is_reachable(&self, directory: BorrowedFd<'_>) -> bool {
        let file = fs::symlink_metadata(short_path(directory, SOCKET));
        file.is_ok_and(|meta| (meta.dev(), meta.ino()) == self.file)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Takes the next connection of our own user; others are closed unheard.
pub(crate) fn accept(listener: &Listener) -> io::Result<Option<UnixStream>> {
    let stream = match listener.socket.accept() {
        Ok((stream, _)) => stream,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    };
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if peer.uid != rustix::process::geteuid() {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "peer is another user"));
    }
    stream.set_nonblocking(true)?;
    Ok(Some(stream))
}

/// Opens a directory only to name things in it.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(File::open(path)?.into())
}

/// One coordinator's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: u64,
    stream: UnixStream,
    decoder: Decoder,
    /// Frames not yet taken by the peer; bounded by the outcomes it has not acknowledged.
    out: Vec<u8>,
    sent: usize,
    /// Whether the loop waits for room to write.
    pub(crate) waits_to_write: bool,
    /// Close as soon as everything is sent.
    pub(crate) closing: bool,
}

/// How much is read from a connection before others get their turn.
const READ_BYTES: usize = 256 << 10;

impl Connection {
    pub(crate) fn new(id: u64, stream: UnixStream) -> Connection {
        Connection {
            id,
            stream,
            decoder: Decoder::new(),
            out: Vec::new(),
            sent: 0,
            waits_to_write: false,
            closing: false,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reads what is there; false when the peer has closed.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut total = 0;
        while total < READ_BYTES {
            match self.stream.read(buffer) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    self.decoder.push(&buffer[..n]);
                    total += n;
                    if n < buffer.len() {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    pub(crate) fn message(&mut self) -> Result<Option<ToRunner>, FrameError> {
        self.decoder.pull()
    }

    /// Queues one frame.
    pub(crate) fn say(&mut self, json: &str) -> Result<(), FrameError> {
        self.out.extend_from_slice(&frame::header(json.len())?);
        self.out.extend_from_slice(json.as_bytes());
        Ok(())
    }

    /// Is there anything it has not been sent yet?
    pub(crate) fn has_unsent(&self) -> bool {
        !self.out.is_empty()
    }

    /// Sends what the peer takes; true when nothing is left.
    pub(crate) fn send(&mut self) -> io::Result<bool> {
        if self.out.is_empty() {
            return Ok(true);
        }
        cis_fail::point("runner.before_tell");
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        cis_fail::point("runner.after_tell");
        self.out.clear();
        self.out.shrink_to(READ_BYTES);
        self.sent = 0;
        Ok(true)
    }
}
