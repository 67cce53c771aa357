//! Data directories change hands: a node that starts takes over from any other coordinator, foreground runs belong to a stream,
//! and a coordinator of an older version is named.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::thread;

use cis_engine::data_dir::DataDir;
use rustix::process::Signal;
use support::process::{kill, signal};
use support::{Node, Running, eventually, wait_gone};

/// A task that says that it is up, and ends when it is let through; how often it began is in `ran`.
const GATED: &str = "
[[tasks]]
id = 'gated'
command = 'echo begin >> ran; echo up > up; read -r _ < gate'
";

/// A data directory with the definition of a gated task.
fn gated() -> Node {
    let node = Node::new();
    node.write("gated.toml", GATED);
    node
}

fn start_node(node: &Node) -> Running {
    let mut up = node.spawn(["node", "start", "--bind", "127.0.0.1:0"]);
    up.until("cis node on");
    up
}

#[test]
fn node_that_starts_takes_over_a_background_run_which_completes_once() {
    let node = gated();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.ok(["run", "-d", "gated.toml"]);
    up.line();
    let background = node.coordinator();
    let served = start_node(&node);
    assert_eq!(node.coordinator(), served.pid(), "the node coordinates");
    assert!(wait_gone(background), "the background coordinator went");
    assert_eq!(node.states("gated"), "gated=running");
    gate.let_through(1);
    eventually("the run to complete", || (node.states("gated") == "gated=completed").then_some(()));
    assert_eq!(node.read("ran"), "begin\n");
    served.signal(Signal::TERM);
    served.wait().code(0);
    node.assert_sound();
}

#[test]
fn second_node_at_the_same_port_is_refused_by_name_and_with_wait_serves_next() {
    let node = Node::new();
    let first = node.up();
    let address = first.client.address.clone();
    let refused = node.cis(["node", "start", "--bind", &address]).code(4).says_nothing();
    let named = format!("process {}, at http://{address}", first.running.pid());
    let refused = refused.tells("a node serves this data directory already").tells(&named);
    assert!(!refused.err.contains("Address already in use"), "{refused}");
    let mut next = node.spawn(["node", "start", "--bind", &address, "--wait"]);
    first.running.signal(Signal::TERM);
    first.running.wait().code(0);
    next.until(&format!("cis node on http://{address}"));
    assert_eq!(node.coordinator(), next.pid());
    next.signal(Signal::TERM);
    next.wait().code(0);
}

#[test]
fn foreground_run_goes_on_under_a_node_that_took_over() {
    let node = gated();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let run = node.spawn(["run", "gated.toml"]);
    up.line();
    assert_eq!(node.coordinator(), run.pid());
    let served = start_node(&node);
    assert_eq!(node.coordinator(), served.pid(), "the node coordinates");
    gate.let_through(1);
    run.wait().code(0);
    assert_eq!(node.read("ran"), "begin\n");
    served.signal(Signal::TERM);
    served.wait().code(0);
    node.assert_sound();
}

#[test]
fn foreground_run_under_a_node_that_took_over_ends_with_its_process() {
    let node = gated();
    let (up, _gate) = (node.fifo("up"), node.fifo("gate"));
    let run = node.spawn(["run", "gated.toml"]);
    up.line();
    let served = start_node(&node);
    kill(run.pid());
    eventually("the run to be cancelled", || (node.states("gated") == "gated=cancelled").then_some(()));
    served.signal(Signal::TERM);
    served.wait().code(0);
    node.assert_no_survivors();
    node.assert_sound();
}

/// More events than a pipe holds, and a gated task at the end.
fn wide() -> Node {
    let node = Node::new();
    let mut text = GATED.to_owned();
    for task in 0..600 {
        text += &format!("[[tasks]]\nid = 't{task}'\ncommand = 'true'\n");
    }
    node.write("wide.toml", text);
    node
}

#[test]
fn foreground_run_whose_output_is_not_read_hands_over_at_once() {
    let node = wide();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    // What it prints is never read: it ends up waiting for the pipe, not for its coordinator.
    let mut command = node.command(["run", "wide.toml", "--json"]);
    let mut run = command.stdout(Stdio::piped()).spawn().unwrap();
    up.line();
    eventually("the other tasks to complete", || {
        (node.states("wide").matches("=completed").count() == 600).then_some(())
    });
    let served = start_node(&node);
    assert_eq!(node.coordinator(), served.pid());
    gate.let_through(1);
    eventually("the run to complete", || node.states("wide").contains("gated=completed").then_some(()));
    assert_eq!(node.read("ran"), "begin\n");
    run.kill().unwrap();
    run.wait().unwrap();
    served.signal(Signal::TERM);
    served.wait().code(0);
}

#[test]
fn stopped_caller_keeps_its_run() {
    let node = gated();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let served = start_node(&node);
    let run = node.spawn(["run", "gated.toml"]);
    up.line();
    run.signal(Signal::STOP);
    gate.let_through(1);
    eventually("the run to complete", || (node.states("gated") == "gated=completed").then_some(()));
    run.signal(Signal::CONT);
    run.wait().code(0);
    served.signal(Signal::TERM);
    served.wait().code(0);
}

#[test]
fn killed_caller_ends_its_run() {
    let node = gated();
    let (up, _gate) = (node.fifo("up"), node.fifo("gate"));
    let served = start_node(&node);
    let run = node.spawn(["run", "gated.toml"]);
    up.line();
    kill(run.pid());
    eventually("the run to be cancelled", || (node.states("gated") == "gated=cancelled").then_some(()));
    node.assert_no_survivors();
    served.signal(Signal::TERM);
    served.wait().code(0);
}

#[test]
fn second_node_is_refused_at_once_and_names_the_first() {
    let node = gated();
    let served = start_node(&node);
    let refused = node.cis(["node", "start", "--bind", "127.0.0.1:0"]).code(4);
    let refused = refused.tells(&format!("process {}", served.pid())).tells("http://127.0.0.1:");
    refused.tells("--wait");
    served.signal(Signal::TERM);
    served.wait().code(0);
}

#[test]
fn second_node_that_waits_serves_when_the_first_has_gone() {
    let node = gated();
    let served = start_node(&node);
    let mut command = node.command(["node", "start", "--bind", "127.0.0.1:0", "--wait"]);
    let mut second = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let waits = BufReader::new(second.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(waits.into_iter().any(|line| line.contains("waiting until the node at http://")));
    served.signal(Signal::TERM);
    served.wait().code(0);
    let serves = BufReader::new(second.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(serves.into_iter().any(|line| line.contains("cis node on")));
    signal(second.id(), Signal::TERM);
    assert!(second.wait().unwrap().success());
}

#[test]
fn coordinator_of_an_older_version_is_named_with_what_to_type() {
    let node = gated();
    node.ok(["dag", "publish", "gated.toml"]);
    let data_dir = DataDir::create(&node.data).unwrap();
    let _lock = data_dir.try_lock().unwrap().expect("a free lock");
    // It speaks no HTTP: whatever comes, it closes the connection.
    let listener = UnixListener::bind(data_dir.socket()).unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    let own = format!("process {}", std::process::id());
    node.cis(["dag", "publish", "gated.toml"]).code(1).tells(&own).tells("older version of `cis`");
    node.cis(["node", "start", "--bind", "127.0.0.1:0"]).code(1).tells(&own);
    let examined = node.cis(["doctor", "--json"]).code(1).json();
    let coordinator = &examined["checks"][0];
    assert!(coordinator["detail"].as_str().unwrap().contains(&own) && coordinator["hint"].is_string());
}
