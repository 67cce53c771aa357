//! Skills: found, listed, run by themselves and by DAGs, and bound to what was confirmed.

mod support;

use serde_json::json;
use support::Node;

const SKILL_MD: &str = "---\nname: greet\ndescription: Greets whoever it is given.\nversion: 1.2.0\ncommand: sh \"$CIS_SKILL_DIR/run.sh\"\n---\n# Greet\n";
const RUN_SH: &str = "input=$(cat); [ \"$input\" = \"$CIS_INPUT\" ] || exit 9; printf '{\"greeting\": \"hello\", \"input\": %s}' \"$input\"";

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
fn a_changed_skill_needs_a_new_confirmation() {
    let node = with_skill();
    node.ok(["dag", "publish", "d.toml"]);
    node.confirm("d");
    node.ok(["status", "d", "--watch"]);
    node.write(
        ".cis/skills/greet/run.sh",
        "echo '{\"greeting\": \"changed\", \"input\": {\"who\": \"all\"}}'",
    );
    // What was confirmed does not run with what was not.
    node.cis(["run", "d"]).code(1).tells("skill `greet` has changed since this revision was confirmed");
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

#[test]
fn an_unknown_skill_is_told_before_anything_runs() {
    let node = with_skill();
    node.dag("e", "tasks = [{ id = 'a', command = 'touch ran' }, { id = 'b', skill = 'gret' }]");
    node.cis(["run", "e.toml"]).code(2).says_nothing().tells("tasks[1]").tells("did you mean `greet`?");
    assert!(!node.path("ran").exists() && !node.data.exists());
}
