//! Failpoints: named places around every commit, spawn and acknowledgement at which a process can be told to die as if
//! somebody had sent it SIGKILL just there. Only a build with the feature `failpoints` has them; what users get does not.
//!
//! Whoever breaks CIS on purpose names a file in `CIS_FAIL` and writes the name of a point into it. The process that comes
//! by that point and removes the file dies. So a point strikes once, however many processes there are and are started
//! after it, it can be set at any moment, and that the file is gone tells that it struck.

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
