//! W0 to W3: the same graph by `cis`, ninja and make; and what of it is our own share.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::contest::{Side, Spread, compete};
use crate::machine::Conditions;
use crate::process;
use crate::report::{Row, Verdict};
use crate::shape::Shape;

/// Above this, the bar for `power` does not count: the disk, not we, would be measured.
const QUIET_SYNC_MS: f64 = 0.3;

/// One graph in three files.
struct Files {
    cis: PathBuf,
    ninja: PathBuf,
    make: PathBuf,
}

impl Files {
    fn write(bed: &Bed, shape: &Shape) -> Result<Self> {
        Ok(Self {
            cis: bed.file("graph.json", &shape.cis("graph", "global"))?,
            ninja: bed.file("graph.ninja", &shape.ninja())?,
            make: bed.file("graph.mk", &shape.make())?,
        })
    }
}

/// W0: the processor time that is ours, per task.
pub(crate) fn own_share(bed: &Bed) -> Result<Vec<Row>> {
    let shape = Shape::wide(bed.size(10_000, 500));
    let file = bed.file("graph.json", &shape.cis("graph", "global"))?;
    let at = Conditions::now(bed.path())?;
    let (mut coordinator, mut runner, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bed.pairs() {
        let (ours, theirs) = cpu_of_run(bed, &file)?;
        #[allow(clippy::cast_precision_loss, reason = "thousands of tasks")]
        let per_task_ms = |seconds: f64| seconds * 1e3 / shape.len() as f64;
        coordinator.push(per_task_ms(ours));
        runner.push(per_task_ms(theirs));
        both.push(per_task_ms(ours + theirs));
    }
    let spread = Spread::of(&both);
    let (coordinator, runner) = (Spread::of(&coordinator).median, Spread::of(&runner).median);
    Ok(vec![Row {
        what: "W0 own share, CPU per task".to_owned(),
        figure: format!("{:.3} ms ({:.3}–{:.3})", spread.median, spread.min, spread.max),
        bar: "≤ 0.12 ms (0.1)".to_owned(),
        verdict: Verdict::at_most(spread.median, 0.12),
        detail: format!("coordinator {coordinator:.3} ms, runner {runner:.3} ms"),
        conditions: at,
    }])
}

/// Processor seconds of the coordinator and of its runner, for a run whose tasks are answered at once.
fn cpu_of_run(bed: &Bed, file: &Path) -> Result<(f64, f64)> {
    let data_dir = bed.fresh()?;
    let mut command = bed.cis_run(&data_dir, file, "process");
    command.env("CIS_RUNNER_INSTANT", "1");
    bed.prepare(&mut command)?;
    let child = bed.start(&mut command)?;
    process::wait_ended(child.id())?;
    let coordinator = process::cpu_seconds(child.id())?;
    // Without work the runner stays for some seconds more: time enough to ask it.
    let runner =
        process::runner_of(&data_dir).context("the run left no runner to ask").and_then(process::cpu_seconds);
    process::end_runner_of(&data_dir)?;
    bed.finish(child, &command)?;
    bed.drop_dir(&data_dir);
    Ok((coordinator, runner?))
}

/// W1: everything at once, at both durabilities.
pub(crate) fn wide(bed: &Bed) -> Result<Vec<Row>> {
    let files = Files::write(bed, &Shape::wide(bed.size(10_000, 200)))?;
    let at = Conditions::now(bed.path())?;
    let mut sides: [Side<'_>; 4] = [
        Box::new(|_| bed.time_cis(&files.cis, "process")),
        Box::new(|_| bed.time_cis(&files.cis, "power")),
        Box::new(|_| bed.time_ninja(&files.ninja)),
        Box::new(|_| bed.time_make(&files.make)),
    ];
    let seconds = compete(bed.pairs(), &mut sides)?;
    let [process, power, ninja, make] = [0, 1, 2, 3].map(|side: usize| seconds[side].as_slice());
    let mut with_power = versus("W1 wide, `power`, to ninja", power, ninja, 1.45, 1.3, at);
    // The disk may get busy meanwhile, so it is asked before and after.
    let sync_ms = at.sync_ms.max(Conditions::now(bed.path())?.sync_ms);
    if sync_ms > QUIET_SYNC_MS {
        with_power.verdict = Verdict::Void;
        with_power.conditions.sync_ms = sync_ms;
    }
    Ok(vec![
        versus("W1 wide, `process`, to ninja", process, ninja, 1.25, 1.15, at),
        with_power,
        shown("W1 wide, `process`, to make", process, make, at),
    ])
}

/// W2: one after the other.
pub(crate) fn chain(bed: &Bed) -> Result<Vec<Row>> {
    plain(bed, "W2 chain", &Shape::chain(bed.size(2_000, 100)), 1.45, 1.25)
}

/// W3: layer after layer.
pub(crate) fn layers(bed: &Bed) -> Result<Vec<Row>> {
    plain(bed, "W3 layers", &Shape::layers(bed.size(50, 5), 20), 1.25, 1.15)
}

fn plain(bed: &Bed, name: &str, shape: &Shape, bar: f64, goal: f64) -> Result<Vec<Row>> {
    let files = Files::write(bed, shape)?;
    let at = Conditions::now(bed.path())?;
    let mut sides: [Side<'_>; 3] = [
        Box::new(|_| bed.time_cis(&files.cis, "process")),
        Box::new(|_| bed.time_ninja(&files.ninja)),
        Box::new(|_| bed.time_make(&files.make)),
    ];
    let seconds = compete(bed.pairs(), &mut sides)?;
    let [cis, ninja, make] = [0, 1, 2].map(|side: usize| seconds[side].as_slice());
    Ok(vec![
        versus(&format!("{name}, to ninja"), cis, ninja, bar, goal, at),
        shown(&format!("{name}, to make"), cis, make, at),
    ])
}

fn versus(what: &str, ours: &[f64], theirs: &[f64], bar: f64, goal: f64, at: Conditions) -> Row {
    let row = Row::ratio(what, Spread::of_ratios(ours, theirs), bar, Some(goal), at);
    row.detail(times(ours, theirs))
}

/// A comparison nobody has set a bar for.
fn shown(what: &str, ours: &[f64], theirs: &[f64], at: Conditions) -> Row {
    let ratio = Spread::of_ratios(ours, theirs);
    Row::ratio(what, ratio, f64::INFINITY, None, at).detail(times(ours, theirs)).without_bar()
}

fn times(ours: &[f64], theirs: &[f64]) -> String {
    format!("{:.2} s to {:.2} s", Spread::of(ours).median, Spread::of(theirs).median)
}
