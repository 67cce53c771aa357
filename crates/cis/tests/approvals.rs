//! Tasks that wait for a person: asked, approved, rejected, left alone, by the command line and over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::Node;
use support::http::{Client, at_once};

/// Clients that call at once.
const CLIENTS: usize = 32;

const GATED: &str = r#"
[[tasks]]
id = "build"
command = "echo built"

[[tasks]]
id = "ask"
type = "approval"
deps = ["build"]
prompt = "Ship it?"
input = { region = "string", share = "integer" }

[[tasks]]
id = "ship"
deps = ["ask"]
command = 'echo "to $REGION: $SHARE"'
env = { REGION = "{{ tasks.ask.outputs.region }}", SHARE = "{{ tasks.ask.outputs.share }}" }
"#;

const CONFIRMED: &str = "tasks = [{ id = 'a', command = 'echo ran > ran', level = 'confirmed' }]";

/// Publishes and confirms a DAG of one task that waits for a person, and one behind it; answers the path of that task.
fn waiting(client: &Client, id: &str, first: &Value) -> String {
    let mut task = json!({"id": "gate"});
    task.as_object_mut().unwrap().extend(first.as_object().unwrap().clone());
    let dag = json!({"dag_id": id, "tasks": [task, {"id": "after", "command": "true", "deps": ["gate"]}]});
    assert_eq!(client.post("/api/v1/dag/publish", &dag.to_string()).status, 201);
    let run = client.post(&format!("/api/v1/dag/{id}/confirm"), "").json()["run_id"].clone();
    client.until(id, |told| told["tasks"][0]["status"] == "waiting");
    format!("/api/v1/runs/{}/tasks/gate", run.as_str().unwrap())
}

#[test]
fn a_run_goes_on_when_somebody_approves() {
    let node = Node::new();
    node.dag("d", GATED);
    let mut run = node.spawn(["run", "d.toml"]);
    let asked = run.until("Ship it?");
    let run_id = node.json(["status", "d"])["run_id"].as_str().unwrap().to_owned();
    let review = node.review("d");
    let command = format!("cis approve {review} --input region=STRING --input share=INTEGER");
    assert!(asked.contains(&format!("`{command}`")), "{asked}");
    node.ok(["status", "d"]).says("? waiting").says(&format!("`{command}` Ship it?"));
    let pending = node.json(["pending"])["pending"].clone();
    assert_eq!((&pending[0]["kind"], &pending[0]["run"]), (&json!("task"), &json!("d#1")));
    assert_eq!(pending[0]["input"], json!({"region": "string", "share": "integer"}));
    assert_eq!(pending[0]["command"], *command);
    assert_eq!(node.task("d", "ask")["review_id"], *review);
    node.ok(["pending"]).says("d#1 ask").says(&command);
    // The name of a DAG says nothing about which of its runs was looked at.
    let named = node.cis(["approve", "d", "ask", "--input", "region=eu", "--input", "share=5"]).code(2);
    named.says_nothing().tells("error[ValidationFailed]").tells(&format!("`{command}`"));
    // What does not fit is told, and changes nothing.
    node.cis(["approve", &review]).code(2).says_nothing().tells("needs `region`").tells("needs `share`");
    // Nor does the number of a run, which is given again after a backup was restored.
    let numbered = node.cis(["approve", "d#1", "ask", "--input", "region=eu", "--input", "share=5"]).code(2);
    numbered.says_nothing().tells("error[ValidationFailed]").tells(&format!("`{command}`"));
    assert_eq!(node.task("d", "ask")["status"], "waiting");
    let wrong = ["approve", &run_id, "ask", "--input", "region=eu", "--input", "share=much"];
    node.cis(wrong).code(2).tells("input.share: expected integer");
    node.cis(["approve", "d", "ship"]).code(4).tells("waits for no decision");
    node.cis(["approve", &run_id, "ship"]).code(4).tells("waits for nobody's approval");
    // Tasks are approved; what is confirmed is a DAG.
    let confirm = node.cis(["confirm", &review, "--input", "region=eu", "--input", "share=5"]).code(2);
    confirm.says_nothing().tells("error[ValidationFailed]").tells(&format!("hint: `{command}`"));
    node.cis(["confirm", "d", "ask"]).code(2).says_nothing().tells("hint: `cis approve d ask`");
    node.cis(["approve", "d", "akk"]).code(3).tells("did you mean `ask`?");
    let right = ["approve", &review, "--input", "region=eu", "--input", "share=5", "--note", "go"];
    node.ok(right).says("d#1 ask is approved");
    run.wait().code(0);
    assert_eq!(node.logs("d", "ship"), "to eu: 5\n");
    assert_eq!(node.states("d"), "build=completed ask=completed ship=completed");
    // Again it is the same; the other way it is too late.
    node.ok(["approve", &review, "--input", "region=eu", "--input", "share=5"])
        .says("was approved already, by");
    node.ok(["approve", &run_id, "ask", "--input", "region=eu", "--input", "share=5"])
        .says("was approved already, by");
    let decision = node.task("d", "ask")["decision"].clone();
    assert!(decision["decided_at"].is_string() && decision["decided_by"].is_string(), "{decision}");
    assert_eq!(decision["note"], "go");
    node.ok(["status", "d"]).says("approved by ").says(": go");
    node.cis(["reject", &review]).code(4).says_nothing().tells("error[InvalidTransition]");
    node.ok(["pending"]).says_nothing().tells("nothing waits for a decision");
    node.assert_sound();
}

#[test]
fn a_rejection_is_a_failure_that_says_who_and_why() {
    let node = Node::new();
    node.dag("d", CONFIRMED);
    node.ok(["run", "d.toml", "--detach"]);
    node.ok(["reject", "d", "a", "--note", "not today"]).says("d#1 a is rejected");
    node.cis(["status", "d", "--watch"]).code(1);
    let task = node.task("d", "a");
    let cause = task["cause"].as_str().unwrap();
    assert!(cause.starts_with("rejected by ") && cause.ends_with(": not today"), "{cause}");
    assert!(!node.path("ran").exists());
    let run_id = node.json(["status", "d"])["run_id"].as_str().unwrap().to_owned();
    node.cis(["approve", &run_id, "a"]).code(4).tells("was rejected by");
    // A new run asks again.
    node.ok(["dag", "resume", "d", "--detach"]);
    node.ok(["approve", &node.review("d")]);
    node.ok(["status", "d", "--watch"]);
    assert_eq!(node.read("ran"), "ran\n");
    node.assert_sound();
}

#[test]
fn without_a_task_a_dag_is_meant() {
    let node = Node::new();
    node.dag("d", CONFIRMED);
    node.dag("e", CONFIRMED);
    node.ok(["dag", "publish", "d.toml"]);
    node.ok(["dag", "publish", "e.toml"]);
    let (d, e) = (node.review("d"), node.review("e"));
    let pending = node.ok(["pending"]).says("d revision 1");
    pending.says(&format!("cis confirm {d}")).says(&format!("cis confirm {e}"));
    node.cis(["confirm", &d, "--input", "x=y"]).code(2).says_nothing();
    let refused = node.cis(["approve", &d]).code(2).says_nothing().tells("error[ValidationFailed]");
    refused.tells("`d` revision 1").tells(&format!("hint: `cis confirm {d}`"));
    node.cis(["approve", "d"]).code(2).says_nothing().tells(&format!("`cis confirm {d}`"));
    node.ok(["confirm", &d, "--note", "fine"]).says("Started d#1 in the background");
    node.ok(["reject", "e", "--note", "not now"]).says("Rejected `e` revision 1");
    node.ok(["status", "e"]).says("rejected by ").says(": not now");
    node.ok(["status", "d"]).says("confirmed by ").says(": fine");
    node.ok(["dag", "runs", "d"]).says("fine");
    // Once it runs, it is its tasks that wait.
    let task = node.review("d");
    node.cis(["approve", "d"]).code(2).says_nothing().tells(&format!("hint: `cis approve {task}`"));
    node.ok(["dag", "cancel", "d"]);
    node.cis(["status", "d", "--watch"]).code(1);
    assert_eq!(node.states("d"), "a=cancelled");
    assert_eq!(node.json(["pending"])["pending"], json!([]));
    node.assert_sound();
}

#[test]
fn nobody_answers_in_time() {
    let node = Node::new();
    for (action, exit, states) in [
        ("", 1, "ask=timed_out next=skipped"),
        ("on_timeout = 'fail'", 1, "ask=timed_out next=skipped"),
        ("on_timeout = 'skip'", 0, "ask=skipped next=skipped"),
        ("on_timeout = 'approve'", 0, "ask=completed next=completed"),
    ] {
        let ask = format!("[[tasks]]\nid = 'ask'\ntype = 'approval'\ntimeout = '20ms'\n{action}\n");
        node.dag("d", &format!("{ask}[[tasks]]\nid = 'next'\ndeps = ['ask']\ncommand = 'true'\n"));
        node.cis(["run", "d.toml"]).code(exit);
        assert_eq!(node.states("d"), states, "{action}");
    }
    node.assert_sound();
}

#[test]
fn many_approve_at_once_and_it_is_one_decision() {
    let node = Node::new();
    let up = node.up();
    let approval = json!({"type": "approval", "prompt": "Go?", "input": {"n": "integer"}});
    let gated = json!({"command": "true", "level": {"type": "confirmed"}});
    for round in 0..10 {
        let (id, first) = if round % 2 == 0 { ("question", &approval) } else { ("gated", &gated) };
        let id = format!("{id}-{round}");
        let path = format!("{}/approve", waiting(&up.client, &id, first));
        let body = if round % 2 == 0 { json!({"input": {"n": 3}, "note": "fine"}) } else { json!({}) };
        let answers = at_once(CLIENTS, |n| {
            let key = format!("{id}-{n}");
            let headers = [("Idempotency-Key", key.as_str())];
            up.client.call("POST", &path, if n % 2 == 0 { &headers } else { &[] }, &body.to_string())
        });
        let bodies: BTreeSet<&str> = answers.iter().map(|answer| answer.body.as_str()).collect();
        assert!(answers.iter().all(|answer| answer.status == 200) && bodies.len() == 1, "{answers:?}");
        assert_eq!(up.client.until_over(&id)["status"], "completed");
        // A replay is what was said, byte for byte, however long ago.
        let key = format!("{id}-0");
        let again = up.client.call("POST", &path, &[("Idempotency-Key", &key)], &body.to_string());
        assert_eq!(
            (again.header("idempotent-replayed"), again.body.as_str()),
            (Some("true"), *bodies.first().unwrap())
        );
    }
    node.assert_sound();
}

#[test]
fn of_yes_and_no_at_once_one_wins() {
    let node = Node::new();
    let up = node.up();
    for round in 0..20 {
        let id = format!("race-{round}");
        let path = waiting(&up.client, &id, &json!({"type": "approval"}));
        let word = |n: usize| if (n + round).is_multiple_of(2) { "approve" } else { "reject" };
        let answers = at_once(CLIENTS, |n| up.client.post(&format!("{path}/{}", word(n)), ""));
        let won: BTreeSet<&str> = (0..CLIENTS).filter(|n| answers[*n].status == 200).map(word).collect();
        assert_eq!(won.len(), 1, "{answers:?}");
        let winner = *won.first().unwrap();
        for (n, answer) in answers.iter().enumerate().filter(|(n, _)| word(*n) != winner) {
            assert_eq!((answer.status, answer.code()), (409, "InvalidTransition".to_owned()), "{n}");
        }
        let status = if winner == "approve" { "completed" } else { "failed" };
        assert_eq!(up.client.until_over(&id)["status"], status);
    }
    node.assert_sound();
}

#[test]
fn who_may_see_and_answer() {
    let node = Node::new();
    let up = node.up();
    let ours = up.client.with(&node.token(["a", "--as", "owner", "--scope", "project-a"]));
    let theirs = up.client.with(&node.token(["b", "--as", "owner", "--scope", "project-b"]));
    let agent = up.client.with(&node.token(["c", "--scope", "project-a"]));
    let asks = json!({"type": "approval", "prompt": "Go?", "timeout": "1d", "on_timeout": "skip"});
    let path = waiting(&ours, "d", &asks);
    assert_eq!(
        ours.post("/api/v1/dag/publish", r#"{"dag_id":"e","tasks":[{"id":"t","command":"true"}]}"#).status,
        201
    );
    let pending = agent.get("/api/v1/pending").json()["pending"].clone();
    let kinds: Vec<&str> =
        pending.as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["dag", "task"]);
    assert_eq!(pending[0]["dag_id"], "e");
    let task = &pending[1];
    assert_eq!(
        (&task["prompt"], &task["on_timeout"], &task["type"]),
        (&json!("Go?"), &json!("skip"), &json!("approval"))
    );
    assert_eq!((&task["run"], &task["approve_url"]), (&json!("d#1"), &json!(format!("{path}/approve"))));
    assert_eq!(theirs.get("/api/v1/pending").json()["pending"], json!([]));
    for word in ["approve", "reject"] {
        assert_eq!(theirs.post(&format!("{path}/{word}"), "").status, 404);
        assert_eq!(agent.post(&format!("{path}/{word}"), "").status, 403);
    }
    let approve = format!("{path}/approve");
    assert_eq!(ours.post(&approve.replace("gate", "none"), "").status, 404);
    assert_eq!(ours.post(&approve.replace("gate", "after"), "").code(), "InvalidTransition");
    for wrong in ["[]", "{\"inputs\": {}}", "{\"input\": {\"a\": 1}}", "{\"note\": 1}"] {
        let answer = ours.post(&approve, wrong);
        assert_eq!((answer.status, answer.code()), (422, "ValidationFailed".to_owned()), "{wrong}");
    }
    let told = ours.post(&approve, "{\"note\": \"go\"}").json();
    assert_eq!((&told["status"], &told["task_status"]), (&json!("approved"), &json!("completed")));
    assert_eq!((&told["decided_by"], &told["note"]), (&json!("a"), &json!("go")));
    ours.until_over("d");
    node.assert_sound();
}

#[test]
fn a_question_outlives_its_node() {
    let node = Node::new();
    let up = node.up();
    let path = waiting(&up.client, "d", &json!({"command": "true", "level": "confirmed"}));
    up.running.signal(Signal::KILL);
    up.running.wait();
    let again = node.up();
    let pending = again.client.get("/api/v1/pending").json()["pending"].clone();
    assert_eq!((&pending[0]["task_id"], &pending[0]["run"]), (&json!("gate"), &json!("d#1")));
    assert_eq!(again.client.post(&format!("{path}/approve"), "").json()["task_status"], "ready");
    let told = again.client.until_over("d");
    assert_eq!((&told["status"], &told["tasks"][0]["attempt"]), (&json!("completed"), &json!(1)));
    // The last task of a run may be a question; its answer ends the run, and with it the need for a coordinator.
    node.dag("last", "tasks = [{ id = 'ask', type = 'approval' }]");
    again.running.signal(Signal::TERM);
    again.running.wait().code(0);
    node.ok(["run", "last.toml", "--detach"]);
    node.ok(["approve", &node.review("last")]);
    node.wait_idle();
    assert_eq!(node.stored("last"), "ask=completed");
    node.assert_sound();
}
