//! The HTTP API of a node: parse, authenticate, ask the node, say what it answered. It decides nothing itself, and
//! knows no SQL.
//!
//! ```text
//!   request ─► door (Host, Origin, token, role) ─► route ─► Node (writes) │ Reads (snapshots) ─► JSON
//! ```
//!
//! | module | what lives there |
//! |---|---|
//! | [`table`] | every route and what it takes to call it |
//! | `door` | who may come in |
//! | `route` | what each call does |
//! | `cursor` | where a list goes on |
//! | `reads` | a few read-only views of the store |
//! | `say` | answers and errors, as JSON |

mod cursor;
mod door;
mod reads;
mod route;
mod say;
pub mod table;

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use cis_core::did::Did;
use cis_core::source::{Millis, Timestamp};
use cis_engine::node::Node;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;

use reads::Reads;

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
    pub node: About,
}

/// What a node says of itself.
#[derive(Debug, Clone, Serialize)]
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

/// What every request has at hand.
#[derive(Debug, Clone)]
struct State {
    node: Node,
    reads: Reads,
    options: Arc<Options>,
    /// Becomes true when the node shuts down: whoever waits stops waiting.
    leaving: watch::Receiver<bool>,
}

/// Serves until `leaving` becomes true, then lets requests under way end.
pub async fn serve(
    listener: TcpListener,
    node: Node,
    options: Options,
    leaving: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let reads = Reads::new(node.clone());
    let claimers = node.clone();
    let state = State { node, reads, options: Arc::new(options), leaving: leaving.clone() };
    let serving = axum::serve(listener, route::router(state)).with_graceful_shutdown(gone(leaving.clone()));
    tokio::select! {
        served = serving.into_future() => served,
        lost = async { claimers.attend_claimers().await.err() } => {
            let why = lost.map_or_else(|| "the coordinator is gone".to_owned(), |refusal| refusal.message);
            Err(std::io::Error::other(why))
        }
        // Whoever does not take its answer keeps nobody from leaving.
        () = async { gone(leaving).await; tokio::time::sleep(LEAVE_MAX).await } => Ok(()),
    }
}

async fn gone(mut leaving: watch::Receiver<bool>) {
    let _ = leaving.wait_for(|leaving| *leaving).await;
}
