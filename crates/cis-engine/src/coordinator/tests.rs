//! A coordinator's beginning, on a machine that is restarted and whose runner never knows of anything.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use cis_core::dag::{self, Defaults, Format};
use cis_core::source::{BootTime, Clock, Random};
use cis_runner::frame;
use cis_runner::protocol::{FromRunner, PROTOCOL};
use cis_store::port::{Publish, Settle, StartRun};
use cis_store::sqlite::SqliteStore;
use serde_json::Map;
use tokio::io::{AsyncWriteExt, DuplexStream};

use super::*;

/// Larger than anything said here.
const PIPE_BYTES: usize = 64 << 10;

struct Forgetful {
    boot: &'static str,
    /// The runner's ends: connections stay open.
    runner: Mutex<Vec<DuplexStream>>,
}

impl Clock for Forgetful {
    fn now(&self) -> Timestamp {
        Timestamp(1_000_000)
    }

    fn since_boot(&self) -> BootTime {
        BootTime(1_000)
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

    async fn pause(&self, _: Millis) {
        std::future::pending().await
    }

    async fn reach_runner(&self, _: &Path, _: &Path) -> io::Result<DuplexStream> {
        let (ours, mut theirs) = tokio::io::duplex(PIPE_BYTES);
        let (boot_id, attempts) = (self.boot.to_owned(), Vec::new());
        let welcome = FromRunner::Welcome { protocol: PROTOCOL, boot_id, pid: 1, attempts };
        theirs.write_all(&frame::encode(&welcome).map_err(io::Error::other)?).await?;
        self.runner.lock().unwrap().push(theirs);
        Ok(ours)
    }
}

async fn coordinator(
    store: &SqliteStore,
    root: &Path,
    boot: &'static str,
) -> Coordinator<SqliteStore, Forgetful> {
    let options = Options {
        data_dir: DataDir::create(root).unwrap(),
        exe: "/nowhere".into(),
        config: None,
        slots: 1,
        durability: Durability::Process,
        limits: Limits::default(),
        address: None,
        notices: Wanted::default(),
    };
    let machine = Forgetful { boot, runner: Mutex::default() };
    Coordinator::start(store.clone(), options, machine).await.unwrap().0
}

/// A run with one task that must not run twice.
async fn run_something(store: &SqliteStore) {
    let text = b"dag_id = 'd'\ntasks = [{ id = 't', command = 'true' }]";
    let dag = dag::parse(text, Format::Toml, &Defaults::default()).unwrap().dag;
    let (now, by, content_hash) = (Timestamp(1), "ann".to_owned(), dag::content_hash(&dag).to_string());
    let publish = Publish {
        key: None,
        dag: Arc::new(dag),
        content_hash: content_hash.clone(),
        new_revision: false,
        by: by.clone(),
        now,
        expires_at: None,
    };
    let definition = store.publish(publish).await.unwrap().plain().unwrap().definition;
    let settle = Settle { definition, content_hash, confirm: true, by: by.clone(), now };
    store.settle(settle).await.unwrap();
    let start = StartRun {
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
        now,
    };
    store.start_run(start).await.unwrap().plain().unwrap();
}

/// Found by the simulation: the boot was noted before what it had cut short was recorded.
#[tokio::test(flavor = "current_thread")]
async fn what_a_restart_cut_short_does_not_start_again_though_the_first_coordinator_after_it_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&dir.path().join("dag.db"), Durability::Process).unwrap();
    let mut before = coordinator(&store, dir.path(), "one").await;
    Context::of_node(&[], &[], Vec::new())
        .save(&before.options.data_dir.node_context(), Durability::Process)
        .unwrap();
    run_something(&store).await;
    before.step(Timestamp(2)).await.unwrap();
    assert_eq!(before.flying.len(), 1, "it was handed to the runner, which may have started it");
    drop(before);
    let killed = coordinator(&store, dir.path(), "two").await;
    assert_eq!((killed.recovery().interrupted, killed.recovery().started), (1, 0));
    drop(killed);
    let mut next = coordinator(&store, dir.path(), "two").await;
    assert_eq!((next.recovery().interrupted, next.recovery().started), (1, 0));
    next.step(Timestamp(3)).await.unwrap();
    drop(next);
    let last = coordinator(&store, dir.path(), "two").await;
    assert_eq!(last.recovery().runs, 0, "it is recorded, and its run is over");
    assert!(last.new_boot.is_none(), "and the boot is noted");
}
