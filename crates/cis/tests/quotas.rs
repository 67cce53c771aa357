//! What one identity may have waiting at a node, what becomes of requests that were turned down, and large definitions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use cis_core::dag::canonical;
use cis_store::Reader;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::{Client, Up, at_once};
use support::{Node, eventually};

const PUBLISH: &str = "/api/v1/dag/publish";

fn external(id: &str) -> String {
    json!({"dag_id": id, "tasks": [{"id": "t1", "type": "external"}]}).to_string()
}

fn reader(node: &Node) -> Reader {
    Reader::open(&node.data.join("dag.db")).expect("the database")
}

fn stop(up: Up) {
    up.running.signal(Signal::TERM);
    up.running.wait().code(0);
}

#[test]
fn publications_at_once_do_not_exceed_the_pending_limit() {
    let node = Node::new().with("CIS_NODE_PENDING_MAX", "3");
    let up = node.up();
    let agent = up.client.with(&node.token(["alice"]));
    let answers = at_once(32, |n| agent.post(PUBLISH, &external(&format!("d{n}"))));
    let (taken, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 201);
    assert_eq!((taken.len(), refused.len()), (3, 29), "{answers:?}");
    for answer in refused {
        assert_eq!((answer.status, answer.code()), (429, "QuotaExceeded".to_owned()));
        let details = &answer.json()["error"]["details"];
        assert_eq!((&details["limit"], &details["count"]), (&json!(3), &json!(3)));
        assert_eq!(answer.header("retry-after"), None, "a second does not help");
    }
    // What is there already is answered, whoever has how much waiting.
    let there = taken[0].json();
    let again = agent.post(PUBLISH, &external(there["dag_id"].as_str().unwrap()));
    assert_eq!((again.status, again.json()["status"].clone()), (200, json!("already_exists")));
    // Other identities have places of their own, and the owner on this machine is not bounded.
    let other = up.client.with(&node.token(["bob"]));
    assert_eq!(other.post(PUBLISH, &external("other")).status, 201);
    for n in 0..5 {
        let file = node.write(&format!("own{n}.json"), external(&format!("own{n}")));
        node.ok(["dag", "publish", file.to_str().unwrap()]);
    }
    // A decision makes room.
    let reject = format!("/api/v1/dag/{}/reject", there["dag_id"].as_str().unwrap());
    assert_eq!(up.client.post(&reject, "").status, 200);
    assert_eq!(agent.post(PUBLISH, &external("more")).status, 201);
}

fn confirm(client: &Client, id: &str) -> support::http::Answer {
    client.post(&format!("/api/v1/dag/{id}/confirm"), "")
}

#[test]
fn unfinished_runs_are_counted_for_the_publisher_of_what_was_confirmed() {
    let node = Node::new().with("CIS_NODE_UNFINISHED_RUNS_MAX", "2");
    let up = node.up();
    let agent = up.client.with(&node.token(["alice"]));
    for id in ["a", "b", "c"] {
        assert_eq!(agent.post(PUBLISH, &external(id)).status, 201);
    }
    let first = confirm(&up.client, "a");
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(confirm(&up.client, "b").status, 200);
    let refused = confirm(&up.client, "c");
    assert_eq!((refused.status, refused.code()), (429, "QuotaExceeded".to_owned()));
    assert_eq!(refused.json()["error"]["details"]["identity"], "alice");
    assert_eq!(up.client.get("/api/v1/dag/c").json()["status"], "pending");
    assert_eq!(agent.post("/api/v1/dag/a/runs", "{}").code(), "QuotaExceeded");
    // The owner has none yet, and the refusal says what to do.
    assert_eq!(up.client.post("/api/v1/dag/a/runs", "{}").status, 201);
    let run = first.json()["run_id"].as_str().unwrap().to_owned();
    assert_eq!(up.client.post(&format!("/api/v1/runs/{run}/cancel"), "").status, 200);
    let confirmed =
        eventually("a place", || Some(confirm(&up.client, "c")).filter(|answer| answer.status == 200));
    assert_eq!(confirmed.json()["status"], "confirmed");
}

#[test]
fn a_large_definition_is_answered_as_the_text_that_its_hash_is_of() {
    let node = Node::new();
    let up = node.up();
    let task = |n: usize| {
        let after: Vec<String> = n.checked_sub(1).map(|n| format!("task-{n}")).into_iter().collect();
        json!({"id": format!("task-{n}"), "command": "echo \"\u{1f980}\"", "depends_on": after})
    };
    let tasks: Vec<Value> = (0..1_500).map(task).collect();
    let published = up.client.post(PUBLISH, &json!({"dag_id": "large", "tasks": tasks}).to_string());
    assert_eq!(published.status, 201, "{published:?}");
    let hash = published.json()["content_hash"].as_str().unwrap().to_owned();
    let key = reader(&node).revisions(reader(&node).dag("large", None).unwrap()[0].key).unwrap()[0].key;
    let kept = eventually("its text", || reader(&node).kept_public_text(key).unwrap());
    assert_eq!(canonical::hash_text(&kept).as_str(), hash);
    let told = up.client.get("/api/v1/dag/large");
    assert!(told.body.contains(&kept), "not as it is kept");
    assert_eq!(told.json()["definition"]["tasks"].as_array().unwrap().len(), 1_500);
    // One that an earlier version left without is made up for by the next start; until then it is made.
    stop(up);
    let database = rusqlite::Connection::open(node.data.join("dag.db")).unwrap();
    assert_eq!(database.execute("DELETE FROM public_definitions", []).unwrap(), 1);
    drop(database);
    let up = node.up();
    assert!(up.client.get("/api/v1/dag/large").body.contains(&kept));
    assert_eq!(eventually("its text", || reader(&node).kept_public_text(key).unwrap()), kept);
    stop(up);
    node.ok(["doctor"]);
}

#[test]
fn definitions_of_rejected_revisions_are_removed_by_the_node() {
    let node = Node::new().with("CIS_RETENTION_REJECTED_MAX_AGE", "1ms");
    let up = node.up();
    let published = up.client.post(PUBLISH, &external("no"));
    assert_eq!(up.client.post("/api/v1/dag/no/reject", "").status, 200);
    stop(up);
    let up = node.up();
    let told = eventually("its end", || {
        Some(up.client.get("/api/v1/dag/no").json()).filter(|told| told["definition"].is_null())
    });
    assert!(told["revisions"][0]["removed_at"].is_string(), "{told}");
    let hash = published.json()["content_hash"].as_str().unwrap().to_owned();
    let gone = up.client.get(&format!("/api/v1/dag/no?content_hash={hash}"));
    assert_eq!((gone.status, gone.code()), (410, "Gone".to_owned()));
    assert_eq!(up.client.get("/api/v1/dag/no/status").json()["revision_status"], "rejected");
    let again = up.client.post(PUBLISH, &external("no"));
    assert_eq!((again.status, again.json()["revision"].clone()), (201, json!(2)));
    assert_eq!(published.json()["content_hash"], again.json()["content_hash"]);
    stop(up);
    node.ok(["doctor"]);
}

/// What was confirmed before goes on being shown and run, here and over the network.
#[test]
fn confirmed_revision_is_usable_after_a_later_one_was_removed() {
    let node = Node::new().with("CIS_RETENTION_REJECTED_MAX_AGE", "1ms");
    let up = node.up();
    let dag = |command: &str| {
        json!({"dag_id": "two", "revision": true, "tasks": [{"id": "t", "command": command}]}).to_string()
    };
    assert_eq!(up.client.post(PUBLISH, &dag("true")).status, 201);
    assert_eq!(up.client.post("/api/v1/dag/two/confirm", "").status, 200);
    up.client.until_over("two");
    let second = up.client.post(PUBLISH, &dag("false")).json();
    let body = json!({"content_hash": second["content_hash"]}).to_string();
    assert_eq!(up.client.post("/api/v1/dag/two/reject", &body).status, 200);
    stop(up);
    let up = node.up();
    eventually("its end", || {
        Some(up.client.get("/api/v1/dag/two").json()).filter(|told| told["definition"].is_null())
    });
    let (address, token) = (format!("http://{}", up.client.address), up.client.token.clone());
    for remote in [false, true] {
        let cis = |args: &[&str]| {
            let mut command = node.command(args);
            if remote {
                command.env("CIS_NODE", &address).env("CIS_TOKEN", &token);
            }
            command.output().unwrap()
        };
        let commands: [&[&str]; 4] = [
            &["status", "two"],
            &["dag", "show", "two", "--revision", "1"],
            &["run", "two"],
            &["dag", "graph", "two#1"],
        ];
        for args in commands {
            let done = cis(args);
            assert!(done.status.success(), "{remote} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
        }
        let shown = cis(&["dag", "show", "two"]);
        let told = String::from_utf8_lossy(&shown.stderr).into_owned();
        assert!(told.contains("revision 2 of `two` is rejected") && told.contains("--revision 1"), "{told}");
    }
    stop(up);
}
