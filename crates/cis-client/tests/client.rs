//! The client against a real HTTP server, on a Unix socket and on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cis_api::calls::{
    AttachRun, CancelRun, CompleteTask, FollowChanges, FollowEvents, PauseScope, RunLogs, ShowReady, StartRun,
};
use cis_api::dag::{DagPath, InScope};
use cis_api::event::EventQuery;
use cis_api::log::LogQuery;
use cis_api::node::ScopePath;
use cis_api::run::{CancelBody, OwnerOptions, RunPath, StartBody};
use cis_api::work::{CompleteBody, ExecutionPath};
use cis_api::{Nothing, Request};
use cis_client::{CallError, CallOptions, Client};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Position;
use cis_core::source::Timestamp;
use serde_json::json;
use support::{Answer, Peer, on_loopback, on_socket};

const RUN: &str = "0198c5a0-0000-7000-8000-000000000001";

const PAUSED: &str = r#"{"success":true,"scope":"project-x","paused":true,"changed":true}"#;

const STARTED: &str = concat!(
    r#"{"success":true,"run_id":"0198c5a0-0000-7000-8000-000000000001","run":"a#1","dag_id":"a","scope":"global","#,
    r#""number":1,"status":"running","message":"started"}"#,
    "\n"
);

fn pause() -> Request<PauseScope> {
    Request::new(ScopePath { scope: "project-x".into() }, Nothing {}, Nothing {})
}

fn attach() -> Request<AttachRun> {
    Request::new(RunPath { run: RUN.into() }, Nothing {}, Nothing {})
}

fn changes() -> Request<FollowChanges> {
    Request::new(Nothing {}, Nothing {}, Nothing {})
}

fn start_attached() -> Request<StartRun> {
    let owner = OwnerOptions { attached: true, ..OwnerOptions::default() };
    let body = StartBody { owner: Some(owner), ..StartBody::default() };
    Request::new(DagPath { id: "a".into() }, InScope::default(), body)
}

fn impatient() -> CallOptions<'static> {
    CallOptions { patience: Duration::from_millis(50), ..CallOptions::default() }
}

/// A directory, and a path for a socket in it.
fn socket() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cis.sock");
    (dir, path)
}

#[test]
fn call_over_tcp_carries_token_body_and_response() {
    let (client, peer) = on_loopback(vec![Answer::Whole(
        200,
        r#"{"success":true,"run_id":"0198c5a0-0000-7000-8000-000000000001","status":"cancelling"}"#,
    )]);
    let cancel =
        Request::<CancelRun>::new(RunPath { run: RUN.into() }, Nothing {}, CancelBody { kill: true });
    let stopping = client.call(&cancel).unwrap();
    assert_eq!((stopping.run_id.to_string().as_str(), stopping.status.word()), (RUN, "cancelling"));
    let asked = peer.asked.recv().unwrap();
    assert_eq!(asked.line, format!("POST /under/api/v1/runs/{RUN}/cancel"));
    assert_eq!(asked.header("authorization"), format!("Bearer {}", support::TOKEN));
    assert!(asked.header("host").starts_with("127.0.0.1:"));
    assert_eq!(asked.header("cis-user"), "");
    assert_eq!(asked.body, r#"{"kill":true}"#);
}

#[test]
fn call_over_the_socket_names_the_owner_and_carries_the_key() {
    let (_dir, path) = socket();
    let (client, peer) = on_socket(&path, vec![Answer::Whole(200, PAUSED)]);
    assert!(client.call(&pause()).unwrap().paused);
    let asked = peer.asked.recv().unwrap();
    assert_eq!(asked.line, "POST /api/v1/scopes/project-x/pause");
    assert_eq!(asked.header("authorization"), format!("Bearer {}", support::KEY));
    assert_eq!((asked.header("cis-user"), asked.header("host")), ("ann", "localhost"));
    assert_eq!(asked.body, "");
}

#[test]
fn user_name_outside_ascii_travels_as_its_bytes() {
    let (_dir, path) = socket();
    let (_, peer) = on_socket(&path, vec![Answer::Whole(200, PAUSED)]);
    let client = Client::socket(&path, support::KEY, "Zoë").unwrap();
    client.call(&pause()).unwrap();
    assert_eq!(peer.asked.recv().unwrap().headers["cis-user"].as_bytes(), "Zoë".as_bytes());
    assert_eq!(Client::socket(&path, support::KEY, "a\nb").unwrap_err().code, ErrorCode::ValidationFailed);
}

#[test]
fn socket_path_longer_than_an_address_is_reached() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(200));
    std::fs::create_dir(&deep).unwrap();
    let path = deep.join("cis.sock");
    let (client, _peer) = on_socket(&path, vec![Answer::Whole(200, PAUSED)]);
    assert!(client.call(&pause()).unwrap().changed);
    assert_eq!(client.peer_pid().unwrap(), std::process::id());
}

#[test]
fn peer_pid_is_told_for_a_listener_that_speaks_no_http() {
    let (_dir, path) = socket();
    let _listener = UnixListener::bind(&path).unwrap();
    assert_eq!(Client::socket(&path, "key", "ann").unwrap().peer_pid().unwrap(), std::process::id());
    let (client, _peer) = on_loopback(Vec::new());
    assert_eq!(client.peer_pid().unwrap_err().kind(), std::io::ErrorKind::Unsupported);
}

#[test]
fn refusal_arrives_with_its_code_hint_and_details() {
    let refused = r#"{"success":false,"error":{"code":"InvalidTransition","message":"it is over","hint":"look","details":{"from":"completed"},"docs":"/docs/errors/InvalidTransition"}}"#;
    let (client, _peer) = on_loopback(vec![Answer::Whole(409, refused), Answer::Whole(409, refused)]);
    let refusal = client.call(&pause()).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::InvalidTransition);
    assert_eq!((refusal.message.as_str(), refusal.hint.as_deref()), ("it is over", Some("look")));
    assert_eq!(refusal.details["from"], "completed");
    assert!(matches!(client.hold(&attach(), CallOptions::default()), Err(CallError::Refused(_))));
}

#[test]
fn peer_that_answers_no_json_is_told_from_one_that_refuses() {
    let page = "<html>";
    let answers = vec![
        Answer::Whole(502, page),
        Answer::Whole(200, page),
        Answer::Whole(418, "{}"),
        Answer::Whole(200, r#"{"success":true,"scope":7}"#),
    ];
    let (client, _peer) = on_loopback(answers);
    let call = || client.try_call(&pause(), CallOptions::default()).unwrap_err();
    assert!(matches!(call(), CallError::NoAnswer(..)));
    assert!(matches!(call(), CallError::NoAnswer(..)));
    let CallError::Refused(refusal) = call() else { panic!("it answered") };
    assert_eq!(refusal.message, "the node answered 418 without saying why");
    let misread = call();
    assert!(matches!(misread, CallError::NotUnderstood(..)));
    let refusal = Refusal::from(misread);
    assert!(refusal.hint.is_some_and(|hint| hint.contains("cis --version")));
}

#[test]
fn nothing_that_listens_is_absent() {
    let (_dir, path) = socket();
    let client = Client::socket(&path, "key", "ann").unwrap();
    assert!(client.try_call(&pause(), CallOptions::default()).unwrap_err().is_absent());
    // What a killed coordinator leaves behind.
    drop(UnixListener::bind(&path).unwrap());
    let error = client.try_call(&pause(), CallOptions::default()).unwrap_err();
    assert!(error.is_absent());
    let refusal = Refusal::from(error);
    assert_eq!(refusal.code, ErrorCode::Unavailable);
    assert!(refusal.message.contains(&path.display().to_string()), "{refusal}");

    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = Client::tcp(&format!("http://127.0.0.1:{port}"), "token").unwrap();
    let error = client.try_call(&pause(), CallOptions::default()).unwrap_err();
    assert!(error.is_absent());
    let said = Refusal::from(error).message;
    assert!(said.starts_with(&format!("the node at http://127.0.0.1:{port} cannot be reached: ")), "{said}");
}

/// What a coordinator of a version without HTTP does: it takes the first bytes for a length, which is too large.
#[test]
fn peer_that_closes_without_an_answer_is_no_answer() {
    let (_dir, path) = socket();
    let listener = UnixListener::bind(&path).unwrap();
    let peer = thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
        }
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"\x05\0\0\0hello").unwrap();
        listener
    });
    let client = Client::socket(&path, "key", "ann").unwrap();
    let error = client.try_call(&pause(), CallOptions::default()).unwrap_err();
    assert!(matches!(error, CallError::NoAnswer(..)) && !error.is_absent(), "{error}");
    let error = client.hold(&attach(), CallOptions::default()).unwrap_err();
    assert!(matches!(error, CallError::NoAnswer(..)), "{error}");
    let error = client.try_call(&pause(), CallOptions::default()).unwrap_err();
    assert!(matches!(error, CallError::NoAnswer(..)), "{error}");
    peer.join().unwrap();
}

#[test]
fn peer_that_says_nothing_times_out() {
    let (client, _peer) = on_loopback(vec![Answer::Silence]);
    assert!(matches!(client.try_call(&pause(), impatient()), Err(CallError::TimedOut(_))));
    let (_dir, path) = socket();
    // As of a stopped process: connections are queued and never taken.
    let _listener = UnixListener::bind(&path).unwrap();
    let client = Client::socket(&path, "key", "ann").unwrap();
    assert!(matches!(client.try_call(&pause(), impatient()), Err(CallError::TimedOut(_))));
    assert!(matches!(client.hold(&attach(), impatient()), Err(CallError::TimedOut(_))));
}

#[test]
fn full_queue_of_a_stopped_process_times_out() {
    let (_dir, path) = socket();
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let client = Client::socket(&path, "key", "ann").unwrap();
    // The first is queued, the others are not even connected.
    for _ in 0..3 {
        let error = client.try_call(&pause(), impatient()).unwrap_err();
        assert!(matches!(error, CallError::TimedOut(_)), "{error}");
    }
}

#[test]
fn idempotency_key_is_sent_where_given() {
    let ended = r#"{"success":true,"execution_id":7,"task_id":"t","status":"completed"}"#;
    let (client, peer) = on_loopback(vec![Answer::Whole(200, ended), Answer::Whole(200, ended)]);
    let fence = serde_json::from_str("3").unwrap();
    let path = ExecutionPath { execution: "7".into() };
    let complete = Request::<CompleteTask>::new(path, Nothing {}, CompleteBody { fence, outputs: None });
    let options = CallOptions { idempotency_key: Some("once"), ..CallOptions::default() };
    client.try_call(&complete, options).unwrap();
    client.call(&complete).unwrap();
    assert_eq!(peer.asked.recv().unwrap().header("idempotency-key"), "once");
    assert_eq!(peer.asked.recv().unwrap().header("idempotency-key"), "");
}

#[test]
fn lines_are_heard_one_by_one_however_they_arrive() {
    let lines: &[&str] = &[
        r#"{"task_id":"a","attempt":1,"stream":"stdout","at":null,"text":"one"}"#,
        "\n\n{\"task_id\":\"a\",\"attempt\":1,\"stream\":\"stderr\",\"at\":null,",
        "\"text\":\"two\"}\r\n{\"task_id\":\"b\",\"attempt\":2,\"stream\":\"stdout\",\"at\":null,\"text\":\"three\"}\n{\"cut",
    ];
    let (client, peer) = on_loopback(vec![Answer::pieces(lines), Answer::pieces(lines)]);
    let request = Request::<RunLogs>::new(RunPath { run: RUN.into() }, LogQuery::default(), Nothing {});
    let mut heard = Vec::new();
    let mut hear_up_to = |limit: usize| {
        heard.clear();
        client.follow(&request, |line| {
            heard.push(line.text);
            heard.len() < limit
        })?;
        Ok::<_, Refusal>(heard.clone())
    };
    assert_eq!(hear_up_to(9).unwrap(), ["one", "two", "three"]);
    assert_eq!(hear_up_to(2).unwrap(), ["one", "two"]);
    assert_eq!(peer.asked.recv().unwrap().line, format!("GET /under/api/v1/runs/{RUN}/logs?follow=false"));
}

#[test]
fn events_are_what_their_envelope_holds() {
    let event = |position: i64, step: &str| {
        let (position, at) = (Position(position), Timestamp(1));
        let subject = json!({"kind": "run", "key": RUN});
        json!({"position": position, "at": at, "dag_id": "a", "scope": "global", "type": "run.started",
               "subject": subject, "step": step, "status": "running", "version": 2})
    };
    let (first, second) = (event(7, "start").to_string(), event(9, "finish").to_string());
    let (begin, end) = first.split_at(20);
    let events = &[
        ":keep-alive\n\nid: 7\nevent: cis.run.started\ndata: {\"specversion\":\"1.0\",\"data\":",
        begin,
        end,
        "}\n",
        "\nid: 8\n\ndata: {\"data\":\ndata:",
        &second,
        "\ndata: }\n\n",
    ];
    let (client, peer) = on_loopback(vec![Answer::pieces(events)]);
    let query = EventQuery { after: Some(6), ..EventQuery::default() };
    let mut heard = Vec::new();
    let follow = Request::<FollowEvents>::new(Nothing {}, query, Nothing {});
    client
        .follow(&follow, |event| {
            heard.push((event.position.0, event.step));
            true
        })
        .unwrap();
    assert_eq!(heard, [(7, "start".to_owned()), (9, "finish".to_owned())]);
    assert_eq!(peer.asked.recv().unwrap().line, "GET /under/api/v1/events?after=6");
}

#[test]
fn stream_that_breaks_off_or_makes_no_sense_is_an_error() {
    let (client, _peer) = on_loopback(vec![
        Answer::pieces(&["{\"commits\":1}\n{\"commits\":\"many\"}\n"]),
        Answer::pieces(&["{\"commits\":1}\n<html>\n"]),
        Answer::Whole(403, r#"{"success":false,"error":{"code":"Forbidden","message":"no","docs":""}}"#),
    ]);
    let mut heard = 0;
    let mut follow = || {
        client
            .follow(&changes(), |_| {
                heard += 1;
                true
            })
            .unwrap_err()
    };
    assert!(follow().message.contains("not understood"));
    assert!(follow().message.contains("not JSON"));
    assert_eq!(follow().code, ErrorCode::Forbidden);
    assert_eq!(heard, 2);
}

fn hold_until_dropped(client: &Client, peer: &Peer) {
    let (started, held) = client.hold(&start_attached(), CallOptions::default()).unwrap();
    assert_eq!((started.run.as_str(), started.number), ("a#1", 1));
    let asked = peer.asked.recv().unwrap();
    assert!(asked.body.contains(r#""owner":{"attached":true"#), "{}", asked.body);
    let watch = held.watch().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let watching = thread::spawn(move || {
        watch.wait_closed();
        tell.send(()).unwrap();
    });
    // Other calls go on meanwhile, and it stays open although more is said than is read.
    assert!(client.call(&pause()).unwrap().paused);
    assert!(peer.closed.try_recv().is_err() && told.try_recv().is_err());
    drop(held);
    peer.closed.recv().unwrap();
    told.recv().unwrap();
    watching.join().unwrap();
}

#[test]
fn held_stream_stays_open_unread_until_it_is_dropped() {
    let answers = vec![Answer::open(&[STARTED, "\n", "more that is not read\n"]), Answer::Whole(200, PAUSED)];
    let (_dir, path) = socket();
    let (client, peer) = on_socket(&path, answers.clone());
    hold_until_dropped(&client, &peer);
    let (client, peer) = on_loopback(answers);
    hold_until_dropped(&client, &peer);
}

#[test]
fn held_stream_outlives_its_client() {
    let (_dir, path) = socket();
    let (client, peer) = on_socket(&path, vec![Answer::open(&[STARTED])]);
    let (_, held) = client.hold(&attach(), CallOptions::default()).unwrap();
    drop(client);
    assert!(peer.closed.try_recv().is_err());
    drop(held);
    peer.closed.recv().unwrap();
}

#[test]
fn watch_wakes_when_the_other_side_closes() {
    let (_dir, path) = socket();
    let (client, peer) = on_socket(&path, vec![Answer::open(&[STARTED, "unread\n"])]);
    let (_, held) = client.hold(&attach(), CallOptions::default()).unwrap();
    let watch = held.watch().unwrap();
    let watching = thread::spawn(move || watch.wait_closed());
    peer.hang_up.send(true).unwrap();
    watching.join().unwrap();
    drop(held);
}

#[test]
fn stream_that_ends_before_its_first_line_is_not_held() {
    let (client, _peer) = on_loopback(vec![Answer::pieces(&[]), Answer::pieces(&["{\"success\":tr"])]);
    for _ in 0..2 {
        let error = client.hold(&attach(), CallOptions::default()).unwrap_err();
        assert!(matches!(error, CallError::NoAnswer(..)), "{error}");
    }
}

#[test]
fn threads_call_at_once_past_one_that_listens_slowly() {
    const CALLS: usize = 16;
    let (_dir, path) = socket();
    let mut answers = vec![Answer::open(&["{\"commits\":1}\n"])];
    answers.extend(vec![Answer::Whole(200, PAUSED); CALLS]);
    let (client, peer) = on_socket(&path, answers);
    let (tell, told) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let following = {
        let client = client.clone();
        thread::spawn(move || {
            client.follow(&changes(), |change| {
                tell.send(change.commits).unwrap();
                // Held up until all the calls below are answered.
                released.recv().unwrap();
                true
            })
        })
    };
    assert_eq!(told.recv().unwrap(), 1);
    let client = Arc::new(client);
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let client = client.clone();
            thread::spawn(move || client.call(&pause()).unwrap().paused)
        })
        .collect();
    assert!(calls.into_iter().all(|call| call.join().unwrap()));
    release.send(()).unwrap();
    peer.hang_up.send(true).unwrap();
    following.join().unwrap().unwrap();
}

#[test]
fn urls_and_tokens_that_are_none_are_refused() {
    for url in ["", "nowhere", "ftp://a", "/path"] {
        assert_eq!(Client::tcp(url, "token").unwrap_err().code, ErrorCode::ValidationFailed, "{url}");
    }
    for token in ["", " ", "two words", "line\nbreak"] {
        assert_eq!(Client::tcp("http://a", token).unwrap_err().code, ErrorCode::Unauthorized, "{token}");
    }
    let ready = Request::<ShowReady>::new(Nothing {}, Nothing {}, Nothing {});
    let client = Client::tcp("http://127.0.0.1:1", " token\n").unwrap();
    assert!(!format!("{client:?} {ready:?}").contains("token"));
}
