//! Mixed load and no blows: what grows that should not, and who gets into whose way. Beside the clients of a storm there is
//! somebody who looks at the database for seconds on end, somebody who follows everything that happens, and somebody who
//! makes backups. None of them waits for another: what is seen while a backup is made counts like the rest.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rusqlite::{Connection, OpenFlags};

use super::record::{Answer, Entry};
use super::storm::{SLOTS, judge, with_clients};
use super::victim::Victim;
use super::{conclude, count};
use crate::clock::{Stopwatch, pause};
use crate::{Dose, Finding};

/// Between two looks at log and memory.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Somebody reads from one snapshot for so many looks, and lets go for one.
const READ_FOR: usize = 5;

/// Looks from one backup to the next, unless that one is still being made.
const BACKUP_EVERY: usize = 30;

/// The log of the database may grow to this size.
const LOG_BYTES_MAX: u64 = 128 << 20;

/// With so many looks, the memory of the last third is held against that of the one before it.
const LOOKS_MIN: usize = 180;

/// It may be so many hundredths of it.
const MEMORY_MAX: u64 = 110;

/// What was seen while clients worked.
#[derive(Debug, Default)]
struct Seen {
    log_bytes: Vec<u64>,
    memory_kib: Vec<u64>,
    backups_ms: Vec<u64>,
    followed_bytes: u64,
}

/// Looks on for as many seconds as there are rounds, or until the time is over; judges what was seen and what is left.
pub fn run(dose: &Dose) -> Result<Finding> {
    let mut victim = Victim::start(SLOTS)?;
    let (seen, entries) = with_clients(&mut victim, dose.seed, |victim, storm| {
        look_on(victim, |looks| storm.watch.lets(looks, dose))
    })?;
    let judged = seen.and_then(|seen| {
        let (evidence, mut wrong) = judge(&mut victim, entries, &[])?;
        wrong.extend(wrong_with(&seen));
        wrong.extend(evidence.entries.iter().filter_map(in_the_way));
        wrong.extend(complaints(&fs::read_to_string(victim.path("node.log"))?));
        Ok((told(&seen, evidence.entries.len(), evidence.runs.len()), wrong))
    });
    let (mut finding, wrong) = judged.unwrap_or_else(|e| (Finding::default(), vec![format!("{e:#}")]));
    conclude(&mut finding, dose.seed, wrong, &mut victim);
    Ok(finding)
}

fn look_on(victim: &mut Victim, goes_on: impl Fn(u64) -> bool) -> Result<Seen> {
    let followed = AtomicU64::new(0);
    let follower = follow(victim)?;
    let end = follower.try_clone()?;
    let mut seen = thread::scope(|scope| {
        scope.spawn(|| drain(follower, &followed));
        let seen = looks(victim, goes_on);
        // Ends the follower as well.
        let _ = end.shutdown(std::net::Shutdown::Both);
        seen
    })?;
    seen.followed_bytes = followed.into_inner();
    Ok(seen)
}

fn looks(victim: &mut Victim, goes_on: impl Fn(u64) -> bool) -> Result<Seen> {
    let (mut seen, mut reading, mut backup) = (Seen::default(), None, None);
    let database = victim.data().join("dag.db");
    for look in 0.. {
        let is_over = !goes_on(look as u64);
        // The last backup is looked at to its end.
        if is_over && backup.is_none() {
            break;
        }
        pause(LOOK_EVERY);
        victim.must_live()?;
        seen.log_bytes.push(fs::metadata(victim.data().join("dag.db-wal")).map_or(0, |file| file.len()));
        seen.memory_kib.push(memory_kib(victim.pid()?)?);
        match look % (READ_FOR + 1) {
            0 => reading = Some(snapshot(&database)?),
            READ_FOR => reading = None,
            _ => {}
        }
        if let Some(made) = backup.take_if(|backup: &mut JoinHandle<_>| backup.is_finished()) {
            seen.backups_ms.push(made.join().map_err(|_| anyhow!("whoever made a backup panicked"))??);
        }
        if look % BACKUP_EVERY == BACKUP_EVERY / 2 && backup.is_none() && !is_over {
            let file = victim.path(&format!("backup-{look}.db"));
            backup = Some(back_up(victim.cis(&["backup"], &file), file));
        }
    }
    drop(reading);
    Ok(seen)
}

/// Makes a backup beside everything else, and removes it. Answers how many milliseconds it took.
fn back_up(mut cis: Command, file: PathBuf) -> JoinHandle<Result<u64>> {
    thread::spawn(move || {
        let watch = Stopwatch::start();
        let done = cis.output()?;
        let took = watch.elapsed();
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        ensure!(done.status.success(), "a backup failed, {}:\n{}", done.status, said.trim_end());
        fs::remove_file(file)?;
        Ok(u64::try_from(took.as_millis())?)
    })
}

/// A reader that keeps seeing what was there when it came: the log cannot be begun anew while it is there.
fn snapshot(database: &Path) -> Result<Connection> {
    let reader = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    reader.execute_batch("BEGIN")?;
    reader.query_row("SELECT count(*) FROM events", [], |_| Ok(()))?;
    Ok(reader)
}

/// A connection on which everything that happens is told.
fn follow(victim: &Victim) -> Result<TcpStream> {
    let token = victim.token("follower")?;
    let host = victim.door().wait().context("the node is down")?.address;
    let mut stream = TcpStream::connect(host)?;
    write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n")?;
    Ok(stream)
}

fn drain(mut stream: TcpStream, bytes: &AtomicU64) {
    let mut piece = [0; 1 << 16];
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        bytes.fetch_add(read as u64, Ordering::Relaxed);
    }
}

fn memory_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no `VmRSS`")?;
    Ok(line.split_whitespace().next().context("no number")?.parse()?)
}

/// What grew.
fn wrong_with(seen: &Seen) -> Vec<String> {
    let mut wrong = Vec::new();
    let longest = seen.log_bytes.iter().copied().max().unwrap_or(0);
    if longest > LOG_BYTES_MAX {
        wrong.push(format!("the log of the database grew to {} MiB", longest >> 20));
    }
    if seen.followed_bytes == 0 {
        wrong.push("whoever followed along heard nothing".to_owned());
    }
    let third = seen.memory_kib.len() / 3;
    if seen.memory_kib.len() >= LOOKS_MIN {
        let (before, after) =
            (median(&seen.memory_kib[third..2 * third]), median(&seen.memory_kib[2 * third..]));
        if after * 100 > before * MEMORY_MAX {
            wrong.push(format!("the node's memory grows: {before} KiB, then {after} KiB"));
        }
    }
    wrong
}

fn median(of: &[u64]) -> u64 {
    let mut of = of.to_vec();
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or(0)
}

/// A request that failed though nothing was broken.
fn in_the_way(entry: &Entry) -> Option<String> {
    match &entry.answer {
        Answer::Acknowledged(_) | Answer::Refused { status: 400..500, .. } => None,
        Answer::Refused { .. } | Answer::Unknown => Some(format!("nobody broke anything: {entry}")),
    }
}

/// What the node says of a database that somebody else holds.
fn complaints(log: &str) -> Vec<String> {
    let busy = |line: &&str| ["locked", "busy", "BUSY"].iter().any(|word| line.contains(word));
    log.lines().filter(busy).map(|line| format!("the node complains: {line}")).collect()
}

fn told(seen: &Seen, requests: usize, runs: usize) -> Finding {
    let mut finding = Finding::default();
    let most = |of: &[u64]| usize::try_from(of.iter().copied().max().unwrap_or(0)).unwrap_or(usize::MAX);
    count(&mut finding, "seconds", seen.log_bytes.len());
    count(&mut finding, "requests", requests);
    count(&mut finding, "runs", runs);
    count(&mut finding, "backups", seen.backups_ms.len());
    count(&mut finding, "ms of the slowest backup", most(&seen.backups_ms));
    count(&mut finding, "bytes of events followed", most(&[seen.followed_bytes]));
    count(&mut finding, "KiB of log, at most", most(&seen.log_bytes) >> 10);
    let third = seen.memory_kib.len() / 3;
    count(&mut finding, "KiB of memory, in the first third", most(&[median(&seen.memory_kib[..third])]));
    count(&mut finding, "KiB of memory, in the last", most(&[median(&seen.memory_kib[2 * third..])]));
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(memory_kib: Vec<u64>) -> Seen {
        Seen { log_bytes: vec![1 << 20], memory_kib, followed_bytes: 1, ..Seen::default() }
    }

    #[test]
    fn what_grows_is_seen() {
        assert!(wrong_with(&seen(vec![100; 200])).is_empty());
        assert_eq!(wrong_with(&seen((0..200).map(|n| 100 + n).collect())).len(), 1);
        let log_bytes = vec![LOG_BYTES_MAX + 1];
        assert_eq!(wrong_with(&Seen { log_bytes, ..seen(vec![100; 200]) }).len(), 1);
        assert_eq!(wrong_with(&Seen { followed_bytes: 0, ..seen(vec![100; 200]) }).len(), 1);
    }

    #[test]
    fn a_backup_that_fails_is_heard_of() {
        let mut fails = Command::new("sh");
        fails.args(["-c", "echo no room >&2; exit 3"]);
        let problem = back_up(fails, PathBuf::from("none")).join().unwrap().unwrap_err().to_string();
        assert!(problem.contains("status: 3") && problem.contains("no room"), "{problem}");
    }

    #[test]
    fn whoever_is_in_the_way_is_heard_of() {
        assert_eq!(complaints("a\nthe database is locked (5)\nb").len(), 1);
    }
}
