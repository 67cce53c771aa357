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
