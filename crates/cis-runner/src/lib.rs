//! The runner: the one process per data directory that owns every task process, and how to talk to it.
//!
//! ```text
//!  cis (coordinator) ── runner.sock ──► cis runner (own session, child subreaper, holds runner.lock)
//!  may die and come back                   │ start journal      what was started, and how it ended
//!                                          │ logs/…             framed output, one file per attempt
//!                                          └ task processes     a process group each
//! ```
//!
//! The coordinator hands over attempts ([`protocol::ToRunner::Start`]) and hears how they ended
//! ([`protocol::FromRunner::Ended`]); an outcome is kept until it is acknowledged. The runner deliberately
//! knows nothing of the store, of DAGs, or of what an outcome means.
//!
//! | module | what lives there |
//! |---|---|
//! | [`protocol`] | the messages |
//! | [`frame`] | their framing |
//! | [`client`] | reaching a runner, and starting one |
//! | [`serve`] | the process: its loop, its lock, its life |
//! | `runner` | its state, its queue, its starts |
//! | `coordinator` | who is heard, and what is answered |
//! | `handover` | attempts on their way from one coordinator to the next |
//! | `lane` | which attempt is next |
//! | `ending` | how attempts end |
//! | `attempt` | one attempt: process, pipes, log, timers |
//! | `spawn` | what a process starts with |
//! | `clone` | starting it |
//! | [`exec_limit`] | how long arguments and environment may be |
//! | [`outputs`] | reading what a command wrote, within bounds |
//! | [`files`] | how many files it may have open |
//! | [`allocator`] | giving memory back, for a node |
//! | `stray` | finding what escaped from an attempt |
//! | [`marked`] | the same as seen from outside, for whoever looks after a directory |
//! | `remnant` | what an earlier, killed runner left running |
//! | [`directory`] | which directory something was written in |
//! | `journal` | what was started and how it ended, across crashes of the runner |
//! | `door` | the socket |
//! | `process` | `/proc`, and signals that hit the right process |
//! | [`log`] | framed log files: writing with a cap, reading |

pub mod allocator;
mod attempt;
pub mod client;
mod clock;
mod clone;
mod coordinator;
pub mod directory;
mod door;
mod ending;
mod error;
pub mod exec_limit;
pub mod files;
pub mod frame;
mod handover;
mod journal;
mod lane;
pub mod log;
pub mod marked;
pub mod outputs;
mod process;
pub mod protocol;
mod remnant;
mod runner;
pub mod serve;
mod spawn;
mod stray;

pub use error::Error;
