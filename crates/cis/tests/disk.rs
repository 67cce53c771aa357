//! What a disk can do to the real program: a small file system that is full, one that is read-only, a write that fails;
//! and what a task can do to it with its output.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use cis_store::{Reader, check};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::{Value, json};
use support::http::{Client, Up, field};
use support::{EXE, Node, Running, eventually, wait_gone};

/// May this machine's user mount something in a namespace of its own? Where tests are the gate, it must.
fn can_mount() -> bool {
    let can = Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success());
    assert!(can || std::env::var_os("CI").is_none(), "`unshare -rm` is not allowed here");
    if !can {
        eprintln!("not shown: `unshare -rm` is not allowed here");
    }
    can
}

/// `cis` on this node's data directory, in a namespace of its own in which `mounts` was done to `$data` before.
fn mounted(node: &Node, mounts: &str, args: &[&str]) -> Command {
    let surroundings = node.bare();
    let mut command = Command::new("unshare");
    command.arg("-rm").args(["sh", "-c", &format!("data=$1; shift; {mounts} && exec \"$@\""), "sh"]);
    command.arg(&node.data).arg(EXE).arg("--data-dir").arg(&node.data).args(args);
    command.env_clear().envs(surroundings.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(node.dir());
    command
}

/// A node whose data directory is all there is on a disk of 40 MiB; and where that is seen from here.
fn up_on_small_disk(node: &Node) -> (Up, PathBuf) {
    fs::create_dir(&node.data).unwrap();
    let start = ["node", "start", "--bind", "127.0.0.1:0"];
    let mount = "mount -t tmpfs -o size=40m,mode=700 none \"$data\"";
    let mut running = Running::start(mounted(node, mount, &start));
    let line = running.until("http://");
    let inside = PathBuf::from(format!("/proc/{}/root", running.pid()));
    let disk = inside.join(node.data.strip_prefix("/").unwrap());
    let token = fs::read_to_string(disk.join("admin.token")).unwrap().trim().to_owned();
    let address = line.split("http://").nth(1).unwrap().trim().into();
    (Up { running, client: Client { address, token } }, disk)
}

/// Fills what is left of the disk.
fn fill(disk: &Path, name: &str) -> PathBuf {
    let path = disk.join(name);
    let mut file = File::create(&path).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
    path
}

/// Publishes DAGs until one is refused.
fn publish_until_refused(client: &Client) -> Value {
    for n in 0..2_000 {
        let answer = client.post("/api/v1/dag/publish", &field(&format!("new-{n}"), 100, &json!({})));
        if answer.status != 201 {
            assert_eq!(answer.status, 507, "{answer:?}");
            return answer.json()["error"].clone();
        }
    }
    panic!("never full");
}

#[test]
fn a_full_disk_takes_on_nothing_new_and_loses_nothing() {
    if !can_mount() {
        return;
    }
    let node = Node::new().with("CIS_DURABILITY", "power");
    let (up_pipe, go, next) = (node.fifo("up"), node.fifo("go"), node.fifo("next"));
    let (up, disk) = up_on_small_disk(&node);
    let client = &up.client;
    let shout = "echo $$ > D/up; read -r _ < D/go; head -c 9000000 /dev/zero | tr '\\0' x; echo said > D/up; read -r _ < D/go";
    let here = |command: &str| command.replace('D', &node.dir().display().to_string());
    let tasks = json!([{"id": "a", "command": here(shout)},
                       {"id": "b", "depends_on": ["a"], "command": here("echo b > D/next")}]);
    let run = client.run(&json!({"dag_id": "d", "tasks": tasks}).to_string())["run_id"].clone();
    let task: u32 = up_pipe.line().parse().unwrap();
    client.run(&field("outside", 2, &json!({})));
    let held = client.claim(&json!({"limit": 1}));
    let filler = fill(&disk, "filler");

    let refused = publish_until_refused(client);
    assert_eq!(refused["code"], "DiskFull", "{refused}");
    assert_eq!(client.post("/api/v1/tasks/claim", "{}").code(), "DiskFull");
    assert_eq!(client.get("/ready").status, 503);
    node.dag("here", "tasks = [{ id = 'a', command = 'true' }]");
    let url = format!("http://{}", client.address);
    let mut publish = node.bare();
    publish.args(["dag", "publish", "here.toml", "--node", &url]).env("CIS_TOKEN", &client.token);
    Running::start(publish).wait().code(1).tells("error[DiskFull]").tells("make room");
    // There is room for what ends.
    assert_eq!(client.say(&held[0], "complete", json!({})).status, 200);

    // Somebody takes that as well. The task goes on and ends all the same; what there is no room for waits.
    let thief = fill(&disk, "thief");
    go.let_through(1);
    assert_eq!(up_pipe.line(), "said");
    go.let_through(1);
    assert!(wait_gone(task));
    assert!(next.is_silent(), "nothing is begun on a disk that is full");
    fs::remove_file(filler).unwrap();
    fs::remove_file(thief).unwrap();
    assert_eq!(next.line(), "b");
    assert_eq!(client.until_over("d")["status"], "completed");
    let told = client.get(&format!("/api/v1/runs/{}/logs?task=a", run.as_str().unwrap())).body;
    assert!(told.contains("bytes were cut here"), "{}", &told[told.len().saturating_sub(600)..]);
    assert_eq!(client.post("/api/v1/dag/publish", &field("room", 1, &json!({}))).status, 201);
    assert_eq!(client.claim(&json!({"limit": 1})).len(), 1);
    assert_eq!(client.get("/ready").status, 200);

    let copy = node.path("copy.db");
    for end in ["", "-wal"] {
        let _ = fs::copy(disk.join(format!("dag.db{end}")), node.path(&format!("copy.db{end}")));
    }
    assert_eq!(check::violations(&Reader::open(&copy).unwrap()).unwrap(), [""; 0]);
    up.running.signal(Signal::TERM);
    up.running.wait().code(0).tells("the disk is full").tells("there is room on the disk again");
}

#[test]
fn a_node_whose_own_log_finds_no_room_serves_all_the_same() {
    let node = Node::new();
    let start = ["node", "start", "--bind", "127.0.0.1:0", "--log", "debug"];
    let mut running = by_shell(&node, "exec \"$0\" \"$@\" 2> /dev/full", &start);
    let client = caller(&node, &mut running);
    client.run(&json!({"dag_id": "d", "tasks": [{"id": "a", "command": "true"}]}).to_string());
    assert_eq!(client.until_over("d")["status"], "completed");
    running.signal(Signal::TERM);
    running.wait().code(0);
}

#[test]
fn a_read_only_disk_is_called_so() {
    if !can_mount() {
        return;
    }
    let node = Node::new();
    node.dag("d", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["run", "d.toml"]);
    node.wait_idle();
    let read_only = "mount --bind \"$data\" \"$data\" && mount -o remount,bind,ro \"$data\"";
    let run = Running::start(mounted(&node, read_only, &["run", "d.toml"])).wait();
    run.code(1).tells("read-only").tells("--data-dir");
}

/// `cis` with these arguments, run by `sh` as this script says.
fn by_shell(node: &Node, script: &str, args: &[&str]) -> Running {
    let cis = node.command(args);
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(EXE).args(cis.get_args());
    command.env_clear().envs(cis.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(node.dir());
    Running::start(command)
}

/// The owner of a node that is about to be up.
fn caller(node: &Node, running: &mut Running) -> Client {
    let address = running.until("http://").split("http://").nth(1).unwrap().trim().into();
    let token = fs::read_to_string(node.data.join("admin.token")).unwrap().trim().to_owned();
    Client { address, token }
}

/// Not a full disk: the system refuses to make files any longer. Nothing that is asked is done, and where that leaves
/// something unrecorded, the node goes; the next one takes it up.
#[test]
fn a_node_that_cannot_record_what_ended_goes_and_says_why() {
    let node = Node::new();
    let (up, go) = (node.fifo("up"), node.fifo("go"));
    let start = ["node", "start", "--bind", "127.0.0.1:0"];
    let mut running = by_shell(&node, "trap '' XFSZ; exec \"$0\" \"$@\"", &start);
    let client = caller(&node, &mut running);
    let command = format!("cd {}; echo up > up; read -r _ < go", node.dir().display());
    let kept = client.run(&json!({"dag_id": "kept", "tasks": [{"id": "a", "command": command}]}).to_string());
    assert_eq!(up.line(), "up");
    // After this the node has nothing to write by itself, and goes only for what it is asked.
    let tasks = format!("/api/v1/runs/{}/tasks", kept["run_id"].as_str().unwrap());
    let started = || client.get(&tasks).json()["tasks"][0]["started_at"].as_str().map(drop);
    eventually("it is known to have started", started);
    let pid = Pid::from_raw(running.pid().cast_signed()).unwrap();
    prlimit(Some(pid), Resource::Fsize, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    let answer = client.post("/api/v1/dag/publish", &field("lost", 1, &json!({})));
    assert_eq!((answer.status, answer.code().as_str()), (503, "Unavailable"), "{answer:?}");
    go.let_through(1);
    running.wait().code(1).tells("the database failed: disk I/O error");
    let up = node.up();
    assert_eq!(up.client.until_over("kept")["status"], "completed");
    assert_eq!(up.client.get("/api/v1/dag/lost/status").status, 404);
    node.assert_sound();
}

/// The same for a run in the foreground, which coordinates itself.
#[test]
fn a_run_that_cannot_record_what_ended_says_why() {
    let node = Node::new();
    let (up, go) = (node.fifo("up"), node.fifo("go"));
    node.dag("d", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < go' }]");
    let running = by_shell(&node, "trap '' XFSZ; exec \"$0\" \"$@\"", &["run", "d.toml"]);
    assert_eq!(up.line(), "up");
    let pid = Pid::from_raw(running.pid().cast_signed()).unwrap();
    prlimit(Some(pid), Resource::Fsize, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    go.let_through(1);
    running.wait().code(1).tells("the database failed: disk I/O error");
}

#[test]
fn a_second_node_waits_until_the_first_has_gone() {
    let node = Node::new();
    let first = node.up();
    let coordinator = node.coordinator();
    let start = ["node", "start", "--bind", "127.0.0.1:0", "--wait"];
    let mut second = by_shell(&node, "exec \"$0\" \"$@\" 2> second.err", &start);
    let address = &first.client.address;
    let waits = format!("waiting until the node at http://{address}");
    eventually("it waits", || node.read("second.err").contains(&waits).then_some(()));
    let serves = format!("process {coordinator}, at http://{address}");
    node.cis(["node", "start", "--bind", address]).code(4).tells(&serves);
    assert_eq!(node.coordinator(), coordinator);
    assert_eq!(first.client.post("/api/v1/dag/publish", &field("d", 1, &json!({}))).status, 201);
    first.running.signal(Signal::TERM);
    first.running.wait().code(0);
    second.until("http://");
    assert_eq!(node.coordinator(), second.pid());
    second.signal(Signal::TERM);
    second.wait().code(0);
}

/// A quarter of a gigabyte without a line's end, none of it text; a whole one only takes longer.
#[test]
fn a_flood_without_lines_is_capped_and_costs_no_memory() {
    let node = Node::new();
    let (up, go) = (node.fifo("up"), node.fifo("go"));
    node.dag("d", "tasks = [{ id = 'a', command = \"head -c 268435456 /dev/zero | tr '\\\\0' '\\\\377'; echo up > up; read -r _ < go\" }]");
    let run = node.spawn(["run", "d.toml"]);
    assert_eq!(up.line(), "up");
    for pid in [run.pid(), node.runner()] {
        assert!(peak_kib(pid) < 64 << 10, "{} KiB", peak_kib(pid));
    }
    go.let_through(1);
    run.wait().code(0);
    let size: u64 = logs(&node.data.join("logs")).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(size <= 11 << 20, "{size}");
    node.ok(["logs", "d", "-t", "a"]).says("bytes were cut here");
    let row = node.task("d", "a");
    assert_eq!(row["status"], "completed", "{row}");
    node.assert_sound();
}

/// The most memory a process has had.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn logs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { logs(&path) } else { vec![path] }).collect()
}
