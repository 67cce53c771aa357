//! The start journal: what was started and how it ended, for the case that the runner itself is killed.
//!
//! ```text
//!  B boot-id                          the boot that pids and ticks below belong to
//!  R device-inode path-as-json        the directory that they belong to
//!  E epoch                            highest coordinator epoch seen
//!  S execution fence at_ms session log-as-json    about to start
//!  P execution fence pid tick tick    started; its start time lies between the two
//!  D json                             ended: the message as it is sent until acknowledged
//!  A execution fence                  acknowledged: forget it
//! ```
//!
//! Lines are gathered and written together; the loop flushes before a process is started and before an outcome
//! is told. Nothing is synced: a journal that a power loss took belongs to processes it took as well.
//!
//! A copy of a data directory has a copy of its journal, with processes in it that are the original's: it must not end
//! them. So a journal names its directory, and what is found elsewhere is as good as of another boot.
//!
//! The file is locked for as long as its runner lives, beside `runner.lock`: where one of them was deleted, the other
//! still says that there is a runner.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::protocol::{AttemptKey, FromRunner};
use crate::remnant;

/// A journal longer than this is rewritten without what was acknowledged.
const COMPACT_BYTES: u64 = 4 << 20;

/// The open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    owner: Owner,
    file: File,
    /// Lines not yet written.
    lines: String,
    file_bytes: u64,
    compact_at_bytes: u64,
}

/// Whose a journal is: on which boot of the machine, and of which directory.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub(crate) boot_id: String,
    pub(crate) directory: Directory,
}

/// What an earlier runner left behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Recalled {
    pub(crate) epoch: i64,
    pub(crate) open: Vec<Opened>,
    /// Ended and not acknowledged, as JSON of the message.
    pub(crate) ended: Vec<(AttemptKey, String)>,
}

/// An attempt that was started, or nearly, and of whose end nothing is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) key: AttemptKey,
    pub(crate) started_ms: i64,
    /// Session of the runner that started it; 0 if that was before a reboot, or of another directory.
    pub(crate) session: i32,
    pub(crate) log: String,
    pub(crate) leader: Option<Leader>,
}

/// A started process: pid and between which two ticks since boot it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) pid: i32,
    pub(crate) from_tick: u64,
    pub(crate) to_tick: u64,
}

impl Journal {
    /// Opens the journal, rewritten without what is over, and says what it knew.
    pub(crate) fn open(path: &Path, owner: &Owner) -> io::Result<(Journal, Recalled)> {
        let (file, file_bytes, recalled) = rewrite(path, owner)?;
        let journal = Journal {
            path: path.to_owned(),
            owner: owner.clone(),
            file,
            lines: String::new(),
            file_bytes,
            compact_at_bytes: COMPACT_BYTES.max(2 * file_bytes),
        };
        Ok((journal, recalled))
    }

    pub(crate) fn epoch(&mut self, epoch: i64) {
        push_line(&mut self.lines, format_args!("E {epoch}"));
    }

    pub(crate) fn starting(&mut self, opened: &Opened) {
        push_opened(&mut self.lines, opened);
    }

    pub(crate) fn started(&mut self, key: AttemptKey, leader: Leader) {
        push_leader(&mut self.lines, key, leader);
    }

    pub(crate) fn ended(&mut self, json: &str) {
        push_line(&mut self.lines, format_args!("D {json}"));
    }

    pub(crate) fn acknowledged(&mut self, keys: impl Iterator<Item = AttemptKey>) {
        for key in keys {
            push_line(&mut self.lines, format_args!("A {} {}", key.execution, key.fence));
        }
    }

    /// How much is gathered and not written.
    pub(crate) fn gathered(&self) -> usize {
        self.lines.len()
    }

    /// Takes back what was gathered beyond that: it did not happen.
    pub(crate) fn take_back(&mut self, gathered: usize) {
        self.lines.truncate(gathered);
    }

    /// Writes what was gathered. On an error it stays gathered and is tried again with the next lines.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        cis_fail::point("runner.before_journal");
        if let Err(error) = self.file.write_all(self.lines.as_bytes()) {
            // Half a line would swallow the next one.
            let _ = self.file.set_len(self.file_bytes);
            return Err(error);
        }
        cis_fail::point("runner.after_journal");
        self.file_bytes += self.lines.len() as u64;
        self.lines.clear();
        if self.file_bytes > self.compact_at_bytes {
            (self.file, self.file_bytes, _) = rewrite(&self.path, &self.owner)?;
            self.compact_at_bytes = COMPACT_BYTES.max(2 * self.file_bytes);
        }
        Ok(())
    }
}

/// The highest coordinator epoch that a journal knows of; 0 if there is none.
pub(crate) fn epoch_seen(path: &Path) -> io::Result<i64> {
    match File::open(path) {
        Ok(file) => Ok(recall(io::BufReader::new(file), None)?.0.epoch),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

fn push_line(lines: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = writeln!(lines, "{line}");
}

fn push_opened(lines: &mut String, opened: &Opened) {
    let Opened { key, started_ms, session, log, .. } = opened;
    let log = serde_json::Value::from(log.as_str());
    push_line(lines, format_args!("S {} {} {started_ms} {session} {log}", key.execution, key.fence));
}

fn push_leader(lines: &mut String, key: AttemptKey, leader: Leader) {
    let Leader { pid, from_tick, to_tick } = leader;
    push_line(lines, format_args!("P {} {} {pid} {from_tick} {to_tick}", key.execution, key.fence));
}

/// Reads the journal and replaces it by one that holds only what still matters.
fn rewrite(path: &Path, owner: &Owner) -> io::Result<(File, u64, Recalled)> {
    let (mut recalled, signed) = match File::open(path) {
        Ok(file) => recall(io::BufReader::new(file), Some(owner))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => (Recalled::default(), true),
        Err(error) => return Err(error),
    };
    // An earlier version did not say whose it is, but the processes do.
    if !signed && remnant::are_marked_elsewhere(&recalled.open, &owner.directory) {
        recalled.forget_processes();
    }
    let lines = lines_of(&recalled, owner);
    let new_path = path.with_extension("journal.new");
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).mode(0o600).open(&new_path)?;
    file.set_len(0)?;
    // Where files cannot be locked, `runner.lock` cannot either, and the runner would not have come this far.
    let _ = file.try_lock();
    file.write_all(lines.as_bytes())?;
    cis_fail::point("runner.before_rewrite");
    fs::rename(&new_path, path)?;
    cis_fail::point("runner.after_rewrite");
    Ok((file, lines.len() as u64, recalled))
}

/// The shortest journal that is recalled as this.
fn lines_of(recalled: &Recalled, owner: &Owner) -> String {
    let mut lines = String::new();
    let Owner { boot_id, directory } = owner;
    push_line(&mut lines, format_args!("B {boot_id}"));
    push_line(&mut lines, format_args!("R {directory}"));
    push_line(&mut lines, format_args!("E {}", recalled.epoch));
    for opened in &recalled.open {
        push_opened(&mut lines, opened);
        if let Some(leader) = opened.leader {
            push_leader(&mut lines, opened.key, leader);
        }
    }
    for (_, json) in &recalled.ended {
        push_line(&mut lines, format_args!("D {json}"));
    }
    lines
}

/// Replays the lines for a runner that would be their `owner`; says, too, whether they name their directory. What cannot be
/// read is passed over: a torn last line, or one of a later version.
fn recall(mut file: impl io::BufRead, owner: Option<&Owner>) -> io::Result<(Recalled, bool)> {
    let mut epoch = 0;
    let mut same_boot = false;
    let mut directory: Option<Directory> = None;
    let mut open: BTreeMap<AttemptKey, Opened> = BTreeMap::new();
    let mut ended = BTreeMap::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if file.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let whole = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok());
        let Some((kind, rest)) = whole.and_then(|line| line.split_once(' ')) else {
            continue;
        };
        match kind {
            "B" => same_boot = owner.is_some_and(|owner| rest == owner.boot_id),
            "R" => directory = rest.parse().ok(),
            "E" => epoch = rest.parse().unwrap_or(epoch).max(epoch),
            "S" => {
                // What has ended does not start again, whatever a damaged journal says.
                if let Some(opened) = parse_opened(rest)
                    && !ended.contains_key(&opened.key)
                {
                    open.insert(opened.key, opened);
                }
            }
            "P" => {
                if let Some((key, leader)) = parse_leader(rest)
                    && let Some(opened) = open.get_mut(&key)
                {
                    opened.leader = Some(leader);
                }
            }
            "D" => {
                if let Ok(FromRunner::Ended(message)) = serde_json::from_str(rest) {
                    open.remove(&message.key);
                    ended.insert(message.key, rest.to_owned());
                }
            }
            "A" => {
                if let Some(key) = parse_key(&mut rest.split(' ')) {
                    open.remove(&key);
                    ended.remove(&key);
                }
            }
            _ => {}
        }
    }
    let elsewhere = |directory: &Directory| owner.is_none_or(|owner| !directory.is_same(&owner.directory));
    let mut recalled =
        Recalled { epoch, open: open.into_values().collect(), ended: ended.into_iter().collect() };
    if !same_boot || directory.as_ref().is_some_and(elsewhere) {
        recalled.forget_processes();
    }
    Ok((recalled, directory.is_some()))
}

impl Recalled {
    /// The processes it names are not this runner's to end: they are gone, or another directory's.
    fn forget_processes(&mut self) {
        for opened in &mut self.open {
            (opened.session, opened.leader) = (0, None);
        }
    }
}

fn parse_key<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Option<AttemptKey> {
    let execution = fields.next()?.parse().ok()?;
    Some(AttemptKey { execution, fence: fields.next()?.parse().ok()? })
}

fn parse_opened(text: &str) -> Option<Opened> {
    let mut fields = text.splitn(5, ' ');
    let key = parse_key(&mut fields)?;
    let started_ms = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    Some(Opened { key, started_ms, session, log: serde_json::from_str(fields.next()?).ok()?, leader: None })
}

fn parse_leader(text: &str) -> Option<(AttemptKey, Leader)> {
    let mut fields = text.split(' ');
    let key = parse_key(&mut fields)?;
    let pid = fields.next()?.parse().ok()?;
    let from_tick = fields.next()?.parse().ok()?;
    Some((key, Leader { pid, from_tick, to_tick: fields.next()?.parse().ok()? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Ended, LogSummary, Outcome};

    fn owner(boot_id: &str, directory: &str) -> Owner {
        Owner { boot_id: boot_id.to_owned(), directory: directory.parse().unwrap() }
    }

    fn ours() -> Owner {
        owner("boot", "1-7 \"/data\"")
    }

    fn key(execution: i64) -> AttemptKey {
        AttemptKey { execution, fence: 5 << 32 }
    }

    fn opened(execution: i64) -> Opened {
        let log = format!("run/a \"b\"\n{execution}");
        Opened { key: key(execution), started_ms: 17, session: 99, log, leader: None }
    }

    fn ended_json(execution: i64) -> String {
        let ended = Ended {
            key: key(execution),
            outcome: Outcome::Exited { code: 3 },
            started_ms: 1,
            ended_ms: 2,
            log: LogSummary::default(),
            outputs: Some("a\nb".into()),
        };
        serde_json::to_string(&FromRunner::Ended(Box::new(ended))).unwrap()
    }

    fn fill(journal: &mut Journal) {
        journal.epoch(4);
        for execution in 1..=4 {
            journal.starting(&opened(execution));
        }
        journal.started(key(1), Leader { pid: 7, from_tick: 1, to_tick: 2 });
        journal.ended(&ended_json(2));
        journal.ended(&ended_json(3));
        journal.acknowledged([key(3)].into_iter());
        journal.flush().unwrap();
    }

    #[test]
    fn remembers_across_reopening_and_forgets_what_was_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runner.journal");
        let (mut journal, recalled) = Journal::open(&path, &ours()).unwrap();
        assert_eq!(recalled, Recalled::default());
        fill(&mut journal);
        let started = Opened { leader: Some(Leader { pid: 7, from_tick: 1, to_tick: 2 }), ..opened(1) };
        let expected =
            Recalled { epoch: 4, open: vec![started, opened(4)], ended: vec![(key(2), ended_json(2))] };
        for _ in 0..2 {
            assert_eq!(Journal::open(&path, &ours()).unwrap().1, expected);
        }
        let after_reboot = Journal::open(&path, &owner("other", "1-7 \"/data\"")).unwrap().1;
        assert!(after_reboot.open.iter().all(|opened| opened.leader.is_none() && opened.session == 0));
        assert_eq!(after_reboot.ended, expected.ended);
    }

    #[test]
    fn journal_of_another_directory_names_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runner.journal");
        let (mut journal, _) = Journal::open(&path, &ours()).unwrap();
        fill(&mut journal);
        let moved = Journal::open(&path, &owner("boot", "1-7 \"/moved\"")).unwrap().1;
        assert!(moved.open[0].leader.is_some(), "it is the same directory");
        let copied = Journal::open(&path, &owner("boot", "1-8 \"/copy\"")).unwrap().1;
        assert_eq!(copied.open.len(), 2, "what was open is still to be told of");
        assert!(copied.open.iter().all(|opened| opened.leader.is_none() && opened.session == 0));
    }

    #[test]
    fn what_has_ended_does_not_start_again() {
        let mut lines = format!("B boot\nD {}\n", ended_json(2));
        push_opened(&mut lines, &opened(2));
        let recalled = recall(lines.as_bytes(), Some(&ours())).unwrap().0;
        assert_eq!((recalled.open, recalled.ended), (vec![], vec![(key(2), ended_json(2))]));
    }

    #[test]
    fn a_torn_last_line_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runner.journal");
        fill(&mut Journal::open(&path, &ours()).unwrap().0);
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let recalled = Journal::open(&path, &ours()).unwrap().1;
            assert!(recalled.open.len() + recalled.ended.len() <= 4);
        }
    }

    /// What is recalled is written down so that it is recalled again, whatever the journal held.
    #[test]
    fn fuzz_journals() {
        cis_fuzz::fuzz(&cis_fuzz::Corpus::of("journal"), |lines| {
            let (ours, rebooted) = (ours(), owner("another boot", "1-7 \"/data\""));
            let (recalled, _) = recall(lines, Some(&ours)).unwrap();
            let again = recall(&*lines_of(&recalled, &ours).into_bytes(), Some(&ours)).unwrap();
            assert_eq!(again, (recalled.clone(), true));
            let (rebooted, _) = recall(lines, Some(&rebooted)).unwrap();
            assert!(rebooted.open.iter().all(|opened| opened.leader.is_none() && opened.session == 0));
            !recalled.open.is_empty() && !recalled.ended.is_empty()
        });
    }

    #[test]
    fn stays_small_while_everything_is_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runner.journal");
        let (mut journal, _) = Journal::open(&path, &ours()).unwrap();
        for execution in 0..40_000 {
            journal.starting(&opened(execution));
            journal.ended(&ended_json(execution));
            journal.acknowledged([key(execution)].into_iter());
            if execution % 10 == 0 {
                journal.flush().unwrap();
            }
        }
        journal.flush().unwrap();
        assert!(fs::metadata(&path).unwrap().len() <= COMPACT_BYTES + 10_000);
    }

    #[test]
    fn what_finds_no_room_is_kept_and_what_is_taken_back_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runner.journal");
        let (mut journal, _) = Journal::open(&path, &ours()).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let disk = std::mem::replace(&mut journal.file, full);
        journal.starting(&opened(1));
        journal.ended(&ended_json(1));
        let lines = journal.gathered();
        journal.starting(&opened(2));
        assert_eq!(journal.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
        journal.take_back(lines);
        journal.file = disk;
        journal.flush().unwrap();
        let recalled = Journal::open(&path, &ours()).unwrap().1;
        assert_eq!((recalled.open, recalled.ended), (vec![], vec![(key(1), ended_json(1))]));
    }
}
