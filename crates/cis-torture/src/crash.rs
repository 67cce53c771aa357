//! The real program, killed again and again while it works, and what must hold all the same.
//!
//! ```text
//!   clients ── HTTP ──► cis node ──► cis runner ──► tasks          killer: SIGKILL, at any moment and at named points
//!      │                   │                          │
//!      └ own records       └ dag.db                   └ lines       judge: reads only these three
//! ```
//!
//! The same seed gives the same blows in the same order. What they meet is up to the machine's scheduler: a seed that found
//! something finds it again soon, but not at once.
//!
//! | module | what lives there |
//! |---|---|
//! | [`storm`] | many clients, mixed load; node, runner or both are killed |
//! | [`load`] | the same clients, and nothing is killed |
//! | [`live_tasks`] | the node is killed under a hundred live tasks |
//! | [`runner_killed`] | the runner is killed under tasks of every policy |
//! | `victim` | the node: started, killed, struck at a point |
//! | `client`, `business` | what clients do |
//! | `record`, `evidence` | what they write down, and what else there is to judge by |
//! | `check` | the judge |
//! | `wire`, `process`, `fifo` | connections, processes, pipes |

mod business;
mod check;
mod client;
mod evidence;
mod fifo;
pub mod live_tasks;
pub mod load;
pub(crate) mod process;
mod record;
pub mod runner_killed;
pub mod storm;
pub(crate) mod victim;
pub(crate) mod wire;

use cis_store::{Reader, check as invariants};

use crate::Finding;
use victim::Victim;

fn count(finding: &mut Finding, what: &'static str, count: usize) {
    finding.counts.push((what, count as u64));
}

/// Stops the node and says what is wrong with what it leaves behind.
fn wrong_in_the_end(victim: &mut Victim) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    // Before it is stopped: what runs here belongs to no run that goes on.
    wrong.extend(victim.strays().into_iter().map(|process| format!("a stray: {process:?}")));
    victim.stop()?;
    wrong.extend(victim.processes().into_iter().map(|process| format!("stays for ever: {process:?}")));
    // The node's own stays: it is for every run that comes over the network.
    let contexts = std::fs::read_dir(victim.data().join("contexts"))?.flatten();
    let contexts = contexts.filter(|entry| entry.file_name() != "node.json").count();
    if contexts > 0 {
        wrong.push(format!("{contexts} environments of runs that are over are left"));
    }
    wrong.extend(invariants::violations(&Reader::open(&victim.data().join("dag.db"))?)?);
    Ok(wrong)
}

/// Adds the seed to what was found, and keeps the place for somebody to look at.
fn conclude(finding: &mut Finding, seed: u64, wrong: Vec<String>, victim: &mut Victim) {
    if !wrong.is_empty() {
        let place = victim.keep().display();
        finding.violations.extend(wrong.into_iter().map(|what| format!("seed {seed}, {place}: {what}")));
    }
}
