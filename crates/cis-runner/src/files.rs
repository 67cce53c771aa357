//! How many files a process may have open: more for a node that serves many connections, and no more than before for what
//! it starts.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that this process was started with, once it has raised its own.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit of this process to `wanted`, as far as the hard limit lets it. Processes that it starts from then on
/// get the limit it had.
pub fn raise_limit(wanted: u64) -> std::io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let _ = BEFORE.set(limit);
    let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum })?)
}

/// The limit for a process that is started, where it is not this one's own.
pub(crate) fn limit_before() -> Option<Rlimit> {
    BEFORE.get().copied()
}

/// The soft limit for a process that is started, where it is not this one's own.
pub fn soft_limit_before() -> Option<u64> {
    limit_before().and_then(|limit| limit.current)
}
