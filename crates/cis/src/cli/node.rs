//! Commands about nodes, and about the agents, workers and tokens that call them.

use std::ffi::OsString;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Serve until SIGINT or SIGTERM
    ///
    /// Agents publish DAGs over HTTP, a person confirms them, everybody follows along. The first start writes the
    /// owner's token to `admin.token` in the data directory; `cis token create` makes tokens for others, and `cis
    /// agent run` starts an agent with one of its own.
    Start(NodeArgs),
    /// Start no task any more; what runs goes on, and callers are still answered
    Drain,
    /// Start tasks again
    Undrain,
    /// What nobody could be told yet, and what was given up
    Notifications {
        /// At most so many
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Where to listen
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:6767")]
    pub bind: std::net::SocketAddr,
    /// Wait for another node on this data directory to go, instead of being refused
    #[arg(long)]
    pub wait: bool,
    /// How callers are known: by tokens, or on this machine also by the DID they give (never to confirm or administer)
    #[arg(long, value_name = "tokens|trusted-local")]
    pub auth: Option<String>,
    /// How to write logs on stderr (default: text on a terminal, JSON lines elsewhere)
    #[arg(long, value_enum, value_name = "json|text", hide_possible_values = true)]
    pub log_format: Option<crate::log::Format>,
    /// How much to log
    #[arg(long, value_enum, value_name = "LEVEL", env = "CIS_LOG", default_value = "info")]
    pub log: crate::log::Level,
}

#[derive(Debug, Subcommand)]
pub enum IdentityCommand {
    /// This node's DID, its public key, and where its private key is
    Show,
}

/// How a worker works.
#[derive(Debug, Args)]
pub struct WorkArgs {
    /// What this worker can do: it gets tasks that need no more than these
    #[arg(long, value_name = "CAPABILITY")]
    pub needs: Vec<String>,
    /// Take tasks of these scopes only
    #[arg(long = "scope", value_name = "SCOPE")]
    pub scopes: Vec<String>,
    /// What people see as the holder of its tasks, instead of the token's identity
    #[arg(long)]
    pub name: Option<String>,
    /// How long a task stays claimed without a heartbeat (default 5m)
    #[arg(long, value_name = "TIME")]
    pub lease: Option<String>,
    /// End after one task, with its command's exit code
    #[arg(long)]
    pub once: bool,
    /// The command; the task's input is on its standard input and in the file `CIS_INPUT_FILE`
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Run a command as an agent: it gets a token that may publish, work and read until the command ends, and where
    /// the kernel has namespaces or Landlock it cannot reach the data directory
    Run(AgentArgs),
}

#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Who the agent is
    pub name: String,
    /// Only in this scope (may be repeated); everywhere if not given
    #[arg(long = "scope", value_name = "SCOPE")]
    pub scopes: Vec<String>,
    /// How long its token is good at most, should nobody be left to take it back
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    pub expires: String,
    /// Keep it from the data directory and from processes outside. auto: namespaces, else Landlock, else none with a warning;
    /// require: one of them, or refuse; namespaces, landlock: that one, or refuse; off: none
    #[arg(long, value_enum, default_value_t = Sandbox::Auto)]
    pub sandbox: Sandbox,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sandbox {
    Auto,
    Namespaces,
    Landlock,
    Require,
    Off,
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token; its secret is printed once
    Create {
        /// Who will call with it
        identity: String,
        /// What it may do
        #[arg(long = "as", value_name = "agent|worker|reader|approver|owner", default_value = "agent")]
        preset: String,
        /// Only in this scope (may be repeated); everywhere if not given
        #[arg(long = "scope", value_name = "SCOPE")]
        scopes: Vec<String>,
        /// How long it is good, such as 30d or 12h
        #[arg(long, value_name = "DURATION")]
        expires: Option<String>,
    },
    /// List tokens, never their secrets
    List,
    /// Take a token back, at once
    Revoke { token_id: String },
}
