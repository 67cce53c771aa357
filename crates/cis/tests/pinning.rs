//! A client that knows its node by its DID sends a token to no other: what listens at the node's address has to prove first,
//! on the very connection, that it has the node's key and is where it was dialled.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::process::Signal;
use serde_json::json;
use support::Node;

/// Reads one request; answers its head, line by line.
fn head(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => return Some(lines),
            line => lines.push(line.to_owned()),
        }
    }
}

/// Takes connections in the node's place, and answers each request with what `answer` makes of its first line; tells the heads
/// of all requests.
fn thief(listener: TcpListener, answer: impl Fn(&str) -> String + Send + 'static) -> Receiver<Vec<String>> {
    let (told, heads) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            while let Some(head) = head(&mut stream) {
                let body = answer(&head[0]);
                let _ = told.send(head);
                let _ = write!(
                    stream.get_mut(),
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
            }
        }
    });
    heads
}

fn has_token(head: &[String]) -> bool {
    head.iter().any(|line| line.to_ascii_lowercase().starts_with("authorization"))
}

fn did(node: &Node) -> String {
    node.json(["identity", "show"])["did"].as_str().unwrap().to_owned()
}

#[test]
fn node_that_proves_its_did_is_called() {
    let node = Node::new();
    let up = node.up();
    let (token, did) = (node.token(["reader", "--as", "reader"]), did(&node));
    let fingerprint = did.rsplit(':').next().unwrap();
    let port = up.client.address.rsplit(':').next().unwrap().to_owned();
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{port}");
        // The name in a DID follows from no key.
        for did in [did.as_str(), &format!("did:cis:other:{fingerprint}")] {
            node.ok(["--node", &url, "--token", &token, "--node-did", did, "dag", "list"]);
        }
    }
    let url = format!("http://127.0.0.1:{port}");
    let other = format!("did:cis:node:{}", "0".repeat(32));
    node.cis(["--json", "--node", &url, "--token", &token, "--node-did", &other, "dag", "list"])
        .code(1)
        .says(r#""code":"WrongNode""#)
        .says("it was sent no token");
    // A DID that no key can prove is a mistake.
    for wrong in ["did:cis:local:abc", "node"] {
        node.cis(["--node", &url, "--token", &token, "--node-did", wrong, "dag", "list"])
            .code(2)
            .tells("hint:");
    }
}

#[test]
fn proof_needs_no_token_and_is_of_the_nodes_own_address() {
    let node = Node::new();
    let up = node.up();
    let nobody = up.client.with("");
    let ask = |nonce: &str, address: &str| {
        nobody.get(&format!("/api/v1/node/proof?nonce={nonce}&address={address}"))
    };
    let nonce = "0a".repeat(32);
    let own = ask(&nonce, &up.client.address);
    assert_eq!((own.status, &own.json()["did"]), (200, &json!(did(&node))), "{own:?}");
    let elsewhere = ask(&nonce, "127.0.0.1:1");
    assert_eq!((elsewhere.status, elsewhere.code()), (421, "WrongNode".to_owned()), "{elsewhere:?}");
    assert_eq!(ask("0a", &up.client.address).code(), "ValidationFailed");
    assert_eq!(nobody.get("/api/v1/node/proof").code(), "ValidationFailed");
}

#[test]
fn thief_of_the_port_gets_no_token() {
    let node = Node::new();
    let up = node.up();
    let (token, did) = (node.token(["agent"]), did(&node));
    let address = up.client.address.to_string();
    up.running.signal(Signal::KILL);
    up.running.wait();
    let heads = thief(TcpListener::bind(&address).unwrap(), |_| r#"{"success":true,"tasks":[]}"#.to_owned());
    let url = format!("http://{address}");
    let pinned = ["--node", &url, "--token", &token, "--node-did", &did];
    node.cis([&pinned[..], &["dag", "list"]].concat()).code(1).tells("it was sent no token").tells("hint:");
    node.cis([&pinned[..], &["work", "--once", "--", "true"]].concat()).code(1).tells("it was sent no token");
    // The owner calls on the socket of the data directory, and sends no token anywhere.
    node.cis(["work", "--once", "--", "true"]).code(1);
    let asked: Vec<_> = heads.try_iter().collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(
        asked.iter().all(|head| head[0].starts_with("GET /api/v1/node/proof?") && !has_token(head)),
        "{asked:?}"
    );
    // Without a DID to know the node by, it gets what it was after: the thief works.
    node.cis(["--node", &url, "--token", &token, "dag", "list"]);
    assert!(heads.try_iter().any(|head| has_token(&head)));
}

#[test]
fn proof_that_another_process_passes_on_is_refused() {
    let node = Node::new();
    let up = node.up();
    let (token, did) = (node.token(["agent"]), did(&node));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (own, real) = (listener.local_addr().unwrap().to_string(), up.client.address.to_string());
    let (dialled, client) = (own.clone(), up.client.with(""));
    // It asks the node itself, which is at its place: once for what the client dialled, then for what the node does sign.
    let relayed = move |line: &str| {
        let path = line.split(' ').nth(1).unwrap().to_owned();
        let told = client.get(&path);
        assert_eq!(told.code(), "WrongNode", "{told:?}");
        let escaped = dialled.replace(':', "%3A");
        assert!(path.contains(&escaped), "{path}");
        client.get(&path.replace(&escaped, &real.replace(':', "%3A"))).body
    };
    let heads = thief(listener, relayed);
    let url = format!("http://{own}");
    node.cis(["--node", &url, "--token", &token, "--node-did", &did, "dag", "list"])
        .code(1)
        .tells("its signature is wrong");
    assert!(heads.try_iter().all(|head| !has_token(&head)));
}

/// Behind `localhost` there are two addresses. A process at the one that the node has not can ask the node at the other.
#[test]
fn proof_of_the_other_address_of_localhost_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("only the superuser can say what localhost is");
        return;
    }
    let node = Node::new();
    let up = node.up();
    let (token, did) = (node.token(["agent"]), did(&node));
    let port = up.client.address.rsplit(':').next().unwrap().to_owned();
    let Ok(listener) = TcpListener::bind(format!("[::1]:{port}")) else {
        println!("this machine has no IPv6");
        return;
    };
    // It passes everything on, and so answers as the node does.
    let client = up.client.with("");
    let heads = thief(listener, move |line| client.get(line.split(' ').nth(1).unwrap()).body);
    let hosts = node.write("hosts", "::1 localhost\n127.0.0.1 localhost\n");
    let url = format!("http://localhost:{port}");
    let called = |pin: &[&str]| {
        let args = ["--node", &url, "--token", &token, "dag", "list"];
        let plain = node.command(args.iter().chain(pin));
        let mut command = std::process::Command::new("unshare");
        let setup = format!("mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
        command.args(["-m", "sh", "-c", &setup, "sh"]).arg(plain.get_program()).args(plain.get_args());
        command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(node.dir());
        support::Running::start(command).wait()
    };
    called(&["--node-did", &did]).code(1).tells("WrongNode");
    let asked: Vec<_> = heads.try_iter().collect();
    assert!(!asked.is_empty() && !asked.iter().any(|head| has_token(head)), "{asked:?}");
    // Without a DID, the thief gets the token.
    called(&[]);
    assert!(heads.try_iter().any(|head| has_token(&head)));
}

/// By whichever address of the machine it is called: it signs the one that the question came in at.
#[test]
fn node_on_all_addresses_is_called_by_any_of_them() {
    let node = Node::new();
    let mut running = node.spawn(["node", "start", "--bind", "0.0.0.0:0"]);
    let line = running.until("http://");
    let port = line.trim().rsplit(':').next().unwrap().to_owned();
    let (token, did) = (node.token(["reader", "--as", "reader"]), did(&node));
    // Nothing is sent to it: it is only asked which address of this machine would be used.
    let outward = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    let outward = outward.map(|address| address.ip().to_string());
    let hosts = ["127.0.0.1", "127.0.0.2", "localhost"].map(str::to_owned);
    for host in hosts.into_iter().chain(outward) {
        let url = format!("http://{host}:{port}");
        node.ok(["--node", &url, "--token", &token, "--node-did", &did, "dag", "list"]);
    }
}

/// As from a file that is not there.
#[test]
fn empty_did_is_refused() {
    let node = Node::new();
    let up = node.up();
    let (url, token) = (format!("http://{}", up.client.address), node.token(["agent"]));
    let mut command = node.command(["--node", &url, "--token", &token, "dag", "list"]);
    command.env("CIS_NODE_DID", "");
    let ran = support::Running::start(command).wait();
    ran.code(2).tells("the DID of the node is empty").tells("hint:");
}

#[test]
fn agents_know_their_node_by_its_did() {
    let node = Node::new();
    let _up = node.up();
    let shown =
        node.ok(["agent", "run", "builder", "--sandbox", "off", "--", "sh", "-c", "echo $CIS_NODE_DID"]);
    assert_eq!(shown.out.trim(), did(&node));
    let script = format!("{} dag list && echo called", support::EXE);
    node.ok(["agent", "run", "builder", "--sandbox", "off", "--", "sh", "-c", &script]).says("called");
}

#[test]
fn answer_without_end_is_no_proof() {
    let node = Node::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let Some(_) = head(&mut stream) else { continue };
            let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n");
            while stream.get_mut().write_all(&[b' '; 65_536]).is_ok() {}
            let _ = stream.read(&mut [0]);
        }
    });
    let did = format!("did:cis:node:{}", "0".repeat(32));
    node.cis(["--node", &url, "--token", "cis_1", "--node-did", &did, "dag", "list"]).code(1).tells("hint:");
}
