//! Small doses of what kills node and runner, on the real program. It must have been built, as `cargo test --workspace
//! --all-features` does, with its failpoints.

use cis_torture::crash::{live_tasks, load, runner_killed, storm};
use cis_torture::{Dose, Finding};

fn dose(rounds: u64) -> Dose {
    Dose { seed: 1, rounds, time: None }
}

fn count(finding: &Finding, what: &str) -> u64 {
    finding.counts.iter().find(|(name, _)| *name == what).map_or(0, |(_, count)| *count)
}

#[test]
fn nothing_acknowledged_is_lost_however_often_the_node_is_killed() {
    let finding = storm::run(&dose(40)).unwrap();
    println!("{finding}");
    assert!(finding.is_clean(), "{finding}");
    let killed = count(&finding, "node killed") + count(&finding, "runner killed");
    let cut = count(&finding, "kills between a request and its answer");
    assert!(cut * 100 >= killed * 30, "only {cut} of {killed} kills fell between a request and its answer");
    assert!(
        count(&finding, "kills at a named point") > 0,
        "build `cis` with `--features failpoints`: {finding}"
    );
}

#[test]
fn a_hundred_live_tasks_do_not_notice_that_the_node_is_killed() {
    let finding = live_tasks::run(&dose(5)).unwrap();
    println!("{finding}");
    assert!(finding.is_clean(), "{finding}");
}

#[test]
fn tasks_of_a_killed_runner_follow_their_policy_and_leave_nothing() {
    let finding = runner_killed::run(&dose(10)).unwrap();
    println!("{finding}");
    assert!(finding.is_clean(), "{finding}");
}

#[test]
fn under_load_nobody_is_in_the_way_of_anybody() {
    let finding = load::run(&dose(8)).unwrap();
    println!("{finding}");
    assert!(finding.is_clean(), "{finding}");
}
