//! W7: a hundred thousand tasks: how long they take to check, whether they run to the end, and in how much memory.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use xtask::clock::Stopwatch;

use crate::bed::Bed;
use crate::contest::Spread;
use crate::machine::Conditions;
use crate::report::{Row, Verdict};
use crate::shape::Shape;
use crate::{growth, process};

/// How often memory is looked at. The kernel keeps the peak, so only one after the last look can be missed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How often the file is checked.
const VALIDATIONS: usize = 5;

/// Validates, runs and shows it: once, since it takes its time.
pub(crate) fn size(bed: &Bed) -> Result<Vec<Row>> {
    let shape = Shape::mesh(bed.size(1_000, 10), 100);
    let file = bed.file("size.json", &shape.cis("size", "global"))?;
    let data_dir = bed.fresh()?;
    let mut rows = vec![validate(bed, &data_dir, &file)?];
    rows.extend(run(bed, &data_dir, &file, shape.len())?);
    let status = growth::read(bed, &data_dir, "W7 `cis dag status` afterwards", &["dag", "status", "size"])?;
    rows.push(status.without_bar());
    bed.drop_dir(&data_dir);
    Ok(rows)
}

fn validate(bed: &Bed, data_dir: &Path, file: &Path) -> Result<Row> {
    let at = Conditions::now(bed.path())?;
    let mut took = Vec::with_capacity(VALIDATIONS);
    for _ in 0..VALIDATIONS {
        took.push(bed.time(bed.cis(data_dir).args(["dag", "validate"]).arg(file))?);
    }
    let took = Spread::of(&took);
    Ok(Row {
        what: "W7 validate".to_owned(),
        figure: format!("{:.2} s (max {:.2})", took.median, took.max),
        bar: "≤ 1 s".to_owned(),
        verdict: Verdict::at_most(took.max, 1.0),
        detail: format!("{VALIDATIONS} times"),
        conditions: at,
    })
}

fn run(bed: &Bed, data_dir: &Path, file: &Path, tasks: usize) -> Result<[Row; 2]> {
    let at = Conditions::now(bed.path())?;
    let mut command = bed.cis_run(data_dir, file, "process");
    bed.prepare(&mut command)?;
    let watch = Stopwatch::start();
    let child = bed.start(&mut command)?;
    let (over, ended) = mpsc::channel::<()>();
    let (coordinator, place) = (child.id(), data_dir.to_owned());
    let look = thread::spawn(move || peaks(coordinator, &place, &ended));
    let finished = bed.finish(child, &command);
    let seconds = watch.seconds();
    drop(over);
    let peak = look.join().map_err(|_| anyhow!("nobody looked at the memory"))?;
    process::end_runner_of(data_dir)?;
    finished?;
    #[allow(clippy::cast_precision_loss, reason = "far below what a float can count")]
    let (mib, per_task_ms) = ((peak.0 + peak.1) as f64 / 1024.0, seconds * 1e3 / tasks as f64);
    let ran = Row {
        what: "W7 publish and run".to_owned(),
        figure: format!("{seconds:.1} s"),
        bar: "to the end".to_owned(),
        verdict: Verdict::Met,
        detail: format!("{tasks} tasks, {per_task_ms:.2} ms each"),
        conditions: at,
    };
    let memory = Row {
        what: "W7 memory, VmHWM of all `cis` processes".to_owned(),
        figure: format!("{mib:.0} MiB"),
        bar: "≤ 200 MiB (98)".to_owned(),
        verdict: Verdict::at_most(mib, 200.0),
        detail: format!("coordinator {} KiB, runner {} KiB", peak.0, peak.1),
        conditions: at,
    };
    Ok([ran, memory])
}

/// The most memory that coordinator and runner have had, in KiB, seen until the run is over.
fn peaks(coordinator: u32, data_dir: &Path, over: &mpsc::Receiver<()>) -> (u64, u64) {
    let (mut ours, mut theirs, mut runner) = (0, 0, None);
    loop {
        runner = runner.or_else(|| process::runner_of(data_dir));
        ours = process::peak_kib(coordinator).unwrap_or(ours);
        theirs = runner.and_then(process::peak_kib).unwrap_or(theirs);
        if over.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
            // The runner outlives the run by some seconds, so its last peak can still be read.
            theirs = runner.and_then(process::peak_kib).unwrap_or(theirs);
            return (ours, theirs);
        }
    }
}
