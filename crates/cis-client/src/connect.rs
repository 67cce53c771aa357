//! Connecting: to a node over TCP, with TLS or without, or to the coordinator of a data directory over its Unix socket.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Uri;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::tls;

/// The longest path that the kernel takes as the address of a socket.
const SOCKET_PATH_MAX: usize = 107;

/// Bytes to and from the other side, whatever carries them.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Transport for S {}

/// A new connection.
pub(crate) struct Connected {
    pub(crate) transport: Box<dyn Transport>,
    /// The same socket again, for what is done to it besides reading and writing.
    pub(crate) socket: OwnedFd,
    /// Which address was reached, over TCP.
    pub(crate) peer: Option<SocketAddr>,
}

/// Where a node is.
pub(crate) struct Node {
    pub(crate) base: Uri,
    pub(crate) tls: Option<TlsConnector>,
}

impl Node {
    pub(crate) fn host(&self) -> &str {
        self.base.host().unwrap_or_default()
    }

    pub(crate) fn port(&self) -> u16 {
        self.base.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 })
    }

    /// Where it is dialled: `HOST:PORT`.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host(), self.port())
    }

    /// What the other side of a connection to `peer` has to prove to be at. An address is the one that was reached, whatever the
    /// URL says: behind `localhost` there are two, and a process that listens at one of them could ask the node at the other.
    /// A name is what was dialled: a proxy may answer for it.
    pub(crate) fn proven_address(&self, peer: Option<SocketAddr>) -> String {
        let host = self.host().trim_start_matches('[').trim_end_matches(']');
        let is_address = host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost");
        match peer.filter(|_| is_address) {
            Some(peer) => SocketAddr::new(peer.ip().to_canonical(), peer.port()).to_string(),
            None => self.address(),
        }
    }

    pub(crate) async fn connect(&self) -> io::Result<Connected> {
        let host = self.host().trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port())).await?;
        let (socket, peer) = (stream.as_fd().try_clone_to_owned()?, Some(stream.peer_addr()?));
        let transport: Box<dyn Transport> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = tls::name(host).map_err(io::Error::other)?;
                Box::new(tls.connect(name, stream).await?)
            }
        };
        Ok(Connected { transport, socket, peer })
    }
}

/// Connects to a Unix socket. A stopped process takes no connection once its queue is full; this waits that long at most.
pub(crate) fn unix(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let stream = with_short_path(path, |short| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        match connect(&socket, &SocketAddrUnix::new(short)?) {
            Err(rustix::io::Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
            connected => Ok(connected.map(|()| UnixStream::from(socket))?),
        }
    })?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Makes tokio's of a connection that [`unix`] made; on a runtime.
pub(crate) fn adopt(stream: UnixStream) -> io::Result<Connected> {
    let socket = stream.as_fd().try_clone_to_owned()?;
    Ok(Connected { transport: Box::new(tokio::net::UnixStream::from_std(stream)?), socket, peer: None })
}

/// The process that listens on a Unix socket.
pub(crate) fn peer_pid(path: &Path, patience: Duration) -> io::Result<u32> {
    let peer = sockopt::socket_peercred(unix(path, patience)?)?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(io::Error::other)
}

/// Calls `f` with a path to the same file that is short enough to be the address of a socket.
pub fn with_short_path<T>(path: &Path, f: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= SOCKET_PATH_MAX {
        return f(path);
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return f(path) };
    let dir = File::open(dir)?;
    f(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}
