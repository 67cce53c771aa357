//! A data directory in one file: a moment of its database, and the files without which that would be of little use.
//!
//! | in it | why |
//! |---|---|
//! | the database | everything that was acknowledged before the moment, hashes of tokens included |
//! | `node.key` | the node stays who it is |
//! | `contexts/` of unfinished runs | the rest of their tasks start in the same surroundings |
//! | `skills/` of revisions that are confirmed or wait to be | they run with what was confirmed, wherever it is restored |
//! | `logs/`, if asked for | what tasks printed |
//!
//! It is taken while others go on, and checked before it gets its name.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::RunKey;
use cis_core::source::Timestamp;
use cis_store::{Copy, Label, Moment, PinnedSkill, Reader, check};

use crate::data_dir::{DataDir, names};
use crate::skill::KeptSkills;
use crate::skill::kept::name_of;

/// A run may begin and end just while its moment is taken; then there are no surroundings to keep, and another moment is
/// taken. More often than this, they are not there at all, and the backup is as good as the directory.
const TRIES: u32 = 5;

/// A backup that was taken.
#[derive(Debug, Clone)]
pub struct Taken {
    pub label: Label,
    pub bytes: u64,
    pub runs: u64,
    /// Files beside the database.
    pub files: usize,
    /// Skills that a revision needs and that are not in it: not kept in the directory, or altered there.
    pub skills_missing: Vec<PinnedSkill>,
}

/// Files by their names in the backup.
type Files = Vec<(String, Vec<u8>)>;

/// Takes one.
pub fn take(data_dir: &DataDir, file: &Path, logs: bool, now: Timestamp) -> Result<Taken, Refusal> {
    data_dir.check_used()?;
    data_dir.check_database()?;
    refuse_existing(file)?;
    let part = Part(file.with_added_extension(format!("{}.part", std::process::id())));
    // What a process of the same number left when it was killed.
    let _ = fs::remove_file(&part.0);
    let (moment, mut files) = moment(data_dir)?;
    let position = moment.reader().last_position()?;
    let label = Label { taken_at: now, position, version: env!("CARGO_PKG_VERSION").to_owned() };
    let mut copy = moment.copy_to(&part.0, &label)?;
    let runs = moment.reader().run_count()?;
    files.extend(read(&data_dir.node_key(), "node.key")?);
    let mut count = files.len();
    copy.add_files(files)?;
    let (skills, skills_missing) = add_skills(&mut copy, data_dir, moment.reader())?;
    count += skills;
    if logs {
        count += add_logs(&mut copy, data_dir, moment.reader())?;
    }
    drop((copy, moment));
    verify(&part.0)?;
    let kept = keep(&part.0, file).map_err(|e| unable("write", file, &e))?;
    Ok(Taken { label, bytes: kept, runs, files: count, skills_missing })
}

/// What is half written; gone unless it has got its name.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn refuse_existing(file: &Path) -> Result<(), Refusal> {
    if !file.exists() {
        return Ok(());
    }
    let why = format!("`{}` exists already", file.display());
    Err(Refusal::new(ErrorCode::AlreadyExists, why).hint("choose another name, or remove it first"))
}

/// A moment, with the surroundings of every run that was not over then.
fn moment(data_dir: &DataDir) -> Result<(Moment, Files), Refusal> {
    let mut tries = 0;
    loop {
        let before = contexts(data_dir).map_err(|e| unable("read", data_dir.root(), &e))?;
        let moment = Moment::of(&data_dir.database())?;
        let mut files = Files::new();
        let unfinished = moment.reader().unfinished()?;
        let (at_node, own): (Vec<_>, Vec<_>) = unfinished.iter().partition(|run| run.at_node);
        for run in &own {
            // A run's surroundings are there before it is, and go after it. Until the loop has taken it in, they have
            // another name.
            let places = [data_dir.context(run.key.0), data_dir.context_of_new(run.run_id)];
            let now = places.iter().find_map(|place| fs::read(place).ok());
            let found = now.or_else(|| places.iter().find_map(|place| before.get(place).cloned()));
            files.extend(found.map(|content| (format!("contexts/{}.json", run.key), content)));
        }
        tries += 1;
        if files.len() == own.len() || tries == TRIES {
            if !at_node.is_empty() {
                files.extend(read(&data_dir.node_context(), "contexts/node.json")?);
            }
            return Ok((moment, files));
        }
    }
}

fn contexts(data_dir: &DataDir) -> io::Result<HashMap<PathBuf, Vec<u8>>> {
    let mut found = HashMap::new();
    for entry in fs::read_dir(data_dir.contexts())? {
        let path = entry?.path();
        // One that goes while we look was of a run that is over.
        if let Ok(content) = fs::read(&path) {
            found.insert(path, content);
        }
    }
    Ok(found)
}

/// The skills that revisions in the backup need, each in one piece under its hash; answers how many these are, and
/// which of them are not there.
fn add_skills(
    copy: &mut Copy,
    data_dir: &DataDir,
    moment: &Reader,
) -> Result<(usize, Vec<PinnedSkill>), Refusal> {
    let kept = KeptSkills::of(data_dir);
    // None goes while it is copied.
    let _lock = data_dir.skills().exists().then(|| kept.lock()).transpose();
    let (mut added, mut missing) = (BTreeSet::new(), Vec::new());
    for pinned in moment.pinned_skills()? {
        let Some(name) = name_of(&pinned.tree_hash) else { continue };
        if added.contains(name) {
            continue;
        }
        match kept.pack(&pinned.tree_hash) {
            Some(packed) => {
                copy.add_files([(format!("skills/{name}"), packed)])?;
                added.insert(name.to_owned());
            }
            None => missing.push(pinned),
        }
    }
    Ok((added.len(), missing))
}

/// What tasks of the runs in the backup printed, a run at a time; answers how many files that is.
fn add_logs(copy: &mut Copy, data_dir: &DataDir, moment: &Reader) -> Result<usize, Refusal> {
    let mut count = 0;
    for run in names(&data_dir.all_logs()) {
        let Ok(key) = run.parse() else { continue };
        if moment.run(RunKey(key))?.is_none() {
            continue;
        }
        let directory = data_dir.logs(key);
        let mut files = Files::new();
        for name in names(&directory) {
            files.extend(read(&directory.join(&name), &format!("logs/{run}/{name}"))?);
        }
        count += files.len();
        copy.add_files(files)?;
    }
    Ok(count)
}

/// A file under its name in the backup; nothing if it is not there.
fn read(path: &Path, name: &str) -> Result<Option<(String, Vec<u8>)>, Refusal> {
    match fs::read(path) {
        Ok(content) => Ok(Some((name.to_owned(), content))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(unable("read", path, &e)),
    }
}

/// Refuses a copy that is not what it should be: better none than one that fails when it is needed.
pub(crate) fn verify(file: &Path) -> Result<(), Refusal> {
    let wrong = check::violations(&Reader::open(file)?)?;
    let Some(first) = wrong.first() else { return Ok(()) };
    let why = format!("a copy of the database is not sound: {first}");
    let told = Refusal::new(ErrorCode::DatabaseDamaged, why).details(serde_json::json!(wrong));
    Err(told.hint("`cis doctor` says whether the database itself is"))
}

/// Forces it to disk and gives it its name; answers how long it is.
fn keep(part: &Path, file: &Path) -> io::Result<u64> {
    let written = File::open(part)?;
    written.sync_all()?;
    fs::rename(part, file)?;
    sync_parent(file)?;
    Ok(written.metadata()?.len())
}

/// Makes names in the directory of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

pub(crate) fn unable(what: &str, path: &Path, e: &io::Error) -> Refusal {
    Refusal::new(ErrorCode::Unavailable, format!("cannot {what} `{}`: {e}", path.display()))
}
