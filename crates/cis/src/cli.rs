//! The command line: what can be typed, and nothing of what it does.

mod node;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::sandbox::Stage;

pub use node::{
    AgentArgs, AgentCommand, IdentityCommand, NodeArgs, NodeCommand, Sandbox, TokenCommand, WorkArgs,
};

/// The coordination node for fleets of AI agents: publish DAGs of tasks, confirm them, run them durably, and see
/// what happened and why.
#[derive(Debug, Parser)]
#[command(name = "cis", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub struct Global {
    /// Read settings from this file instead of ~/.cis/config.toml
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Keep state here instead of ~/.local/share/cis
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The node to call, instead of the one of the data directory
    #[arg(long, global = true, value_name = "URL", env = "CIS_NODE")]
    pub node: Option<String>,
    /// The token to call it with, instead of the owner's
    #[arg(long, global = true, value_name = "TOKEN", env = "CIS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The DID that the node must prove to have before it is sent the token
    #[arg(long, global = true, value_name = "DID", env = "CIS_NODE_DID")]
    pub node_did: Option<String>,
    /// Print JSON for machines
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run, publish and inspect DAGs
    #[command(subcommand)]
    Dag(DagCommand),
    /// Run a DAG: short for `cis dag run`
    Run(RunArgs),
    /// Where a DAG stands: short for `cis dag status`
    Status(StatusArgs),
    /// What tasks printed: short for `cis dag logs`
    Logs(LogsArgs),
    /// What waits for a person: DAGs to confirm, tasks to approve
    Pending,
    /// Confirm exactly the DAG that was looked at, and start it
    Confirm(ConfirmArgs),
    /// Let exactly the task that was looked at, which waits for a person, go on
    Approve(ApproveArgs),
    /// Refuse a task that waits for a person, or a DAG
    Reject(DecisionArgs),
    /// What a run waits for: short for `cis dag why`
    Why(WhyArgs),
    /// Find, show and run skills
    #[command(subcommand)]
    Skill(SkillCommand),
    /// Write a first DAG from what this directory holds
    Init {
        /// Overwrite a dag.toml that is there
        #[arg(long)]
        force: bool,
    },
    /// Settings and where each comes from
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Serve this data directory to agents over HTTP
    #[command(subcommand)]
    Node(NodeCommand),
    /// Claim external tasks of a node and run a command for each
    Work(WorkArgs),
    /// `cis node` by another name
    #[command(subcommand, hide = true)]
    Glm(NodeCommand),
    /// Who this node is
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Start agents with tokens of their own
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Tokens: who may call a node
    #[command(subcommand)]
    Token(TokenCommand),
    /// Is everything of the data directory in order?
    ///
    /// Checks the database (pages, invariants, the event log against every row), permissions, the disk, files nothing
    /// needs and processes nothing owns. Ends with 1 if something is wrong.
    Doctor {
        /// Repair what can be repaired without guessing, and say what was done
        #[arg(long)]
        repair: bool,
    },
    /// Write the data directory to a file, while everything goes on
    Backup {
        file: PathBuf,
        /// Also what tasks printed
        #[arg(long)]
        logs: bool,
    },
    /// Make the data directory what a backup says
    Restore {
        file: PathBuf,
        /// Even if there is a database; it is kept beside
        #[arg(long)]
        force: bool,
    },
    /// Remove runs that ended long ago, with their logs
    ///
    /// Runs that are over go, oldest first, in small steps that hold nobody up. What something still needs stays. That
    /// a run was there, and how it ended, stays known.
    Prune(PruneArgs),
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Coordinate this data directory until no run is left (detached runs start this for you)
    Coordinator(CoordinatorArgs),
    /// One of the processes on the way to a command that cannot reach a directory
    #[command(hide = true)]
    Confined {
        #[arg(long, value_enum)]
        stage: Stage,
        #[arg(long, value_name = "DIR")]
        hide: PathBuf,
        /// Try it without a command
        #[arg(long)]
        probe: bool,
        #[arg(last = true)]
        command: Vec<OsString>,
    },
}

#[derive(Debug, Subcommand)]
pub enum DagCommand {
    /// Publish, confirm and run a DAG from a file, or run a confirmed one again
    Run(RunArgs),
    /// Publish a DAG for someone to confirm
    Publish {
        file: PathBuf,
        /// Publish changed content as a new revision of a known DAG
        #[arg(long)]
        revision: bool,
        #[command(flatten)]
        skills: SkillDirs,
    },
    /// Confirm exactly the content that was looked at, and start it in the background
    Confirm(ConfirmArgs),
    /// List DAGs
    List {
        /// Only those with this status
        #[arg(short, long)]
        status: Option<String>,
        #[command(flatten)]
        scope: ScopeArg,
        /// At most so many
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Where a DAG, or one of its runs (`ID#N`), stands
    Status(StatusArgs),
    /// What tasks printed
    Logs(LogsArgs),
    /// What a DAG or a run waits for: for each unfinished task, the chain that holds it
    Why(WhyArgs),
    /// Runs of a DAG, or of all
    Runs {
        id: Option<String>,
        #[command(flatten)]
        scope: ScopeArg,
        /// At most so many
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Stop a run: SIGTERM, a grace, then SIGKILL
    Cancel {
        /// `ID` (its latest run), `ID#N`, or a run id
        id: String,
        #[command(flatten)]
        scope: ScopeArg,
        /// SIGKILL at once
        #[arg(long)]
        kill: bool,
    },
    /// Start nothing more of a run until it is unpaused; what runs goes on
    Pause {
        /// `ID` (its latest run), `ID#N`, or a run id
        id: String,
        #[command(flatten)]
        scope: ScopeArg,
    },
    /// Let a paused run go on
    Unpause {
        /// `ID` (its latest run), `ID#N`, or a run id
        id: String,
        #[command(flatten)]
        scope: ScopeArg,
    },
    /// Run what a run did not complete, in a new run
    Resume(AgainArgs),
    /// Run a task and everything that depends on it again, in a new run
    Retry {
        id: String,
        task: String,
        #[command(flatten)]
        again: AgainOptions,
    },
    /// Check a file without running it, and print its content hash
    Validate {
        file: PathBuf,
        #[command(flatten)]
        skills: SkillDirs,
    },
    /// Draw a DAG
    Graph {
        /// A file, or the id of a known DAG
        target: String,
        #[arg(long, value_enum, default_value_t = GraphFormat::Ascii)]
        format: GraphFormat,
        #[command(flatten)]
        scope: ScopeArg,
    },
    /// What a revision says, task by task: what was confirmed, or would be
    Show {
        id: String,
        /// This revision instead of the latest
        #[arg(long, value_name = "N")]
        revision: Option<i64>,
        /// As a file, instead of for reading
        #[arg(long, value_enum)]
        format: Option<DocumentFormat>,
        #[command(flatten)]
        scope: ScopeArg,
    },
    /// What changed between two revisions, task by task
    ///
    /// Without numbers, the latest revision is compared to the last one that was confirmed before it.
    Diff {
        id: String,
        /// Compare these two revisions
        #[arg(num_args = 2, value_names = ["N", "M"])]
        revisions: Vec<i64>,
        #[command(flatten)]
        scope: ScopeArg,
    },
    /// What a task will be given: program, directory, environment, limits, and where each comes from
    Explain {
        /// A file, or the id of a known DAG
        target: String,
        task: String,
        #[command(flatten)]
        scope: ScopeArg,
        #[command(flatten)]
        skills: SkillDirs,
    },
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// A file (`-` for standard input), or the id of a confirmed DAG
    pub target: String,
    /// Set a parameter
    #[arg(short, long = "param", value_name = "KEY=VALUE")]
    pub params: Vec<String>,
    /// Run at most so many tasks at once
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_parallel: Option<u32>,
    /// What an acknowledged write survives
    #[arg(long, value_name = "power|process")]
    pub durability: Option<String>,
    /// Show what would run, and run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Run only this task
    #[arg(long, value_name = "TASK", conflicts_with = "from")]
    pub only: Vec<String>,
    /// Run this task and everything that depends on it
    #[arg(long, value_name = "TASK")]
    pub from: Vec<String>,
    /// Start it in the background and return
    #[arg(short, long)]
    pub detach: bool,
    #[command(flatten)]
    pub scope: ScopeArg,
    #[command(flatten)]
    pub skills: SkillDirs,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// `ID`, `ID#N`, or a run id
    pub id: String,
    #[command(flatten)]
    pub scope: ScopeArg,
    /// Keep showing it until it ends
    #[arg(short, long)]
    pub watch: bool,
    /// Show only this task, with values that are too large to be shown among others
    #[arg(long, value_name = "TASK", conflicts_with = "watch")]
    pub task: Option<String>,
}

#[derive(Debug, Args)]
pub struct ConfirmArgs {
    #[command(flatten)]
    pub approve: ApproveArgs,
    /// Refuse it instead
    #[arg(long)]
    pub reject: bool,
}

#[derive(Debug, Args)]
pub struct ApproveArgs {
    #[command(flatten)]
    pub decision: DecisionArgs,
    /// Give a value that the task asks for
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub input: Vec<String>,
    #[command(flatten)]
    pub skills: SkillDirs,
}

#[derive(Debug, Args)]
pub struct DecisionArgs {
    /// A review id, as `cis pending` shows it; or a DAG; or, with a task, a run
    pub what: String,
    /// A task of the run
    pub task: Option<String>,
    /// Only a revision of the DAG with exactly this content: all 64 digits of its hash
    #[arg(long, value_name = "HASH")]
    pub content_hash: Option<String>,
    /// Say why: it is kept with the decision
    #[arg(short, long)]
    pub note: Option<String>,
    #[command(flatten)]
    pub scope: ScopeArg,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// `ID`, `ID#N`, or a run id
    pub id: String,
    #[command(flatten)]
    pub scope: ScopeArg,
    /// This run: a number or a run id (default: the latest)
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// Only this task
    #[arg(short, long)]
    pub task: Vec<String>,
    /// This attempt instead of the latest
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Keep printing until the run ends
    #[arg(short, long)]
    pub follow: bool,
    /// Only lines that match this regular expression
    #[arg(short, long, value_name = "PATTERN")]
    pub grep: Option<String>,
}

#[derive(Debug, Args)]
pub struct WhyArgs {
    /// `ID`, `ID#N`, or a run id
    pub id: String,
    #[command(flatten)]
    pub scope: ScopeArg,
    /// At most so many tasks, those that hold the most first
    #[arg(long, default_value_t = 50)]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct AgainArgs {
    /// `ID` (its latest run), `ID#N`, or a run id
    pub id: String,
    #[command(flatten)]
    pub again: AgainOptions,
}

#[derive(Debug, Args)]
pub struct AgainOptions {
    #[command(flatten)]
    pub scope: ScopeArg,
    /// Run at most so many tasks at once
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_parallel: Option<u32>,
    /// Start it in the background and return
    #[arg(short, long)]
    pub detach: bool,
    #[command(flatten)]
    pub skills: SkillDirs,
}

#[derive(Debug, Args)]
pub struct ScopeArg {
    /// In this scope (default: this project's, else global)
    #[arg(long, value_name = "SCOPE")]
    pub scope: Option<String>,
}

#[derive(Debug, Args)]
pub struct SkillDirs {
    /// Look for skills here first
    #[arg(long = "skill-dir", value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum GraphFormat {
    Ascii,
    Mermaid,
    Dot,
    Svg,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum DocumentFormat {
    Toml,
    Json,
}

#[derive(Debug, Subcommand)]
pub enum SkillCommand {
    /// Every skill on the search path
    List {
        #[command(flatten)]
        skills: SkillDirs,
    },
    /// One skill
    Show {
        name: String,
        #[command(flatten)]
        skills: SkillDirs,
    },
    /// Run one skill by itself
    Run {
        name: String,
        /// JSON handed to it on stdin and in CIS_INPUT
        #[arg(long, default_value = "{}")]
        input: String,
        #[command(flatten)]
        skills: SkillDirs,
    },
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Every setting, its value and its source
    Show,
}

#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    /// How many tasks run at once
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// What an acknowledged write survives
    #[arg(long, value_name = "power|process")]
    pub durability: Option<String>,
}

#[derive(Debug, Args)]
pub struct PruneArgs {
    /// Only runs that ended longer ago than this
    #[arg(long, value_name = "DURATION", default_value = "30d")]
    pub older_than: String,
    /// Keep the latest N runs of each DAG
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep: u32,
    /// Only say what would go
    #[arg(long)]
    pub dry_run: bool,
}
