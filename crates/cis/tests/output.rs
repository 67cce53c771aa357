//! What tasks print: every byte, in order, both streams told apart, capped with the cut said; and what they leave
//! running, ended or let go.

mod support;

use rustix::process::Signal;
use serde_json::json;
use support::http::{Client, field};
use support::{Node, process};

#[test]
fn any_bytes_are_kept() {
    let node = Node::new();
    let text = r#"
        tasks = [
          { id = "binary", command = "printf 'a\\377\\000b\\033[31mc\\n\\nno newline at the end'" },
          { id = "silent", command = "true" },
          { id = "long", command = "head -c 300000 /dev/zero | tr '\\0' x; echo; echo end" },
        ]
    "#;
    node.dag("d", text);
    node.ok(["run", "d.toml"]);
    let lines: Vec<String> = node
        .ok(["logs", "d", "-t", "binary", "--json"])
        .ndjson()
        .iter()
        .map(|line| line["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(lines, ["a\u{fffd}\0b\u{1b}[31mc", "", "no newline at the end"]);
    let shown = node.logs("d", "binary");
    assert!(!shown.contains('\u{1b}') && !shown.contains('\0'), "{shown:?}");
    assert!(shown.ends_with("\n\nno newline at the end\n"), "{shown:?}");
    assert_eq!(node.logs("d", "silent"), "");
    assert_eq!(node.logs("d", "long"), format!("{}\nend\n", "x".repeat(300_000)));
}

#[test]
fn streams_are_told_apart_and_kept_in_order() {
    let node = Node::new();
    node.dag("d", "tasks = [{ id = 'a', command = 'for i in $(seq 500); do echo out $i; echo err $i >&2; done' }, { id = 'b', command = 'echo hello from b' }]");
    node.ok(["run", "d.toml"]);
    let lines = node.ok(["logs", "d", "--json"]).ndjson();
    for (stream, word) in [("stdout", "out"), ("stderr", "err")] {
        let texts: Vec<&str> = lines
            .iter()
            .filter(|line| line["stream"] == stream && line["task_id"] == "a")
            .filter_map(|line| line["text"].as_str())
            .collect();
        assert_eq!(texts, (1..=500).map(|i| format!("{word} {i}")).collect::<Vec<_>>());
    }
    node.ok(["logs", "d"]).says("b │ hello from b");
    assert_eq!(node.ok(["logs", "d", "--grep", "^out 49[89]$"]).out, "a │ out 498\na │ out 499\n");
    assert_eq!(node.ok(["logs", "d", "--run", "1", "-t", "b"]).out, "hello from b\n");
    node.cis(["logs", "d", "--grep", "("]).code(2).says_nothing();
    node.cis(["logs", "d", "-t", "nope"]).code(3).says_nothing();
}

#[test]
fn too_much_output_is_cut_in_the_middle_and_the_cut_is_said() {
    let node = Node::new().with("CIS_LOG_CAP", "64KiB");
    node.dag("d", "tasks = [{ id = 'a', command = 'echo first; seq 100000; echo last' }]");
    node.ok(["run", "d.toml"]);
    let shown = node.logs("d", "a");
    assert!(shown.starts_with("first\n1\n2\n") && shown.ends_with("99999\n100000\nlast\n"));
    let cuts: Vec<&str> = shown.lines().filter(|line| line.contains("bytes were cut here")).collect();
    assert_eq!(cuts.len(), 1, "{cuts:?}");
    assert!(shown.len() < 80 << 10, "{}", shown.len());
}

#[test]
fn a_failed_run_ends_with_the_last_lines_and_the_remedy() {
    let node = Node::new();
    node.dag(
        "d",
        "tasks = [{ id = 'a', name = 'The Task', command = 'seq 100; echo the reason >&2; exit 3' }]",
    );
    let ran =
        node.cis(["run", "d.toml"]).code(1).tells("The Task: exit 3").tells("│ 100").tells("│ the reason");
    assert!(!ran.err.contains("│ 79\n") && ran.err.contains("│ 85\n"), "the last twenty: {ran}");
    ran.tells("hint: `cis dag retry d#1 a` tries it again").tells("hint: `cis logs d#1 --task a`");
}

#[test]
fn what_a_task_leaves_running_is_ended_and_named() {
    let node = Node::new();
    let text = r#"
        tasks = [
          { id = "plain", command = "sleep 1000 & echo $!" },
          { id = "session", command = "setsid sleep 1000 & echo x" },
          { id = "double", command = "(setsid sh -c 'sleep 1000 & exec sleep 1000' </dev/null >/dev/null 2>&1 &); echo x" },
          { id = "stubborn", command = "(trap '' TERM; sleep 1000; sleep 1000) & echo x", grace = "10ms" },
          { id = "after", deps = ["plain", "session", "double", "stubborn"], command = "true" },
        ]
    "#;
    node.dag("d", text);
    node.ok(["run", "d.toml"]);
    node.assert_no_survivors();
    for task in ["plain", "session", "double", "stubborn"] {
        let lines = node.ok(["logs", "d", "-t", task, "--json"]).ndjson();
        let note = lines.iter().find(|line| line["stream"] == "cis").unwrap_or_else(|| panic!("{lines:?}"));
        assert!(note["text"].as_str().unwrap().contains("ended leftover process "), "{note}");
    }
}

#[test]
fn a_detached_task_may_leave_something_running() {
    let node = Node::new();
    let up = node.fifo("up");
    node.dag(
        "d",
        "tasks = [{ id = 'a', detach = true, command = '''setsid sh -c 'echo $$ > up; exec sleep 1000' & true''' }]",
    );
    node.ok(["run", "d.toml"]);
    let pid: u32 = up.line().parse().unwrap();
    // Whatever else is run and ended leaves it alone.
    node.dag("e", "tasks = [{ id = 'a', command = 'sleep 1000 & true' }]");
    node.ok(["run", "e.toml"]);
    assert!(!process::is_gone(pid));
    process::kill(pid);
}

#[test]
fn nobody_keeps_a_finished_task_waiting_by_holding_its_output() {
    let node = Node::new();
    // A session of its own and no environment: the one escape there is. It is not ended, but not waited for.
    let up = node.fifo("up");
    node.dag("d", "tasks = [{ id = 'a', command = '''env -i setsid sh -c 'echo $$ > up; exec sleep 1000' & read -r _ < go''' }]");
    let go = node.fifo("go");
    let run = node.spawn(["run", "d.toml"]);
    let pid: u32 = up.line().parse().unwrap();
    go.let_through(1);
    run.wait().code(0);
    process::kill(pid);
}

/// A claim, a full log, a release, and all that again: it ends, and the disk holds no more than the task's budget.
#[test]
fn claims_that_are_logged_to_and_released_again_and_again_come_to_an_end() {
    const CAP: usize = 128 << 10;
    const PIECE: usize = 16 << 10;
    let node = Node::new().with("CIS_LOG_CAP", "128KiB");
    let up = node.up();
    let worker = up.client.with(&node.token(["did:cis:worker:w", "--as", "worker"]));
    up.client.run(&field("d", 1, &json!({})));
    let text = "x\n".repeat(PIECE / 2);
    let mut last = json!("ready");
    let mut attempts = 0;
    while last == "ready" {
        let task = worker.claim(&json!({"wait_secs": 30})).remove(0);
        attempts += 1;
        assert!(attempts < 20, "it goes on for ever");
        for n in 1..=CAP / PIECE {
            let told = worker.say(&task, "log", json!({"offset": (n - 1) * PIECE, "text": text}));
            assert_eq!(told.json()["offset"], n * PIECE, "what is cut is told all the same");
        }
        last = worker.say(&task, "release", json!({})).json()["status"].clone();
    }
    // Three are free, three more are takeovers, and the next is one too many.
    assert_eq!((last, attempts), (json!("failed"), 7));
    let told = up.client.until_over("d");
    assert_eq!((&told["status"], &told["tasks"][0]["cause"]), (&json!("failed"), &json!("given back")));
    let logs = std::fs::read_dir(node.data.join("logs/1")).unwrap();
    let stored: u64 = logs.map(|log| log.unwrap().metadata().unwrap().len()).sum();
    assert!(stored <= 4 * CAP as u64 + 3 * (64 << 10), "{stored}");
    for (attempt, pieces) in [("1", 7), ("7", 3)] {
        let shown = node.ok(["logs", "d", "--attempt", attempt]).out;
        let full = text.repeat(pieces) + "the log is full: what follows is not kept\n";
        assert!(shown == full, "{attempt}: {} bytes instead of {}", shown.len(), full.len());
    }
}

#[test]
fn pieces_of_one_byte_go_on_after_a_restart() {
    let node = Node::new();
    let up = node.up();
    up.client.run(&field("d", 1, &json!({})));
    let task = up.client.claim(&json!({"wait_secs": 30})).remove(0);
    let say = |client: &Client, stream: &str, offset: usize| {
        client.say(&task, "log", json!({"stream": stream, "offset": offset, "text": "x"})).json()["offset"]
            .clone()
    };
    for n in 0..100 {
        assert_eq!(say(&up.client, "stdout", n), n + 1);
    }
    assert_eq!(say(&up.client, "stderr", 0), 1);
    up.running.signal(Signal::KILL);
    up.running.wait();
    let up = node.up();
    assert_eq!(say(&up.client, "stdout", 50), 100, "told again");
    assert_eq!(say(&up.client, "stdout", 100), 101);
    assert_eq!(say(&up.client, "stderr", 1), 2);
    assert_eq!(up.client.say(&task, "complete", json!({})).status, 200);
    let told = up.client.until_over("d");
    assert_eq!(
        (&told["tasks"][0]["log_bytes"], &told["tasks"][0]["output"]),
        (&json!(103), &json!("x".repeat(101)))
    );
}
