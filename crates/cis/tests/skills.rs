//! Skills: found, listed, run by themselves and by DAGs, and bound to what was confirmed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use serde_json::json;
use support::Node;

const SKILL_MD: &str = "---\nname: greet\ndescription: Greets whoever it is given.\nversion: 1.2.0\ncommand: sh \"$CIS_SKILL_DIR/run.sh\"\n---\n# Greet\n";
const RUN_SH: &str = "input=$(cat); [ \"$input\" = \"$CIS_INPUT\" ] || exit 9; printf '{\"greeting\": \"hello\", \"input\": %s}' \"$input\"";

/// The same, with the word in a file of its own.
const SAY_WORDS: &str =
    "printf '{\"greeting\": \"%s\", \"input\": %s}' \"$(cat \"$CIS_SKILL_DIR/words\")\" \"$CIS_INPUT\"";

const DAG: &str = r#"
    [[tasks]]
    id = "a"
    skill = "greet"
    input = { who = "world" }
    [[tasks]]
    id = "b"
    deps = ["a"]
    command = 'echo "$SAID to $WHO"'
    env = { SAID = "{{ tasks.a.outputs.greeting }}", WHO = "{{ tasks.a.outputs.input.who }}" }
"#;

fn with_skill() -> Node {
    let node = Node::new();
    node.write(".cis/skills/greet/SKILL.md", SKILL_MD);
    node.write(".cis/skills/greet/run.sh", RUN_SH);
    node.dag("d", DAG);
    node
}

#[test]
fn a_skill_takes_json_and_hands_json_on() {
    let node = with_skill();
    node.ok(["run", "d.toml"]);
    assert_eq!(node.logs("d", "b"), "hello to world\n");
    assert_eq!(node.task("d", "a")["outputs"], json!({"greeting": "hello", "input": {"who": "world"}}));
}

#[test]
fn skills_are_listed_shown_and_run() {
    let node = with_skill();
    node.write("more/older/skill.toml", "[skill]\nname = 'older'\nversion = '0.1'\ntype = 'native'\n[execution]\nbinary = 'run'\nargs = ['--fast']\n");
    let program = node.write("more/older/run", "#!/bin/sh\necho \"older got $1 and $(cat)\"\n");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    node.ok(["skill", "list"]).says("greet").says("Greets whoever it is given.").says("echo");
    node.ok(["skill", "list", "--skill-dir", "more"]).says("older");
    let shown = node.json(["skill", "show", "greet"]);
    assert_eq!((&shown["version"], &shown["name"]), (&"1.2.0".into(), &"greet".into()));
    assert_eq!(
        node.ok(["skill", "run", "greet", "--input", "{\"who\":\"you\"}"]).json()["input"]["who"],
        "you"
    );
    node.ok(["skill", "run", "older", "--skill-dir", "more", "--input", "[1]"])
        .says("older got --fast and [1]");
    node.dag("e", "tasks = [{ id = 'a', skill = 'older', input = { n = 1 } }]");
    node.ok(["run", "e.toml", "--skill-dir", "more"]);
    assert_eq!(node.logs("e", "a"), "older got --fast and {\"n\":1}\n");
    node.cis(["skill", "show", "gret"]).code(3).says_nothing().tells("hint: did you mean `greet`?");
    node.cis(["skill", "run", "greet", "--input", "{"]).code(2).says_nothing();
}

#[test]
fn the_seeds_files_run_as_they_are() {
    let node = Node::new();
    let simple = r#"{"tasks":[{"id":"task1","name":"Task 1","skill":"echo","level":{"type":"mechanical","retry":3}}]}"#;
    node.write("simple.json", simple);
    node.ok(["run", "simple.json"]);
    assert_eq!(node.logs("simple", "task1"), "Task 1\n");
    let pipeline = "[skill]\nname = \"test-pipeline\"\nversion = \"1.0.0\"\ntype = \"dag\"\n[dag]\npolicy = \"all_success\"\n[dag.env]\nBUILD_TYPE = \"release\"\n[[dag.tasks]]\nid = \"step1\"\nskill = \"echo\"\nlevel = { type = \"mechanical\", retry = 3 }\n[[dag.tasks]]\nid = \"step2\"\nskill = \"echo\"\ndeps = [\"step1\"]\n";
    node.write("test_pipeline.toml", pipeline);
    node.ok(["run", "test_pipeline.toml"]);
    assert_eq!(node.states("test-pipeline"), "step1=completed step2=completed");
}

#[test]
fn edited_skill_runs_as_it_was_confirmed_until_it_is_confirmed_again() {
    let node = with_skill();
    node.ok(["dag", "publish", "d.toml"]);
    node.confirm("d");
    node.ok(["status", "d", "--watch"]);
    node.write(
        ".cis/skills/greet/run.sh",
        "echo '{\"greeting\": \"changed\", \"input\": {\"who\": \"all\"}}'",
    );
    // What was confirmed runs, and what was not does not.
    node.ok(["run", "d"]);
    assert_eq!(node.logs("d", "b"), "hello to world\n");
    node.cis(["dag", "publish", "d.toml"]).code(4).tells("error[ContentConflict]");
    node.ok(["dag", "publish", "d.toml", "--revision"]);
    node.confirm("d");
    node.ok(["status", "d", "--watch"]);
    assert_eq!(node.logs("d", "b"), "changed to all\n");
    // Running a file is its caller's own act: it takes the skill as it is.
    node.write(".cis/skills/greet/run.sh", RUN_SH);
    node.ok(["run", "d.toml"]);
    assert_eq!(node.logs("d", "b"), "hello to world\n");
    node.assert_sound();
}

/// A skill called before and after a gate.
const GATED: &str = r#"
    [[tasks]]
    id = "a"
    skill = "greet"
    [[tasks]]
    id = "gate"
    deps = ["a"]
    command = 'read -r _ < "$GATE"'
    [[tasks]]
    id = "z"
    deps = ["gate"]
    skill = "greet"
"#;

/// Publishes `d`, confirms it and waits until its first task is done; answers the gate before its last.
fn run_to_the_gate(node: &Node) -> support::Fifo {
    let gate = node.fifo("gate");
    node.dag("d", &GATED.replace("$GATE", node.path("gate").to_str().unwrap()));
    node.ok(["dag", "publish", "d.toml"]);
    node.confirm("d");
    support::eventually("the first task to end", || {
        (node.task("d", "a")["status"] == "completed").then_some(())
    });
    gate
}

#[test]
fn skill_edited_between_two_tasks_of_a_run_stays_as_confirmed() {
    let node = with_skill();
    node.write(".cis/skills/greet/run.sh", "echo good");
    let gate = run_to_the_gate(&node);
    node.write(".cis/skills/greet/run.sh", "echo evil");
    gate.let_through(1);
    node.ok(["status", "d", "--watch"]);
    assert_eq!((node.logs("d", "a"), node.logs("d", "z")), ("good\n".into(), "good\n".into()));
    let shown = node.json(["skill", "show", "greet"]);
    assert_eq!(shown["kept"], json!(null), "what is there now was never published");
    node.ok(["dag", "explain", "d", "z"]).says(node.data.join("skills").to_str().unwrap());
}

#[test]
fn skill_published_over_http_stays_as_confirmed() {
    let node = Node::new();
    node.write("home/.cis/skills/greet/SKILL.md", SKILL_MD);
    node.write("home/.cis/skills/greet/run.sh", "echo good");
    let up = node.up();
    let definition = json!({"dag_id": "d", "tasks": [{"id": "a", "skill": "greet"}]});
    assert_eq!(up.client.post("/api/v1/dag/publish", &definition.to_string()).status, 201);
    node.write("home/.cis/skills/greet/run.sh", "echo evil");
    up.client.post("/api/v1/dag/d/confirm", "");
    node.ok(["status", "d", "--watch"]);
    assert_eq!(node.logs("d", "a"), "good\n");
    node.write("elsewhere.sh", "echo good");
    std::fs::remove_file(node.path("home/.cis/skills/greet/run.sh")).unwrap();
    std::os::unix::fs::symlink(node.path("elsewhere.sh"), node.path("home/.cis/skills/greet/run.sh"))
        .unwrap();
    let definition = json!({"dag_id": "e", "tasks": [{"id": "a", "skill": "greet"}]});
    let refused = up.client.post("/api/v1/dag/publish", &definition.to_string());
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.body.contains("`run.sh` links to"), "{refused:?}");
}

#[test]
fn directories_that_a_sandboxed_agent_locks_hold_up_neither_publishing_nor_a_start() {
    let node = Node::new();
    node.write("home/.cis/skills/greet/SKILL.md", SKILL_MD);
    node.write("home/.cis/skills/greet/run.sh", "echo good");
    let publish = |up: &support::http::Up, id: &str| {
        let definition = json!({"dag_id": id, "tasks": [{"id": "a", "skill": "greet"}]});
        assert_eq!(up.client.post("/api/v1/dag/publish", &definition.to_string()).status, 201);
    };
    let up = node.up();
    publish(&up, "first");
    let (held, gate) = (node.fifo("held"), node.fifo("gate"));
    // Landlock shuts the files of the data directory; its directories can still be opened, and what is open be locked.
    let lock = r#"exec 8< "$CIS_DATA_DIR" 9< "$CIS_DATA_DIR/skills"
        flock -x 8 && flock -x 9 && echo both > held; read -r _ < gate"#;
    let agent = node.spawn(["agent", "run", "--sandbox", "landlock", "a", "--", "sh", "-c", lock]);
    assert_eq!(held.line(), "both");
    publish(&up, "second");
    up.running.signal(rustix::process::Signal::TERM);
    up.running.wait().code(0);
    publish(&node.up(), "third");
    gate.let_through(1);
    agent.wait();
}

#[test]
fn skill_with_a_link_that_leaves_its_directory_is_refused() {
    let node = with_skill();
    node.write("run.sh", RUN_SH);
    std::fs::remove_file(node.path(".cis/skills/greet/run.sh")).unwrap();
    std::os::unix::fs::symlink("../../../run.sh", node.path(".cis/skills/greet/run.sh")).unwrap();
    node.cis(["run", "d.toml"])
        .code(2)
        .says_nothing()
        .tells("`run.sh` links to `../../../run.sh`, outside the skill's tree");
    assert!(!node.data.exists());
    // One within it is part of what is confirmed.
    std::fs::remove_file(node.path(".cis/skills/greet/run.sh")).unwrap();
    node.write(".cis/skills/greet/lib/run.sh", RUN_SH);
    std::os::unix::fs::symlink("lib/run.sh", node.path(".cis/skills/greet/run.sh")).unwrap();
    node.ok(["run", "d.toml"]);
    assert_eq!(node.logs("d", "b"), "hello to world\n");
}

/// The one kept tree of a data directory.
fn kept(node: &Node) -> std::path::PathBuf {
    let mut trees = std::fs::read_dir(node.data.join("skills")).unwrap();
    let tree = trees.next().unwrap().unwrap().path();
    assert!(trees.next().is_none());
    tree
}

/// Replaces a file that is for reading only.
fn alter(file: &std::path::Path, text: &str) {
    std::fs::remove_file(file).unwrap();
    std::fs::write(file, text).unwrap();
}

#[test]
fn altered_kept_skill_is_not_run() {
    let node = with_skill();
    node.write(".cis/skills/greet/run.sh", "echo good");
    let gate = run_to_the_gate(&node);
    alter(&kept(&node).join("run.sh"), "echo evil");
    gate.let_through(1);
    node.cis(["status", "d", "--watch"]);
    assert_eq!(node.states("d"), "a=completed gate=completed z=failed");
    let cause = node.task("d", "z")["cause"].to_string();
    assert!(cause.contains("skill `greet` is not what was confirmed"), "{cause}");
    assert!(cause.contains("`run.sh`"), "{cause}");
    // Also by a coordinator that never saw it whole.
    node.wait_idle();
    node.cis(["dag", "retry", "d", "z"]).code(1).tells("is not what was confirmed").tells("`run.sh`");
    let checked = node.cis(["doctor"]).code(1);
    assert!(checked.err.contains("skill `greet` of `d` revision 1 was altered"), "{checked}");
    // Publishing it again puts it right, without another confirmation: the content is the same.
    node.ok(["dag", "publish", "d.toml"]).says("already there");
    node.ok(["dag", "retry", "d", "z"]);
    assert_eq!(node.logs("d", "z"), "good\n");
    node.ok(["doctor"]);
}

#[test]
fn skill_of_an_older_version_runs_while_it_is_the_same() {
    let node = with_skill();
    node.ok(["run", "d.toml"]);
    // As a version that kept none left it.
    std::fs::remove_dir_all(node.data.join("skills")).unwrap();
    assert_eq!(doctor(&node, 0)["state"], "note");
    node.ok(["run", "d"]);
    assert_eq!(doctor(&node, 0)["state"], "sound", "it is kept from then on");
    std::fs::remove_dir_all(node.data.join("skills")).unwrap();
    node.write(".cis/skills/greet/run.sh", "echo evil");
    node.cis(["run", "d"]).code(1).tells("skill `greet` has changed since this revision was confirmed");
}

/// What `cis doctor` says of skills.
fn doctor(node: &Node, code: i32) -> serde_json::Value {
    let told = node.cis(["doctor", "--json"]).code(code).json();
    let checks = told["checks"].as_array().unwrap().iter();
    checks.clone().find(|check| check["check"] == "skills").unwrap().clone()
}

#[test]
fn backup_restores_skills_and_runs_them_elsewhere() {
    let node = with_skill();
    node.write(".cis/skills/greet/lib/words", "hello");
    std::os::unix::fs::symlink("lib/words", node.path(".cis/skills/greet/words")).unwrap();
    node.write(".cis/skills/greet/run.sh", SAY_WORDS);
    node.ok(["dag", "publish", "d.toml"]);
    node.ok(["backup", "copy.db"]);
    let other = Node::new();
    std::fs::copy(node.path("copy.db"), other.path("copy.db")).unwrap();
    other.ok(["restore", "copy.db"]);
    assert_eq!(doctor(&other, 0)["state"], "sound");
    other.confirm("d");
    other.ok(["status", "d", "--watch"]);
    assert_eq!(other.logs("d", "b"), "hello to world\n");
    // Over an altered one, the backup's is put in its place.
    alter(&kept(&other).join("run.sh"), "echo evil");
    assert_eq!(doctor(&other, 1)["state"], "problem");
    other.ok(["backup", "lacking.db"]).tells("skill `greet` of `d` revision 1 is not in it");
    other.wait_idle();
    other.ok(["restore", "copy.db", "--force"]);
    assert_eq!(doctor(&other, 0)["state"], "sound");
}

#[test]
fn prune_and_doctor_remove_only_skills_that_no_revision_needs() {
    let node = with_skill();
    node.ok(["dag", "publish", "d.toml"]);
    let pending = kept(&node);
    node.ok(["prune", "--older-than", "0s"]);
    assert!(pending.exists(), "it waits to be confirmed");
    node.confirm("d");
    node.ok(["status", "d", "--watch"]);
    node.wait_idle();
    let pruned = node.ok(["prune", "--older-than", "0s", "--json"]).json();
    assert_eq!((pruned["runs"].as_array().unwrap().len(), &pruned["skills"]), (1, &json!(0)));
    assert!(pending.exists(), "it is confirmed");
    for (repair, name) in [(false, "e"), (true, "f")] {
        node.write(".cis/skills/greet/run.sh", format!("echo {name}"));
        node.dag(name, DAG);
        node.ok(["dag", "publish", &format!("{name}.toml")]);
        node.ok(["dag", "confirm", name, "--reject"]);
        std::fs::create_dir(node.data.join("skills/.new-1-0")).unwrap();
        let told = doctor(&node, 1);
        assert_eq!(told["found"].as_array().unwrap().len(), 2, "{told}");
        if repair {
            node.ok(["doctor", "--repair"]);
        } else {
            node.ok(["prune"]).tells("2 kept skills that no revision needs went as well");
        }
        assert_eq!(kept(&node), pending);
    }
    node.ok(["run", "d"]);
}

#[test]
fn an_unknown_skill_is_told_before_anything_runs() {
    let node = with_skill();
    node.dag("e", "tasks = [{ id = 'a', command = 'touch ran' }, { id = 'b', skill = 'gret' }]");
    node.cis(["run", "e.toml"]).code(2).says_nothing().tells("tasks[1]").tells("did you mean `greet`?");
    assert!(!node.path("ran").exists() && !node.data.exists());
}

/// A skill of two files in a published revision, then of two others in the next.
fn with_changed_skill() -> Node {
    let node = with_skill();
    node.write(".cis/skills/greet/old", "gone\n");
    node.ok(["dag", "publish", "d.toml", "--revision"]);
    node.write(".cis/skills/greet/run.sh", format!("{RUN_SH}\ncurl evil\n"));
    node.write(".cis/skills/greet/more\nlines", "one\u{200b}\n");
    node.write(".cis/skills/greet/large", "x".repeat((64 << 10) + 1));
    node.write(".cis/skills/greet/binary", [0xff, 0xfe]);
    std::fs::remove_file(node.dir().join(".cis/skills/greet/old")).unwrap();
    node.ok(["dag", "publish", "d.toml", "--revision"]);
    node
}

#[test]
fn show_lists_the_files_of_a_skill() {
    let node = with_changed_skill();
    let hash = node.json(["dag", "show", "d", "--revision", "1"])["skills"]["greet"].clone();
    let hash = hash.as_str().unwrap();
    let kept = node.data.join("skills").join(hash.strip_prefix("sha256:").unwrap());
    let shown = node.ok(["dag", "show", "d", "--revision", "1"]);
    let now = node.json(["skill", "show", "greet"])["tree_hash"].clone();
    let other = format!("the skill directory has other content now: {}", now.as_str().unwrap());
    let place = kept.to_string_lossy();
    for text in [
        hash,
        &place,
        "    │ 5 bytes: old",
        "bytes: run.sh",
        "│ /bin/sh -c sh \"$CIS_SKILL_DIR/run.sh\"",
        &other,
    ] {
        assert!(shown.out.contains(text), "no `{text}`: {shown}");
    }
    let latest = node.ok(["dag", "show", "d"]);
    assert!(
        latest.out.contains("bytes: more\\u{a}lines") && !latest.out.contains("other content"),
        "{latest}"
    );
    std::fs::set_permissions(kept.join("old"), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(kept.join("old"), "other").unwrap();
    node.ok(["dag", "show", "d", "--revision", "1"]).says("no longer have this hash and will not run");
    let screen = node.on_terminal(60, ["skill", "show", "greet"]).wait().code(0);
    let whole: String =
        screen.text.split("\r\n").map(|line| line.trim_start_matches([' ', '│', '↳'])).collect();
    assert!(whole.contains(now.as_str().unwrap()), "{}", screen.text);
}

#[test]
fn diff_shows_what_changed_in_a_skill() {
    let node = with_changed_skill();
    let diff = node.ok(["dag", "diff", "d", "1", "2"]);
    for text in [
        "skill greet: changed",
        "  + │ curl evil",
        "file removed, 5 bytes: old\n  - │ gone",
        "bytes: more\\u{a}lines\n  + │ one\\u{200b}",
        "file added, 65,537 bytes: large\n  content of more than 64 KiB is not shown",
        "file added, 2 bytes: binary\n  content that is not text is not shown",
    ] {
        assert!(diff.out.contains(text), "no `{text}`: {diff}");
    }
    assert!(!diff.out.contains("SKILL.md"), "{diff}");
}

#[test]
fn files_of_a_skill_are_shown_at_the_node_only() {
    let node = with_changed_skill();
    let up = node.up();
    for args in [["dag", "show", "d"].as_slice(), &["dag", "diff", "d", "1", "2"]] {
        let mut command = node.bare();
        command.env("CIS_DATA_DIR", "/nonexistent/cis").env("CIS_TOKEN", &up.client.token);
        command.env("CIS_NODE", format!("http://{}", up.client.address)).args(args);
        let away = support::Running::start(command).wait().code(0);
        assert!(away.out.contains("its files are at the node: `cis dag show d` on its machine"), "{away}");
        assert!(!away.out.contains("run.sh"), "{away}");
    }
}
