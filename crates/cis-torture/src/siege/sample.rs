//! What node and runner use, as the kernel tells it: memory, descriptors, processor time; and how large the data directory is.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::clock::Stopwatch;

/// One look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) at: Duration,
    /// Memory of node and runner together.
    pub(super) memory_kib: u64,
    /// The most that each of them has had since it started, together: between two looks nothing is missed.
    pub(super) memory_peak_kib: u64,
    /// Open descriptors of node and runner together.
    pub(super) descriptors: u64,
    /// Processor time of both since they started, in hundredths of a second.
    pub(super) cpu_ticks: u64,
    /// Of the data directory.
    pub(super) disk_bytes: u64,
}

/// Looks at the processes of one data directory.
#[derive(Debug, Clone)]
pub(super) struct Sampler {
    pub(super) watch: Stopwatch,
    pub(super) node: u32,
    pub(super) runner: u32,
    pub(super) data: PathBuf,
}

impl Sampler {
    /// An error when one of the two is gone.
    pub(super) fn look(&self) -> Result<Sample> {
        let mut sample =
            Sample { at: self.watch.elapsed(), disk_bytes: bytes_under(&self.data), ..Sample::default() };
        for (pid, name) in [(self.node, "node"), (self.runner, "runner")] {
            let of = Self::process(pid).with_context(|| format!("the {name} is gone"))?;
            sample.memory_kib += of.memory_kib;
            sample.memory_peak_kib += of.memory_peak_kib;
            sample.descriptors += of.descriptors;
            sample.cpu_ticks += of.cpu_ticks;
        }
        Ok(sample)
    }

    fn process(pid: u32) -> Result<Sample> {
        let place = Path::new("/proc").join(pid.to_string());
        let status = fs::read_to_string(place.join("status"))?;
        let kib = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no memory")?;
            Ok(line.split_whitespace().next().context("no number")?.parse()?)
        };
        let stat = fs::read_to_string(place.join("stat"))?;
        // After the name, which may hold anything: state is the first, processor time the 12th and 13th.
        let fields = stat.rsplit_once(')').context("no name")?.1.split_whitespace();
        let ticks = fields.skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Sample {
            memory_kib: kib("VmRSS:")?,
            memory_peak_kib: kib("VmHWM:")?,
            descriptors: fs::read_dir(place.join("fd"))?.count() as u64,
            cpu_ticks: ticks,
            ..Sample::default()
        })
    }
}

/// Of all files below; what goes away meanwhile counts for nothing.
fn bytes_under(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(of) if of.is_dir() => bytes_under(&entry.path()),
            Ok(of) => of.len(),
            Err(_) => 0,
        })
        .sum()
}
