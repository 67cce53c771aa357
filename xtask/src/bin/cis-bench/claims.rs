//! W6: how long a claim takes, beside one in an empty store: with a million finished tasks, and behind a million
//! ready ones it may not take.

use std::path::Path;

use anyhow::{Context, Result};
use cis_core::id::Scope;
use cis_store::port::Report;
use tokio::runtime::Runtime;
use xtask::clock::Stopwatch;

use crate::bed::Bed;
use crate::contest::{Side, Spread, compete, percentile};
use crate::history::Driver;
use crate::machine::Conditions;
use crate::report::Row;
use crate::shape::Shape;

/// The scope that is claimed from.
const OURS: &str = "project-ours";

/// The scope that is not.
pub(crate) const THEIRS: &str = "project-theirs";

/// One store to claim from.
struct Place<'a> {
    runtime: &'a Runtime,
    driver: Driver,
    scope: Scope,
    last: Option<Report>,
}

impl<'a> Place<'a> {
    fn open(runtime: &'a Runtime, file: &Path, tasks: usize) -> Result<Self> {
        let driver = runtime.block_on(async {
            let driver = Driver::open(file).await?;
            driver.start(&Shape::wide(tasks), "claims", OURS).await?;
            anyhow::Ok(driver)
        })?;
        Ok(Self { runtime, driver, scope: OURS.parse()?, last: None })
    }

    /// Claims one at a time, reporting the one before in the same transaction, as the engine does. In µs.
    fn round(&mut self, claims: usize) -> Result<Vec<f64>> {
        let mut took = Vec::with_capacity(claims);
        // What was copied or written before is on the disk before the clock runs, as everywhere: the stores are copies of
        // hundreds of megabytes.
        rustix::fs::sync();
        for _ in 0..claims {
            let reports = self.last.take().into_iter().collect();
            let watch = Stopwatch::start();
            let advanced = self.runtime.block_on(self.driver.advance(reports, 1, &self.scope))?;
            took.push(watch.seconds() * 1e6);
            let claimed = advanced.claimed.first().context("nothing was left to claim")?;
            self.last = Some(self.driver.succeeded(claimed));
        }
        Ok(took)
    }
}

/// p50 and p99 of each round.
#[derive(Default)]
struct Rounds {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

/// Claims in an empty store, in one with `finished` tasks and in one with `ready` ones.
pub(crate) fn claims(bed: &Bed, runtime: &Runtime, finished: &Path, ready: &Path) -> Result<Vec<Row>> {
    let each = bed.size(2_000, 50);
    let tasks = each * (bed.pairs() as usize + 1);
    let at = Conditions::now(bed.path())?;
    let empty = bed.fresh()?.join("dag.db");
    let mut places = Vec::new();
    for file in [&empty, finished, ready] {
        let mut place = Place::open(runtime, file, tasks)?;
        // The first round meets cold caches; it is the same for all, and not what is asked.
        place.round(each)?;
        places.push(place);
    }
    let mut rounds: [Rounds; 3] = Default::default();
    let mut sides: Vec<Side<'_>> = Vec::new();
    for (place, rounds) in places.iter_mut().zip(&mut rounds) {
        sides.push(Box::new(move |_| {
            let took = place.round(each)?;
            rounds.p50.push(percentile(&took, 0.5));
            rounds.p99.push(percentile(&took, 0.99));
            Ok(0.0)
        }));
    }
    compete(bed.pairs(), &mut sides)?;
    drop(sides);
    for place in places {
        place.driver.close();
    }
    Ok(rows(&rounds, at))
}

fn rows([empty, finished, ready]: &[Rounds; 3], at: Conditions) -> Vec<Row> {
    let micros = |ours: &[f64], theirs: &[f64]| {
        format!("{:.0} µs to {:.0} µs", Spread::of(ours).median, Spread::of(theirs).median)
    };
    let ratio = |what: &str, ours: &[f64], theirs: &[f64], bar| {
        Row::ratio(what, Spread::of_ratios(ours, theirs), bar, None, at).detail(micros(ours, theirs))
    };
    let behind = ratio("W6 claim p50 behind ready tasks, to none", &ready.p50, &empty.p50, f64::INFINITY);
    vec![
        ratio("W6 claim p50 with finished tasks, to empty", &finished.p50, &empty.p50, 1.1),
        behind.without_bar(),
        ratio("W6 claim p99 behind ready tasks, to none", &ready.p99, &empty.p99, 2.0),
    ]
}
