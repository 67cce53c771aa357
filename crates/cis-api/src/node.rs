//! The node and its coordinator: pausing, draining, and what they say of themselves.

use cis_core::did::Did;
use cis_core::error::Refusal;
use cis_core::id::Scope;
use cis_core::source::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::call::object_body;

/// A scope in a path.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ScopePath {
    #[param(pattern = "^(global|(project|user)-[A-Za-z0-9._-]+)$", max_length = 128)]
    pub scope: String,
}

/// A scope that is held up, or goes on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PausedScope {
    pub scope: Scope,
    pub paused: bool,
    /// False: so it was before.
    pub changed: bool,
}

/// A node that is held up, or goes on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Drained {
    pub draining: bool,
    /// False: so it was before.
    pub changed: bool,
}

/// What a node says of itself.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeInfo {
    pub did: Did,
    pub name: String,
    pub version: String,
    /// Where it is called.
    pub address: String,
    /// Since when it is up.
    pub since: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Nodes {
    pub nodes: Vec<NodeInfo>,
}

/// What a client makes up, and where its connection leads: what a node is to sign.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ProofQuery {
    /// 32 random bytes, in hexadecimal.
    #[param(pattern = "^[0-9a-f]{64}$")]
    pub nonce: String,
    /// `IP:PORT` of the other side of the client's connection; where the node is called by a name other than `localhost`,
    /// `NAME:PORT` as it was dialled.
    #[param(example = "127.0.0.1:6767", max_length = 300)]
    pub address: String,
}

/// A node's word for who it is. `did` ends in the first 32 digits of the SHA-256 of the public key; the signature is of
/// [`proof_message`].
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeProof {
    pub did: Did,
    /// Ed25519, in hexadecimal.
    pub public_key: String,
    /// In hexadecimal.
    pub signature: String,
}

/// What a node signs to prove who it is: a label that no other signature begins with, then both parts on a line each.
pub fn proof_message(nonce: &str, address: &str) -> Vec<u8> {
    format!("cis node proof 1\n{nonce}\n{address}\n").into_bytes()
}

/// That it is up.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Up {
    /// `up`.
    pub status: String,
    pub version: String,
}

/// That work which comes in would be done.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Ready {
    /// `ready`.
    pub status: String,
    pub node: Did,
}

/// What kind of process coordinates a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CoordinatorKind {
    /// `cis node start`.
    Node,
    /// A foreground command, until its run is over.
    Foreground,
    /// `cis coordinator`, until no run is left.
    Background,
}

/// What a coordinator says of itself.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CoordinatorInfo {
    pub pid: u32,
    pub kind: CoordinatorKind,
    pub version: String,
    pub epoch: i64,
    /// `power` or `process`.
    pub durability: String,
    pub slots: u32,
    /// Where it serves others over HTTP, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// It claims nothing more.
    #[serde(default)]
    pub draining: bool,
    /// What it took up when it began, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<String>,
    /// It has no room for anything new.
    #[serde(default)]
    pub full: bool,
    /// Why its runner starts nothing at present, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<Refusal>,
}

/// How a coordinator is asked to hand over.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HandOverBody {
    /// The process that takes over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

object_body!(HandOverBody, optional);

/// That a coordinator hands over: it lets go of the data directory once this is answered.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HandingOver {
    pub pid: u32,
    /// Runs that go on under the next coordinator.
    pub runs: usize,
}
