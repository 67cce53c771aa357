//! What a runner's loop is woken for. The runner is a thread of this process, whose descriptors can be copied; so nothing else
//! is tested here.
#![allow(unsafe_code, reason = "descriptors are copied by their numbers, whoever has them")]

mod support;

use std::os::fd::{BorrowedFd, OwnedFd};

use cis_runner::protocol::*;
use support::{Node, exited, script};

/// A copy of every descriptor of this process.
fn copies() -> Vec<OwnedFd> {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // SAFETY: nothing is done with it but to copy it; one that is not open any more cannot be.
    let copy =
        |number: i32| rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(number) }, 0).ok();
    numbers.into_iter().filter_map(copy).collect()
}

/// Every process that is started has, for a moment, a copy of all the runner has open: closing alone ends no watch.
#[test]
fn what_is_over_is_not_watched_though_somebody_has_a_copy_of_it() {
    let node = Node::new();
    let mut c = node.runner_here().connect(1, 2);
    assert_eq!(c.runner, std::process::id());
    assert_eq!(c.run(script(1, "true")).outcome, exited(0));
    let before = c.watched();
    let (output, end) = (node.fifo("output"), node.fifo("end"));
    let text = format!("read x < {}; echo well; exec >&- 2>&-; read x < {}", output.display(), end.display());
    // More input than a pipe takes, and nobody reads it.
    let unread = Some("x".repeat(1 << 20));
    c.start(Start { stdin: unread, ..script(2, &text) });
    c.wait_started(2);
    assert_eq!(c.watched().len(), before.len() + 4, "process, both outputs, input");
    let copies = copies();
    std::fs::write(output, "\n").unwrap();
    node.wait_for_output("run/2.log", "well\n");
    std::fs::write(end, "\n").unwrap();
    assert_eq!(c.ended().outcome, exited(0));
    assert_eq!(c.watched(), before);
    drop(copies);
}
