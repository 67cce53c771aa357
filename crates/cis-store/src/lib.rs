//! Where the state of CIS lives: one SQLite file, the operations on it, and what is read from it.
//!
//! ```text
//!   engine ── operations ───────► writer thread ──► BEGIN; op, op, op …; COMMIT ──► answers
//!   CLI ───── Reader ────────────► read-only snapshots of the same file
//! ```
//!
//! Every operation is one decision of `cis-core` applied in one transaction: a guarded update and its event
//! row. It deliberately knows nothing of processes, sockets or HTTP.
//!
//! | module | what lives there |
//! |---|---|
//! | [`port`] | the operations, what they take and answer |
//! | [`rows`] | what is read: what the API shows, with the keys that lead on |
//! | `sqlite` | the store itself: [`SqliteStore`] writes, [`Reader`] reads |

pub mod port;
pub mod rows;
mod sqlite;

pub use port::{CoordinatorStore, StoreError};
pub use sqlite::{
    AttemptLine, AttemptOf, Chunks, Copy, DagFilter, Durability, Label, Moment, Notice, Offer,
    PUBLIC_TEXT_FROM, PinnedSkill, Pulse, RESERVE, RESERVE_BYTES, RESTORE_LEAP, Reader, SqliteStore,
    TextSearch, Tombstone, Writer, Written, census, check, converted_epoch, fences_used_up,
};
