//! What `/proc` knows of a process: its processor time, its memory, whose runner it is.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Waits until a child has ended and leaves it to be reaped, so that `/proc` still tells of it.
pub(crate) fn wait_ended(pid: u32) -> Result<()> {
    waitid(WaitId::Pid(known(pid)?), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    Ok(())
}

/// Processor time of all its threads so far, in seconds; without its children's.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    // `utime` and `stime`, fields 14 and 15 of the whole line.
    sum_of_times(pid, 11..13)
}

/// The same with that of its children which have ended and were waited for.
pub(crate) fn cpu_seconds_with_children(pid: u32) -> Result<f64> {
    // `cutime` and `cstime` follow.
    sum_of_times(pid, 11..15)
}

/// The sum of some of the times of a process, by their places after its name.
fn sum_of_times(pid: u32, places: Range<usize>) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the process is gone already")?;
    // The name in parentheses may hold anything; the fields after it are numbers.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    #[allow(clippy::cast_precision_loss, reason = "a hundred per second")]
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Ok(places.map(|place| f64::from(ticks(place))).sum::<f64>() / per_second)
}

/// The most memory it has ever had, in KiB; `None` once it has ended.
pub(crate) fn peak_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The runner of a data directory.
pub(crate) fn runner_of(data_dir: &Path) -> Option<u32> {
    let wanted = ["runner".as_bytes(), b"--data-dir", data_dir.as_os_str().as_encoded_bytes()];
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.windows(wanted.len()).any(|words| words == wanted).then_some(pid)
    })
}

/// Ends a runner that would only wait for work that never comes: it must not run beside the next measurement.
pub(crate) fn end_runner_of(data_dir: &Path) -> Result<()> {
    if let Some(pid) = runner_of(data_dir) {
        // One that has just gone by itself is as good.
        let _ = kill_process(known(pid)?, Signal::KILL);
    }
    Ok(())
}

fn known(pid: u32) -> Result<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).context("not a process id")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_tells_of_this_very_process() {
        assert!(cpu_seconds(std::process::id()).unwrap() >= 0.0);
        assert!(peak_kib(std::process::id()).unwrap() > 100);
        assert_eq!(runner_of(Path::new("/nowhere/at/all")), None);
    }
}
