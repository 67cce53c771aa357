//! Servers to call: a node on a data directory of its own, and one that only says hello.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Once;

use anyhow::{Context, Result};
use axum::Json;
use axum::routing::get;
use serde_json::{Value, json};
use xtask::clock::Stopwatch;

use crate::bed::Bed;
use crate::process;
use crate::wire::Wire;

/// The argument that makes this program the server that only says hello.
pub(crate) const HELLO: &str = "--hello";

/// A server that is up; it goes with this.
#[derive(Debug)]
pub(crate) struct Served {
    child: Child,
    pub(crate) address: SocketAddr,
    token: String,
    data_dir: Option<PathBuf>,
}

/// The quotas of each identity that a node is measured with, instead of the usual ones.
const QUOTAS: [&str; 3] =
    ["CIS_NODE_PENDING_MAX", "CIS_NODE_PENDING_BYTES_MAX", "CIS_NODE_UNFINISHED_RUNS_MAX"];
const QUOTA: &str = "1000000000";

/// Says once that the quotas are raised, so that no reader takes the numbers for those of a node as it comes.
fn say_quotas() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        eprintln!("nodes are measured with raised quotas: {} = {QUOTA} each", QUOTAS.join(", "))
    });
}

impl Served {
    /// A node on `data_dir`.
    pub(crate) fn node(bed: &Bed, data_dir: &Path) -> Result<Self> {
        let mut command = bed.cis(data_dir);
        command.args(["node", "start", "--bind", "127.0.0.1:0"]);
        // One identity publishes here what hundreds would: what is measured is the work, not the refusal.
        command.envs(QUOTAS.map(|name| (name, QUOTA)));
        say_quotas();
        let (child, address) = start(&mut command)?;
        let token = fs::read_to_string(data_dir.join("admin.token"))?.trim().to_owned();
        Ok(Self { child, address, token, data_dir: Some(data_dir.to_owned()) })
    }

    /// What any server here costs at least.
    pub(crate) fn hello() -> Result<Self> {
        let (child, address) = start(Command::new(std::env::current_exe()?).arg(HELLO))?;
        Ok(Self { child, address, token: "none".to_owned(), data_dir: None })
    }

    /// A connection to it.
    pub(crate) fn wire(&self) -> Result<Wire> {
        Wire::open(self.address, &self.token)
    }

    /// The same for as many callers, each somebody else: what one may ask in a second is limited.
    pub(crate) fn readers(&self, count: usize) -> Result<Vec<Wire>> {
        if self.data_dir.is_none() {
            return (0..count).map(|_| self.wire()).collect();
        }
        let mut owner = self.wire()?;
        (0..count)
            .map(|n| {
                let reader = json!({"identity": format!("reader-{n}"), "as": "reader"}).to_string();
                let made = owner.json("POST", "/api/v1/tokens", &reader)?;
                Wire::open(self.address, made["token"].as_str().context("no token")?)
            })
            .collect()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(data_dir) = &self.data_dir {
            let _ = process::end_runner_of(data_dir);
        }
    }
}

/// Starts a server and waits until it says where it listens.
fn start(command: &mut Command) -> Result<(Child, SocketAddr)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let address = loop {
        let line = lines.next().context("the server ended before it listened")??;
        if let Some((_, address)) = line.split_once("http://") {
            break address.trim().parse()?;
        }
    };
    // What else it says must go somewhere.
    std::thread::spawn(move || lines.for_each(drop));
    Ok((child, address))
}

/// The seconds from starting a node on an empty directory to its first answer.
pub(crate) fn cold_start(bed: &Bed) -> Result<f64> {
    let data_dir = bed.fresh()?;
    let mut command = bed.cis(&data_dir);
    command.args(["node", "start", "--bind", "127.0.0.1:0"]);
    let watch = Stopwatch::start();
    let (child, address) = start(&mut command)?;
    let served = Served { child, address, token: "none".to_owned(), data_dir: Some(data_dir) };
    served.wire()?.call("GET", "/health", "")?;
    Ok(watch.seconds())
}

/// Says hello until it is killed.
pub(crate) fn hello() -> ExitCode {
    let serving = async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("hello on http://{}", listener.local_addr()?);
        axum::serve(listener, axum::Router::new().route("/", get(say_hello))).await
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(serving)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn say_hello() -> Json<Value> {
    Json(json!({"hello": "world"}))
}
