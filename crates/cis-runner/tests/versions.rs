//! Peers that speak the first protocol, and peers that mean another directory.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::io::Write;
use std::path::Path;

use cis_runner::directory::Directory;
use cis_runner::protocol::*;
use serde_json::{Value, json};
use support::{Coordinator, Node, exited, hello, key, said, script};

fn say(coordinator: &mut Coordinator, message: &Value) {
    coordinator.stream.write_all(&said(message)).unwrap();
}

/// A coordinator of the first version, which says nothing that was not known then.
fn first_version(node: &Node, epoch: i64) -> Coordinator {
    let mut old = node.stranger();
    say(&mut old, &json!({"hello": {"protocol": 1, "oldest": 1, "epoch": epoch, "slots": 2}}));
    let FromRunner::Welcome { attempts, .. } = old.hear() else { panic!("no welcome") };
    old.known = attempts;
    say(&mut old, &json!(node.context()));
    old
}

fn first_version_start(execution: i64, tied: bool, text: &str) -> Value {
    let key = key(execution);
    json!({"start": {
        "key": {"execution": key.execution, "fence": key.fence}, "context": 1, "argv": ["sh", "-c", text],
        "log": format!("run/{execution}.log"), "grace_ms": 10_000, "log_cap_bytes": 1_000_000,
        "tied": tied, "detach": false,
    }})
}

#[test]
fn coordinator_of_the_first_protocol_gets_along_with_this_runner() {
    let node = Node::new();
    let mut old = first_version(&node, 1);
    say(&mut old, &first_version_start(1, false, "exit 3"));
    assert_eq!(old.ended().outcome, exited(3));
    old.ack([1]);
    say(&mut old, &first_version_start(2, true, "sleep 1000"));
    say(&mut old, &first_version_start(3, false, "sleep 1000"));
    old.wait_started(2);
    old.wait_started(3);
    drop(old);
    let mut next = first_version(&node, 2);
    let ended = next.ended();
    assert_eq!((ended.key, ended.outcome), (key(2), Outcome::OwnerGone), "tied, and it cannot hand over");
    next.stop(3, true);
    assert_eq!(next.ended().outcome, Outcome::Stopped);
    node.assert_no_survivors();
}

#[test]
fn what_a_message_does_not_need_is_not_sent() {
    let start = json!(ToRunner::Start(Box::new(script(1, "true"))));
    assert_eq!(start["start"].get("lane"), None);
    assert_eq!(json!(hello(1, 1, None))["hello"].get("directory"), None);
}

#[test]
fn coordinator_of_another_directory_is_refused_and_changes_nothing() {
    let node = Node::new();
    let mut c = node.connect(1, 2);
    c.start(Start { tied: true, ..script(1, "exec sleep 1000") });
    c.wait_started(1);
    // Its socket is reached from another directory.
    let other = Node::new();
    std::fs::create_dir_all(&other.data).unwrap();
    std::fs::hard_link(node.data.join("runner.sock"), other.data.join("runner.sock")).unwrap();
    let mut astray = other.stranger();
    astray.say(&hello(9, 1, Directory::at(&other.data).ok()));
    let FromRunner::WrongDirectory { pid, directory } = astray.hear() else { panic!("it was heard") };
    assert_eq!((pid, directory.path()), (c.runner, &*node.data.canonicalize().unwrap()));
    assert!(astray.try_hear().is_none());
    assert_eq!(c.run(script(2, "true")).outcome, exited(0), "still in charge");
    assert_eq!(node.survivors().len(), 1);
    drop(c);
    // Its epoch was not noted either.
    assert_eq!(node.connect(2, 1).ended_many(2)[0].outcome, Outcome::OwnerGone);
}

#[test]
fn moved_directory_is_served_as_before() {
    let node = Node::new();
    let c = node.connect(1, 1);
    let moved = node.dir.path().join("moved");
    std::fs::rename(&node.data, &moved).unwrap();
    let mut next = Coordinator::at(&moved);
    next.say(&hello(2, 1, Directory::at(&moved).ok()));
    let FromRunner::Welcome { pid, directory, .. } = next.hear() else { panic!("no welcome") };
    let told = directory.expect("it says which directory it serves");
    assert_eq!(
        (pid, told.path()),
        (c.runner, Path::new(&node.dir.path().canonicalize().unwrap().join("data")))
    );
    assert!(told.is_same(&Directory::at(&moved).unwrap()));
}
