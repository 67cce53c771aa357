//! Nothing runs that nobody confirmed: publish, confirm, reject, revisions, scopes, and their exit codes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use serde_json::{Value, json};
use support::Node;
use support::http::at_once;

const PUBLISH: &str = "/api/v1/dag/publish";

/// Writes a DAG whose task leaves `word` in `ran`, wherever it starts.
fn dag(node: &Node, word: &str) {
    let ran = node.path("ran");
    node.dag("d", &format!("tasks = [{{ id = 'a', command = 'echo {word} > {}' }}]", ran.display()));
}

#[test]
fn what_is_published_waits_for_a_person() {
    let node = Node::new();
    dag(&node, "first");
    let published = node.ok(["dag", "publish", "d.toml"]).says("Published `d` revision 1");
    let review = node.review("d");
    published.tells(&format!("hint: `cis confirm {review}` confirms and starts it"));
    node.cis(["run", "d"])
        .code(5)
        .says_nothing()
        .tells("error[AwaitingConfirmation]")
        .tells(&format!("hint: `cis confirm {review}`"));
    node.cis(["dag", "cancel", "d"]).code(3).says_nothing().tells("`d` has never run");
    node.cis(["status", "d", "--watch"]).code(5);
    node.ok(["dag", "list", "-s", "pending"]).says("d ");
    assert!(!node.path("ran").exists());
    node.ok(["confirm", &review]).says("Started d#1 in the background");
    node.ok(["status", "d", "--watch"]);
    assert_eq!(node.read("ran"), "first\n");
    node.ok(["run", "d"]).tells("d#2 completed");
    node.assert_sound();
}

#[test]
fn the_same_content_again_is_the_same_dag() {
    let node = Node::new();
    dag(&node, "first");
    let first = node.json(["dag", "publish", "d.toml"]);
    // Another format, another spelling, the same meaning.
    node.write(
        "d.json",
        format!(
            r#"{{"dag":{{"dag_id":"d","tasks":[{{"command":"echo first > {}","type":"shell","id":"a"}}]}}}}"#,
            node.path("ran").display()
        ),
    );
    let again = node.json(["dag", "publish", "d.json"]);
    assert_eq!((&first["status"], &again["status"]), (&"created".into(), &"already_exists".into()));
    assert_eq!((&first["content_hash"], &first["revision"]), (&again["content_hash"], &again["revision"]));
    let review = node.review("d");
    assert_eq!(
        (&first["review_id"], &again["review_id"]),
        (&review.as_str().into(), &review.as_str().into())
    );
    node.ok(["dag", "confirm", &review]);
    node.ok(["confirm", &review.to_uppercase()]);
    node.ok(["status", "d", "--watch"]);
    assert_eq!(
        node.json(["dag", "runs", "d"])["runs"].as_array().unwrap().len(),
        1,
        "confirming twice makes one run"
    );
    assert_eq!(node.json(["dag", "publish", "d.toml"])["revision_status"], "confirmed");
    node.assert_sound();
}

#[test]
fn other_content_under_the_same_name_is_a_conflict_or_a_revision() {
    let node = Node::new();
    dag(&node, "first");
    node.ok(["run", "d.toml"]);
    dag(&node, "second");
    node.cis(["dag", "publish", "d.toml"])
        .code(4)
        .says_nothing()
        .tells("error[ContentConflict]")
        .tells("hint:");
    let published = node.json(["dag", "publish", "d.toml", "--revision"]);
    assert_eq!((&published["revision"], &published["revision_status"]), (&2.into(), &"pending".into()));
    // What is confirmed goes on running; what is not waits.
    node.ok(["run", "d"]).tells("a newer revision of `d` waits for confirmation; revision 1 runs");
    assert_eq!(node.read("ran"), "first\n");
    let hash = published["content_hash"].as_str().unwrap();
    let unknown = "0".repeat(64);
    node.cis(["dag", "confirm", "d", "--content-hash", &unknown]).code(3).says_nothing();
    node.ok(["dag", "confirm", "d", "--content-hash", hash]);
    node.ok(["status", "d", "--watch"]);
    assert_eq!(node.read("ran"), "second\n");
    node.assert_sound();
}

#[test]
fn a_rejected_revision_does_not_run_and_can_be_asked_for_again() {
    let node = Node::new();
    dag(&node, "first");
    node.ok(["dag", "publish", "d.toml"]);
    let review = node.review("d");
    node.ok(["dag", "confirm", "d", "--reject"]).says("Rejected `d` revision 1");
    node.ok(["reject", &review]).says("Rejected `d` revision 1");
    node.ok(["dag", "list", "-s", "rejected"]).says("d ");
    let run = node.cis(["run", "d"]);
    assert_ne!(run.status.code(), Some(0), "{run}");
    node.cis(["dag", "confirm", "d"]).code(4).says_nothing().tells("error[InvalidTransition]");
    node.cis(["confirm", &review]).code(4).says_nothing().tells("error[InvalidTransition]");
    assert!(!node.path("ran").exists());
    assert_eq!(node.json(["dag", "publish", "d.toml"])["revision_status"], "pending");
    assert_ne!(node.review("d"), review, "the same content asked for again is another request");
    node.confirm("d");
    node.ok(["status", "d", "--watch"]);
    assert_eq!(node.read("ran"), "first\n");
    node.assert_sound();
}

#[test]
fn two_projects_may_use_the_same_name() {
    let node = Node::new();
    for project in ["one", "two"] {
        node.write(&format!("{project}/.cis/skills/.keep"), "");
        node.write(
            &format!("{project}/build.toml"),
            format!("tasks = [{{ id = 'a', command = 'echo {project}' }}]"),
        );
        node.ok(["run", &format!("{project}/build.toml")]);
    }
    let dags = node.json(["dag", "list"])["dags"].clone();
    let scopes: Vec<&str> = dags.as_array().unwrap().iter().filter_map(|dag| dag["scope"].as_str()).collect();
    assert_eq!(scopes.len(), 2);
    assert!(scopes.iter().any(|scope| scope.starts_with("project-one-")), "{scopes:?}");
    // From outside it must be said which; from inside it is clear.
    node.cis(["status", "build"])
        .code(2)
        .says_nothing()
        .tells("error[Ambiguous]")
        .tells("hint: say which: `--scope ");
    node.ok(["status", "build", "--scope", scopes[0]]);
    node.ok(["dag", "list", "--scope", scopes[1]]).says("build");
    let mut inside = node.command(["logs", "build"]);
    inside.current_dir(node.path("two"));
    assert_eq!(support::Running::start(inside).wait().code(0).out, "two\n");
    node.assert_sound();
}

#[test]
fn a_command_that_fails_confirms_nothing() {
    let node = Node::new();
    dag(&node, "first");
    node.ok(["dag", "publish", "d.toml"]);
    node.ok(["dag", "confirm", "--reject", "d"]).says("Rejected");
    node.cis(["run", "d.toml", "--only", "zz"]).code(3).says_nothing().tells("no task `zz`");
    assert_eq!(node.json(["dag", "list"])["dags"][0]["status"], "rejected");
    node.cis(["run", "d"]).code(4).tells("`d` is rejected").tells("hint: `cis dag publish FILE`");
    assert!(!node.path("ran").exists());
}

#[test]
fn problems_of_a_new_revision_are_told_where_they_were_sent() {
    let node = Node::new();
    let up = node.up();
    let text = |beside: &str| {
        format!(
            "{{\n  \"dag_id\": \"d\",{beside}\n  \"tasks\": [\n    {{\"id\": \"a\", \"comand\": \"true\"}}\n  ]\n}}"
        )
    };
    let problems = |body: &str| {
        let answer = up.client.post(PUBLISH, body);
        assert_eq!(answer.status, 422, "{answer:?}");
        answer.json()["error"]["details"].clone()
    };
    let plain = problems(&text(""));
    assert_eq!((&plain[1]["line"], &plain[1]["column"]), (&json!(4), &json!(17)), "{plain}");
    assert_eq!(problems(&text(" \"revision\": true,")), plain);
    // What is there twice is told, and not taken as if the last were meant.
    let twice = problems(
        r#"{"dag_id": "d", "revision": true, "dag_id": "e", "tasks": [{"id": "a", "command": "true"}]}"#,
    );
    assert_eq!(twice[0]["column"], 35, "{twice}");
}

/// The most memory a process has used, in MiB.
fn peak_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
}

#[test]
fn a_new_revision_of_many_values_is_not_taken_apart_twice() {
    let node = Node::new();
    let up = node.up();
    let before = peak_mib(up.running.pid());
    let items = vec!["{\"a\":0}"; 600_000].join(",");
    let answer =
        up.client.post(PUBLISH, &format!("{{\"dag_id\":\"d\",\"revision\":true,\"tasks\":[{items}]}}"));
    assert_eq!((answer.status, answer.code().as_str()), (422, "ValidationFailed"));
    let used = peak_mib(up.running.pid()) - before;
    // The text twice, and 32 bytes for each value of the parser's tree; a tree of JSON values would be 400 MiB.
    assert!(used < 128, "{used} MiB");
}

#[test]
fn large_definitions_of_one_identity_wait_behind_its_own() {
    let node = Node::new();
    let up = node.up();
    let greedy = up.client.with(&node.token(["greedy"]));
    let large = |id: &str, more: Value| {
        let note = "x".repeat(40);
        let mut tasks: Vec<_> = (0..4_000)
            .map(|n| json!({"id": format!("t{n}"), "command": "true", "description": note}))
            .collect();
        tasks.push(more);
        json!({"dag_id": id, "tasks": tasks}).to_string()
    };
    let wrong = large("wrong", json!({"id": "t0", "command": "true"}));
    let right = large("right", json!({"id": "last", "command": "true"}));
    assert!(wrong.len() > 256 << 10);
    let answers = std::thread::scope(|scope| {
        let greedy = scope.spawn(|| at_once(48, |_| greedy.post(PUBLISH, &wrong)));
        assert_eq!(up.client.post(PUBLISH, &right).status, 201);
        greedy.join().unwrap()
    });
    let count = |code: &str| answers.iter().filter(|answer| answer.code() == code).count();
    let (told, refused) = (count("ValidationFailed"), count("RateLimited"));
    assert_eq!(told + refused, 48, "{answers:?}");
    // One at a time, and 16 that wait.
    assert!(told >= 17, "{told} were parsed, {refused} refused");
    for answer in answers.iter().filter(|answer| answer.status == 429) {
        assert!(answer.header("retry-after").is_some() && answer.json()["error"]["hint"].is_string());
    }
}
