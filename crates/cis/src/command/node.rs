//! `cis node start`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cis_api::node::{CoordinatorKind, NodeInfo};
use cis_core::access::{Caller, Preset};
use cis_core::did::Did;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::Clock;
use cis_engine::app::{App, Settings};
use cis_engine::context::Context;
use cis_engine::coordinator::Options;
use cis_engine::data_dir::{CoordinatorLock, DataDir};
use cis_engine::host::Host;
use cis_engine::proof::Prover;
use cis_engine::retention::{self, Retention};
use cis_engine::system::{System, user};
use cis_engine::token::secret_hash;
use cis_runner::{allocator, files, serve};
use cis_server::Server;
use cis_server::socket::Socket;
use signal_hook::consts::{SIGINT, SIGTERM};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::notes::{tell_copy, tell_silence};
use super::{Failure, Outcome, Setup, catch_file_limit, identity, notify};
use crate::config::{Auth, Metrics};
use crate::session;

/// What tasks of a node get from its own environment, beside what the settings name.
const USUAL: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"];

/// Serves until a signal says stop. Where another node serves the data directory, this one is refused, or waits for it to go.
pub(super) fn start(setup: &Setup, bind: SocketAddr, wait: bool) -> Outcome {
    if trusts_local(setup) && !bind.ip().to_canonical().is_loopback() {
        let why = format!("`auth = \"trusted-local\"` and `--bind {bind}` do not go together");
        return Err(Failure::usage(why).hint(
            "who calls from elsewhere must prove who they are: bind to 127.0.0.1, or use `--auth tokens`",
        ));
    }
    serve::forbid_inspection().map_err(|e| unable("keep other processes out of its memory", &e))?;
    catch_file_limit().map_err(|e| unable("catch signals", &e))?;
    allocator::give_memory_back();
    // With fewer it serves fewer connections, and says so to those that are too many.
    let _ = files::raise_limit(cis_server::FILES_WANTED);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("cis-http")
        .build()
        .map_err(|e| unable("start threads", &e))?;
    let givers = notify::givers(&setup.config.notify)?;
    let notices = notify::wanted(&setup.config.notify, &givers);
    let options = setup.options()?;
    let data_dir = options.data_dir.clone();
    // Whatever may be wrong is found before another coordinator lets go.
    let identity = identity::own(setup, &data_dir)?;
    let (listener, lock) = listen(&runtime, &data_dir, bind, wait)?;
    let bound = listener.local_addr().map_err(|e| unable("listen", &e))?;
    let address = format!("http://{}", reachable(bound));
    tell_copy(setup);
    let node = about(&identity.did, &address);
    let options = Options { kind: CoordinatorKind::Node, address: Some(address), notices, ..options };
    let prover = Prover::new(&identity, setup.config.hosts.value.clone())?;
    let settings = Settings { node: Some(node), prover: Some(Arc::new(prover)), ..setup.settings() };
    let host = Host::open_node(options, settings, lock, &context(setup, &[]))?;
    let app = host.app().clone();
    let token = runtime.block_on(owner_token(&app))?;
    let (leave, leaving) = watch::channel(false);
    let leave = Arc::new(leave);
    listen_for_signals(leave.clone())?;
    let mut changes = app.changes();
    runtime.spawn(async move {
        while changes.changed().await.is_ok() {}
        // Without its loop a node is none: the process that started it should know.
        leave.send_replace(true);
    });
    let key = session::read_key(&data_dir)?;
    let server = Server::new(app.clone(), server_options(setup), Some(&key), leaving.clone());
    let socket = {
        let _entered = runtime.enter();
        let server = server.clone();
        Socket::listen(&data_dir.socket(), move || server).map_err(|e| unable("listen on its socket", &e))?
    };
    say!("cis node on http://{bound}");
    warn(setup);
    let info = runtime.block_on(app.coordinator_info())?;
    if let Some(recovery) = info.recovery {
        tell!("{recovery}");
    }
    if let Some(silent) = info.runner {
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
        runtime.spawn(cis_notify::deliver(app.clone(), giver, leaving.clone(), complain));
    }
    let retention = Retention {
        max_age: setup.config.max_age.value,
        max_size: setup.config.max_size.value,
        keep: setup.config.keep.value,
        rejected_max_age: setup.config.rejected_max_age.value,
    };
    runtime.spawn(retention::retain(app, retention, leaving));
    runtime.block_on(server.serve(listener));
    // Before another process can be the coordinator: the socket of that one must not be removed.
    drop(socket);
    // Callers that still read or wait end with the threads, before the store is closed.
    runtime.shutdown_timeout(Duration::from_secs(5));
    drop(server);
    host.leave()?.result?;
    tracing::info!("node stopped");
    Ok(0)
}

/// The port and the data directory. The port first: one that is taken must not cost a coordinator its runs, unless it is the
/// node of this very directory that has it.
fn listen(
    runtime: &Runtime,
    data_dir: &DataDir,
    bind: SocketAddr,
    wait: bool,
) -> Result<(TcpListener, CoordinatorLock), Failure> {
    let take_over = || session::take_over(data_dir, wait, |words| tracing::warn!("{words}"));
    let listen = || runtime.block_on(TcpListener::bind(bind));
    match listen() {
        Ok(listener) => Ok((listener, take_over()?)),
        // A node that is just going may have left its socket and not yet its port.
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && (wait || is_served(data_dir)) => {
            let lock = take_over()?;
            Ok((listen().map_err(|e| taken(bind, &e))?, lock))
        }
        Err(e) => Err(taken(bind, &e)),
    }
}

/// Does a node serve this data directory?
fn is_served(data_dir: &DataDir) -> bool {
    session::coordinator_of(data_dir).is_some_and(|info| info.kind == CoordinatorKind::Node)
}

fn about(did: &Did, address: &str) -> NodeInfo {
    NodeInfo {
        did: did.clone(),
        name: did.name().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: address.to_owned(),
        since: System.now(),
    }
}

fn server_options(setup: &Setup) -> cis_server::Options {
    cis_server::Options {
        trusts_local: trusts_local(setup),
        hosts: setup.config.hosts.value.clone(),
        rate: setup.config.rate.value,
        open_metrics: setup.config.metrics.value == Metrics::Open,
    }
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
async fn owner_token(app: &App) -> Result<std::path::PathBuf, Failure> {
    let path = app.options().data_dir.admin_token();
    let known = std::fs::read_to_string(&path).ok().map(|secret| secret_hash(secret.trim()));
    let token = match known {
        Some(hash) => app.reader()?.token(&hash).map_err(Refusal::from)?,
        None => None,
    };
    if !token.is_some_and(|token| token.is_good(app.now())) {
        let owner = Caller::preset(user(), Preset::Owner, None);
        let token = app.create_token(owner, "cis", None).await?;
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

/// A port that cannot be had.
fn taken(bind: SocketAddr, e: &std::io::Error) -> Failure {
    let unable = unable(&format!("listen on {bind}"), e);
    match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            unable.hint("another program listens there; choose another `--bind`")
        }
        _ => unable,
    }
}
