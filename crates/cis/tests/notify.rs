//! A node that tells people without being asked: real receivers on real connections, real commands.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;

use cis_store::Reader;
use rustix::process::Signal;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use support::http::{Client, Up};
use support::{Node, PATIENCE, eventually};

/// `Sixteen bytes, and some more.` in base64.
const SECRET: &str = "whsec_U2l4dGVlbiBieXRlcywgYW5kIHNvbWUgbW9yZS4=";

/// Somebody who listens for webhooks.
struct Receiver {
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
}

/// A connection, with TLS or without.
trait Wire: Read + Write {}

impl<T: Read + Write> Wire for T {}

/// A webhook that came in, and the connection its sender waits on.
struct Heard {
    line: String,
    headers: Vec<(String, String)>,
    body: String,
    stream: Box<dyn Wire>,
}

impl Receiver {
    fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), tls: None }
    }

    /// One with TLS, and its certificate.
    fn with_tls() -> (Self, String) {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key.into())
            .unwrap();
        (Self { tls: Some(Arc::new(config)), ..Self::new() }, cert.pem())
    }

    /// What a node's settings say of it.
    fn settings(&self, more: &str) -> String {
        let address = self.listener.local_addr().unwrap();
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("[notify]\nurl = \"{scheme}://{address}/hook?a=b\"\nsecret = \"{SECRET}\"\n{more}\n")
    }

    fn accept(&self) -> TcpStream {
        self.listener.set_nonblocking(true).unwrap();
        let stream = eventually("a webhook", || self.listener.accept().ok()).0;
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Waits for somebody who does not trust us, and so hangs up before a word is said.
    fn hear_nothing(&self) {
        let mut tls = ServerConnection::new(self.tls.clone().unwrap()).unwrap();
        assert!(tls.complete_io(&mut self.accept()).is_err());
    }

    /// Waits for the next webhook; its sender is not answered yet.
    fn hear(&self) -> Heard {
        let stream = self.accept();
        Heard::read(match &self.tls {
            Some(tls) => Box::new(StreamOwned::new(ServerConnection::new(tls.clone()).unwrap(), stream)),
            None => Box::new(stream),
        })
    }

    /// Has nobody come?
    fn is_alone(&self) -> bool {
        self.listener.set_nonblocking(true).unwrap();
        matches!(self.listener.accept(), Err(e) if e.kind() == ErrorKind::WouldBlock)
    }
}

impl Heard {
    fn read(stream: Box<dyn Wire>) -> Self {
        let mut reader = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let line = lines.remove(0);
        let split =
            |line: &String| line.split_once(": ").map(|(n, v)| (n.to_lowercase(), v.to_owned())).unwrap();
        let headers: Vec<(String, String)> = lines.iter().map(split).collect();
        let length = headers.iter().find(|(name, _)| name == "content-length").unwrap().1.parse().unwrap();
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        Self { line, headers, body: String::from_utf8(body).unwrap(), stream: reader.into_inner() }
    }

    fn header(&self, name: &str) -> &str {
        &self.headers.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Answers it; what the other side makes of that is its business.
    fn answer(mut self, status: &str) {
        let _ = write!(self.stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
}

fn node(settings: &str) -> Node {
    let node = Node::new();
    node.write("home/.cis/config.toml", settings);
    node
}

fn publish(client: &Client, id: &str, command: &str) {
    let dag = json!({"dag_id": id, "tasks": [{"id": "t1", "command": command}]}).to_string();
    assert_eq!(client.post("/api/v1/dag/publish", &dag).status, 201);
}

fn confirm(client: &Client, id: &str) -> String {
    client.post(&format!("/api/v1/dag/{id}/confirm"), "").json()["run_id"].as_str().unwrap().to_owned()
}

/// The notices that are left, once `enough` says so of them.
fn left(node: &Node, enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let reader = Reader::open(&node.data.join("dag.db")).unwrap();
    eventually("that state of the outbox", || {
        let told: Vec<Value> = reader.notices(100).unwrap().iter().map(|notice| json!(notice)).collect();
        enough(&told).then_some(told)
    })
}

fn stop(up: Up) -> String {
    up.running.signal(Signal::TERM);
    up.running.wait().code(0).err
}

/// Is it signed, as far as the receiver that the documentation shows can tell?
fn is_signed(heard: &Heard, body: &str) -> bool {
    let page = include_str!("../../../docs/notify.md");
    let snippet = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let headers: BTreeMap<&str, &str> = heard.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let ask = "import json, sys\nprint(verify(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3].encode()))";
    let asked = Command::new("python3")
        .args(["-c", &format!("{snippet}\n{ask}"), SECRET, &json!(headers).to_string(), body])
        .output()
        .unwrap();
    match &*String::from_utf8_lossy(&asked.stdout) {
        "True\n" => true,
        "False\n" => false,
        _ => panic!("{asked:?}"),
    }
}

#[test]
fn a_webhook_hears_what_waits_and_what_failed_signed() {
    let receiver = Receiver::new();
    let node = node(&receiver.settings("allow_private = true"));
    let up = node.up();
    publish(&up.client, "backup", "exit 3");
    let waiting = receiver.hear();
    assert_eq!(waiting.line, "POST /hook?a=b HTTP/1.1");
    assert_eq!(waiting.header("content-type"), "application/json");
    assert!(
        is_signed(&waiting, &waiting.body) && !is_signed(&waiting, &waiting.body.replace("backup", "other"))
    );
    let told = waiting.json();
    assert_eq!((&told["occasion"], &told["type"]), (&json!("waiting"), &json!("cis.dag.published")));
    assert_eq!((&told["subject"], &told["id"]), (&json!("backup"), &json!(waiting.header("webhook-id"))));
    assert_eq!(told["data"]["data"]["review_id"], node.review("backup"));
    waiting.answer("204 No Content");
    let run_id = confirm(&up.client, "backup");
    let failed = receiver.hear();
    assert!(is_signed(&failed, &failed.body));
    let told = failed.json();
    assert_eq!((&told["occasion"], &told["subject"]), (&json!("failed"), &json!("backup#1")));
    assert_eq!((&told["data"]["run_id"], &told["data"]["status"]), (&json!(run_id), &json!("failed")));
    failed.answer("200 OK");
    // What ends well is told only to those who asked for it, and what was told is forgotten.
    publish(&up.client, "fine", "true");
    let waiting = receiver.hear();
    assert_eq!(waiting.json()["subject"], "fine");
    waiting.answer("200 OK");
    confirm(&up.client, "fine");
    eventually("its end", || (node.states("fine") == "t1=completed").then_some(()));
    // Nor is what is published and confirmed in one go.
    node.dag("own", "[[tasks]]\nid = \"t1\"\ncommand = \"true\"\n");
    node.ok(["run", "own.toml"]);
    left(&node, |left| left.is_empty());
    assert!(receiver.is_alone());
    let err = stop(up);
    assert!(
        err.contains(&format!("to http://{} when waiting, failed", receiver.listener.local_addr().unwrap()))
    );
    assert!(!err.contains("whsec_") && !err.contains("/hook"), "{err}");
    node.assert_sound();
}

#[test]
fn a_webhook_with_tls_goes_only_to_whom_the_machine_trusts() {
    let (receiver, certificate) = Receiver::with_tls();
    let (_, another) = Receiver::with_tls();
    let node = node(&receiver.settings("allow_private = true"));
    let trusted = node.write("trusted.pem", another).display().to_string();
    let node = node.with("SSL_CERT_FILE", &trusted);
    let up = node.up();
    publish(&up.client, "backup", "true");
    receiver.hear_nothing();
    let told = left(&node, |left| left.iter().any(|notice| notice["tries"] == 1));
    assert!(told[0]["problem"].as_str().unwrap().starts_with("no TLS: invalid peer certificate"), "{told:?}");
    stop(up);
    node.write("trusted.pem", certificate);
    let up = node.up();
    let waiting = receiver.hear();
    assert_eq!(waiting.json()["subject"], "backup");
    waiting.answer("200 OK");
    left(&node, |left| left.is_empty());
    stop(up);
}

#[test]
fn a_command_hears_it_on_its_input_and_by_name() {
    let node = Node::new();
    let (heard, script) = (node.fifo("heard"), node.path("heard").display().to_string());
    node.write(
        "home/.cis/config.toml",
        format!(
            "[notify]\ncommand = '''read -r event; echo \"$CIS_EVENT|$CIS_RUN|$CIS_STATUS|$event\" > {script}'''\n\
             on = [\"completed\"]\n"
        ),
    );
    let up = node.up();
    publish(&up.client, "job", "true");
    confirm(&up.client, "job");
    let line = heard.line();
    let (names, event) = line.rsplit_once('|').unwrap();
    assert_eq!(names, "completed|job#1|completed");
    let event: Value = serde_json::from_str(event).unwrap();
    assert_eq!((&event["occasion"], &event["data"]["dag_id"]), (&json!("completed"), &json!("job")));
    left(&node, |left| left.is_empty());
    assert!(stop(up).contains("to a command when completed"));
    assert!(heard.is_silent(), "it was told once");
}

#[test]
fn a_command_is_told_the_review_id_of_what_waits() {
    let node = Node::new();
    let (heard, script) = (node.fifo("heard"), node.path("heard").display().to_string());
    let command = format!("echo \"$CIS_EVENT|$CIS_REVIEW\" > {script}");
    node.write("home/.cis/config.toml", format!("[notify]\ncommand = '{command}'\non = [\"waiting\"]\n"));
    let up = node.up();
    publish(&up.client, "job", "true");
    assert_eq!(heard.line(), format!("waiting|{}", node.review("job")));
}

#[test]
fn a_killed_node_tells_it_when_it_is_back() {
    let receiver = Receiver::new();
    let node = node(&receiver.settings("allow_private = true"));
    let up = node.up();
    publish(&up.client, "backup", "true");
    let first = receiver.hear();
    // Committed, sent, and not answered yet.
    up.running.signal(Signal::KILL);
    up.running.wait();
    assert_eq!(left(&node, |left| left.len() == 1)[0]["occasion"], "waiting");
    let again = node.up();
    let second = receiver.hear();
    assert_eq!((second.header("webhook-id"), &second.body), (first.header("webhook-id"), &first.body));
    second.answer("200 OK");
    left(&node, |left| left.is_empty());
    stop(again);
    node.assert_sound();
}

#[test]
fn what_ends_while_the_node_is_down_is_told_when_it_is_back() {
    let receiver = Receiver::new();
    let node = node(&receiver.settings("allow_private = true\non = [\"failed\"]"));
    let (up_fifo, gate) = (node.fifo("up"), node.fifo("gate"));
    let command = format!(
        "echo up > {}; read -r _ < {}; exit 1",
        node.path("up").display(),
        node.path("gate").display()
    );
    let up = node.up();
    publish(&up.client, "long", &command);
    confirm(&up.client, "long");
    up_fifo.line();
    up.running.signal(Signal::KILL);
    up.running.wait();
    gate.let_through(1);
    let again = node.up();
    let failed = receiver.hear();
    assert_eq!(failed.json()["subject"], "long#1");
    failed.answer("200 OK");
    left(&node, |left| left.is_empty());
    stop(again);
}

#[test]
fn a_receiver_that_fails_is_asked_again_and_one_that_is_gone_is_not() {
    let receiver = Receiver::new();
    let node = node(&receiver.settings("allow_private = true"));
    let up = node.up();
    publish(&up.client, "backup", "true");
    let first = receiver.hear();
    let id = first.header("webhook-id").to_owned();
    first.answer("503 Service Unavailable");
    let second = receiver.hear();
    assert_eq!(second.header("webhook-id"), id);
    let told = left(&node, |left| left.iter().any(|notice| notice["tries"] == 1));
    assert_eq!(told[0]["problem"], "answered 503 Service Unavailable");
    second.answer("410 Gone");
    let told = left(&node, |left| left.iter().any(|notice| !notice["given_up_at"].is_null()));
    assert_eq!((&told[0]["tries"], &told[0]["due_at"]), (&json!(2), &Value::Null));
    node.ok(["node", "notifications"]).says("given up").says("410 Gone");
    let err = stop(up);
    assert!(err.contains("could not be told by webhook: answered 503") && err.contains("given up"), "{err}");
    assert!(receiver.is_alone());
}

#[test]
fn nothing_is_sent_into_the_nodes_own_network_unless_that_is_allowed() {
    let receiver = Receiver::new();
    let port = receiver.listener.local_addr().unwrap().port();
    for host in ["127.0.0.1", "localhost", "2130706433", "0177.0.0.1", "[::ffff:127.0.0.1]"] {
        let node = node(&format!(
            "[notify]\nurl = \"http://{host}:{port}/\"\nsecret = \"sixteen characters and more\"\n"
        ));
        let up = node.up();
        publish(&up.client, "backup", "true");
        let told = left(&node, |left| left.iter().any(|notice| notice["tries"] == 1));
        assert!(told[0]["problem"].as_str().unwrap().contains("not a public address"), "{host}: {told:?}");
        stop(up);
    }
    assert!(receiver.is_alone());
}

#[test]
fn a_redirect_leads_nowhere() {
    let (receiver, elsewhere) = (Receiver::new(), Receiver::new());
    let node = node(&receiver.settings("allow_private = true"));
    let up = node.up();
    publish(&up.client, "backup", "true");
    let to = elsewhere.listener.local_addr().unwrap();
    receiver.hear().answer(&format!("307 Temporary Redirect\r\nLocation: http://{to}/"));
    let told = left(&node, |left| left.iter().any(|notice| notice["tries"] == 1));
    assert!(told[0]["problem"].as_str().unwrap().contains("redirects are not followed"), "{told:?}");
    assert!(elsewhere.is_alone());
    stop(up);
}

#[test]
fn a_node_that_tells_nobody_keeps_nothing_to_tell() {
    let node = Node::new();
    let up = node.up();
    publish(&up.client, "backup", "exit 1");
    confirm(&up.client, "backup");
    eventually("its end", || (node.states("backup") == "t1=failed").then_some(()));
    assert_eq!(node.json(["node", "notifications"])["notifications"], json!([]));
    assert!(!stop(up).contains("notifications"));
}

#[test]
fn settings_that_do_not_go_together_are_told_with_their_place() {
    let settings =
        "[notify]\nurl = \"https://user:hidden@a.example/\"\non = [\"failled\"]\nallow_private = 1\n";
    let ran = node(settings).cis(["node", "start", "--bind", "127.0.0.1:0"]).code(2);
    for told in
        ["line 2: notify.url", "line 3: notify.on", "did you mean `failed`?", "line 4: notify.allow_private"]
    {
        assert!(ran.err.contains(told), "no `{told}`: {ran}");
    }
    assert!(!ran.err.contains("hidden"), "{ran}");
    let unsigned = node("[notify]\nurl = \"https://a.example/\"\n").cis(["config", "show"]).code(2);
    unsigned.tells("line 2: notify.url: a webhook needs a secret to sign with");
    let short = node("[notify]\nurl = \"http://a.example/\"\nsecret = \"short\"\n");
    short.cis(["node", "start", "--bind", "127.0.0.1:0"]).code(2).tells("shorter than 16 bytes");
    let file = node("[notify]\nurl = \"http://a.example/hidden\"\nsecret_file = \"nowhere\"\n");
    file.cis(["node", "start", "--bind", "127.0.0.1:0"]).code(1).tells(".cis/nowhere");
    let hidden = node("[notify]\nurl = \"http://a.example/hidden\"\nsecret = \"0123456789abcdef-hidden\"\n");
    assert!(!hidden.ok(["config", "show"]).out.contains("hidden"));
}
