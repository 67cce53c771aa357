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
//! | [`protocol`] | the messages and their framing |
//! | [`serve`] | the process: its loop, its lock, its life |
//! | `attempt` | one attempt: spawn, output, stop, end |
//! | `stray` | finding and ending what escaped from an attempt |
//! | `journal` | what was started and how it ended, across crashes of the runner |
//! | [`log`] | framed log files: writing with a cap, reading |

pub mod protocol;
