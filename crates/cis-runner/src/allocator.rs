//! Has the allocator give memory back to the system when it is free.
//!
//! The allocator of the system learns from large requests: after a body of 30 MiB it takes all that is smaller from heaps of its
//! own, one for each of many threads, and keeps what is free of them. A node that was flooded with large requests then goes on
//! holding hundreds of MiB that it does not use.

#![allow(unsafe_code, reason = "the allocator has no safe interface for its settings")]

/// Larger pieces of memory are the system's own again as soon as they are free.
#[cfg(target_env = "gnu")]
const OWN_PIECES_FROM: i32 = 256 << 10;

/// What a heap keeps at its end, for the next piece.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: i32 = 2 << 20;

/// Heaps that threads share.
#[cfg(target_env = "gnu")]
const HEAPS_MAX: i32 = 4;

/// Sets it so, for this process. To be called while it has one thread.
#[cfg(target_env = "gnu")]
pub fn give_memory_back() {
    for (setting, value) in [
        (libc::M_MMAP_THRESHOLD, OWN_PIECES_FROM),
        (libc::M_TRIM_THRESHOLD, KEPT_BYTES),
        (libc::M_ARENA_MAX, HEAPS_MAX),
    ] {
        // SAFETY: it takes two numbers, and no other thread allocates meanwhile. What it does not know it refuses.
        let _ = unsafe { libc::mallopt(setting, value) };
    }
}

/// Gives back what is free between pieces that are not. Takes milliseconds for a hundred MiB, in which others wait for memory.
#[cfg(target_env = "gnu")]
pub fn trim_heaps() {
    // SAFETY: it takes a number, and waits for whoever allocates.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Other allocators give back what is free.
#[cfg(not(target_env = "gnu"))]
pub fn give_memory_back() {}

/// The same.
#[cfg(not(target_env = "gnu"))]
pub fn trim_heaps() {}
