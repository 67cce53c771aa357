//! Tasks that no command could be started for, or whose command leaves something else than a file: each fails by itself, with
//! words, and holds up neither worker nor node.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::Node;

/// More than the kernel takes in one variable.
const LARGE: usize = 200_000;

/// Writes an output `v` of that size.
const MAKE_LARGE: &str = r#"{ printf v=; head -c 200000 /dev/zero | tr '\0' x; } > "$CIS_OUTPUT""#;

fn external(dag: &str, input: &Value) -> String {
    json!({"dag_id": dag, "tasks": [{"id": "w", "type": "external", "input": input}]}).to_string()
}

#[test]
fn large_input_reaches_the_command_by_file_and_standard_input() {
    let node = Node::new();
    let up = node.up();
    up.client.run(&external("big", &json!({"files": "x".repeat(LARGE)})));
    let script = r#"cmp - "$CIS_INPUT_FILE" && wc -c < "$CIS_INPUT_FILE"; echo "${CIS_INPUT-unset}"
                    stat -c %a "$CIS_INPUT_FILE" "$(dirname "$CIS_INPUT_FILE")"; echo "file=$CIS_INPUT_FILE" > "$CIS_OUTPUT""#;
    let done = node.ok(["work", "--once", "--", "sh", "-c", script]);
    assert_eq!(done.out, format!("{}\nunset\n600\n700\n", LARGE + r#"{"files":""}"#.len()));
    let told = up.client.until_over("big");
    assert_eq!(told["status"], "completed", "{told}");
    let file = told["tasks"][0]["outputs"]["file"].as_str().unwrap();
    assert!(!std::path::Path::new(file).exists(), "{file}");

    up.client.run(&external("small", &json!({"n": 1})));
    let script = r#"printf '%s\n' "$CIS_INPUT" "$(cat "$CIS_INPUT_FILE")" "$CIS_HANDOFF" "$(cat "$CIS_HANDOFF_FILE")""#;
    let done = node.ok(["work", "--once", "--", "sh", "-c", script]);
    assert_eq!(done.out, "{\"n\":1}\n{\"n\":1}\n[]\n[]\n");
}

#[test]
fn large_notes_of_earlier_holders_reach_the_command_by_file() {
    let node = Node::new();
    let up = node.up();
    up.client.run(&external("notes", &json!({})));
    let task = up.client.claim(&json!({"lease_secs": 60})).remove(0);
    // The latest 64 KiB of notes are handed on. As JSON these are six times as long, and too long for a variable.
    for _ in 0..10 {
        assert_eq!(up.client.say(&task, "progress", json!({"note": "\u{1}".repeat(16_000)})).status, 200);
    }
    assert_eq!(up.client.say(&task, "release", json!({})).status, 200);
    let script = r#"grep -o u0001 "$CIS_HANDOFF_FILE" | wc -l; echo "${CIS_HANDOFF-unset}""#;
    // Nor does a variable of the worker's own stand in for it.
    let mut work = node.command(["work", "--once", "--", "sh", "-c", script]);
    let done = work.env("CIS_HANDOFF", "of the worker").output().unwrap();
    assert_eq!(String::from_utf8(done.stdout).unwrap(), "64000\nunset\n");
    assert_eq!(up.client.until_over("notes")["status"], "completed");
}

#[test]
fn command_that_cannot_be_started_fails_its_task_and_the_worker_goes_on() {
    let node = Node::new();
    let up = node.up();
    let program = node.write("worker.sh", "#!/no/such/interpreter\n");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    up.client.run(&external("one", &json!({})));
    let worker = node.spawn(["work", "--", program.to_str().unwrap()]);
    let told = up.client.until_over("one");
    let cause = told["tasks"][0]["cause"].as_str().unwrap();
    assert!(cause.contains("cannot start") && cause.contains("No such file"), "{told}");
    assert_eq!(told["tasks"][0]["attempt"], 1);
    // The same worker does the next one, once its program can be started.
    std::fs::write(&program, "#!/bin/sh\nexit 0\n").unwrap();
    up.client.run(&external("two", &json!({})));
    assert_eq!(up.client.until_over("two")["status"], "completed");
    worker.signal(Signal::TERM);
    worker.wait().code(130).tells("one#1/w failed");
}

#[test]
fn program_that_is_not_there_costs_no_task_a_try() {
    let node = Node::new();
    let up = node.up();
    up.client.run(&external("d", &json!({})));
    node.cis(["work", "--", "no-such-program"]).code(3).tells("no program `no-such-program`").tells("hint:");
    let status = up.client.get("/api/v1/dag/d/status").json();
    assert_eq!((&status["tasks"][0]["status"], &status["tasks"][0]["attempt"]), (&json!("ready"), &json!(0)));
}

#[test]
fn large_env_value_is_refused_with_words_or_given_in_a_file() {
    let node = Node::new();
    let up = node.up();
    let env = json!({"V": "{{ tasks.a.outputs.v }}"});
    let with_file = json!({"V": "{{ tasks.a.outputs.v }}", "V_FILE": ""});
    up.client.run(
        &json!({"dag_id": "d", "policy": "all_success", "tasks": [
            {"id": "a", "command": MAKE_LARGE},
            {"id": "asks", "depends_on": ["a"], "env": with_file,
             "command": r#"wc -c < "$V_FILE"; echo "${#V}"; stat -c %a "$V_FILE" "$(dirname "$V_FILE")""#},
            {"id": "plain", "depends_on": ["asks"], "env": env, "command": "echo ran"},
        ]})
        .to_string(),
    );
    let told = up.client.until_over("d");
    let task =
        |id: &str| told["tasks"].as_array().unwrap().iter().find(|task| task["task_id"] == id).unwrap();
    assert_eq!(task("asks")["output"], "200000\n0\n600\n700\n", "{told}");
    let cause = task("plain")["cause"].as_str().unwrap();
    for part in ["env `V` has 200000 bytes", "at most 131069", "`V_FILE = \"\"`", "$V_FILE"] {
        assert!(cause.contains(part), "{cause}");
    }
    assert_eq!(
        std::fs::read_dir(node.data.join("outputs")).unwrap().count(),
        0,
        "files go with their attempt"
    );
    node.assert_sound();
}

#[test]
fn too_many_variables_together_are_refused_with_words() {
    let node = Node::new();
    let up = node.up();
    let run = |dag: &str, env: Value| {
        up.client.run(&json!({"dag_id": dag, "tasks": [
            {"id": "a", "command": r#"{ printf v=; head -c 120000 /dev/zero | tr '\0' x; } > "$CIS_OUTPUT""#},
            {"id": "b", "depends_on": ["a"], "env": env, "command": "echo ran"},
        ]}).to_string());
        up.client.until_over(dag)["tasks"][1]["cause"].as_str().unwrap().to_owned()
    };
    let env = |count: usize| {
        let each = (0..count).map(|n| (format!("V{n}"), json!("{{ tasks.a.outputs.v }}")));
        Value::Object(each.collect())
    };
    // More than any stack limit lets a program take: 6 MiB.
    let cause = run("much", env(60));
    assert!(cause.contains("together") && cause.contains("`V"), "{cause}");
    // More than the runner is told at once: the node goes on all the same.
    let cause = run("more", env(150));
    assert!(cause.contains("too much together"), "{cause}");
    up.client.run(&json!({"dag_id": "after", "tasks": [{"id": "a", "command": "true"}]}).to_string());
    assert_eq!(up.client.until_over("after")["status"], "completed");
}

#[test]
fn large_input_of_a_skill_is_in_a_file() {
    let node = Node::new();
    let skill = "---\nname: size\ndescription: Tells the size of its input.\ncommand: sh \"$CIS_SKILL_DIR/run.sh\"\n---\n";
    node.write(".cis/skills/size/SKILL.md", skill);
    node.write(
        ".cis/skills/size/run.sh",
        r#"cmp - "$CIS_INPUT_FILE" && wc -c < "$CIS_INPUT_FILE"; echo "${CIS_INPUT-unset}""#,
    );
    let dag = format!(
        "[[tasks]]\nid = 'a'\ncommand = '''{MAKE_LARGE}'''\n\
         [[tasks]]\nid = 'b'\ndeps = ['a']\nskill = 'size'\ninput = {{ v = '{{{{ tasks.a.outputs.v }}}}' }}\n"
    );
    node.dag("d", &dag);
    node.ok(["run", "d.toml"]);
    assert_eq!(node.logs("d", "b"), format!("{}\nunset\n", LARGE + r#"{"v":""}"#.len()));
    assert_eq!(std::fs::read_dir(node.data.join("outputs")).unwrap().count(), 0);
}

/// What a command may leave in the place of its outputs, and what is said of it.
const TRICKS: [(&str, &str); 5] = [
    (r#"mkfifo "$CIS_OUTPUT""#, "not a plain file"),
    (r#"ln -s /etc/passwd "$CIS_OUTPUT""#, "a link"),
    (r#"ln -s /dev/zero "$CIS_OUTPUT""#, "a link"),
    (r#"mkdir "$CIS_OUTPUT""#, "not a plain file"),
    (r#"head -c 2000000 /dev/zero > "$CIS_OUTPUT""#, "more than 1 MiB"),
];

#[test]
fn outputs_that_are_no_plain_file_fail_their_task() {
    let node = Node::new();
    let up = node.up();
    for (number, (command, words)) in TRICKS.into_iter().enumerate() {
        let dag = format!("node{number}");
        up.client.run(&json!({"dag_id": dag, "tasks": [{"id": "a", "command": command}]}).to_string());
        let told = up.client.until_over(&dag);
        let cause = told["tasks"][0]["cause"].as_str().unwrap();
        assert!(cause.contains(words) && cause.contains("$CIS_OUTPUT"), "{command}: {told}");
        let dag = format!("worker{number}");
        up.client.run(&external(&dag, &json!({})));
        node.cis(["work", "--once", "--", "sh", "-c", command]).code(1).tells(words);
        assert_eq!(up.client.until_over(&dag)["status"], "failed");
    }
    assert_eq!(std::fs::read_dir(node.data.join("outputs")).unwrap().count(), 0);
    node.assert_sound();
}
