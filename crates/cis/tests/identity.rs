//! Who somebody is, and what that lets them do: identities, agents with tokens of their own, and what is out of
//! their reach.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use cis_api::Access;
use cis_core::access::Role;
use cis_server::table::{Route, network_routes};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::Client;
use support::{EXE, Node, Running};

fn dag(id: &str) -> String {
    json!({"dag_id": id, "tasks": [{"id": "t1", "type": "shell", "command": "true"}]}).to_string()
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
    assert!(this["version"].is_string() && this["since"].is_string(), "{this}");
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
    for Route { method, path, access } in network_routes().copied() {
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
    agent.until_over("backup");
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
fn owners_alone_decide_about_what_an_unproven_did_published() {
    let node = Node::new().with("CIS_NODE_AUTH", "trusted-local");
    let up = node.up();
    let approver = up.client.with(&node.token(["boss", "--as", "approver"]));
    let did = up.client.with("did:cis:nobody:1");
    let asks = json!({"dag_id": "d", "tasks": [{"id": "ask", "type": "approval"}]}).to_string();
    assert_eq!(did.post("/api/v1/dag/publish", &asks).status, 201);
    // Nor does it become a proven publisher's by being published again.
    let agent = up.client.with(&node.token(["agent"]));
    assert_eq!(agent.post("/api/v1/dag/publish", &asks).json()["status"], "already_exists");
    // Not even for a token of that very name.
    let namesake = up.client.with(&node.token(["did:cis:nobody:1", "--as", "approver"]));
    for who in [&approver, &namesake] {
        let refused = who.post("/api/v1/dag/d/confirm", "");
        assert_eq!((refused.status, refused.code()), (403, "Forbidden".to_owned()), "{refused:?}");
        assert!(refused.json()["error"]["hint"].as_str().unwrap().contains("self_confirm"), "{refused:?}");
    }
    let run = up.client.post("/api/v1/dag/d/confirm", "").json()["run_id"].as_str().unwrap().to_owned();
    let approve = format!("/api/v1/runs/{run}/tasks/ask/approve");
    up.client.until("d", |told| told["tasks"][0]["status"] == "waiting");
    assert_eq!(approver.post(&approve, "").code(), "Forbidden");
    assert_eq!(up.client.post(&approve, "").status, 200);
    // What a token published is for approvers, whichever name it has.
    let proven = up.client.with(&node.token(["did:cis:agent:a"]));
    assert_eq!(proven.post("/api/v1/dag/publish", &dag("e")).status, 201);
    assert_eq!(did.post("/api/v1/dag/publish", &dag("e")).json()["status"], "already_exists");
    assert_eq!(approver.post("/api/v1/dag/e/confirm", "").status, 200);
    node.assert_sound();
}

#[test]
fn identities_that_look_alike_get_no_token() {
    let node = Node::new();
    let up = node.up();
    for identity in ["u ", " u", "u\t", "u\u{200b}", "u\u{a0}", "u\u{202e}", "\u{430}nn", ""] {
        let body = json!({"identity": identity, "as": "approver"}).to_string();
        let refused = up.client.post("/api/v1/tokens", &body);
        assert_eq!((refused.status, refused.code()), (422, "ValidationFailed".to_owned()), "{identity:?}");
        let here = node.cis(["token", "create", identity, "--as", "approver"]);
        assert!(!here.status.success() && here.out.is_empty(), "{identity:?}: {here}");
    }
    assert_eq!(node.json(["token", "list"])["tokens"].as_array().unwrap().len(), 1);
    node.token(["Ann Lee"]);
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
    approver.until_over("d");
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
    assert_eq!(agent.until_over("d")["run_id"], told["run_id"]);
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

#[test]
fn an_agent_has_a_token_of_its_own_while_it_runs() {
    let node = Node::new().with("CIS_SLOTS", "3");
    let (gate, up) = (node.fifo("gate"), node.up());
    let script =
        "env | grep -v ^CIS_DATA_DIR= | grep -c ^CIS_; echo $CIS_NODE $CIS_TOKEN; read -r _ < gate; exit 7";
    let mut agent = node.bare();
    agent.arg("--data-dir").arg(&node.data).args(["agent", "run", "builder", "--", "sh", "-c", script]);
    let mut agent = Running::start(agent);
    assert_eq!(agent.until("").trim(), "3", "nothing of ours but where to call, which node and by what");
    let line = agent.until("http://");
    let (address, token) = line.trim().split_once(' ').unwrap();
    assert_eq!(address, format!("http://{}", up.client.address));
    let client = up.client.with(token);
    let who = client.get("/api/v1/whoami").json();
    assert_eq!((&who["identity"], &who["roles"]), (&json!("builder"), &json!(["read", "publish", "work"])));
    assert_eq!(client.post("/api/v1/dag/publish", &dag("d")).status, 201);
    assert_eq!(client.post("/api/v1/dag/d/confirm", "").status, 403);
    assert_eq!(
        client.post("/api/v1/tokens", &json!({"identity": "x", "as": "owner"}).to_string()).status,
        403
    );
    gate.let_through(1);
    agent.wait().code(7);
    assert_eq!(client.get("/api/v1/whoami").status, 401);

    // However it ends, and whoever ends it.
    let run = |args: &[&str]| node.spawn([["agent", "run", "builder", "--"].as_slice(), args].concat());
    let mut told =
        run(&["sh", "-c", "trap 'kill -KILL $!; exit 9' TERM; sleep 1000 & echo $CIS_TOKEN; wait"]);
    let client = up.client.with(told.until("cis_").trim());
    assert_eq!(client.get("/api/v1/whoami").status, 200);
    told.signal(Signal::TERM);
    told.wait().code(9);
    assert_eq!(client.get("/api/v1/whoami").status, 401);
    run(&["sh", "-c", "kill -KILL $$"]).wait().code(137);
    run(&["no-such-program"]).wait().code(127).tells("cannot run `no-such-program`");
    let tokens = node.json(["token", "list"])["tokens"].clone();
    let of_agent = |token: &&Value| token["identity"] == "builder";
    let good = |token: &&Value| token["revoked_at"].is_null() || token["expires_at"].is_null();
    assert_eq!(tokens.as_array().unwrap().iter().filter(of_agent).filter(good).count(), 0, "{tokens}");
}

#[test]
fn an_agent_needs_a_node() {
    let node = Node::new();
    let run = node.cis(["agent", "run", "a", "--", "true"]);
    run.code(1).says_nothing().tells("no node serves this data directory").tells("`cis node start`");
    node.cis(["agent", "run", "a b", "--", "true"]).code(2).tells("neither a name nor a DID");
}

/// What an agent may try to become the owner, each on a line of its own that begins with how it went.
fn attempts(node: &Node, review: &str) -> String {
    let (data, beside) = (node.data.display(), node.path("beside"));
    std::fs::create_dir(&beside).unwrap();
    let lines = [
        ("token", format!("cat {data}/admin.token")),
        ("database", format!("cat {data}/dag.db")),
        ("key", format!("cat {data}/node.key")),
        ("door", format!("cat {data}/door.key")),
        ("write", format!("echo x >> {data}/dag.db")),
        ("make", format!("echo x > {data}/new")),
        ("remove", format!("rm {data}/admin.token")),
        ("move", format!("mv {data} {}/data", beside.display())),
        ("link", format!("ln {data}/admin.token {}/link", beside.display())),
        ("confirm", format!("{EXE} --data-dir {data} confirm {review}")),
        ("as-owner", format!("env -u CIS_TOKEN {EXE} --data-dir {data} confirm {review}")),
        ("mint", format!("env -u CIS_TOKEN {EXE} --data-dir {data} token create x --as owner")),
        (
            "work",
            format!("echo x > {0}/a && mkdir {0}/b && mv {0}/a {0}/b/a && cat {0}/b/a", beside.display()),
        ),
    ];
    let line = |(name, line): &(&str, String)| {
        format!("if ( {line} ) > /dev/null 2>&1; then echo {name} yes; else echo {name} no; fi\n")
    };
    lines.iter().map(line).collect()
}

#[test]
fn an_agent_cannot_reach_the_data_directory() {
    let node = Node::new();
    let up = node.up();
    node.ok(["identity", "show"]);
    let published = up.client.with(&node.token(["a"])).post("/api/v1/dag/publish", &dag("d"));
    assert_eq!(published.status, 201);
    let review = published.json()["review_id"].as_str().unwrap().to_owned();
    let script = node.write("attempts.sh", attempts(&node, &review));
    let run = |sandbox: &str| {
        node.cis(["agent", "run", "--sandbox", sandbox, "a", "--", "sh", script.to_str().unwrap()])
    };
    let mut tried = 0;
    for kind in ["namespaces", "landlock"] {
        let ran = run(kind);
        println!("{}", ran.err);
        if ran.err.contains("error[Unavailable]: no such sandbox") {
            ran.code(1).says_nothing();
            continue;
        }
        let yes: Vec<&str> = ran.out.lines().filter(|line| line.ends_with(" yes")).collect();
        assert_eq!(yes, ["work yes"], "{ran}");
        assert_eq!(ran.out.lines().count(), 13, "{ran}");
        assert!(!ran.err.contains("warning"), "{ran}");
        std::fs::remove_dir_all(node.path("beside/b")).unwrap();
        tried += 1;
    }
    match tried {
        0 => {
            run("require").code(1).says_nothing().tells("error[Unavailable]: no such sandbox");
            run("auto").tells("warning: no sandbox").says("confirm no");
        }
        _ => drop(run("require").code(0).tells("sandbox: ")),
    }
    assert_eq!(up.client.get("/api/v1/dag/d/status").json()["status"], "pending");
    // Who asks for no sandbox is told what that means, and still does not become the owner by accident.
    let script = format!("{EXE} --data-dir {} confirm {review}", node.data.display());
    let open = node.cis(["agent", "run", "--sandbox", "off", "a", "--", "sh", "-c", &script]);
    open.code(1)
        .tells("warning: no sandbox: `--sandbox off`: the data directory is not hidden from it")
        .tells("error[Forbidden]");
    assert_eq!(up.client.get("/api/v1/dag/d/status").json()["status"], "pending");
    node.assert_sound();
}

/// A sandbox keeps files shut, not sockets: whoever knocks must know what is written beside them.
#[test]
fn who_cannot_read_the_data_directory_is_not_heard_at_its_socket() {
    let node = Node::new();
    let up = node.up();
    let key = std::fs::read_to_string(node.data.join("door.key")).unwrap();
    let ask = |key: Option<&str>| {
        let mut stream = UnixStream::connect(node.data.join("cis.sock")).unwrap();
        let key = key.map_or(String::new(), |key| format!("Authorization: Bearer {}\r\n", key.trim()));
        let head =
            format!("GET /api/v1/coordinator HTTP/1.1\r\nHost: localhost\r\n{key}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask(Some(&key)).contains("\"epoch\""));
    for (key, why) in [(None, "401"), (Some("wrong"), "401"), (Some(up.client.token.as_str()), "401")] {
        let answer = ask(key);
        assert!(answer.starts_with(&format!("HTTP/1.1 {why}")) && !answer.contains("epoch"), "{answer}");
    }
    let mode = std::fs::metadata(node.data.join("door.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// As from `CIS_TOKEN=$(cat a-file-that-is-not-there)`.
#[test]
fn an_empty_token_makes_nobody_the_owner() {
    let node = Node::new();
    let _up = node.up();
    node.dag("d", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["dag", "publish", "d.toml"]);
    let review = node.review("d");
    let mut command = node.command(["confirm", &review]);
    command.env("CIS_TOKEN", "");
    let refused = Running::start(command).wait().code(1).says_nothing();
    refused.tells("error[Unauthorized]: the token is empty").tells("hint: `--token` or `CIS_TOKEN`");
    node.cis(["--token", "", "confirm", &review]).code(1).says_nothing().tells("the token is empty");
    assert_eq!(node.json(["dag", "list"])["dags"][0]["status"], "pending");
}

#[test]
fn whoever_has_a_token_is_not_the_owner() {
    let node = Node::new();
    let up = node.up();
    node.dag("d", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["dag", "publish", "d.toml"]);
    let with_token = |args: &[&str]| {
        let mut command = node.command(args);
        // Nobody answers there: what is not asked of the data directory is asked of nobody.
        command.env("CIS_TOKEN", &up.client.token).env("CIS_NODE", "http://127.0.0.1:1");
        Running::start(command).wait()
    };
    let review = node.review("d");
    for args in [
        ["dag", "confirm", "d"].as_slice(),
        &["dag", "confirm", "d", "--reject"],
        &["confirm", &review],
        &["reject", &review],
        &["dag", "publish", "d.toml"],
        &["dag", "list"],
        &["run", "d.toml"],
        &["status", "d"],
        &["logs", "d"],
        &["pending"],
        &["token", "create", "x", "--as", "owner"],
        &["token", "list"],
        &["token", "revoke", "tok_1"],
        &["node", "drain"],
    ] {
        let refused = with_token(args).code(1).says_nothing();
        refused.tells("error[Unavailable]: the node at http://127.0.0.1:1 cannot be reached");
    }
    for args in [
        ["agent", "run", "a", "--", "true"].as_slice(),
        &["node", "start", "--bind", "127.0.0.1:0"],
        &["coordinator"],
    ] {
        let refused = with_token(args).code(1).says_nothing();
        refused.tells("error[Forbidden]: there is a token to call with").tells("`CIS_NODE`");
    }
    assert_eq!(node.json(["dag", "list"])["dags"][0]["status"], "pending");
    assert_eq!(node.json(["token", "list"])["tokens"].as_array().unwrap().len(), 1);
}
