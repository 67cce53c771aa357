//! Attempts that are tied to a connection, handed to the next coordinator: they go on, or they end; nothing is in between.

mod support;

use cis_runner::protocol::*;
use support::{Coordinator, Node, exited, hello, key, script};

/// Long enough for any successor.
const KEEP_MS: u64 = 60_000;

/// Ends only by SIGKILL, and leaves processes outside its group.
const STUBBORN: &str = "trap '' TERM; (setsid sleep 1000 &); sleep 1000 & wait";

/// A coordinator with a tied attempt that runs and one that waits for its slot.
fn owner_of_two(node: &Node, epoch: i64, text: &str) -> Coordinator {
    let mut owner = node.connect(epoch, 1);
    for execution in 1..=2 {
        owner.start(Start { tied: true, grace_ms: 20, ..script(execution, text) });
    }
    owner.wait_started(1);
    owner
}

#[test]
fn handed_over_attempts_go_on_and_their_outcomes_are_told_once() {
    let node = Node::new();
    let go = node.fifo("go");
    let text = format!("[ $CIS_FENCE = {} ] && cat go; exit 7", key(1).fence);
    let mut first = owner_of_two(&node, 1, &text);
    first.start(script(3, "true"));
    first.hand_over(KEEP_MS);
    let second = node.connect(2, 1);
    let states = [(1, KnownState::Running), (2, KnownState::Queued), (3, KnownState::Queued)];
    assert_eq!(second.states(), states);
    // They are tied to no connection any more.
    drop(second);
    let mut third = node.connect(3, 1);
    assert_eq!(third.states(), states);
    std::fs::write(go, "x").unwrap();
    let outcomes: Vec<_> = third.ended_many(3).into_iter().map(|ended| (ended.key, ended.outcome)).collect();
    assert_eq!(outcomes, [(key(1), exited(7)), (key(2), exited(7)), (key(3), exited(0))]);
    third.ack(1..=3);
    assert_eq!(third.run(script(4, "true")).key, key(4), "and nothing before it");
    third.ack([4]);
    drop(third);
    assert_eq!(node.connect(4, 1).states(), []);
}

#[test]
fn successor_that_comes_before_its_predecessor_went_takes_over_as_well() {
    let node = Node::new();
    let mut first = owner_of_two(&node, 1, STUBBORN);
    first.prepare_hand_over(KEEP_MS);
    let mut second = node.connect(2, 1);
    assert!(first.try_hear().is_none(), "dropped");
    assert_eq!(second.states(), [(1, KnownState::Running), (2, KnownState::Queued)]);
    second.stop(2, false);
    assert_eq!(second.ended().outcome, Outcome::NeverStarted);
    second.stop(1, true);
    assert_eq!(second.ended().outcome, Outcome::Stopped);
    node.assert_no_survivors();
}

#[test]
fn attempts_without_a_successor_in_time_end_as_without_their_owner() {
    let node = Node::new();
    owner_of_two(&node, 1, STUBBORN).hand_over(50);
    node.wait_for_survivors(0);
    let mut late = node.connect(2, 1);
    let ended = late.ended_many(2);
    assert!(ended.iter().all(|ended| ended.outcome == Outcome::OwnerGone), "{ended:?}");
    assert_eq!(ended[1].started_ms, 0, "it was still queued");
    node.assert_no_survivors();
}

#[test]
fn coordinator_without_a_higher_epoch_cannot_take_over() {
    let node = Node::new();
    owner_of_two(&node, 5, STUBBORN).hand_over(200);
    let mut older = node.stranger();
    older.say(&hello(4, 1, None));
    assert!(matches!(older.hear(), FromRunner::Refused { epoch: 5 }));
    // The same one again is heard, and told how they end.
    let mut same = node.connect(5, 1);
    let ended = same.ended_many(2);
    assert!(ended.iter().all(|ended| ended.outcome == Outcome::OwnerGone), "{ended:?}");
    node.assert_no_survivors();
}

#[test]
fn withdrawn_hand_over_keeps_nothing() {
    let node = Node::new();
    let mut first = owner_of_two(&node, 1, STUBBORN);
    first.prepare_hand_over(KEEP_MS);
    first.prepare_hand_over(0);
    drop(first);
    let ended = node.connect(2, 1).ended_many(2);
    assert!(ended.iter().all(|ended| ended.outcome == Outcome::OwnerGone), "{ended:?}");
    node.assert_no_survivors();
}

#[test]
fn attempts_that_wait_for_a_successor_are_interrupted_with_their_runner() {
    let node = Node::new();
    let first = owner_of_two(&node, 1, STUBBORN);
    let runner = first.runner;
    first.hand_over(KEEP_MS);
    support::kill_and_wait(runner);
    let mut second = node.connect(2, 1);
    assert_eq!(second.states(), [(1, KnownState::Running)], "the other one was never started");
    assert_eq!(second.ended().outcome, Outcome::Interrupted);
    node.assert_no_survivors();
}
