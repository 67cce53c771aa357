//! The HTTP API of a node: parse, authenticate, ask the node, say what it answered. It decides nothing itself, and
//! knows no SQL.
//!
//! ```text
//!   request ─► observe ─► door (Host, Origin, token, limits, role) ─► route ─► Node (writes) │ Reads (snapshots) ─► JSON
//! ```
//!
//! | module | what lives there |
//! |---|---|
//! | [`table`] | every route and what it takes to call it |
//! | `listen` | taking connections |
//! | `framing` | requests that say in two ways where they end |
//! | `door` | who may come in |
//! | `limit` | how much of the node one caller, and all of them, may use |
//! | `body` | taking in a body, within its bounds |
//! | `observe` | what is noted of every request |
//! | `trace`, `meter` | which trace it belongs to; what is counted |
//! | `route` | what each call does |
//! | `cursor` | where a list goes on |
//! | [`page`] | a page per error code |
//! | `reads` | a few read-only views of the store |
//! | `kept` | answers and tokens that are kept until they have changed |
//! | `hub` | where those who follow along wait |
//! | `say` | answers and errors, as JSON |
//! | `answer`, `definition`, `fence` | what bodies look like |
//! | `document` | the OpenAPI document: what the routes say of themselves, and what the table knows |

mod answer;
mod body;
mod cursor;
mod definition;
mod document;
mod door;
mod fence;
mod framing;
mod hub;
mod kept;
mod limit;
mod listen;
mod meter;
mod observe;
pub mod page;
mod reads;
mod route;
mod say;
pub mod table;
mod trace;

use std::sync::Arc;
use std::time::Duration;

use cis_core::did::Did;
use cis_core::source::{Millis, Timestamp};
use cis_engine::node::Node;
use cis_engine::system::System;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use utoipa::ToSchema;

use hub::Hub;
use kept::Kept;
use limit::Limits;
use meter::Meter;
use reads::Reads;
use trace::Names;

/// How long requests under way have to end when the node shuts down.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// How a node serves.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long a published DAG waits for somebody to confirm it.
    pub pending_for: Millis,
    /// What is published is confirmed by that, and starts.
    pub auto_execute: bool,
    /// Callers may say who they are and prove nothing: only where nobody but this machine can call.
    pub trusts_local: bool,
    /// Names it may be called by, beside `localhost` and addresses.
    pub hosts: Vec<String>,
    /// Requests a second that each identity may make.
    pub rate: u32,
    /// May everybody read the metrics?
    pub open_metrics: bool,
    pub node: About,
}

/// What a node says of itself.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct About {
    pub did: Did,
    pub name: String,
    pub version: &'static str,
    /// Where it is called.
    pub address: String,
    /// Since when it is up.
    pub since: Timestamp,
}

impl About {
    /// A node of this program.
    pub fn new(did: Did, address: String, since: Timestamp) -> Self {
        Self { name: did.name().to_owned(), did, version: env!("CARGO_PKG_VERSION"), address, since }
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
    node: Node,
    reads: Reads,
    kept: Kept,
    hub: Arc<Hub>,
    options: Options,
    limits: Arc<Limits>,
    meter: Meter,
    names: Names,
    /// Becomes true when the node shuts down: whoever waits stops waiting.
    leaving: watch::Receiver<bool>,
}

/// Serves until `leaving` becomes true, then lets requests under way end.
pub async fn serve(listener: TcpListener, node: Node, options: Options, leaving: watch::Receiver<bool>) {
    let (reads, limits) = (Reads::new(node.clone()), Arc::new(Limits::new(options.rate)));
    let (meter, names) = (Meter::new(Instant::now()), Names::new(&System));
    let (claimers, views) = (node.clone(), reads.clone());
    let (kept, hub) = (Kept::new(node.pulse()), Arc::new(Hub::new(node.pulse())));
    let followers = hub.clone();
    let parts = Parts { node, reads, kept, hub, options, limits, meter, names, leaving: leaving.clone() };
    let state = State(Arc::new(parts));
    tokio::select! {
        () = listen::serve(listener, route::router(state), leaving.clone()) => {}
        // With the coordinator gone the node is told to leave; whoever is still waiting for an answer gets one.
        () = async { if claimers.attend_claimers().await.is_ok() { std::future::pending().await } } => {}
        () = followers.attend(&views) => {}
        // Whoever does not take its answer keeps nobody from leaving.
        () = async { gone(leaving).await; tokio::time::sleep(LEAVE_MAX).await } => {}
    }
}

async fn gone(mut leaving: watch::Receiver<bool>) {
    let _ = leaving.wait_for(|leaving| *leaving).await;
}
