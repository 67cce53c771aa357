//! The HTTP edge: parse, authenticate, ask the app, say what it answered. It decides nothing itself, and knows no SQL. The
//! same calls are served over the network by a node, and on the Unix socket of a data directory by whatever process
//! coordinates it.
//!
//! ```text
//!   request ─► observe ─► auth (Host, Origin, token or key, limits, role) ─► route ─► App ─► JSON
//! ```
//!
//! | module | what lives there |
//! |---|---|
//! | [`table`] | every route and what it takes to call it |
//! | `listen`, [`socket`] | taking connections, from the network and on the socket |
//! | `places` | how many connections there are, and which of them goes for the next |
//! | `progress` | peers that take their answers |
//! | `framing` | requests that say in two ways where they end |
//! | `auth` | who may call |
//! | `limit` | how much of the node one caller, and all of them, may use |
//! | `body` | taking in a body, within its bounds |
//! | `answer` | counting answers until they are sent |
//! | `observe` | what is noted of every request |
//! | `trace`, `meter` | which trace it belongs to; what is counted |
//! | `route` | what answers each call |
//! | [`page`] | a page per error code |
//! | `kept` | answers and tokens that are kept until they have changed |
//! | `hub` | where callers that follow along wait |
//! | `respond` | answers and errors, as HTTP responses |
//! | `document` | the OpenAPI document, from the table of calls |

mod answer;
mod auth;
mod body;
mod document;
mod framing;
mod hub;
mod kept;
mod limit;
mod listen;
mod meter;
mod observe;
pub mod page;
mod places;
mod progress;
mod respond;
mod route;
pub mod socket;
pub mod table;
mod trace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cis_engine::app::App;
use cis_engine::system::System;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

pub use places::FILES_WANTED;

use hub::Hub;
use kept::Kept;
use limit::Limits;
use meter::Meter;
use trace::Names;

/// How long requests under way have to end when the node shuts down.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// How often memory is given back while there are requests, and from how much on.
const TRIM_EVERY: Duration = Duration::from_secs(10);
const TRIM_FROM_BYTES: u64 = 64 << 20;

/// How a node serves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Callers may say who they are and prove nothing: only where nobody but this machine can call.
    pub trusts_local: bool,
    /// Names it may be called by, beside `localhost` and addresses.
    pub hosts: Vec<String>,
    /// Requests a second that each identity may make.
    pub rate: u32,
    /// May everybody read the metrics?
    pub open_metrics: bool,
}

impl Default for Options {
    /// As a coordinator that is no node serves: to nobody but its owner.
    fn default() -> Self {
        Self { trusts_local: false, hosts: Vec::new(), rate: u32::MAX, open_metrics: false }
    }
}

/// What every request has at hand. It is cloned several times for each.
#[derive(Debug, Clone)]
struct State(Arc<Parts>);

impl std::ops::Deref for State {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

#[derive(Debug)]
struct Parts {
    app: App,
    kept: Kept,
    hub: Arc<Hub>,
    options: Options,
    /// The hash of the data directory's key, which the owner shows on the socket.
    key_hash: Option<String>,
    limits: Arc<Limits>,
    meter: Meter,
    names: Names,
    /// Callers that wait are woken already.
    is_attended: AtomicBool,
    /// Becomes true when the process shuts down: requests that wait stop waiting.
    leaving: watch::Receiver<bool>,
}

/// What serves the calls of an app, on any number of listeners. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Server {
    state: State,
}

impl Server {
    /// A server for `app` until `leaving` becomes true. `key` is what the owner shows on the socket.
    pub fn new(app: App, options: Options, key: Option<&str>, leaving: watch::Receiver<bool>) -> Self {
        let parts = Parts {
            kept: Kept::new(app.pulse()),
            hub: Arc::new(Hub::new(app.pulse())),
            limits: Arc::new(Limits::new(options.rate)),
            key_hash: key.map(cis_engine::token::secret_hash),
            meter: Meter::new(Instant::now()),
            names: Names::new(&System),
            is_attended: AtomicBool::new(false),
            app,
            options,
            leaving,
        };
        Self { state: State(Arc::new(parts)) }
    }

    /// Wakes callers that wait or follow, for as long as the coordinator lives; once, however many listeners there are.
    async fn attend(&self) {
        let state = &self.state;
        if state.is_attended.swap(true, Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let claimers = async {
            // With the coordinator gone the process is told to leave; a caller that still waits gets an answer.
            if state.app.attend_claimers().await.is_ok() {
                std::future::pending().await
            }
        };
        tokio::select! {
            () = claimers => {}
            () = state.hub.attend(state.app.reads()) => {}
            () = self.trim_memory() => {}
        }
    }

    /// Gives memory back after many or large requests, and does nothing while there are none.
    async fn trim_memory(&self) {
        let mut seen = 0;
        loop {
            tokio::time::sleep(TRIM_EVERY).await;
            let requests = self.state.meter.requests_so_far();
            if requests != seen && rss_bytes().is_some_and(|bytes| bytes > TRIM_FROM_BYTES) {
                let _ = tokio::task::spawn_blocking(cis_engine::system::trim_heaps).await;
            }
            seen = requests;
        }
    }

    /// Serves the network until the process shuts down, then lets requests under way end.
    pub async fn serve(&self, listener: TcpListener) {
        let leaving = self.state.leaving.clone();
        tokio::select! {
            () = listen::serve(listener, route::router(self.state.clone(), false), leaving.clone()) => {}
            () = self.attend() => {}
            // A client that does not take its answer keeps the process from nothing.
            () = async { gone(leaving).await; tokio::time::sleep(LEAVE_MAX).await } => {}
        }
    }
}

/// The memory this process uses, where the system says so.
fn rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1_024)
}

async fn gone(mut leaving: watch::Receiver<bool>) {
    let _ = leaving.wait_for(|leaving| *leaving).await;
}
