//! The command line as machines and people meet it: JSON everywhere, errors with a remedy, no colours in pipes.

mod support;

use std::process::Stdio;

use serde_json::Value;
use support::{Node, Ran, Running};

const DAG: &str = "params = { who = 'x' }\ntasks = [{ id = 'a', command = 'echo hello' }, { id = 'b', deps = ['a'], command = 'exit 1' }]";

/// A node on which `d` has failed once and `p` waits for confirmation.
fn lived_in() -> Node {
    let node = Node::new();
    node.dag("d", DAG);
    node.cis(["run", "d.toml"]).code(1);
    node.dag("p", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["dag", "publish", "p.toml"]);
    node
}

const READING: [&[&str]; 20] = [
    &["dag", "list"],
    &["dag", "list", "-s", "failed"],
    &["dag", "runs"],
    &["dag", "runs", "d"],
    &["status", "d"],
    &["status", "p"],
    &["dag", "status", "d#1"],
    &["dag", "validate", "d.toml"],
    &["dag", "show", "d"],
    &["dag", "show", "d", "--format", "toml"],
    &["dag", "diff", "d", "1", "1"],
    &["dag", "explain", "d.toml", "a"],
    &["dag", "explain", "d", "b"],
    &["dag", "graph", "d"],
    &["dag", "graph", "d.toml", "--format", "svg"],
    &["run", "d.toml", "--dry-run"],
    &["run", "d", "--dry-run"],
    &["skill", "list"],
    &["skill", "show", "echo"],
    &["config", "show"],
];

#[test]
fn every_command_speaks_json() {
    let node = lived_in();
    for args in READING {
        assert_eq!(node.json(args)["success"], true, "{args:?}");
    }
    let review = node.review("p");
    for args in [
        &["dag", "publish", "p.toml"][..],
        &["dag", "confirm", &review],
        &["run", "--detach", "p.toml"],
        &["dag", "cancel", "p"],
        &["dag", "resume", "d", "--detach"],
        &["init", "--force"],
    ] {
        assert_eq!(node.json(args)["success"], true, "{args:?}");
    }
    node.cis(["status", "d", "--watch"]).code(1);
    assert_eq!(node.json(["dag", "retry", "d", "b", "--detach"])["success"], true);
    node.cis(["status", "d", "--watch"]).code(1);
    // A line each.
    for (args, code) in [
        (&["run", "d.toml", "--json"][..], 1),
        (&["logs", "d", "--json"], 0),
        (&["logs", "d", "--follow", "--json"], 0),
        (&["status", "d", "--watch", "--json"], 1),
        (&["dag", "resume", "d", "--json"], 1),
    ] {
        assert!(!node.cis(args).code(code).ndjson().is_empty(), "{args:?}");
    }
    node.dag("q", "tasks = [{ id = 'a', command = 'true' }]");
    node.ok(["dag", "publish", "q.toml"]);
    assert_eq!(node.cis(["status", "q", "--watch", "--json"]).code(5).json()["status"], "pending");
    assert_eq!(node.json(["dag", "confirm", "q", "--reject"])["status"], "rejected");
}

const WRONG: [(&[&str], i32, &str); 18] = [
    (&["confirm", "r-0000-0000-0000"], 3, "NotFound"),
    (&["confirm", "p"], 2, "ValidationFailed"),
    (&["dag", "confirm", "p", "--content-hash", "0123456789ab"], 2, "ValidationFailed"),
    (&["status", "nope"], 3, "NotFound"),
    (&["status", "dd"], 3, "NotFound"),
    (&["status", "d#7"], 3, "NotFound"),
    (&["status", "01a1e153-f547-7753-aeac-10635dda8b09"], 3, "NotFound"),
    (&["logs", "nope"], 3, "NotFound"),
    (&["logs", "p"], 3, "NotFound"),
    (&["dag", "cancel", "nope"], 3, "NotFound"),
    (&["dag", "resume", "nope"], 3, "NotFound"),
    (&["dag", "confirm", "nope"], 3, "NotFound"),
    (&["dag", "graph", "nope"], 3, "NotFound"),
    (&["run", "nope"], 3, "NotFound"),
    (&["dag", "runs", "nope"], 3, "NotFound"),
    (&["run", "p"], 5, "AwaitingConfirmation"),
    (&["run", "d", "-p", "whoo=1"], 2, "ValidationFailed"),
    (&["dag", "list", "-s", "done"], 2, "ValidationFailed"),
];

#[test]
fn errors_have_a_code_and_a_remedy_and_leave_stdout_alone() {
    let node = lived_in();
    for (args, code, name) in WRONG {
        node.cis(args).code(code).says_nothing().tells(&format!("error[{name}]: ")).tells("\nhint: ");
        let told = node.cis(args.iter().chain(&["--json"])).code(code);
        assert!(told.err.is_empty(), "{told}");
        assert_eq!(
            (&told.json()["success"], &told.json()["error"]["code"]),
            (&false.into(), &name.into()),
            "{told}"
        );
    }
    for args in [
        &["frobnicate"][..],
        &["run"],
        &["run", "d.toml", "-j", "0"],
        &["dag", "graph", "d", "--format", "png"],
        &["completions", "tcl"],
    ] {
        node.cis(args).code(2).says_nothing();
    }
    node.cis(["run", "nope.toml"]).code(3).says_nothing().tells("there is no file `nope.toml`");
    node.cis(["status", "d#x"]).code(2).says_nothing().tells("`x` is not a run number");
}

#[test]
fn every_problem_of_a_file_is_told_at_once() {
    let node = Node::new();
    node.dag("bad", "tasks = [\n{ id = 'a', comand = 'x' },\n{ id = 'b', command = 'x', deps = ['c'] },\n{ id = 'b', command = 'x', timeout = 'soon' }]");
    for args in [&["dag", "validate", "bad.toml"][..], &["run", "bad.toml"], &["dag", "publish", "bad.toml"]]
    {
        let ran = node.cis(args).code(2).says_nothing();
        ran.tells("error[ValidationFailed]")
            .tells("tasks[0]")
            .tells("hint: did you mean `command`?")
            .tells("tasks[1].deps[0]")
            .tells("soon");
    }
    let told = node.cis(["dag", "validate", "bad.toml", "--json"]).code(2).json();
    assert!(told["error"]["details"].as_array().unwrap().len() >= 4, "{told}");
    assert!(!node.data.exists());
    for (name, text) in
        [("empty.toml", ""), ("broken.toml", "tasks = ["), ("broken.json", "{"), ("broken.yaml", "a: [")]
    {
        node.write(name, text);
        node.cis(["run", name]).code(2).says_nothing().tells("error[ValidationFailed]");
    }
    node.cis(["run", "./"]).code(2).says_nothing().tells("cannot read `./`");
}

fn plain(ran: &Ran) {
    assert!(!ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'), "{ran}");
    assert!(!ran.err.contains("panicked"), "{ran}");
}

#[test]
fn pipes_get_no_colours_and_no_cursor_games() {
    let node = lived_in();
    for args in READING {
        plain(&node.ok(args));
    }
    plain(&node.cis(["run", "d.toml"]));
    plain(&node.cis(["logs", "d"]));
    plain(&node.cis(["status", "nope"]));
    plain(&node.with("NO_COLOR", "1").with("TERM", "xterm-256color").cis(["run", "d.toml"]));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_reason_to_panic() {
    let node = lived_in();
    let others: [&[&str]; 6] = [
        &["logs", "d"],
        &["completions", "bash"],
        &["--help"],
        &["run", "d.toml"],
        &["run", "d.toml", "--json"],
        &["status", "d", "--watch"],
    ];
    for args in READING.iter().chain(&others) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = node.command(*args);
        let ran = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let err = String::from_utf8_lossy(&ran.stderr);
        assert!(
            !err.contains("panicked") && ran.status.code().is_some_and(|code| code != 101),
            "{args:?}: {ran:?}"
        );
    }
    node.assert_no_survivors();
}

#[test]
fn help_is_there_for_every_command() {
    let node = Node::new();
    let top = node.ok(["--help"]).says("Usage: cis").says("Run, publish and inspect DAGs");
    for args in [
        "run",
        "status",
        "logs",
        "init",
        "completions",
        "coordinator",
        "dag run",
        "dag publish",
        "confirm",
        "approve",
        "reject",
        "pending",
        "dag confirm",
        "dag list",
        "dag status",
        "dag logs",
        "dag runs",
        "dag cancel",
        "dag resume",
        "dag retry",
        "dag validate",
        "dag graph",
        "dag show",
        "dag diff",
        "dag explain",
        "skill list",
        "skill show",
        "skill run",
        "config show",
    ] {
        node.ok(args.split(' ').chain(["--help"])).says("Usage: cis").says("--data-dir");
    }
    assert!(!top.out.contains("runner"), "what people need not know is not shown");
    node.ok(["--version"]).says(env!("CARGO_PKG_VERSION"));
    Running::start(node.bare()).wait().code(2).says_nothing().tells("Usage: cis");
}

#[test]
fn completions_are_there_for_every_shell() {
    let node = Node::new();
    for (shell, mark) in [("bash", "complete -F"), ("zsh", "#compdef cis"), ("fish", "complete -c cis")] {
        let ran = node.ok(["completions", shell]).says(mark).says("publish").says("max-parallel");
        let checked =
            std::process::Command::new(shell).arg("-n").arg(node.write("script", &ran.out)).output();
        // Whether the shell reads it can be told where there is one.
        if let Ok(checked) = checked {
            assert!(checked.status.success(), "{shell}: {checked:?}");
        }
    }
}

#[test]
fn settings_say_where_they_come_from() {
    let node = Node::new();
    let file = node.write("home/.cis/config.toml", "[dag]\ngrace = \"3s\"\nslots = 5\n");
    let shown = node.ok(["config", "show"]).says("CIS_SLOTS").says("CIS_DATA_DIR");
    assert!(shown.out.contains(&format!("{}:2", file.display())), "{shown}");
    node.write("other.toml", "[dag]\nslotz = 5\ngrace = \"soon\"\n");
    let wrong = node.cis(["--config", "other.toml", "config", "show"]).code(2).says_nothing();
    wrong.tells("slotz").tells("soon").tells("hint:");
    let missing = node.cis(["--config", "missing.toml", "config", "show"]);
    assert!(matches!(missing.status.code(), Some(2 | 3)), "{missing}");
}

#[test]
fn a_first_dag_is_written_from_what_is_there() {
    for (file, text) in [
        ("Makefile", "build:\n\ttrue\ntest: build\n\ttrue\n.PHONY: build test\n"),
        ("package.json", r#"{"name": "x", "scripts": {"build": "true", "test": "true", "lint": "true"}}"#),
        ("Cargo.toml", "[package]\nname = \"x\"\nversion = \"0.1.0\"\n"),
        ("README", "nothing to build here"),
    ] {
        let node = Node::new();
        node.write(file, text);
        node.ok(["init"]).says("dag.toml");
        node.ok(["dag", "validate", "dag.toml"]);
        node.ok(["run", "dag.toml", "--dry-run"]).tells("would run; nothing was started");
        node.cis(["init"]).code(4).says_nothing().tells("hint:");
        node.ok(["init", "--force"]);
    }
}

#[test]
fn reading_needs_no_data_directory_and_makes_none() {
    let node = Node::new();
    node.ok(["dag", "list"]).says_nothing().tells("no DAGs yet").tells("hint: `cis init`");
    node.ok(["dag", "runs"]).says_nothing();
    node.cis(["status", "d"]).code(3).says_nothing().tells("nothing has been published yet");
    assert_eq!(node.json(["dag", "list"])["dags"], Value::Array(Vec::new()));
    assert!(!node.data.exists());
}

#[test]
fn a_data_directory_may_be_very_deep() {
    let mut node = Node::new();
    node.data = node.path(&"deep/".repeat(40)).join("data");
    assert!(node.data.as_os_str().len() > 200);
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.dag(
        "d",
        "tasks = [{ id = 'a', command = 'echo k=v > $CIS_OUTPUT; echo up > up; read -r _ < gate' }]",
    );
    node.ok(["run", "--detach", "d.toml"]);
    up.line();
    node.ok(["dag", "publish", "d.toml"]);
    gate.let_through(1);
    node.ok(["status", "d", "--watch"]);
    assert_eq!(node.task("d", "a")["outputs"]["k"], "v");
}

#[test]
fn a_data_directory_that_cannot_be_is_told() {
    let mut node = Node::new();
    node.dag("d", "tasks = [{ id = 'a', command = 'true' }]");
    node.data = node.write("a-file", "");
    let ran = node.cis(["run", "d.toml"]).says_nothing().tells("error[").tells("hint:");
    assert_ne!(ran.status.code(), Some(0));
}

#[test]
fn a_dag_may_come_from_standard_input() {
    let node = Node::new();
    node.write("in", "dag_id: piped\ntasks:\n  - id: a\n    command: echo from a pipe\n");
    let mut command = node.command(["run", "-"]);
    command.stdin(std::fs::File::open(node.path("in")).unwrap());
    Running::start(command).wait().code(0);
    assert_eq!(node.logs("piped", "a"), "from a pipe\n");
}

#[test]
fn pictures_come_in_four_formats() {
    let node = lived_in();
    for (format, mark) in [("ascii", "b"), ("mermaid", "flowchart"), ("dot", "digraph"), ("svg", "<svg")] {
        node.ok(["dag", "graph", "d", "--format", format]).says(mark);
        node.ok(["dag", "graph", "d.toml", "--format", format]).says(mark);
    }
    node.ok(["dag", "explain", "d.toml", "a"]).says("echo hello").says("/bin/sh -c").says("CIS_OUTPUT");
    let hash = node.ok(["dag", "validate", "d.toml"]).out;
    assert_eq!(hash.trim().len(), 64);
    assert_eq!(node.json(["dag", "validate", "d.toml"])["content_hash"], hash.trim());
}

/// Where nothing can be written: told, and no panic.
#[test]
fn what_cannot_be_written_is_told() {
    let node = lived_in();
    let publish: &[&str] = &["dag", "publish", "p.toml"];
    for args in READING.into_iter().chain([publish, &["completions", "bash"], &["doctor"]]) {
        for json in [&[][..], &["--json"]] {
            let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
            let mut command = node.command(args.iter().chain(json));
            let told = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
            let words = String::from_utf8_lossy(&told.stderr);
            assert_eq!(told.status.code(), Some(1), "{args:?} {json:?}: {words}");
            assert!(!words.contains("panicked"), "{args:?} {json:?}: {words}");
            if json.is_empty() {
                assert!(words.contains("cannot write"), "{args:?}: {words}");
            }
        }
    }
}

#[test]
fn very_long_words_are_shown() {
    let node = Node::new();
    let long = "x".repeat(70_000);
    node.dag(
        "d",
        &format!("tasks = [{{ id = 'a', name = '{long}', command = 'true', env = {{ X = '{long}' }} }}]"),
    );
    node.ok(["dag", "explain", "d.toml", "a"]).says(&long);
    node.ok(["run", "d.toml"]);
    node.ok(["status", "d"]).says(&long);
}

#[test]
fn a_scope_is_not_for_files() {
    let node = lived_in();
    let told = node.cis(["run", "d.toml", "--scope", "project-x"]).code(2);
    told.tells("`--scope` says which DAG of a name is meant").tells("hint: write `scope = ");
}

#[test]
fn a_data_directory_that_cannot_be_read_is_not_an_empty_one() {
    let node = lived_in();
    let mut command = node.bare();
    command.args(["dag", "list", "--data-dir"]).arg(node.path("d.toml"));
    Running::start(command).wait().code(1).tells("cannot look into the data directory");
}

#[test]
fn whoever_stops_watching_leaves_the_run_alone() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.dag("d", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }]");
    node.ok(["run", "--detach", "d.toml"]);
    up.line();
    let mut watching = node.spawn(["status", "d", "--watch", "--json"]);
    watching.until("task.claimed");
    watching.signal(rustix::process::Signal::INT);
    watching.wait().code(130);
    gate.let_through(1);
    node.ok(["status", "d", "--watch"]);
}

#[test]
fn a_usage_error_as_json_says_what_is_missing() {
    let node = Node::new();
    let told = node.cis(["dag", "confirm", "--json"]).code(2).json();
    assert!(told["error"]["message"].as_str().unwrap().contains("<WHAT>"), "{told}");
}
