//! The same command reads and does the same wherever that is: in the data directory, on its socket, at a node.

mod support;

use std::collections::BTreeSet;

use serde_json::Value;
use support::http::Up;
use support::{Node, eventually};

/// What a command says of the node at this address, called by its name; without a token.
fn named(node: &Node, up: &Up, args: &[&str]) -> support::Ran {
    let url = format!("http://{}", up.client.address);
    node.cis(["--node", &url].into_iter().chain(args.iter().copied()))
}

#[test]
fn own_node_is_called_on_its_socket_and_the_owners_token_stays_where_it_is() {
    let node = Node::new();
    let up = node.up();
    // Whatever would be sent of it over the network would be refused.
    std::fs::write(node.data.join("admin.token"), "cis_not_a_token").unwrap();
    node.dag("d", "tasks = [{ id = 'a', type = 'external' }]");
    named(&node, &up, &["run", "d.toml", "--detach"]).code(0);
    let worked = node.ok(["work", "--once", "--", "true"]);
    assert!(worked.err.contains("d#1/a completed"), "{worked}");
    let status = named(&node, &up, &["status", "d", "--watch"]).code(0);
    assert!(status.err.contains("completed"), "{status}");
    let other = node.cis(["--node", "http://127.0.0.1:1", "status", "d"]).code(1).says_nothing();
    other.tells("no token to call http://127.0.0.1:1 with");
}

#[test]
fn lists_longer_than_a_page_are_whole_here_and_at_a_node() {
    const TASKS: usize = 2_300;
    let node = Node::new();
    let tasks: String = (0..TASKS).map(|n| format!("[[tasks]]\nid = 't{n}'\ntype = 'external'\n")).collect();
    node.dag("d", &tasks);
    let up = node.up();
    node.ok(["run", "d.toml", "--detach"]);
    let ids = |told: &Value| -> Vec<String> {
        let tasks = told["tasks"].as_array().unwrap();
        tasks.iter().map(|task| task["task_id"].as_str().unwrap().to_owned()).collect()
    };
    // They are created a chunk at a time.
    let here = eventually("all tasks", || {
        Some(node.json(["status", "d"]))
            .filter(|told| told["tasks"].as_array().is_some_and(|all| all.len() == TASKS))
    });
    let there = named(&node, &up, &["status", "d", "--json"]).code(0).json();
    let expected: Vec<String> = (0..TASKS).map(|n| format!("t{n}")).collect();
    assert_eq!(ids(&here), expected);
    assert_eq!(ids(&there), expected);
    // Of what holds a run a node tells a thousand tasks; the owner of the directory as many as are asked for.
    let held = |told: &Value| told["tasks"].as_array().unwrap().len();
    assert_eq!(held(&node.json(["why", "d", "--limit", "5000"])), TASKS);
    assert_eq!(held(&named(&node, &up, &["why", "d", "--limit", "5000", "--json"]).code(0).json()), 1_000);
}

#[test]
fn definition_sent_to_another_process_is_the_one_that_was_parsed() {
    let node = Node::new();
    node.write(
        ".cis/skills/greet/SKILL.md",
        "---\nname: greet\ndescription: Greets.\ncommand: sh \"$CIS_SKILL_DIR/run.sh\"\n---\n",
    );
    node.write(".cis/skills/greet/run.sh", "#!/bin/sh\necho '{\"n\": 1}'\n");
    node.dag(
        "d",
        "description = 'two'\n[[tasks]]\nid = 'a'\nskill = 'greet'\ninput = { who = 'you' }\n\
         [[tasks]]\nid = 'b'\ncommand = 'true'\ndepends_on = ['a']\nretry = { max = 2 }\n",
    );
    let published =
        |told: Value| (told["revision"].clone(), told["content_hash"].clone(), told["scope"].clone());
    // In this process, as it was parsed; beside a node, as text.
    let here = published(node.ok(["dag", "publish", "d.toml", "--json"]).json());
    let up = node.up();
    let again = node.ok(["dag", "publish", "d.toml", "--json"]).json();
    assert_eq!((again["status"].as_str(), published(again.clone())), (Some("already_exists"), here));
    node.ok(["run", "d.toml"]);
    assert_eq!(node.json(["dag", "list"])["dags"][0]["revision"], 1);
    drop(up);
}

#[test]
fn many_commands_beside_a_node_share_its_socket() {
    const COMMANDS: usize = 24;
    let node = Node::new();
    let _up = node.up();
    node.dag("d", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["dag", "publish", "d.toml"]);
    let running: Vec<_> = (0..COMMANDS).map(|_| node.spawn(["run", "d.toml", "--json"])).collect();
    let ended = running.into_iter().map(|run| run.wait().code(0).summary()["run"].to_string());
    let runs: BTreeSet<String> = ended.collect();
    assert_eq!(runs.len(), COMMANDS, "each is a run of its own");
}
