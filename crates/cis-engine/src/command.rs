//! Everything a caller can ask of a coordinator, from inside its process or over `cis.sock`. Each can be asked
//! again after a lost answer: ids are chosen by the caller, decisions are idempotent.

use std::sync::Arc;

use cis_core::access::Caller;
use cis_core::dag::{Dag, stored};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::{DagId, RunKey, Scope};
use cis_core::run::RunStatus;
use cis_core::source::Timestamp;
use cis_store::port::{
    Approve, Approved, Decide, Decided, IdempotencyKey, Once, Prune, Pruned, Published, RunRef, Settled,
    StartRun,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::context::Context;
use crate::recovery::Recovery;
use crate::token::FreshToken;

/// What is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    Publish {
        dag: SharedDag,
        content_hash: String,
        new_revision: bool,
        by: String,
    },
    Settle {
        definition: i64,
        content_hash: String,
        confirm: bool,
        by: String,
    },
    /// Decides about a revision. What a confirmation starts runs in the node's context, kept on disk; in this one where
    /// there never was a node.
    Decide {
        request: Box<Decide>,
        context: Box<Context>,
    },
    /// Starts a run in these surroundings.
    Start {
        request: Box<StartRun>,
        context: Box<Context>,
    },
    /// Decides about a task that waits for a person.
    Approve(Box<Approve>),
    /// This connection owns the run from now on: it ends with it.
    Attach {
        run: RunKey,
    },
    Stop {
        key: Option<IdempotencyKey>,
        run: RunKey,
        /// Do not wait for anybody: SIGKILL.
        kill: bool,
    },
    /// Nothing more of the run is claimed; or again.
    Pause {
        run: RunKey,
        paused: bool,
    },
    /// Nothing more of the scope is claimed; or again.
    PauseScope {
        scope: Scope,
        paused: bool,
    },
    /// This coordinator claims nothing more, whosever it is; or again. It lasts as long as the coordinator.
    Drain {
        draining: bool,
    },
    /// Does one chunk of making room.
    Prune(Prune),
    /// Lets somebody call a node.
    CreateToken {
        caller: Caller,
        by: String,
        expires_at: Option<Timestamp>,
    },
    RevokeToken {
        token_id: String,
    },
    /// Who is there?
    Hello,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Published(Published),
    Settled(Settled),
    Decided(Box<Once<Decided>>),
    Approved(Box<Once<Approved>>),
    Started(Once<RunRef>),
    Stopping(Once<RunStatus>),
    Paused(RunStatus),
    /// Was it otherwise before?
    Changed(bool),
    Attached,
    Pruned(Pruned),
    Token(FreshToken),
    /// Was there anything to take back?
    Revoked(bool),
    Hello(About),
    Refused(Refusal),
    /// Nothing was done: this coordinator is leaving. Ask the next one.
    Going,
}

/// What a coordinator says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct About {
    pub pid: u32,
    pub version: String,
    pub epoch: i64,
    pub durability: cis_store::sqlite::Durability,
    pub slots: u32,
    /// Where it serves others over HTTP, if it does.
    #[serde(default)]
    pub address: Option<String>,
    /// It claims nothing more.
    #[serde(default)]
    pub draining: bool,
    /// What it found when it began.
    #[serde(default)]
    pub recovery: Option<Recovery>,
    /// It has no room for anything new.
    #[serde(default)]
    pub full: bool,
    /// Why its runner starts nothing at present, and what to do about it.
    #[serde(default)]
    pub runner: Option<Refusal>,
}

/// A definition that is shared inside a process and travels in its stored form between processes.
#[derive(Debug, Clone)]
pub struct SharedDag(pub Arc<Dag>);

#[derive(Serialize, Deserialize)]
struct Travelling {
    dag_id: DagId,
    scope: Scope,
    content: String,
}

impl Serialize for SharedDag {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let content = stored::to_stored(&self.0);
        Travelling { dag_id: self.0.dag_id.clone(), scope: self.0.scope.clone(), content }.serialize(to)
    }
}

impl<'de> Deserialize<'de> for SharedDag {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let travelling = Travelling::deserialize(from)?;
        let mut dag = stored::from_stored(&travelling.content).map_err(serde::de::Error::custom)?;
        (dag.dag_id, dag.scope) = (travelling.dag_id, travelling.scope);
        Ok(Self(Arc::new(dag)))
    }
}

macro_rules! expect {
    ($($name:ident, $variant:ident, $type:ty);+ $(;)?) => {
        impl Reply {
            $(
                /// This answer, or the refusal in its place.
                pub fn $name(self) -> Result<$type, Refusal> {
                    match self {
                        Self::$variant(answer) => Ok(answer),
                        Self::Refused(refusal) => Err(refusal),
                        other => Err(unexpected(&other)),
                    }
                }
            )+
        }
    };
}

expect! {
    published, Published, Published;
    settled, Settled, Settled;
    decided, Decided, Box<Once<Decided>>;
    approved, Approved, Box<Once<Approved>>;
    started, Started, Once<RunRef>;
    stopping, Stopping, Once<RunStatus>;
    paused, Paused, RunStatus;
    changed, Changed, bool;
    pruned, Pruned, Pruned;
    token, Token, FreshToken;
    revoked, Revoked, bool;
    hello, Hello, About;
}

fn unexpected(reply: &Reply) -> Refusal {
    if matches!(reply, Reply::Going) {
        return Refusal::new(ErrorCode::Unavailable, "the coordinator is leaving");
    }
    Refusal::new(ErrorCode::Internal, format!("unexpected answer: {reply:?}"))
}
