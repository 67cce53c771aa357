//! What a node does when there are too many connections, or connections that cost too much.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::json;
use support::Node;
use support::http::{Client, Up};

/// Limits with which a node has places for 192 connections: 96 that have not authenticated, 128 of one identity.
const FEW_FILES: &str = "ulimit -S -n 300; ulimit -H -n 512";
const ALL: usize = 192;
const OF_IDENTITY: usize = 128;

/// Connections that have not authenticated, where there are files enough.
const UNAUTHENTICATED: usize = 256;

fn connect(up: &Up) -> TcpStream {
    TcpStream::connect(&*up.client.address).unwrap()
}

fn idle(up: &Up, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| connect(up)).collect()
}

/// The answer to a request on a connection that stays open: its status, head and body.
fn ask(stream: &mut TcpStream, client: &Client, path: &str) -> (u16, String, String) {
    let (host, token) = (&client.address, &client.token);
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    answer(stream)
}

fn answer(stream: &mut TcpStream) -> (u16, String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head, String::from_utf8(body).unwrap())
}

/// Waits until the node has closed a connection.
fn wait_closed(stream: &mut TcpStream) {
    // What was left unread may reset it.
    if let Ok(read) = stream.read(&mut [0]) {
        assert_eq!(read, 0);
    }
}

#[test]
fn unauthenticated_connections_are_evicted_oldest_first() {
    let node = Node::new();
    let up = node.up();
    let mut known = connect(&up);
    assert_eq!(ask(&mut known, &up.client, "/api/v1/whoami").0, 200);
    let mut guessing = connect(&up);
    assert_eq!(ask(&mut guessing, &up.client.with("cis_wrong"), "/api/v1/whoami").0, 401);
    let mut half_open = connect(&up);
    half_open.write_all(b"GET /health HT").unwrap();
    let mut idle = idle(&up, UNAUTHENTICATED);
    wait_closed(&mut guessing);
    wait_closed(&mut half_open);
    // The rest are as many as there are places: all of them are served, and so is the one that was known before.
    for stream in idle.iter_mut().chain([&mut known]) {
        assert_eq!(ask(stream, &up.client, "/health").0, 200);
    }
    // Requests that need no token earn no place: the first that was answered is the first to go.
    let _next = connect(&up);
    wait_closed(&mut idle[0]);
    assert_eq!(ask(&mut known, &up.client, "/api/v1/whoami").0, 200);
}

#[test]
fn idle_connections_leave_descriptors_for_runs() {
    let node = Node::new();
    let up = node.up_after(FEW_FILES);
    let mut idle = idle(&up, 600);
    wait_closed(&mut idle[0]);
    let dag = json!({"dag_id": "d", "tasks": [{"id": "t", "command": "ulimit -S -n"}]}).to_string();
    up.client.run(&dag);
    let over = up.client.until_over("d");
    assert_eq!(over["status"], "completed", "{over}");
    assert_eq!(over["tasks"][0]["output"], "300\n", "tasks have the limit that the node was started with");
    drop(idle);
    node.assert_sound();
}

#[test]
fn identity_with_too_many_connections_is_told_to_close_some() {
    let node = Node::new();
    let up = node.up_after(FEW_FILES);
    let [greedy, modest] = ["a", "b"].map(|name| up.client.with(&node.token([name])));
    let hold = |client: &Client| {
        let mut stream = connect(&up);
        let answered = ask(&mut stream, client, "/api/v1/whoami");
        (stream, answered)
    };
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..OF_IDENTITY {
        let (stream, (status, _, body)) = hold(&greedy);
        assert_eq!(status, 200, "{body}");
        held.push(stream);
    }
    let (mut refused, (status, head, body)) = hold(&greedy);
    assert_eq!(status, 429, "{body}");
    assert!(body.contains("`a` has 128 connections") && body.contains("close those"), "{body}");
    assert!(head.contains("connection: close") && head.contains("retry-after: 1"), "{head}");
    wait_closed(&mut refused);
    for _ in OF_IDENTITY..ALL {
        let (stream, (status, _, body)) = hold(&modest);
        assert_eq!(status, 200, "another identity has its own: {body}");
        held.push(stream);
    }
    // With every place taken by callers that are known, the next one hears so at once.
    let mut late = connect(&up);
    let (status, head, body) = answer(&mut late);
    assert_eq!(status, 503, "{head}");
    assert!(body.contains("\"Unavailable\"") && body.contains("close those"), "{body}");
    // A place that becomes free is had again.
    drop(held.pop());
    loop {
        let mut stream = connect(&up);
        // While the node has not noticed yet it may refuse.
        let (host, token) = (&modest.address, &modest.token);
        let head =
            format!("GET /api/v1/whoami HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        if answer(&mut stream).0 == 200 {
            break;
        }
    }
    assert_eq!(ask(&mut held[0], &greedy, "/api/v1/whoami").0, 200);
}

/// The most memory a process has used, in MiB.
fn peak_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
}

#[test]
fn connections_without_the_key_hold_little_memory() {
    const EACH_BYTES: usize = 4 << 20;
    let node = Node::new();
    let up = node.up();
    node.ok(["pending"]);
    let before = peak_mib(up.running.pid());
    let host = "Host: localhost\r\n";
    let body = format!("POST /api/v1/dag/publish HTTP/1.1\r\n{host}Content-Length: {}\r\n\r\n", 128 << 20);
    let wrong =
        format!("{}Authorization: Bearer 0\r\n\r\n", body.trim_end_matches("\r\n").to_owned() + "\r\n");
    let endless = format!("GET / HTTP/1.1\r\n{host}X-Long: ");
    // Each sends as much as is taken. They are more than there are places.
    let held: Vec<UnixStream> = (0..150)
        .map(|n| {
            let mut stream = UnixStream::connect(node.data.join("cis.sock")).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
            let _ = stream.write_all([&body, &wrong, &endless][n % 3].as_bytes());
            let piece = [b'x'; 64 << 10];
            let _ = (0..EACH_BYTES / piece.len()).try_for_each(|_| stream.write_all(&piece));
            stream
        })
        .collect();
    // The owner is served beside them.
    node.ok(["pending"]);
    let used = peak_mib(up.running.pid()) - before;
    drop(held);
    // All that was sent would be 600 MiB.
    assert!(used < 32, "{used} MiB");
}
