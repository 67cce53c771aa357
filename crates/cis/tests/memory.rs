//! What keeps one caller from filling the node's memory: large values are left out of lists, answers that are not read and bodies
//! with too many values are refused, and long reads hold up their own identity only.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::io::{BufReader, Read};
use std::net::TcpStream;

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
