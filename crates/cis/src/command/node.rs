//! `cis node start`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cis_core::access::{Caller, Preset};
use cis_core::error::{ErrorCode, Refusal};
use cis_engine::context::Context;
use cis_engine::coordinator::Options;
use cis_engine::data_dir::DataDir;
use cis_engine::node::{Host, Node};
use cis_engine::recovery::Recovery;
use cis_engine::retention::{self, Retention};
use cis_engine::session::node_of;
use cis_engine::system::user;
use cis_engine::token::secret_hash;
use cis_runner::serve;
use cis_server::About;
use signal_hook::consts::{SIGINT, SIGTERM};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::notes::{tell_copy, tell_silence};
use super::{Failure, Outcome, Setup, identity, notify};
use crate::config::{Auth, Metrics};

/// What tasks of a node get from its own environment, beside what the settings name.
const USUAL: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"];

/// Serves until a signal says stop.
pub(super) fn start(setup: &Setup, bind: SocketAddr) -> Outcome {
    if trusts_local(setup) && !bind.ip().to_canonical().is_loopback() {
        let why = format!("`auth = \"trusted-local\"` and `--bind {bind}` do not go together");
        return Err(Failure::usage(why).hint(
            "who calls from elsewhere must prove who they are: bind to 127.0.0.1, or use `--auth tokens`",
        ));
    }
    serve::forbid_inspection().map_err(|e| unable("keep other processes out of its memory", &e))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("cis-http")
        .build()
        .map_err(|e| unable("start threads", &e))?;
    let givers = notify::givers(&setup.config.notify)?;
    let notices = notify::wanted(&setup.config.notify, &givers);
    // First of all: a port that is taken must not cost anybody a coordinator.
    let listener = runtime.block_on(TcpListener::bind(bind)).map_err(|e| taken(setup, bind, &e))?;
    let bound = listener.local_addr().map_err(|e| unable("listen", &e))?;
    let context = context(setup, &[]);
    let options = setup.options()?;
    let identity = identity::own(setup, &options.data_dir)?;
    let address = format!("http://{}", reachable(bound));
    tell_copy(setup);
    let host = Host::open(Options { address: Some(address.clone()), notices, ..options }, context)?;
    let token = runtime.block_on(owner_token(host.node()))?;
    let (leave, leaving) = watch::channel(false);
    let leave = Arc::new(leave);
    listen_for_signals(leave.clone())?;
    let mut changes = host.node().changes();
    runtime.spawn(async move {
        while changes.changed().await.is_ok() {}
        // Without its loop a node is none: whoever started it should know.
        leave.send_replace(true);
    });
    say!("cis node on http://{bound}");
    warn(setup);
    let about = runtime.block_on(host.node().about())?;
    if let Some(recovery) = about.recovery.filter(Recovery::took_up) {
        tell!("{recovery}");
    }
    if let Some(silent) = about.runner {
        tell_silence(&silent);
    }
    let data_dir = setup.config.data_dir.value.display();
    let (did, owner_token) = (&identity.did, token.display());
    tracing::info!(%bound, %data_dir, %owner_token, %did, "node started");
    if !givers.is_empty() {
        tracing::info!(to = notify::told(&setup.config.notify), "notifications");
    }
    for giver in givers {
        let complain = |why: &str| tracing::warn!("{why}");
        runtime.spawn(cis_notify::deliver(host.node().clone(), giver, leaving.clone(), complain));
    }
    let retention = Retention {
        max_age: setup.config.max_age.value,
        max_size: setup.config.max_size.value,
        keep: setup.config.keep.value,
    };
    runtime.spawn(retention::retain(host.node().clone(), retention, leaving.clone()));
    let options = cis_server::Options {
        pending_for: setup.config.pending_for.value,
        auto_execute: setup.config.auto_execute.value,
        trusts_local: trusts_local(setup),
        hosts: setup.config.hosts.value.clone(),
        rate: setup.config.rate.value,
        open_metrics: setup.config.metrics.value == Metrics::Open,
        node: About::new(identity.did, address, host.node().now()),
    };
    runtime.block_on(cis_server::serve(listener, host.node().clone(), options, leaving));
    // Whoever still reads or waits ends with the threads, before the store is closed.
    runtime.shutdown_timeout(Duration::from_secs(5));
    host.close()?;
    tracing::info!("node stopped");
    Ok(0)
}

/// What tasks of a node start with, as the settings say it.
pub(super) fn context(setup: &Setup, skill_dirs: &[PathBuf]) -> Context {
    let here = std::env::current_dir().unwrap_or_default();
    Context::of_node(&setup.config.env_pass.value, &USUAL, setup.skill_dirs(skill_dirs, &here))
}

fn trusts_local(setup: &Setup) -> bool {
    setup.config.auth.value == Auth::TrustedLocal
}

/// Where somebody on this machine calls a node that listens at `bound`.
fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

/// Says what this node takes on trust.
fn warn(setup: &Setup) {
    if trusts_local(setup) {
        tell!(
            "warning: auth is `trusted-local`: whatever runs on this machine may call itself by any DID, and publish, \
             work and read; never confirm or administer"
        );
    }
    if setup.config.auto_execute.value {
        tell!("warning: `auto_execute` is on: what is published runs at once, and nobody is asked");
    }
}

/// SIGINT or SIGTERM lets what is under way end; a second one does not wait for it.
fn listen_for_signals(leave: Arc<watch::Sender<bool>>) -> Result<(), Failure> {
    let unable = |e: std::io::Error| unable("listen for signals", &e);
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(unable)?;
    let thread = std::thread::Builder::new().name("cis-signals".into());
    let listening = thread.spawn(move || {
        for (nth, _) in signals.forever().enumerate() {
            leave.send_replace(true);
            if nth > 0 {
                std::process::exit(130);
            }
        }
    });
    listening.map(drop).map_err(unable)
}

/// Where the owner's token is; made at the first start.
async fn owner_token(node: &Node) -> Result<std::path::PathBuf, Failure> {
    let path = node.options().data_dir.admin_token();
    let known = std::fs::read_to_string(&path).ok().map(|secret| secret_hash(secret.trim()));
    let token = match known {
        Some(hash) => node.reader()?.token(&hash)?,
        None => None,
    };
    if !token.is_some_and(|token| token.is_good(node.now())) {
        let owner = Caller::preset(user(), Preset::Owner, None);
        let token = node.create_token(owner, "cis", None).await?;
        write_secret(&path, &token.secret).map_err(|e| unable("write the owner's token", &e))?;
    }
    Ok(path)
}

fn write_secret(path: &Path, secret: &str) -> std::io::Result<()> {
    // Whole or not at all: an empty file would lock the owner out.
    let new = path.with_extension("new");
    let mut file =
        std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    writeln!(file, "{secret}")?;
    file.sync_all()?;
    std::fs::rename(new, path)
}

fn unable(what: &str, e: &std::io::Error) -> Failure {
    Refusal::new(ErrorCode::Unavailable, format!("cannot {what}: {e}")).into()
}

/// A port that cannot be had: most likely by a node that is up already.
fn taken(setup: &Setup, bind: SocketAddr, e: &std::io::Error) -> Failure {
    let unable = unable(&format!("listen on {bind}"), e);
    let serving = || node_of(&DataDir::at(&setup.config.data_dir.value));
    match e.kind() {
        std::io::ErrorKind::AddrInUse => match serving() {
            Some(address) => {
                unable.hint(format!("the node of this data directory is up already, at {address}"))
            }
            None => unable.hint("another program listens there; choose another `--bind`"),
        },
        _ => unable,
    }
}
