//! What is shown is what it is: definitions and their changes in full, questions on a real terminal, and nothing a caller wrote
//! that hides itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::os::unix::process::ExitStatusExt;

use cis::term::visible::{conceal, hides};
use cis_core::dag::{Dag, Defaults, Format, content_hash, parse};
use serde_json::{Value, json};
use support::http::Up;
use support::pty::{CTRL_C, CTRL_D, Screen, Terminal};
use support::{Node, Ran, Running};
use unicode_width::UnicodeWidthStr;

/// A newline that would end a comment, if it were shown as a space.
const COMMENTED: &str = "make test # see README\ncat \"$CIS_DATA_DIR/admin.token\"";

/// Characters that take no room, turn the text around, or move the cursor.
const HIDDEN: &str =
    "echo \u{200b}ok\u{2060} \u{e0041} \u{ad} \u{3164} \u{115f} x\u{202e}\u{1b}[2J\r\t \\u{200b} ";

/// Everything a caller can write where text is allowed.
const ESCAPES: &str = "\u{1b}[2J\u{1b}]0;pwn\u{7}\u{9b}31mX\u{202e}evil\r\nerror: fake\u{2028}\u{200b}";

fn far() -> String {
    format!("make test{}; echo far", " ".repeat(300))
}

/// Publishes a definition from a file, as the owner.
fn publish(node: &Node, definition: &Value) {
    let name = format!("{}.json", definition["dag_id"].as_str().unwrap());
    node.write(&name, definition.to_string());
    node.ok(["dag", "publish", &name, "--revision"]);
}

fn one(command: &str) -> Value {
    json!({"dag_id": "d", "tasks": [{"id": "t", "command": command}]})
}

/// `cis` as the owner on another machine.
fn away(node: &Node, up: &Up, args: &[&str]) -> Ran {
    let mut command = node.bare();
    command.env("CIS_DATA_DIR", "/nonexistent/cis").env("CIS_TOKEN", &up.client.token);
    command.env("CIS_NODE", format!("http://{}", up.client.address)).args(args);
    Running::start(command).wait()
}

/// The text below `name` in the part of a sheet that `heading` begins, put together again.
fn below(lines: &[&str], heading: &str, name: &str) -> String {
    let part = lines.iter().skip_while(|line| !line.contains(heading));
    let mut text: Option<String> = None;
    for line in part.skip_while(|line| line.trim() != name).skip(1) {
        let (first, next) = (line.strip_prefix("    │ "), line.strip_prefix("    ↳ "));
        match (first, next, &mut text) {
            (Some(line), _, None) => text = Some(line.to_owned()),
            (Some(line), _, Some(text)) => *text += &format!("\n{line}"),
            (None, Some(rest), Some(text)) => *text += rest,
            _ => break,
        }
    }
    let text = text.unwrap_or_else(|| panic!("no `{name}` below `{heading}`: {lines:#?}"));
    assert!(!hides(&text), "{text:?}");
    text.split('\n').map(conceal).collect::<Vec<_>>().join("\n")
}

fn ask_and(mut terminal: Terminal, keys: &str) -> Screen {
    terminal.until("[y/N] ");
    terminal.press(keys);
    terminal.wait()
}

#[test]
fn confirm_shows_all_of_it_and_asks() {
    for columns in [80, 60] {
        let node = Node::new();
        let commands =
            [COMMENTED.replace("make test", "true"), far().replace("make test", "true"), HIDDEN.to_owned()];
        let tasks: Vec<Value> = commands
            .iter()
            .enumerate()
            .map(|(n, command)| json!({"id": format!("t{n}"), "command": command}))
            .collect();
        publish(&node, &json!({"dag_id": "d", "description": ESCAPES, "tasks": tasks}));
        let screen = ask_and(node.on_terminal(columns, ["dag", "confirm", "d"]), "y\n").code(0);
        let lines = screen.lines();
        for (n, command) in commands.iter().enumerate() {
            assert_eq!(below(&lines, &format!("of 3: t{n}"), "command"), *command);
        }
        assert_eq!(below(&lines, "d revision 1", "description"), ESCAPES);
        let known = node.json(["dag", "show", "d"]);
        let hash = known["content_hash"].as_str().unwrap();
        assert!(lines.concat().replace("    ↳ ", "").contains(hash), "{}", screen.text);
        assert_eq!(known["status"], "confirmed");
        screen.says("Confirm revision 1 of d? [y/N] ").says("Started d#1");
    }
}

#[test]
fn anything_but_yes_confirms_nothing() {
    let node = Node::new();
    publish(&node, &one("true"));
    for (command, keys) in [
        (["dag", "confirm", "d"].as_slice(), "n\n"),
        (&["confirm", "d"], "\n"),
        (&["dag", "confirm", "d"], "yeah\n"),
        (&["dag", "confirm", "d"], CTRL_D),
    ] {
        let screen = ask_and(node.on_terminal(60, command), keys).code(5);
        screen.lines();
        screen.says("revision 1 of `d` was not confirmed").says("nothing was started");
    }
    let interrupted = ask_and(node.on_terminal(60, ["dag", "confirm", "d"]), CTRL_C);
    assert_eq!(interrupted.status.signal(), Some(2), "{}", interrupted.text);
    let known = node.json(["status", "d"]);
    assert_eq!((&known["status"], &known["runs"]), (&json!("pending"), &json!(0)));
}

#[test]
fn revision_published_after_the_showing_is_not_confirmed() {
    let node = Node::new();
    publish(&node, &one("echo harmless > ran"));
    let mut terminal = node.on_terminal(80, ["dag", "confirm", "d"]);
    terminal.until("[y/N] ");
    publish(&node, &one("echo evil > ran"));
    terminal.press("y\n");
    terminal.wait().code(0).says("Started d#1");
    let status = |n: &str| node.json(["dag", "show", "d", "--revision", n])["status"].clone();
    assert_eq!((status("1"), status("2")), (json!("confirmed"), json!("pending")));
    node.cis(["status", "d", "--watch"]).code(0);
    assert_eq!(node.json(["status", "d#1"])["run"]["revision"], 1);
}

#[test]
fn second_revision_is_shown_as_changes() {
    let node = Node::new();
    publish(&node, &one("make\ntest"));
    ask_and(node.on_terminal(80, ["dag", "confirm", "d"]), "yes\n").code(0);
    publish(&node, &one("make\ncurl evil # test\ntest"));
    let screen = ask_and(node.on_terminal(60, ["dag", "confirm", "d"]), "n\n").code(5);
    let lines = screen.lines();
    assert!(lines.contains(&"  + │ curl evil # test") && lines.contains(&"    │ test"), "{}", screen.text);
    screen.says("d revision 2, compared to revision 1").says(&format!("cis dag show {}", node.review("d")));
}

#[test]
fn approve_shows_the_question_and_asks() {
    let node = Node::new();
    let prompt = "Ship it?\u{202e}\nhint: nothing to see";
    let dag = json!({"dag_id": "d", "tasks": [
        {"id": "ask", "type": "approval", "prompt": prompt, "input": {"n": "integer"}},
        {"id": "go", "command": COMMENTED, "level": "confirmed"},
    ]});
    node.write("d.json", dag.to_string());
    let _run = node.spawn(["run", "d.json"]);
    support::eventually("two questions", || {
        node.json(["pending"])["pending"].as_array().is_some_and(|all| all.len() == 2).then_some(())
    });
    let screen = ask_and(node.on_terminal(60, ["approve", "d", "ask", "--input", "n=1"]), "n\n").code(5);
    assert_eq!(below(&screen.lines(), "d#1 task ask", "prompt"), prompt);
    screen.says("given n").says("Approve ask of d#1? [y/N] ").says("it still waits");
    let screen = ask_and(node.on_terminal(60, ["approve", "d", "go"]), "n\n").code(5);
    assert_eq!(below(&screen.lines(), "d#1 task go", "command"), COMMENTED);
    ask_and(node.on_terminal(80, ["approve", "d", "ask", "--input", "n=1"]), "Y\n")
        .code(0)
        .says("ask is approved");
}

#[test]
fn padded_name_does_not_fake_a_row_of_pending() {
    const FAKE: &str = "cis approve r-aaaa-bbbb-cccc";
    for columns in [60, 80] {
        let node = Node::new();
        let name = format!("t{}{FAKE}  d#1 ok  ann  now  Fine?", " ".repeat(columns.into()));
        let dag = json!({"dag_id": "d", "tasks": [{"id": "t", "name": name, "type": "approval", "prompt": "Ship it?"}]});
        node.write("d.json", dag.to_string());
        let _run = node.spawn(["run", "d.json"]);
        let told = support::eventually("a question", || {
            let pending = node.json(["pending"])["pending"].take();
            pending.as_array()?.iter().find(|one| one["kind"] == "task").cloned()
        });
        let (command, review) = (told["command"].as_str().unwrap(), told["review_id"].as_str().unwrap());
        for (args, whole) in [(["pending"].as_slice(), command), (&["status", "d"], review)] {
            let screen = node.on_terminal(columns, args).wait().code(0);
            let lines: Vec<&str> =
                screen.text.split("\r\n").take_while(|line| !line.starts_with("hint:")).collect();
            assert!(lines.iter().any(|line| line.contains(whole)), "{whole}: {}", screen.text);
            assert!(lines.iter().all(|line| line.width() <= usize::from(columns)), "{}", screen.text);
            assert!(!lines.iter().any(|line| line.trim_start().starts_with(FAKE)), "{}", screen.text);
        }
    }
}

#[test]
fn approve_shows_what_the_run_was_given() {
    let node = Node::new();
    let dag = json!({"dag_id": "d", "params": {"target": "staging"}, "tasks": [
        {"id": "go", "command": "deploy", "level": "confirmed", "env": {"T": "to {{ params.target }}"}},
    ]});
    node.write("d.json", dag.to_string());
    node.ok(["run", "d.json", "--detach", "--param", "target=prod"]);
    let screen = ask_and(node.on_terminal(80, ["approve", "d#1", "go"]), "n\n").code(5);
    let lines = screen.lines();
    assert_eq!(below(&lines, "d#1 task go", "param target"), "prod");
    assert_eq!(below(&lines, "d#1 task go", "env T, filled in"), "to prod");
    screen.says("to {{ params.target }}").says("started by");
    node.ok(["dag", "cancel", "d"]);
}

fn read_back(text: &str, format: Format) -> Dag {
    parse(text.as_bytes(), format, &Defaults::default()).unwrap_or_else(|e| panic!("{e:?}\n{text}")).dag
}

#[test]
fn show_and_diff_tell_the_same_from_anywhere() {
    let node = Node::new();
    let up = node.up();
    let first = json!({
        "dag_id": "d", "scope": "project-x", "workdir": "sub", "env": {"A": ESCAPES}, "params": {"p": [1, "\u{200b}"]},
        "tasks": [{"id": "a", "command": COMMENTED}, {"id": "b", "skill": "echo", "input": {"x": HIDDEN}}],
    });
    publish(&node, &first);
    let hash = node.json(["dag", "show", "d"])["content_hash"].as_str().unwrap().to_owned();
    let confirm = json!({"content_hash": hash}).to_string();
    assert_eq!(up.client.post("/api/v1/dag/d/confirm", &confirm).status, 200);
    let mut second = first.clone();
    second["tasks"][0]["command"] = json!(format!("{COMMENTED}\nrm -rf \u{200b}x"));
    second["tasks"][1]["id"] = json!("c");
    publish(&node, &second);
    for args in [
        ["dag", "show", "d"].as_slice(),
        &["dag", "show", "d", "--revision", "1"],
        &["dag", "show", "d", "--revision", "1", "--json"],
        &["dag", "show", "d", "--format", "toml"],
        &["dag", "show", "d", "--format", "json"],
        &["dag", "show", "d", "--revision", "7"],
        &["dag", "diff", "d"],
        &["dag", "diff", "d", "2", "1"],
        &["dag", "diff", "d", "--json"],
        &["dag", "diff", "d", "1", "9"],
    ] {
        let (here, there) = (node.cis(args), away(&node, &up, args));
        // What only the data directory's own machine knows.
        let own = here.out.replace(&node.data.to_string_lossy().into_owned(), "NODE_DATA_DIR");
        assert_eq!(
            (here.status.code(), own, here.err),
            (there.status.code(), there.out, there.err),
            "{args:?}"
        );
        assert!(!hides(&here.out), "{}", here.out);
    }
    let shown = node.ok(["dag", "show", "d", "--revision", "1"]);
    let lines: Vec<&str> = shown.out.lines().collect();
    assert_eq!(below(&lines, "task 1 of 2: a", "command"), COMMENTED);
    for text in ["skill echo", "builtin:", &hash, "work/RUN_ID/sub", "published by", "project-x", "confirmed"]
    {
        assert!(shown.out.contains(text), "no `{text}`: {shown}");
    }
    for (word, format) in [("toml", Format::Toml), ("json", Format::Json)] {
        let text = node.ok(["dag", "show", "d", "--revision", "1", "--format", word]).out;
        let skills = node.json(["dag", "show", "d", "--revision", "1"])["skills"].take();
        let dag = Dag { skills: serde_json::from_value(skills).unwrap(), ..read_back(&text, format) };
        assert_eq!(content_hash(&dag).as_str(), hash, "{text}");
    }
    let diff = node.ok(["dag", "diff", "d"]).out;
    for text in ["task a: changed", "  + │ rm -rf \\u{200b}x", "task c: added", "task b: removed"] {
        assert!(diff.contains(text), "no `{text}`: {diff}");
    }
    let told = node.json(["dag", "diff", "d"]);
    assert_eq!((&told["from"]["revision"], &told["to"]["revision"]), (&json!(1), &json!(2)));
    assert_eq!((&told["tasks"][0]["task_id"], &told["tasks"][0]["change"]), (&json!("a"), &json!("changed")));
    assert_eq!(told["tasks"][0]["fields"][0]["before"], COMMENTED);
    node.cis(["dag", "diff", "d", "1"]).code(2);
}

#[test]
fn explain_shows_the_directory_of_the_task() {
    let node = Node::new();
    let up = node.up();
    let dag = json!({"dag_id": "d", "tasks": [
        {"id": "t", "command": format!("pwd\n# {HIDDEN}"), "workdir": "/"}, {"id": "own", "command": "pwd"},
    ]});
    let run_id = up.client.run(&dag.to_string())["run_id"].as_str().unwrap().to_owned();
    up.client.until_over("d");
    let directory = |told: &Value| {
        let facts = told["facts"].as_array().unwrap();
        facts.iter().find(|fact| fact["what"] == "directory").unwrap()["value"].as_str().unwrap().to_owned()
    };
    let ran_in = node.logs("d", "own");
    assert_eq!(directory(&node.json(["dag", "explain", "d#1", "own"])), ran_in.trim());
    let there = away(&node, &up, &["dag", "explain", "d#1", "own", "--json"]).code(0).json();
    assert_eq!(directory(&there), format!("NODE_DATA_DIR/work/{run_id}"));
    let any = node.data.join("work/RUN_ID").to_string_lossy().into_owned();
    assert_eq!(directory(&node.json(["dag", "explain", "d", "own"])), any);
    assert_eq!(directory(&node.json(["dag", "explain", "d", "t"])), "/");
    // A file runs where its caller is.
    node.write("d.json", dag.to_string());
    let here = node.dir().canonicalize().unwrap();
    assert_eq!(directory(&node.json(["dag", "explain", "d.json", "own"])), here.to_string_lossy());
    for shown in
        [node.ok(["dag", "explain", "d", "t"]), away(&node, &up, &["dag", "explain", "d", "t"]).code(0)]
    {
        let lines: Vec<&str> = shown.out.lines().collect();
        assert_eq!(below(&lines, "t", "command (/bin/sh -c)"), format!("pwd\n# {HIDDEN}"));
    }
}

/// Runs every command that shows something of `esc`, here and from elsewhere, and looks for what must not be there.
fn check_commands(node: &Node, up: &Up) {
    let commands: [&[&str]; 25] = [
        &["pending"],
        &["status", "esc"],
        &["why", "esc"],
        &["logs", "esc"],
        &["dag", "list"],
        &["dag", "runs"],
        &["dag", "graph", "esc"],
        &["dag", "graph", "esc", "--format", "mermaid"],
        &["dag", "graph", "esc", "--format", "dot"],
        &["dag", "graph", "esc", "--format", "svg"],
        &["dag", "show", "esc"],
        &["dag", "show", "esc", "--format", "toml"],
        &["dag", "show", "esc", "--format", "json"],
        &["dag", "diff", "esc", "1", "1"],
        &["dag", "explain", "esc", "sh"],
        &["dag", "explain", "esc", "a"],
        &["dag", "explain", "esc", ESCAPES],
        &["run", "esc", "--dry-run"],
        &["approve", "esc"],
        &["approve", "esc", ESCAPES],
        &["token", "list"],
        &["node", "notifications"],
        &["dag", "confirm", ESCAPES],
        &["status", ESCAPES],
        &["doctor"],
    ];
    for args in commands {
        let json = [args, &["--json"]].concat();
        let ran = [node.cis(args), away(node, up, args), node.cis(&json), away(node, up, &json)];
        for (from, ran) in ["here", "away", "here as JSON", "away as JSON"].into_iter().zip(ran) {
            for text in [&ran.out, &ran.err] {
                let leak = text.chars().find(|c| !matches!(c, '\n') && (c.is_control() || *c == '\u{202e}'));
                assert_eq!(leak, None, "{args:?} {from}: {text:?}");
                assert!(!text.lines().any(|line| line.starts_with("error: fake")), "{args:?} {from}: {text}");
            }
        }
    }
}

#[test]
fn text_of_callers_cannot_move_the_cursor_or_fake_a_line() {
    let node = Node::new();
    let up = node.up();
    let dag = json!({"dag_id": "esc", "description": ESCAPES, "tasks": [
        {"id": "a", "name": ESCAPES, "description": ESCAPES, "type": "approval", "prompt": ESCAPES},
        {"id": "w", "name": ESCAPES, "type": "external"},
        {"id": "sh", "name": ESCAPES, "command": "printf '\\033[2J\\033]0;x\\007\\r\\233'; exit 3"},
    ]});
    let run_id = up.client.run(&dag.to_string())["run_id"].as_str().unwrap().to_owned();
    let task = up.client.claim(&json!({"worker": ESCAPES, "wait_secs": 30})).remove(0);
    assert_eq!(up.client.say(&task, "progress", json!({"note": ESCAPES})).status, 200);
    assert_eq!(up.client.say(&task, "log", json!({"offset": 0, "text": format!("{ESCAPES}\n")})).status, 200);
    up.client.until("esc", |told| {
        told["tasks"][2]["status"] == "failed" && told["tasks"][0]["status"] == "waiting"
    });
    check_commands(&node, &up);
    assert_eq!(up.client.say(&task, "fail", json!({"error": ESCAPES})).status, 200);
    let reject = format!("/api/v1/runs/{run_id}/tasks/a/reject");
    assert_eq!(up.client.post(&reject, &json!({"note": ESCAPES}).to_string()).status, 200);
    up.client.until_over("esc");
    check_commands(&node, &up);
}
