//! Settings: each from the first of flag, environment, file and default that gives it, and each remembering
//! which one that was.
//!
//! | module | what lives there |
//! |---|---|
//! | `file` | reading `config.toml`, every problem at once |
//! | `notify` | whom a node tells of what |
//! | `value` | turning what was given into what is meant |
//! | [`show`] | `cis config show` |

mod file;
mod notify;
pub mod show;
mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cis_core::dag::Problem;
use cis_core::source::Millis;
use cis_engine::app::Quotas;
use cis_engine::skill::SkillPath;

use crate::project::MARK;
use value::{Given, Raw};

pub use notify::{Notify, Secret};
pub(crate) use value::age;

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    pub source: Source,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Default,
    File { path: PathBuf, line: u32 },
    Env(&'static str),
    Flag(&'static str),
}

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Power loss.
    Power,
    /// SIGKILL.
    Process,
}

/// How a node learns who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// By tokens it made.
    Tokens,
    /// By tokens, or from the caller's own words, where only this machine can call.
    TrustedLocal,
}

/// Who may read a node's metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metrics {
    /// Whoever has a token to read with.
    Token,
    /// Everybody.
    Open,
}

/// Every setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `~/.cis`: the user's configuration and skills.
    pub home: Setting<PathBuf>,
    /// The file read, whether it exists or not.
    pub file: Setting<PathBuf>,
    pub data_dir: Setting<PathBuf>,
    pub durability: Setting<Durability>,
    /// How many tasks run at once.
    pub slots: Setting<u32>,
    /// Between SIGTERM and SIGKILL.
    pub grace: Setting<Millis>,
    /// How much of an attempt's output is kept.
    pub log_cap_bytes: Setting<u64>,
    /// More directories to look for skills in.
    pub skill_dirs: Setting<Vec<PathBuf>>,
    /// What a node hands from its own environment to tasks, beside the usual.
    pub env_pass: Setting<Vec<String>>,
    /// Names a node may be called by, beside `localhost` and addresses.
    pub hosts: Setting<Vec<String>>,
    /// Requests a second that each identity may make of a node.
    pub rate: Setting<u32>,
    /// How much each identity may have waiting at a node.
    pub pending_max: Setting<u32>,
    pub pending_bytes_max: Setting<u64>,
    pub unfinished_runs_max: Setting<u32>,
    /// Who may read a node's metrics.
    pub metrics: Setting<Metrics>,
    pub node_id: Setting<Option<String>>,
    pub node_name: Setting<Option<String>>,
    /// How a node learns who calls.
    pub auth: Setting<Auth>,
    /// How long what was published to a node waits for a decision.
    pub pending_for: Setting<Millis>,
    /// What is published to a node is confirmed by that.
    pub auto_execute: Setting<bool>,
    /// How long a node keeps runs that are over, how much room they may take, and how many of each DAG stay anyway.
    pub max_age: Setting<Option<Millis>>,
    pub max_size: Setting<Option<u64>>,
    pub keep: Setting<u32>,
    /// How long a node keeps the definitions of revisions that were rejected or expired.
    pub rejected_max_age: Setting<Millis>,
    pub notify: Notify,
}

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    pub data_dir: Option<PathBuf>,
    pub durability: Option<String>,
    pub slots: Option<u32>,
    pub auth: Option<String>,
}

/// What the surroundings say; a value, so that tests need no real environment.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    pub env: BTreeMap<OsString, OsString>,
    pub cores: u32,
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("there is no config file `{}`", .0.display())]
    NoFile(PathBuf),
    #[error("cannot read `{}`: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("the settings have problems")]
    Invalid { file: PathBuf, problems: Vec<Problem> },
    #[error("neither `HOME` nor `CIS_HOME` is set")]
    Homeless,
    #[error("cannot create the data directory `{}`: {error}", path.display())]
    NoDataDir { path: PathBuf, error: io::Error },
}

/// How long what was published to a node waits for a decision, unless the settings say otherwise.
const PENDING_FOR: Millis = Millis(24 * 60 * 60 * 1_000);
/// More slots than this help nobody and are most likely a slip; so are more requests a second.
const SLOTS_MAX: u32 = 10_000;
const RATE_MAX: u32 = 1_000_000;
const QUOTA_MAX: u32 = 1_000_000_000;
/// How long definitions that were turned down are kept, unless the settings say otherwise.
const REJECTED_MAX_AGE: Millis = Millis(7 * 24 * 60 * 60 * 1_000);

/// Environment variables and the keys they override.
const ENV: [(&str, &str); 21] = [
    ("CIS_DURABILITY", "dag.durability"),
    ("CIS_SLOTS", "dag.slots"),
    ("CIS_GRACE", "dag.grace"),
    ("CIS_LOG_CAP", "dag.log_cap"),
    ("CIS_SKILL_PATH", "skills.dirs"),
    ("CIS_ENV_PASS", "node.env_pass"),
    ("CIS_NODE_HOSTS", "node.hosts"),
    ("CIS_NODE_ID", "node.id"),
    ("CIS_NODE_METRICS", "node.metrics"),
    ("CIS_NODE_NAME", "node.name"),
    ("CIS_NODE_AUTH", "node.auth"),
    ("CIS_PENDING_FOR", "node.pending_for"),
    ("CIS_AUTO_EXECUTE", "node.auto_execute"),
    ("CIS_NODE_RATE", "node.rate"),
    ("CIS_NODE_PENDING_MAX", "node.pending_max"),
    ("CIS_NODE_PENDING_BYTES_MAX", "node.pending_bytes_max"),
    ("CIS_NODE_UNFINISHED_RUNS_MAX", "node.unfinished_runs_max"),
    ("CIS_RETENTION_MAX_AGE", "retention.max_age"),
    ("CIS_RETENTION_MAX_SIZE", "retention.max_size"),
    ("CIS_RETENTION_KEEP", "retention.keep"),
    ("CIS_RETENTION_REJECTED_MAX_AGE", "retention.rejected_max_age"),
];

impl Surroundings {
    /// Those of this process.
    pub fn here() -> Self {
        let cores =
            std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
        Self { env: std::env::vars_os().collect(), cores }
    }

    /// A variable that is set and not empty: an empty one means "unset" to everyone who writes `VAR= cmd`.
    fn path(&self, name: &str) -> Option<PathBuf> {
        self.env.get(OsString::from(name).as_os_str()).filter(|value| !value.is_empty()).map(PathBuf::from)
    }
}

impl Config {
    /// Gathers the settings. All problems of the file and the environment are reported at once.
    pub fn load(flags: &Flags, around: &Surroundings) -> Result<Self, ConfigError> {
        let home = home(around);
        let file = match (&flags.config, &home) {
            (Some(path), _) => Setting { value: path.clone(), source: Source::Flag("--config") },
            (None, Some(home)) => {
                Setting { value: home.value.join("config.toml"), source: home.source.clone() }
            }
            (None, None) => return Err(ConfigError::Homeless),
        };
        // Without a home, everything that would have been in it stands beside the file that was named.
        let home = home.unwrap_or_else(|| Setting {
            value: file.value.parent().unwrap_or(Path::new(".")).to_owned(),
            source: file.source.clone(),
        });
        let data_dir = data_dir(flags, around, &home);

        let mut problems = Vec::new();
        let mut given = match read(&file)? {
            Some(text) => file::given(&file.value, &text, &mut problems),
            None => Given::new(),
        };
        add_environment(&mut given, around);
        add_flags(&mut given, flags);
        let mut values = value::Reader { given, problems: &mut problems, home: &home.value };
        values.mode();
        let quotas = Quotas::default();
        let config = Self {
            durability: values.durability(),
            slots: values.count("dag.slots", around.cores.max(1), SLOTS_MAX),
            grace: values.duration("dag.grace", Millis(10_000)),
            log_cap_bytes: values.size("dag.log_cap", 10 << 20),
            skill_dirs: values.dirs("skills.dirs"),
            env_pass: values.env_names("node.env_pass"),
            hosts: values.host_names("node.hosts"),
            rate: values.count("node.rate", 5_000, RATE_MAX),
            pending_max: values.count("node.pending_max", quotas.pending, QUOTA_MAX),
            pending_bytes_max: values.size("node.pending_bytes_max", quotas.pending_bytes),
            unfinished_runs_max: values.count("node.unfinished_runs_max", quotas.unfinished_runs, QUOTA_MAX),
            metrics: values.metrics(),
            node_id: values.name("node.id"),
            node_name: values.text("node.name"),
            auth: values.auth(),
            pending_for: values.lasting("node.pending_for", PENDING_FOR),
            auto_execute: values.truth("node.auto_execute"),
            max_age: values.age("retention.max_age"),
            max_size: values.some_size("retention.max_size"),
            keep: values.number("retention.keep", 0, u32::MAX),
            rejected_max_age: values.age_or("retention.rejected_max_age", REJECTED_MAX_AGE),
            notify: Notify::read(&mut values),
            data_dir,
            file,
            home,
        };
        if problems.is_empty() {
            return Ok(config);
        }
        problems.sort_by_key(|problem| problem.line);
        Err(ConfigError::Invalid { file: config.file.value, problems })
    }

    /// Where skills are looked for: the directories of `--skill-dir`, the project's, those of the settings, the
    /// user's own.
    pub fn skill_path(&self, flags: &[PathBuf], project: Option<&Path>) -> SkillPath {
        let project = project.map(|root| root.join(MARK).join("skills"));
        let own = self.home.value.join("skills");
        SkillPath::new(
            flags.iter().cloned().chain(project).chain(self.skill_dirs.value.iter().cloned()).chain([own]),
        )
    }

    /// Creates the data directory if it is missing, for its owner only: it holds everybody's output and secrets.
    pub fn create_data_dir(&self) -> Result<(), ConfigError> {
        let path = &self.data_dir.value;
        let fail = |error| ConfigError::NoDataDir { path: path.clone(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail)
    }
}

impl ConfigError {
    /// The error as it is told.
    pub fn report(&self) -> crate::term::Report {
        use crate::term::Report;
        match self {
            Self::Invalid { file, problems } => {
                let report = Report::invalid(&file.display().to_string(), problems.clone());
                // What has no line does not stand in the file.
                let told = match problems.iter().any(|problem| problem.line.is_some()) {
                    true => report.message.clone(),
                    false => "the environment or the command line has a setting that cannot be".to_owned(),
                };
                Report { code: "ConfigInvalid".into(), message: told, ..report }
            }
            Self::NoFile(_) => Report::new("NotFound", self.to_string()),
            Self::Homeless => Report::new("ConfigInvalid", self.to_string())
                .hint("set `HOME`, or name a file with `--config`"),
            Self::NoDataDir { .. } => {
                Report::new("ConfigInvalid", self.to_string()).hint("choose another with `--data-dir`")
            }
            Self::Unreadable { .. } => Report::new("ConfigInvalid", self.to_string()),
        }
    }
}

impl Durability {
    /// The word a setting uses for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Power => "power",
            Self::Process => "process",
        }
    }
}

impl Auth {
    /// The word a setting uses for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::TrustedLocal => "trusted-local",
        }
    }
}

impl Metrics {
    /// The word a setting uses for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Open => "open",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

fn home(around: &Surroundings) -> Option<Setting<PathBuf>> {
    if let Some(value) = around.path("CIS_HOME") {
        return Some(Setting { value, source: Source::Env("CIS_HOME") });
    }
    Some(Setting { value: around.path("HOME")?.join(".cis"), source: Source::Default })
}

fn data_dir(flags: &Flags, around: &Surroundings, home: &Setting<PathBuf>) -> Setting<PathBuf> {
    if let Some(dir) = &flags.data_dir {
        return Setting { value: dir.clone(), source: Source::Flag("--data-dir") };
    }
    if let Some(value) = around.path("CIS_DATA_DIR") {
        return Setting { value, source: Source::Env("CIS_DATA_DIR") };
    }
    if home.source != Source::Default {
        return Setting { value: home.value.join("data"), source: home.source.clone() };
    }
    // The XDG specification says to ignore relative paths.
    if let Some(base) = around.path("XDG_DATA_HOME").filter(|base| base.is_absolute()) {
        return Setting { value: base.join("cis"), source: Source::Env("XDG_DATA_HOME") };
    }
    let user = home.value.parent().unwrap_or(Path::new("."));
    Setting { value: user.join(".local/share/cis"), source: Source::Default }
}

/// The file's text; `None` where it need not exist.
fn read(file: &Setting<PathBuf>) -> Result<Option<String>, ConfigError> {
    match fs::read_to_string(&file.value) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match file.source {
            Source::Flag(_) => Err(ConfigError::NoFile(file.value.clone())),
            _ => Ok(None),
        },
        Err(error) => Err(ConfigError::Unreadable { path: file.value.clone(), error }),
    }
}

fn add_environment(given: &mut Given, around: &Surroundings) {
    for (name, key) in ENV {
        if let Some(value) = around.path(name) {
            let value = Raw::Text(value.to_string_lossy().into_owned());
            given.insert(key, Setting { value, source: Source::Env(name) });
        }
    }
}

fn add_flags(given: &mut Given, flags: &Flags) {
    let mut add = |key, flag, value: Option<Raw>| {
        if let Some(value) = value {
            given.insert(key, Setting { value, source: Source::Flag(flag) });
        }
    };
    add("dag.durability", "--durability", flags.durability.clone().map(Raw::Text));
    add("node.auth", "--auth", flags.auth.clone().map(Raw::Text));
    add("dag.slots", "--slots", flags.slots.map(|slots| Raw::Integer(slots.into())));
}
