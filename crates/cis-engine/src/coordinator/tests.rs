//! A coordinator on a machine that is restarted, whose clocks are set, and whose runner never knows of anything.

use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use cis_core::dag::{self, Defaults, Format};
use cis_core::source::{BootTime, Clock, Random};
use cis_runner::frame;
use cis_runner::protocol::{FromRunner, OLDEST, PROTOCOL};
use cis_store::SqliteStore;
use cis_store::port::{ClaimWork, Publish, Settle, StartRun};
use serde_json::Map;
use tokio::io::{AsyncWriteExt, DuplexStream};

use super::handle::News;
use super::*;

/// Larger than anything said here.
const PIPE_BYTES: usize = 64 << 10;

pub(super) struct Forgetful {
    boot: &'static str,
    now: AtomicI64,
    since_boot: AtomicI64,
    /// How long it was asked to wait, the last time.
    waits_ms: AtomicU64,
    /// Waits of this length are over at once.
    pub(super) skips: Mutex<Option<Millis>>,
    /// How the runner answers Hello.
    greeting: FromRunner,
    /// The runner's ends: connections stay open.
    pub(super) runner: Mutex<Vec<DuplexStream>>,
}

impl Forgetful {
    fn new(boot: &'static str) -> Self {
        let (boot_id, attempts, directory) = (boot.to_owned(), Vec::new(), None);
        let (protocol, oldest) = (PROTOCOL, OLDEST);
        let greeting = FromRunner::Welcome { protocol, oldest, boot_id, pid: 1, attempts, directory };
        Self { boot, ..Self::greeting(greeting) }
    }

    pub(super) fn greeting(greeting: FromRunner) -> Self {
        let (now, since_boot) = (1_000_000_000.into(), 1_000.into());
        let (skips, runner) = (Mutex::default(), Mutex::default());
        Self { boot: "one", now, since_boot, waits_ms: 0.into(), skips, greeting, runner }
    }
}

impl Clock for Forgetful {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::Relaxed))
    }

    fn since_boot(&self) -> BootTime {
        BootTime(self.since_boot.load(Ordering::Relaxed))
    }
}

impl Random for Forgetful {
    fn bits(&self) -> u64 {
        0
    }
}

impl Machine for Forgetful {
    type Stream = DuplexStream;

    fn boot_id(&self) -> String {
        self.boot.to_owned()
    }

    async fn pause(&self, time: Millis) {
        self.waits_ms.store(time.0, Ordering::Relaxed);
        let is_skipped = *self.skips.lock().unwrap() == Some(time);
        if !is_skipped {
            std::future::pending().await
        }
    }

    async fn reach_runner(&self, _: &Path, _: &Path) -> io::Result<DuplexStream> {
        let (ours, mut theirs) = tokio::io::duplex(PIPE_BYTES);
        theirs.write_all(&frame::encode(&self.greeting).map_err(io::Error::other)?).await?;
        self.runner.lock().unwrap().push(theirs);
        Ok(ours)
    }
}

async fn coordinator(
    store: &SqliteStore,
    root: &Path,
    boot: &'static str,
) -> (Coordinator<SqliteStore, Forgetful>, Handle) {
    coordinator_on(store, root, Forgetful::new(boot)).await
}

pub(super) async fn coordinator_on(
    store: &SqliteStore,
    root: &Path,
    machine: Forgetful,
) -> (Coordinator<SqliteStore, Forgetful>, Handle) {
    let data_dir = DataDir::create(root).unwrap();
    Context::of_node(&[], &[], Vec::new()).save(&data_dir.node_context(), Durability::Process).unwrap();
    let options = Options {
        data_dir,
        kind: CoordinatorKind::Background,
        exe: "/nowhere".into(),
        config: None,
        slots: 1,
        durability: Durability::Process,
        limits: Limits::default(),
        runs_at_once: false,
        address: None,
        notices: Wanted::default(),
    };
    Coordinator::start(store.clone(), options, machine).await.unwrap()
}

/// A run with this one task.
pub(crate) async fn run(store: &SqliteStore, task: &str) {
    let request = request(store, &format!("dag_id = 'd'\ntasks = [{{ id = 't', {task} }}]")).await;
    store.start_run(request).await.unwrap().plain().unwrap();
}

/// A run of this definition to start, at the node.
pub(super) async fn request(store: &SqliteStore, text: &str) -> StartRun {
    let dag = dag::parse(text.as_bytes(), Format::Toml, &Defaults::default()).unwrap().dag;
    let (now, by, content_hash) = (Timestamp(1), "ann".to_owned(), dag::content_hash(&dag).to_string());
    let publish = Publish {
        key: None,
        dag: Arc::new(dag),
        content_hash: content_hash.clone(),
        new_revision: false,
        by: by.clone(),
        by_proven: true,
        now,
        expires_at: None,
    };
    let definition = store.publish(publish).await.unwrap().plain().unwrap().definition;
    let settle = Settle { definition, content_hash, confirm: true, by: by.clone(), now };
    store.settle(settle).await.unwrap();
    StartRun {
        key: None,
        run_id: "00000000-0000-0000-0000-000000000001".parse().unwrap(),
        definition,
        params: Map::new(),
        max_parallel: None,
        attached: false,
        at_node: true,
        traceparent: None,
        fates: None,
        resumed_from: None,
        by_confirmation: false,
        by,
        by_proven: true,
        now,
    }
}

/// Found by the simulation: the boot was noted before what it had cut short was recorded.
#[tokio::test(flavor = "current_thread")]
async fn what_a_restart_cut_short_does_not_start_again_though_the_first_coordinator_after_it_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&dir.path().join("dag.db"), Durability::Process).unwrap();
    let (mut before, _) = coordinator(&store, dir.path(), "one").await;
    run(&store, "command = 'true'").await;
    before.step(Timestamp(2)).await.unwrap();
    assert_eq!(before.flying.len(), 1, "it was handed to the runner, which may have started it");
    drop(before);
    let (killed, _) = coordinator(&store, dir.path(), "two").await;
    assert_eq!((killed.recovery().interrupted, killed.recovery().started), (1, 0));
    drop(killed);
    let (mut next, _) = coordinator(&store, dir.path(), "two").await;
    assert_eq!((next.recovery().interrupted, next.recovery().started), (1, 0));
    next.step(Timestamp(3)).await.unwrap();
    drop(next);
    let (last, _) = coordinator(&store, dir.path(), "two").await;
    assert_eq!(last.recovery().runs, 0, "it is recorded, and its run is over");
    assert!(last.new_origin.is_none(), "and the boot is noted");
}

/// Found by the simulation: a clock that was set back kept leases alive for as long as it had been set back.
#[tokio::test(flavor = "current_thread")]
async fn a_lease_runs_out_in_its_time_though_somebody_sets_the_clock_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&dir.path().join("dag.db"), Durability::Process).unwrap();
    let (mut coordinator, _handle) = coordinator(&store, dir.path(), "one").await;
    run(&store, "type = 'external'").await;
    let claim = |worker: &str, machine: &Forgetful| ClaimWork {
        claim_id: None,
        identity: worker.to_owned(),
        worker: worker.to_owned(),
        limit: 1,
        scopes: None,
        capabilities: Vec::new(),
        term: Millis(60_000),
        now: machine.now(),
        since_boot: machine.since_boot(),
    };
    let held = store.claim_work(claim("dee", &coordinator.machine)).await.unwrap();
    assert_eq!(held.len(), 1);
    let due = Some(coordinator.machine.now().after(Millis(60_000)));
    coordinator.handle(Ask::Wrote(News { due, ..News::default() })).await.unwrap();
    coordinator.settle().await.unwrap();
    tokio::select! {
        biased;
        _ = coordinator.wait() => panic!("there is nothing to do yet"),
        () = std::future::ready(()) => {}
    }
    let waits = coordinator.machine.waits_ms.load(Ordering::Relaxed);
    assert_eq!(waits, CLOCK_LOOK.0, "it looks at the clock now and then");
    coordinator.machine.now.fetch_sub(5 * 3_600_000, Ordering::Relaxed);
    coordinator.machine.since_boot.fetch_add(60_000, Ordering::Relaxed);
    coordinator.settle().await.unwrap();
    let taken_over = store.claim_work(claim("eve", &coordinator.machine)).await.unwrap();
    assert_eq!(taken_over.len(), 1, "its holder was silent for a minute");
}
