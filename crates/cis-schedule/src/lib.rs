//! The writer and the outbox, in orders in which things may happen to them: their own source, compiled with a scheduler's
//! threads, locks and channels in the place of the real ones. Every order it picks is one execution; nothing of it is
//! left to the machine, so whatever it finds, it finds again.
//!
//! ```text
//!  cis-store/src/sqlite/writer.rs ──┐                    ┌─► every call is answered, after its commit
//!  cis-notify/src/round.rs ─────────┼─ sync: shuttle's ──┤   nothing is written once the store is closed
//!  scenario: several callers, a stop┘                    └─► what was given is settled, nothing is lost
//! ```
//!
//! SQLite is the real one. The channels are tokio's own, with a chance for everybody else before each use of them: what
//! happens inside them is tested where they are made.
//!
//! | module | what lives there |
//! |---|---|
//! | [`store`] | callers of the writer |
//! | [`outbox`] | a round of telling that is broken off |
//! | `sync` | what both meet by, as the scheduler has it |

pub mod outbox;
pub mod store;
mod sync;

// Names under which the included sources ask for them.
pub(crate) use cis_store::port;
