//! `cis work`: workers that are scripts, and what becomes of their tasks when they go away.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::collections::BTreeSet;

use cis_core::id::RunId;
use cis_store::Reader;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::{Up, field};
use support::{Fifo, Node, Running};

/// Workers that are stopped in one round, and rounds: 200 of them in all.
const WORKERS: usize = 50;
const ROUNDS: usize = 4;

/// A worker of the node that is up.
fn worker(node: &Node, up: &Up, args: &[&str], script: &str) -> Running {
    let url = format!("http://{}", up.client.address);
    let mut line = vec!["work", "--node", &url];
    line.extend(args);
    line.extend(["--", "sh", "-c", script]);
    node.spawn(line)
}

/// The run that was just confirmed, once `enough` of its tasks have a note of their holder.
fn until_noted(node: &Node, up: &Up, confirmed: &Value, enough: usize) {
    let run_id: RunId = confirmed["run_id"].as_str().unwrap().parse().unwrap();
    let reader = Reader::open(&node.data.join("dag.db")).unwrap();
    let run = reader.run_by_id(run_id).unwrap().unwrap();
    while reader.progress(run.key).unwrap().len() < enough {
        // A note changes nothing that anybody is told of: asking for changes merely passes the time.
        let path = format!("/api/v1/dag/{}/status", run.dag_id);
        let version = up.client.get(&path).json()["version"].clone();
        up.client.get(&format!("{path}?wait=100ms&after={version}"));
    }
}

#[test]
fn a_script_is_a_worker() {
    let node = Node::new();
    let up = node.up();
    let dag = json!({"dag_id": "w", "tasks": [
        {"id": "good", "type": "external", "needs": ["sh"], "input": {"who": "ann"}},
        {"id": "bad", "type": "external", "needs": ["sh"], "depends_on": ["good"],
         "input": "{{ tasks.good.outputs.hello }}"},
    ]});
    up.client.run(&dag.to_string());
    let script =
        r#"read -r line; echo "in: $line"; echo "env: $CIS_INPUT" >&2; echo hello=hi > "$CIS_OUTPUT""#;
    let done = worker(&node, &up, &["--needs", "sh", "--once"], script).wait().code(0);
    assert_eq!(done.out, "in: {\"who\":\"ann\"}\n");
    assert!(
        done.err.contains("env: {\"who\":\"ann\"}") && done.err.contains("w#1/good completed"),
        "{}",
        done.err
    );
    let failed = worker(&node, &up, &["--needs", "sh", "--once", "--json"], "cat; exit 7").wait().code(7);
    assert!(failed.out.starts_with("\"hi\""), "{}", failed.out);
    assert!(failed.out.contains(r#""ending":"failed""#) && failed.out.contains("exit 7"), "{}", failed.out);
    let told = up.client.until_over("w");
    assert_eq!((&told["status"], &told["tasks"][1]["exit_code"]), (&json!("failed"), &json!(7)));
    assert_eq!(node.ok(["logs", "w", "--task", "bad"]).out, "\"hi\"\n");
    // Nobody to call, or nothing to call with.
    let nowhere = node
        .cis(["work", "--node", "http://127.0.0.1:1", "--token", "cis_1", "--once", "--", "true"])
        .code(1);
    assert!(nowhere.err.contains("cannot be reached") && nowhere.err.contains("hint:"), "{}", nowhere.err);
    node.assert_sound();
}

#[test]
fn whoever_runs_what_nobody_can_claim_is_told() {
    let node = Node::new();
    node.dag("d", "tasks = [{ id = 'a', type = 'external', queue_timeout = '10ms' }]");
    let ran = node.cis(["run", "d.toml"]).code(1);
    assert!(
        ran.err.contains("1 task waits for others to claim it") && ran.err.contains("`cis node start`"),
        "{}",
        ran.err
    );
    // With a node there is somebody to ask.
    let _up = node.up();
    let ran = node.cis(["run", "d.toml"]).code(1);
    assert!(!ran.err.contains("to claim"), "{}", ran.err);
}

#[test]
fn a_cancel_reaches_the_command_and_whatever_it_started() {
    let node = Node::new();
    let up = node.up();
    let confirmed = up.client.run(&field("d", 1, &json!({})));
    let script = "trap '' TERM; sleep 1000 & echo 1 > \"$CIS_PROGRESS\"; trap 'kill %1; exit 3' TERM; wait";
    let running = worker(&node, &up, &["--once", "--lease", "1s"], script);
    until_noted(&node, &up, &confirmed, 1);
    let run_id = confirmed["run_id"].as_str().unwrap();
    up.client.post(&format!("/api/v1/runs/{run_id}/cancel"), "");
    let done = running.wait().code(1);
    assert!(done.err.contains("d#1/t0 cancelled"), "{}", done.err);
    assert_eq!(up.client.until_over("d")["status"], "cancelled");
    node.assert_sound();
}

#[test]
fn a_worker_that_is_told_to_go_gives_its_task_back() {
    let node = Node::new();
    let up = node.up();
    let confirmed = up.client.run(&field("d", 1, &json!({})));
    let script = "echo 50% half > \"$CIS_PROGRESS\"; exec sleep 1000";
    let running = worker(&node, &up, &["--lease", "1s", "--name", "first"], script);
    until_noted(&node, &up, &confirmed, 1);
    running.signal(Signal::TERM);
    running.wait().code(130);
    let task = up.client.claim(&json!({})).remove(0);
    assert_eq!((&task["attempt"], &task["handoff"][0]["note"]), (&json!(2), &json!("half")));
    assert_eq!(
        (&task["handoff"][0]["percent"], &task["handoff"][0]["holder"]),
        (&json!(50.0), &json!("first"))
    );
    node.assert_sound();
}

#[test]
fn workers_that_are_stopped_past_their_lease_change_nothing() {
    let node = Node::new();
    let up = node.up();
    let (mut lost, mut holders) = (0, BTreeSet::new());
    for round in 0..ROUNDS {
        let dag = format!("r{round}");
        let confirmed = up.client.run(&field(&dag, WORKERS, &json!({})));
        let path = node.dir().join(format!("gate-{round}"));
        let gate = Fifo::new(&path);
        let script = format!(
            "echo \"50 half of $CIS_TASK_ID\" > \"$CIS_PROGRESS\"; read -r line < {}; echo by=old > \"$CIS_OUTPUT\"",
            path.display()
        );
        let name = |n: usize| format!("old-{round}-{n}");
        let old: Vec<Running> = (0..WORKERS)
            .map(|n| worker(&node, &up, &["--once", "--lease", "5s", "--name", &name(n)], &script))
            .collect();
        until_noted(&node, &up, &confirmed, WORKERS);
        old.iter().for_each(|worker| worker.signal(Signal::STOP));
        // Their tasks come back one by one, each with what its holder said of it.
        let mut taken = Vec::new();
        while taken.len() < WORKERS {
            taken.extend(up.client.claim(&json!({"limit": 100, "wait_secs": 30})));
        }
        for task in &taken {
            let handoff = &task["handoff"][0];
            assert_eq!(handoff["note"], json!(format!("half of {}", task["task_id"].as_str().unwrap())));
            holders.insert(handoff["holder"].as_str().unwrap().to_owned());
        }
        // Now those who held them wake up and believe that they are done.
        gate.let_through(WORKERS);
        old.iter().for_each(|worker| worker.signal(Signal::CONT));
        for worker in old {
            let done = worker.wait().code(1);
            assert!(done.err.contains(" lost"), "{}", done.err);
            lost += 1;
        }
        for task in &taken {
            let done = up.client.say(task, "complete", json!({"outputs": {"by": "new"}}));
            assert_eq!(done.status, 200, "{done:?}");
        }
        let told = up.client.until_over(&dag);
        assert_eq!(told["status"], "completed");
        for task in told["tasks"].as_array().unwrap() {
            assert_eq!((&task["outputs"], &task["attempt"]), (&json!({"by": "new"}), &json!(2)));
        }
    }
    assert_eq!((lost, holders.len()), (ROUNDS * WORKERS, ROUNDS * WORKERS));
    node.assert_sound();
}

/// A worker whose results are refused must not leave its task to run out of its lease.
#[test]
fn outputs_that_the_node_refuses_fail_their_task() {
    let node = Node::new();
    let up = node.up();
    up.client.run(&json!({"dag_id": "w", "tasks": [{"id": "t", "type": "external"}]}).to_string());
    let script = r#"{ printf '{"v":['; yes 1, | head -n 60000 | tr -d '\n'; printf '1]}'; } > "$CIS_OUTPUT""#;
    worker(&node, &up, &["--once"], script).wait().code(1).tells("its outputs were refused");
    let told = up.client.until_over("w");
    assert_eq!(told["status"], "failed");
    let cause = told["tasks"][0]["cause"].as_str().unwrap();
    assert!(cause.contains("outputs were refused") && cause.contains("50000"), "{cause}");
}
