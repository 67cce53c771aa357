//! Making room: what `cis prune` and a node's retention remove, what they leave alone, and what stays known.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::collections::BTreeSet;
use std::fs;

use cis_core::source::Timestamp;
use cis_store::port::Prune;
use cis_store::{Durability, Reader, SqliteStore};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::Client;
use support::{Node, eventually};

const ONE: &str = "[[tasks]]\nid = \"a\"\ncommand = \"echo hello\"\n";
const ALL: [&str; 3] = ["prune", "--older-than", "0s"];

/// The names in a part of the data directory.
fn files(node: &Node, part: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(node.data.join(part)).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn named(told: &Value) -> Vec<&str> {
    told["runs"]
        .as_array()
        .unwrap_or_else(|| panic!("{told}"))
        .iter()
        .map(|run| run["run"].as_str().unwrap())
        .collect()
}

/// Three runs of `d` and one of `e`, all over.
fn used() -> Node {
    let node = Node::new();
    for id in ["d", "d", "e", "d"] {
        node.dag(id, ONE);
        node.ok(["run", &format!("{id}.toml")]);
    }
    node
}

#[test]
fn what_is_over_goes_with_its_files_and_is_still_known() {
    let node = used();
    let before = fs::read(node.data.join("dag.db")).unwrap();
    assert_eq!(named(&node.json(["prune"])), [""; 0], "not for a month");
    let told = node.json([&ALL[..], &["--dry-run"]].concat());
    assert_eq!((named(&told), &told["dry_run"]), (vec!["d#1", "d#2", "e#1", "d#3"], &json!(true)));
    node.ok([&ALL[..], &["--dry-run", "--keep", "1"]].concat()).says("d#2").tells("2 runs would go");
    assert_eq!(files(&node, "logs").len(), 4, "nothing was changed");
    assert!(fs::read(node.data.join("dag.db")).unwrap().len() == before.len());

    let run_id = node.json(["status", "d#1"])["run_id"].as_str().unwrap().to_owned();
    let told = node.json([&ALL[..], &["--keep", "1"]].concat());
    assert_eq!(named(&told), ["d#1", "d#2"]);
    assert!(told["file_bytes"].as_u64().unwrap() > 0, "{told}");
    assert_eq!(files(&node, "logs"), ["3", "4"].map(str::to_owned).into());
    for name in ["d#1", &run_id] {
        let gone = node.cis(["status", name, "--json"]).code(3).json();
        assert_eq!(
            (&gone["error"]["code"], &gone["error"]["details"]["status"]),
            (&json!("Gone"), &json!("completed"))
        );
    }
    node.cis(["logs", "d#1"]).code(3).tells("`d#1` was pruned on ");
    node.ok(["status", "d"]).says("d#3");
    node.ok(ALL).says("Pruned 2 runs: ");
    assert_eq!(node.json(["dag", "runs"])["runs"], json!([]));
    let dags = node.json(["dag", "list"]);
    assert_eq!(dags["dags"][0]["status"], "confirmed", "{dags}");
    node.cis(["dag", "cancel", "d"]).code(3).tells("every run of `d` was pruned");
    let told = node.json(["doctor"]);
    assert_eq!(told["sound"], true, "{told}");

    // The same content is the same revision, and numbers go on.
    assert_eq!(node.ok(["run", "d.toml", "--json"]).summary()["run"], "d#4");
    node.cis(["prune", "--older-than", "soon"]).code(2).tells("`soon` is not a duration");
    Node::new().cis(["prune"]).code(3).tells("nothing was ever written to");
    node.assert_sound();
}

fn shell(id: &str, command: &str) -> String {
    json!({"dag_id": id, "tasks": [{"id": "a", "type": "shell", "command": command}]}).to_string()
}

/// Where the log begins for whoever has heard nothing yet.
fn floor(client: &Client) -> u64 {
    let gone = client.get("/api/v1/events?after=0");
    assert_eq!((gone.status, gone.code()), (410, "Gone".to_owned()));
    let floor = gone.json()["error"]["details"]["floor"].as_u64().unwrap();
    assert!(gone.body.contains(&format!("`Last-Event-ID: {floor}`")), "{gone:?}");
    floor
}

#[test]
fn a_node_goes_on_while_runs_go() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let served = node.up();
    let client = &served.client;
    let held =
        format!("echo up > {}; read -r _ < {}", node.path("up").display(), node.path("gate").display());
    let live = client.run(&shell("live", &held));
    up.lines(1);
    let over = client.run(&shell("over", "echo x > left; true"));
    client.until_over("over");
    let id = |told: &Value| told["run_id"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned();
    assert_eq!(files(&node, "work"), [id(&live), id(&over)].into());
    let mut last = 0;
    client.follow(None, |at, event| {
        last = at;
        event["subject"] == "over#1" && event["type"] == "cis.run.completed"
    });

    assert_eq!(named(&node.json(ALL)), ["over#1"]);
    for path in ["", "/tasks", "/logs", "/why"] {
        let gone = client.get(&format!("/api/v1/runs/{}{path}", id(&over)));
        assert_eq!((gone.status, gone.code()), (410, "Gone".to_owned()), "{path}");
    }
    assert_eq!(client.post(&format!("/api/v1/runs/{}/cancel", id(&over)), "").status, 410);
    assert_eq!(client.get("/api/v1/dag/over/runs?number=1").status, 410);
    assert_eq!(client.get("/api/v1/dag/over/runs").json()["runs"], json!([]));
    assert_eq!(client.get("/api/v1/dag/over/status").json()["status"], "confirmed");
    assert_eq!(files(&node, "work"), [id(&live)].into());
    // Deciding again is the same decision, and starts nothing.
    assert_eq!(id(&client.post("/api/v1/dag/over/confirm", "").json()), id(&over));
    // A token that does not see it does not hear that it was there.
    let other = client.with(&node.token(["eve", "--as", "reader", "--scope", "user-eve"]));
    assert_eq!(other.get(&format!("/api/v1/runs/{}", id(&over))).status, 404);

    // Whoever has heard all there was hears what comes; whoever has not is told where to begin.
    client.follow(Some(last), |_, event| event["type"] == "cis.run.pruned" && event["subject"] == "over#1");
    let floor = floor(client);
    assert!(floor <= last);
    client.follow(Some(floor), |_, event| event["type"] == "cis.run.pruned");
    assert_eq!(client.get(&format!("/api/v1/events?after={}", floor - 1)).status, 410);
    // Of a run that is there nothing is missing, wherever one begins.
    assert_eq!(client.get(&format!("/api/v1/events?after=0&run={}", id(&live))).status, 200);
    assert_eq!(client.get("/api/v1/events").status, 200);

    gate.let_through(1);
    client.until_over("live");
    assert_eq!(named(&node.json(ALL)), ["live#1"]);
    node.ok(["doctor"]).says("files        ✓ sound");
    served.running.signal(Signal::TERM);
    served.running.wait().code(0);
    node.assert_sound();
}

/// Prunes so many chunks, and comes no further.
fn killed_after(node: &Node, chunks: usize) {
    let store = SqliteStore::open(&node.data.join("dag.db"), Durability::Process).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let forever = Timestamp(i64::MAX);
    for _ in 0..chunks {
        runtime.block_on(store.prune(Prune::new(forever, 0, forever))).unwrap();
    }
    store.close();
}

#[test]
fn a_prune_that_was_killed_is_finished_by_whoever_comes_next() {
    let finish: [fn(&Node); 3] = [
        |node| drop(node.ok(["prune"]).says("Pruned 0 runs: ")),
        |node| drop(node.ok(["doctor", "--repair"]).tells("are not all gone: 2; now they are")),
        |node| {
            let up = node.up();
            eventually("an end", || {
                Reader::open(&node.data.join("dag.db"))
                    .unwrap()
                    .half_pruned()
                    .unwrap()
                    .is_empty()
                    .then_some(())
            });
            up.running.signal(Signal::TERM);
            up.running.wait().code(0);
        },
    ];
    // The runs are tombstones; their events are gone; their tasks are.
    for (chunks, finish) in [1, 2, 3].into_iter().zip(finish) {
        let node = Node::new();
        for id in ["d", "e"] {
            node.dag(id, ONE);
            node.ok(["run", &format!("{id}.toml")]);
        }
        killed_after(&node, chunks);
        node.assert_sound();
        node.cis(["status", "d#1"]).code(3).tells("was pruned");
        assert_eq!(files(&node, "logs").len(), 2, "those come last");
        node.cis(["doctor"]).code(1).tells("files: runs that were pruned and are not all gone: 2");
        finish(&node);
        assert_eq!((files(&node, "logs").len(), files(&node, "contexts").contains("1.json")), (0, false));
        let left = Reader::open(&node.data.join("dag.db")).unwrap();
        assert_eq!(left.half_pruned().unwrap(), []);
        let told = node.json(["doctor"]);
        assert_eq!(told["sound"], true, "{told}");
    }
}

#[test]
fn files_of_what_is_gone_are_found() {
    let node = used();
    node.ok(ALL);
    fs::create_dir_all(node.data.join("logs/1")).unwrap();
    node.cis(["doctor"]).code(1).tells("logs/1` is needed by nothing");
    node.ok(["doctor", "--repair"]).tells("files: removed `");
    assert_eq!(files(&node, "logs").len(), 0);
}

/// What is left when a node with these settings has looked.
fn kept(node: Node, setting: &str, value: &str, expected: &[&str]) -> Node {
    let node = node.with(setting, value);
    let up = node.up();
    let path = node.data.join("dag.db");
    eventually(&format!("{expected:?}"), || {
        let runs = Reader::open(&path).unwrap().runs(None, 99).unwrap();
        let left: Vec<String> = runs.iter().map(|run| run.label()).collect();
        let done = Reader::open(&path).unwrap().half_pruned().unwrap().is_empty();
        (left == expected && done).then_some(())
    });
    up.running.signal(Signal::TERM);
    up.running.wait().code(0);
    node.assert_sound();
    node.with(setting, "")
}

#[test]
fn a_node_keeps_to_its_retention() {
    let node = used();
    let settings = node.json(["config", "show"]);
    let rows = settings["settings"].as_array().unwrap();
    let row = |key: &str| rows.iter().find(|row| row["key"] == key).unwrap()["value"].clone();
    assert_eq!((row("retention.max_age"), row("retention.max_size")), (Value::Null, Value::Null));
    let node = kept(node.with("CIS_RETENTION_KEEP", "1"), "CIS_RETENTION_MAX_AGE", "1ms", &["d#3", "e#1"]);
    let node = kept(node.with("CIS_RETENTION_KEEP", "0"), "CIS_RETENTION_MAX_SIZE", "1KiB", &[]);
    assert_eq!(files(&node, "logs").len(), 0);
    node.with("CIS_RETENTION_MAX_AGE", "a while")
        .cis(["config", "show"])
        .code(2)
        .tells("`a while` is not a duration");
}

#[test]
fn where_room_counts_the_oldest_go_until_there_is_enough() {
    let node = Node::new();
    node.dag("big", "[[tasks]]\nid = \"a\"\ncommand = \"head -c 1048576 /dev/zero | tr '\\\\0' x\"\n");
    for _ in 0..12 {
        node.ok(["run", "big.toml"]);
    }
    assert!(fs::metadata(node.data.join("logs/1/1.1.log")).unwrap().len() > 1 << 20);
    let node = kept(node, "CIS_RETENTION_MAX_SIZE", "8MiB", &["big#12", "big#11"]);
    assert_eq!(files(&node, "logs"), ["11", "12"].map(str::to_owned).into());
}
