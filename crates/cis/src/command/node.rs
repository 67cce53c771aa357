//! `cis node start`.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use cis_core::access::{Caller, Preset};
use cis_core::error::{ErrorCode, Refusal};
use cis_engine::context::Context;
use cis_engine::node::{Host, Node};
use cis_engine::system::user;
use signal_hook::consts::{SIGINT, SIGTERM};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{Failure, Outcome, Setup};

/// How long a published DAG waits for somebody to confirm it.
const PENDING_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// What tasks of a node get from its own environment, beside what the settings name.
const USUAL: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"];

/// Serves until a signal says stop.
pub(super) fn start(setup: &Setup, bind: SocketAddr) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("cis-http")
        .build()
        .map_err(|e| unable("start threads", &e))?;
    // First of all: a port that is taken must not cost anybody a coordinator.
    let listener =
        runtime.block_on(TcpListener::bind(bind)).map_err(|e| unable(&format!("listen on {bind}"), &e))?;
    let bound = listener.local_addr().map_err(|e| unable("listen", &e))?;
    let here = std::env::current_dir().unwrap_or_default();
    let context = Context::of_node(&setup.config.env_pass.value, &USUAL, setup.skill_dirs(&[], &here));
    let host = Host::open(setup.options()?, context)?;
    let token = runtime.block_on(owner_token(host.node()))?;
    let leaving = signals()?;
    anstream::println!("cis node on http://{bound}");
    anstream::eprintln!("data directory: {}", setup.config.data_dir.value.display());
    anstream::eprintln!("owner's token:  {}", token.display());
    let options = cis_server::Options { pending_for: PENDING_FOR };
    let served = runtime.block_on(cis_server::serve(listener, host.node().clone(), options, leaving));
    // Whoever still reads or waits ends with the threads, before the store is closed.
    runtime.shutdown_timeout(Duration::from_secs(5));
    host.close()?;
    served.map_err(|e| unable("serve", &e))?;
    Ok(0)
}

/// Becomes true with SIGINT or SIGTERM.
fn signals() -> Result<watch::Receiver<bool>, Failure> {
    let (say, leaving) = watch::channel(false);
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
        .map_err(|e| unable("listen for signals", &e))?;
    std::thread::Builder::new()
        .name("cis-signals".into())
        .spawn(move || {
            if signals.forever().next().is_some() {
                say.send_replace(true);
            }
        })
        .map_err(|e| unable("listen for signals", &e))?;
    Ok(leaving)
}

/// Where the owner's token is; made at the first start.
async fn owner_token(node: &Node) -> Result<std::path::PathBuf, Failure> {
    let path = node.options().data_dir.admin_token();
    if !path.exists() {
        let owner = Caller::preset(user(), Preset::Owner, None);
        let token = node.create_token(owner, "cis", None).await?;
        write_secret(&path, &token.secret).map_err(|e| unable("write the owner's token", &e))?;
    }
    Ok(path)
}

fn write_secret(path: &Path, secret: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    writeln!(file, "{secret}")?;
    file.sync_all()
}

fn unable(what: &str, e: &std::io::Error) -> Failure {
    let refusal = Refusal::new(ErrorCode::Unavailable, format!("cannot {what}: {e}"));
    match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            refusal.hint("another program listens there; choose another `--bind`")
        }
        _ => refusal,
    }
    .into()
}
