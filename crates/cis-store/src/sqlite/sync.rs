//! What the writer's thread and its callers meet by. `crates/cis-schedule` compiles the same writer with a scheduler's own
//! in their place, and tries thousands of orders in which things may happen.

pub(super) use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
pub(super) use std::thread::{self, JoinHandle};

pub(super) use tokio::sync::{mpsc, oneshot, watch};
