//! Lanes: only so many of their attempts run at once, and attempts of others do not wait for them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use cis_runner::protocol::*;
use support::{Node, exited, key, script, wait_until};

const NARROW: Lane = Lane { id: 7, max: 2 };

/// Waits for a pipe of its own.
fn waiting(node: &Node, execution: i64, lane: Lane) -> Start {
    node.fifo(&format!("go{execution}"));
    Start { lane: Some(lane), ..script(execution, &format!("cat go{execution}")) }
}

fn release(node: &Node, execution: i64) {
    std::fs::write(node.dir.path().join(format!("go{execution}")), "").unwrap();
}

#[test]
fn lane_runs_no_more_than_its_limit_and_blocks_no_other() {
    let node = Node::new();
    let mut c = node.connect(1, 8);
    for execution in 1..=5 {
        c.start(waiting(&node, execution, NARROW));
    }
    // Behind them in the queue: without a lane, and in one that is full after the first.
    for execution in 6..=30 {
        c.start(script(execution, "true"));
    }
    let single = Lane { id: 8, max: 1 };
    c.start(waiting(&node, 31, single));
    c.start(waiting(&node, 32, single));
    assert!(c.ended_many(25).iter().all(|ended| ended.outcome == exited(0)));
    c.ack(6..=30);
    let (running, queued) = (KnownState::Running, KnownState::Queued);
    let mut c = node.connect(2, 8);
    let mut states =
        [(1, running), (2, running), (3, queued), (4, queued), (5, queued), (31, running), (32, queued)];
    assert_eq!(c.states(), states);
    // The first that waits goes first.
    release(&node, 2);
    assert_eq!(c.ended().key, key(2));
    c.wait_started(3);
    c.ack([2]);
    let mut c = node.connect(3, 8);
    (states[1], states[2]) = (states[0], (3, running));
    assert_eq!(c.states(), states[1..]);
    // What is stopped makes room, and what waits is stopped without having been started.
    c.stop(32, false);
    assert_eq!(c.ended().outcome, Outcome::NeverStarted);
    c.stop(1, true);
    assert_eq!(c.ended().outcome, Outcome::Stopped);
    c.wait_started(4);
    for execution in [3, 4, 5, 31] {
        release(&node, execution);
    }
    let ended = c.ended_many(4);
    assert!(ended.iter().all(|ended| ended.outcome == exited(0)), "{ended:?}");
    node.assert_no_survivors();
}

#[test]
fn attempts_of_a_lane_that_cannot_start_do_not_keep_it_full() {
    let node = Node::new();
    let mut c = node.connect(1, 4);
    let lane = Some(Lane { id: 7, max: 0 });
    for execution in 1..=20 {
        let argv = if execution % 2 == 0 { vec!["true".into()] } else { vec!["/no/such/program".into()] };
        c.start(Start { argv, lane, ..script(execution, "") });
    }
    let ended = c.ended_many(20);
    assert!(ended.iter().skip(1).step_by(2).all(|ended| ended.outcome == exited(0)), "{ended:?}");
}

#[test]
fn runner_with_nothing_but_a_full_lane_sleeps() {
    let node = Node::new();
    let mut c = node.connect(1, 8);
    for execution in 1..=3 {
        c.start(waiting(&node, execution, NARROW));
    }
    c.wait_started(1);
    c.wait_started(2);
    let sleeps = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", c.runner)).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    };
    wait_until("its sleep", sleeps);
    for execution in 1..=3 {
        release(&node, execution);
    }
    assert!(c.ended_many(3).iter().all(|ended| ended.outcome == exited(0)));
}
