//! W5: status reads at random while others write, beside a server that only says hello.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::json;
use xtask::clock::Stopwatch;

use crate::bed::Bed;
use crate::contest::{Side, Spread, compete};
use crate::machine::Conditions;
use crate::report::Row;
use crate::served::Served;

/// Connections that ask at once.
const CONNECTIONS: usize = 64;

/// Between two writes: a hundred a second.
const WRITE_EVERY: Duration = Duration::from_millis(10);

pub(crate) fn reads(bed: &Bed) -> Result<Vec<Row>> {
    let at = Conditions::now(bed.path())?;
    let (node, hello) = (ReadNode::start(bed)?, Served::hello()?);
    let mut sides: Vec<Side<'_>> = vec![
        Box::new(|pair| node.reads_per_second(u64::from(pair))),
        Box::new(|_| flood(&hello, node.lasts, |wire, _| wire.call("GET", "/", "").map(drop))),
    ];
    let measured = compete(bed.pairs(), &mut sides)?;
    let [ours, floor] = measured.as_slice() else { return Err(anyhow!("two sides")) };
    let row = Row::share("W5 status reads, to hello", Spread::of_ratios(ours, floor), 0.5, 0.5, at);
    let detail = format!("{:.0}/s to {:.0}/s", Spread::of(ours).median, Spread::of(floor).median);
    Ok(vec![row.detail(detail)])
}

/// A node with DAGs to ask for.
#[derive(Debug)]
pub(crate) struct ReadNode {
    node: Served,
    /// The revision of each DAG that was acknowledged last.
    acknowledged: Vec<AtomicI64>,
    lasts: Duration,
}

impl ReadNode {
    pub(crate) fn start(bed: &Bed) -> Result<Self> {
        let node = Served::node(bed, &bed.fresh()?)?;
        let acknowledged: Vec<AtomicI64> = (0..bed.size(1_000, 10)).map(|_| AtomicI64::new(0)).collect();
        let mut wire = node.wire()?;
        for (n, known) in acknowledged.iter().enumerate() {
            let published = wire.json("POST", "/api/v1/dag/publish", &definition(n, 0))?;
            known.store(published["revision"].as_i64().context("no revision")?, Ordering::SeqCst);
        }
        Ok(Self { node, acknowledged, lasts: Duration::from_millis(bed.size(2_000, 100) as u64) })
    }

    /// Reads per second, while another connection writes; `nth` makes what is written new.
    pub(crate) fn reads_per_second(&self, nth: u64) -> Result<f64> {
        status(&self.node, &self.acknowledged, nth, self.lasts)
    }
}

fn definition(n: usize, version: u64) -> String {
    let task = json!({"id": "t", "type": "external", "input": version});
    json!({"dag_id": format!("dag-{n}"), "revision": true, "tasks": [task]}).to_string()
}

/// Reads per second, while somebody writes.
fn status(node: &Served, acknowledged: &[AtomicI64], pair: u64, lasts: Duration) -> Result<f64> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writing = scope.spawn(|| write(node, acknowledged, pair, &over));
        let rate = flood(node, lasts, |wire, random| {
            let n = usize::try_from(random % acknowledged.len() as u64)?;
            let known = acknowledged[n].load(Ordering::SeqCst);
            let told = wire.call("GET", &format!("/api/v1/dag/dag-{n}/status"), "")?;
            let revision = revision(told).context("a status without a revision")?;
            ensure!(revision >= known, "revision {revision} of dag-{n}, though {known} was acknowledged");
            Ok(())
        });
        over.store(true, Ordering::SeqCst);
        writing.join().map_err(|_| anyhow!("the writer panicked"))??;
        rate
    })
}

/// The revision a status tells, without reading all of it: the asking side should cost little.
fn revision(told: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(told).ok()?;
    let digits = text.split("\"revision\":").nth(1)?;
    digits[..digits.find(|c: char| !c.is_ascii_digit())?].parse().ok()
}

fn write(node: &Served, acknowledged: &[AtomicI64], pair: u64, over: &AtomicBool) -> Result<()> {
    let (mut wire, mut n) = (node.wire()?, 0_u64);
    while !over.load(Ordering::SeqCst) {
        let watch = Stopwatch::start();
        n += 1;
        let which = usize::try_from(n.wrapping_mul(0x9e37_79b9) % acknowledged.len() as u64)?;
        let body = definition(which, (pair + 1) * 1_000_000 + n);
        let published = wire.json("POST", "/api/v1/dag/publish", &body)?;
        acknowledged[which].store(published["revision"].as_i64().context("no revision")?, Ordering::SeqCst);
        thread::park_timeout(WRITE_EVERY.saturating_sub(watch.elapsed()));
    }
    Ok(())
}

/// How often per second `ask` is answered, asked over all connections as fast as they can.
fn flood(
    server: &Served,
    lasts: Duration,
    ask: impl Fn(&mut crate::wire::Wire, u64) -> Result<()> + Sync,
) -> Result<f64> {
    let answered = AtomicU64::new(0);
    let wires = server.readers(CONNECTIONS)?;
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        let asking: Vec<_> = (0..)
            .zip(wires)
            .map(|(n, mut wire)| {
                let (ask, answered) = (&ask, &answered);
                scope.spawn(move || -> Result<()> {
                    let mut random: u64 = n + 1;
                    while watch.elapsed() < lasts {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n);
                        ask(&mut wire, random >> 33)?;
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        asking.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow!("a reader panicked"))?)
    })?;
    #[allow(clippy::cast_precision_loss, reason = "a few million")]
    let answered = answered.load(Ordering::Relaxed) as f64;
    Ok(answered / watch.seconds())
}
