//! Runs over HTTP: again, resumed, retried, followed, explained, and long lists of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::Node;
use support::http::{Answer, Client};

fn publish(client: &Client, definition: &Value) -> Answer {
    client.post("/api/v1/dag/publish", &definition.to_string())
}

/// Publishes and confirms; answers the id of the run that starts.
fn go(client: &Client, definition: &Value) -> String {
    assert_eq!(publish(client, definition).status, 201);
    let id = definition["dag_id"].as_str().unwrap();
    run_id(&client.post(&format!("/api/v1/dag/{id}/confirm"), ""))
}

fn run_id(answer: &Answer) -> String {
    answer.json()["run_id"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

/// Waits for a run's end as a client does, by following what it prints; answers how its tasks ended.
fn ended(client: &Client, run: &str) -> String {
    client.lines(&format!("/api/v1/runs/{run}/logs?follow=true"), |_| false);
    let told = client.get(&format!("/api/v1/runs/{run}")).json();
    let tasks = told["tasks"].as_array().unwrap().iter();
    tasks
        .map(|task| format!("{}={}", task["task_id"], task["status"]).replace('"', ""))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Asks to be told how a DAG stands, until `found` finds what it looks for.
fn until<T>(client: &Client, dag: &str, mut found: impl FnMut(&Value) -> Option<T>) -> T {
    let mut version = json!(0);
    loop {
        let told = client.get(&format!("/api/v1/dag/{dag}/status?wait=60s&after={version}")).json();
        if let Some(found) = found(&told) {
            return found;
        }
        version = told["version"].clone();
    }
}

/// What a task of a run printed, as texts.
fn printed(client: &Client, run: &str, query: &str) -> Vec<String> {
    let mut texts = Vec::new();
    client.lines(&format!("/api/v1/runs/{run}/logs?{query}"), |line| {
        texts.push(line["text"].as_str().unwrap().to_owned());
        false
    });
    texts
}

fn runs(client: &Client, dag: &str) -> usize {
    client.get(&format!("/api/v1/dag/{dag}/runs")).json()["runs"].as_array().unwrap().len()
}

#[test]
fn an_agent_runs_again_what_was_confirmed() {
    let node = Node::new();
    let up = node.up();
    let agent = up.client.with(&node.token(["did:cis:agent:a"]));
    let task = json!({"id": "t", "command": "pwd; echo $WHO", "env": {"WHO": "{{ params.who }}"}});
    let dag = json!({"dag_id": "d", "params": {"who": "nobody", "count": 1}, "tasks": [task]});
    assert_eq!(publish(&agent, &dag).status, 201);
    let again = |body: &Value| agent.post("/api/v1/dag/d/runs", &body.to_string());
    assert_eq!(
        (again(&json!({})).status, again(&json!({})).code()),
        (409, "AwaitingConfirmation".to_owned())
    );
    let first = run_id(&up.client.post("/api/v1/dag/d/confirm", ""));
    assert_eq!(ended(&agent, &first), "t=completed");
    let second = again(&json!({"params": {"who": "me"}, "max_parallel": 1}));
    assert_eq!((second.status, &second.json()["run"]), (201, &json!("d#2")));
    let second = run_id(&second);
    assert_eq!(ended(&agent, &second), "t=completed");
    // In a directory of its own, like the first.
    let output = printed(&agent, &second, "");
    assert!(output[0].ends_with(&second), "{output:?}");
    assert_eq!(output[1], "me");
    let listed = agent.get("/api/v1/dag/d/runs").json()["runs"].clone();
    assert_eq!((&listed[0]["run_id"], &listed[0]["created_by"]), (&json!(second), &json!("did:cis:agent:a")));
    assert_eq!((&listed[0]["params"]["who"], &listed[0]["params"]["count"]), (&json!("me"), &json!(1)));
    // What does not fit is told with its place, and starts nothing.
    let wrong = again(&json!({"params": {"whoo": "x", "who": 1, "count": [1e300]}}));
    assert_eq!((wrong.status, wrong.code()), (422, "ValidationFailed".to_owned()));
    assert_eq!(wrong.json()["error"]["details"].as_array().unwrap().len(), 3);
    for body in [json!([]), json!({"parms": {}}), json!({"max_parallel": 0}), json!({"params": [1]})] {
        assert_eq!(again(&body).status, 422, "{body}");
    }
    assert_eq!(again(&json!({"content_hash": "0".repeat(64)})).status, 404);
    assert_eq!(runs(&agent, "d"), 2);
    assert_eq!(std::fs::read_dir(node.data.join("work")).unwrap().count(), 2);
    node.assert_sound();
}

#[test]
fn a_run_with_a_key_is_started_once() {
    let node = Node::new();
    let up = node.up();
    let dag = json!({"dag_id": "d", "params": {"n": 1}, "tasks": [{"id": "t", "command": "true"}]});
    ended(&up.client, &go(&up.client, &dag));
    let start = || {
        let body = json!({"params": {"n": 2}}).to_string();
        up.client.call("POST", "/api/v1/dag/d/runs", &[("Idempotency-Key", "once")], &body)
    };
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..32).map(|_| scope.spawn(start)).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    let bodies: BTreeSet<&str> = answers.iter().map(|answer| answer.body.as_str()).collect();
    assert!(answers.iter().all(|answer| answer.status == 201) && bodies.len() == 1, "{answers:?}");
    let first_told = answers.iter().filter(|answer| answer.header("idempotent-replayed").is_none()).count();
    assert_eq!(first_told, 1);
    ended(&up.client, &run_id(&answers[0]));
    // A revision that no longer declares the parameter changes nothing about what was answered.
    let mut second = json!({"dag_id": "d", "revision": true, "tasks": [{"id": "t", "command": "echo two"}]});
    let hash = publish(&up.client, &second).json()["content_hash"].clone();
    second = json!({"content_hash": hash});
    ended(&up.client, &run_id(&up.client.post("/api/v1/dag/d/confirm", &second.to_string())));
    assert_eq!(start().body, answers[0].body);
    assert_eq!(runs(&up.client, "d"), 3);
    assert_eq!(std::fs::read_dir(node.data.join("work")).unwrap().count(), 3);
    let other = up.client.call("POST", "/api/v1/dag/d/runs", &[("Idempotency-Key", "once")], "");
    assert_eq!((other.status, other.code()), (409, "DuplicateIdempotencyKey".to_owned()));
    node.assert_sound();
}

#[test]
fn what_failed_is_resumed_or_retried() {
    let node = Node::new();
    let (up, fixed) = (node.up(), node.path("fixed"));
    let agent = up.client.with(&node.token(["a"]));
    let tasks = json!([
        {"id": "a", "command": "echo from=$CIS_RUN_NUMBER > $CIS_OUTPUT"},
        {"id": "b", "deps": ["a"], "command": format!("[ -e {} ]", fixed.display())},
        {"id": "c", "deps": ["a", "b"], "command": "echo $FROM", "env": {"FROM": "{{ tasks.a.outputs.from }}"}},
    ]);
    let first = go(&up.client, &json!({"dag_id": "d", "tasks": tasks}));
    assert_eq!(ended(&agent, &first), "a=completed b=failed c=skipped");
    std::fs::write(&fixed, "").unwrap();
    let resume = |run: &str| {
        let path = format!("/api/v1/runs/{run}/resume");
        agent.call("POST", &path, &[("Idempotency-Key", run)], "")
    };
    let answers = [resume(&first), resume(&first)];
    assert_eq!((answers[0].status, &answers[0].body), (201, &answers[1].body));
    let second = run_id(&answers[0]);
    assert_eq!(ended(&agent, &second), "a=completed b=completed c=completed");
    assert_eq!(printed(&agent, &second, "task=c"), ["1"], "the outputs of the run it carries on");
    let nothing_left = resume(&second);
    assert_eq!((nothing_left.status, nothing_left.code()), (409, "InvalidTransition".to_owned()));
    let retry = |body: Value| agent.post(&format!("/api/v1/runs/{second}/retry"), &body.to_string());
    let third = run_id(&retry(json!({"task": "a"})));
    assert_eq!(ended(&agent, &third), "a=completed b=completed c=completed");
    assert_eq!(printed(&agent, &third, "task=c"), ["3"]);
    let unknown = retry(json!({"task": "aa"}));
    assert_eq!((unknown.status, unknown.code()), (404, "NotFound".to_owned()));
    assert_eq!(retry(json!({})).status, 422);
    assert_eq!(runs(&agent, "d"), 3);
    node.assert_sound();
}

#[test]
fn approvals_are_carried_over_only_for_callers_that_could_have_given_them() {
    let node = Node::new();
    let up = node.up();
    let agent = up.client.with(&node.token(["a"]));
    let tasks = json!([{"id": "ask", "type": "approval"}, {"id": "ship", "command": "exit 3", "deps": ["ask"]},
        {"id": "tell", "command": "true", "deps": ["ask"]},
        {"id": "sign", "command": "true", "level": {"type": "confirmed"}}, {"id": "alone", "command": "true"}]);
    let first = go(&up.client, &json!({"dag_id": "d", "tasks": tasks}));
    for task in ["ask", "sign"] {
        up.client.until("d", |told| {
            told["tasks"]
                .as_array()
                .unwrap()
                .iter()
                .any(|row| row["task_id"] == task && row["status"] == "waiting")
        });
        assert_eq!(up.client.post(&format!("/api/v1/runs/{first}/tasks/{task}/approve"), "").status, 200);
    }
    assert_eq!(
        ended(&agent, &first),
        "ask=completed ship=failed tell=completed sign=completed alone=completed"
    );
    // The agent could not have approved it: it is asked for again, and what depends on it waits.
    for (call, body) in [("retry", r#"{"task": "ship"}"#), ("retry", r#"{"task": "alone"}"#), ("resume", "")]
    {
        let run = run_id(&agent.post(&format!("/api/v1/runs/{first}/{call}"), body));
        let waits = |told: &Value| {
            told["tasks"].as_array().unwrap().iter().filter(|t| t["status"] == "waiting").count()
        };
        let told = up.client.until("d", |told| waits(told) == 2);
        let of = |id: &str| {
            told["tasks"].as_array().unwrap().iter().find(|t| t["task_id"] == id).unwrap()["status"].clone()
        };
        assert_eq!(
            (of("ask"), of("ship"), of("tell"), of("sign")),
            (json!("waiting"), json!("pending"), json!("pending"), json!("waiting")),
            "{call} {body}"
        );
        assert_eq!(up.client.post(&format!("/api/v1/runs/{run}/cancel"), "").status, 200);
        ended(&agent, &run);
    }
    // The owner could: its word from before stands.
    let run = run_id(&up.client.post(&format!("/api/v1/runs/{first}/resume"), ""));
    assert_eq!(
        ended(&agent, &run),
        "ask=completed ship=failed tell=completed sign=completed alone=completed"
    );
    node.assert_sound();
}

#[test]
fn a_run_that_goes_on_is_cancelled_once_and_then_resumed() {
    let node = Node::new();
    let (up, started, gate) = (node.up(), node.fifo("started"), node.fifo("gate"));
    let [started_path, gate_path] = ["started", "gate"].map(|name| node.path(name).display().to_string());
    let command = format!("echo up > {started_path}; read -r _ < {gate_path}");
    let run = go(&up.client, &json!({"dag_id": "d", "tasks": [{"id": "t", "command": command}]}));
    started.line();
    let resume = |run: &str| up.client.post(&format!("/api/v1/runs/{run}/resume"), "");
    assert_eq!((resume(&run).status, resume(&run).code()), (409, "InvalidTransition".to_owned()));
    let path = format!("/api/v1/runs/{run}/cancel");
    let cancel = || up.client.call("POST", &path, &[("Idempotency-Key", "stop")], "");
    let first = cancel();
    assert_eq!((first.status, &first.json()["status"]), (200, &json!("cancelling")));
    assert_eq!(ended(&up.client, &run), "t=cancelled");
    // It is over by now, and the same request is answered the same.
    let again = cancel();
    assert_eq!((&again.body, again.header("idempotent-replayed")), (&first.body, Some("true")));
    let next = run_id(&resume(&run));
    started.line();
    gate.let_through(1);
    assert_eq!(ended(&up.client, &next), "t=completed");
    node.assert_sound();
}

#[test]
fn output_is_followed_while_it_is_printed() {
    let node = Node::new();
    let (up, gate) = (node.up(), node.fifo("gate"));
    let gate_path = node.path("gate").display().to_string();
    let talks = format!("echo one; read -r _ < {gate_path}; echo two; read -r _ < {gate_path}; printf three");
    let tasks =
        json!([{"id": "talks", "command": talks}, {"id": "late", "deps": ["talks"], "command": "echo late"}]);
    let run = go(&up.client, &json!({"dag_id": "d", "tasks": tasks}));
    let mut heard = Vec::new();
    up.client.lines(&format!("/api/v1/runs/{run}/logs?follow=true"), |line| {
        assert!(line["at"].is_string() || line["text"] == "three", "{line}");
        heard.push(format!("{} {} {} {}", line["task_id"], line["attempt"], line["stream"], line["text"]));
        // Only once this was heard does it go on.
        if ["one", "two"].iter().any(|said| line["text"] == *said) {
            gate.let_through(1);
        }
        false
    });
    let line = |task: &str, text: &str| format!("\"{task}\" 1 \"stdout\" \"{text}\"");
    assert_eq!(
        heard,
        [line("talks", "one"), line("talks", "two"), line("talks", "three"), line("late", "late")]
    );
    node.assert_sound();
}

#[test]
fn output_is_chosen_by_task_attempt_stream_and_end() {
    let node = Node::new();
    let up = node.up();
    let tasks = json!([
        {"id": "many", "command": "seq 30000; echo oops >&2"},
        {"id": "flaky", "command": "echo try $CIS_ATTEMPT; [ $CIS_ATTEMPT = 2 ]",
         "retry": {"max": 1, "initial": "1ms", "jitter": false}},
        {"id": "silent", "command": "true"},
    ]);
    let run = go(&up.client, &json!({"dag_id": "d", "tasks": tasks}));
    ended(&up.client, &run);
    let printed = |query: &str| printed(&up.client, &run, query);
    let all: Vec<String> = (1..=30_000).map(|n| n.to_string()).collect();
    assert_eq!(printed("task=many&stream=stdout"), all);
    assert_eq!(printed("task=many&stream=stderr&follow=true"), ["oops"]);
    assert_eq!(printed("task=many&stream=stdout&tail=2"), ["29999", "30000"]);
    assert_eq!(printed("tail=1&stream=stdout"), ["30000", "try 2"]);
    assert_eq!(printed("task=flaky"), ["try 2"]);
    assert_eq!(printed("task=flaky&attempt=1"), ["try 1"]);
    assert_eq!(printed("task=flaky&attempt=9").len() + printed("task=silent").len(), 0);
    let get = |query: &str| up.client.get(&format!("/api/v1/runs/{run}/logs?{query}")).status;
    assert_eq!(
        (get("task=manny"), get("stream=x"), get("tail=-1"), get("follow=maybe")),
        (404, 422, 422, 422)
    );
    node.assert_sound();
}

#[test]
fn whoever_follows_output_keeps_nobody_from_leaving() {
    let node = Node::new();
    let (up, _gate) = (node.up(), node.fifo("gate"));
    let command = format!("echo here; read -r _ < {}", node.path("gate").display());
    let run = go(&up.client, &json!({"dag_id": "d", "tasks": [{"id": "t", "command": command}]}));
    let client = up.client.clone();
    let running = up.running;
    client.lines(&format!("/api/v1/runs/{run}/logs?task=t&follow=true"), |line| {
        assert_eq!(line["text"], "here");
        running.signal(Signal::TERM);
        false
    });
    running.wait().code(0);
    // The next node goes on with it.
    let again = node.up();
    assert_eq!(again.client.get(&format!("/api/v1/runs/{run}")).json()["status"], "running");
}

/// What `why` says of each task.
fn reasons(told: &Value) -> Vec<String> {
    let tasks = told["tasks"].as_array().unwrap_or_else(|| panic!("{told}")).iter();
    tasks
        .map(|task| format!("{} {}", task["task_id"].as_str().unwrap(), task["reason"].as_str().unwrap()))
        .collect()
}

#[test]
fn why_names_the_chain_that_holds_each_task() {
    let node = Node::new();
    let (up, gate) = (node.up(), node.fifo("gate"));
    let wait = format!("read -r _ < {}", node.path("gate").display());
    let tasks = json!([
        {"id": "deploy", "deps": ["test"], "command": "true"},
        {"id": "test", "deps": ["build"], "command": "true"},
        {"id": "build", "command": wait, "priority": 9},
        {"id": "flaky", "command": "exit 3", "priority": 8, "retry": {"max": 1, "initial": "1h", "cap": "1h"}},
        {"id": "late", "command": "true"},
    ]);
    let dag = json!({"dag_id": "d", "max_parallel": 1, "tasks": tasks});
    assert_eq!(publish(&up.client, &dag).status, 201);
    let waiting = up.client.get("/api/v1/dag/d/why").json();
    assert_eq!(
        (&waiting["status"], &waiting["awaits_confirmation"]["revision"]),
        (&json!("pending"), &json!(1))
    );
    let run = run_id(&up.client.post("/api/v1/dag/d/confirm", ""));
    until(&up.client, "d", |status| status["tasks"][2]["started_at"].is_string().then_some(()));
    let told = up.client.get("/api/v1/dag/d/why").json();
    assert_eq!(
        reasons(&told),
        ["build running", "flaky limit", "late limit", "test dependency", "deploy dependency"]
    );
    assert_eq!((&told["unfinished"], &told["tasks"][0]["holds"]), (&json!(5), &json!(2)));
    assert_eq!(told["tasks"][1]["running"], json!(["build"]));
    let chain = told["tasks"][4]["chain"].as_array().unwrap();
    let links: Vec<&Value> = chain.iter().map(|link| &link["task_id"]).collect();
    assert_eq!((links, &chain[1]["reason"]), (vec![&json!("test"), &json!("build")], &json!("running")));
    let bounded = up.client.get(&format!("/api/v1/runs/{run}/why?limit=1")).json();
    assert_eq!((reasons(&bounded), &bounded["more"]), (vec!["build running".to_owned()], &json!(4)));
    // The command line says the same.
    node.ok(["why", "d"])
        .says("waits for `test` ← `build`: running for")
        .says("`max_parallel` is 1, running: `build`");
    assert_eq!(reasons(&node.json(["dag", "why", "d#1"])), reasons(&told));
    // What is left after a while is what waits for its next try.
    gate.let_through(1);
    let left = until(&up.client, "d", |_| {
        let told = up.client.get(&format!("/api/v1/runs/{run}/why")).json();
        (told["unfinished"] == 1).then_some(told)
    });
    assert_eq!(
        (reasons(&left), &left["tasks"][0]["cause"]),
        (vec!["flaky backoff".to_owned()], &json!("exit 3"))
    );
    assert_eq!(up.client.post(&format!("/api/v1/runs/{run}/cancel"), "").status, 200);
    ended(&up.client, &run);
    assert_eq!(up.client.get("/api/v1/dag/d/why").json()["unfinished"], 0);
    node.ok(["why", "d"]).says("nothing is unfinished");
    node.assert_sound();
}

/// Every line of a list, page by page; `between` happens after each page.
fn pages(client: &Client, path: &str, name: &str, mut between: impl FnMut(usize)) -> Vec<Value> {
    let (mut lines, mut cursor, mut page) = (Vec::new(), String::new(), 0);
    loop {
        let told = client.get(&format!("{path}{cursor}")).json();
        lines.extend(told[name].as_array().unwrap_or_else(|| panic!("{told}")).iter().cloned());
        between(page);
        page += 1;
        match told["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return lines,
        }
    }
}

#[test]
fn pages_neither_miss_nor_repeat_what_changes_meanwhile() {
    let node = Node::new();
    let up = node.up();
    let agent = up.client.with(&node.token(["did:cis:agent:a"]));
    let dag = |n: usize| json!({"dag_id": format!("d{n}"), "tasks": [{"id": "t", "command": "true"}]});
    for n in 0..20 {
        assert_eq!(publish(if n % 2 == 0 { &agent } else { &up.client }, &dag(n)).status, 201);
    }
    let name = |line: &Value| line["dag_id"].as_str().unwrap().to_owned();
    let names =
        |numbers: &mut dyn Iterator<Item = usize>| numbers.map(|n| format!("d{n}")).collect::<Vec<_>>();
    let mut more = 20..;
    // One that was told and one that was not are touched, and another is added, after each page.
    let seen = pages(&up.client, "/api/v1/dag?limit=6", "dags", |page| {
        assert_eq!(publish(&up.client, &dag(more.next().unwrap())).status, 201);
        for n in [19 - page, page] {
            up.client.post(&format!("/api/v1/dag/d{n}/confirm"), "");
        }
    });
    assert_eq!(seen.iter().map(name).collect::<Vec<_>>(), names(&mut (0..20).rev()));
    let mut more = 100..;
    let before = up.client.get("/api/v1/pending?limit=1000").json()["pending"].as_array().unwrap().len();
    let seen = pages(&up.client, "/api/v1/pending?limit=6", "pending", |page| {
        if page < 2 {
            assert_eq!(publish(&up.client, &dag(more.next().unwrap())).status, 201);
        }
    });
    let distinct: BTreeSet<String> = seen.iter().map(name).collect();
    assert_eq!((seen.len(), distinct.len()), (before + 2, before + 2));
    // Filters.
    let owned = pages(&up.client, "/api/v1/dag?limit=3&owner=did:cis:agent:a", "dags", |_| {});
    assert_eq!(owned.iter().map(name).collect::<Vec<_>>(), names(&mut (0..20).rev().filter(|n| n % 2 == 0)));
    let found = pages(&up.client, "/api/v1/dag?limit=3&q=D10", "dags", |_| {});
    assert_eq!(found.iter().map(name).collect::<Vec<_>>(), ["d101", "d100", "d10"]);
    assert!(up.client.get("/api/v1/dag?status=pending").json()["dags"].as_array().unwrap().len() > 5);
    let get = |query: &str| up.client.get(&format!("/api/v1/dag?{query}")).status;
    let cursor = up.client.get("/api/v1/dag?limit=1").json()["next_cursor"].as_str().unwrap().to_owned();
    assert_eq!(get(&format!("limit=9&cursor={cursor}")), 200);
    let other_filter = format!("q=d1&cursor={cursor}");
    for query in
        [other_filter.as_str(), "cursor=", "cursor=1", "cursor=ff-00000000", "status=nope", "limit=-1"]
    {
        assert_eq!(get(query), 422, "{query}");
    }
    assert_eq!(up.client.get(&format!("/api/v1/pending?cursor={cursor}")).status, 422);
}

#[test]
fn tasks_and_runs_come_in_pages() {
    let node = Node::new();
    let up = node.up();
    let tasks: Vec<Value> = (0..25)
        .map(|n| json!({"id": format!("t{n}"), "command": if n % 5 == 0 { "false" } else { "true" }}))
        .collect();
    let run = go(&up.client, &json!({"dag_id": "d", "tasks": tasks}));
    ended(&up.client, &run);
    let ids = |lines: Vec<Value>, key: &str| lines.iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    let path = format!("/api/v1/runs/{run}/tasks?limit=7");
    let all: Vec<Value> = (0..25).map(|n| json!(format!("t{n}"))).collect();
    assert_eq!(ids(pages(&up.client, &path, "tasks", |_| {}), "task_id"), all);
    let failed = pages(&up.client, &format!("{path}&status=failed"), "tasks", |_| {});
    assert_eq!(ids(failed, "task_id"), ["t0", "t5", "t10", "t15", "t20"]);
    assert_eq!(up.client.get(&format!("{path}&status=odd")).status, 422);
    for _ in 0..4 {
        let next = up.client.post("/api/v1/dag/d/runs", "");
        ended(&up.client, &run_id(&next));
    }
    let numbers = ids(pages(&up.client, "/api/v1/dag/d/runs?limit=2", "runs", |_| {}), "number");
    assert_eq!(numbers, [5, 4, 3, 2, 1]);
}

#[test]
fn a_person_sees_what_they_confirm() {
    let node = Node::new();
    let up = node.up();
    let dag = json!({"dag_id": "d", "tasks": [{"id": "t", "type": "shell", "command": "echo \"hé\"", "timeout": "10s"}]});
    let hash = publish(&up.client, &dag).json()["content_hash"].clone();
    let shown = up.client.get("/api/v1/dag/d").json();
    assert_eq!((&shown["status"], &shown["content_hash"]), (&json!("pending"), &hash));
    assert_eq!(shown["definition"]["tasks"][0]["command"], "echo \"hé\"");
    // The hash is the hash of what is shown.
    let digest = cis_engine::token::sha256_hex(shown["definition"].to_string().as_bytes());
    assert_eq!(hash, digest);
    let second = json!({"dag_id": "d", "revision": true, "tasks": [{"id": "t", "command": "echo two"}]});
    assert_eq!(publish(&up.client, &second).status, 201);
    let latest = up.client.get("/api/v1/dag/d").json();
    assert_eq!((&latest["revision"], latest["revisions"].as_array().unwrap().len()), (&json!(2), 2));
    let first = up.client.get(&format!("/api/v1/dag/d?content_hash={}", hash.as_str().unwrap())).json();
    assert_eq!((&first["revision"], &first["definition"]), (&json!(1), &shown["definition"]));
    assert_eq!(up.client.get("/api/v1/dag/d?content_hash=0").status, 404);
}
