//! Skills: programs that DAGs call by name. A skill is a directory on a search path:
//!
//! ```text
//! .cis/skills/
//!   lint/
//!     SKILL.md      front matter with `name`, `description` and our `command`
//!     run.py        whatever the command needs
//! ```
//!
//! Its `command` is a shell command line. It runs in its task's working directory; its own files are under
//! `$CIS_SKILL_DIR`. Its input comes as JSON on stdin and in `$CIS_INPUT`. What a DAG's confirmation covers of a
//! skill is its tree hash (`tree`), so that a changed skill needs a new confirmation.
//!
//! This module finds, describes and keeps skills. It deliberately does not run them.
//!
//! | module | what lives there |
//! |---|---|
//! | `manifest` | the file that describes a skill |
//! | `tree`, `packed` | a skill's files as one sequence of bytes, its hash, and back |
//! | `kept` | skills kept by content in the data directory, from where they run |
//! | `checked` | kept skills, checked before every attempt |
//! | `shown` | what a kept skill has in it, for people |

pub(crate) mod checked;
pub(crate) mod kept;
mod manifest;
mod packed;
mod shown;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use cis_core::dag::{Dag, Kind, Problem, ProblemCode};
use cis_core::id::{BadName, is_name};

pub use kept::{KeptLock, KeptSkills, keep};
pub use shown::{KeptFile, KeptTree, Shown};

/// Prints its task's name, and its input if it has any. Reads them from the environment and prints them as
/// data, so no input can become code.
const ECHO: &str = r#"printf '%s\n' "$CIS_TASK_NAME"; case "$CIS_INPUT" in ''|null|'{}') ;; *) printf '%s\n' "$CIS_INPUT" ;; esac"#;

/// A skill, found and readable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// What a DAG calls it: the name of its directory.
    pub name: String,
    pub description: Option<String>,
    pub version: Option<String>,
    /// Where it lives; `None` for a built-in one.
    pub dir: Option<PathBuf>,
    /// The file that describes it.
    pub file: Option<PathBuf>,
    /// Program and arguments; `None` if it is instructions only.
    pub program: Option<Vec<String>>,
    /// `sha256:…` over its files, or `builtin:…`.
    pub tree_hash: String,
}

/// A skill, or why what stands in its place is none.
#[derive(Debug)]
pub struct Listed {
    pub name: String,
    pub skill: Result<Skill, SkillError>,
}

/// Why a skill cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SkillError {
    #[error(transparent)]
    BadName(#[from] BadName),
    #[error("there is no skill `{name}` in {}", listing(searched))]
    NotFound { name: String, searched: Vec<PathBuf>, nearest: Option<String> },
    #[error("skill `{name}` cannot be used: {why}")]
    Invalid { name: String, why: String, hint: Option<String> },
    #[error("skill `{name}` has no command: it is instructions only")]
    NoCommand { name: String, file: PathBuf },
    #[error("skill `{name}`: cannot read `{}`: {error}", path.display())]
    Io { name: String, path: PathBuf, error: io::Error },
}

/// Where skills are looked for, first match wins; the built-in ones come last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkillPath {
    dirs: Vec<PathBuf>,
}

impl Skill {
    /// The program to run, or why there is none.
    pub fn argv(&self) -> Result<&[String], SkillError> {
        self.program.as_deref().ok_or_else(|| SkillError::NoCommand {
            name: self.name.clone(),
            file: self.file.clone().unwrap_or_default(),
        })
    }

    /// What its program finds in its environment beside what every task does.
    pub fn env(&self) -> Vec<(String, String)> {
        let Some(dir) = self.dir.as_deref().and_then(Path::to_str) else {
            return Vec::new();
        };
        vec![
            ("CIS_SKILL_DIR".to_owned(), dir.to_owned()),
            // Python would leave compiled files beside its sources: a skill must not change by being used.
            ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned()),
        ]
    }

    /// The built-in skill that was pinned with this hash, if there still is such a one.
    pub(crate) fn builtin(name: &str, tree_hash: &str) -> Option<Self> {
        Some(Self::echo()).filter(|echo| echo.name == name && echo.tree_hash == tree_hash)
    }

    /// The skill whose tree is kept in `place`, without comparing it with its hash.
    pub(crate) fn read_kept(name: &str, place: &Path, tree_hash: &str) -> Result<Self, SkillError> {
        Self::read(name, place, |_| Ok(tree_hash.to_owned()))
    }

    fn echo() -> Self {
        Self {
            name: "echo".to_owned(),
            description: Some("Prints its task's name and input (built in)".to_owned()),
            version: None,
            dir: None,
            file: None,
            program: Some(shell(ECHO)),
            tree_hash: "builtin:echo:1".to_owned(),
        }
    }

    fn load(name: &str, dir: &Path) -> Result<Self, SkillError> {
        // The directory itself may be a link: people link skills they keep elsewhere.
        let canonical = dir.canonicalize();
        let dir = canonical.map_err(|error| SkillError::io(name, dir, error))?;
        Self::read(name, &dir, |dir| {
            tree::hash(dir, tree::Of::Source).map_err(|error| match error {
                tree::TreeError::Io { path, error } => SkillError::io(name, &path, error),
                other => {
                    SkillError::Invalid { name: name.to_owned(), why: other.to_string(), hint: other.hint() }
                }
            })
        })
    }

    fn read(
        name: &str,
        dir: &Path,
        tree_hash: impl FnOnce(&Path) -> Result<String, SkillError>,
    ) -> Result<Self, SkillError> {
        if dir.to_str().is_none() {
            return Err(SkillError::invalid(name, format!("the path `{}` is not UTF-8", dir.display())));
        }
        let manifest = manifest::read(name, dir)?;
        Ok(Self {
            name: name.to_owned(),
            description: manifest.description,
            version: manifest.version,
            tree_hash: tree_hash(dir)?,
            dir: Some(dir.to_owned()),
            file: Some(manifest.file),
            program: manifest.program,
        })
    }
}

impl SkillPath {
    /// A search path over `dirs`, in this order.
    pub fn new(dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut seen = BTreeSet::new();
        Self { dirs: dirs.into_iter().filter(|dir| seen.insert(dir.clone())).collect() }
    }

    /// The directories, in order.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// The skill of this name. A broken one is an error, not a reason to look further: what runs must not
    /// depend on a typo in a file.
    pub fn find(&self, name: &str) -> Result<Skill, SkillError> {
        if !is_name(name) {
            return Err(BadName(name.to_owned()).into());
        }
        if let Some(dir) = self.directory_of(name) {
            return Skill::load(name, &dir);
        }
        if name == "echo" {
            return Ok(Skill::echo());
        }
        Err(SkillError::NotFound {
            name: name.to_owned(),
            searched: self.dirs.clone(),
            nearest: nearest(name, &self.names()),
        })
    }

    /// The skill `name` that was pinned with `tree_hash`: the kept one, if it is kept, or else what is on the path.
    /// For showing it: neither is compared with the hash.
    pub fn find_pinned(&self, name: &str, tree_hash: &str, kept: &KeptSkills) -> Result<Skill, SkillError> {
        match kept.place(tree_hash).filter(|place| place.exists()) {
            Some(place) => Skill::read_kept(name, &place, tree_hash),
            None => self.find(name),
        }
    }

    /// The directory of the skill of this name, if there is one. The first wins.
    fn directory_of(&self, name: &str) -> Option<PathBuf> {
        // A name becomes part of a path, so nothing outside the alphabet may pass.
        let mut places = self.dirs.iter().filter(|_| is_name(name)).map(|dir| dir.join(name));
        places.find(|dir| dir.is_dir())
    }

    /// Everything on the path by name, broken ones included.
    pub fn list(&self) -> Vec<Listed> {
        let names = self.names();
        names.into_iter().map(|name| Listed { skill: self.find(&name), name }).collect()
    }

    fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::from(["echo".to_owned()]);
        // A directory that is not there or cannot be read has no skills; `find` says so for those asked for.
        let entries = self.dirs.iter().filter_map(|dir| dir.read_dir().ok()).flatten().filter_map(Result::ok);
        for entry in entries.filter(|entry| entry.path().is_dir()) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                names.insert(name);
            }
        }
        names
    }
}

impl SkillError {
    fn io(name: &str, path: &Path, error: io::Error) -> Self {
        Self::Io { name: name.to_owned(), path: path.to_owned(), error }
    }

    fn invalid(name: &str, why: impl Into<String>) -> Self {
        Self::Invalid { name: name.to_owned(), why: why.into(), hint: None }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::BadName(_) | Self::Io { .. } => None,
            Self::NotFound { nearest: Some(nearest), .. } => Some(format!("did you mean `{nearest}`?")),
            Self::NotFound { name, searched, .. } => {
                let place =
                    searched.first().map_or_else(|| ".cis/skills".into(), |dir| dir.to_string_lossy());
                Some(format!("create `{place}/{name}/SKILL.md`, or name its directory with `--skill-dir`"))
            }
            Self::Invalid { hint, .. } => hint.clone(),
            Self::NoCommand { file, .. } => {
                Some(format!("add `command:` to its front matter in `{}`", file.display()))
            }
        }
    }

    /// The stable code of this error.
    pub fn code(&self) -> ProblemCode {
        match self {
            Self::BadName(_) => ProblemCode::BadName,
            Self::NotFound { .. } => ProblemCode::SkillNotFound,
            Self::Invalid { .. } | Self::NoCommand { .. } | Self::Io { .. } => ProblemCode::BadValue,
        }
    }
}

/// Pins the skills that `dag` names into it. What cannot be pinned is returned as problems, one per skill, at the
/// first task that names it.
pub fn pin(dag: &mut Dag, path: &SkillPath) -> Vec<Problem> {
    let mut first_use: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (i, task) in dag.tasks.iter().enumerate() {
        if let Kind::Skill(call) = &task.kind {
            first_use.entry(&call.skill).or_insert((i, 0)).1 += 1;
        }
    }
    let mut pinned = BTreeMap::new();
    let mut problems = Vec::new();
    for (name, (task, uses)) in first_use {
        match path.find(name).and_then(|skill| skill.argv().map(|_| skill.tree_hash.clone())) {
            Ok(hash) => {
                pinned.insert(name.to_owned(), hash);
            }
            Err(error) => problems.push(problem(&error, task, uses)),
        }
    }
    dag.skills = pinned;
    problems.sort_by_key(|(task, _)| *task);
    problems.into_iter().map(|(_, problem)| problem).collect()
}

fn problem(error: &SkillError, task: usize, uses: usize) -> (usize, Problem) {
    let also = match uses {
        1 => String::new(),
        n => format!(" ({n} tasks name it)"),
    };
    let mut problem = Problem::new(error.code(), format!("tasks[{task}].skill"), format!("{error}{also}"));
    problem.hint = error.hint();
    (task, problem)
}

/// An argument list that runs `command` in a shell.
fn shell(command: &str) -> Vec<String> {
    ["/bin/sh", "-c", command].map(str::to_owned).to_vec()
}

/// The name closest to `wanted`, if any is close enough to have been meant.
fn nearest(wanted: &str, names: &BTreeSet<String>) -> Option<String> {
    let close = 1 + wanted.len() / 4;
    names
        .iter()
        .map(|name| (strsim::damerau_levenshtein(wanted, name), name))
        .filter(|(distance, _)| *distance <= close)
        .min()
        .map(|(_, name)| name.clone())
}

fn listing(dirs: &[PathBuf]) -> String {
    if dirs.is_empty() {
        return "an empty search path".to_owned();
    }
    dirs.iter().map(|dir| format!("`{}`", dir.display())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod kept_tests;
#[cfg(test)]
mod tests;
