//! What the figures depend on, so that the page can say it: cores, kernel, file system, and how busy all of it is.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use xtask::clock::Stopwatch;
use xtask::run::output;

use crate::contest::percentile;

/// How often the disk is asked for its time.
const SYNCS: usize = 200;

/// What one sync writes: a page of the store.
const PAGE_BYTES: usize = 4096;

/// How busy the machine was just before a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conditions {
    /// Share of the last ten seconds in which someone waited for a core, in percent; includes what was measured
    /// just before.
    pub(crate) pressure: Option<f64>,
    /// Median of an append of one page and its `fdatasync`.
    pub(crate) sync_ms: f64,
}

impl Conditions {
    /// How it is now, on the file system of `dir`.
    pub(crate) fn now(dir: &Path) -> Result<Self> {
        Ok(Self { pressure: pressure(), sync_ms: sync_ms(dir)? })
    }
}

fn pressure() -> Option<f64> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10="))?;
    some.split_whitespace().next()?.parse().ok()
}

fn sync_ms(dir: &Path) -> Result<f64> {
    let path = dir.join("sync-probe");
    let mut file = File::create(&path).context("cannot make a file to sync")?;
    let mut took = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let watch = Stopwatch::start();
        file.write_all(&[0x5a; PAGE_BYTES])?;
        file.sync_data()?;
        took.push(watch.seconds() * 1e3);
    }
    fs::remove_file(path)?;
    Ok(percentile(&took, 0.5))
}

/// Cores, kernel and file system, in words.
pub(crate) fn describe(dir: &Path) -> Result<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let table = output(Command::new("df").arg("--output=fstype").arg(dir))?;
    let file_system = table.lines().last().unwrap_or_default();
    Ok(format!("{} cores, Linux {}, {file_system}", cores(), kernel.trim()))
}

/// How many tasks run at once, in every tool.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
