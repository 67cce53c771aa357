//! A store driven through its own operations, as a coordinator would: how the stores of W6 and of recovery come to be.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, anyhow};
use cis_core::dag::{self, Defaults, Format};
use cis_core::id::{Epoch, Scope};
use cis_core::source::{BootTime, Clock, Random, Timestamp, new_run_id};
use cis_store::CoordinatorStore as _;
use cis_store::port::{Advance, Advanced, Boot, Claim, Claimed, Ending, Publish, Report, Settle, StartRun};
use cis_store::{Durability, SqliteStore};
use serde_json::Map;
use xtask::{clock, repo};

use crate::bed::Bed;
use crate::shape::Shape;

/// Claimed and reported at once while a history is made; no more than a large machine would.
const AT_ONCE: u32 = 256;

/// A store and one coordinator's life on it.
#[derive(Debug)]
pub(crate) struct Driver {
    store: SqliteStore,
    epoch: Epoch,
    source: Source,
}

/// Real time; numbers that only have to differ.
#[derive(Debug)]
struct Source(AtomicU64);

impl Clock for Source {
    fn now(&self) -> Timestamp {
        Timestamp(clock::unix_ms())
    }

    fn since_boot(&self) -> BootTime {
        BootTime(clock::unix_ms())
    }
}

impl Random for Source {
    fn bits(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}

impl Driver {
    /// Begins on a file, which need not be there.
    pub(crate) async fn open(file: &Path) -> Result<Self> {
        let store = SqliteStore::open(file, Durability::Process)?;
        let source = Source(AtomicU64::new(clock::unix_ms().unsigned_abs()));
        let boot = Boot { id: "bench".into(), now: source.since_boot() };
        let epoch = store.open_epoch(source.now(), boot).await?.epoch;
        Ok(Self { store, epoch, source })
    }

    pub(crate) fn close(self) {
        self.store.close();
    }

    /// Publishes, confirms and starts a graph, up to where its tasks can be claimed.
    pub(crate) async fn start(&self, shape: &Shape, dag_id: &str, scope: &str) -> Result<()> {
        let text = shape.cis(dag_id, scope);
        let parsed = dag::parse(text.as_bytes(), Format::Json, &Defaults::default())
            .map_err(|problems| anyhow!("the graph is refused: {problems:?}"))?;
        let content_hash = dag::content_hash(&parsed.dag).as_str().to_owned();
        let (by, now) = ("bench".to_owned(), self.source.now());
        let publish = Publish {
            key: None,
            dag: Arc::new(parsed.dag),
            content_hash: content_hash.clone(),
            new_revision: false,
            by: by.clone(),
            by_proven: true,
            now,
            expires_at: None,
        };
        let definition = self.store.publish(publish).await?.plain()?.definition;
        self.store.settle(Settle { definition, content_hash, confirm: true, by: by.clone(), now }).await?;
        let run = StartRun {
            key: None,
            run_id: new_run_id(&self.source, &self.source),
            definition,
            params: Map::new(),
            max_parallel: None,
            attached: false,
            at_node: false,
            traceparent: None,
            fates: None,
            resumed_from: None,
            by_confirmation: false,
            by,
            by_proven: true,
            now,
        };
        self.store.start_run(run).await?;
        self.work().await
    }

    /// Works off every large step.
    async fn work(&self) -> Result<()> {
        while self.store.work(self.source.now()).await?.more {}
        Ok(())
    }

    /// Reports and claims in one transaction.
    pub(crate) async fn advance(&self, reports: Vec<Report>, limit: u32, scope: &Scope) -> Result<Advanced> {
        let claim = Claim {
            epoch: self.epoch,
            holder: "bench".to_owned(),
            limit,
            kinds: vec!["shell", "skill"],
            scopes: Some(vec![scope.clone()]),
            capabilities: Vec::new(),
        };
        Ok(self.store.advance(Advance { reports, claim: Some(claim), now: self.source.now() }).await?)
    }

    /// Claims and completes until nothing is left.
    pub(crate) async fn drain(&self, scope: &Scope) -> Result<()> {
        let mut reports = Vec::new();
        loop {
            let idle = reports.is_empty();
            let advanced = self.advance(reports, AT_ONCE, scope).await?;
            if advanced.more_work {
                self.work().await?;
            }
            if idle && advanced.claimed.is_empty() {
                return Ok(());
            }
            reports = advanced.claimed.iter().map(|claimed| self.succeeded(claimed)).collect();
        }
    }

    /// The report of an attempt that went well and said a little.
    pub(crate) fn succeeded(&self, claimed: &Claimed) -> Report {
        let now = self.source.now();
        Report {
            execution: claimed.execution,
            fence: claimed.fence,
            ending: Ending::Succeeded,
            started_at: Some(now),
            ended_at: now,
            exit_code: Some(0),
            output: format!("{} is up to date\nnothing to do\n", claimed.task().id),
            error: String::new(),
            log_bytes: 40,
            log_cut_bytes: 0,
            outputs: None,
            random: self.source.bits(),
        }
    }
}

/// A file with `dags` finished runs of `shape`, from the cache if it is there as `kind`.
pub(crate) async fn finished(bed: &Bed, kind: &str, dags: usize, shape: &Shape) -> Result<PathBuf> {
    let wanted = cached(bed, kind, dags, shape)?;
    if wanted.exists() {
        return Ok(wanted);
    }
    let making = bed.cache().join("making.db");
    remove(&making);
    let driver = Driver::open(&making).await?;
    for dag in 0..dags {
        progress(kind, dag, dags);
        driver.start(shape, &format!("history-{dag}"), "global").await?;
        driver.drain(&Scope::global()).await?;
    }
    keep(driver, &making, &wanted)
}

/// A file in which `dags` runs of `shape` are ready in `scope`, from the cache if it is there.
pub(crate) async fn ready(bed: &Bed, dags: usize, shape: &Shape, scope: &str) -> Result<PathBuf> {
    let wanted = cached(bed, "ready", dags, shape)?;
    if wanted.exists() {
        return Ok(wanted);
    }
    let making = bed.cache().join("making.db");
    remove(&making);
    let driver = Driver::open(&making).await?;
    for dag in 0..dags {
        progress("ready", dag, dags);
        driver.start(shape, &format!("waiting-{dag}"), scope).await?;
    }
    keep(driver, &making, &wanted)
}

/// Its name says what made it: the store's source and the size. Older ones go.
fn cached(bed: &Bed, kind: &str, dags: usize, shape: &Shape) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    for file in repo::files(&bed.root().join("crates/cis-store/src"))? {
        fs::read(file)?.hash(&mut hasher);
    }
    (dags, shape.cis("history", "global")).hash(&mut hasher);
    let wanted = bed.cache().join(format!("{kind}-{:016x}.db", hasher.finish()));
    for entry in fs::read_dir(bed.cache())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path != wanted && name.starts_with(kind) && name.ends_with(".db") {
            remove(&path);
        }
    }
    Ok(wanted)
}

/// Closing folds the write-ahead log back, so the file is whole by itself; only a whole one gets the name.
fn keep(driver: Driver, making: &Path, wanted: &Path) -> Result<PathBuf> {
    driver.close();
    fs::rename(making, wanted)?;
    Ok(wanted.to_owned())
}

/// A copy to work on, on the disk before anything is measured.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)?;
    Ok(File::open(to)?.sync_all()?)
}

fn remove(file: &Path) {
    for tail in ["", "-wal", "-shm"] {
        let mut name = file.as_os_str().to_owned();
        name.push(tail);
        let _ = fs::remove_file(name);
    }
}

fn progress(what: &str, done: usize, all: usize) {
    if done.is_multiple_of(all.div_ceil(10)) {
        eprintln!("  making the store of {what} tasks: {done} of {all} runs");
    }
}
