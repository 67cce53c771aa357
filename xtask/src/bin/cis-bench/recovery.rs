//! How soon a node serves again after it was killed at work, with a long history behind it.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;
use xtask::clock::Stopwatch;

use crate::bed::Bed;
use crate::contest::Spread;
use crate::history;
use crate::machine::Conditions;
use crate::report::Row;
use crate::served::Served;
use crate::shape::Shape;

/// Tasks that are under way when it is killed.
const LIVE: usize = 100;

pub(crate) fn recovery(bed: &Bed) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let runs = bed.size(100_000, 100);
    let past = runtime.block_on(history::finished(bed, "runs", runs, &Shape::wide(1)))?;
    let data_dir = bed.fresh()?;
    history::copy(&past, &data_dir.join("dag.db"))?;
    let at = Conditions::now(bed.path())?;
    let took: Vec<f64> = (0..bed.size(10, 2)).map(|n| killed(bed, &data_dir, n)).collect::<Result<_>>()?;
    bed.drop_dir(&data_dir);
    let spread = Spread::of(&took);
    let row = Row::at_most("from a kill to serving, with 100,000 runs, at most", spread.max, 2.0, "s", at);
    Ok(vec![row.detail(format!(
        "{} times, {LIVE} tasks under way; median {:.2} s",
        took.len(),
        spread.median
    ))])
}

/// Kills a node and its runner under work; the seconds from starting the next one until it says that it is ready.
fn killed(bed: &Bed, data_dir: &Path, n: usize) -> Result<f64> {
    let node = Served::node(bed, data_dir)?;
    let mut wire = node.wire()?;
    let tasks: Vec<_> = (0..LIVE).map(|n| json!({"id": format!("t{n}"), "type": "external"})).collect();
    let dag = json!({"dag_id": format!("live-{n}"), "tasks": tasks}).to_string();
    wire.call("POST", "/api/v1/dag/publish", &dag)?;
    wire.call("POST", &format!("/api/v1/dag/live-{n}/confirm"), "")?;
    let claim = json!({"limit": LIVE}).to_string();
    let claimed = wire.json("POST", "/api/v1/tasks/claim", &claim)?;
    ensure!(claimed["tasks"].as_array().is_some_and(|tasks| !tasks.is_empty()), "nothing was claimed");
    drop((wire, node));
    let watch = Stopwatch::start();
    let next = Served::node(bed, data_dir)?;
    next.wire()?.call("GET", "/ready", "")?;
    Ok(watch.seconds())
}
