//! Fences as clients meet them: exact as doubles whatever was restored, and taken back as numbers or as text.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

#[allow(dead_code, reason = "what another crate's tests use of it")]
#[path = "../../cis-store/tests/support/earlier.rs"]
mod earlier;
mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::Node;
use support::http::Up;

/// Fences below this are exact as doubles.
const EXACT: i64 = 1 << 53;

fn externals(count: usize) -> String {
    let tasks: Vec<Value> = (0..count).map(|n| json!({"id": format!("t{n}"), "type": "external"})).collect();
    json!({"dag_id": "d", "tasks": tasks}).to_string()
}

fn stop(up: Up) {
    up.running.signal(Signal::TERM);
    up.running.wait().code(0);
}

/// Migrations of a database whose fences had 32 bits in an epoch.
const BEFORE_SHORT_FENCES: usize = 12;

fn fence(task: &Value) -> i64 {
    task["fence"].as_i64().unwrap()
}

#[test]
fn fences_stay_exact_as_doubles_after_two_restores() {
    let node = Node::new();
    let up = node.up();
    up.client.run(&externals(6));
    let before = fence(&up.client.claim(&json!({"limit": 1}))[0]);
    stop(up);
    for backup in ["one", "two"] {
        node.ok(["backup", backup]);
        node.ok(["restore", backup, "--force"]);
    }
    let up = node.up();
    for task in up.client.claim(&json!({"limit": 4})) {
        assert!(before < fence(&task) && fence(&task) < EXACT, "{task}");
        // What `JSON.parse` and `JSON.stringify` of a browser make of it.
        let rounded = json!({"execution_id": task["execution_id"], "fence": fence(&task) as f64 as i64});
        let done = up.client.say(&rounded, "complete", json!({}));
        assert_eq!((done.status, &done.json()["status"]), (200, &json!("completed")), "{task}");
    }
    stop(up);
    node.assert_sound();
}

#[test]
fn fence_is_taken_as_number_or_text_by_every_call() {
    let node = Node::new();
    let up = node.up();
    let owner = &up.client;
    owner.run(&externals(3));
    let tasks = owner.claim(&json!({"limit": 3}));
    for (task, end) in tasks.iter().zip(["complete", "fail", "release"]) {
        assert!(task["fence"].is_i64(), "answers keep the number");
        let text = json!({"execution_id": task["execution_id"], "fence": fence(task).to_string()});
        for (call, body) in [
            ("heartbeat", json!({})),
            ("progress", json!({"note": "n"})),
            ("log", json!({"offset": 0, "text": "x\n"})),
            (end, if end == "fail" { json!({"error": "e"}) } else { json!({}) }),
        ] {
            for wrong in [json!(1.5), json!(-1), json!("1.0"), json!(u64::MAX), json!(null)] {
                let said = json!({"execution_id": task["execution_id"], "fence": wrong});
                let refused = owner.say(&said, call, body.clone());
                assert_eq!(
                    (refused.status, refused.code()),
                    (422, "ValidationFailed".into()),
                    "{call}: {wrong}"
                );
                assert!(
                    refused.json()["error"]["message"].as_str().unwrap().contains("`fence`"),
                    "{refused:?}"
                );
            }
            assert_eq!(owner.say(&text, call, body).status, 200, "{call}");
        }
    }
    let document = owner.get("/api/v1/openapi.json").json();
    let sent = &document["components"]["schemas"]["SentFence"]["oneOf"];
    assert_eq!((&sent[0]["type"], &sent[1]["type"]), (&json!("integer"), &json!("string")), "{sent}");
}

/// An upgrade under live tasks: what the runner has goes on under its number, what workers outside hold is handed on.
#[test]
fn store_past_2_to_the_53_is_renumbered_under_a_running_task() {
    let node = Node::new();
    let (begun, gate) = (node.fifo("begun"), node.fifo("gate"));
    node.dag(
        "own",
        "[[tasks]]\nid = \"a\"\ncommand = \"echo a >> ran; echo begun > begun; read -r _ < gate\"\n",
    );
    let up = node.up();
    up.client.run(&externals(1));
    let held = up.client.claim(&json!({"limit": 1})).remove(0);
    node.ok(["run", "--detach", "own.toml"]);
    begun.lines(1);
    stop(up);

    // As the version before would have left it: epochs that two restores have leaped over, and a schema version less.
    for backup in ["one", "two"] {
        node.ok(["backup", backup]);
        node.ok(["restore", backup, "--force"]);
    }
    earlier::written_by(BEFORE_SHORT_FENCES, &node.data.join("dag.db"));

    let up = node.up();
    assert_eq!(up.client.say(&held, "complete", json!({})).code(), "LeaseExpired");
    let again = up.client.claim(&json!({"limit": 1, "wait_secs": 30})).remove(0);
    assert_eq!((&again["execution_id"], &again["attempt"]), (&held["execution_id"], &json!(2)));
    assert!(fence(&again) < EXACT);
    assert_eq!(up.client.say(&again, "complete", json!({})).status, 200);
    gate.let_through(1);
    assert_eq!(up.client.until_over("own")["status"], "completed");
    assert_eq!(node.read("ran"), "a\n", "once");
    stop(up);
    node.assert_sound();
}
