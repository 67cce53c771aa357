//! A node and those who call it: real clients on real connections, many at once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use cis_api::Access;
use cis_core::access::Preset;
use cis_server::table::{Route, network_routes};
use rustix::process::Signal;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};
use support::Node;
use support::http::{Answer, Client, at_once};

/// Clients that call at once.
const CLIENTS: usize = 64;

fn dag(id: &str, command: &str) -> String {
    json!({"dag_id": id, "tasks": [{"id": "t1", "type": "shell", "command": command}]}).to_string()
}

#[test]
fn an_agent_publishes_a_person_confirms_and_it_runs() {
    let node = Node::new();
    let up = node.up();
    let owner = &up.client;
    let agent = owner.with(&node.token(["did:cis:agent:a"]));
    // As the plain `curl -d` does it: no content type that says JSON.
    let published = agent.call(
        "POST",
        "/api/v1/dag/publish",
        &[("Content-Type", "application/x-www-form-urlencoded")],
        &dag("backup", "pwd; echo $E2E_MARK; echo done"),
    );
    assert_eq!((published.status, published.json()["status"].clone()), (201, json!("created")));
    assert_eq!(published.json()["expire_sec"], 86_400);
    assert_eq!(agent.get("/api/v1/pending").json()["pending"][0]["dag_id"], "backup");
    // Whoever publishes does not confirm.
    assert_eq!(agent.post("/api/v1/dag/backup/confirm", "").status, 403);
    let confirmed = owner.post("/api/v1/dag/backup/confirm", "").json();
    assert_eq!((&confirmed["status"], &confirmed["tasks_count"]), (&json!("confirmed"), &json!(1)));
    let told = agent.until_over("backup");
    assert_eq!((&told["status"], &told["progress"]), (&json!("completed"), &json!(100)));
    assert_eq!(told["run_id"], confirmed["run_id"]);
    // In a directory of its own, and with nothing of the node's environment that was not named.
    let output = told["tasks"][0]["output"].as_str().unwrap();
    let run_id = confirmed["run_id"].as_str().unwrap();
    assert!(output.lines().next().unwrap().ends_with(run_id), "{output}");
    assert_eq!(output.lines().skip(1).collect::<Vec<_>>(), ["", "done"]);
    assert_eq!(agent.get("/api/v1/dag/nothing/status").json()["status"], "not_found");
    // The command line sees the same.
    assert_eq!(node.states("backup"), "t1=completed");
    up.running.signal(Signal::TERM);
    up.running.wait().code(0);
    node.wait_idle();
    node.assert_sound();
}

#[test]
fn many_publish_the_same_dag_at_once() {
    let node = Node::new();
    let up = node.up();
    let statuses = |answers: &[Answer]| {
        let mut counts = BTreeMap::new();
        for answer in answers {
            let said = match answer.status {
                409 => answer.code(),
                _ => answer.json()["status"].as_str().unwrap().to_owned(),
            };
            *counts.entry(said).or_insert(0) += 1;
        }
        counts
    };
    for round in 0..50 {
        let id = format!("same-{round}");
        let counts =
            statuses(&at_once(CLIENTS, |_| up.client.post("/api/v1/dag/publish", &dag(&id, "true"))));
        assert_eq!(counts, [("created".to_owned(), 1), ("already_exists".to_owned(), CLIENTS - 1)].into());
    }
    for round in 0..50 {
        let id = format!("two-{round}");
        let call = |n: usize| up.client.post("/api/v1/dag/publish", &dag(&id, &format!("echo {}", n % 2)));
        let counts = statuses(&at_once(CLIENTS, call));
        let half = CLIENTS / 2;
        let expected = [("created", 1), ("already_exists", half - 1), ("ContentConflict", half)];
        assert_eq!(counts, expected.map(|(said, n)| (said.to_owned(), n)).into());
    }
    assert_eq!(up.client.get("/api/v1/pending").json()["pending"].as_array().unwrap().len(), 100);
    node.assert_sound();
}

#[test]
fn many_confirm_at_once() {
    let node = Node::new();
    let up = node.up();
    for round in 0..50 {
        let id = format!("c-{round}");
        assert_eq!(up.client.post("/api/v1/dag/publish", &dag(&id, "true")).status, 201);
        let path = format!("/api/v1/dag/{id}/confirm");
        let answers = at_once(CLIENTS, |n| {
            let key = format!("{id}-{n}");
            let headers = [("Idempotency-Key", key.as_str())];
            up.client.call("POST", &path, if n % 2 == 0 { &headers } else { &[] }, "")
        });
        assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
        let runs: BTreeSet<String> = answers.iter().map(|a| a.json()["run_id"].to_string()).collect();
        assert_eq!(runs.len(), 1);
        assert_eq!(up.client.until_over(&id)["run"], format!("{id}#1"));
    }
    node.assert_sound();
}

#[test]
fn a_request_with_a_key_is_done_once() {
    let node = Node::new();
    let up = node.up();
    let call = |key: usize| {
        let (key, id) = (format!("key-{key}"), format!("keyed-{key}"));
        let headers = [("X-Idempotency-Key", key.as_str())];
        up.client.call("POST", "/api/v1/dag/publish", &headers, &dag(&id, "true"))
    };
    let mut first: BTreeMap<usize, String> = BTreeMap::new();
    for round in 0..160 {
        // Sixty-four calls, over a window of keys that moves, so that each key comes early, late and at once.
        let answers = at_once(CLIENTS, |n| call((round * 7 + n * 13) % 100));
        for (n, answer) in answers.iter().enumerate() {
            let body = first.entry((round * 7 + n * 13) % 100).or_insert_with(|| answer.body.clone());
            assert_eq!((answer.status, &answer.body), (201, &*body));
        }
    }
    let replayed = call(0);
    assert_eq!(replayed.header("idempotent-replayed"), Some("true"));
    let other =
        up.client.call("POST", "/api/v1/dag/publish", &[("Idempotency-Key", "key-0")], &dag("x", "true"));
    assert_eq!((other.status, other.code()), (409, "DuplicateIdempotencyKey".to_owned()));
    // A refusal is an answer too.
    let refused = |_| {
        let headers = [("Idempotency-Key", "refused")];
        up.client.call("POST", "/api/v1/dag/publish", &headers, &dag("keyed-1", "false"))
    };
    let (one, two) = (refused(1), refused(2));
    assert_eq!((one.status, one.code(), &one.body), (409, "ContentConflict".to_owned(), &two.body));
    assert_eq!(two.header("idempotent-replayed"), Some("true"));
    assert_eq!(up.client.get("/api/v1/pending").json()["pending"].as_array().unwrap().len(), 100);
    node.assert_sound();
}

#[test]
fn a_follower_who_is_cut_off_misses_nothing_and_hears_nothing_twice() {
    let node = Node::new();
    let up = node.up();
    let owner = &up.client;
    let runs = 40;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..runs {
                let tasks: Vec<Value> =
                    (0..5).map(|t| json!({"id": format!("t{t}"), "command": "true"})).collect();
                let text = json!({"dag_id": format!("d{n}"), "tasks": tasks}).to_string();
                assert_eq!(owner.post("/api/v1/dag/publish", &text).status, 201);
                assert_eq!(owner.post(&format!("/api/v1/dag/d{n}/confirm"), "").status, 200);
            }
        });
        let (mut seen, mut ended, mut cuts) = (Vec::new(), 0, 0);
        while ended < runs || cuts < 100 {
            let (mut here, last) = (0, seen.last().copied());
            owner.follow(last.or(Some(0)), |id, event| {
                seen.push(id);
                here += 1;
                assert_ne!(event["data"]["status"], "failed", "{event}");
                let of_run = event["data"]["run_id"].is_string() && event["data"]["task_id"].is_null();
                ended += usize::from(of_run && event["data"]["status"] == "completed");
                here >= 5 || ended == runs
            });
            cuts += 1;
            if ended == runs && cuts < 100 {
                // Over too soon to be cut a hundred times: once more from the beginning.
                assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>());
                (seen, ended) = (Vec::new(), 0);
            }
        }
        assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>());
    });
}

/// A path of the table with something in its braces.
fn filled(path: &str) -> String {
    path.replace("{id}", "secret")
        .replace("{code}", "NotFound")
        .replace("{run}", "01890000-0000-7000-8000-000000000000")
        .replace("{task}", "t")
}

#[test]
fn no_route_lets_in_whom_it_should_not() {
    let node = Node::new();
    let up = node.up();
    let owner = &up.client;
    let reader = owner.with(&node.token(["r", "--as", "reader"]));
    let worker = owner.with(&node.token(["w", "--as", "worker"]));
    let short = owner.with(&node.token(["s", "--as", "owner", "--expires", "1ms"]));
    let gone = owner.with(&node.token(["g", "--as", "owner"]));
    let listed = node.json(["token", "list"]);
    let line = listed["tokens"].as_array().unwrap().iter().find(|token| token["identity"] == "g").unwrap();
    node.ok(["token", "revoke", line["token_id"].as_str().unwrap()]);
    for Route { method, path, access } in network_routes().copied() {
        let path = filled(path);
        let call = |client: &Client, headers: &[(&str, &str)]| client.call(method, &path, headers, "").status;
        assert_eq!(call(owner, &[("Host", "evil.example")]), 403, "{method} {path}");
        assert_eq!(call(owner, &[("Origin", "http://evil.example")]), 403, "{method} {path}");
        if access == Access::Open {
            continue;
        }
        let nobody = owner.raw(method, &path, &owner.address, &[], "");
        assert_eq!(nobody.status, 401, "{method} {path}");
        assert_eq!(nobody.header("www-authenticate"), Some("Bearer"));
        for wrong in ["cis_0000", "", "did:cis:local:abc"] {
            assert_eq!(call(&owner.with(wrong), &[]), 401, "{method} {path}");
        }
        assert_eq!((call(&gone, &[]), call(&short, &[])), (401, 401), "{method} {path}");
        let Access::With(role) = access else { continue };
        for (caller, preset) in [(&reader, Preset::Reader), (&worker, Preset::Worker)] {
            assert_eq!(call(caller, &[]) == 403, !preset.roles().contains(&role), "{method} {path}");
        }
    }
    assert_eq!(owner.get("/api/v1/nothing").status, 404);
}

#[test]
fn one_scope_does_not_see_another() {
    let node = Node::new();
    let up = node.up();
    let ours = up.client.with(&node.token(["a", "--as", "owner", "--scope", "project-a"]));
    let theirs = up.client.with(&node.token(["b", "--as", "owner", "--scope", "project-b"]));
    let text = json!({"dag_id": "secret", "tasks": [{"id": "t", "command": "true"}]}).to_string();
    assert_eq!(ours.post("/api/v1/dag/publish", &text).json()["scope"], "project-a");
    let run = ours.post("/api/v1/dag/secret/confirm", "").json()["run_id"].as_str().unwrap().to_owned();
    ours.until_over("secret");
    for Route { method, path, .. } in network_routes().copied() {
        if !path.contains("/dag/{id}") && !path.contains("{run}") {
            continue;
        }
        let path = path.replace("{id}", "secret").replace("{run}", &run).replace("{task}", "t");
        let body = if path.ends_with("/retry") { r#"{"task": "t"}"# } else { "" };
        assert_eq!(theirs.call(method, &path, &[], body).status, 404, "{method} {path}");
    }
    assert_eq!(theirs.get("/api/v1/dag").json()["dags"], json!([]));
    assert_eq!(theirs.get("/api/v1/pending").json()["pending"], json!([]));
    let foreign = json!({"dag_id": "x", "scope": "project-a", "tasks": [{"id": "t", "command": "true"}]});
    assert_eq!(theirs.post("/api/v1/dag/publish", &foreign.to_string()).status, 403);
    // What the other sees of events begins with its own.
    assert_eq!(theirs.post("/api/v1/dag/publish", &dag("mine", "true")).status, 201);
    theirs.follow(Some(0), |_, event| {
        assert_eq!(event["data"]["scope"], "project-b");
        true
    });
    // Whoever sees a part of the node governs no tokens.
    let wider = json!({"identity": "x", "as": "owner"}).to_string();
    assert_eq!(theirs.post("/api/v1/tokens", &wider).status, 403);
    assert_eq!(theirs.get("/api/v1/tokens").status, 403);
    assert_eq!(theirs.call("DELETE", "/api/v1/tokens/tok_1", &[], "").status, 403);
}

#[test]
fn wrong_requests_hear_what_is_wrong() {
    let node = Node::new();
    let up = node.up();
    let publish = |body: &str| up.client.post("/api/v1/dag/publish", body);
    let faulty = json!({"dag_id": "d", "tasks": [{"id": "a", "comand": "true"}, {"id": "a", "command": "true", "deps": ["z"]}]});
    let answer = publish(&faulty.to_string());
    assert_eq!((answer.status, answer.code()), (422, "ValidationFailed".to_owned()));
    assert!(answer.json()["error"]["details"].as_array().unwrap().len() >= 3, "{answer:?}");
    // What to do about it is a page away, token or not.
    let docs = answer.json()["error"]["docs"].as_str().unwrap().to_owned();
    let page = up.client.raw("GET", &docs, &up.client.address, &[], "");
    assert!(page.status == 200 && page.body.starts_with("# `ValidationFailed`"), "{page:?}");
    assert_eq!(up.client.get("/docs/errors/Nothing").status, 404);
    for body in ["", "{", "[]", "null", "{\"tasks\": 1}", &"[".repeat(100_000)] {
        assert_eq!(publish(body).status, 422, "{body:.40}");
    }
    assert_eq!(up.client.post("/api/v1/dag/d/confirm", "[1]").status, 422);
    assert_eq!(up.client.post("/api/v1/dag/d/confirm", "{\"hash\": 1}").status, 422);
    assert_eq!(up.client.get("/api/v1/dag/..%2F..%2Fetc/status").status, 404);
    assert_eq!(publish(&dag("d", "true")).status, 201);
    assert_eq!(up.client.get("/api/v1/dag/d/status?wait=soon").status, 422);
    let wrong_hash = json!({"content_hash": "0".repeat(64)}).to_string();
    assert_eq!(up.client.post("/api/v1/dag/d/confirm", &wrong_hash).status, 404);
    assert_eq!(up.client.post("/api/v1/dag/d/confirm", "{\"content_hash\": \"0000\"}").status, 422);
    let own = format!("http://{}", up.client.address);
    let browser = [("Origin", own.as_str()), ("Content-Type", "text/plain")];
    assert_eq!(up.client.call("POST", "/api/v1/dag/publish", &browser, &dag("e", "true")).status, 422);
    // With a second revision, a decision says which.
    let mut second: Value = serde_json::from_str(&dag("d", "echo two")).unwrap();
    assert_eq!(publish(&second.to_string()).code(), "ContentConflict");
    second["revision"] = json!(true);
    let hash = publish(&second.to_string()).json()["content_hash"].clone();
    assert_eq!(up.client.post("/api/v1/dag/d/confirm", "").status, 422);
    let confirmed = up.client.post("/api/v1/dag/d/confirm", &json!({"content_hash": hash}).to_string());
    assert_eq!((confirmed.status, &confirmed.json()["revision"]), (200, &json!(2)));
    for query in ["limit=x", "scope=a%20b"] {
        let wrong = up.client.get(&format!("/api/v1/dag?{query}"));
        assert_eq!((wrong.status, wrong.code()), (422, "ValidationFailed".to_owned()));
    }
    // A status that is known already is not said again.
    up.client.until_over("d");
    let known = up.client.get("/api/v1/dag/d/status");
    let tag = known.header("etag").unwrap();
    assert_eq!(up.client.call("GET", "/api/v1/dag/d/status", &[("If-None-Match", tag)], "").status, 304);
}

#[test]
fn whoever_waits_hears_of_a_rejection() {
    let node = Node::new();
    let up = node.up();
    assert_eq!(up.client.post("/api/v1/dag/publish", &dag("d", "true")).status, 201);
    let version = up.client.get("/api/v1/dag/d/status").json()["version"].clone();
    let path = format!("/api/v1/dag/d/status?wait=60s&after={version}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| up.client.get(&path).json());
        // By the command line, through the node's socket.
        node.ok(["dag", "confirm", "d", "--reject"]);
        assert_eq!(waiting.join().unwrap()["status"], "rejected");
    });
}

#[test]
fn a_revoked_token_hears_no_more() {
    let node = Node::new();
    let up = node.up();
    let agent = up.client.with(&node.token(["a"]));
    assert_eq!(up.client.post("/api/v1/dag/publish", &dag("one", "true")).status, 201);
    let listed = node.json(["token", "list"]);
    let line = listed["tokens"].as_array().unwrap().iter().find(|token| token["identity"] == "a").unwrap();
    let mut heard = 0;
    agent.listen(|event| {
        heard += 1;
        assert_eq!(event["data"]["dag_id"], "one");
        node.ok(["token", "revoke", line["token_id"].as_str().unwrap()]);
        assert_eq!(up.client.post("/api/v1/dag/publish", &dag("two", "true")).status, 201);
    });
    assert_eq!(heard, 1);
}

#[test]
fn a_follower_who_does_not_read_keeps_nobody_from_leaving() {
    let node = Node::new();
    let up = node.up();
    let _deaf = up.client.deaf();
    for n in 0..300 {
        assert_eq!(up.client.post("/api/v1/dag/publish", &dag(&format!("d{n}"), "true")).status, 201);
    }
    up.running.signal(Signal::TERM);
    up.running.wait().code(0);
    node.wait_idle();
    node.assert_sound();
}

#[test]
fn a_node_that_is_killed_goes_on_where_it_was() {
    let node = Node::new();
    let (up_fifo, gate) = (node.fifo("up"), node.fifo("gate"));
    let command =
        format!("echo up > {}; read -r _ < {}", node.path("up").display(), node.path("gate").display());
    let up = node.up();
    assert_eq!(up.client.post("/api/v1/dag/publish", &dag("long", &command)).status, 201);
    let run = up.client.post("/api/v1/dag/long/confirm", "").json()["run_id"].clone();
    up_fifo.line();
    up.running.signal(Signal::KILL);
    up.running.wait();
    let again = node.up();
    assert_eq!(again.client.get("/api/v1/dag/long/status").json()["status"], "running");
    gate.let_through(1);
    let told = again.client.until_over("long");
    assert_eq!((&told["status"], &told["run_id"]), (&json!("completed"), &run));
    assert_eq!(told["tasks"][0]["attempt"], 1);
    // A port that is taken is said as such, and costs nobody anything.
    let taken = Node::new().cis(["node", "start", "--bind", &again.client.address]);
    assert!(taken.err.contains("another program listens there"), "{}", taken.err);
    again.running.signal(Signal::INT);
    again.running.wait().code(0);
    node.assert_sound();
}

/// The keys of the outermost object of a text, each as often as it is there.
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// Strict readers of JSON refuse an object that has a key twice.
#[test]
fn no_answer_has_a_key_twice() {
    let node = Node::new();
    let up = node.up();
    let confirmed = up.client.run(&dag("d", "true"));
    let run = confirmed["run_id"].as_str().unwrap();
    up.client.until_over("d");
    let paths = [
        "dag/d/status",
        "dag/d",
        "dag/d/runs",
        "dag/d/why",
        "dag",
        "pending",
        "runs",
        "whoami",
        "nodes",
        "tokens",
    ]
    .map(|path| format!("/api/v1/{path}"));
    let of_run = ["", "/tasks", "/why"].map(|part| format!("/api/v1/runs/{run}{part}"));
    for path in paths.iter().chain(&of_run) {
        let told = up.client.get(path);
        assert_eq!(told.status, 200, "{path}: {told:?}");
        let Keys(mut keys) = serde_json::from_str(&told.body).unwrap();
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count, "{path}: {}", told.body);
    }
}
