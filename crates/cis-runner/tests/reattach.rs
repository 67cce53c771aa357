//! Coordinators come and go, runners die: nothing runs twice, nothing is lost, nobody survives unseen.

mod support;

use std::io::Write;

use cis_runner::client::{DOOR_KEY, encode};
use cis_runner::log::Stream;
use cis_runner::protocol::*;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;
use support::{Node, exited, hello, key, kill_and_wait, said, script, wait_gone};

#[test]
fn an_older_coordinator_is_refused_even_after_the_runner_died() {
    let node = Node::new();
    let c = node.connect(5, 1);
    let refused = |epoch| {
        let mut late = node.stranger();
        late.say(&hello(epoch, 1, None));
        assert!(matches!(late.hear(), FromRunner::Refused { epoch: 5 }));
        assert!(late.try_hear().is_none());
    };
    refused(4);
    kill_and_wait(c.runner);
    refused(4);
    node.connect(5, 1);
}

#[test]
fn late_messages_start_nothing() {
    let node = Node::new();
    let file = node.dir.path().join("started");
    let mut old = node.connect(1, 4);
    // Half a message now, the rest when the next one is in charge.
    let late = encode(&ToRunner::Start(Box::new(script(1, &format!("touch {}", file.display()))))).unwrap();
    old.stream.write_all(&late[..late.len() - 1]).unwrap();
    let mut new = node.connect(2, 4);
    let _ = old.stream.write_all(&late[late.len() - 1..]);
    assert!(old.try_hear().is_none(), "dropped before the new one was answered");
    assert_eq!(new.run(script(2, "true")).outcome, exited(0));
    assert!(!file.exists());
    let mut rude = node.stranger();
    rude.say(&node.context());
    assert!(rude.try_hear().is_none(), "Hello comes first");
}

/// Somebody in a sandbox reaches the socket, but not what lies beside it.
#[test]
fn who_does_not_know_the_directorys_key_is_not_heard() {
    let node = Node::new();
    node.connect(1, 1);
    std::fs::write(node.data.join(DOOR_KEY), "secret").unwrap();
    let hello = |key: Option<&str>| ToRunner::Hello {
        protocol: PROTOCOL,
        oldest: OLDEST,
        epoch: 2,
        slots: 1,
        key: key.map(str::to_owned),
        directory: None,
    };
    for wrong in [None, Some(""), Some("secre")] {
        let mut stranger = node.stranger();
        stranger.say(&hello(wrong));
        assert!(stranger.try_hear().is_none(), "{wrong:?}");
    }
    let mut known = node.stranger();
    known.say(&hello(Some("secret")));
    assert!(matches!(known.hear(), FromRunner::Welcome { .. }));
}

#[test]
fn coordinators_of_other_versions_take_over_what_runs() {
    let node = Node::new();
    let go = node.fifo("go");
    let mut first = node.connect(1, 2);
    first.start(script(1, "cat go"));
    first.wait_started(1);
    drop(first);
    // One that knows fields which nobody here has heard of, and would understand us.
    let mut newer = node.stranger();
    let hello = json!({"hello": {"protocol": PROTOCOL + 6, "oldest": PROTOCOL, "epoch": 2, "slots": 2, "mood": "good"}});
    newer.stream.write_all(&said(&hello)).unwrap();
    let FromRunner::Welcome { protocol, oldest, attempts, .. } = newer.hear() else { panic!("no welcome") };
    assert_eq!((protocol, oldest), (PROTOCOL, OLDEST));
    assert_eq!(attempts.iter().map(|known| known.key).collect::<Vec<_>>(), [key(1)]);
    newer.say(&node.context());
    let mut start = json!(ToRunner::Start(Box::new(script(2, "true"))));
    start["start"]["colour"] = "blue".into();
    newer.stream.write_all(&said(&start)).unwrap();
    let ended = newer.ended();
    assert_eq!((ended.key, ended.outcome), (key(2), exited(0)));
    newer.ack([2]);
    drop(newer);
    // One of the first version says less.
    let mut older = node.stranger();
    older.stream.write_all(&said(&json!({"hello": {"protocol": 1, "epoch": 3, "slots": 2}}))).unwrap();
    assert!(matches!(older.hear(), FromRunner::Welcome { .. }));
    std::fs::write(go, "x").unwrap();
    let ended = older.ended_many(1);
    assert_eq!((ended[0].key, &ended[0].outcome), (key(1), &exited(0)));
}

#[test]
fn who_understands_none_of_it_is_told_so_and_changes_nothing() {
    let node = Node::new();
    let mut current = node.connect(1, 1);
    for (protocol, oldest) in [(PROTOCOL + 6, PROTOCOL + 1), (OLDEST - 1, OLDEST - 1)] {
        let mut foreign = node.stranger();
        let (key, directory) = (None, None);
        foreign.say(&ToRunner::Hello { protocol, oldest, epoch: 9, slots: 1, key, directory });
        assert!(matches!(foreign.hear(), FromRunner::Unfit { protocol: PROTOCOL, oldest: OLDEST, .. }));
        assert!(foreign.try_hear().is_none());
    }
    assert_eq!(current.run(script(1, "true")).outcome, exited(0), "still in charge");
}

#[test]
fn work_goes_on_without_a_coordinator() {
    let node = Node::new();
    let mut first = node.connect(1, 2);
    let go = node.fifo("go");
    first.start(script(1, "cat go > /dev/null; seq 1 20000; exit 3"));
    first.start(script(2, "echo quick"));
    // More than there are slots: the rest starts while nobody is there.
    for execution in 3..=10 {
        first.start(script(execution, &format!("echo {execution}")));
    }
    first.wait_started(1);
    drop(first);
    let mut second = node.connect(2, 2);
    assert_eq!(second.known.len(), 10);
    // What the first was told may have died with it.
    second.wait_started(1);
    drop(second);
    std::fs::write(&go, "x").unwrap();
    let mut second = node.connect(3, 2);
    let ended = second.ended_many(10);
    assert_eq!(ended[0].outcome, exited(3));
    assert!(ended[1..].iter().all(|ended| ended.outcome == exited(0)));
    let whole: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(node.output("run/1.log", Stream::Stdout), (whole.into_bytes(), 0));
    assert_eq!(node.output("run/10.log", Stream::Stdout).0, b"10\n");
    second.ack(1..=5);
    drop(second);
    let mut third = node.connect(4, 2);
    let left: Vec<_> = third.known.iter().map(|known| (known.key.execution, known.state)).collect();
    assert_eq!(left, (6..=10).map(|execution| (execution, KnownState::Ended)).collect::<Vec<_>>());
    assert_eq!(third.ended_many(5), ended[5..]);
}

#[test]
fn tied_attempts_go_with_their_connection() {
    let node = Node::new();
    let mut first = node.connect(1, 2);
    for execution in 1..=3 {
        let mut start = script(execution, "trap '' TERM; (setsid sleep 1000 &); sleep 1000 & wait");
        (start.tied, start.grace_ms) = (execution != 2, 20);
        first.start(start);
    }
    first.wait_started(1);
    first.wait_started(2);
    drop(first);
    let mut second = node.connect(2, 2);
    let ended = second.ended_many(2);
    assert_eq!(ended[0].key, key(1));
    assert_eq!(ended[1].key, key(3));
    assert!(ended.iter().all(|ended| ended.outcome == Outcome::OwnerGone), "{ended:?}");
    assert_eq!(ended[1].started_ms, 0, "it was still queued");
    second.stop(2, true);
    assert_eq!(second.ended().outcome, Outcome::Stopped);
    node.assert_no_survivors();
}

#[test]
fn a_killed_runner_leaves_nothing_running_and_forgets_nothing() {
    for round in 0..10 {
        let node = Node::new();
        let mut first = node.connect(1, 6);
        assert_eq!(first.run(script(1, "echo done")).outcome, exited(0));
        let stubborn = "trap '' TERM; echo up; (setsid sleep 1000 &); env -i sleep 1000 & (setsid sh -c 'sleep 1000 & wait' &); wait";
        for execution in 2..=6 {
            first.start(script(execution, stubborn));
        }
        if round % 2 == 0 {
            for execution in 2..=6 {
                node.wait_for_output(&format!("run/{execution}.log"), "up\n");
            }
        }
        kill_and_wait(first.runner);
        let mut second = node.connect(2, 6);
        assert_ne!(first.runner, second.runner);
        let known: Vec<_> = second.known.iter().map(|known| known.key.execution).collect();
        // Those it had not come to are not known: they may start now.
        assert!(known.starts_with(&[1]), "{known:?}");
        let ended = second.ended_many(known.len());
        assert_eq!(ended[0].outcome, exited(0));
        assert!(ended[1..].iter().all(|ended| ended.outcome == Outcome::Interrupted));
        if round % 2 == 0 {
            assert_eq!(known.len(), 6);
            assert!(ended[1..].iter().all(|ended| ended.log.stdout_tail == "up\n" && ended.started_ms > 0));
        }
        node.assert_no_survivors();
        second.ack(known);
        assert_eq!(second.run(script(7, "true")).outcome, exited(0));
    }
}

#[test]
fn a_runner_nobody_needs_goes_and_takes_its_socket() {
    let node = Node::new();
    let mut c = node.connect(1, 1);
    c.run(script(1, "true"));
    c.ack([1]);
    let runner = pidfd_open(Pid::from_raw(c.runner as i32).unwrap(), PidfdFlags::empty()).unwrap();
    drop(c);
    wait_gone(&runner);
    assert!(!node.data.join("runner.sock").exists());
    assert_eq!(node.connect(1, 1).run(script(2, "true")).outcome, exited(0));
}

#[test]
fn a_second_runner_gives_up_by_itself() {
    let node = Node::new();
    let c = node.connect(1, 1);
    let others: Vec<_> = (0..8).map(|_| node.stranger()).collect();
    let status = std::process::Command::new(support::EXE)
        .args(["runner", "--data-dir"])
        .arg(&node.data)
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(!status.success());
    drop(others);
    assert_eq!(node.connect(2, 1).runner, c.runner);
}

#[test]
fn many_at_once_get_the_same_runner() {
    let node = Node::new();
    let pids: Vec<i32> = std::thread::scope(|scope| {
        let connect = || {
            let peer = rustix::net::sockopt::socket_peercred(&node.stranger().stream).unwrap();
            peer.pid.as_raw_nonzero().get()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(connect)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
}

#[test]
fn a_runner_that_cannot_start_is_said_so() {
    let node = Node::new();
    let error = cis_runner::client::connect_or_spawn(&node.data, "/bin/false".as_ref()).unwrap_err();
    assert!(error.to_string().contains("runner.log"), "{error}");
}
