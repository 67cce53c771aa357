//! Nothing of an attempt survives it: stops, timeouts, leftovers, escapes.

mod support;

use cis_runner::log::Stream;
use cis_runner::protocol::*;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use support::{Node, exited, key, script, wait_gone};

/// Does everything a process can do to be hard to end, short of wiping its environment.
const STUBBORN: &str = r#"
    trap '' TERM INT HUP
    sleep 1000 &
    setsid sh -c 'sleep 1000 & (sleep 1000 &); exec sleep 1000' &
    (setsid sh -c '(setsid sleep 1000 &); exec sleep 1000' &)
    (sh -c 'while :; do (sleep 1000 &); sleep 0.01; done' &)
    echo up
    wait
"#;

#[test]
fn stops_trees_that_do_not_want_to() {
    const BATCHES: i64 = 10;
    const BATCH: i64 = 30;
    let node = Node::new();
    let mut c = node.connect(1, BATCH as u32);
    for batch in 0..BATCHES {
        let executions = batch * BATCH..(batch + 1) * BATCH;
        for execution in executions.clone() {
            let mut start = script(execution, STUBBORN);
            start.grace_ms = [0, 5, 30_000][(execution % 3) as usize];
            c.start(start);
            if execution % 2 == 0 {
                // In the middle of its first forks.
                c.stop(execution, execution % 3 == 2);
            }
        }
        for execution in executions.clone().filter(|execution| execution % 2 == 1) {
            if execution % 4 == 1 {
                c.wait_started(execution);
            }
            c.stop(execution, false);
            c.stop(execution, execution % 3 == 2);
        }
        for ended in c.ended_many(BATCH as usize) {
            let fine = matches!(ended.outcome, Outcome::Stopped | Outcome::NeverStarted);
            assert!(fine, "{ended:?}");
        }
        node.assert_no_survivors();
        c.ack(executions);
    }
}

#[test]
fn a_polite_tree_gets_its_grace() {
    let node = Node::new();
    let mut c = node.connect(1, 2);
    // The leader goes at once; what it started takes a moment to clean up, in a session of its own.
    let text = "setsid sh -c 'trap \"kill $!; echo cleaned; exit\" TERM; echo up; while :; do sleep 0.02; done' & wait";
    c.start(script(1, text));
    c.wait_started(1);
    node.wait_for_output("run/1.log", "up\n");
    c.stop(1, false);
    let ended = c.ended();
    assert_eq!(ended.outcome, Outcome::Stopped);
    assert_eq!(ended.log.stdout_tail, "up\ncleaned\n");
    node.assert_no_survivors();
}

#[test]
fn a_timeout_is_a_timeout_even_if_it_exits_well() {
    let node = Node::new();
    let mut c = node.connect(1, 3);
    let timed = |execution, text: &str, grace_ms| {
        let mut start = script(execution, text);
        (start.timeout_ms, start.grace_ms) = (Some(50), grace_ms);
        start
    };
    c.start(timed(1, "trap 'exit 0' TERM; while :; do sleep 0.01; done", 30_000));
    c.start(timed(2, "trap '' TERM; while :; do sleep 0.01; done", 20));
    c.start(timed(3, "kill -STOP $$; sleep 1000", 30_000));
    for ended in c.ended_many(3) {
        assert_eq!(ended.outcome, Outcome::TimedOut, "{ended:?}");
    }
    let mut early = script(4, "exit 3");
    early.timeout_ms = Some(60_000);
    assert_eq!(c.run(early).outcome, exited(3));
    node.assert_no_survivors();
}

#[test]
fn a_stop_that_comes_too_late_changes_nothing() {
    let node = Node::new();
    let mut c = node.connect(1, 1);
    assert_eq!(c.run(script(1, "exit 5")).outcome, exited(5));
    c.stop(1, true);
    assert_eq!(c.run(script(2, "true")).key, key(2));
}

#[test]
fn a_queued_attempt_that_is_stopped_never_starts() {
    let node = Node::new();
    let mut c = node.connect(1, 1);
    c.start(script(1, "exec sleep 1000"));
    c.start(script(2, "touch should-not-exist"));
    c.stop(2, false);
    let ended = c.ended();
    assert_eq!((ended.key, ended.outcome, ended.started_ms), (key(2), Outcome::NeverStarted, 0));
    c.stop(1, true);
    assert_eq!(c.ended().outcome, Outcome::Stopped);
    assert!(!node.dir.path().join("should-not-exist").exists());
}

#[test]
fn kill_cuts_a_grace_short() {
    let node = Node::new();
    let mut c = node.connect(1, 1);
    let mut start = script(1, "trap '' TERM; echo up; while :; do sleep 0.01; done");
    start.grace_ms = 3_600_000;
    c.start(start);
    c.wait_started(1);
    c.stop(1, false);
    c.stop(1, true);
    assert_eq!(c.ended().outcome, Outcome::Stopped);
    node.assert_no_survivors();
}

#[test]
fn what_a_leader_leaves_behind_is_ended_and_named() {
    let node = Node::new();
    let mut c = node.connect(1, 4);
    let cases = [
        "sleep 1001 & echo $!",
        "setsid sleep 1001 & echo $!",
        "(setsid sh -c 'sleep 1001 & exec sleep 1001' &) ; echo x",
        // Away from its pipes as well: only being looked for finds it.
        "setsid sleep 1001 </dev/null >/dev/null 2>&1 & echo $!",
        // Without its environment, but in its group.
        "env -i sleep 1001 & echo $!",
    ];
    for (execution, text) in (1..).zip(cases) {
        let ended = c.run(script(execution, text));
        assert_eq!(ended.outcome, exited(0), "{text}");
        node.assert_no_survivors();
        let (notes, _) = node.output(&format!("run/{execution}.log"), Stream::Runner);
        let notes = String::from_utf8(notes).unwrap();
        assert!(
            notes.starts_with("cis: ended leftover process ") && notes.ends_with(")\n"),
            "{text}: {notes}"
        );
        let pid = ended.log.stdout_tail.trim();
        if pid != "x" {
            assert!(notes.contains(&format!(" {pid} (")), "{text}: {notes}");
        }
    }
}

#[test]
fn leftovers_of_others_are_left_alone() {
    let node = Node::new();
    let mut c = node.connect(1, 8);
    // Orphans of a running attempt, in sessions of their own, adopted by the runner.
    let text = "(setsid sleep 1002 &); (setsid sh -c 'echo $$; exec sleep 1002' &); exec sleep 1002";
    c.start(script(1, text));
    c.wait_started(1);
    for execution in 2..40 {
        let ended = c.run(script(execution, "(setsid sleep 1003 &); true"));
        assert_eq!(ended.outcome, exited(0));
    }
    node.wait_for_survivors(3);
    c.stop(1, false);
    assert_eq!(c.ended().outcome, Outcome::Stopped);
    node.assert_no_survivors();
}

#[test]
fn detached_processes_stay() {
    let node = Node::new();
    let mut c = node.connect(1, 1);
    let mut start = script(1, "echo before; sleep 1004 & echo $!");
    start.detach = true;
    let ended = c.run(start);
    assert_eq!(ended.outcome, exited(0));
    let pid: i32 = ended.log.stdout_tail.lines().last().unwrap().parse().unwrap();
    let fd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    assert_eq!(c.run(script(2, "true")).outcome, exited(0));
    assert!(!support::is_gone(&fd));
    rustix::process::pidfd_send_signal(&fd, rustix::process::Signal::KILL).unwrap();
    wait_gone(&fd);
}

#[test]
fn a_stranger_holding_the_pipe_keeps_nobody_waiting() {
    let node = Node::new();
    let mut c = node.connect(1, 1);
    // The one escape there is: a session of its own and no environment. It is not ours to end, and it has
    // our pipe.
    let text =
        "env -i setsid sh -c 'echo $$; exec sleep 1005' & while :; do sleep 0.01; [ -s up ] && exit 0; done";
    c.start(script(1, text));
    c.wait_started(1);
    node.wait_for_output("run/1.log", "\n");
    std::fs::write(node.dir.path().join("up"), "x").unwrap();
    let ended = c.ended();
    assert_eq!(ended.outcome, exited(0));
    let pid: u32 = ended.log.stdout_tail.trim().parse().unwrap();
    support::kill_and_wait(pid);
}
