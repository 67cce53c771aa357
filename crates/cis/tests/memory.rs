//! What keeps one caller from filling the node's memory: large values are left out of lists, answers that are not read and bodies
//! with too many values are refused, and long reads hold up their own identity only.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
use serde_json::{Value, json};
use support::Node;
use support::http::{Client, field};

/// Outputs of a task that no list tells.
const LARGE: usize = 200_000;

/// A run of external tasks, each completed with outputs of `bytes`; answers its id.
fn completed_run(client: &Client, dag: &str, tasks: usize, bytes: usize) -> String {
    let run = client.run(&field(dag, tasks, &json!({})))["run_id"].as_str().unwrap().to_owned();
    let mut left = tasks;
    while left > 0 {
        for task in client.claim(&json!({"limit": 100})) {
            let done = client.say(&task, "complete", json!({"outputs": {"text": "x".repeat(bytes)}}));
            assert_eq!(done.status, 200, "{done:?}");
            left -= 1;
        }
    }
    run
}

fn tasks(told: &Value) -> &Vec<Value> {
    told["tasks"].as_array().unwrap_or_else(|| panic!("{told}"))
}

#[test]
fn large_outputs_are_elided_in_lists_and_whole_alone() {
    let node = Node::new();
    let up = node.up();
    let run = completed_run(&up.client, "big", 3, LARGE);
    let text_bytes = json!({"text": "x".repeat(LARGE)}).to_string().len();
    let remote = |args: &[&str]| {
        let node = Node::new()
            .with("CIS_NODE", &format!("http://{}", up.client.address))
            .with("CIS_TOKEN", &up.client.token);
        serde_json::from_str::<Value>(&node.ok(args.to_vec()).out).unwrap()
    };
    let local = |args: &[&str]| serde_json::from_str::<Value>(&node.ok(args.to_vec()).out).unwrap();
    let lists = [
        up.client.get("/api/v1/dag/big/status").json(),
        up.client.get(&format!("/api/v1/runs/{run}")).json(),
        up.client.get(&format!("/api/v1/runs/{run}/tasks")).json(),
        local(&["status", "big", "--json"]),
        remote(&["status", "big", "--json"]),
    ];
    for told in &lists {
        assert!(told.to_string().len() < 16_000, "{} bytes", told.to_string().len());
        for task in tasks(told) {
            let get = format!("/api/v1/runs/{run}/tasks?task={}", task["task_id"].as_str().unwrap());
            assert_eq!(task["elided"], json!({"outputs_bytes": text_bytes, "get": get}), "{task}");
            assert_eq!(task["outputs"], Value::Null);
        }
    }
    // The call it names answers the value whole, and the command line does so, here and from afar.
    let get = tasks(&lists[0])[1]["elided"]["get"].as_str().unwrap();
    let whole = [
        tasks(&up.client.get(get).json())[0].clone(),
        local(&["status", "big", "--task", "t1", "--json"])["task"].clone(),
        remote(&["status", "big", "--task", "t1", "--json"])["task"].clone(),
    ];
    for task in whole {
        assert_eq!((&task["task_id"], &task["elided"]), (&json!("t1"), &Value::Null));
        assert_eq!(task["outputs"]["text"].as_str().unwrap().len(), LARGE);
    }
    let shown = node.ok(["status", "big"]).out;
    assert!(shown.contains("outputs of 200,011 bytes"), "{shown}");
}

#[test]
fn many_outputs_are_told_within_a_megabyte() {
    let node = Node::new();
    let up = node.up();
    let run = completed_run(&up.client, "many", 400, 4_000);
    let told = up.client.get("/api/v1/dag/many/status").json();
    let whole = tasks(&told).iter().filter(|task| task["elided"].is_null()).count();
    assert_eq!(tasks(&told).len(), 400, "every task is told");
    assert!((200..300).contains(&whole), "{whole} with their outputs");
    // A list goes on where a page is full, and leaves nothing out.
    let (mut cursor, mut pages) = (String::new(), Vec::new());
    loop {
        let page = up.client.get(&format!("/api/v1/runs/{run}/tasks?limit=1000{cursor}"));
        assert!(page.body.len() < 2 << 20, "{} bytes", page.body.len());
        let page = page.json();
        pages.push(tasks(&page).len());
        assert!(tasks(&page).iter().all(|task| task["elided"].is_null()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert!(pages.len() == 2 && pages.iter().sum::<usize>() == 400, "{pages:?}");
    let local: Value = serde_json::from_str(&node.ok(["status", "many", "--json"]).out).unwrap();
    assert!(tasks(&local).len() == 400 && tasks(&local).iter().all(|task| task["elided"].is_null()));
}

#[test]
fn bodies_of_very_many_values_are_refused_where_they_are_too_many() {
    let node = Node::new();
    let up = node.up();
    let many = |values: usize| format!("{{\"input\":[{}{{}}]}}", "{},".repeat(values));
    let refused = up.client.post("/api/v1/tasks", &many(2_400_000));
    assert_eq!((refused.status, refused.code()), (422, "ValidationFailed".to_owned()));
    let problem = &refused.json()["error"]["details"][0];
    assert_eq!((&problem["code"], &problem["line"]), (&json!("TooManyValues"), &json!(1)), "{problem}");
    assert_eq!(up.client.post("/api/v1/tasks", &many(1_000)).status, 201);
    // A definition may have more: it is parsed in turns.
    let tasks = many(60_000).replacen("input", "tasks", 1);
    let refused = up.client.post("/api/v1/dag/publish", &tasks);
    assert_ne!(refused.json()["error"]["details"][0]["code"], "TooManyValues");
}

#[test]
fn a_claim_takes_no_more_tasks_than_its_answer_has_room_for() {
    let node = Node::new();
    let up = node.up();
    up.client.run(&field("inputs", 5, &json!({"input": {"text": "x".repeat(600_000)}})));
    let claimed: Vec<usize> = (0..3).map(|_| up.client.claim(&json!({"limit": 100})).len()).collect();
    assert_eq!(claimed, [2, 2, 1]);
    up.client.run(&field("small", 5, &json!({})));
    assert_eq!(up.client.claim(&json!({"limit": 100})).len(), 5);
}

/// Asks for something and reads no more of the answer than its status.
fn ask_unread(client: &Client, path: &str) -> (u16, BufReader<TcpStream>) {
    let mut stream = client.ask("GET", path, "");
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    (std::str::from_utf8(&status[9..]).unwrap().parse().unwrap(), stream)
}

#[test]
fn callers_that_do_not_read_their_answers_get_no_more_of_them() {
    let node = Node::new();
    let up = node.up();
    let (greedy, other) = (
        up.client.with(&node.token(["did:cis:agent:greedy", "--as", "reader"])),
        up.client.with(&node.token(["did:cis:agent:other", "--as", "reader"])),
    );
    // Far larger than what the kernel takes of an answer that is not read; two of them are more than one caller may have.
    let definition = field("big", 20, &json!({"input": {"text": "x".repeat(1_000_000)}}));
    assert_eq!(up.client.post("/api/v1/dag/publish", &definition).status, 201);
    let path = "/api/v1/dag/big";
    let (status, unread) = ask_unread(&greedy, path);
    assert_eq!(status, 200);
    let refused = greedy.get(path);
    assert_eq!((refused.status, refused.code()), (429, "RateLimited".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(greedy.get("/api/v1/dag").status, 200, "small answers are not counted");
    assert_eq!(other.get(path).status, 200, "another caller has room of its own");
    drop(unread);
    // Once the node has seen that the connection is closed, there is room again.
    let given_back = (0..100).any(|_| greedy.get(path).status == 200);
    assert!(given_back, "the room was not given back");
}

/// Streams that are opened and not read.
const UNREAD: usize = 100;

/// Asks for [`UNREAD`] streams, on connections that take next to nothing while they are not read, and reads each until `begins` was
/// told. All are asked for first: the kernel takes its time to send into a window that small.
fn ask_narrow(client: &Client, path: &str, begins: &str) -> Vec<TcpStream> {
    let ask = |_| {
        let narrow = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_recv_buffer_size(&narrow, 2_048).unwrap();
        connect(&narrow, &client.address.parse::<SocketAddr>().unwrap()).unwrap();
        let mut stream = TcpStream::from(narrow);
        let (host, token) = (&client.address, &client.token);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n")
            .unwrap();
        stream
    };
    let mut streams: Vec<TcpStream> = (0..UNREAD).map(ask).collect();
    for stream in &mut streams {
        let (mut told, mut byte) = (String::new(), [0]);
        while !told.ends_with(begins) {
            stream.read_exact(&mut byte).unwrap();
            told.push(char::from(byte[0]));
        }
        assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    }
    streams
}

/// What the node's memory grows by, in MiB, while [`UNREAD`] streams have begun and are not read; and the streams.
fn growth(node: &Node, client: &Client, path: &str, begins: &str) -> (usize, Vec<TcpStream>) {
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.coordinator())).unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 1_024
    };
    let before = memory();
    let unread = ask_narrow(client, path, begins);
    (memory().saturating_sub(before), unread)
}

#[test]
fn log_followers_hold_no_definition() {
    let node = Node::new();
    let up = node.up();
    let run = up.client.run(&field("big", 1, &json!({"input": {"text": "x".repeat(1 << 20)}})));
    let path = format!("/api/v1/runs/{}/logs?follow=true", run["run_id"].as_str().unwrap());
    let (grown, _unread) = growth(&node, &up.client, &path, "\r\n\r\n");
    assert!(grown < 64, "{grown} MiB");
    let task = format!("{path}&task=t0");
    let (grown, _unread) = growth(&node, &up.client, &task, "\r\n\r\n");
    assert!(grown < 64, "{grown} MiB");
}

#[test]
fn unread_logs_hold_little_of_them() {
    let node = Node::new();
    let up = node.up();
    let run = up.client.run(&field("loud", 1, &json!({})));
    let task = up.client.claim(&json!({})).remove(0);
    let text = format!("{}\n", "y".repeat(1_000)).repeat(1_300);
    assert_eq!(up.client.say(&task, "log", json!({"offset": 0, "text": text})).status, 200);
    assert_eq!(up.client.say(&task, "complete", json!({})).status, 200);
    for query in ["?tail=10000", ""] {
        let path = format!("/api/v1/runs/{}/logs{query}", run["run_id"].as_str().unwrap());
        let (grown, _unread) = growth(&node, &up.client, &path, "yyyy");
        assert!(grown < 64, "{grown} MiB for `{query}`");
        // A caller that reads is told all of it, also while others have left theirs unread.
        let mut bytes = 0;
        up.client.lines(&path, |line| {
            bytes += line["text"].as_str().unwrap().len();
            false
        });
        let all = if query.is_empty() { 1_300_000 } else { 900_000 };
        assert!(bytes >= all, "{bytes} for `{query}`");
    }
}

#[test]
fn ending_a_task_does_not_read_its_log_unless_the_node_was_restarted() {
    let node = Node::new();
    let up = node.up();
    up.client.run(&field("loud", 2, &json!({})));
    let tasks = up.client.claim(&json!({"limit": 2}));
    for task in &tasks {
        let logged = json!({"offset": 0, "text": "begun\nended\n"});
        assert_eq!(up.client.say(task, "log", logged).status, 200);
    }
    let ended = |client: &Client, task: &Value| {
        assert_eq!(client.say(task, "complete", json!({})).status, 200);
        let task = node.task("loud", task["task_id"].as_str().unwrap());
        (task["log_bytes"].clone(), task["output"].clone())
    };
    let told = (json!(12), json!("begun\nended\n"));
    // What is not there cannot be read.
    let logs = node.data.join("logs");
    let aside = node.path("logs");
    std::fs::rename(&logs, &aside).unwrap();
    assert_eq!(ended(&up.client, &tasks[0]), told);
    std::fs::rename(&aside, &logs).unwrap();
    up.running.signal(rustix::process::Signal::TERM);
    up.running.wait();
    let again = node.up();
    assert_eq!(ended(&again.client, &tasks[1]), told);
}
