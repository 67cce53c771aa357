//! Coordinators and runners in company: started from tasks, from scripts, from a terminal that goes away.

#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

mod support;

use std::os::unix::process::CommandExt;

use rustix::process::{Pid, Signal, kill_process_group};
use support::{Node, Running, eventually, process};

#[test]
fn a_task_may_run_another_dag_on_the_same_data_directory() {
    let node = Node::new();
    let cis = support::EXE;
    let data = node.data.display();
    node.dag("inner", "tasks = [{ id = 'a', command = 'echo inner $CIS_TASK_ID of $CIS_DAG_ID' }]");
    node.dag(
        "outer",
        &format!("tasks = [{{ id = 'calls', command = '{cis} --data-dir {data} run inner.toml' }}]"),
    );
    node.ok(["run", "outer.toml"]);
    assert_eq!(node.logs("inner", "a"), "inner a of inner\n");
    node.assert_sound();
}

#[test]
fn what_a_task_starts_in_the_background_elsewhere_goes_on_after_it() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let cis = support::EXE;
    node.dag("inner", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }, { id = 'b', deps = ['a'], command = 'echo b' }]");
    node.dag(
        "outer",
        &format!(
            "tasks = [{{ id = 'calls', command = '{cis} --data-dir elsewhere run --detach inner.toml' }}]"
        ),
    );
    node.ok(["run", "outer.toml"]);
    up.line();
    let elsewhere = node.path("elsewhere");
    let coordinator = eventually("a coordinator", || process::peer(&elsewhere.join("cis.sock")));
    gate.let_through(1);
    let mut watch = node.bare();
    watch.arg("--data-dir").arg(&elsewhere).args(["status", "inner", "--watch"]);
    Running::start(watch).wait().code(0);
    let after = process::peer(&elsewhere.join("cis.sock"));
    assert_eq!(after, Some(coordinator), "and nobody had to take it up");
}

#[test]
fn a_background_run_is_out_of_reach_of_its_callers_ctrl_c() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.dag("d", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }, { id = 'b', deps = ['a'], command = 'true' }]");
    // As a script would: its commands share its process group, and Ctrl-C reaches all of it.
    // Whoever started these tests may ignore it, as a job in the background of a script does; no shell can undo that.
    let mut script = std::process::Command::new("/usr/bin/env");
    script.args([
        "--default-signal=INT",
        "/bin/sh",
        "-c",
        &format!(
            "'{}' --data-dir '{}' run --detach d.toml; read -r _ < never",
            support::EXE,
            node.data.display()
        ),
    ]);
    let bare = node.bare();
    script.env_clear().envs(bare.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let _never = node.fifo("never");
    let mut script = Running::start({
        script.current_dir(node.dir()).process_group(0);
        script
    });
    script.until("Started d#1");
    up.line();
    let coordinator = node.coordinator();
    let group = Pid::from_raw(script.pid().cast_signed()).unwrap();
    kill_process_group(group, Signal::INT).unwrap();
    script.wait();
    gate.let_through(1);
    node.ok(["status", "d", "--watch"]);
    assert_eq!(node.coordinator(), coordinator);
}

#[test]
fn a_background_run_keeps_the_settings_it_was_started_with() {
    let node = Node::new();
    node.write("small.toml", "[dag]\nlog_cap = \"64KiB\"\n");
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.dag("d", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }, { id = 'b', deps = ['a'], command = 'seq 100000' }]");
    node.ok(["--config", "small.toml", "run", "--detach", "d.toml"]);
    up.line();
    gate.let_through(1);
    node.ok(["status", "d", "--watch"]);
    assert!(node.logs("d", "b").contains("bytes were cut here"));
}

#[test]
fn whoever_hands_over_leaves_no_gap() {
    for _ in 0..20 {
        let node = Node::new();
        let gate = node.fifo("gate");
        node.dag("d", "tasks = [{ id = 'a', command = 'read -r _ < gate' }]");
        node.ok(["run", "--detach", "d.toml"]);
        let told = node.ok(["status", "d"]);
        assert!(!told.err.contains("coordinator was gone"), "{}", told.err);
        gate.let_through(1);
    }
}

#[test]
fn a_coordinator_with_nothing_to_do_goes() {
    let node = Node::new();
    node.ok(["coordinator"]);
    node.dag("d", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["run", "--detach", "d.toml"]);
    node.wait_idle();
    assert_eq!(node.states("d"), "a=completed");
    assert!(!node.data.join("cis.sock").exists());
    assert!(process::peer(&node.data.join("runner.sock")).is_none());
    node.assert_sound();
}

#[test]
fn a_stopped_coordinator_keeps_nobody_from_reading() {
    let node = Node::new();
    let up = node.fifo("up");
    node.dag("d", "tasks = [{ id = 'a', command = 'echo up > up; exec sleep 1000' }]");
    let host = node.spawn(["run", "d.toml"]);
    up.line();
    host.signal(Signal::STOP);
    assert_eq!(node.states("d"), "a=running");
    host.signal(Signal::CONT);
    host.signal(Signal::INT);
    host.wait().code(130);
}

#[test]
fn a_directory_of_somebody_else_is_left_alone() {
    let node = Node::new();
    node.dag("d", "tasks = [{ id = 'a', command = 'true' }]");
    let open = node.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::write(open.join("theirs"), "x").unwrap();
    let mode = || std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&open).unwrap().permissions());
    let before = mode();
    let run = node.cis(["run", "d.toml", "--data-dir", open.to_str().unwrap()]);
    run.code(2).tells("holds other files");
    assert_eq!(mode(), before);
}

/// The user to run as where the tests run as the superuser, who may look at everything.
const PLAIN_USER: u32 = 65_534;

fn command_as(user: Option<u32>, program: impl AsRef<std::ffi::OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command
}

/// What a task, or any other program of the same user, sees of another process's environment.
fn read_environment(of: u32, user: Option<u32>) -> std::process::Output {
    command_as(user, "cat").arg(format!("/proc/{of}/environ")).output().unwrap()
}

#[test]
fn environments_of_node_and_runner_are_hidden_from_tasks() {
    let node = Node::new().with("CANARY", "in-the-environment");
    node.dag("d", "tasks = [{ id = 'a', command = 'echo $PPID > up; read -r _ < gate' }]");
    let user = rustix::process::getuid().is_root().then_some(PLAIN_USER);
    // The directory that the tests were built in may be closed to that user.
    let exe = node.path("cis");
    std::fs::copy(support::EXE, &exe).unwrap();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    for path in [node.dir(), &node.path("up"), &node.path("gate"), &node.path("d.toml")] {
        std::os::unix::fs::chown(path, user, user).unwrap();
    }
    let command = |args: &[&str]| {
        let like = node.command(args);
        let mut command = command_as(user, &exe);
        command.env_clear().envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(args).current_dir(node.dir()).stdin(std::process::Stdio::null());
        command
    };
    let mut serving = Running::start(command(&["node", "start", "--bind", "127.0.0.1:0"]));
    serving.until("cis node on");
    Running::start(command(&["run", "d.toml", "--detach"])).wait().code(0);
    let runner = node.runner();
    assert_eq!(up.line().trim(), runner.to_string(), "a task knows its runner");
    for of in [serving.pid(), runner] {
        let seen = read_environment(of, user);
        assert!(!seen.status.success() && seen.stdout.is_empty(), "process {of}: {seen:?}");
    }
    if user.is_some() {
        // Even the superuser finds nothing in the runner's.
        let seen = String::from_utf8(read_environment(runner, None).stdout).unwrap();
        assert!(!seen.contains("in-the-environment") && !seen.contains("PATH="), "{seen}");
    }
    gate.let_through(1);
    serving.signal(Signal::TERM);
    serving.wait().code(0);
}
