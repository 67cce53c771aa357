//! What a round of telling runs its notices by; `crates/cis-schedule` has a scheduler's own in its place.

pub(crate) use tokio::task::JoinSet;
