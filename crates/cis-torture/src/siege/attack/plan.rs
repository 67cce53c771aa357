//! What the attackers are told by the process that starts them, and what they tell it when they are done.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// What is attacked, from which seed and for how long.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::siege) struct Plan {
    pub(in crate::siege) node: SocketAddr,
    pub(in crate::siege) seed: u64,
    pub(in crate::siege) seconds: u64,
    /// Attack at the lowest priority, so that what good callers measure is the node and not the attackers' use of the CPU.
    pub(in crate::siege) is_nice: bool,
    /// Preset `agent`, for the scope [`SCOPE`] only.
    pub(in crate::siege) agent: String,
    /// Preset `reader`, for every scope.
    pub(in crate::siege) reader: String,
    pub(in crate::siege) material: Material,
}

/// The only scope in which the attacking agent may publish and work. A worker may claim and give up whatever it is allowed to;
/// what it must not do is harm the tasks of others.
pub(in crate::siege) const SCOPE: &str = "project-attackers";

/// What was made before the attack, for the attackers to ask for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::siege) struct Material {
    /// A run whose tasks have outputs of a megabyte each.
    pub(in crate::siege) big_outputs: String,
    /// A run of a task that printed millions of lines.
    pub(in crate::siege) big_log: String,
    /// A run of thousands of tasks that never ends.
    pub(in crate::siege) big_definition: String,
    /// Of its status, which does not change: a long poll after it waits for as long as it may.
    pub(in crate::siege) big_definition_version: i64,
    /// Tasks of a run as large, in the attackers' own scope: the first of them, and how many there are.
    pub(in crate::siege) big_run_first: i64,
    pub(in crate::siege) big_run_tasks: u64,
}

/// DAGs of the runs above, in a scope where the attackers may only read.
pub(in crate::siege) const BIG_OUTPUTS: &str = "big-outputs";
pub(in crate::siege) const BIG_LOG: &str = "big-log";
pub(in crate::siege) const BIG_DEFINITION: &str = "big-definition";

/// DAGs of tasks that the attackers claim, in [`SCOPE`]; what is claimed for one attack needs its capability.
pub(in crate::siege) const LOG_STOCK: &str = "log-stock";
pub(in crate::siege) const RELEASE_STOCK: &str = "release-stock";

/// The DAG of a large run in [`SCOPE`] that never begins.
pub(in crate::siege) const BIG_RUN: &str = "big-run";

/// What was done, by attack.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::siege) struct Report {
    pub(in crate::siege) attacks: BTreeMap<String, Tally>,
    /// How often each call of the table was made, by its name.
    pub(in crate::siege) calls: BTreeMap<String, u64>,
}

/// What one attack did.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(in crate::siege) struct Tally {
    pub(in crate::siege) connections: u64,
    pub(in crate::siege) requests: u64,
    pub(in crate::siege) bytes: u64,
}
