//! One `cis` against another, such as the one before a change: the same work by both, in interleaved pairs.
//!
//! A change of a few percent is less than two runs of the same program differ by. So what counts is the interval in which the
//! median of the ratios lies with 95 % certainty, and it takes 31 pairs or more to make that narrow.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};

use crate::agents;
use crate::bed::Bed;
use crate::contest::{percentile, turn_by_turn};
use crate::process;
use crate::reads::ReadNode;
use crate::shape::Shape;
use xtask::clock::Stopwatch;

/// Work that both do; each prints its own lines.
type Comparison = (&'static str, fn(&Sides) -> Result<()>);

const COMPARISONS: [Comparison; 6] =
    [("run", one_task), ("W1", wide), ("W2", chain), ("W3", layers), ("W4", agents), ("W5", reads)];

/// The two programs, each in a place of its own.
struct Sides {
    new: Bed,
    old: Bed,
}

/// Compares the `cis` of `new` with that of `old`.
pub(crate) fn compare(new: Bed, old: Bed, only: &[String]) -> Result<()> {
    let is_known = |name: &String| COMPARISONS.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    if let Some(unknown) = only.iter().find(|name| !is_known(name)) {
        bail!("no comparison `{unknown}`; there are {}", COMPARISONS.map(|(name, _)| name).join(", "));
    }
    let is_chosen =
        |name: &str| only.is_empty() || only.iter().any(|wanted| wanted.eq_ignore_ascii_case(name));
    let sides = Sides { new, old };
    for (name, work) in COMPARISONS.into_iter().filter(|(name, _)| is_chosen(name)) {
        eprintln!("{name} …");
        work(&sides).with_context(|| format!("{name} could not be compared"))?;
    }
    Ok(())
}

/// What one run took.
#[derive(Debug, Clone, Copy)]
struct Took {
    wall_seconds: f64,
    /// Of `cis`, its runner and all tasks.
    cpu_seconds: f64,
}

fn one_task(sides: &Sides) -> Result<()> {
    let [new, old] = runs(sides, &Shape::wide(1))?
        .map(|side| side.iter().map(|took| took.wall_seconds).collect::<Vec<f64>>());
    print_ratios("run of one task, wall", &new, &old);
    let more: Vec<f64> = new.iter().zip(&old).map(|(new, old)| (new - old) * 1e3).collect();
    let (low, high) = interval(&more);
    println!("  run of one task: {:+.2} ms (95 %: {low:+.2} to {high:+.2})", percentile(&more, 0.5));
    Ok(())
}

fn wide(sides: &Sides) -> Result<()> {
    graph(sides, "W1", &Shape::wide(sides.new.size(10_000, 200)))
}

fn chain(sides: &Sides) -> Result<()> {
    graph(sides, "W2", &Shape::chain(sides.new.size(2_000, 50)))
}

fn layers(sides: &Sides) -> Result<()> {
    graph(sides, "W3", &Shape::layers(sides.new.size(50, 3), 20))
}

fn graph(sides: &Sides, name: &str, shape: &Shape) -> Result<()> {
    let [new, old] = runs(sides, shape)?;
    let of = |all: &[Took], part: fn(&Took) -> f64| all.iter().map(part).collect::<Vec<f64>>();
    print_ratios(
        &format!("{name}, wall"),
        &of(&new, |took| took.wall_seconds),
        &of(&old, |took| took.wall_seconds),
    );
    print_ratios(
        &format!("{name}, CPU"),
        &of(&new, |took| took.cpu_seconds),
        &of(&old, |took| took.cpu_seconds),
    );
    Ok(())
}

fn runs(sides: &Sides, shape: &Shape) -> Result<[Vec<Took>; 2]> {
    let text = shape.cis("graph", "global");
    let (new, old) = (sides.new.file("graph.json", &text)?, sides.old.file("graph.json", &text)?);
    pairs(sides, |side| match side {
        Side::New => run(&sides.new, &new),
        Side::Old => run(&sides.old, &old),
    })
}

fn run(bed: &Bed, file: &Path) -> Result<Took> {
    let data_dir = bed.fresh()?;
    let mut command = bed.cis_run(&data_dir, file, "process");
    bed.prepare(&mut command)?;
    let watch = Stopwatch::start();
    let child = bed.start(&mut command)?;
    process::wait_ended(child.id())?;
    let wall_seconds = watch.seconds();
    // Without work the runner stays for some seconds more: time enough to ask it.
    let runner = process::runner_of(&data_dir).context("the run left no runner to ask")?;
    let cpu_seconds = process::cpu_seconds(child.id())? + process::cpu_seconds_with_children(runner)?;
    process::end_runner_of(&data_dir)?;
    bed.finish(child, &command)?;
    bed.drop_dir(&data_dir);
    Ok(Took { wall_seconds, cpu_seconds })
}

fn agents(sides: &Sides) -> Result<()> {
    let [new, old] = pairs(sides, |side| agents::rounds_per_second(side.of(sides)))?;
    print_ratios("W4 agents over HTTP, rounds a second", &new, &old);
    Ok(())
}

fn reads(sides: &Sides) -> Result<()> {
    let (new, old) = (ReadNode::start(&sides.new)?, ReadNode::start(&sides.old)?);
    let mut nth = 0;
    let [new, old] = pairs(sides, |side| {
        nth += 1;
        match side {
            Side::New => new.reads_per_second(nth),
            Side::Old => old.reads_per_second(nth),
        }
    })?;
    print_ratios("W5 status reads a second", &new, &old);
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Side {
    New,
    Old,
}

impl Side {
    fn of(self, sides: &Sides) -> &Bed {
        match self {
            Self::New => &sides.new,
            Self::Old => &sides.old,
        }
    }
}

/// What both measured, new and old, after a first time that does not count.
fn pairs<T>(sides: &Sides, mut measure: impl FnMut(Side) -> Result<T>) -> Result<[Vec<T>; 2]> {
    measure(Side::New)?;
    measure(Side::Old)?;
    let mut both = turn_by_turn(sides.new.pairs(), &[Side::New, Side::Old], |side, _| measure(side))?;
    let (old, new) = (both.pop(), both.pop());
    new.zip(old).map(|(new, old)| [new, old]).ok_or_else(|| anyhow!("two sides"))
}

fn print_ratios(what: &str, new: &[f64], old: &[f64]) {
    let ratios: Vec<f64> = new.iter().zip(old).map(|(new, old)| new / old).collect();
    let (low, high) = interval(&ratios);
    println!(
        "  {what}: new/old {:.3} (95 %: {low:.3}–{high:.3}), {} pairs; medians {:.4} and {:.4}",
        percentile(&ratios, 0.5),
        ratios.len(),
        percentile(new, 0.5),
        percentile(old, 0.5)
    );
}

/// Where the median lies with 95 % certainty, whatever the values are like: between two of them that the binomial distribution
/// gives. Of fewer than six values, between the least and the greatest.
fn interval(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return (f64::NAN, f64::NAN) };
    let skipped = skipped(sorted.len()).min(last / 2);
    (sorted[skipped], sorted[last - skipped])
}

/// How many of `count` values may be left out at each end: fewer than so many lie below the median with less than 2.5 %.
fn skipped(count: usize) -> usize {
    let sides = count as f64;
    let (mut term, mut below, mut skipped) = (0.5_f64.powf(sides), 0.0, 0_usize);
    while below + term <= 0.025 {
        below += term;
        skipped += 1;
        let n = skipped as f64;
        term *= (sides - n + 1.0) / n;
    }
    skipped.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_is_that_of_the_sign_test() {
        let values = |count: u32| (1..=count).map(f64::from).collect::<Vec<f64>>();
        // As tables of the sign test have it.
        assert_eq!(interval(&values(31)), (10.0, 22.0));
        assert_eq!(interval(&values(100)), (40.0, 61.0));
        assert_eq!(interval(&values(5)), (1.0, 5.0));
        assert_eq!(interval(&values(1)), (1.0, 1.0));
    }
}
