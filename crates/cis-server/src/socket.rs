//! The API on the Unix socket of a data directory: the process that coordinates it serves every other `cis` process there.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use cis_engine::coordinator::Owner;
use cis_engine::data_dir::with_short_path;
use cis_engine::system::{is_own_user, soft_file_limit};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::listen::{Peer, connection};
use crate::places::{Capacity, Places};
use crate::{Server, route};

/// After an accept that failed (most likely no file descriptor is left), so that it is not tried without end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The listening side. Dropping it stops listening and removes the socket.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// Which file it made there: a successor's is left alone.
    inode: u64,
    accepting: JoinHandle<()>,
}

impl Socket {
    /// Listens at `path`, on the runtime that it is called in. Only the holder of the data directory's lock may call this: a
    /// socket that is already there is a dead coordinator's. What serves the calls is made with `server` for the first
    /// connection: most coordinators never get one.
    pub fn listen(path: &Path, server: impl FnOnce() -> Server + Send + 'static) -> io::Result<Self> {
        let _ = std::fs::remove_file(path);
        let listener = with_short_path(path, |short| UnixListener::bind(short))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let inode = std::fs::metadata(path)?.ino();
        Ok(Self { path: path.to_owned(), inode, accepting: tokio::spawn(accept(listener, server)) })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if std::fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
        self.accepting.abort();
    }
}

async fn accept(listener: UnixListener, server: impl FnOnce() -> Server) {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
    let (mut server, served) = (Some(server), OnceLock::<(Router, Server)>::new());
    let places = Places::new(Capacity::of_socket(soft_file_limit()));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            places.evict_one();
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if !stream.peer_cred().is_ok_and(|peer| is_own_user(peer.uid())) {
            continue;
        }
        if let Some(make) = server.take() {
            let server = make();
            let _ = served.set((route::router(server.state.clone(), true), server.clone()));
            tokio::spawn(async move { server.attend().await });
        }
        let Some((router, server)) = served.get() else { return };
        let peer = Peer::Socket(Owner(CONNECTIONS.fetch_add(1, Ordering::Relaxed)));
        // Commands of the owner wait for one another.
        let place = places.wait_for_place().await;
        tokio::spawn(connection(stream, peer, place, router.clone(), server.state.leaving.clone()));
    }
}
