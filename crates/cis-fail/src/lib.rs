//! Failpoints: named places around every commit, spawn and acknowledgement at which a process can be told to die as if
//! somebody had sent it SIGKILL just there. Only a build with the feature `failpoints` has them; what users get does not.
//!
//! Whoever breaks CIS on purpose names a file in `CIS_FAIL` and writes the name of a point into it. The process that comes
//! by that point and removes the file dies. So a point strikes once, however many processes there are and are started
//! after it, it can be set at any moment, and that the file is gone tells that it struck.
//!
//! And guards that the same build can leave out, one at a time: whoever claims to find what is broken must find that.

/// The variable with the path of the file that says where to die.
pub const VARIABLE: &str = "CIS_FAIL";

/// Every point, and what has happened and what has not when a process dies at it.
pub const POINTS: [&str; 17] = [
    // The writer: a batch is written but not committed; it is, and nobody was told.
    "store.before_commit",
    "store.after_commit",
    // A run's surroundings are on disk, the run is not.
    "context.after_save",
    // The coordinator: tasks are claimed but not handed over; outcomes are recorded but not acknowledged; what it has to
    // say to the runner is about to leave; it has left.
    "coordinator.before_start",
    "coordinator.before_ack",
    "coordinator.before_send",
    "coordinator.after_send",
    // The runner: lines are about to go into the journal; they are there.
    "runner.before_journal",
    "runner.after_journal",
    // A rewritten journal is about to take the old one's place; it has.
    "runner.before_rewrite",
    "runner.after_rewrite",
    // The start is in the journal, the process is not there; it is, and its number is not in the journal.
    "runner.before_spawn",
    "runner.after_spawn",
    // Outcomes are about to be told; they were.
    "runner.before_tell",
    "runner.after_tell",
    // The coordinator has recorded an outcome and says so; it is about to be forgotten, or was.
    "runner.before_ack",
    "runner.after_ack",
];

/// Every guard that can be left out, and what goes wrong without it.
pub const GUARDS: [&str; 4] = [
    // Deadlines stay where they are when somebody sets the clock.
    "clock.follow",
    // A coordinator whose life is over claims tasks that nobody will ever start.
    "claim.epoch",
    // A lease that has run out is good for as long as nobody has looked.
    "lease.expires",
    // Whoever has once held a task speaks for whoever holds it now.
    "lease.holder",
];

/// Is this guard to be left out?
#[cfg(feature = "failpoints")]
pub fn is_broken(guard: &str) -> bool {
    debug_assert!(GUARDS.contains(&guard), "`{guard}` is in no list");
    BROKEN.get() == Some(guard)
}

/// No, in this build.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn is_broken(_guard: &str) -> bool {
    false
}

#[cfg(feature = "failpoints")]
thread_local! {
    /// Of a thread: others go on guarded.
    static BROKEN: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Does something without a guard; all of it must happen on this thread.
#[cfg(feature = "failpoints")]
pub fn without<T>(guard: &'static str, something: impl FnOnce() -> T) -> T {
    BROKEN.set(Some(guard));
    let done = something();
    BROKEN.set(None);
    done
}

/// Does something; in this build every guard stays.
#[cfg(not(feature = "failpoints"))]
pub fn without<T>(_guard: &'static str, something: impl FnOnce() -> T) -> T {
    something()
}

/// Dies here, if that is what it was told.
#[cfg(feature = "failpoints")]
pub fn point(name: &str) {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    debug_assert!(POINTS.contains(&name), "`{name}` is in no list");
    let Some(file) = FILE.get_or_init(|| std::env::var_os(VARIABLE).map(PathBuf::from)) else { return };
    let told = std::fs::read_to_string(file).is_ok_and(|told| told == name);
    // Of several processes that come by, one removes it.
    if told && std::fs::remove_file(file).is_ok() {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Nothing, in this build.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn point(_name: &str) {}
