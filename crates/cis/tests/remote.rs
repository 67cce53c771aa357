//! `cis --node URL --token …`: the same commands from another machine, over real connections.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use regex_lite::Regex;
use rustix::process::Signal;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;
use support::http::Up;
use support::{Node, Ran, Running};

/// Somebody on another machine: no data directory, only a node's address and a token.
struct Away<'n> {
    node: &'n Node,
    url: String,
    token: String,
}

impl<'n> Away<'n> {
    /// The owner, away from home.
    fn owner(node: &'n Node, up: &Up) -> Self {
        Self { node, url: format!("http://{}", up.client.address), token: up.client.token.clone() }
    }

    fn with(&self, token: &str) -> Self {
        Self { node: self.node, url: self.url.clone(), token: token.to_owned() }
    }

    fn spawn(&self, args: &[&str]) -> Running {
        let mut command = self.node.bare();
        command.env("CIS_DATA_DIR", "/nonexistent/cis").env("CIS_TOKEN", &self.token);
        command.args(["--node", &self.url]).args(args);
        Running::start(command)
    }

    fn cis(&self, args: &[&str]) -> Ran {
        self.spawn(args).wait()
    }

    fn json(&self, args: &[&str]) -> Value {
        self.cis(&[args, &["--json"]].concat()).json()
    }
}

/// What a command came to.
fn told(ran: &Ran) -> (Option<i32>, String, String) {
    (ran.status.code(), ran.out.clone(), ran.err.clone())
}

/// The same with whatever differs from run to run made equal.
fn masked(ran: &Ran) -> (Option<i32>, String, String) {
    let mask = |text: &str| {
        let ids = Regex::new("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(tok|cis)_[A-Za-z0-9_-]+").unwrap();
        let rest = Regex::new(
            r#""(at|position|decided_by|decided_at|expires_at)":("[^"]*"|\d+)|r(-[0-9a-z]{4}){3}|\d+(\.\d+)?(ms|s)\b|published_by":"[^"]*"#,
        );
        rest.unwrap().replace_all(&ids.replace_all(text, "ID"), "…").into_owned()
    };
    let (code, out, err) = told(ran);
    (code, mask(&out), mask(&err))
}

const TWO: &str = "tasks = [
    { id = 'a', name = 'First', command = 'echo one; echo two >&2' },
    { id = 'b', command = \"echo n=3 >> $CIS_OUTPUT; printf end\", depends_on = ['a'], timeout = '1h' },
]";
const BROKEN: &str = "tasks = [
    { id = 'a', command = 'echo fine' },
    { id = 'b', command = 'echo oh no >&2; exit 3', depends_on = ['a'] },
    { id = 'c', command = 'true', depends_on = ['b'] },
]";
const GATE: &str = "tasks = [
    { id = 'ask', type = 'approval', prompt = 'Go?', input = { n = 'integer', s = 'string' } },
    { id = 'go', command = 'true', depends_on = ['ask'] },
]";

#[test]
fn looking_tells_the_same_from_anywhere() {
    let node = Node::new();
    let up = node.up();
    let away = Away::owner(&node, &up);
    for (name, text) in [("two", TWO), ("broken", BROKEN), ("gate", GATE), ("new", TWO)] {
        node.dag(name, text);
    }
    node.ok(["run", "two.toml"]);
    node.cis(["run", "broken.toml"]).code(1);
    node.cis(["dag", "resume", "broken"]).code(1);
    node.ok(["run", "gate.toml", "--detach"]);
    node.ok(["dag", "publish", "new.toml"]);
    node.write(
        "other/new.json",
        r#"{"dag_id": "new", "scope": "user-x", "tasks": [{"id": "t", "command": "true"}]}"#,
    );
    node.ok(["dag", "publish", "other/new.json"]);
    up.client.follow(None, |_, event| event["data"]["status"] == "waiting");
    let run = node.json(["status", "two"])["run_id"].as_str().unwrap().to_owned();
    let gate = node.review("gate");
    for args in [
        ["dag", "list"].as_slice(),
        &["dag", "list", "--status", "pending"],
        &["dag", "list", "--scope", "user-x"],
        &["dag", "list", "--limit", "2"],
        &["dag", "list", "--limit", "0"],
        &["dag", "list", "--status", "nonsense"],
        &["dag", "runs"],
        &["dag", "runs", "--limit", "1"],
        &["dag", "runs", "broken"],
        &["dag", "runs", "broken", "--limit", "1"],
        &["status", "two"],
        &["status", &run],
        &["status", "broken"],
        &["status", "broken#1"],
        &["status", "gate"],
        &["status", "new"],
        &["status", "new", "--scope", "user-x"],
        &["status", "two", "--watch"],
        &["status", "broken#1", "--watch"],
        &["status", "new", "--watch"],
        &["logs", "two"],
        &["logs", "two", "--follow"],
        &["logs", "two", "--task", "b", "--task", "a"],
        &["logs", "broken#1", "--task", "b", "--attempt", "1"],
        &["logs", "two", "--grep", "^t"],
        &["why", "gate"],
        &["why", "gate#1"],
        &["why", "new"],
        &["dag", "why", "two"],
        &["pending"],
        &["token", "list"],
        &["dag", "graph", "broken"],
        &["dag", "graph", "new", "--format", "mermaid"],
        &["run", "two", "--dry-run"],
        // And what is not there.
        &["status", "twoo"],
        &["status", "two#9"],
        &["status", "two#x"],
        &["status", "00000000-0000-0000-0000-000000000000"],
        &["status", "two", "--scope", "user-x"],
        &["logs", "two", "--task", "zz"],
        &["logs", "new", "--scope", "user-x"],
        &["dag", "cancel", "new", "--scope", "user-x"],
        &["dag", "resume", "two"],
        &["dag", "retry", "broken", "zz"],
        &["dag", "resume", "gate"],
        &["run", "new"],
        &["approve", "gate"],
        &["approve", "gate", "zz"],
        &["approve", "gate", "ask", "--input", "n=x"],
        &["approve", &gate, "--input", "n=x"],
        &["dag", "confirm", "new", "--content-hash", "0000"],
        &["dag", "confirm", "new", "--scope", "user-x"],
        &["dag", "confirm", "two"],
        &["dag", "confirm", "two", "--reject"],
        &["confirm", "r-0000-0000-0000"],
        &["token", "revoke", "tok_none"],
    ] {
        for args in [args.to_vec(), [args, &["--json"]].concat()] {
            // Where something counts seconds, the two are compared within one of them.
            let (here, there) = support::eventually("a second in which nothing changes", || {
                let before = told(&node.cis(&args));
                let there = told(&away.cis(&args));
                (told(&node.cis(&args)) == before).then_some((before, there))
            });
            assert_eq!(here, there, "{args:?}");
        }
    }
}

/// The same commands on two nodes, by the owner who sits at one and by the owner who calls the other.
#[test]
fn doing_tells_the_same_from_anywhere() {
    let (home, abroad) = (Node::new(), Node::new());
    let (_at_home, up) = (home.up(), abroad.up());
    let away = Away::owner(&abroad, &up);
    for node in [&home, &abroad] {
        node.dag("two", TWO);
        node.dag("broken", BROKEN);
        node.dag("gate", GATE);
        node.write("changed/two.toml", "tasks = [{ id = 'a', command = 'true' }]");
        node.write("bad.toml", "tasks = [{ id = 'a', comand = 'true' }]");
        node.dag("long", "tasks = [{ id = 'a', command = 'sleep 1000' }]");
        node.dag("skilled", "tasks = [{ id = 'a', skill = 'nowhere' }]");
    }
    let long = home.json(["dag", "validate", "long.toml"])["content_hash"].as_str().unwrap().to_owned();
    for args in [
        ["dag", "publish", "two.toml"].as_slice(),
        &["dag", "publish", "two.toml"],
        &["dag", "publish", "changed/two.toml"],
        &["dag", "publish", "changed/two.toml", "--revision"],
        &["dag", "publish", "bad.toml"],
        &["dag", "publish", "missing.toml"],
        &["dag", "confirm", "two", "--reject"],
        &["dag", "confirm", "two", "--reject"],
        &["dag", "confirm", "two"],
        &["run", "two.toml"],
        &["run", "two"],
        &["run", "broken.toml"],
        &["dag", "retry", "broken", "b"],
        &["dag", "resume", "broken#1"],
        &["run", "gate.toml", "--detach"],
        &["dag", "pause", "gate"],
        &["dag", "unpause", "gate"],
        &["approve", "gate", "ask", "--input", "n=3", "--input", "s=4", "--note", "well"],
        &["approve", "gate#1", "ask", "--input", "n=3", "--input", "s=4", "--note", "well"],
        &["approve", "GATE_RUN", "ask", "--input", "n=3", "--input", "s=4", "--note", "well"],
        &["approve", "GATE_RUN", "ask", "--input", "n=3", "--input", "s=4", "--note", "well"],
        &["reject", "gate", "ask"],
        &["status", "gate", "--watch"],
        &["dag", "publish", "long.toml"],
        &["dag", "confirm", "long"],
        &["dag", "confirm", "long", "--content-hash", &long],
        &["dag", "confirm", "long", "--content-hash", &long],
        &["dag", "cancel", "long", "--kill"],
        &["status", "long", "--watch"],
        &["dag", "cancel", "long"],
        &["node", "drain"],
        &["node", "drain"],
        &["node", "undrain"],
        &["token", "create", "eve", "--as", "reader", "--scope", "user-x", "--expires", "1h"],
        &["token", "create", "eve", "--as", "nonsense"],
    ] {
        // What a kill is told when it is asked for again depends on how far it has come.
        let forms: &[bool] = if args.contains(&"--kill") { &[false] } else { &[false, true] };
        for json in forms {
            let args = if *json { [args, &["--json"]].concat() } else { args.to_vec() };
            // Run ids differ.
            let own = |node: &Node| {
                let args = args.iter().map(|arg| match *arg {
                    "GATE_RUN" => node.json(["status", "gate"])["run_id"].as_str().unwrap().to_owned(),
                    other => other.to_owned(),
                });
                args.collect::<Vec<_>>()
            };
            let there: Vec<String> = own(&abroad);
            let there: Vec<&str> = there.iter().map(String::as_str).collect();
            assert_eq!(masked(&home.cis(own(&home))), masked(&away.cis(&there)), "{args:?}");
        }
    }
    // Skills are the node's own: a file that names one it does not have is refused by the node.
    away.cis(&["dag", "publish", "skilled.toml"]).code(2).says_nothing().tells("ValidationFailed");
    let made = away.json(&["token", "create", "bob"]);
    away.with(made["token"].as_str().unwrap()).cis(&["dag", "list"]).code(0);
    away.cis(&["token", "revoke", made["token_id"].as_str().unwrap()]).code(0).says("Revoked tok_");
    away.with(made["token"].as_str().unwrap()).cis(&["dag", "list"]).code(1).tells("error[Unauthorized]");
}

#[test]
fn an_agent_asks_and_a_person_answers() {
    let node = Node::new();
    let up = node.up();
    let owner = Away::owner(&node, &up);
    let agent = owner.with(&node.token(["bob"]));
    node.dag("two", TWO);
    agent.cis(&["dag", "publish", "two.toml"]).code(0).says("Published `two` revision 1");
    let review = node.review("two");
    agent.cis(&["confirm", &review]).code(1).says_nothing().tells("error[Forbidden]");
    let awaits = agent.cis(&["run", "two.toml"]).code(5).says_nothing();
    awaits
        .tells("error[AwaitingConfirmation]: `two` revision 1 is published and waits")
        .tells(&format!("cis confirm {review}"));
    agent.cis(&["run", "two"]).code(5).tells("error[AwaitingConfirmation]");
    agent.cis(&["token", "list"]).code(1).tells("error[Forbidden]");
    agent.cis(&["node", "drain"]).code(1).tells("error[Forbidden]");
    assert_eq!(node.json(["status", "two"])["status"], "pending");
    agent.cis(&["logs", "two"]).code(3).tells("has never run");
    agent.cis(&["pending"]).code(0).says(&format!("cis confirm {review}"));
    owner
        .cis(&["confirm", &review, "--note", "go"])
        .code(0)
        .says("Started two#1 in the background (2 tasks)");
    owner.cis(&["confirm", &review]).code(0).says("two#1");
    owner.cis(&["reject", &review]).code(4).says_nothing().tells("error[InvalidTransition]");
    agent.cis(&["status", "two#1"]).code(0).says("confirmed by ").says(": go");
    agent.cis(&["status", "two", "--watch"]).code(0).says("First").tells("two#1 completed");
    agent.cis(&["run", "two"]).code(0).tells("two#2 completed");
}

#[test]
fn output_is_followed_as_it_comes_and_ctrl_c_means_the_run() {
    let node = Node::new();
    let up = node.up();
    let away = Away::owner(&node, &up);
    let (gate, dir) = (node.fifo("gate"), node.dir().display());
    node.dag("slow", &format!(
        "tasks = [{{ id = 'a', command = 'echo begun; read -r _ < {dir}/gate; echo on; exec sleep 1000' }}]"
    ));
    let mut run = away.spawn(&["run", "slow.toml", "--json"]);
    run.until("task.claimed");
    let mut logs = away.spawn(&["logs", "slow", "--follow"]);
    logs.until("begun");
    gate.let_through(1);
    logs.until("on");
    run.signal(Signal::INT);
    let ran = run.wait().code(130);
    assert_eq!(ran.summary()["status"], "cancelled");
    ran.tells("cancelling");
    logs.wait().code(0);
}

#[test]
fn whoever_cannot_be_reached_or_does_not_know_us_is_said() {
    let node = Node::new();
    let up = node.up();
    let owner = Away::owner(&node, &up);
    let at = |url: &str| Away { node: &node, url: url.to_owned(), token: owner.token.clone() };
    owner.with("cis_wrong").cis(&["dag", "list"]).code(1).says_nothing().tells("error[Unauthorized]");
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = at(&format!("http://{gone}")).cis(&["status", "x", "--json"]).code(1).json();
    assert_eq!(
        (&refused["success"], &refused["error"]["code"]),
        (&Value::Bool(false), &"Unavailable".into())
    );
    assert!(refused["error"]["hint"].as_str().unwrap().contains("--node URL"), "{refused}");
    at("localhost").cis(&["pending"]).code(2).tells("error[ValidationFailed]: `localhost` is not");
    // A node that is somebody else's never sees the owner's token.
    let mut command = node.command(["dag", "list", "--node", "http://127.0.0.1:1"]);
    command.env_remove("CIS_TOKEN");
    Running::start(command)
        .wait()
        .code(1)
        .tells("error[Unauthorized]: no token to call http://127.0.0.1:1 with");
    // What nobody can do from elsewhere is refused, not done here.
    node.dag("two", TWO);
    node.ok(["run", "two.toml"]);
    owner.cis(&["run", "two", "--from", "b"]).code(2).tells("does not take `--from`");
    owner.cis(&["run", "two.toml", "--param", "a=b"]).code(2).tells("--param");
    assert_eq!(node.json(["dag", "runs"])["runs"].as_array().unwrap().len(), 1);
}

/// Ends TLS in front of a node, as a proxy does, with a certificate that it writes down; answers its URL.
fn with_tls(up: &Up, certificate: &Path) -> String {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(certificate, cert.pem()).unwrap();
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key.into())
        .unwrap();
    let (config, node) = (Arc::new(config), up.client.address.clone());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (config, node) = (config.clone(), node.clone());
            std::thread::spawn(move || {
                let tls = ServerConnection::new(config).unwrap();
                // Whoever does not trust us hangs up, and that is that.
                let _ = pass_on(StreamOwned::new(tls, stream.unwrap()), &node);
            });
        }
    });
    url
}

/// Passes one request on and its answer back.
fn pass_on(stream: StreamOwned<ServerConnection, TcpStream>, node: &str) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let begin = head.len();
        stream.read_line(&mut head)?;
        let line = head[begin..].trim_end().to_lowercase();
        if line.is_empty() {
            head.truncate(begin);
            break;
        }
        if let Some(n) = line.strip_prefix("content-length: ") {
            length = n.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let mut there = TcpStream::connect(node)?;
    write!(there, "{head}Connection: close\r\n\r\n")?;
    there.write_all(&body)?;
    let stream = stream.get_mut();
    let mut some = [0; 4096];
    loop {
        match there.read(&mut some)? {
            0 => break,
            n => stream.write_all(&some[..n])?,
        }
        stream.flush()?;
    }
    stream.conn.send_close_notify();
    stream.flush()
}

#[test]
fn a_node_behind_tls_is_called_if_its_certificate_is_trusted() {
    let node = Node::new();
    let up = node.up();
    let certificate = node.path("certificate.pem");
    let url = with_tls(&up, &certificate);
    node.dag("two", TWO);
    let call = |trusted: &Path, args: &[&str]| {
        let mut command = node.bare();
        command.env("SSL_CERT_FILE", trusted).env("CIS_TOKEN", &up.client.token).env("CIS_NODE", &url);
        Running::start({
            command.args(args);
            command
        })
        .wait()
    };
    call(&certificate, &["run", "two.toml"]).code(0).tells("two#1 completed");
    call(&certificate, &["logs", "two", "--task", "a"]).code(0).says("one");
    let stranger = node.path("stranger.pem");
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&stranger, other.cert.pem()).unwrap();
    call(&stranger, &["dag", "list"]).code(1).says_nothing().tells("error[Unavailable]").tells("certificate");
}
