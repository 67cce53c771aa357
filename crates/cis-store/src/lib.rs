//! Where the state of CIS lives: the [`Store`] port, its types, and the embedded SQLite side of it.
//!
//! ```text
//!   engine ── Store operations ──► writer thread ──► BEGIN; op, op, op …; COMMIT ──► answers
//!   CLI ───── Reader ────────────► read-only snapshots of the same file
//! ```
//!
//! Every operation is one decision of `cis-core` applied in one transaction: a guarded update and its event
//! row. It deliberately knows nothing of processes, sockets or HTTP.
//!
//! | module | what lives there |
//! |---|---|
//! | [`port`] | the operations, what they take and answer |
//! | [`sqlite`] | the embedded store |

pub mod port;
pub mod sqlite;

pub use port::{Store, StoreError};
