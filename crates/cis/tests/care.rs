//! Looking after a data directory: what the doctor finds and repairs, backups and restores, recovery, and what becomes of
//! damaged databases.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cis_store::{Reader, check};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::{Client, Up};
use support::process::kill;
use support::{Node, Ran, Running, eventually, wait_gone};

const ONE: &str = "[[tasks]]\nid = \"a\"\ncommand = \"echo hello\"\n";

/// What the doctor says of one check.
fn checked(told: &Value, check: &str) -> Value {
    let checks = told["checks"].as_array().unwrap_or_else(|| panic!("{told}"));
    checks.iter().find(|row| row["check"] == check).unwrap_or_else(|| panic!("no `{check}`: {told}")).clone()
}

/// A node that has run something and stopped in good order.
fn used() -> Node {
    let node = Node::new();
    node.dag("d", ONE);
    node.ok(["run", "d.toml"]);
    node
}

fn stop(up: Up) -> Ran {
    up.running.signal(Signal::TERM);
    up.running.wait()
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"))
}

#[test]
fn a_directory_in_order_is_sound_whether_somebody_coordinates_or_not() {
    let node = used();
    let told = node.json(["doctor"]);
    assert_eq!(told["sound"], true, "{told}");
    assert!(checked(&told, "coordinator")["detail"].as_str().unwrap().contains("stopped in good order"));
    for check in ["integrity", "invariants", "events", "permissions", "disk", "files", "strays"] {
        assert_eq!(checked(&told, check)["state"], "sound", "{told}");
    }
    let up = node.up();
    up.client
        .run(&json!({"dag_id": "e", "tasks": [{"id": "a", "type": "shell", "command": "true"}]}).to_string());
    up.client.until_over("e");
    node.ok(["doctor"]).says("integrity    ✓ sound").says(&format!("on http://{}", up.client.address));
    stop(up).code(0);
    Node::new().cis(["doctor"]).code(3).tells("nothing was ever written to");
}

/// A process that says it is of an attempt of this directory, and is not.
struct Stray(Child);

impl Stray {
    fn of(data: &Path) -> Self {
        let directory = data.metadata().unwrap();
        let cookie = format!("{:x}-{:x}-{:x}-{:x}", directory.dev(), directory.ino(), 999, 5);
        let mut sleep = Command::new("sleep");
        sleep.arg("1000").env("CIS_COOKIE", cookie).stdout(Stdio::null());
        Self(sleep.spawn().unwrap())
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_out_of_order_is_found_and_repaired_and_said() {
    let node = used();
    // Left behind on purpose: that is nobody's stray.
    node.dag(
        "kept",
        "[[tasks]]\nid = \"a\"\ndetach = true\ncommand = \"setsid sleep 1000 >/dev/null 2>&1 &\"\n",
    );
    node.ok(["run", "kept.toml"]);
    let (context, output) = (node.data.join("contexts/1.json"), node.data.join("outputs/1.77"));
    fs::write(&context, "{}").unwrap();
    fs::write(&output, "").unwrap();
    let restoring = node.data.join("restoring");
    fs::create_dir(&restoring).unwrap();
    for open in ["dag.db", "door.key", "contexts/1.json"] {
        fs::set_permissions(node.data.join(open), fs::Permissions::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(&node.data, fs::Permissions::from_mode(0o755)).unwrap();
    let stray = Stray::of(&node.data);

    let found = node.cis(["doctor", "--json"]).code(1);
    let found = json(&found);
    let count = |check: &str| checked(&found, check)["found"].as_array().map_or(0, Vec::len);
    assert_eq!((count("permissions"), count("files"), count("strays")), (4, 3, 1), "{found}");
    assert!(context.exists() && !support::process::is_gone(stray.0.id()), "nothing was changed");

    // While somebody works, only what disturbs nobody is repaired.
    let up = node.up();
    node.cis(["doctor", "--repair"])
        .code(1)
        .tells("is now for its owner only (it was 644)")
        .tells("hint: stop whoever coordinates, and `cis doctor --repair` again");
    assert!(restoring.exists() && !support::process::is_gone(stray.0.id()));
    assert!(!context.exists() && !output.exists(), "these go with every start");
    stop(up).code(0);

    node.cis(["doctor", "--repair"])
        .code(0)
        .tells(&format!("removed `{}`", restoring.display()))
        .tells(&format!("killed process {} (sleep 1000)", stray.0.id()));
    assert!(!restoring.exists() && wait_gone(stray.0.id()));
    let told = node.json(["doctor"]);
    assert_eq!(told["sound"], true, "{told}");
    assert_eq!(node.survivors().len(), 1, "what was left behind on purpose lives");
}

fn halve(file: &Path) {
    let file = fs::File::options().write(true).open(file).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

fn scribble(file: &Path) {
    fs::write(file, "not a database at all\n".repeat(1_000)).unwrap();
}

fn empty(file: &Path) {
    fs::write(file, "").unwrap();
}

fn remove(file: &Path) {
    fs::remove_file(file).unwrap();
}

#[test]
fn a_damaged_database_is_told_at_every_door_with_a_way_out_and_left_as_it_is() {
    for damage in [halve, scribble, empty, remove] {
        let node = used();
        let file = node.data.join("dag.db");
        damage(&file);
        let before = fs::read(&file).ok();
        for line in [
            "run d.toml",
            "status d",
            "dag list",
            "dag publish d.toml",
            "node start -b 127.0.0.1:0",
            "coordinator",
            "backup copy",
        ] {
            let ran = node.cis(line.split(' ').chain(["--json"])).code(1);
            let error = &json(&ran)["error"];
            assert_eq!(error["code"], "DatabaseDamaged", "{ran}");
            let hint = error["hint"].as_str().unwrap();
            assert!(hint.contains("cis doctor") && hint.contains("cis restore"), "{ran}");
            assert!(!ran.err.contains("panicked"), "{ran}");
        }
        let found = node.cis(["doctor"]).code(1);
        assert!(found.out.contains("integrity    ✗ problem"), "{found}");
        assert_eq!(fs::read(&file).ok(), before, "left as it is");
        assert!(!node.path("copy").exists());
    }
}

/// Whatever is in its directory is the newer program's: its runner's journal, too.
#[test]
fn a_database_of_a_newer_program_is_refused_before_anything_is_touched() {
    const VERSION: std::ops::Range<usize> = 60..64;
    let (node, old) = (Node::new(), used());
    let mut file = fs::read(old.data.join("dag.db")).unwrap();
    file[VERSION].copy_from_slice(&99_u32.to_be_bytes());
    fs::create_dir_all(&node.data).unwrap();
    fs::write(node.data.join("dag.db"), file).unwrap();
    fs::copy(old.path("d.toml"), node.path("d.toml")).unwrap();
    node.cis(["run", "d.toml"]).code(1).tells("schema version 99 is newer than this program's");
    for touched in ["runner.lock", "runner.log", "runner.journal", "boot", "reserve"] {
        assert!(!node.data.join(touched).exists(), "{touched}");
    }
}

#[test]
fn what_a_killed_node_left_is_taken_up_and_told() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let wait = |id: &str| {
        let gate = node.path(&format!("gate{}", if id == "first" { "" } else { "2" }));
        let command = format!("echo up > {}; read -r _ < {}", node.path("up").display(), gate.display());
        json!({"id": id, "type": "shell", "command": command})
    };
    let second = node.fifo("gate2");
    let first_life = node.up();
    first_life.client.run(&json!({"dag_id": "d", "tasks": [wait("first"), wait("second")]}).to_string());
    up.lines(2);
    kill(first_life.running.pid());
    assert!(node.ok(["doctor"]).out.contains("was killed"));
    gate.let_through(1);
    eventually("the end of one", || {
        let journal = fs::read_to_string(node.data.join("runner.journal")).unwrap_or_default();
        journal.lines().any(|line| line.starts_with("D ")).then_some(())
    });
    let next = node.up();
    node.ok(["doctor"]).says("took up 1 run after an unclean stop: 1 attempt went on, 1 had ended");
    second.let_through(1);
    next.client.until_over("d");
    let ran =
        stop(next).code(0).tells("took up 1 run after an unclean stop: 1 attempt went on, 1 had ended\n");
    let log: Vec<Value> = ran.err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let started = log.iter().find(|line| line["message"] == "coordinator started").unwrap();
    assert_eq!(
        [&started["unclean"], &started["runs"], &started["reattached"], &started["recorded"]],
        [&json!(true), &json!(1), &json!(1), &json!(1)]
    );
    node.assert_sound();
}

#[test]
fn a_foreground_run_says_what_it_took_up() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.dag("waits", "[[tasks]]\nid = \"a\"\ncommand = \"echo up > up; read -r _ < gate\"\n");
    node.dag("d", ONE);
    node.ok(["run", "--detach", "waits.toml"]);
    up.lines(1);
    kill(node.coordinator());
    node.ok(["run", "d.toml"]).tells("took up 1 run after an unclean stop: 1 attempt went on\n");
    gate.let_through(1);
    node.ok(["status", "waits", "--watch"]);
    node.wait_idle();
    node.ok(["run", "d.toml"]).err.lines().for_each(|line| assert!(!line.contains("took up"), "{line}"));
}

/// The first page that has `needle` in it and holds nothing but a part of some long text.
fn spoil(file: &Path, needle: &[u8]) {
    let mut bytes = fs::read(file).unwrap();
    let full =
        |page: &&mut [u8]| page[4..].windows(needle.len()).filter(|part| *part == needle).count() > 300;
    let page = bytes.chunks_exact_mut(4096).find(full).expect("a page full of it");
    // Where the next part of the text is.
    page[..4].fill(0xff);
    fs::write(file, bytes).unwrap();
}

#[test]
fn after_a_kill_the_database_is_looked_over_and_a_finding_ends_new_work() {
    let node = Node::new();
    let up = node.up();
    let task = |command: &str| json!([{"id": "a", "type": "shell", "command": command}]);
    // What a task printed is read by nobody unless they ask for it.
    let prints = "i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo needle; echo needle >&2; done";
    up.client.run(&json!({"dag_id": "long", "tasks": task(prints)}).to_string());
    up.client.until_over("long");
    stop(up).code(0);
    let stopped = fs::read_to_string(node.data.join("stopped")).unwrap();

    // Killed, and nothing is wrong: once it has been looked over, the next stop is in good order again.
    let up = node.up();
    kill(up.running.pid());
    assert_eq!(fs::read_to_string(node.data.join("stopped")).unwrap(), stopped);
    eventually("a stop in good order", || {
        let ran = stop(node.up()).code(0);
        ran.err.contains("the database is sound").then_some(())
    });
    assert_ne!(fs::read_to_string(node.data.join("stopped")).unwrap(), stopped);

    let up = node.up();
    kill(up.running.pid());
    let file = node.data.join("dag.db");
    let log = fs::metadata(node.data.join("dag.db-wal")).map_or(0, |log| log.len());
    if log > 0 {
        // Fold what the killed one wrote, without stopping in good order.
        let reader = node.up();
        stop(reader).code(0);
        fs::remove_file(node.data.join("stopped")).unwrap();
    }
    spoil(&file, b"needle\n");
    let up = node.up();
    let refused = eventually("a refusal", || {
        let small = json!({"dag_id": "small", "tasks": task("true")}).to_string();
        let answer = up.client.post("/api/v1/dag/publish", &small);
        (answer.status == 503).then_some(answer)
    });
    assert_eq!(refused.code(), "DatabaseDamaged");
    assert!(refused.json()["error"]["hint"].as_str().unwrap().contains("cis restore"));
    assert_eq!(up.client.get("/health").status, 200, "it still answers");
    eventually("not ready", || (up.client.get("/ready").status == 503).then_some(()));
    let ran = stop(up).code(0).tells("nothing new is taken on");
    assert!(!ran.err.contains("panicked"));
    node.cis(["doctor"]).code(1).says("integrity    ✗ problem");
    node.cis(["backup", "copy"]).code(1).tells("DatabaseDamaged");
    assert!(!node.path("copy").exists());
}

/// Somebody who publishes and confirms small DAGs until told to stop, and remembers what was acknowledged.
fn worker(client: &Client, number: usize, enough: &AtomicBool, acknowledged: &Mutex<Vec<(String, String)>>) {
    let mut n = 0;
    while !enough.load(Ordering::SeqCst) {
        let id = format!("w{number}-{n}");
        let tasks = json!([{"id": "a", "type": "shell", "command": "true", "idempotent": true},
                           {"id": "b", "type": "shell", "command": "true", "depends_on": ["a"], "idempotent": true}]);
        let started = client.run(&json!({"dag_id": id, "tasks": tasks}).to_string());
        let run = started["run_id"].as_str().unwrap_or_else(|| panic!("{started}")).to_owned();
        acknowledged.lock().unwrap().push((id, run));
        n += 1;
    }
}

#[test]
fn a_backup_under_load_holds_all_that_was_acknowledged_and_can_be_restored() {
    const WORKERS: usize = 4;
    let node = Node::new();
    let up = node.up();
    let (enough, acknowledged) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let backups: Vec<(PathBuf, usize)> = std::thread::scope(|scope| {
        for number in 0..WORKERS {
            let (client, enough, acknowledged) = (&up.client, &enough, &acknowledged);
            scope.spawn(move || worker(client, number, enough, acknowledged));
        }
        let count = || acknowledged.lock().unwrap().len();
        let backups = (1..=3).map(|n| {
            eventually("some load", || (count() >= 10 * n).then_some(()));
            let (file, before) = (node.path(&format!("backup{n}")), count());
            let told = node.json(["backup", file.to_str().unwrap()]);
            assert!(told["runs"].as_u64().unwrap() >= before as u64, "{told}");
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
            (file, before)
        });
        let backups = backups.collect();
        enough.store(true, Ordering::SeqCst);
        backups
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    let key = fs::read_to_string(node.data.join("node.key")).unwrap();
    for (file, before) in backups {
        let data = node.path(&format!("restored-{}", file.file_name().unwrap().to_string_lossy()));
        let on = |args: &[&str]| {
            let mut command = node.bare();
            command.arg("--data-dir").arg(&data).args(args);
            Running::start(command).wait()
        };
        let restored = on(&["restore", file.to_str().unwrap(), "--json"]).code(0);
        assert_eq!(json(&restored)["aside"], Value::Null, "nothing was there: {restored}");
        on(&["doctor"]).code(0);
        let reader = Reader::open(&data.join("dag.db")).unwrap();
        for (id, run) in &acknowledged[..before] {
            let found =
                reader.run_by_id(run.parse().unwrap()).unwrap().unwrap_or_else(|| panic!("{id} is lost"));
            assert_eq!(found.dag_id.as_str(), id);
        }
        assert_eq!(fs::read_to_string(data.join("node.key")).unwrap(), key, "it is still who it was");
        // What was under way is taken up, and ends: every task may be repeated.
        on(&["coordinator"]).code(0);
        let runs = reader.runs(None, u32::MAX).unwrap();
        let unwell: Vec<_> = runs.iter().filter(|run| run.status.word() != "completed").collect();
        assert!(runs.len() >= before && unwell.is_empty(), "{unwell:#?}");
        assert_eq!(check::violations(&reader).unwrap(), [""; 0]);
    }
    stop(up).code(0);
}

#[test]
fn a_restore_overwrites_nothing_unasked_and_keeps_what_was_there() {
    let node = used();
    node.ok(["backup", "good", "--logs"]);
    node.cis(["backup", "good"]).code(4).tells("exists already");
    node.dag("later", ONE);
    node.ok(["run", "later.toml"]);
    let bytes = fs::read(node.path("good")).unwrap();
    node.write("cut", &bytes[..bytes.len() / 2]);
    node.write("text", "nothing of the kind");
    let content = || fs::read(node.data.join("dag.db")).unwrap();

    let up = node.up();
    node.cis(["restore", "good", "--force"]).code(1).tells("a coordinator works on this data directory");
    stop(up).code(0);
    let before = content();
    node.cis(["restore", "good"]).code(4).tells("--force");
    node.cis(["restore", "none", "--force"]).code(3);
    for bad in ["cut", "text"] {
        node.cis(["restore", bad, "--force"]).code(1).tells("DatabaseDamaged").tells("nothing was changed");
    }
    assert!(content() == before && !node.data.join("restoring").exists());

    node.ok(["restore", "good", "--force"]).tells("before-restore.1");
    node.ok(["status", "d"]);
    assert_eq!(node.logs("d", "a"), "hello\n");
    node.cis(["status", "later"]).code(3);
    assert!(node.data.join("before-restore.1/dag.db").exists());
    let told = node.json(["doctor"]);
    assert_eq!((&told["sound"], &checked(&told, "files")["state"]), (&json!(true), &json!("note")));
    node.ok(["run", "later.toml"]).err.lines().for_each(|line| assert!(!line.contains("took up"), "{line}"));

    // The way out of a damaged database.
    scribble(&node.data.join("dag.db"));
    node.cis(["status", "d"]).code(1).tells("cis restore FILE --force");
    node.ok(["restore", "good", "--force"]).tells("before-restore.2");
    node.ok(["doctor"]);
    node.ok(["run", "d.toml"]);
    node.assert_sound();
}

#[test]
fn what_ran_when_the_backup_was_taken_is_not_run_again_by_restoring_it() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let task = |id: &str, more: &str| {
        format!(
            "[[tasks]]\nid = \"{id}\"\n{more}\ncommand = \"echo {id} >> ran; echo up > up; read -r _ < gate\"\n"
        )
    };
    node.dag("d", &(task("once", "") + &task("often", "idempotent = true")));
    node.ok(["run", "--detach", "d.toml"]);
    up.lines(2);
    node.ok(["backup", "then"]);
    gate.let_through(2);
    node.ok(["status", "d", "--watch"]);
    node.wait_idle();
    node.ok(["restore", "then", "--force"]).tells("1 run had not ended");
    gate.let_through(1);
    node.ok(["coordinator"]);
    up.lines(1);
    assert_eq!(node.states("d"), "once=failed often=completed");
    let mut ran: Vec<String> = node.read("ran").lines().map(str::to_owned).collect();
    ran.sort();
    assert_eq!(ran, ["often", "often", "once"]);
    node.assert_sound();
}
