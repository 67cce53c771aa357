//! Why a runner could not serve.

use std::io;
use std::path::PathBuf;

/// What stops a runner from serving its data directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is one per data directory; this one is not needed.
    #[error("another runner serves `{}`", .0.display())]
    AlreadyRunning(PathBuf),
    #[error("cannot {what}: {source}")]
    Io { what: String, source: io::Error },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Io { what: what.into(), source: source.into() }
    }
}
