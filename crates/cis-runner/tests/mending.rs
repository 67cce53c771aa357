//! What a runner needs in its data directory is removed under it: it puts it back, and stays the only one.

mod support;

use std::fs::{self, File};
use std::path::Path;

use cis_runner::client::{connect, find_runner};
use cis_runner::protocol::*;
use support::{Node, exited, key, script, wait_until};

#[test]
fn removed_socket_and_lock_come_back() {
    let node = Node::new();
    let mut c = node.connect(1, 2);
    let (socket, lock) = (node.data.join("runner.sock"), node.data.join("runner.lock"));
    for _ in 0..2 {
        for gone in [&socket, &lock] {
            fs::remove_file(gone).unwrap();
        }
        wait_until("the socket", || matches!(connect(&node.data), Ok(Some(_))));
        wait_until("the lock", || File::open(&lock).is_ok_and(|lock| lock.try_lock_shared().is_err()));
        assert_eq!(find_runner(&node.data).map(|runner| runner.pid), Some(c.runner));
    }
    // A connection that was there all the time is not disturbed, and the next is to the same runner.
    assert_eq!(c.run(script(1, "true")).outcome, exited(0));
    assert_eq!(node.connect(2, 2).runner, c.runner);
}

#[test]
fn socket_that_was_replaced_is_taken_back() {
    let node = Node::new();
    let c = node.connect(1, 1);
    fs::write(node.dir.path().join("other"), "").unwrap();
    fs::rename(node.dir.path().join("other"), node.data.join("runner.sock")).unwrap();
    wait_until("the socket", || matches!(connect(&node.data), Ok(Some(_))));
    assert_eq!(node.connect(2, 1).runner, c.runner);
}

/// Removed at the same moment, and before the runner could put anything back.
#[test]
fn runner_whose_lock_and_socket_are_gone_is_still_the_only_one() {
    let node = Node::new();
    let c = node.connect(1, 1);
    for gone in ["runner.sock", "runner.lock"] {
        fs::remove_file(node.data.join(gone)).unwrap();
    }
    let second = std::process::Command::new(support::EXE)
        .args(["runner", "--data-dir"])
        .arg(&node.data)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && told.contains("another runner serves"), "{told}");
    assert_eq!(node.connect(2, 1).runner, c.runner);
}

#[test]
fn directory_that_is_removed_stays_removed() {
    let node = Node::new();
    let c = node.connect(1, 1);
    let runner = c.runner;
    fs::remove_dir_all(&node.data).unwrap();
    drop(c);
    let has_exited = || match fs::read_to_string(format!("/proc/{runner}/stat")) {
        Ok(stat) => stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    };
    wait_until("the runner's end", has_exited);
    assert!(!Path::new(&node.data).exists());
}

#[test]
fn stopped_runner_is_found_as_such() {
    use rustix::process::{Pid, Signal, kill_process};
    let node = Node::new();
    let c = node.connect(1, 1);
    let found = |stopped| {
        find_runner(&node.data).is_some_and(|found| found.pid == c.runner && found.stopped == stopped)
    };
    assert!(found(false));
    let pid = Pid::from_raw(c.runner.cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    wait_until("the stop", || found(true));
    kill_process(pid, Signal::CONT).unwrap();
    wait_until("its end", || found(false));
}

/// A copy of a directory has a copy of its journal; the processes in it are the original's.
#[test]
fn runner_of_a_copy_ends_nothing_of_the_original() {
    let node = Node::new();
    let go = node.fifo("go");
    let mut original = node.connect(1, 2);
    original.start(script(1, "cat go"));
    original.wait_started(1);
    // Its pid is told with the next lines.
    assert_eq!(original.run(script(2, "true")).outcome, exited(0));
    let copy = Node::new();
    fs::create_dir_all(&copy.data).unwrap();
    wait_until("its pid", || {
        fs::copy(node.data.join("runner.journal"), copy.data.join("runner.journal")).unwrap();
        let journal = fs::read_to_string(copy.data.join("runner.journal")).unwrap();
        journal.lines().any(|line| line.starts_with("P 1 "))
    });
    let mut other = copy.connect(2, 2);
    let ended = other.ended_many(2).remove(0);
    assert_eq!((ended.key, ended.outcome), (key(1), Outcome::Interrupted));
    fs::write(&go, "").unwrap();
    assert_eq!(original.ended().outcome, exited(0), "nobody has touched it");
}
