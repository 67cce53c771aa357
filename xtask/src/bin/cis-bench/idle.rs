//! A node that has nothing to do: its memory, how soon it is there, and what thousands who wait cost the rest.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use xtask::clock::Stopwatch;

use crate::bed::Bed;
use crate::contest::{Spread, percentile};
use crate::machine::Conditions;
use crate::process;
use crate::report::Row;
use crate::served::{Served, cold_start};
use crate::wire::Wire;

pub(crate) fn idle(bed: &Bed) -> Result<Vec<Row>> {
    let mut rows = vec![memory(bed)?, start(bed)?];
    rows.extend(followers(bed)?);
    Ok(rows)
}

/// Node and runner, after one task.
fn memory(bed: &Bed) -> Result<Row> {
    let at = Conditions::now(bed.path())?;
    let data_dir = bed.fresh()?;
    let node = Served::node(bed, &data_dir)?;
    let mut wire = node.wire()?;
    let dag = json!({"dag_id": "one", "tasks": [{"id": "t", "command": "true"}]}).to_string();
    wire.call("POST", "/api/v1/dag/publish", &dag)?;
    wire.call("POST", "/api/v1/dag/one/confirm", "")?;
    loop {
        let told = wire.json("GET", "/api/v1/dag/one/status", "")?;
        if told["status"] == "completed" {
            break;
        }
        wire.call("GET", &format!("/api/v1/dag/one/status?wait=10s&after={}", told["version"]), "")?;
    }
    let runner = process::runner_of(&data_dir).context("no runner")?;
    let (own, its) = (rss_mib(node.pid())?, rss_mib(runner)?);
    let row = Row::at_most("idle memory, node and runner", own + its, 25.0, "MiB", at);
    Ok(row.detail(format!("node {own:.1} MiB, runner {its:.1} MiB")))
}

fn rss_mib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.split_whitespace().next().context("no VmRSS")?.parse()?;
    Ok(kib / 1024.0)
}

fn start(bed: &Bed) -> Result<Row> {
    let at = Conditions::now(bed.path())?;
    let took: Vec<f64> = (0..bed.size(20, 1)).map(|_| Ok(cold_start(bed)? * 1e3)).collect::<Result<_>>()?;
    let spread = Spread::of(&took);
    let row = Row::at_most("cold start to the first answer", spread.median, 100.0, "ms", at);
    Ok(row.detail(format!("{} times, {:.0} to {:.0} ms", took.len(), spread.min, spread.max)))
}

/// Claims with nobody waiting and with thousands who do, in turn.
fn followers(bed: &Bed) -> Result<Vec<Row>> {
    let (waiting, claims) = (bed.size(5_000, 20), bed.size(1_000, 10));
    allow_files(waiting as u64 + 200)?;
    let at = Conditions::now(bed.path())?;
    let data_dir = bed.fresh()?;
    let node = Served::node(bed, &data_dir)?;
    let mut wire = node.wire()?;
    let quiet = json!({"dag_id": "quiet", "tasks": [{"id": "t", "type": "external", "needs": ["nobody"]}]});
    wire.call("POST", "/api/v1/dag/publish", &quiet.to_string())?;
    let (mut without, mut with, mut most) = (Vec::new(), Vec::new(), 0.0_f64);
    for round in 0..bed.pairs() {
        without.push(claim_p99(&mut wire, round * 2, claims)?);
        let held = hold(&node, &mut wire, waiting)?;
        with.push(claim_p99(&mut wire, round * 2 + 1, claims)?);
        most = most.max(rss_mib(node.pid())?);
        drop(held);
    }
    let rss = Row::at_most("memory with followers and long-polls open", most, 200.0, "MiB", at);
    let ratio = Row::ratio(
        "claim p99 with followers and long-polls open, to none",
        Spread::of_ratios(&with, &without),
        2.0,
        None,
        at,
    );
    let micros = |values: &[f64]| Spread::of(values).median * 1e6;
    let detail = format!("{:.0} µs to {:.0} µs", micros(&with), micros(&without));
    Ok(vec![rss.detail(format!("{waiting} connections")), ratio.detail(detail)])
}

/// Followers of a DAG that nothing happens to, those who wait for it to change, and those who wait for a task.
fn hold(node: &Served, wire: &mut Wire, count: usize) -> Result<Vec<Wire>> {
    let version = wire.json("GET", "/api/v1/dag/quiet/status", "")?["version"].clone();
    let claim = json!({"wait_secs": 60, "capabilities": ["nothing"], "scopes": ["project-none"]}).to_string();
    (0..count)
        .map(|n| {
            let mut wire = node.wire()?;
            match n % 4 {
                0 => wire.send("POST", "/api/v1/tasks/claim", &claim)?,
                1 => wire.send("GET", &format!("/api/v1/dag/quiet/status?wait=60s&after={version}"), "")?,
                _ => wire.send("GET", "/api/v1/events?dag=quiet", "")?,
            }
            Ok(wire)
        })
        .collect()
}

/// p99 of a claim, in seconds.
fn claim_p99(wire: &mut Wire, round: u32, claims: usize) -> Result<f64> {
    let task = |n| json!({"id": format!("t{n}"), "type": "external"});
    let tasks: Vec<_> = (0..claims).map(task).collect();
    let dag_id = format!("claims-{round}");
    wire.call("POST", "/api/v1/dag/publish", &json!({"dag_id": dag_id, "tasks": tasks}).to_string())?;
    wire.call("POST", &format!("/api/v1/dag/{dag_id}/confirm"), "")?;
    let mut took = Vec::with_capacity(claims);
    for _ in 0..claims {
        let watch = Stopwatch::start();
        let claimed = wire.json("POST", "/api/v1/tasks/claim", "{\"wait_secs\": 10}")?;
        took.push(watch.seconds());
        let task = claimed["tasks"].get(0).context("nothing to claim")?;
        let path = format!("/api/v1/tasks/{}/complete", task["execution_id"]);
        wire.call("POST", &path, &json!({"fence": task["fence"]}).to_string())?;
    }
    Ok(percentile(&took, 0.99))
}

/// Every connection is a file, here and in the node that is started from here.
fn allow_files(count: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < count) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: limit.maximum })
            .context("this many connections are not allowed here: raise `ulimit -n`")?;
    }
    Ok(())
}
