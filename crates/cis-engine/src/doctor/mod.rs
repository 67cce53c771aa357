//! Is everything of a data directory in order? Looks at it from outside, whether a coordinator works on it or not, and
//! repairs on request what can be repaired without guessing.
//!
//! | module | what it looks at |
//! |---|---|
//! | `place` | whose the files are and who may read them, the disk, files that nothing needs |
//! | `skills` | kept skills that are damaged, missing or needed by nothing |
//! | `strays` | processes of attempts that are not under way |
//!
//! Repairs that could disturb a coordinator are made by whoever holds its lock, so never while one works.

mod place;
mod skills;
mod strays;

pub use place::bytes;

use cis_api::node::CoordinatorInfo;
use cis_core::error::Refusal;
use cis_core::id::Epoch;
use cis_runner::client::{RunnerProcess, find_runner};
use cis_store::Reader;
use cis_store::StoreError;
use cis_store::check::Check;
use cis_store::port::damaged;
use serde::Serialize;

use crate::data_dir::DataDir;

/// Findings of one check that are told; the rest is counted.
const TOLD_MAX: usize = 50;

/// What one check came to.
#[derive(Debug, Clone, Serialize)]
pub struct Examined {
    pub check: &'static str,
    pub state: State,
    /// In a line.
    pub detail: String,
    /// What is wrong, or worth knowing, one by one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<String>,
    /// What was done about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub repaired: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Sound,
    /// Nothing wrong, but worth knowing.
    Note,
    /// It was wrong, and no longer is.
    Repaired,
    Problem,
    /// It could not be looked at.
    Unknown,
}

impl State {
    /// The word people see.
    pub fn word(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Note => "note",
            Self::Repaired => "repaired",
            Self::Problem => "problem",
            Self::Unknown => "unknown",
        }
    }

    /// Is somebody needed?
    pub fn is_bad(self) -> bool {
        matches!(self, Self::Problem | Self::Unknown)
    }
}

impl Examined {
    fn new(check: &'static str, state: State, detail: impl Into<String>) -> Self {
        let (found, repaired, hint) = (Vec::new(), Vec::new(), None);
        Self { check, state, detail: detail.into(), found, repaired, hint }
    }

    fn sound(check: &'static str, detail: impl Into<String>) -> Self {
        Self::new(check, State::Sound, detail)
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Something was looked for that should not be there: sound, if there was none of it.
    fn of(check: &'static str, none: &str, mut found: Vec<String>) -> Self {
        let Some(first) = found.first() else { return Self::sound(check, none) };
        let detail = if found.len() == 1 { first.clone() } else { format!("{} findings", found.len()) };
        let more = found.len().saturating_sub(TOLD_MAX);
        found.truncate(TOLD_MAX);
        if more > 0 {
            found.push(format!("and {more} more"));
        }
        Self { found, ..Self::new(check, State::Problem, detail) }
    }

    /// The same where some of it was repaired.
    fn repairable(
        check: &'static str,
        none: &str,
        found: Vec<String>,
        repaired: Vec<String>,
        hand: Hand,
    ) -> Self {
        let told = match (found.is_empty(), repaired.as_slice()) {
            (false, _) => Self::of(check, none, found).hint(hand.remedy()),
            (true, []) => Self::sound(check, none),
            (true, [only]) => Self::new(check, State::Repaired, only.clone()),
            (true, all) => Self::new(check, State::Repaired, format!("{} repairs", all.len())),
        };
        Self { repaired, ..told }
    }
}

/// Looks at everything. With `repair`, what can be repaired is. `about` is what the coordinator says of itself, if one
/// answers; `why_silent` finds out why the holder of its lock does not, and is asked only then.
pub fn examine(
    data_dir: &DataDir,
    about: Option<&CoordinatorInfo>,
    why_silent: impl FnOnce() -> Refusal,
    repair: bool,
) -> Result<Vec<Examined>, Refusal> {
    data_dir.check_used()?;
    // Before the database is opened: what SQLite puts beside it is as open to others as it is.
    let permissions = place::permissions(data_dir, repair);
    let mut examined = vec![
        coordinator(data_dir, about, why_silent),
        runner(data_dir, about),
        place::origin(data_dir),
        permissions,
        place::disk(data_dir),
    ];
    let reader = data_dir.check_database().and_then(|()| Ok(Reader::open(&data_dir.database())?));
    let database = database(reader.as_ref());
    let sound = database.iter().all(|examined| !examined.state.is_bad());
    examined.extend(database);
    // Held only while something may be changed: whoever wants to work meanwhile waits.
    let lock = if repair { data_dir.try_lock().ok().flatten() } else { None };
    let hand = Hand { repair, free: lock.is_some(), works: about.is_some() };
    // Without a database to believe, nothing is known to be needed or not.
    if let Some(reader) = reader.as_ref().ok().filter(|_| sound) {
        examined.push(place::files(data_dir, reader, hand)?);
        examined.push(skills::skills(data_dir, reader, repair)?);
        examined.push(strays::strays(data_dir, reader, hand)?);
    } else {
        for check in ["files", "skills", "strays"] {
            examined.push(Examined::new(check, State::Unknown, "the database must be sound to tell"));
        }
    }
    Ok(examined)
}

/// What may be changed.
#[derive(Debug, Clone, Copy)]
struct Hand {
    /// Repairs are wanted.
    repair: bool,
    /// Nobody works on the directory, and nobody can begin to.
    free: bool,
    /// A coordinator works on it.
    works: bool,
}

impl Hand {
    /// What to do about something that could be repaired, and was not.
    fn remedy(self) -> &'static str {
        match (self.repair, self.free) {
            (true, false) => "stop whoever coordinates, and `cis doctor --repair` again",
            _ => "`cis doctor --repair`",
        }
    }
}

fn coordinator(
    data_dir: &DataDir,
    about: Option<&CoordinatorInfo>,
    why_silent: impl FnOnce() -> Refusal,
) -> Examined {
    let Some(about) = about else {
        return match data_dir.try_lock() {
            Ok(Some(_)) => Examined::sound("coordinator", nobody(data_dir)),
            Ok(None) => {
                let silent = why_silent();
                Examined::new("coordinator", State::Problem, silent.message)
                    .hint(silent.hint.unwrap_or_default())
            }
            Err(e) => Examined::new("coordinator", State::Unknown, format!("cannot try its lock: {e}")),
        };
    };
    let address = about.address.as_ref().map(|address| format!(" on {address}")).unwrap_or_default();
    let mut told = format!("process {}{address}, epoch {}", about.pid, about.epoch);
    if let Some(recovery) = &about.recovery {
        told += &format!("; {recovery}");
    }
    Examined::sound("coordinator", told)
}

/// Does the runner go on, if there is one?
fn runner(data_dir: &DataDir, about: Option<&CoordinatorInfo>) -> Examined {
    if let Some(silent) = about.and_then(|about| about.runner.as_ref()) {
        let hint = silent.hint.clone().unwrap_or_default();
        return Examined::new("runner", State::Problem, silent.message.clone()).hint(hint);
    }
    match find_runner(data_dir.root()) {
        Some(RunnerProcess { pid, stopped: true }) => {
            let why = format!("process {pid} is stopped: no task goes on");
            Examined::new("runner", State::Problem, why).hint(format!("`kill -CONT {pid}` lets it go on"))
        }
        Some(RunnerProcess { pid, .. }) => Examined::sound("runner", format!("process {pid}")),
        None => Examined::sound("runner", "none: one starts when there is something to run"),
    }
}

fn nobody(data_dir: &DataDir) -> String {
    let epoch = Reader::open(&data_dir.database()).and_then(|reader| reader.epoch()).ok();
    let last_stop = data_dir.last_stop();
    match epoch {
        Some(Epoch(0)) | None => "nobody coordinates".to_owned(),
        Some(epoch) if last_stop == Some(epoch) => {
            format!("nobody coordinates; the last one (epoch {epoch}) stopped in good order")
        }
        Some(epoch) => format!(
            "nobody coordinates; the last one (epoch {epoch}) was killed, or not through with looking the database over"
        ),
    }
}

/// The database itself: SQLite's view of it, what must hold between rows, and the event log.
fn database(reader: Result<&Reader, &Refusal>) -> Vec<Examined> {
    let checks = [
        ("integrity", Check::Integrity, "every page, index and constraint"),
        ("invariants", Check::Invariants, "what must hold between rows does"),
        ("events", Check::Events, "folding the event log gives every row"),
    ];
    let mut examined = Vec::new();
    for (name, check, none) in checks {
        // What comes after damage would only tell of the same damage in other words.
        let damaged_before = examined.iter().any(|before: &Examined| before.state.is_bad());
        examined.push(match reader {
            Ok(reader) if !damaged_before => database_check(name, none, check.violations(reader)),
            Err(refusal) if name == "integrity" => {
                let hint = refusal.hint.clone().unwrap_or_default();
                Examined::new(name, State::Problem, refusal.message.clone()).hint(hint)
            }
            _ => Examined::new(name, State::Unknown, "the database must be whole to tell"),
        });
    }
    examined
}

fn database_check(name: &'static str, none: &str, answer: Result<Vec<String>, StoreError>) -> Examined {
    match answer {
        Ok(found) if found.is_empty() => Examined::sound(name, none),
        Ok(found) => Examined::of(name, none, found).hint(damaged("").hint.unwrap_or_default()),
        Err(e) => {
            let refusal = Refusal::from(e);
            let hint = refusal.hint.clone().unwrap_or_default();
            Examined::new(name, State::Problem, refusal.message).hint(hint)
        }
    }
}
