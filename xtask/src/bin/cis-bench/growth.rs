//! W6: what a long history slows down.

use std::path::Path;

use anyhow::Result;

use crate::bed::Bed;
use crate::claims;
use crate::contest::{Side, Spread, compete};
use crate::history;
use crate::machine::Conditions;
use crate::report::{Row, Verdict};
use crate::shape::Shape;

/// How often a read is asked.
const READS: usize = 20;

/// A read may take this long.
const READ_MAX_MS: f64 = 50.0;

/// W1, reads and claims with a million finished tasks; claims behind a million ready ones.
pub(crate) fn growth(bed: &Bed) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let dags = bed.size(1_000, 10);
    let finished = runtime.block_on(history::finished(bed, "finished", dags, &Shape::mesh(10, 100)))?;
    let waiting = Shape::wide(bed.size(100_000, 1_000));
    let ready = runtime.block_on(history::ready(bed, 10, &waiting, claims::THEIRS))?;
    let grown = bed.fresh()?;
    history::copy(&finished, &grown.join("dag.db"))?;
    // Reads first: later there would be runs they do not ask for.
    let mut rows = reads(bed, &grown, &format!("history-{}", dags / 2))?;
    rows.insert(0, wide(bed, &grown)?);
    let behind = bed.fresh()?.join("dag.db");
    history::copy(&ready, &behind)?;
    rows.extend(claims::claims(bed, &runtime, &grown.join("dag.db"), &behind)?);
    bed.drop_dir(&grown);
    Ok(rows)
}

/// W1 on the grown store, beside an empty one. Each pair has a DAG of its own, so that both always publish.
fn wide(bed: &Bed, grown: &Path) -> Result<Row> {
    let shape = Shape::wide(bed.size(10_000, 200));
    let at = Conditions::now(bed.path())?;
    let file = |pair| bed.file(&format!("wide-{pair}.json"), &shape.cis(&format!("wide-{pair}"), "global"));
    let mut sides: [Side<'_>; 2] = [
        Box::new(|pair| bed.time_cis_on(grown, &file(pair)?, "process")),
        Box::new(|pair| bed.time_cis(&file(pair)?, "process")),
    ];
    let seconds = compete(bed.pairs(), &mut sides)?;
    let row = Row::ratio(
        "W6 W1 with finished tasks, to empty",
        Spread::of_ratios(&seconds[0], &seconds[1]),
        1.1,
        None,
        at,
    );
    let (ours, theirs) = (Spread::of(&seconds[0]).median, Spread::of(&seconds[1]).median);
    Ok(row.detail(format!("{ours:.2} s to {theirs:.2} s")))
}

fn reads(bed: &Bed, grown: &Path, dag_id: &str) -> Result<Vec<Row>> {
    let status = read(bed, grown, "W6 `cis dag status` with finished tasks", &["dag", "status", dag_id])?;
    Ok(vec![read(bed, grown, "W6 `cis dag list` with finished tasks", &["dag", "list"])?, status])
}

/// A command that only reads, asked again and again.
pub(crate) fn read(bed: &Bed, data_dir: &Path, what: &str, arguments: &[&str]) -> Result<Row> {
    let at = Conditions::now(bed.path())?;
    let mut took_ms = Vec::with_capacity(READS);
    for _ in 0..READS {
        took_ms.push(bed.time(bed.cis(data_dir).args(arguments))? * 1e3);
    }
    let took = Spread::of(&took_ms);
    Ok(Row {
        what: what.to_owned(),
        figure: format!("{:.1} ms (max {:.1})", took.median, took.max),
        bar: format!("max ≤ {READ_MAX_MS} ms"),
        verdict: Verdict::at_most(took.max, READ_MAX_MS),
        detail: format!("{READS} times, the process and all"),
        conditions: at,
    })
}
