//! A copy of a data directory is another directory: looking at it, or working in it, ends nothing of the original.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use support::{Fifo, Node, Ran, Running, eventually};

/// A run whose task `t` waits at its gate, and a copy of its data directory taken meanwhile.
struct Copied {
    node: Node,
    gate: Fifo,
    up: Fifo,
    copy: PathBuf,
}

impl Copied {
    fn new(more: &str) -> Self {
        let node = Node::new();
        let (gate, up) = (node.fifo("gate"), node.fifo("up"));
        let command = "echo $CIS_ATTEMPT > up; echo n=1 > $CIS_OUTPUT; read -r _ < gate; echo over";
        node.dag("d", &format!("[[tasks]]\nid = 't'\ncommand = '{command}'\n{more}"));
        node.ok(["run", "--detach", "d.toml"]);
        assert_eq!(up.line(), "1");
        eventually("the boot file", || node.data.join("boot").exists().then_some(()));
        let copy = node.path("copy");
        let copied = Command::new("cp").arg("-a").arg(&node.data).arg(&copy).status().unwrap();
        assert!(copied.success());
        Self { node, gate, up, copy }
    }

    /// `cis` on the copy.
    fn at_copy<const N: usize>(&self, args: [&str; N]) -> Ran {
        let mut command = self.node.bare();
        command.env("CIS_DATA_DIR", &self.copy).args(args);
        Running::start(command).wait()
    }

    /// The copy's task, once its run is over.
    fn task_at_copy(&self) -> Value {
        eventually("the end of the copy's run", || {
            let told = self.at_copy(["status", "d", "--json"]).json();
            let over = told["status"] != "running";
            over.then(|| told["tasks"][0].clone())
        })
    }

    /// The original's task was not disturbed, and ends as if there were no copy.
    fn assert_original_completes(&self) {
        assert_eq!(self.node.stored("d"), "t=running");
        self.gate.let_through(1);
        self.node.ok(["status", "d", "--watch"]);
        assert_eq!(self.node.states("d"), "t=completed");
        assert_eq!(self.node.task("d", "t")["attempt"], 1);
        assert_eq!(self.node.logs("d", "t"), "over\n");
        self.node.assert_sound();
    }

    fn original(&self) -> String {
        format!("a copy of `{}`", self.node.data.canonicalize().unwrap().display())
    }
}

#[test]
fn looking_at_a_copy_leaves_the_originals_tasks_alone() {
    let copied = Copied::new("");
    copied.at_copy(["doctor"]).code(0).says(&copied.original()).says("goes on there");
    copied.at_copy(["status", "d"]).code(0).tells(&copied.original()).tells("counts as interrupted here");
    let task = copied.task_at_copy();
    assert_eq!(task["status"], "failed", "{task}");
    let cause = task["cause"].as_str().unwrap();
    assert!(cause.contains("of which this data directory is a copy"), "{cause}");
    // Once a coordinator has worked in it, it is a directory of its own.
    let again = copied.at_copy(["status", "d"]).code(0);
    assert!(!again.err.contains("a copy of"), "{again}");
    copied.at_copy(["doctor"]).code(0).says(&copied.original());
    copied.assert_original_completes();
}

#[test]
fn node_on_a_copy_serves_and_decides_about_interrupted_attempts_as_usual() {
    let copied = Copied::new("idempotent = true\n");
    let mut command = copied.node.bare();
    command.env("CIS_DATA_DIR", &copied.copy).args(["node", "start", "--bind", "127.0.0.1:0"]);
    let mut serving = Running::start(command);
    serving.until("http://");
    assert_eq!(copied.up.line(), "2", "the copy runs it again, as its policy says");
    assert_eq!(copied.node.stored("d"), "t=running");
    // One for each of them.
    copied.gate.let_through(2);
    let task = copied.task_at_copy();
    assert_eq!((&task["status"], &task["attempt"]), (&"completed".into(), &2.into()), "{task}");
    copied.node.ok(["status", "d", "--watch"]);
    assert_eq!(copied.node.task("d", "t")["attempt"], 1);
    serving.signal(rustix::process::Signal::TERM);
    serving.wait().code(0).tells(&copied.original());
}

/// `cp` takes one file after the other: the journal it copied may know less than the database.
#[test]
fn attempt_that_the_copied_journal_does_not_know_is_not_started_in_the_copy() {
    let copied = Copied::new("");
    std::fs::write(copied.copy.join("runner.journal"), "").unwrap();
    copied.at_copy(["status", "d"]).code(0).tells(&copied.original());
    assert_eq!(copied.task_at_copy()["status"], "failed");
    assert!(copied.up.is_silent(), "no second process");
    copied.assert_original_completes();
}

/// An earlier version's journal does not name its directory; the processes it names do.
#[test]
fn unsigned_journal_is_judged_by_the_marks_of_its_processes() {
    let copied = Copied::new("");
    for directory in [&copied.copy, &copied.node.data] {
        let journal = std::fs::read_to_string(directory.join("runner.journal")).unwrap();
        let unsigned: String =
            journal.lines().filter(|line| !line.starts_with("R ")).map(|line| format!("{line}\n")).collect();
        std::fs::write(directory.join("runner.journal"), unsigned).unwrap();
    }
    copied.at_copy(["status", "d"]).code(0);
    assert_eq!(copied.task_at_copy()["status"], "failed");
    assert_eq!(copied.node.stored("d"), "t=running");
    // In the original the same journal is believed: what it names is ended when its runner was killed.
    support::process::kill(copied.node.runner());
    copied.node.cis(["status", "d", "--watch"]).code(1);
    assert_eq!(copied.node.task("d", "t")["cause"], "the runner was killed");
    copied.node.assert_no_survivors();
}

#[test]
fn moved_directory_keeps_its_tasks() {
    let node = Node::new();
    let (gate, up) = (node.fifo("gate"), node.fifo("up"));
    node.dag("d", "[[tasks]]\nid = 't'\ncommand = 'echo up > up; read -r _ < gate'\n");
    node.ok(["run", "--detach", "d.toml"]);
    up.line();
    support::process::kill(node.coordinator());
    std::fs::rename(&node.data, node.path("moved")).unwrap();
    let node = node.with("CIS_DATA_DIR", "moved");
    let mut command = node.bare();
    gate.let_through(1);
    command.args(["status", "d", "--watch"]);
    let told = Running::start(command).wait();
    assert!(!told.err.contains("a copy of"), "{told}");
    let mut command = node.bare();
    command.args(["status", "d", "--json"]);
    let told = Running::start(command).wait().json();
    assert_eq!((&told["status"], &told["tasks"][0]["attempt"]), (&"completed".into(), &1.into()), "{told}");
}
