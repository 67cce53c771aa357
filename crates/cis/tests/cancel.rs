//! Cancelled means gone: trees that fork, leave their session and ignore signals do not survive it.

mod support;

use std::fmt::Write;

use rustix::process::Signal;
use support::Node;

/// Does everything a process can do to be hard to end, short of wiping its environment, and says when it has.
const STUBBORN: &str = r#"
    trap '' TERM INT HUP
    sleep 1000 &
    setsid sh -c 'sleep 1000 & (sleep 1000 &); exec sleep 1000' &
    (setsid sh -c '(setsid sleep 1000 &); exec sleep 1000' &)
    (sh -c 'while :; do (sleep 1000 &); sleep 0.01; done' &)
    echo up > up
    wait
    sleep 1000
"#;

const CANCELS: usize = 30;
const TREES: usize = 10;

fn forest(graces: [&str; 2]) -> String {
    let mut text = String::new();
    for tree in 0..TREES {
        let grace = graces[tree % graces.len()];
        writeln!(text, "[[tasks]]\nid = 't{tree}'\ngrace = '{grace}'\ncommand = '''{STUBBORN}'''").ok();
    }
    text + "[[tasks]]\nid = 'after'\ndepends_on = ['t0']\ncommand = 'touch after-was-here'\n"
}

fn assert_cancelled(node: &Node, dag: &str, reason: &str) {
    let status = node.json(["status", dag]);
    assert_eq!(
        (&status["status"], &status["run"]["stop_reason"]),
        (&"cancelled".into(), &reason.into()),
        "{status}"
    );
}

#[test]
fn three_hundred_stubborn_trees_are_cancelled_without_survivors() {
    let node = Node::new().with("CIS_SLOTS", "10");
    let up = node.fifo("up");
    node.write("forest.toml", forest(["0s", "10ms"]));
    for round in 0..CANCELS {
        node.ok(["run", "--detach", "forest.toml"]);
        // Grown up, half grown, and in the middle of their first forks.
        let grown = [TREES, TREES / 2, 1][round % 3];
        up.lines(grown);
        let kill: &[&str] = if round % 5 == 4 { &["--kill"] } else { &[] };
        node.ok(["dag", "cancel", "forest"].iter().chain(kill));
        node.cis(["status", "forest", "--watch"]).code(1);
        node.assert_no_survivors();
        assert_cancelled(&node, "forest", "cancel");
        while !up.is_silent() {
            up.line();
        }
    }
    assert!(!node.path("after-was-here").exists());
    node.assert_sound();
    node.wait_idle();
    assert_eq!(node.complaints(), "");
}

#[test]
fn an_interrupt_cancels_a_foreground_run() {
    for signal in [Signal::INT, Signal::TERM] {
        let node = Node::new();
        let up = node.fifo("up");
        let polite = "trap 'echo cleaning up; exit 0' TERM; echo up > up; while :; do sleep 0.01; done";
        let text = format!(
            "tasks = [{{ id = 'a', command = \"{polite}\" }}, {{ id = 'b', deps = ['a'], command = 'true' }}]"
        );
        node.write("d.toml", text);
        let run = node.spawn(["run", "d.toml"]);
        up.line();
        run.signal(signal);
        run.wait().code(130).tells("cancelling; press Ctrl-C again to kill").tells("d#1 cancelled");
        node.assert_no_survivors();
        assert_cancelled(&node, "d", "cancel");
        assert_eq!(node.states("d"), "a=cancelled b=cancelled");
        assert!(node.logs("d", "a").contains("cleaning up\n"));
    }
}

#[test]
fn a_second_interrupt_kills_at_once() {
    let node = Node::new().with("CIS_SLOTS", "10");
    let up = node.fifo("up");
    node.write("forest.toml", forest(["1h", "2h"]));
    let mut run = node.spawn(["run", "forest.toml", "--json"]);
    up.lines(TREES);
    run.signal(Signal::INT);
    run.until("run.cancelling");
    assert!(!node.survivors().is_empty(), "they have an hour");
    run.signal(Signal::INT);
    let ran = run.wait().code(130).tells("killing");
    assert_eq!(ran.summary()["status"], "cancelled");
    node.assert_no_survivors();
    assert_cancelled(&node, "forest", "cancel");
    node.assert_sound();
}

#[test]
fn an_interrupt_reaches_a_run_hosted_elsewhere() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.write("host.toml", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }]");
    node.write("guest.toml", "tasks = [{ id = 'a', command = 'echo up > up; exec sleep 1000' }]");
    let host = node.spawn(["run", "host.toml"]);
    up.line();
    let guest = node.spawn(["run", "guest.toml"]);
    up.line();
    guest.signal(Signal::INT);
    guest.wait().code(130);
    assert_cancelled(&node, "guest", "cancel");
    gate.let_through(1);
    host.wait().code(0);
}

#[test]
fn what_is_queued_and_cancelled_never_starts() {
    let node = Node::new().with("CIS_SLOTS", "1");
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.write("first.toml", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }]");
    let many: String =
        (0..2_000).map(|n| format!("[[tasks]]\nid = 't{n}'\ncommand = 'touch started'\n")).collect();
    node.write("second.toml", many);
    let first = node.spawn(["run", "first.toml"]);
    up.line();
    node.ok(["run", "--detach", "second.toml"]);
    node.ok(["dag", "cancel", "second"]);
    node.cis(["status", "second", "--watch"]).code(1);
    gate.let_through(1);
    first.wait().code(0);
    node.ok(["run", "first.toml", "--dry-run"]);
    assert!(!node.path("started").exists());
    assert_cancelled(&node, "second", "cancel");
    node.wait_idle();
    assert_eq!(node.json(["status", "second"])["run"]["cancelled"], 2_000);
    node.assert_sound();
}

#[test]
fn a_cancel_that_comes_too_late_changes_nothing() {
    let node = Node::new();
    node.write("d.toml", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["run", "d.toml"]);
    node.ok(["dag", "cancel", "d"]).says("d#1 was over already: completed");
    let again = node.json(["dag", "cancel", "d#1"]);
    assert_eq!((&again["status"], &again["was_over"]), (&"completed".into(), &true.into()));
    assert_eq!(node.json(["status", "d"])["status"], "completed");
    node.cis(["dag", "cancel", "d#2"]).code(3).says_nothing().tells("there is no run `d#2`");
}
