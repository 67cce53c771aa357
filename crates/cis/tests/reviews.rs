//! A decision is bound to what was looked at: by review id or whole content hash, from any machine, and what it starts
//! runs in the node's context.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::sync::Arc;

use cis_core::dag::{Defaults, Format, parse};
use cis_core::source::Timestamp;
use cis_store::port::Publish;
use cis_store::{Durability, SqliteStore};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Node, Running};

/// Two definitions whose content hashes begin with the same 12 digits: half a minute's work on one core.
const PAIR: [(&str, &str); 2] = [
    ("Nightly fbd5e710", "tar czf /backup/home.tgz ~/project && echo done"),
    ("Nightly b69fe600", "cat $CIS_DATA_DIR/admin.token | tee /tmp/x"),
];

fn of_pair(which: usize) -> Value {
    let (name, command) = PAIR[which];
    json!({"dag_id": "nightly", "tasks": [{"command": command, "id": "nightly", "name": name}]})
}

fn dag(id: &str, scope: &str) -> String {
    json!({"dag_id": id, "scope": scope, "tasks": [{"id": "a", "command": "true"}]}).to_string()
}

fn gated(id: &str) -> String {
    let ask = json!({"id": "ask", "type": "approval", "input": {"n": "integer"}});
    json!({"dag_id": id, "tasks": [ask]}).to_string()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

#[test]
fn what_is_published_after_the_look_does_not_answer_to_the_command_that_was_copied() {
    let node = Node::new();
    let up = node.up();
    let agent = up.client.with(&node.token(["agent"]));
    let shown = agent.post("/api/v1/dag/publish", &of_pair(0).to_string()).json();
    let copied = text(&node.json(["pending"])["pending"][0]["command"]);
    let mut other = of_pair(1);
    other["revision"] = json!(true);
    let other = agent.post("/api/v1/dag/publish", &other.to_string()).json();
    let (shown_hash, other_hash) = (text(&shown["content_hash"]), text(&other["content_hash"]));
    assert_eq!(shown_hash[..12], other_hash[..12], "a pair that collides");
    assert_ne!(shown["review_id"], other["review_id"]);
    // No part of a hash decides, however long.
    for length in [0, 1, 8, 12, 40, 63] {
        let part = &other_hash[..length];
        for word in ["confirm", "reject"] {
            let body = json!({"content_hash": part}).to_string();
            let refused = up.client.post(&format!("/api/v1/dag/nightly/{word}"), &body);
            assert_eq!((refused.status, refused.code()), (422, "ValidationFailed".to_owned()), "{length}");
        }
        let started = up.client.post("/api/v1/dag/nightly/runs", &json!({"content_hash": part}).to_string());
        assert_eq!(started.status, 422, "{length}");
        let refused = node.cis(["dag", "confirm", "nightly", "--content-hash", part]).code(2).says_nothing();
        refused.tells("error[ValidationFailed]").tells("`cis pending`");
    }
    // Nor does the name, for which another content stands by now.
    node.cis(["confirm", "nightly"]).code(2).says_nothing().tells("error[ValidationFailed]");
    node.cis(["approve", "nightly", "--json"]).code(2);
    // What was copied is about what was shown; here it is turned down, so that nothing runs.
    let words: Vec<&str> = copied.split(' ').skip(1).chain(["--reject"]).collect();
    assert_eq!(words[0], "confirm");
    node.ok(&words).says("Rejected `nightly` revision 1");
    let revisions = up.client.get("/api/v1/dag/nightly").json()["revisions"].clone();
    assert_eq!((&revisions[0]["status"], &revisions[1]["status"]), (&json!("pending"), &json!("rejected")));
    assert_eq!(up.client.get("/api/v1/dag/nightly/status").json()["run_id"], Value::Null);
    node.assert_sound();
}

#[test]
fn a_refused_name_says_what_to_type_and_where_to_look() {
    let node = Node::new();
    node.dag("d", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["dag", "publish", "d.toml"]);
    let review = node.review("d");
    let refused = node.cis(["confirm", "d"]).code(2).says_nothing();
    refused.tells(&format!("`cis dag show {review}`")).tells(&format!("`cis confirm {review}`"));
    node.ok(["confirm", &review.replace('-', "").replacen('r', "R-", 1)]).says("Started d#1");
    node.ok(["status", "d", "--watch"]);
    node.assert_sound();
}

#[test]
fn name_with_several_pending_revisions_rejects_none() {
    let node = Node::new();
    for (number, revision) in [None, Some("--revision")].iter().enumerate() {
        node.dag("d", &format!("tasks = [{{ id = 'a', command = 'echo {number}' }}]"));
        node.ok(["dag", "publish", "d.toml"].into_iter().chain(*revision));
    }
    node.cis(["reject", "d"]).code(2).says_nothing().tells("hint: `cis dag show r-");
    let pending = node.json(["pending"])["pending"].clone();
    assert_eq!(pending.as_array().unwrap().len(), 2);
    // With the newest out of the way, what still waits is named again.
    let newest = pending.as_array().unwrap().iter().find(|one| one["revision"] == 2).unwrap();
    node.ok(["reject", newest["review_id"].as_str().unwrap(), "--note", " "]);
    node.cis(["confirm", "d"]).code(2).tells("hint: `cis dag show r-");
    assert_eq!(node.json(["why", "d"])["awaits_confirmation"]["revision"], 1);
    assert_eq!(node.json(["status", "d"])["revisions"][0]["decision"]["note"], Value::Null);
    node.ok(["reject", "d"]).says("Rejected `d` revision 1");
    node.ok(["status", "d"]).says("rejected, published by ");
}

#[test]
fn pending_names_scopes_where_a_name_has_several() {
    let node = Node::new();
    let up = node.up();
    for scope in ["project-x", "project-y"] {
        assert_eq!(up.client.post("/api/v1/dag/publish", &dag("two", scope)).status, 201);
    }
    assert_eq!(up.client.post("/api/v1/dag/publish", &dag("one", "project-x")).status, 201);
    let told = node.ok(["pending"]);
    told.says("two revision 1 in project-x").says("two revision 1 in project-y").says("one revision 1  ");
}

#[test]
fn dag_named_like_a_review_id_is_not_published() {
    let node = Node::new();
    let up = node.up();
    let agent = up.client.with(&node.token(["agent"]));
    let review = text(&agent.post("/api/v1/dag/publish", &dag("cleanup", "global")).json()["review_id"]);
    for name in [review.clone(), review.to_uppercase(), review.replace('-', "").replacen('r', "r-", 1)] {
        let refused = agent.post("/api/v1/dag/publish", &dag(&name, "global"));
        assert_eq!((refused.status, refused.code()), (422, "ValidationFailed".to_owned()), "{name}");
        node.write("odd.json", dag(&name, "global"));
        node.cis(["dag", "publish", "odd.json"]).code(2).tells("reads as a review id").tells("hint: ");
    }
    assert_eq!(node.json(["dag", "list"])["dags"].as_array().unwrap().len(), 1);
}

/// Publishes a DAG past the parser, as an earlier version did whose names were not checked for this.
fn publish_unchecked(node: &Node, name: &str) {
    let text = dag("d", "global");
    let mut dag = parse(text.as_bytes(), Format::Json, &Defaults::default()).unwrap().dag;
    dag.dag_id = name.parse().unwrap();
    let content_hash = cis_core::dag::content_hash(&dag).to_string();
    let now = Timestamp(0);
    let dag = Arc::new(dag);
    let request = Publish {
        key: None,
        dag,
        content_hash,
        new_revision: false,
        by: "ann".to_owned(),
        by_proven: true,
        now,
        expires_at: None,
    };
    let store = SqliteStore::open(&node.data.join("dag.db"), Durability::Process).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(store.publish(request)).unwrap();
    store.close();
}

#[test]
fn name_of_an_earlier_version_that_is_also_a_review_id_is_ambiguous() {
    let node = Node::new();
    node.dag("cleanup", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["dag", "publish", "cleanup.toml"]);
    let review = node.review("cleanup");
    publish_unchecked(&node, &review);
    publish_unchecked(&node, "r-0000-0000-0000");
    for args in [
        ["dag", "show", &review].as_slice(),
        &["dag", "diff", &review],
        &["dag", "explain", &review, "a"],
        &["status", &review],
        &["confirm", &review],
        &["reject", &review],
    ] {
        node.cis(args).code(2).says_nothing().tells("error[Ambiguous]").tells("revision 1 of `cleanup`");
    }
    // Without a review of that id, the DAG is meant as ever.
    node.ok(["dag", "show", "r-0000-0000-0000"]).says("r-0000-0000-0000 revision 1");
    assert_eq!(node.json(["pending"])["pending"].as_array().unwrap().len(), 3);
}

#[test]
fn review_id_shows_exactly_the_revision_it_confirms() {
    let node = Node::new();
    let publish = |command: &str| {
        node.dag("d", &format!("tasks = [{{ id = 'a', command = '{command}' }}]"));
        node.ok(["dag", "publish", "d.toml", "--revision"]);
        node.review("d")
    };
    node.ok(["confirm", &publish("echo one")]);
    node.ok(["status", "d", "--watch"]);
    let second = publish("echo two");
    publish("echo three");
    let shown = node.json(["dag", "show", &second]);
    assert_eq!((&shown["dag_id"], &shown["revision"]), (&json!("d"), &json!(2)));
    assert_eq!(shown["definition"]["tasks"][0]["command"], "echo two");
    let changes = node.json(["dag", "diff", &second.to_uppercase()]);
    assert_eq!((&changes["from"]["revision"], &changes["to"]["revision"]), (&json!(1), &json!(2)));
    node.ok(["dag", "explain", &second, "a"]).says("echo two");
    node.ok(["status", &second]).says("d  ");
    node.cis(["dag", "show", &second, "--revision", "3"]).code(2).says_nothing();
    // Running and stopping are no looking: they take names.
    node.cis(["run", &second]).code(3).says_nothing();
    node.ok(["reject", &second]);
    assert_eq!(node.json(["dag", "show", &second])["revision"], 2, "decided, it is still that one");
    node.cis(["dag", "diff", &second]).code(3).says_nothing();
    node.cis(["dag", "show", "r-0000-0000-0000"]).code(3).tells("there is no review");
}

#[test]
fn review_id_of_a_task_shows_the_revision_of_its_run() {
    let node = Node::new();
    let gate =
        |command: &str| format!("tasks = [{{ id = 'a', command = '{command}', level = 'confirmed' }}]");
    node.dag("d", &gate("echo one"));
    node.ok(["run", "d.toml", "--detach"]);
    let review = node.review("d");
    node.dag("d", &gate("echo two"));
    node.ok(["dag", "publish", "d.toml", "--revision"]);
    assert_eq!(node.json(["dag", "show", &review])["revision"], 1);
    node.ok(["dag", "explain", &review, "a"]).says("echo one");
    node.ok(["status", &review]).says("d#1").says("? waiting");
    node.ok(["dag", "cancel", "d"]);
}

#[test]
fn a_review_is_decided_over_http_once_and_says_who_and_why() {
    let node = Node::new();
    let up = node.up();
    let agent = up.client.with(&node.token(["ann"]));
    let (own, other) =
        (up.client.with(&node.token(["ann", "--as", "approver"])), node.token(["bea", "--as", "approver"]));
    let other = up.client.with(&other);
    let published = agent.post("/api/v1/dag/publish", &dag("d", "global")).json();
    let review = text(&published["review_id"]);
    assert_eq!(agent.post("/api/v1/dag/publish", &dag("d", "global")).json()["review_id"], *review);
    for told in [
        agent.get("/api/v1/pending").json()["pending"][0].clone(),
        agent.get(&format!("/api/v1/pending/{review}")).json(),
        agent.get("/api/v1/dag/d").json()["revisions"][0].clone(),
        agent.get("/api/v1/dag/d/status").json(),
        agent.get("/api/v1/dag/d/why").json()["awaits_confirmation"].clone(),
    ] {
        assert_eq!(told["review_id"], *review, "{told}");
    }
    let approve = format!("/api/v1/pending/{review}/approve");
    assert_eq!(agent.post(&approve, "").status, 403, "it takes the role");
    assert_eq!(own.post(&approve, "").status, 403, "publishers do not confirm their own");
    assert_eq!(other.post(&approve, "{\"input\": {\"n\": 1}}").status, 422);
    assert_eq!(other.post(&approve, &json!({"note": "x".repeat(5000)}).to_string()).status, 422);
    let keyed = || other.call("POST", &approve, &[("Idempotency-Key", "k")], "{\"note\": \"looks fine\"}");
    let (first, again) = (keyed(), keyed());
    assert_eq!((first.status, first.body.as_str()), (200, again.body.as_str()));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    let told = first.json();
    assert_eq!(
        (&told["kind"], &told["status"], &told["run"]),
        (&json!("dag"), &json!("confirmed"), &json!("d#1"))
    );
    assert_eq!((&told["decided_by"], &told["note"]), (&json!("bea"), &json!("looks fine")));
    assert_eq!(other.post(&approve, "").json()["run_id"], told["run_id"], "the same again is the same");
    assert_eq!(other.post(&approve.replace("approve", "reject"), "").code(), "InvalidTransition");
    other.until_over("d");
    let line = agent.get("/api/v1/dag/d/runs").json()["runs"][0].clone();
    for decision in [
        &agent.get("/api/v1/dag/d").json()["revisions"][0]["decision"],
        &agent.get("/api/v1/dag/d/status").json()["confirmation"],
        &line["confirmation"],
    ] {
        assert_eq!((&decision["decided_by"], &decision["note"]), (&json!("bea"), &json!("looks fine")));
        assert!(decision["decided_at"].is_string(), "{decision}");
    }
    agent.follow(None, |_, event| {
        let data = &event["data"]["data"];
        event["type"] == "cis.dag.confirmed"
            && (&data["by"], &data["note"], &data["review_id"])
                == (&json!("bea"), &json!("looks fine"), &json!(review))
    });
    node.assert_sound();
}

#[test]
fn a_waiting_task_is_decided_by_its_review_over_http() {
    let node = Node::new();
    let up = node.up();
    let agent = up.client.with(&node.token(["ann"]));
    agent.post("/api/v1/dag/publish", &gated("g"));
    assert_eq!(up.client.post("/api/v1/dag/g/confirm", "").status, 200);
    let waiting = agent.until("g", |told| told["tasks"][0]["status"] == "waiting");
    let review = text(&waiting["tasks"][0]["review_id"]);
    agent.follow(None, |_, event| {
        event["type"] == "cis.task.waiting" && event["data"]["data"]["review_id"] == *review
    });
    let shown = agent.get(&format!("/api/v1/pending/{review}")).json();
    assert_eq!((&shown["kind"], &shown["task_id"]), (&json!("task"), &json!("ask")));
    let approve = format!("/api/v1/pending/{review}/approve");
    assert_eq!(up.client.post(&approve, "").status, 422, "it asks for input");
    let body = "{\"input\": {\"n\": 3}, \"note\": \"three\"}";
    let told = up.client.post(&approve, body).json();
    assert_eq!(
        (&told["kind"], &told["status"], &told["note"]),
        (&json!("task"), &json!("approved"), &json!("three"))
    );
    assert_eq!(up.client.post(&approve, body).json(), told, "the same again is the same");
    let task = up.client.until_over("g")["tasks"][0].clone();
    assert_eq!((&task["review_id"], &task["decision"]["note"]), (&Value::Null, &json!("three")));
    node.assert_sound();
}

#[test]
fn params_of_a_run_are_shown_and_its_starter_does_not_approve_it() {
    let node = Node::new();
    let up = node.up();
    let holds = |name: &str, preset: &str| up.client.with(&node.token([name, "--as", preset]));
    let (publisher, ann, ann_approves) =
        (holds("pat", "agent"), holds("ann", "agent"), holds("ann", "approver"));
    let bea = holds("bea", "approver");
    let go =
        json!({"id": "go", "command": "true", "level": "confirmed", "env": {"T": "{{ params.target }}"}});
    let dag = json!({"dag_id": "d", "params": {"target": "staging"}, "tasks": [go]});
    let published = publisher.post("/api/v1/dag/publish", &dag.to_string()).json();
    let approve = |review: &str| format!("/api/v1/pending/{review}/approve");
    assert_eq!(ann_approves.post(&approve(&text(&published["review_id"])), "").status, 200);
    // Who confirmed a DAG may approve its tasks.
    let waits = |told: &Value| told["tasks"][0]["status"] == "waiting";
    let first = text(&bea.until("d", waits)["tasks"][0]["review_id"]);
    assert_eq!(ann_approves.post(&approve(&first), "").status, 200);
    bea.until_over("d");
    let body = json!({"params": {"target": "prod"}}).to_string();
    assert_eq!(ann.post("/api/v1/dag/d/runs", &body).status, 201);
    let review = text(&bea.until("d", waits)["tasks"][0]["review_id"]);
    for told in [
        bea.get("/api/v1/pending").json()["pending"][0].clone(),
        bea.get(&format!("/api/v1/pending/{review}")).json(),
        node.json(["pending"])["pending"][0].clone(),
    ] {
        let seen = (&told["published_by"], &told["started_by"], &told["params"]);
        assert_eq!(seen, (&json!("pat"), &json!("ann"), &json!({"target": "prod"})), "{told}");
    }
    node.ok(["pending"]).says("pat; run by ann");
    node.ok(["status", "d"]).says("params: target=\"prod\"").says("started by ann");
    let refused = ann_approves.post(&approve(&review), "");
    assert_eq!((refused.status, refused.code()), (403, "Forbidden".to_owned()), "{}", refused.body);
    assert_eq!(bea.post(&approve(&review), "").status, 200);
    bea.until_over("d");
    node.assert_sound();
}

#[test]
fn a_review_of_another_scope_is_not_there() {
    let node = Node::new();
    let up = node.up();
    let published = up.client.post("/api/v1/dag/publish", &dag("d", "user-theirs")).json();
    let review = text(&published["review_id"]);
    let theirs = up.client.with(&node.token(["eve", "--as", "approver", "--scope", "user-eve"]));
    for word in ["", "/approve", "/reject"] {
        let ask = |id: &str| {
            let path = format!("/api/v1/pending/{id}{word}");
            let told = if word.is_empty() { theirs.get(&path) } else { theirs.post(&path, "") };
            (told.status, told.body.replace(id, "ID"))
        };
        let (foreign, unknown) = (ask(&review), ask("r-0000-0000-0000"));
        assert_eq!(foreign.0, 404);
        assert_eq!(foreign, unknown);
        assert_eq!(ask("nonsense").0, 404);
    }
    assert_eq!(up.client.get("/api/v1/dag/d/status").json()["status"], "pending");
}

/// Where a task starts, and what it sees of two variables.
const LOOK: &str = "tasks = [{ id = 'a', command = 'pwd; echo $OF_CALLER-$OF_NODE' }]";

#[test]
fn a_confirmed_run_starts_in_the_nodes_context_from_every_door() {
    let node = Node::new();
    node.dag("d", LOOK);
    let confirm = |of_node: &str| {
        node.ok(["dag", "publish", "d.toml"]);
        let mut command = node.command(["confirm", &node.review("d")]);
        command.env("OF_CALLER", "caller").env("OF_NODE", of_node).env("CIS_ENV_PASS", "OF_NODE");
        Running::start(command).wait().code(0);
        node.ok(["status", "d", "--watch"]);
        let run = text(&node.json(["status", "d"])["run_id"]);
        let (dir, seen) = (node.data.join("work").join(run), node.logs("d", "a"));
        assert_eq!(seen.lines().next(), Some(dir.to_str().unwrap()), "a directory of its own");
        seen.lines().nth(1).unwrap().to_owned()
    };
    // Without a node there are its settings.
    assert_eq!(confirm("settings"), "-settings");
    // Only `cis run` is its caller's own act.
    let mut command = node.command(["run", "d"]);
    command.env("OF_CALLER", "caller");
    Running::start(command).wait().code(0);
    assert_eq!(node.logs("d", "a"), format!("{}\ncaller-\n", node.dir().display()));
    // What a node kept counts, whether it is up or not.
    let mut start = node.command(["node", "start", "--bind", "127.0.0.1:0"]);
    start.env("OF_NODE", "node").env("CIS_ENV_PASS", "OF_NODE");
    let mut up = Running::start(start);
    up.until("http://");
    node.dag("d", &LOOK.replace("pwd", "pwd "));
    node.ok(["dag", "publish", "d.toml", "--revision"]);
    assert_eq!(confirm("elsewhere"), "-node");
    up.signal(Signal::TERM);
    up.wait().code(0);
    node.dag("d", &LOOK.replace("pwd", "pwd  "));
    node.ok(["dag", "publish", "d.toml", "--revision"]);
    assert_eq!(confirm("elsewhere"), "-node");
    node.assert_sound();
}
