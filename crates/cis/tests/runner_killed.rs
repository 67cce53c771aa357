//! The runner is killed under running tasks: nothing of them survives, and each task's own policy decides.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

use support::{Node, process};

const TEXT: &str = r#"
    [[tasks]]
    id = "idempotent"
    idempotent = true
    command = "echo idempotent $CIS_ATTEMPT > up; trap '' TERM; (setsid sleep 1000 &); [ $CIS_ATTEMPT = 2 ] || sleep 1000"
    [[tasks]]
    id = "with-retry"
    retry = { max = 1, initial = "1ms" }
    command = "echo with-retry $CIS_ATTEMPT > up; trap '' TERM; (setsid sleep 1000 &); [ $CIS_ATTEMPT = 2 ] || sleep 1000"
    [[tasks]]
    id = "plain"
    command = "echo plain $CIS_ATTEMPT > up; trap '' TERM; (setsid sleep 1000 &); sleep 1000"
    [[tasks]]
    id = "after"
    depends_on = ["plain"]
    command = "true"
"#;

fn assert_followed(node: &Node) {
    assert_eq!(node.states("d"), "idempotent=completed with-retry=completed plain=failed after=skipped");
    assert_eq!(node.task("d", "idempotent")["attempt"], 2);
    assert_eq!(node.task("d", "plain")["cause"], "the runner was killed");
    assert_eq!(node.task("d", "plain")["attempt"], 1);
    node.assert_no_survivors();
    node.assert_sound();
}

#[test]
fn each_task_follows_its_policy_and_nothing_strays() {
    let node = Node::new();
    let up = node.fifo("up");
    node.dag("d", TEXT);
    let run = node.spawn(["run", "d.toml"]);
    assert_eq!(up.lines(3), ["idempotent 1", "plain 1", "with-retry 1"]);
    process::kill(node.runner());
    assert_eq!(up.lines(2), ["idempotent 2", "with-retry 2"]);
    run.wait().code(1).says("the runner was killed");
    assert_followed(&node);
}

#[test]
fn coordinator_and_runner_killed_together() {
    let node = Node::new();
    let up = node.fifo("up");
    node.dag("d", TEXT);
    node.ok(["run", "--detach", "d.toml"]);
    up.lines(3);
    process::kill(node.coordinator());
    process::kill(node.runner());
    node.ok(["coordinator"]);
    assert_eq!(up.lines(2), ["idempotent 2", "with-retry 2"]);
    assert_followed(&node);
}

#[test]
fn a_foreground_run_killed_together_with_its_runner_ends_too() {
    let node = Node::new();
    let up = node.fifo("up");
    node.dag("d", TEXT);
    let run = node.spawn(["run", "d.toml"]);
    up.lines(3);
    let runner = node.runner();
    run.signal(rustix::process::Signal::KILL);
    process::kill(runner);
    run.wait();
    node.ok(["coordinator"]);
    let status = node.json(["status", "d"]);
    assert_eq!(
        (&status["status"], &status["run"]["stop_reason"]),
        (&"cancelled".into(), &"owner_gone".into())
    );
    assert!(up.is_silent(), "no second attempt of anything");
    node.assert_no_survivors();
    node.assert_sound();
}

#[test]
fn a_runner_killed_many_times_loses_nothing_that_had_ended() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let mut text = String::new();
    for n in 0..40 {
        text += &format!(
            "[[tasks]]\nid = 't{n}'\nidempotent = true\ncommand = 'echo t{n} > up; read -r _ < gate; echo t{n} >> ended'\n"
        );
    }
    node.dag("d", &text);
    let run = node.spawn(["run", "d.toml"]);
    for _ in 0..6 {
        up.lines(8);
        gate.let_through(4);
        up.lines(4);
        process::kill(node.runner());
    }
    gate.let_through(40);
    run.wait().code(0);
    let ended = node.read("ended");
    for n in 0..40 {
        // At least once: it is idempotent. Those whose end was heard of do not run again.
        assert!(ended.lines().any(|line| line == format!("t{n}")), "t{n}: {ended}");
    }
    node.assert_no_survivors();
    node.assert_sound();
}

/// The points of its life at which a runner can die, and what a coordinator must not mind.
#[cfg(feature = "failpoints")]
#[test]
fn a_runner_that_dies_as_it_is_greeted_is_replaced() {
    let node = Node::new();
    let point = node.path("fail");
    let node = node.with("CIS_FAIL", &point.display().to_string());
    node.dag("d", "tasks = [{ id = 'a', idempotent = true, command = 'true' }]");
    for _ in 0..20 {
        // It says Welcome, and never hears what it should start.
        node.write("fail", "runner.after_tell");
        node.ok(["run", "d.toml"]);
        assert!(!point.exists(), "nobody died");
        process::kill(node.runner());
    }
    node.assert_sound();
}

/// A runner of a version that is not written yet: it says what it understands, and that is not us.
#[test]
fn a_runner_of_another_version_is_named_and_left_alone() {
    let node = Node::new();
    node.dag("d", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["dag", "publish", "d.toml"]);
    let socket = node.data.join("runner.sock");
    let door = UnixListener::bind(&socket).unwrap();
    let later = std::thread::spawn(move || {
        let (mut coordinator, _) = door.accept().unwrap();
        let mut length = [0; 4];
        coordinator.read_exact(&mut length).unwrap();
        let mut hello = vec![0; u32::from_le_bytes(length) as usize];
        coordinator.read_exact(&mut hello).unwrap();
        let answer = br#"{"unfit":{"protocol":99,"oldest":98,"pid":4711,"since":"later"}}"#;
        coordinator.write_all(&u32::try_from(answer.len()).unwrap().to_le_bytes()).unwrap();
        coordinator.write_all(answer).unwrap();
    });
    let told = "the runner (process 4711) understands protocols 98 to 99";
    node.cis(["run", "d.toml"]).code(1).tells(told).tells("hint: let its tasks end");
    later.join().unwrap();
    std::fs::remove_file(socket).unwrap();
    node.ok(["run", "d.toml"]);
    node.assert_sound();
}

#[test]
fn a_run_that_no_runner_can_be_had_for_says_so_and_ends() {
    let node = Node::new();
    node.dag("d", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["dag", "publish", "d.toml"]);
    // Nobody can write to it, so no runner comes up.
    std::fs::create_dir(node.data.join("runner.lock")).unwrap();
    node.cis(["run", "d.toml"]).code(1).tells("cannot reach the runner");
    std::fs::remove_dir(node.data.join("runner.lock")).unwrap();
    node.ok(["run", "d.toml"]);
    assert_eq!(node.json(["status", "d#1"])["run"]["stop_reason"], "owner_gone");
    node.assert_sound();
}
