//! What each command does, and the exit code it ends with.
//!
//! | exit | meaning |
//! |---|---|
//! | 0 | ok |
//! | 1 | the run failed, or CIS did |
//! | 2 | wrong usage, or an invalid file |
//! | 3 | not found |
//! | 4 | conflict |
//! | 5 | awaiting confirmation, or a person was asked and did not say yes |
//! | 130 | interrupted |

mod again;
mod agent;
mod cancel;
mod care;
mod decide;
mod definition;
mod diff;
mod explain;
mod fields;
mod find;
mod follow;
mod identity;
mod inspect;
mod list;
mod logs;
mod node;
mod notes;
mod notify;
mod pause;
mod pending;
mod prune;
mod publish;
mod review;
mod revision;
mod run;
mod setup;
mod skill;
mod skill_files;
mod status;
mod token;
mod watch;
mod why;
mod work;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use cis_api::node::CoordinatorKind;
use cis_api::{Call, Request};
use cis_client::{Client, NodePin};
use cis_core::did::{Did, key_fingerprint};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::notice::Wanted;
use cis_engine::app::{Answer, App, Quotas, Settings};
use cis_engine::coordinator::{self, Options};
use cis_engine::data_dir::DataDir;
use cis_engine::system;
use cis_store::Reader;
use signal_hook::consts::SIGXFSZ;

use crate::cli::{
    AgentCommand, Cli, Command, ConfigCommand, DagCommand, Global, IdentityCommand, NodeCommand,
};
use crate::config::{self, Config, ConfigError, Durability, Flags, Surroundings};
use crate::session::{self, Session};
use crate::source::Source;
use crate::target::Target;
use crate::term::{Report, out};

/// An error and the exit code it ends with.
#[derive(Debug)]
pub struct Failure {
    /// Boxed: errors are rare, and every result carries room for one.
    pub report: Box<Report>,
    pub exit: u8,
}

/// What a command ends with.
pub type Outcome = Result<u8, Failure>;

/// What every command has: settings, and how to speak.
#[derive(Debug)]
pub struct Setup {
    pub config: Config,
    pub json: bool,
    /// The node to call, and with which token, if that was said.
    node: Option<String>,
    token: Option<String>,
    /// What the node must prove to be before it is sent the token: a DID, not looked at yet.
    node_did: Option<String>,
}

/// Where a node listens unless it is told otherwise.
const USUAL_NODE: &str = "http://127.0.0.1:6767";

/// Runs the command and tells what went wrong.
pub fn main(cli: Cli) -> ExitCode {
    let json = cli.global.json;
    match dispatch(cli).and_then(written) {
        Ok(exit) => ExitCode::from(exit),
        Err(failure) => {
            // Nobody left to tell: the exit code still says it.
            let _ = failure.report.print(json);
            ExitCode::from(failure.exit)
        }
    }
}

/// Was all that was said written? Whoever stops listening, as `head` does, has heard enough.
fn written(exit: u8) -> Outcome {
    match out::unwritten() {
        Some(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(ErrorCode::Unavailable, format!("cannot write to standard output: {e}")))
        }
        _ => Ok(exit),
    }
}

/// Owns the task processes of a data directory.
pub fn runner(data_dir: &Path) -> ExitCode {
    let served = catch_file_limit().map_err(|e| e.to_string());
    match served.and_then(|()| cis_runner::serve::run(data_dir).map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = Report::new("Unavailable", error).print(false);
            ExitCode::FAILURE
        }
    }
}

/// From here on a write beyond the limit of a file's size fails, and does not end this process: any process of the same user can
/// set that limit. Programs that it starts are ended by it as ever, since handlers are not inherited.
fn catch_file_limit() -> std::io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// Tells what is wrong with the command line: as JSON, if that was asked for; help and version as they are.
pub fn misused(error: &clap::Error) -> ExitCode {
    let as_json = std::env::args_os().any(|arg| arg == "--json");
    if as_json && error.use_stderr() {
        // Up to the usage: what is missing stands below the first line.
        let text = error.to_string();
        let words = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
        let message = words.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        let message = message.trim_start_matches("error: ");
        let _ = Report::new("Usage", message).print(true);
        return ExitCode::from(2);
    }
    error.exit()
}

fn dispatch(cli: Cli) -> Outcome {
    let Cli { global, command } = cli;
    match command {
        Command::Completions { shell } => setup::completions(shell),
        Command::Init { force } => setup::init(global.json, force),
        Command::Config(ConfigCommand::Show) => setup::show_config(&Setup::new(&global, Flags::default())?),
        Command::Node(command) | Command::Glm(command) => node(&global, command),
        Command::Work(args) => work::work(&Setup::new(&global, Flags::default())?, &args),
        Command::Identity(IdentityCommand::Show) => identity::show(&Setup::new(&global, Flags::default())?),
        Command::Agent(AgentCommand::Run(args)) => agent::run(&Setup::new(&global, Flags::default())?, &args),
        Command::Confined { stage, hide, probe, command } => agent::confined(stage, &hide, probe, &command),
        Command::Doctor { repair } => care::doctor(&Setup::new(&global, Flags::default())?, repair),
        Command::Backup { file, logs } => care::backup(&Setup::new(&global, Flags::default())?, &file, logs),
        Command::Restore { file, force } => {
            care::restore(&Setup::new(&global, Flags::default())?, &file, force)
        }
        Command::Prune(args) => prune::prune(&Setup::new(&global, Flags::default())?, &args),
        Command::Token(command) => token::token(&Setup::new(&global, Flags::default())?, command),
        Command::Pending => pending::pending(&Setup::new(&global, Flags::default())?),
        Command::Confirm(args) => decide::confirm(&Setup::new(&global, Flags::default())?, args),
        Command::Approve(args) => decide::approve(&Setup::new(&global, Flags::default())?, args),
        Command::Reject(args) => decide::reject(&Setup::new(&global, Flags::default())?, args),
        Command::Skill(command) => skill::skill(&Setup::new(&global, Flags::default())?, command),
        Command::Coordinator(args) => {
            let flags = Flags { slots: args.slots, durability: args.durability, ..Flags::default() };
            // As a node does: tasks must not read what is in its environment.
            let hidden = cis_runner::serve::forbid_inspection();
            hidden
                .and_then(|()| catch_file_limit())
                .map_err(|e| Failure::new(ErrorCode::Unavailable, e.to_string()))?;
            let setup = Setup::new(&global, flags)?;
            let options = Options { kind: CoordinatorKind::Background, ..setup.options()? };
            session::coordinate(options, setup.settings())?;
            Ok(0)
        }
        Command::Run(args) | Command::Dag(DagCommand::Run(args)) => {
            let flags = Flags { durability: args.durability.clone(), ..Flags::default() };
            run::run(&Setup::new(&global, flags)?, &args)
        }
        Command::Status(args) | Command::Dag(DagCommand::Status(args)) => {
            status::status(&Setup::new(&global, Flags::default())?, &args)
        }
        Command::Logs(args) | Command::Dag(DagCommand::Logs(args)) => {
            logs::logs(&Setup::new(&global, Flags::default())?, &args)
        }
        Command::Why(args) | Command::Dag(DagCommand::Why(args)) => {
            why::why(&Setup::new(&global, Flags::default())?, &args)
        }
        Command::Dag(command) => dag(&Setup::new(&global, Flags::default())?, command),
    }
}

fn node(global: &Global, command: NodeCommand) -> Outcome {
    let setup = |flags| Setup::new(global, flags);
    match command {
        NodeCommand::Start(args) => {
            crate::log::begin(args.log_format, args.log);
            node::start(&setup(Flags { auth: args.auth, ..Flags::default() })?, args.bind, args.wait)
        }
        NodeCommand::Drain => pause::drain(&setup(Flags::default())?, true),
        NodeCommand::Undrain => pause::drain(&setup(Flags::default())?, false),
        NodeCommand::Notifications { limit } => notify::show(&setup(Flags::default())?, limit),
    }
}

fn dag(setup: &Setup, command: DagCommand) -> Outcome {
    match command {
        DagCommand::Publish { file, revision, skills } => {
            publish::publish(setup, &file, revision, &skills.dirs)
        }
        DagCommand::Confirm(args) => decide::confirm(setup, args),
        DagCommand::List { status, scope, limit } => {
            list::dags(setup, status.as_deref(), scope.scope.as_deref(), limit)
        }
        DagCommand::Runs { id, scope, limit } => {
            list::runs(setup, id.as_deref(), scope.scope.as_deref(), limit)
        }
        DagCommand::Cancel { id, scope, kill } => cancel::cancel(setup, &id, scope.scope.as_deref(), kill),
        DagCommand::Pause { id, scope } => pause::pause(setup, &id, scope.scope.as_deref(), true),
        DagCommand::Unpause { id, scope } => pause::pause(setup, &id, scope.scope.as_deref(), false),
        DagCommand::Resume(args) => again::resume(setup, &args),
        DagCommand::Retry { id, task, again } => again::retry(setup, &id, &task, &again),
        DagCommand::Validate { file, skills } => inspect::validate(setup, &file, &skills.dirs),
        DagCommand::Graph { target, format, scope } => {
            inspect::graph(setup, &target, format, scope.scope.as_deref())
        }
        DagCommand::Show { id, revision, format, scope } => {
            revision::show(setup, &id, scope.scope.as_deref(), revision, format)
        }
        DagCommand::Diff { id, revisions, scope } => {
            diff::diff(setup, &id, scope.scope.as_deref(), &revisions)
        }
        DagCommand::Explain { target, task, scope, skills } => {
            explain::explain(setup, &target, &task, scope.scope.as_deref(), &skills.dirs)
        }
        DagCommand::Run(_) | DagCommand::Status(_) | DagCommand::Logs(_) | DagCommand::Why(_) => {
            Err(Refusal::new(ErrorCode::Internal, "dispatched elsewhere").into())
        }
    }
}

/// The DID that a node must prove to be. One whose last part follows from no key can be proven by none.
fn pinned_did(text: &str) -> Result<Did, Failure> {
    let did: Result<Did, _> = text.parse();
    let is_key = |did: &Did| {
        did.fingerprint().len() == key_fingerprint(&[0; 32]).len()
            && did.fingerprint().bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
    };
    did.ok().filter(is_key).ok_or_else(|| {
        Failure::usage(format!("`{text}` (`--node-did`, `CIS_NODE_DID`) is not the DID of a node"))
            .hint("`cis identity show` on the node's machine tells it")
    })
}

impl Setup {
    fn new(global: &Global, flags: Flags) -> Result<Self, Failure> {
        let flags = Flags { config: global.config.clone(), data_dir: global.data_dir.clone(), ..flags };
        let config = Config::load(&flags, &Surroundings::here())?;
        // As from a file that is not there: whoever was to have a token is not the owner for want of it.
        if global.token.as_deref().is_some_and(str::is_empty) {
            return Err(Refusal::new(ErrorCode::Unauthorized, "the token is empty")
                .hint("`--token` or `CIS_TOKEN` is set to nothing: set it to a token, or unset it to be the owner here")
                .into());
        }
        let node = global.node.clone().filter(|node| !node.is_empty());
        // Nor does a node that was to be known by its DID pass unproven for want of it.
        if global.node_did.as_deref().is_some_and(str::is_empty) {
            return Err(Failure::usage("the DID of the node is empty").hint(
                "`--node-did` or `CIS_NODE_DID` is set to nothing: set it to what `cis identity show` tells on the node's machine, \
                 or unset it to check nothing",
            ));
        }
        let node_did = global.node_did.clone();
        Ok(Self { config, json: global.json, node, token: global.token.clone(), node_did })
    }

    /// The node to call. A caller with a token never calls as anybody else; without one, only the node of this data directory
    /// can be called, on its socket: the owner's token is not sent over the network.
    fn client(&self) -> Result<Client, Failure> {
        let pinned = self.node_did.as_deref().map(pinned_did).transpose()?;
        if let Some(token) = &self.token {
            let client = Client::tcp(self.node.as_deref().unwrap_or(USUAL_NODE), token)?;
            return Ok(match pinned {
                Some(did) => client.pinned(NodePin { did, nonce: system::secret }),
                None => client,
            });
        }
        let data_dir = self.data_dir();
        let own = session::coordinator_of(&data_dir).and_then(|coordinator| coordinator.address);
        if own.is_none_or(|own| self.node.as_ref().is_some_and(|node| *node != own)) {
            let why = match &self.node {
                Some(node) => format!("no token to call {node} with"),
                None => "no node serves this data directory".to_owned(),
            };
            return Err(Failure::new(ErrorCode::Unauthorized, why)
                .hint("`cis node start` starts one; another takes `CIS_NODE` and `CIS_TOKEN`"));
        }
        if let Some(did) = pinned {
            let own = identity::own(self, &data_dir)?.did;
            if own.fingerprint() != did.fingerprint() {
                return Err(Failure::new(
                    ErrorCode::WrongNode,
                    format!("the node of this data directory is {own}, not {did}"),
                )
                .hint("another node takes `CIS_NODE` and `CIS_TOKEN`"));
            }
        }
        Ok(session::client(&data_dir)?)
    }

    /// The node to call, if one was named or there is a token to call with; else the data directory is meant.
    fn named_node(&self) -> Result<Option<Client>, Failure> {
        let named = self.node.is_some() || self.token.is_some();
        named.then(|| self.client()).transpose()
    }

    /// Where to read from; `None` if nothing has ever been written here.
    fn source(&self) -> Result<Option<Source>, Failure> {
        Ok(match self.named_node()? {
            Some(client) => Some(Source::Node(client)),
            None => self.reader()?.map(|reader| Source::here(reader, self.data_dir())),
        })
    }

    /// Whom to ask to do something; `runs_at_once` if that is to run something.
    fn target(&self, runs_at_once: bool) -> Result<Target, Failure> {
        if let Some(client) = self.named_node()? {
            return Ok(Target::Node(client));
        }
        let options = Options { runs_at_once, ..self.options()? };
        Ok(Target::Here(Box::new(Session::open(options, self.settings())?)))
    }

    /// Makes a single call.
    fn call<C: Call>(&self, request: &Request<C>) -> Result<C::Response, Failure>
    where
        App: Answer<C>,
    {
        let mut target = self.target(false)?;
        let answer = target.call(request);
        target.close()?;
        Ok(answer?)
    }

    /// The data directory, which need not exist.
    fn data_dir(&self) -> DataDir {
        DataDir::at(&self.config.data_dir.value)
    }

    /// Refuses whoever was given a token: they are somebody, and must not become the owner of the data directory by
    /// the way.
    fn only_owner(&self) -> Result<(), Failure> {
        if self.token.is_none() {
            return Ok(());
        }
        let why = "there is a token to call with, and this command would act as the owner of the data directory instead";
        Err(Refusal::new(ErrorCode::Forbidden, why)
            .hint("call the node at `CIS_NODE` with the token, or leave this to the owner")
            .into())
    }

    /// How a coordinator is set up, the data directory created. Whatever is asked of it is asked by the owner.
    fn options(&self) -> Result<Options, Failure> {
        self.only_owner()?;
        let root = &self.config.data_dir.value;
        let data_dir =
            DataDir::create(root).map_err(|error| ConfigError::NoDataDir { path: root.clone(), error })?;
        let exe = std::env::current_exe().map_err(|e| Failure::new(ErrorCode::Unavailable, e.to_string()))?;
        let file = &self.config.file;
        let named = matches!(file.source, config::Source::Flag(_)).then(|| std::path::absolute(&file.value));
        let config = named.transpose().map_err(|e| Failure::new(ErrorCode::Unavailable, e.to_string()))?;
        Ok(Options {
            data_dir,
            exe,
            config,
            slots: self.config.slots.value,
            durability: match self.config.durability.value {
                Durability::Power => coordinator::Durability::Power,
                Durability::Process => coordinator::Durability::Process,
            },
            limits: coordinator::Limits {
                grace: self.config.grace.value,
                log_cap_bytes: self.config.log_cap_bytes.value,
            },
            runs_at_once: false,
            kind: CoordinatorKind::Foreground,
            address: None,
            notices: Wanted::default(),
        })
    }

    /// How calls are answered by a coordinator in this process.
    fn settings(&self) -> Settings {
        let here = std::env::current_dir().unwrap_or_default();
        Settings {
            prover: None,
            pending_for: self.config.pending_for.value,
            quotas: Quotas {
                pending: self.config.pending_max.value,
                pending_bytes: self.config.pending_bytes_max.value,
                unfinished_runs: self.config.unfinished_runs_max.value,
            },
            auto_execute: self.config.auto_execute.value,
            skill_dirs: self.skill_dirs(&[], &here),
            node: None,
        }
    }

    /// The store, for reading; `None` if nothing has ever been written.
    fn reader(&self) -> Result<Option<Reader>, Failure> {
        let data_dir = self.data_dir();
        data_dir.check_database()?;
        let file = data_dir.database();
        match file.try_exists() {
            Ok(true) => Ok(Some(self.open_reader(&file)?)),
            Ok(false) => Ok(None),
            Err(e) => {
                let dir = self.config.data_dir.value.display();
                Err(Failure::new(
                    ErrorCode::Unavailable,
                    format!("cannot look into the data directory `{dir}`: {e}"),
                )
                .hint("choose another with `--data-dir`, or see to it that it can be read"))
            }
        }
    }

    /// Opens the database for reading. One of an earlier version is brought up to date first, by becoming its coordinator for a
    /// moment; an older `cis` that coordinates it is named instead.
    fn open_reader(&self, file: &Path) -> Result<Reader, Failure> {
        let opened = Reader::open(file);
        let outdated = opened.as_ref().is_err_and(Reader::is_outdated);
        if outdated {
            Session::open(self.options()?, self.settings())?.close()?;
            return Ok(Reader::open(file).map_err(Refusal::from)?);
        }
        Ok(opened.map_err(Refusal::from)?)
    }

    /// Where skills of the project around `dir` are looked for.
    fn skill_dirs(&self, flags: &[PathBuf], dir: &std::path::Path) -> Vec<PathBuf> {
        let project = crate::project::root(dir, &self.config.home.value);
        let path = self.config.skill_path(flags, project.as_deref());
        path.dirs().iter().map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.clone())).collect()
    }
}

impl Failure {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Refusal::new(code, message).into()
    }

    fn usage(message: impl Into<String>) -> Self {
        Self { report: Box::new(Report::new("Usage", message)), exit: 2 }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        let hinted = self.report.hint(hint);
        Self { report: Box::new(hinted), exit: self.exit }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let exit = match refusal.code {
            ErrorCode::ValidationFailed | ErrorCode::NotYetSupported | ErrorCode::Ambiguous => 2,
            ErrorCode::NotFound | ErrorCode::Gone => 3,
            ErrorCode::ContentConflict
            | ErrorCode::InvalidTransition
            | ErrorCode::AlreadyClaimed
            | ErrorCode::LeaseExpired
            | ErrorCode::DuplicateIdempotencyKey
            | ErrorCode::AlreadyExists => 4,
            ErrorCode::AwaitingConfirmation => 5,
            ErrorCode::Unauthorized
            | ErrorCode::Forbidden
            | ErrorCode::WrongNode
            | ErrorCode::MethodNotAllowed
            | ErrorCode::PayloadTooLarge
            | ErrorCode::RequestTimeout
            | ErrorCode::RateLimited
            | ErrorCode::QuotaExceeded
            | ErrorCode::DiskFull
            | ErrorCode::Unavailable
            | ErrorCode::DatabaseDamaged
            | ErrorCode::Internal => 1,
        };
        let mut report = Report::new(format!("{:?}", refusal.code), refusal.message).details(refusal.details);
        if let Some(hint) = refusal.hint {
            report = report.hint(hint);
        }
        Self { report: Box::new(report), exit }
    }
}

impl From<ConfigError> for Failure {
    fn from(e: ConfigError) -> Self {
        Self { report: Box::new(e.report()), exit: 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_every_code_says_its_exit_code() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors");
        for page in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let name = page.file_stem().unwrap().to_str().unwrap();
            let code: ErrorCode = serde_json::from_value(name.into()).unwrap();
            let row = format!("| exit code | {} |", Failure::new(code, "").exit);
            assert!(std::fs::read_to_string(&page).unwrap().contains(&row), "{name}: no `{row}`");
        }
    }
}
