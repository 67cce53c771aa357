//! Commands over `cis.sock`: whoever coordinates a data directory serves every other `cis` process on it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::command::{Command, Reply};
use crate::coordinator::handle::next_look;
use crate::coordinator::{Changes, Handle, Owner};
use crate::data_dir::DataDir;
use crate::token::secret_hash;
use crate::wire;

/// Followers are told of changes at most this often.
const TICK: Duration = Duration::from_millis(20);

/// What a connection may say.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// First on every connection: the data directory's key, so that only those are heard who can read it.
    Key(String),
    Command(Command),
    /// From here on, tell me whenever something changes.
    Follow,
}

/// The listening side. Dropping it stops listening and removes the socket.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Listens in a data directory. Only the holder of its lock may call this: a socket that is already there is a
    /// dead coordinator's.
    pub fn listen(data_dir: &DataDir, handle: Handle) -> io::Result<Self> {
        let (path, key) = (data_dir.socket(), std::fs::read_to_string(data_dir.door_key())?);
        let _ = std::fs::remove_file(&path);
        let listener = bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let accepting = tokio::spawn(accept(listener, handle, key.into()));
        Ok(Self { path, accepting })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        self.accepting.abort();
    }
}

/// Binds a socket however long the path is: the kernel takes 107 bytes, so longer ones go by a directory handle.
fn bind(path: &Path) -> io::Result<UnixListener> {
    crate::client::with_short_path(path, |short| UnixListener::bind(short))
}

async fn accept(listener: UnixListener, handle: Handle, key: Arc<str>) {
    static OWNERS: AtomicU64 = AtomicU64::new(1);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely; those in use will be closed.
            tokio::time::sleep(TICK).await;
            continue;
        };
        let own = rustix::process::getuid().as_raw();
        if stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0) {
            let owner = Owner(OWNERS.fetch_add(1, Ordering::Relaxed));
            tokio::spawn(serve(stream, handle.clone(), key.clone(), owner));
        }
    }
}

async fn serve(mut stream: UnixStream, handle: Handle, key: Arc<str>, owner: Owner) {
    match wire::receive_async(&mut stream).await {
        // By their hashes, so that how long it takes tells nothing.
        Ok(Request::Key(given)) if secret_hash(&given) == secret_hash(&key) => {}
        _ => return,
    }
    while let Ok(request) = wire::receive_async(&mut stream).await {
        match request {
            Request::Command(command) => {
                let reply = handle.call(command, owner).await;
                if wire::send_async(&mut stream, &reply).await.is_err() {
                    break;
                }
            }
            Request::Key(_) => break,
            Request::Follow => {
                let _ = follow(&mut stream, handle.changes()).await;
                break;
            }
        }
    }
    handle.gone(owner).await;
}

async fn follow(stream: &mut UnixStream, mut changes: watch::Receiver<Changes>) -> io::Result<()> {
    loop {
        let seen = *changes.borrow();
        wire::send_async(stream, &Reply::Attached).await?;
        if !next_look(&mut changes, seen, TICK).await {
            return Ok(());
        }
    }
}
