//! Talking to the coordinator of a data directory from another process.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{About, Command, Reply};
use crate::data_dir::DataDir;
use crate::server::Request;
use crate::wire;

/// How long a coordinator may take to say that it is there: longer than any commit.
const HELLO_MAX: Duration = Duration::from_secs(10);

/// Longest path the kernel takes for a socket.
const SOCKET_PATH_MAX: usize = 107;

/// A connection to a coordinator. Runs it attaches end when it is dropped.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects to the coordinator of a data directory; `None` if there is none.
    pub fn connect(data_dir: &DataDir) -> io::Result<Option<Self>> {
        match with_short_path(&data_dir.socket(), |short| UnixStream::connect(short)) {
            Ok(mut stream) => {
                let key = std::fs::read_to_string(data_dir.door_key())?;
                // A coordinator that is just going hears nothing any more; the next call finds that out.
                let _ = wire::send(&mut stream, &Request::Key(key));
                Ok(Some(Self { stream }))
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Does a coordinator answer that means to stay? A process that is stopped accepts connections all the same,
    /// so this waits only for [`HELLO_MAX`].
    pub fn hello(&mut self) -> io::Result<bool> {
        Ok(self.about()?.is_some())
    }

    /// What it says of itself; nothing, if it is going.
    pub fn about(&mut self) -> io::Result<Option<About>> {
        self.stream.set_read_timeout(Some(HELLO_MAX))?;
        let reply = self.call(Command::Hello);
        self.stream.set_read_timeout(None)?;
        Ok(reply?.hello().ok())
    }

    /// Asks and waits for the answer. An error means the coordinator is gone; asking the next one again is safe.
    pub fn call(&mut self, command: Command) -> io::Result<Reply> {
        wire::send(&mut self.stream, &Request::Command(command))?;
        wire::receive(&mut self.stream)
    }

    /// Turns the connection into a stream of changes.
    pub fn follow(mut self) -> io::Result<Changes> {
        wire::send(&mut self.stream, &Request::Follow)?;
        Ok(Changes { stream: self.stream })
    }
}

/// A stream that says whenever something changed.
#[derive(Debug)]
pub struct Changes {
    stream: UnixStream,
}

impl Changes {
    /// Waits for the next change; an error means the coordinator is gone.
    pub fn wait(&mut self) -> io::Result<()> {
        wire::receive::<Reply>(&mut self.stream).map(|_| ())
    }
}

/// Calls `f` with a path to the same file that is short enough for a socket address.
pub(crate) fn with_short_path<T>(path: &Path, f: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= SOCKET_PATH_MAX {
        return f(path);
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return f(path) };
    let dir = File::open(dir)?;
    f(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}
