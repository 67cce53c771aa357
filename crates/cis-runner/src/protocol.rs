//! The messages between coordinator and runner: JSON in frames of a `u32` length (little endian) and that many
//! bytes, over a Unix socket. JSON, because a coordinator and a runner of different versions must understand
//! each other: unknown fields are ignored, new ones are optional. A message that a peer's version does not have is
//! never sent to it.
//!
//! | protocol | since then |
//! |---|---|
//! | 1 | everything that is not named below |
//! | 2 | [`ToRunner::HandOver`], [`Lane`]s, `directory` in Hello and Welcome |

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::directory::Directory;

/// What we speak. Grows when an older peer could misunderstand a newer one.
pub const PROTOCOL: u32 = 2;

/// The first protocol that hands live attempts to another coordinator, and the first with lanes.
pub const HAND_OVER_SINCE: u32 = 2;
pub const LANES_SINCE: u32 = 2;

/// The oldest we still understand. While a runner has tasks it outlives the program it was started from: a coordinator
/// of the next version has to get along with it.
pub const OLDEST: u32 = 1;

/// Do we and a peer that speaks `protocol`, and understands all since `oldest`, understand each other?
pub fn can_talk(protocol: u32, oldest: u32) -> bool {
    PROTOCOL.min(protocol) >= OLDEST.max(oldest)
}

/// What peers understand that did not say: they are of the first version.
fn first() -> u32 {
    1
}

/// No frame is larger than this; the largest legitimate one carries an environment or captured outputs.
pub const FRAME_MAX: usize = 16 << 20;

/// One attempt: which execution, under which claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptKey {
    pub execution: i64,
    pub fence: i64,
}

/// What the coordinator says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToRunner {
    /// First on every connection. The runner drops connections of lower epochs before it answers, and refuses
    /// an epoch lower than the highest it has seen. Without the directory's key, where it has one, it is not heard.
    /// With another `directory` than the runner's, it is refused.
    Hello {
        protocol: u32,
        #[serde(default = "first")]
        oldest: u32,
        epoch: i64,
        slots: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// The data directory, as the coordinator sees it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        directory: Option<Directory>,
    },
    /// The environment and directory that attempts naming `context` start from. Sent once per connection.
    Context { context: i64, env: Vec<(Text, Text)>, cwd: PathBuf },
    /// The context's run is over: forget it.
    Forget { context: i64 },
    /// Start this as soon as a slot is free; each attempt is started once, ever.
    Start(Box<Start>),
    /// End this attempt: SIGTERM, after its grace SIGKILL; with `kill`, SIGKILL now.
    Stop { key: AttemptKey, kill: bool },
    /// These outcomes are recorded; forget them.
    Ack { keys: Vec<AttemptKey> },
    /// Attempts that are tied to this connection, queued ones included, outlive it by up to `keep_ms`: a coordinator
    /// with a higher epoch that says Hello by then has them, tied to no connection any more; without one they end as
    /// tied attempts do. Answered with [`FromRunner::HandOverReady`]. With a `keep_ms` of zero it is withdrawn.
    HandOver { keep_ms: u64 },
}

/// How long attempts wait for the coordinator they are handed to. It has to open the database first, and may have to
/// bring it up to its version.
pub const HAND_OVER_KEEP_MS: u64 = 10_000;

/// One attempt to start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    pub key: AttemptKey,
    pub context: i64,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// On top of the context's environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// Relative to the context's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Where output goes, relative to the data directory's `logs/`; created at the first byte.
    pub log: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    pub grace_ms: u64,
    pub log_cap_bytes: u64,
    /// Ends with the connection it came on (a foreground run's tasks go with it).
    #[serde(default)]
    pub tied: bool,
    /// Leave processes it started behind alone.
    #[serde(default)]
    pub detach: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<Lane>,
}

/// Attempts of which only so many run at once, whatever slots are free. Those that wait for their lane hold up no
/// attempt of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    pub id: i64,
    /// Zero counts as one.
    pub max: u32,
}

/// What the runner says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromRunner {
    /// Answer to Hello: everything the runner knows of and that was not acknowledged. Outcomes of the ended
    /// ones follow as ordinary `Ended` messages.
    Welcome {
        protocol: u32,
        #[serde(default = "first")]
        oldest: u32,
        boot_id: String,
        pid: u32,
        attempts: Vec<Known>,
        /// The data directory that this runner serves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        directory: Option<Directory>,
    },
    /// Answer to a Hello in a protocol that is too old, or too new: what this runner understands.
    Unfit { protocol: u32, oldest: u32, pid: u32 },
    /// Answer to a Hello that came too late: a higher epoch was seen.
    Refused { epoch: i64 },
    /// Answer to a Hello from a coordinator of another data directory: this runner serves `directory`, and has done
    /// nothing.
    WrongDirectory { pid: u32, directory: Directory },
    /// Answer to HandOver: from now on it does not matter when the connection closes.
    HandOverReady,
    /// A process has started. Sent only for attempts that live longer than [`STARTED_AFTER_MS`]: the others'
    /// `Ended` says it all.
    Started { key: AttemptKey, pid: u32, at_ms: i64 },
    /// An attempt is over: nothing of it is alive, all its output is in its log.
    Ended(Box<Ended>),
}

/// How long an attempt lives before the runner says `Started`.
pub const STARTED_AFTER_MS: u64 = 20;

/// An attempt the runner knows of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Known {
    pub key: AttemptKey,
    pub state: KnownState,
    /// The runner that started it was killed: it is being ended, and will be told as interrupted.
    #[serde(default)]
    pub remnant: bool,
}

/// Where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownState {
    /// Waits for a slot; nothing has been started.
    Queued,
    Running,
    Ended,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub key: AttemptKey,
    pub outcome: Outcome,
    /// Wall clock, Unix milliseconds; zero if it never started.
    pub started_ms: i64,
    pub ended_ms: i64,
    #[serde(default)]
    pub log: LogSummary,
    /// What the task wrote to `$CIS_OUTPUT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<String>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Ended by itself: exit code, 128 + n for signal n.
    Exited { code: i32 },
    /// Could not be started, or its outputs could not be read; says why.
    Broken { why: String },
    /// Over its time, whatever it exited with during the grace.
    TimedOut,
    /// Ended after a Stop had signalled it.
    Stopped,
    /// A Stop came while it was still queued: nothing was started.
    NeverStarted,
    /// The connection it was tied to closed, and it was ended for that.
    OwnerGone,
    /// The runner that had it died.
    Interrupted,
}

/// What its output amounted to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogSummary {
    /// All bytes it wrote, cut ones included.
    pub bytes: u64,
    /// How many of them are not in the log because of the cap.
    #[serde(default)]
    pub cut_bytes: u64,
    /// The last [`TAIL_BYTES`] of each stream.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stdout_tail: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stderr_tail: String,
}

/// How much of each stream's end travels with the outcome.
pub const TAIL_BYTES: usize = 4096;

/// Bytes that are nearly always UTF-8: a string then, hex otherwise, so that no environment is lost or altered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    Utf8(String),
    Hex { hex: String },
}
