//! A runner that does not answer, and files of the data directory that are deleted under running processes: a node serves
//! what it can, says what is wrong, and goes on by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::fs;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::{Client, Up};
use support::process::{kill, signal};
use support::{Fifo, Node, eventually, wait_gone};

/// Two tasks, the first of which waits at its gate.
const DAG: &str = r#"{"dag_id": "d", "tasks": [
    {"id": "a", "command": "echo $CIS_FENCE >> DIR/began; echo up > DIR/up; read -r _ < DIR/gate"},
    {"id": "b", "command": "true", "depends_on": ["a"]}]}"#;

/// A node whose first task runs.
struct Busy {
    node: Node,
    up: Up,
    gate: Fifo,
    began: Fifo,
}

impl Busy {
    fn new() -> Self {
        let node = Node::new();
        let (gate, began) = (node.fifo("gate"), node.fifo("up"));
        let up = node.up();
        up.client.run(&DAG.replace("DIR", &node.dir().display().to_string()));
        assert_eq!(began.line(), "up");
        Self { node, up, gate, began }
    }

    /// Kills the node and starts it again.
    fn restart(self) -> Self {
        kill(self.up.running.pid());
        let up = self.node.up();
        Self { up, ..self }
    }

    fn assert_completes_once(&self) {
        self.gate.let_through(1);
        assert_eq!(self.up.client.until_over("d")["status"], "completed");
        assert_eq!(self.node.read("began").lines().count(), 1, "nothing twice");
        assert_eq!(self.node.task("d", "a")["attempt"], 1);
        assert!(self.began.is_silent());
        self.node.assert_sound();
    }
}

fn ready(client: &Client) -> Value {
    let answer = client.get("/ready");
    json!({"status": answer.status, "error": answer.json()["error"]})
}

fn stopped(pid: u32) -> String {
    format!("the runner (process {pid}) is stopped and does not answer")
}

#[test]
fn node_starts_under_a_stopped_runner_and_goes_on_when_it_continues() {
    let busy = Busy::new();
    let runner = busy.node.runner();
    signal(runner, Signal::STOP);
    let busy = busy.restart();
    let client = &busy.up.client;
    let told = ready(client);
    assert_eq!((&told["status"], &told["error"]["code"]), (&503.into(), &"Unavailable".into()));
    assert_eq!(told["error"]["message"], stopped(runner));
    assert!(told["error"]["hint"].as_str().unwrap().contains(&format!("`kill -CONT {runner}`")), "{told}");
    // What needs no runner is served as ever.
    client.run(&support::http::field("outside", 1, &json!({})));
    let claimed = client.claim(&json!({"worker": "w"}));
    assert_eq!(client.say(&claimed[0], "complete", json!({})).status, 200);
    assert_eq!(client.until_over("outside")["status"], "completed");
    busy.node.ok(["dag", "list"]);
    busy.node.ok(["status", "d"]).says("running");
    let doctor = busy.node.cis(["doctor"]).code(1);
    doctor.says(&stopped(runner)).tells(&format!("`kill -CONT {runner}`"));
    // What needs it waits: nothing is claimed for it.
    client.run(r#"{"dag_id": "later", "tasks": [{"id": "t", "command": "true"}]}"#);
    assert_eq!(busy.node.stored("later"), "t=ready");
    signal(runner, Signal::CONT);
    assert_eq!(client.until_over("later")["status"], "completed");
    assert_eq!(ready(client)["status"], 200);
    busy.assert_completes_once();
    busy.up.running.signal(Signal::TERM);
    let log = busy.up.running.wait().code(0);
    assert_eq!(log.err.matches("no task is started until").count(), 1, "{log}");
    assert_eq!(log.err.matches("the runner answers again").count(), 1, "{log}");
}

#[test]
fn runner_stopped_while_connected_is_told_until_it_continues() {
    let busy = Busy::new();
    let (runner, client) = (busy.node.runner(), &busy.up.client);
    assert_eq!(ready(client)["status"], 200);
    signal(runner, Signal::STOP);
    assert_eq!(
        eventually("not ready", || Some(ready(client)).filter(|told| told["status"] == 503))["error"]["message"],
        stopped(runner)
    );
    signal(runner, Signal::CONT);
    eventually("ready", || (ready(client)["status"] == 200).then_some(()));
    busy.assert_completes_once();
}

#[test]
fn run_that_is_cancelled_while_the_runner_is_stopped_ends_when_it_continues() {
    let busy = Busy::new();
    let runner = busy.node.runner();
    signal(runner, Signal::STOP);
    let busy = busy.restart();
    busy.node.ok(["dag", "cancel", "d"]);
    signal(runner, Signal::CONT);
    assert_eq!(busy.up.client.until_over("d")["status"], "cancelled");
    busy.node.assert_no_survivors();
    busy.node.assert_sound();
}

#[test]
fn foreground_run_says_what_it_waits_for_and_can_be_cancelled() {
    let busy = Busy::new();
    let runner = busy.node.runner();
    signal(runner, Signal::STOP);
    kill(busy.up.running.pid());
    let node = &busy.node;
    node.dag("e", "tasks = [{ id = 't', command = 'true' }]");
    let told = fs::File::create(node.path("told")).unwrap();
    let mut run = node.command(["run", "e.toml"]).stdout(Stdio::null()).stderr(told).spawn().unwrap();
    let told =
        eventually("what it waits for", || Some(node.read("told")).filter(|told| told.contains("-CONT")));
    assert!(told.contains(&format!("waiting: {}", stopped(runner))), "{told}");
    signal(run.id(), Signal::INT);
    assert!(wait_gone(run.id()), "{}", node.read("told"));
    assert_eq!(run.wait().unwrap().code(), Some(130), "{}", node.read("told"));
    signal(runner, Signal::CONT);
}

#[test]
fn deleted_runner_socket_comes_back_while_the_node_is_up() {
    let busy = Busy::new();
    let (runner, socket) = (busy.node.runner(), busy.node.data.join("runner.sock"));
    fs::remove_file(&socket).unwrap();
    eventually("the socket", || socket.exists().then_some(()));
    assert_eq!(busy.node.runner(), runner, "the same one listens");
    let busy = busy.restart();
    assert_eq!(busy.node.runner(), runner);
    busy.assert_completes_once();
}

#[test]
fn node_that_is_killed_together_with_the_socket_finds_its_runner_again() {
    for gone in [&["runner.sock"][..], &["runner.sock", "runner.lock"]] {
        let busy = Busy::new();
        let runner = busy.node.runner();
        for name in gone {
            fs::remove_file(busy.node.data.join(name)).unwrap();
        }
        let busy = busy.restart();
        assert_eq!(busy.node.runner(), runner, "no second one is started");
        eventually("the lock", || busy.node.data.join("runner.lock").exists().then_some(()));
        busy.assert_completes_once();
    }
}

#[test]
fn deleted_coordinator_lock_lets_no_second_node_serve() {
    let busy = Busy::new();
    fs::remove_file(busy.node.data.join("coordinator.lock")).unwrap();
    let second = busy.node.cis(["node", "start", "--bind", "127.0.0.1:0"]).code(4);
    second.tells(&format!("process {}", busy.up.running.pid()));
    // Every other process is served by the first, too.
    let told = busy.node.json(["doctor"]);
    assert!(told.to_string().contains(&format!("process {}", busy.up.running.pid())), "{told}");
    busy.assert_completes_once();
    assert_eq!(busy.node.coordinator(), busy.up.running.pid());
}

#[test]
fn directory_after_a_killed_runner_is_sound() {
    let node = Node::new();
    let up = node.fifo("up");
    node.dag("d", "[[tasks]]\nid = 'a'\ncommand = 'echo n=1 > $CIS_OUTPUT; echo up > up; sleep 1000'\n");
    let run = node.spawn(["run", "d.toml"]);
    up.line();
    kill(node.runner());
    run.wait().code(1);
    assert_eq!(fs::read_dir(node.data.join("outputs")).unwrap().count(), 0, "nothing is left of it");
    assert_eq!(node.json(["doctor"])["sound"], true);
    // What a kill of both leaves is worth knowing, and no fault.
    fs::write(node.data.join("outputs/1.77"), "n=1").unwrap();
    node.ok(["doctor"]).tells("outputs/1.77` is needed by nothing").tells("hint: `cis doctor --repair`");
    node.ok(["doctor", "--repair"]).tells("removed");
    assert_eq!(fs::read_dir(node.data.join("outputs")).unwrap().count(), 0);
}
