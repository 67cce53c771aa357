//! What a node does when there is too much of something, when it is told to hold still, and what it says of itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use cis_server::table::{Route, network_routes};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::Node;
use support::http::{Client, at_once};

const PUBLISH: &str = "/api/v1/dag/publish";

/// Clients that call at once.
const CLIENTS: usize = 64;

fn dag(id: &str, command: &str) -> String {
    json!({"dag_id": id, "tasks": [{"id": "t1", "type": "shell", "command": command}]}).to_string()
}

fn external(id: &str) -> String {
    json!({"dag_id": id, "tasks": [{"id": "t1", "type": "external"}]}).to_string()
}

/// Publishes and confirms; answers the run's id.
fn start(client: &Client, definition: &str) -> String {
    let published = client.post(PUBLISH, definition);
    assert_eq!(published.status, 201, "{published:?}");
    let confirmed = client.post(published.json()["confirm_url"].as_str().unwrap(), "");
    assert_eq!(confirmed.status, 200, "{confirmed:?}");
    confirmed.json()["run_id"].as_str().unwrap().to_owned()
}

fn until_completed(client: &Client, dag: &str) -> Value {
    let told = client.until(dag, |told| !["queued", "running"].contains(&told["status"].as_str().unwrap()));
    assert_eq!(told["status"], "completed", "{told}");
    told
}

#[test]
fn whoever_asks_too_often_is_told_to_wait() {
    let node = Node::new().with("CIS_NODE_RATE", "1");
    let up = node.up();
    let agent = up.client.with(&node.token(["did:cis:agent:a"]));
    let answers = at_once(CLIENTS, |_| agent.get("/api/v1/whoami"));
    let (good, limited): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert!(good.len() >= 2 && !limited.is_empty(), "{answers:?}");
    for answer in limited {
        assert_eq!((answer.status, answer.code()), (429, "RateLimited".to_owned()));
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    // Another identity has a rate of its own.
    assert_eq!(up.client.get("/api/v1/whoami").status, 200);
}

#[test]
fn whoever_guesses_tokens_shuts_out_nobody_else() {
    let node = Node::new();
    let up = node.up();
    assert_eq!(up.client.get("/api/v1/whoami").status, 200);
    let guess = |n: usize| up.client.with(&format!("cis_{n}")).get("/api/v1/whoami");
    let limited = (0..20_000).map(guess).find(|answer| answer.status != 401).expect("no end of guesses");
    assert_eq!((limited.status, limited.code()), (429, "RateLimited".to_owned()));
    assert_eq!(up.client.get("/api/v1/whoami").status, 200);
}

#[test]
fn good_tokens_are_accepted_after_a_restart_while_their_address_guesses() {
    let node = Node::new();
    let up = node.up();
    let secret = node.token(["did:cis:agent:a"]);
    assert_eq!(up.client.with(&secret).get("/api/v1/whoami").status, 200);
    up.running.signal(Signal::TERM);
    up.running.wait().code(0);
    let up = node.up();
    let guess = |n: usize| up.client.with(&format!("cis_{n}")).get("/api/v1/whoami");
    let limited = (0..20_000).map(guess).find(|answer| answer.status != 401).expect("no end of guesses");
    assert_eq!((limited.status, limited.code()), (429, "RateLimited".to_owned()));
    // Neither token has been used since the node came back, and every guess of 64 clients is refused meanwhile.
    let (agent, owner) = (up.client.with(&secret), &up.client);
    let answers = at_once(CLIENTS, |n| match n % 4 {
        0 => agent.get("/api/v1/whoami"),
        1 => owner.get("/api/v1/pending"),
        _ => guess(n),
    });
    for (n, answer) in answers.iter().enumerate() {
        let expected: &[u16] = if n % 4 < 2 { &[200] } else { &[401, 429] };
        assert!(expected.contains(&answer.status), "{n}: {answer:?}");
    }
    // One made now is good at once, one taken back is a guess like any other.
    let fresh = up.client.with(&node.token(["b"]));
    assert_eq!(fresh.get("/api/v1/whoami").status, 200);
    let listed = node.json(["token", "list"]);
    let line = listed["tokens"].as_array().unwrap().iter().find(|token| token["identity"] == "b").unwrap();
    node.ok(["token", "revoke", line["token_id"].as_str().unwrap()]);
    assert!([401, 429].contains(&fresh.get("/api/v1/whoami").status));
}

/// What the node answers to exactly these bytes.
fn answer_to(client: &Client, request: &str) -> String {
    let mut stream = TcpStream::connect(&*client.address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // What is left unread of a request that was refused may reset the connection.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn requests_that_say_in_two_ways_where_they_end_are_refused() {
    let node = Node::new();
    let up = node.up();
    let (host, bearer) = (&up.client.address, format!("Authorization: Bearer {}\r\n", up.client.token));
    let begin = format!("POST {PUBLISH} HTTP/1.1\r\n{bearer}");
    let next = format!("GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let definition = dag("d", "true");
    let chunked = format!("{:x}\r\n{definition}\r\n0\r\n\r\n", definition.len());
    let length = format!("Content-Length: {}\r\n", chunked.len());
    let coding = "Transfer-Encoding: chunked\r\n";
    for headers in [
        format!("Host: {host}\r\n{length}{coding}"),
        format!("Host: {host}\r\n{coding}{length}"),
        format!("Host: {host}\r\ncontent-LENGTH: 4\r\n{coding}"),
        format!("Host: {host}\r\n{coding}{coding}"),
        format!("Host: {host}\r\n{length}{length}"),
        format!("Host: {host}\r\n{length}Content-Length: 4\r\n"),
        format!("Host: {host}\r\nHost: {host}\r\n{length}"),
        format!("Host: {host}\r\nHost: evil.example\r\n{length}"),
        format!("Host: {host}\r\n{bearer}{length}"),
        format!("Host: {host}\r\nTransfer-Encoding: gzip, chunked\r\n"),
    ] {
        let answer = answer_to(&up.client, &format!("{begin}{headers}\r\n{chunked}{next}"));
        assert!(answer.starts_with("HTTP/1.1 400 "), "{headers}{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "and the connection ends: {headers}{answer}");
    }
    let elsewhere = begin.replace("POST ", "POST http://evil.example");
    let answer = answer_to(&up.client, &format!("{elsewhere}Host: {host}\r\n{length}\r\n{chunked}"));
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(up.client.get("/api/v1/dag/d").status, 404, "and none of them was done");
    // After another request on the same connection as well.
    let second = format!("{begin}Host: {host}\r\n{coding}{length}\r\n{chunked}");
    let answers = answer_to(&up.client, &format!("{next}{second}"));
    assert!(answers.starts_with("HTTP/1.1 200 ") && answers.contains("HTTP/1.1 400 "), "{answers}");
    // Said once it is understood, and is the last on its connection.
    let good = format!("{begin}Host: {host}\r\n{coding}\r\n{chunked}");
    let answer = answer_to(&up.client, &format!("{good}{next}"));
    assert!(answer.starts_with("HTTP/1.1 201 ") && answer.matches("HTTP/1.1 ").count() == 1, "{answer}");
}

#[test]
fn a_dag_named_like_a_call_is_served_like_any_other() {
    let node = Node::new();
    let up = node.up();
    for id in ["publish", "claim", "pending", "status", "runs", "why", "confirm", "tasks"] {
        start(&up.client, &dag(id, "true"));
        assert_eq!(until_completed(&up.client, id)["dag_id"], id);
        let shown = up.client.get(&format!("/api/v1/dag/{id}")).json();
        assert_eq!((&shown["dag_id"], &shown["status"]), (&json!(id), &json!("confirmed")), "{shown}");
        for what in ["runs", "why"] {
            assert_eq!(up.client.get(&format!("/api/v1/dag/{id}/{what}")).status, 200, "{id} {what}");
        }
        node.ok(["status", id]).says(id);
        let elsewhere = ["--node", &format!("http://{}", up.client.address), "--token", &up.client.token];
        node.ok([&elsewhere[..], &["status", id]].concat()).says(id);
    }
    assert_eq!(up.client.get("/api/v1/dag/publish?content_hash=0").status, 404);
    let some = up.client.with(&node.token(["s", "--scope", "project-a"]));
    assert_eq!(some.get("/api/v1/dag/publish").status, 404);
}

#[test]
fn a_token_for_some_scopes_is_not_told_how_many_events_there_are() {
    let node = Node::new();
    let up = node.up();
    start(&up.client, &dag("d", "true"));
    until_completed(&up.client, "d");
    let some = up.client.with(&node.token(["s", "--as", "reader", "--scope", "project-a"]));
    let whole = up.client.get("/api/v1/events?after=999999").json()["error"]["message"].clone();
    assert!(whole.as_str().unwrap().contains("the last one is"), "{whole}");
    let by_query = some.get("/api/v1/events?after=999999");
    let by_header = some.call("GET", "/api/v1/events", &[("Last-Event-ID", "999999")], "");
    for refused in [by_query, by_header] {
        assert_eq!((refused.status, refused.code()), (422, "ValidationFailed".to_owned()));
        assert_eq!(refused.json()["error"]["message"], "there is no event 999999", "{refused:?}");
    }
}

#[test]
fn a_node_is_called_by_its_own_names_only() {
    let node = Node::new().with("CIS_NODE_HOSTS", "cis.example.org");
    let up = node.up();
    let call = |headers: &[(&str, &str)]| up.client.call("GET", "/api/v1/whoami", headers, "").status;
    assert_eq!(call(&[("Host", "cis.example.org")]), 200);
    assert_eq!(call(&[("Host", "CIS.example.org:6767")]), 200);
    assert_eq!(call(&[("Host", "cis.example.org"), ("Origin", "https://cis.example.org")]), 200);
    assert_eq!(call(&[("Host", "cis.example.org"), ("Origin", "https://example.org")]), 403);
    assert_eq!(call(&[("Host", "example.org")]), 403);
    assert_eq!(call(&[("Host", "cis.example.org.evil.example")]), 403);
}

#[test]
fn what_is_said_in_another_way_is_understood_or_refused() {
    let node = Node::new();
    let up = node.up();
    let (bearer, call) = (format!("bearer {}", up.client.token), "/api/v1/whoami");
    let host = &up.client.address;
    assert_eq!(up.client.raw("GET", call, host, &[("Authorization", &bearer)], "").status, 200);
    assert_eq!(up.client.post(PUBLISH, &dag("d", "true")).status, 201);
    for list in ["[]", "[null]", "[\"hash\"]", "7"] {
        let refused = up.client.post("/api/v1/dag/d/confirm", list);
        assert_eq!((refused.status, refused.code()), (422, "ValidationFailed".to_owned()), "{list}");
        assert!(refused.body.contains("the body is not a JSON object"), "{refused:?}");
    }
    assert_eq!(up.client.get("/api/v1/dag/d/status").json()["status"], "pending");
    for never in ["99999999", "-5"] {
        let refused = up.client.call("GET", "/api/v1/events", &[("Last-Event-ID", never)], "");
        assert_eq!((refused.status, refused.code()), (422, "ValidationFailed".to_owned()), "{never}");
        assert!(refused.body.contains("begin anew"), "{refused:?}");
    }
}

#[test]
fn no_call_takes_a_body_nested_too_deep() {
    let node = Node::new();
    let up = node.up();
    let deep = format!("{{\n\"a\": {}", "[".repeat(100_000));
    for Route { path, .. } in network_routes().filter(|route| route.method == "POST") {
        let path = path.replace("{scope}", "global");
        let answer = up.client.post(&path, &deep);
        assert_eq!((answer.status, answer.code()), (422, "ValidationFailed".to_owned()), "{path}");
        let problem = &answer.json()["error"]["details"][0];
        assert_eq!((&problem["code"], &problem["line"]), (&json!("TooDeep"), &json!(2)), "{path}: {problem}");
    }
    assert_eq!(up.client.get("/ready").status, 200, "and none of them was done");
}

/// Begins a request that says it has a body of so many bytes.
fn begin(client: &Client, path: &str, bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(&*client.address).unwrap();
    let (host, token) = (&client.address, &client.token);
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// Sends a body as far as the node takes it; answers the status, if there was one to read.
fn force(client: &Client, body: &[u8]) -> Option<u16> {
    let mut stream = begin(client, PUBLISH, body.len());
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
}

/// The most memory a process has used, in MiB.
fn peak_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
}

#[test]
fn two_hundred_hostile_senders_stop_nobody_else() {
    let node = Node::new();
    let up = node.up();
    let hostile: Vec<Client> =
        (0..4).map(|n| up.client.with(&node.token([format!("did:cis:agent:evil-{n}").as_str()]))).collect();
    let before = peak_mib(up.running.pid());
    // Slow: each has a place and sends no more.
    let slow: Vec<TcpStream> = (0..100)
        .map(|n| {
            let mut stream = begin(&hostile[n % 4], PUBLISH, 8 << 20);
            stream.write_all(&[b' '; 4_096]).unwrap();
            stream
        })
        .collect();
    let big = format!("{{\"dag_id\":\"big\",\"junk\":\"{}\"}}", "x".repeat((32 << 20) - 100)).into_bytes();
    let deep = "[".repeat(8 << 20).into_bytes();
    std::thread::scope(|scope| {
        let (hostile, big, deep) = (&hostile, &big, &deep);
        let forcing: Vec<_> = (0..100)
            .map(|n| scope.spawn(move || force(&hostile[n % 4], if n % 2 == 0 { big } else { deep })))
            .collect();
        for n in 0..20 {
            let id = format!("honest-{n}");
            start(&up.client, &dag(&id, "true"));
            until_completed(&up.client, &id);
        }
        for answer in forcing {
            let status = answer.join().unwrap();
            assert!(status.is_none_or(|status| [422, 429, 503].contains(&status)), "{status:?}");
        }
    });
    assert_eq!(up.client.get("/api/v1/pending").json()["pending"], json!([]));
    drop(slow);
    let used = peak_mib(up.running.pid()) - before;
    // What bodies may take, what parsing one of them takes, and some air; all of them would be 2 GiB.
    assert!(used < 512, "{used} MiB");
    node.assert_sound();
}

/// The value of a metric by its name and labels.
fn metric(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(line.parse().unwrap())
}

#[test]
fn a_node_tells_how_it_is_doing() {
    let node = Node::new();
    let up = node.up();
    let some = up.client.with(&node.token(["s", "--as", "reader", "--scope", "project-a"]));
    assert_eq!(up.client.post("/api/v1/node/drain", "").status, 200);
    let tasks: Vec<Value> = (0..3).map(|n| json!({"id": format!("t{n}"), "command": "true"})).collect();
    start(&up.client, &json!({"dag_id": "d", "tasks": tasks}).to_string());
    assert_eq!(up.client.get("/api/v1/made-up/by-a-caller").status, 404);
    let answer = up.client.get("/metrics");
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let page = answer.body;
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok() && name.starts_with(|c: char| c.is_ascii_lowercase()), "{line}");
    }
    let published = "{method=\"POST\",route=\"/api/v1/dag/publish\"";
    assert_eq!(metric(&page, &format!("cis_http_requests_total{published},status=\"201\"}}")), Some(1.0));
    assert_eq!(metric(&page, &format!("cis_http_request_duration_seconds_count{published}}}")), Some(1.0));
    let other = "cis_http_requests_total{method=\"other\",route=\"other\",status=\"404\"}";
    assert_eq!(metric(&page, other), Some(1.0));
    assert_eq!(metric(&page, "cis_queue_depth{kind=\"shell\"}"), Some(3.0));
    assert_eq!(metric(&page, "cis_runs{status=\"queued\"}"), Some(1.0));
    assert_eq!(metric(&page, "cis_draining"), Some(1.0));
    assert!(metric(&page, "process_resident_memory_bytes").unwrap() > 1e6);
    assert!(metric(&page, "cis_commits_total").unwrap() >= 2.0);
    assert!(!page.contains("made-up"));
    // It is about the whole node.
    assert_eq!(some.get("/metrics").status, 403);
    assert_eq!(up.client.raw("GET", "/metrics", &up.client.address, &[], "").status, 401);
    up.running.signal(Signal::TERM);
    up.running.wait().code(0);
    let open = Node::new().with("CIS_NODE_METRICS", "open");
    let up = open.up();
    assert_eq!(up.client.raw("GET", "/metrics", &up.client.address, &[], "").status, 200);
}

#[test]
fn logs_tell_what_happened_and_no_secrets() {
    let node = Node::new().with("CIS_LOG", "debug");
    let up = node.up();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traceparent = format!("00-{trace}-00f067aa0ba902b7-01");
    assert_eq!(up.client.post(PUBLISH, &dag("traced", "echo $TRACEPARENT; : hush")).status, 201);
    let headers = [("traceparent", traceparent.as_str())];
    let confirmed = up.client.call("POST", "/api/v1/dag/traced/confirm", &headers, "");
    let told = confirmed.header("traceparent").unwrap();
    assert!(
        told.starts_with(&format!("00-{trace}-")) && told.ends_with("-01") && told != traceparent,
        "{told}"
    );
    let done = until_completed(&up.client, "traced");
    assert_eq!(done["tasks"][0]["output"], format!("{traceparent}\n"));
    // Whoever sends none, or nonsense, gets one.
    assert_eq!(up.client.get("/health").header("traceparent").unwrap().len(), 55);
    let token = up.client.token.clone();
    up.running.signal(Signal::TERM);
    let ended = up.running.wait().code(0);
    let lines: Vec<Value> = ended.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |message: &str| {
        let found = lines.iter().filter(|line| line["message"] == message);
        found.collect::<Vec<_>>()
    };
    assert_eq!((find("node started").len(), find("node stopped").len()), (1, 1), "{}", ended.err);
    assert_eq!(
        (&find("run started")[0]["run"], &find("run started")[0]["level"]),
        (&json!("traced#1"), &json!("INFO"))
    );
    assert_eq!(find("run ended")[0]["status"], "completed");
    let request = find("request").into_iter().find(|line| line["trace_id"] == trace).unwrap();
    assert_eq!((&request["path"], &request["status"]), (&json!("/api/v1/dag/{id}/confirm"), &json!(200)));
    assert!(told.contains(request["request_id"].as_str().unwrap()));
    assert!(!ended.err.contains(&token) && !ended.err.contains("hush"));
}

#[test]
fn a_paused_run_waits_and_others_do_not() {
    let node = Node::new();
    let (begun, gate) = (node.fifo("begun"), node.fifo("gate"));
    let first =
        format!("echo x > {}; read -r _ < {}", node.path("begun").display(), node.path("gate").display());
    let up = node.up();
    let tasks = json!([{"id": "a", "command": first}, {"id": "b", "command": "true", "depends_on": ["a"]}]);
    let run = start(&up.client, &json!({"dag_id": "held", "tasks": tasks}).to_string());
    begun.line();
    let paused = up.client.post(&format!("/api/v1/runs/{run}/pause"), "").json();
    assert_eq!((&paused["paused"], &paused["status"]), (&json!(true), &json!("running")));
    gate.let_through(1);
    // What ran has ended, and what it made ready has not been started, though others have since.
    up.client.until("held", |told| told["tasks"][0]["status"] == "completed");
    start(&up.client, &dag("other", "true"));
    until_completed(&up.client, "other");
    let held = up.client.get("/api/v1/dag/held/status").json();
    assert_eq!((&held["paused"], &held["tasks"][1]["status"]), (&json!(true), &json!("ready")));
    node.ok(["status", "held"]).says("paused");
    node.ok(["dag", "unpause", "held"]).says("held#1 goes on");
    assert_eq!(until_completed(&up.client, "held")["paused"], false);
    let mut heard = Vec::new();
    up.client.follow(None, |_, event| {
        let kind = event["type"].as_str().unwrap().to_owned();
        if event["data"]["run_id"] == json!(run) && kind.starts_with("cis.run.") {
            heard.push(kind);
        }
        heard.last().is_some_and(|kind| kind == "cis.run.completed")
    });
    assert_eq!(
        heard,
        ["created", "started", "paused", "unpaused", "completed"].map(|name| format!("cis.run.{name}"))
    );
    assert_eq!(up.client.post(&format!("/api/v1/runs/{run}/pause"), "").code(), "InvalidTransition");
    // One that is paused can still be stopped.
    let hold = format!("read -r _ < {}", node.path("gate").display());
    let run = start(&up.client, &dag("doomed", &hold));
    node.ok(["dag", "pause", "doomed"]).says("is paused");
    assert_eq!(up.client.post(&format!("/api/v1/runs/{run}/cancel"), "").status, 200);
    up.client.until("doomed", |told| told["status"] == "cancelled");
    node.assert_sound();
}

#[test]
fn a_paused_scope_waits_and_others_do_not() {
    let node = Node::new();
    let up = node.up();
    let pause = |client: &Client, scope: &str, how: &str| {
        client.post(&format!("/api/v1/scopes/{scope}/{how}"), "").status
    };
    let theirs = up.client.with(&node.token(["b", "--as", "owner", "--scope", "project-b"]));
    assert_eq!((pause(&theirs, "project-a", "pause"), pause(&theirs, "project-b", "pause")), (404, 200));
    assert_eq!(pause(&up.client, "not-a-scope", "pause"), 404);
    start(&theirs, &dag("theirs", "true"));
    start(&up.client, &dag("ours", "true"));
    until_completed(&up.client, "ours");
    let held = theirs.get("/api/v1/dag/theirs/status").json();
    assert_eq!((&held["status"], &held["paused"]), (&json!("queued"), &json!(true)));
    assert_eq!(pause(&up.client, "project-b", "unpause"), 200);
    until_completed(&theirs, "theirs");
    // Whoever looked before is told, and whoever looks again: nothing about the run itself has changed.
    start(&theirs, &external("waits"));
    let paused = |is: bool| theirs.until("waits", move |told| told["paused"] == is);
    let version = paused(false)["version"].clone();
    let path = format!("/api/v1/dag/waits/status?wait=60s&after={version}");
    std::thread::scope(|scope| {
        let told = scope.spawn(|| theirs.get(&path).json());
        assert_eq!(pause(&up.client, "project-b", "pause"), 200);
        assert_eq!(theirs.get("/api/v1/dag/waits/status").json()["paused"], true);
        assert_eq!(told.join().unwrap()["paused"], true);
    });
    assert_eq!(pause(&up.client, "project-b", "unpause"), 200);
    assert_eq!(theirs.get("/api/v1/dag/waits/status").json()["paused"], false);
}

#[test]
fn a_draining_node_ends_what_runs_and_starts_nothing() {
    let node = Node::new();
    let (begun, gate) = (node.fifo("begun"), node.fifo("gate"));
    let command =
        format!("echo x > {}; read -r _ < {}", node.path("begun").display(), node.path("gate").display());
    node.cis(["node", "drain"]).code(1).tells("no node runs on this data directory");
    let up = node.up();
    start(&up.client, &dag("running", &command));
    begun.line();
    assert_eq!(up.client.get("/ready").status, 200);
    assert_eq!(up.client.post("/api/v1/node/drain", "").json()["changed"], true);
    assert_eq!(up.client.post("/api/v1/node/drain", "").json()["changed"], false);
    let ready = up.client.get("/ready");
    assert_eq!((ready.status, &ready.json()["error"]["message"]), (503, &json!("draining")));
    assert_eq!(up.client.get("/health").status, 200);
    start(&up.client, &dag("later", "true"));
    gate.let_through(1);
    until_completed(&up.client, "running");
    assert_eq!(up.client.get("/api/v1/dag/later/status").json()["status"], "queued");
    node.ok(["node", "undrain"]).says("starts tasks again");
    until_completed(&up.client, "later");
    assert_eq!(up.client.get("/ready").status, 200);
    let theirs = up.client.with(&node.token(["b", "--as", "owner", "--scope", "project-b"]));
    assert_eq!(theirs.post("/api/v1/node/drain", "").status, 403);
}

#[test]
fn events_are_filtered_by_every_name_that_is_told_and_by_no_other() {
    let node = Node::new();
    let up = node.up();
    start(&up.client, &dag("d", "true"));
    until_completed(&up.client, "d");
    let mut told = Vec::new();
    up.client.follow(None, |id, event| {
        told.push((id, event["type"].as_str().unwrap().to_owned()));
        event["type"] == "cis.run.completed"
    });
    let names = ["dag.published", "dag.confirmed", "run.created", "task.claimed", "run.started"];
    let names: Vec<String> =
        names.iter().chain(&["task.completed", "run.completed"]).map(|n| format!("cis.{n}")).collect();
    assert_eq!(told.iter().map(|(_, name)| name).collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
    for (position, name) in &told {
        for wanted in [name.as_str(), name.strip_prefix("cis.").unwrap()] {
            up.client.follow_some(&format!("?type={wanted}"), None, |id, event| {
                assert_eq!((id, &event["type"]), (*position, &json!(name)), "{wanted}");
                assert_eq!(format!("cis.{}", event["data"]["type"].as_str().unwrap()), *name);
                true
            });
        }
    }
    let unknown = up.client.get("/api/v1/events?type=cis.run.complete");
    assert_eq!((unknown.status, unknown.code().as_str()), (422, "ValidationFailed"));
    assert_eq!(unknown.json()["error"]["hint"], "did you mean `run.completed`?");
}
