//! Who somebody is, and what that lets them do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::os::unix::fs::PermissionsExt;

use cis_core::access::Role;
use cis_server::table::{Access, ROUTES};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::Client;
use support::Node;

fn dag(id: &str) -> String {
    json!({"dag_id": id, "tasks": [{"id": "t1", "type": "shell", "command": "true"}]}).to_string()
}

/// Waits for a run's end as a client would: by asking to be told.
fn until_over(client: &Client, dag: &str) -> Value {
    let mut told = client.get(&format!("/api/v1/dag/{dag}/status")).json();
    while told["completed_at"].is_null() {
        let version = &told["version"];
        told = client.get(&format!("/api/v1/dag/{dag}/status?wait=30s&after={version}")).json();
    }
    told
}

#[test]
fn a_node_has_an_identity_that_lasts() {
    let node = Node::new().with("CIS_NODE_NAME", "Büro 7");
    let shown = node.json(["identity", "show"]);
    let did = shown["did"].as_str().unwrap();
    let fingerprint = did.strip_prefix("did:cis:B-ro-7:").unwrap();
    assert!(fingerprint.len() == 32 && fingerprint.bytes().all(|b| b.is_ascii_hexdigit()), "{did}");
    assert_eq!(shown["public_key"].as_str().unwrap().len(), 64);
    let key = node.data.join("node.key");
    assert_eq!(shown["key_file"], key.to_str().unwrap());
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    node.ok(["identity", "show"]).says(did).says(key.to_str().unwrap());

    let up = node.up();
    let reader = up.client.with(&node.token(["r", "--as", "reader"]));
    let this = reader.get("/api/v1/nodes").json()["nodes"][0].clone();
    assert_eq!((&this["did"], &this["name"]), (&json!(did), &json!("B-ro-7")));
    assert_eq!(this["address"], format!("http://{}", up.client.address));
    assert!(this["version"].is_string() && this["since"].is_number(), "{this}");
    assert_eq!(reader.get("/api/v1/whoami").json()["node"], did);
    assert_eq!(reader.get("/ready").json()["node"], did);
    up.running.signal(Signal::TERM);
    up.running.wait().code(0).tells(did);
}

#[test]
fn a_key_that_is_not_right_is_told_and_never_replaced() {
    let node = Node::new();
    node.ok(["identity", "show"]);
    let key = node.data.join("node.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    node.ok(["identity", "show"]).tells("warning: others can read the node's key").tells("chmod 600");
    std::fs::write(&key, "half a k").unwrap();
    for command in [["identity", "show"].as_slice(), &["node", "start", "--bind", "127.0.0.1:0"]] {
        node.cis(command)
            .code(1)
            .says_nothing()
            .tells("does not hold a node's key")
            .tells("put a copy of it back");
    }
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "half a k");
}

#[test]
fn a_did_is_taken_at_its_word_on_this_machine_and_for_little() {
    let node = Node::new().with("CIS_NODE_AUTH", "trusted-local");
    let mut running = node.spawn(["glm", "start", "-b", "127.0.0.1:0"]);
    let address = running.until("http://").split("http://").nth(1).unwrap().trim().to_owned();
    let agent = Client { address: address.as_str().into(), token: "did:cis:local:abc".to_owned() };
    assert_eq!(agent.post("/api/v1/dag/publish", &dag("backup")).status, 201);
    let who = agent.get("/api/v1/whoami").json();
    assert_eq!((&who["identity"], &who["self_confirm"]), (&json!("did:cis:local:abc"), &json!(false)));
    agent.follow(Some(0), |_, event| event["data"]["dag_id"] == "backup");
    for (method, path, access) in ROUTES {
        if matches!(access, Access::With(Role::Confirm | Role::Admin)) {
            let path = path.replace("{id}", "backup");
            assert_eq!(agent.call(method, &path, &[], "").status, 403, "{method} {path}");
        }
    }
    for wrong in ["did:cis:local", "did:web:a:b", "did:cis:a b:c", "did:cis:a:b/c", "cis_0000"] {
        let answer = agent.with(wrong).get("/api/v1/whoami");
        assert_eq!((answer.status, answer.code()), (401, "Unauthorized".to_owned()), "{wrong}");
    }
    assert_eq!(agent.get("/api/v1/pending").json()["pending"][0]["published_by"], "did:cis:local:abc");
    // Tokens are good as ever.
    let owner = std::fs::read_to_string(node.data.join("admin.token")).unwrap();
    assert_eq!(agent.with(owner.trim()).post("/api/v1/dag/backup/confirm", "").status, 200);
    until_over(&agent, "backup");
    running.signal(Signal::TERM);
    running.wait().code(0).tells("warning: auth is `trusted-local`");
    // Where others can call, it is not for taking anybody at their word.
    for everywhere in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let refused = node.cis(["node", "start", "--bind", everywhere]);
        refused.code(2).says_nothing().tells("do not go together").tells("hint:");
    }
    node.assert_sound();
}

#[test]
fn an_approver_decides_about_others_and_no_more() {
    let node = Node::new();
    let up = node.up();
    let agent = up.client.with(&node.token(["did:cis:agent:a"]));
    let approver = up.client.with(&node.token(["ann", "--as", "approver"]));
    assert_eq!(agent.post("/api/v1/dag/publish", &dag("d")).status, 201);
    assert_eq!(approver.post("/api/v1/dag/publish", &dag("e")).status, 403);
    assert_eq!(approver.get("/api/v1/tokens").status, 403);
    assert_eq!(approver.post("/api/v1/dag/d/confirm", "").status, 200);
    until_over(&approver, "d");
}

#[test]
fn what_a_node_is_told_to_do_by_itself() {
    let node = Node::new().with("CIS_AUTO_EXECUTE", "true").with("CIS_PENDING_FOR", "2h");
    let shown = node.ok(["config", "show"]).out;
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("node.auto_execute").contains("true") && line("node.auth").contains("tokens"), "{shown}");
    assert!(line("node.pending_for").contains("2h"), "{shown}");

    let up = node.up();
    let agent = up.client.with(&node.token(["did:cis:agent:a"]));
    let publish = || agent.call("POST", "/api/v1/dag/publish", &[("Idempotency-Key", "k")], &dag("d"));
    let created = publish();
    let told = created.json();
    assert_eq!((created.status, &told["status"]), (201, &json!("created")));
    assert_eq!((&told["auto_executed"], &told["revision_status"]), (&json!(true), &json!("confirmed")));
    assert_eq!(told["expire_sec"], Value::Null);
    assert_eq!(until_over(&agent, "d")["run_id"], told["run_id"]);
    assert_eq!(publish().body, created.body);
    let again = agent.post("/api/v1/dag/publish", &dag("d"));
    assert_eq!((again.status, &again.json()["run_id"]), (200, &told["run_id"]));
    assert_eq!(node.json(["dag", "runs", "d"])["runs"].as_array().unwrap().len(), 1);
    // It confirms what was published, and nothing else.
    assert_eq!(agent.post("/api/v1/dag/d/confirm", "").status, 403);
    up.running.signal(Signal::TERM);
    up.running.wait().code(0).tells("warning: `auto_execute` is on");

    let asking = node.with("CIS_AUTO_EXECUTE", "false");
    let up = asking.up();
    let told = up.client.post("/api/v1/dag/publish", &dag("e")).json();
    assert_eq!((&told["expire_sec"], &told["auto_executed"]), (&json!(7_200), &Value::Null));
    asking.assert_sound();
}
