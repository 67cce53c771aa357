//! W4: agents over HTTP, beside threads that call the same store operations themselves.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow};
use cis_core::dag::{self, Dag, Defaults, Format};
use cis_core::source::{BootTime, Millis, Timestamp};
use cis_store::CoordinatorStore as _;
use cis_store::port::{Boot, ClaimWork, Conclude, Decide, Ending, Holding, Publish};
use cis_store::{Durability, SqliteStore};
use serde_json::json;
use tokio::runtime::Runtime;
use xtask::clock::{Stopwatch, unix_ms};

use crate::bed::Bed;
use crate::contest::{Side, Spread, compete};
use crate::machine::Conditions;
use crate::report::Row;
use crate::served::Served;

/// Agents that call at once.
const AGENTS: usize = 64;

pub(crate) fn agents(bed: &Bed) -> Result<Vec<Row>> {
    let rounds = bed.size(3_200, AGENTS);
    let at = Conditions::now(bed.path())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut sides: Vec<Side<'_>> =
        vec![Box::new(|_| over_http(bed, rounds)), Box::new(|_| in_process(bed, &runtime, rounds))];
    let measured = compete(bed.pairs(), &mut sides)?;
    let [http, own] = measured.as_slice() else { return Err(anyhow!("two sides")) };
    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    let per_second = |seconds: &[f64]| rounds as f64 / Spread::of(seconds).median;
    let row = Row::share("W4 agents over HTTP, to in-process", Spread::of_ratios(own, http), 0.4, 0.5, at);
    let detail = format!("{:.0} rounds/s to {:.0}", per_second(http), per_second(own));
    Ok(vec![row.detail(detail)])
}

fn definition(n: usize) -> String {
    json!({"dag_id": format!("agent-{n}"), "tasks": [{"id": "t", "type": "external"}]}).to_string()
}

/// How many rounds a second the agents do together over HTTP.
pub(crate) fn rounds_per_second(bed: &Bed) -> Result<f64> {
    let rounds = bed.size(3_200, AGENTS);
    #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
    let rounds_done = rounds as f64;
    Ok(rounds_done / over_http(bed, rounds)?)
}

/// The seconds all agents together take for `rounds` rounds.
fn time(rounds: usize, agent: impl Fn(usize, &AtomicUsize) -> Result<()> + Sync) -> Result<f64> {
    let next = AtomicUsize::new(0);
    rustix::fs::sync();
    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        let agents: Vec<_> = (0..AGENTS)
            .map(|n| {
                scope.spawn({
                    let (agent, next) = (&agent, &next);
                    move || agent(n, next)
                })
            })
            .collect();
        agents.into_iter().try_for_each(|agent| agent.join().map_err(|_| anyhow!("an agent panicked"))?)
    })?;
    debug_assert!(next.load(Ordering::Relaxed) >= rounds);
    Ok(watch.seconds())
}

fn over_http(bed: &Bed, rounds: usize) -> Result<f64> {
    let data_dir = bed.fresh()?;
    let node = Served::node(bed, &data_dir)?;
    let seconds = time(rounds, |_, next| {
        let mut wire = node.wire()?;
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= rounds {
                return Ok(());
            }
            wire.call("POST", "/api/v1/dag/publish", &definition(n))?;
            wire.call("POST", &format!("/api/v1/dag/agent-{n}/confirm"), "")?;
            let claimed = wire.json("POST", "/api/v1/tasks/claim", "{\"wait_secs\": 30}")?;
            let task = claimed["tasks"].get(0).context("nothing to claim")?;
            let (path, fence) = (format!("/api/v1/tasks/{}/complete", task["execution_id"]), &task["fence"]);
            wire.call("POST", &path, &json!({"fence": fence}).to_string())?;
        }
    })?;
    drop(node);
    bed.drop_dir(&data_dir);
    Ok(seconds)
}

fn in_process(bed: &Bed, runtime: &Runtime, rounds: usize) -> Result<f64> {
    let dir = bed.fresh()?;
    let store = open(runtime, &dir.join("dag.db"))?;
    let seconds = time(rounds, |_, next| {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= rounds {
                return Ok(());
            }
            runtime.handle().block_on(round(&store, n))?;
        }
    })?;
    store.close();
    bed.drop_dir(&dir);
    Ok(seconds)
}

fn open(runtime: &Runtime, file: &Path) -> Result<SqliteStore> {
    let store = SqliteStore::open(file, Durability::Power)?;
    let boot = Boot { id: "bench".into(), now: BootTime(0) };
    runtime.block_on(store.open_epoch(Timestamp(unix_ms()), boot))?;
    Ok(store)
}

async fn round(store: &SqliteStore, n: usize) -> Result<()> {
    let dag: Dag = dag::parse(definition(n).as_bytes(), Format::Json, &Defaults::default())
        .map_err(|problems| anyhow!("{problems:?}"))?
        .dag;
    let (now, since_boot) = (Timestamp(unix_ms()), BootTime(unix_ms()));
    let (scope, dag_id) = (dag.scope.clone(), dag.dag_id.clone());
    let publish = Publish {
        key: None,
        content_hash: dag::content_hash(&dag).as_str().to_owned(),
        dag: Arc::new(dag),
        new_revision: false,
        by: "bench".to_owned(),
        by_proven: true,
        now,
        expires_at: None,
    };
    store.publish(publish).await?.plain()?;
    let decide = Decide {
        key: None,
        scope,
        dag_id,
        content_hash: None,
        review: None,
        confirm: true,
        note: None,
        by: "bench".to_owned(),
        self_confirm: true,
        run_id: cis_core::id::RunId(uuid::Uuid::from_u128(n as u128 + 1)),
        traceparent: None,
        now,
    };
    store.decide(decide).await?.plain()?;
    let claim = ClaimWork {
        claim_id: None,
        identity: "bench".to_owned(),
        worker: "bench".to_owned(),
        limit: 1,
        scopes: None,
        capabilities: Vec::new(),
        term: Millis(300_000),
        now,
        since_boot,
    };
    let held = store.claim_work(claim).await?;
    let claim = &held.first().context("nothing to claim")?.claim;
    let conclude = Conclude {
        key: None,
        holding: Holding {
            execution: claim.execution,
            fence: claim.fence,
            identity: "bench".to_owned(),
            scopes: None,
            now,
            since_boot,
        },
        ending: Ending::Succeeded,
        exit_code: None,
        error: String::new(),
        outputs: None,
        output: String::new(),
        log_bytes: 0,
        random: 0,
    };
    store.conclude(conclude).await?.plain()?;
    Ok(())
}
