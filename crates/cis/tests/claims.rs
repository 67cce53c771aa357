//! Tasks that others work on, over plain HTTP: each claimed once, by whoever can, and nobody else's word counts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::Node;
use support::http::{Client, field};

#[test]
fn an_agent_anywhere_does_its_part() {
    let node = Node::new();
    let up = node.up();
    let owner = &up.client;
    let worker = owner.with(&node.token(["did:cis:worker:w", "--as", "worker"]));
    let dag = json!({"dag_id": "review", "params": {"repo": "cis"}, "tasks": [
        {"id": "find", "command": "echo path=src/main.rs > \"$CIS_OUTPUT\""},
        {"id": "read", "type": "external", "needs": ["llm"], "depends_on": ["find"],
         "input": {"repo": "{{ params.repo }}", "file": "{{ tasks.find.outputs.path }}"}},
        {"id": "say", "command": "echo \"verdict: $VERDICT\"", "depends_on": ["read"],
         "env": {"VERDICT": "{{ tasks.read.outputs.verdict }}"}},
    ]});
    owner.run(&dag.to_string());
    let asks = |capabilities: Value| json!({"capabilities": capabilities, "worker": "w-1", "wait_secs": 30});
    let tasks = worker.claim(&asks(json!(["llm"])));
    let task = &tasks[0];
    assert_eq!(
        (&task["task_id"], &task["run"], &task["attempt"]),
        (&json!("read"), &json!("review#1"), &json!(1))
    );
    assert_eq!(task["input"], json!({"repo": "cis", "file": "src/main.rs"}));
    assert_eq!(worker.say(task, "heartbeat", json!({})).json()["cancel"], false);
    assert_eq!(worker.say(task, "progress", json!({"percent": 50, "note": "half"})).status, 200);
    for _ in 0..2 {
        let told = worker.say(task, "log", json!({"offset": 0, "text": "reading\n"}));
        assert_eq!(told.json()["offset"], 8);
    }
    // Nobody else speaks for it, and nothing but a role lets anybody speak.
    let other = owner.with(&node.token(["did:cis:worker:x", "--as", "worker"]));
    assert_eq!(other.say(task, "complete", json!({})).code(), "AlreadyClaimed");
    let reader = owner.with(&node.token(["did:cis:reader:r", "--as", "reader"]));
    assert_eq!(reader.say(task, "complete", json!({})).status, 403);
    let done = worker.say(task, "complete", json!({"outputs": {"verdict": "fine"}}));
    assert_eq!((done.status, done.json()["status"].clone()), (200, json!("completed")));
    let again = worker.say(task, "complete", json!({"outputs": {"verdict": "fine"}}));
    assert_eq!((again.status, again.body), (done.status, done.body));
    assert_eq!(worker.say(task, "heartbeat", json!({})).code(), "LeaseExpired");
    let told = owner.until_over("review");
    assert_eq!(told["status"], "completed");
    assert_eq!(told["tasks"][2]["output"], "verdict: fine\n");
    assert_eq!(node.ok(["logs", "review", "--task", "read"]).out, "reading\n");
    node.assert_sound();
}

#[test]
fn followers_hear_who_claimed_and_who_asked() {
    let node = Node::new();
    let up = node.up();
    let owner = &up.client;
    let worker = owner.with(&node.token(["did:cis:worker:w", "--as", "worker"]));
    let keeper = owner.with(&node.token(["keeper", "--as", "owner"]));
    let started = owner.run(&field("d", 1, &json!({})));
    let run = started["run_id"].as_str().unwrap();
    let task = worker.claim(&json!({"worker": "w-1", "wait_secs": 30})).remove(0);
    assert_eq!(worker.say(&task, "release", json!({})).status, 200);
    for what in ["pause", "unpause", "cancel"] {
        assert_eq!(keeper.post(&format!("/api/v1/runs/{run}/{what}"), "").status, 200, "{what}");
    }
    let mut heard = Vec::new();
    owner.follow(None, |_, event| {
        let data = &event["data"];
        heard.push(json!([data["type"], data["actor"], data["holder"], data["fence"]]));
        let kind = data["type"].as_str().unwrap().split('.').next().unwrap();
        assert_eq!(data["subject"], json!({"kind": kind, "key": event["subject"]}));
        event["type"] == "cis.run.cancelled"
    });
    let of = |name: &str, actor: &str| json!([name, actor, null, null]);
    assert!(heard.contains(&json!(["task.claimed", "did:cis:worker:w", "w-1", task["fence"]])), "{heard:?}");
    assert!(heard.contains(&of("task.retrying", "did:cis:worker:w")), "{heard:?}");
    for name in ["run.paused", "run.unpaused", "run.cancelling"] {
        assert!(heard.contains(&of(name, "keeper")), "{name}: {heard:?}");
    }
    assert_eq!(heard.last(), Some(&json!(["run.cancelled", null, null, null])));
}

#[test]
fn a_claim_waits_for_something_to_do() {
    let node = Node::new();
    let up = node.up();
    let owner = &up.client;
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..8)
            .map(|n| {
                let scopes = json!([if n % 2 == 0 { "project-a" } else { "global" }]);
                let body = json!({"wait_secs": 60, "scopes": scopes, "worker": format!("w{n}")});
                scope.spawn(move || owner.claim(&body))
            })
            .collect();
        // One task for four who wait: one gets it, and the others go on waiting.
        let mut one: Value = serde_json::from_str(&field("one", 1, &json!({}))).unwrap();
        owner.run(&one.to_string());
        one["scope"] = json!("project-a");
        owner.run(&field("three", 3, &json!({})));
        one["dag_id"] = json!("a-one");
        owner.run(&one.to_string());
        for n in 2..5 {
            one["dag_id"] = json!(format!("a-{n}"));
            owner.run(&one.to_string());
        }
        let claimed: Vec<Vec<Value>> = waiting.into_iter().map(|one| one.join().unwrap()).collect();
        assert!(claimed.iter().all(|tasks| tasks.len() == 1));
    });
    assert!(owner.claim(&json!({})).is_empty());
    node.assert_sound();
}

#[test]
fn tasks_that_no_claimer_can_do_hold_up_none_that_one_can() {
    let node = Node::new();
    let up = node.up();
    let owner = &up.client;
    // Many queues, with which no claimer can do anything.
    let tasks: Vec<_> = (0..1_000)
        .map(|n| json!({"id": format!("t{n}"), "type": "external", "needs": ["common", format!("need-{n}")]}))
        .collect();
    owner.run(&json!({"dag_id": "queues", "tasks": tasks}).to_string());
    let capabilities: Vec<_> = (0..99).map(|n| format!("can-{n}")).chain(["common".to_owned()]).collect();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..64)
            .map(|n| {
                // Half of them can do the same, each of the others something of its own.
                let mut capabilities = capabilities.clone();
                capabilities[0] = if n % 2 == 0 { "shared".to_owned() } else { format!("own-{n}") };
                let body = json!({"wait_secs": 60, "capabilities": capabilities});
                scope.spawn(move || owner.claim(&body))
            })
            .collect();
        let needs = |n: usize| if n.is_multiple_of(2) { "shared".to_owned() } else { format!("own-{n}") };
        let tasks: Vec<_> = (0..64)
            .map(|n| json!({"id": format!("t{n}"), "type": "external", "needs": ["common", needs(n)]}))
            .collect();
        owner.run(&json!({"dag_id": "doable", "tasks": tasks}).to_string());
        let claimed = waiting.into_iter().flat_map(|one| one.join().unwrap());
        let names: BTreeSet<_> = claimed.map(|task| task["task_id"].to_string()).collect();
        assert_eq!(names.len(), 64, "{names:?}");
    });
    node.assert_sound();
}

#[test]
fn one_task_needs_no_dag() {
    let node = Node::new();
    let up = node.up();
    let agent = up.client.with(&node.token(["did:cis:agent:a"]));
    let body = json!({"input": {"what": "look"}, "needs": ["eyes"], "priority": 5, "submitted_by": "ann"});
    let made = agent.call("POST", "/api/v1/tasks", &[("Idempotency-Key", "one")], &body.to_string());
    assert_eq!(made.status, 201, "{made:?}");
    let again = agent.call("POST", "/api/v1/tasks", &[("Idempotency-Key", "one")], &body.to_string());
    assert_eq!(again.body, made.body);
    // Behind the same gate as any DAG.
    assert!(agent.claim(&json!({"capabilities": ["eyes"]})).is_empty());
    let confirm = made.json()["confirm_url"].as_str().unwrap().to_owned();
    assert_eq!(up.client.post(&confirm, "").status, 200);
    let tasks = agent.claim(&json!({"capabilities": ["eyes"], "wait_secs": 30}));
    assert_eq!(tasks[0]["input"], json!({"what": "look"}));
    let wrong = agent.post("/api/v1/tasks", &json!({"inptu": {}}).to_string());
    assert_eq!((wrong.status, wrong.code()), (422, "ValidationFailed".to_owned()));
    assert!(wrong.body.contains("did you mean `input`?"), "{}", wrong.body);
    node.assert_sound();
}

#[test]
fn bad_words_are_told_what_is_wrong() {
    let node = Node::new();
    let up = node.up();
    let owner = &up.client;
    owner.run(&field("d", 1, &json!({})));
    for body in [
        json!({"limit": 0}),
        json!({"limit": 101}),
        json!({"kinds": ["shell"]}),
        json!({"lease_secs": 0}),
        json!({"lease_secs": 86_401}),
        json!({"claim_id": ""}),
        json!({"capabilities": ["x".repeat(256)]}),
        json!({"capabilities": vec!["x"; 101]}),
        json!({"scopes": vec!["global"; 101]}),
        json!({"wait": 3}),
    ] {
        let answer = owner.post("/api/v1/tasks/claim", &body.to_string());
        assert_eq!((answer.status, answer.code().as_str()), (422, "ValidationFailed"), "{body}");
    }
    let task = owner.claim(&json!({})).remove(0);
    for (what, body) in [
        ("progress", json!({"percent": 101})),
        ("progress", json!({"percent": -0.5})),
        ("log", json!({"offset": -1, "text": ""})),
        ("log", json!({"offset": u64::MAX, "text": "x"})),
        ("complete", json!({"outputs": [1]})),
        ("fail", json!({})),
    ] {
        assert_eq!(owner.say(&task, what, body.clone()).status, 422, "{what} {body}");
    }
    assert_eq!(owner.post("/api/v1/tasks/nine/heartbeat", "{\"fence\": 1}").status, 404);
    assert_eq!(owner.post("/api/v1/tasks/999999/heartbeat", "{\"fence\": 1}").status, 404);
    assert_eq!(owner.say(&task, "complete", json!({})).status, 200);
    node.assert_sound();
}

#[test]
fn claims_outlive_the_node() {
    let node = Node::new();
    let up = node.up();
    let owner = up.client.clone();
    owner.run(&field("d", 2, &json!({})));
    let named = json!({"claim_id": "mine", "limit": 2});
    let tasks = owner.claim(&named);
    assert_eq!(owner.say(&tasks[0], "log", json!({"offset": 0, "text": "before\n"})).status, 200);
    up.running.signal(Signal::KILL);
    up.running.wait();
    let up = node.up();
    let owner = up.client.clone();
    // The same claim again, as after a lost answer.
    let fences = |tasks: &[Value]| tasks.iter().map(|task| task["fence"].clone()).collect::<Vec<_>>();
    assert_eq!(fences(&owner.claim(&named)), fences(&tasks));
    assert_eq!(owner.say(&tasks[0], "log", json!({"offset": 7, "text": "after\n"})).json()["offset"], 13);
    for task in &tasks {
        assert_eq!(owner.say(task, "complete", json!({})).status, 200);
    }
    assert_eq!(owner.until_over("d")["status"], "completed");
    assert_eq!(node.ok(["logs", "d", "--task", "t0"]).out, "before\nafter\n");
    node.assert_sound();
}

#[test]
fn the_output_tail_survives_refused_results_and_restarts() {
    let node = Node::new();
    let up = node.up();
    let (alice, bob) = (node.token(["alice", "--as", "worker"]), node.token(["bob", "--as", "worker"]));
    up.client.run(&field("d", 3, &json!({})));
    let worker = up.client.with(&alice);
    let tasks = worker.claim(&json!({"limit": 3}));
    for task in &tasks[..2] {
        assert_eq!(worker.say(task, "log", json!({"offset": 0, "text": "hello\n"})).status, 200);
    }
    for how in ["complete", "release"] {
        assert_eq!(up.client.with(&bob).say(&tasks[0], how, json!({})).code(), "AlreadyClaimed");
    }
    assert_eq!(worker.say(&tasks[0], "complete", json!({})).status, 200);
    up.running.signal(Signal::KILL);
    up.running.wait();
    let up = node.up();
    let worker = up.client.with(&alice);
    assert_eq!(up.client.with(&bob).say(&tasks[1], "complete", json!({})).code(), "AlreadyClaimed");
    assert_eq!(worker.say(&tasks[1], "complete", json!({})).status, 200);
    // One that has logged nothing.
    assert_eq!(worker.say(&tasks[2], "complete", json!({})).status, 200);
    let told = up.client.until_over("d");
    let kept = |n: usize| (told["tasks"][n]["output"].clone(), told["tasks"][n]["log_bytes"].clone());
    assert_eq!(kept(0), (json!("hello\n"), json!(6)), "{told}");
    assert_eq!(kept(1), (json!("hello\n"), json!(6)), "{told}");
    assert_eq!(told["tasks"][2]["output"], Value::Null, "{told}");
    node.assert_sound();
}

#[test]
fn results_of_other_identities_and_scopes_are_refused_when_late() {
    let node = Node::new();
    let up = node.up();
    let worker = |name: &str| up.client.with(&node.token([name, "--as", "worker"]));
    let (alice, bob) = (worker("alice"), worker("bob"));
    let elsewhere = up.client.with(&node.token(["alice", "--as", "worker", "--scope", "project-a"]));
    up.client.run(&field("d", 3, &json!({})));
    let tasks = alice.claim(&json!({"limit": 3}));
    let results = [("complete", json!({})), ("fail", json!({"error": "no"})), ("release", json!({}))];
    for (task, (how, body)) in tasks.iter().zip(results) {
        let told = alice.say(task, how, body.clone());
        assert_eq!(told.status, 200, "{how}: {told:?}");
        assert_eq!(bob.say(task, how, body.clone()).code(), "LeaseExpired", "{how}");
        assert_eq!(alice.say(task, how, body.clone()).body, told.body, "{how}");
        // What a token may not see is answered like what there is not.
        let unknown = json!({"execution_id": 999_999, "fence": task["fence"]});
        let (hidden, none) = (elsewhere.say(task, how, body.clone()), elsewhere.say(&unknown, how, body));
        assert_eq!((hidden.status, none.status), (404, 404), "{how}");
        let id = task["execution_id"].to_string();
        assert_eq!(hidden.body.replace(&format!("no task {id}"), "no task 999999"), none.body, "{how}");
    }
    node.assert_sound();
}

#[test]
fn a_log_offset_over_the_maximum_changes_nothing() {
    let node = Node::new();
    let up = node.up();
    up.client.run(&field("d", 1, &json!({})));
    let task = up.client.claim(&json!({})).remove(0);
    let max = (1_u64 << 53) - 1;
    for (stream, offset) in [("stdout", i64::MAX as u64), ("stderr", i64::MAX as u64), ("stdout", max - 1)] {
        let refused = up.client.say(&task, "log", json!({"stream": stream, "offset": offset, "text": "xyz"}));
        assert_eq!((refused.status, refused.code()), (422, "ValidationFailed".to_owned()), "{offset}");
        assert!(refused.body.contains(&max.to_string()), "{refused:?}");
    }
    // As far as it goes.
    for stream in ["stdout", "stderr"] {
        let told = up.client.say(&task, "log", json!({"stream": stream, "offset": max - 3, "text": "xyz"}));
        assert_eq!((told.status, told.json()["offset"].clone()), (200, json!(max)));
    }
    assert_eq!(up.client.say(&task, "complete", json!({})).status, 200);
    assert_eq!(up.client.until_over("d")["tasks"][0]["log_bytes"], json!(2 * max));
    node.assert_sound();
}

#[test]
fn a_scoped_token_gets_no_claim_of_its_identity_from_another_scope() {
    let node = Node::new();
    let up = node.up();
    let mut secret: Value = serde_json::from_str(&field("d", 1, &json!({}))).unwrap();
    secret["scope"] = json!("project-b");
    up.client.run(&secret.to_string());
    let (whole, some) = (
        node.token(["bot", "--as", "worker"]),
        node.token(["bot", "--as", "worker", "--scope", "project-a"]),
    );
    let named = json!({"claim_id": "c1"});
    let tasks = up.client.with(&whole).claim(&named);
    assert_eq!(tasks.len(), 1);
    assert!(up.client.with(&some).claim(&named).is_empty());
    assert_eq!(up.client.with(&whole).claim(&named)[0]["fence"], tasks[0]["fence"]);
}

#[test]
fn a_claim_whose_claimer_is_gone_runs_out_like_any_other() {
    let node = Node::new();
    let up = node.up();
    for round in 0..8 {
        let id = format!("d{round}");
        up.client.run(&field(&id, 1, &json!({})));
        // It asks and goes away: what it claimed, if it did, nobody will ever say anything of.
        drop(up.client.ask("POST", "/api/v1/tasks/claim", r#"{"lease_secs": 1}"#));
        let task = up.client.claim(&json!({"wait_secs": 60})).remove(0);
        assert_eq!(up.client.say(&task, "complete", json!({})).status, 200);
    }
    node.assert_sound();
}

#[test]
fn whoever_waits_with_a_token_that_is_taken_back_is_told() {
    let node = Node::new();
    let up = node.up();
    up.client.run(&field("d", 1, &json!({"needs": ["nobody"]})));
    let version = up.client.get("/api/v1/dag/d/status").json()["version"].clone();
    let worker = up.client.with(&node.token(["w", "--as", "worker"]));
    std::thread::scope(|scope| {
        let claims = scope.spawn(|| worker.post("/api/v1/tasks/claim", r#"{"wait_secs": 60}"#).status);
        let polls =
            scope.spawn(|| worker.get(&format!("/api/v1/dag/d/status?wait=60s&after={version}")).status);
        let listed = node.json(["token", "list"]);
        let line =
            listed["tokens"].as_array().unwrap().iter().find(|token| token["identity"] == "w").unwrap();
        node.ok(["token", "revoke", line["token_id"].as_str().unwrap()]);
        assert_eq!((claims.join().unwrap(), polls.join().unwrap()), (401, 401));
    });
}

/// What a client saw of one task: between which ticks, and what.
#[derive(Debug, Clone, Copy)]
struct Op {
    from: u64,
    to: u64,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Claimed(i64),
    Released(i64),
    Completed(i64),
    /// Whoever spoke with this fence was told that its claim is over.
    Refused(i64),
}

/// A task, as the rules have it.
#[derive(Debug, Clone, Copy, Default)]
struct Rules {
    last: i64,
    held: bool,
    done: bool,
}

impl Rules {
    fn after(self, what: What) -> Option<Self> {
        let holds = |fence| self.held && self.last == fence;
        match what {
            What::Claimed(fence) => (!self.held && !self.done && fence > self.last).then_some(Self {
                last: fence,
                held: true,
                done: false,
            }),
            What::Released(fence) if holds(fence) => Some(Self { held: false, ..self }),
            // Told again, with nothing in between.
            What::Released(fence) => (self.last == fence && !self.done).then_some(self),
            What::Completed(fence) if holds(fence) => Some(Self { held: false, done: true, ..self }),
            What::Completed(fence) => (self.last == fence && self.done).then_some(self),
            What::Refused(fence) => (!holds(fence)).then_some(self),
        }
    }
}

/// Is there an order of these that the rules allow, in which whatever ended before another began comes first?
fn is_linearizable(rules: Rules, left: &[Op]) -> bool {
    let soonest_end = left.iter().map(|op| op.to).min().unwrap_or(0);
    left.is_empty()
        || left.iter().enumerate().any(|(n, op)| {
            let rest: Vec<Op> = left.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, op)| *op).collect();
            op.from <= soonest_end && rules.after(op.what).is_some_and(|rules| is_linearizable(rules, &rest))
        })
}

#[test]
fn the_checker_knows_wrong_from_right() {
    let op = |from, to, what| Op { from, to, what };
    let twice = [op(1, 2, What::Claimed(1)), op(3, 4, What::Claimed(2))];
    assert!(!is_linearizable(Rules::default(), &twice));
    let late = [
        op(1, 2, What::Claimed(1)),
        op(3, 9, What::Released(1)),
        op(4, 5, What::Claimed(2)),
        op(6, 7, What::Completed(1)),
    ];
    assert!(!is_linearizable(Rules::default(), &late));
    assert!(is_linearizable(Rules::default(), &late[..3]));
}

#[test]
fn sixty_four_claimers_win_each_task_once() {
    const TASKS: usize = 10_000;
    let node = Node::new();
    let up = node.up();
    let confirmed = up.client.run(&field("field", TASKS, &json!({})));
    assert_eq!(confirmed["tasks_count"], TASKS);
    let (clock, done) = (AtomicU64::new(0), AtomicUsize::new(0));
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    let histories: Mutex<BTreeMap<i64, Vec<Op>>> = Mutex::default();
    let note = |task: &Value, from, what| {
        let (op, execution) = (Op { from, to: tick(), what }, task["execution_id"].as_i64().unwrap());
        histories.lock().unwrap().entry(execution).or_default().push(op);
    };
    let tell = |worker: &Client, task: &Value, what: &str, meant: fn(i64) -> What| {
        let (fence, from) = (task["fence"].as_i64().unwrap(), tick());
        let answer = worker.say(task, what, json!({}));
        let seen = if answer.status == 200 { meant(fence) } else { What::Refused(fence) };
        note(task, from, seen);
        answer.status == 200
    };
    std::thread::scope(|scope| {
        for n in 0..64_usize {
            let worker = up.client.clone();
            let (done, tick, note, tell) = (&done, &tick, &note, &tell);
            scope.spawn(move || {
                while done.load(Ordering::SeqCst) < TASKS {
                    let from = tick();
                    let body = json!({"limit": 1 + n % 16, "wait_secs": 1, "worker": format!("w{n}")});
                    let tasks = worker.claim(&body);
                    for task in &tasks {
                        note(task, from, What::Claimed(task["fence"].as_i64().unwrap()));
                    }
                    for task in &tasks {
                        // Some think again, and speak of it nevertheless.
                        let seven = task["execution_id"].as_u64().unwrap() + n as u64;
                        if seven.is_multiple_of(16) && task["attempt"].as_u64() < Some(3) {
                            tell(&worker, task, "release", What::Released);
                            if tell(&worker, task, "complete", What::Completed) {
                                done.fetch_add(1, Ordering::SeqCst);
                            }
                        } else if tell(&worker, task, "complete", What::Completed) {
                            done.fetch_add(1, Ordering::SeqCst);
                            if seven % 16 == 1 {
                                tell(&worker, task, "complete", What::Completed);
                            }
                        }
                    }
                }
            });
        }
    });
    let histories = histories.into_inner().unwrap();
    assert_eq!((histories.len(), done.into_inner()), (TASKS, TASKS));
    let wrong: Vec<_> = histories.values().filter(|ops| !is_linearizable(Rules::default(), ops)).collect();
    assert!(wrong.is_empty(), "{} of them, such as {:?}", wrong.len(), wrong[0]);
    assert!(histories.values().filter(|ops| ops.len() > 2).count() > TASKS / 20);
    assert_eq!(up.client.until_over("field")["status"], "completed");
    node.assert_sound();
}
