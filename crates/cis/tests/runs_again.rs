//! Parts of a DAG, and runs that carry on where another ended: `--only`, `--from`, `resume`, `retry`, `--dry-run`.

mod support;

use support::{Node, Running};

/// `a ─► b ─► c` and `e` alone; each says that it ran, and `b` works once `fixed` is there.
const CHAIN: &str = r#"
    tasks = [
      { id = "a", command = "echo a >> ran; echo from=a$CIS_RUN_NUMBER > $CIS_OUTPUT" },
      { id = "b", deps = ["a"], command = "echo b >> ran; [ -e fixed ]" },
      { id = "c", deps = ["b"], command = "echo c >> ran; echo $FROM", env = { FROM = "{{ tasks.a.outputs.from }}" } },
      { id = "e", command = "echo e >> ran" },
    ]
"#;

/// What ran since the last look.
fn ran(node: &Node) -> String {
    let mut ran: Vec<String> = node.read("ran").lines().map(ToOwned::to_owned).collect();
    node.write("ran", "");
    ran.sort();
    ran.join(" ")
}

fn failed_once() -> Node {
    let node = Node::new();
    // `c` also depends on `a`, to see its outputs.
    node.dag("d", &CHAIN.replace(r#"deps = ["b"]"#, r#"deps = ["a", "b"]"#));
    node.cis(["run", "d.toml"]).code(1).tells("hint: `cis dag retry d#1 b` tries it again");
    assert_eq!(node.states("d"), "a=completed b=failed c=skipped e=completed");
    assert_eq!(ran(&node), "a b e");
    node
}

#[test]
fn resume_runs_what_is_left_and_keeps_what_was_done() {
    let node = failed_once();
    node.cis(["dag", "resume", "d"]).code(1);
    assert_eq!(ran(&node), "b");
    node.write("fixed", "");
    node.ok(["dag", "resume", "d#1"]);
    assert_eq!(ran(&node), "b c");
    assert_eq!(node.states("d"), "a=completed b=completed c=completed e=completed");
    assert_eq!(node.logs("d", "c"), "a1\n", "the outputs of the run it carries on");
    node.ok(["status", "d"]).says("carries on from d#1");
    let times = |run| ["started_at", "completed_at"].map(|name| node.task(run, "a")[name].clone());
    assert_eq!(times("d"), times("d#1"), "when it was done, not when it was carried over");
    // A run that is over stays as it was.
    assert_eq!(node.states("d#1"), "a=completed b=failed c=skipped e=completed");
    node.cis(["dag", "resume", "d"])
        .code(4)
        .says_nothing()
        .tells("nothing is left to run")
        .tells("hint: `cis run d`");
    node.assert_sound();
}

#[test]
fn retry_runs_a_task_and_what_follows_it() {
    let node = failed_once();
    node.write("fixed", "");
    node.ok(["dag", "retry", "d", "b"]);
    assert_eq!(ran(&node), "b c");
    node.ok(["dag", "retry", "d", "e"]);
    assert_eq!(ran(&node), "e");
    assert_eq!(node.states("d"), "a=completed b=completed c=completed e=completed");
    node.ok(["dag", "retry", "d", "a", "--detach"]);
    node.ok(["status", "d", "--watch"]);
    assert_eq!(ran(&node), "a b c");
    node.cis(["dag", "retry", "d", "bb"]).code(3).says_nothing().tells("`d` has no task `bb`");
    node.cis(["dag", "retry", "d#9", "b"]).code(3).says_nothing();
    node.assert_sound();
}

#[test]
fn only_and_from_choose_what_runs() {
    let node = failed_once();
    node.write("fixed", "");
    node.ok(["run", "d.toml", "--only", "e"]);
    assert_eq!(ran(&node), "e");
    node.ok(["run", "d.toml", "--from", "b"]);
    assert_eq!(ran(&node), "b c");
    node.ok(["run", "d", "--only", "b", "--only", "e"]);
    assert_eq!(ran(&node), "b e");
    node.cis(["run", "d.toml", "--only", "nope"]).code(3).says_nothing().tells("has no task `nope`");
    node.cis(["run", "d.toml", "--only", "a", "--from", "b"]).code(2).says_nothing();
    // Of a DAG that never ran, nothing can be carried over; what is left out counts as fine.
    node.dag("f", &CHAIN.replace("{{ tasks.a.outputs.from }}", "x"));
    node.ok(["run", "f.toml", "--from", "b"]);
    assert_eq!(ran(&node), "b c");
    assert_eq!(node.states("f"), "a=skipped b=completed c=completed e=skipped");
    node.assert_sound();
}

#[test]
fn a_cancelled_run_can_be_resumed() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.dag("d", "tasks = [{ id = 'a', command = 'echo a >> ran' }, { id = 'b', deps = ['a'], command = 'echo b >> ran; echo up > up; read -r _ < gate' }]");
    node.ok(["run", "--detach", "d.toml"]);
    up.line();
    node.cis(["dag", "resume", "d"]).code(4).says_nothing().tells("d#1 is still running").tells("hint:");
    node.ok(["dag", "cancel", "d"]);
    node.cis(["status", "d", "--watch"]).code(1);
    gate.let_through(1);
    node.ok(["dag", "resume", "d"]);
    assert_eq!(ran(&node), "a b b");
    assert_eq!(node.states("d"), "a=completed b=completed");
    node.assert_sound();
}

#[test]
fn parameters_and_limits_are_carried_over() {
    let node = Node::new();
    node.dag("d", "params = { who = 'nobody' }\ntasks = [{ id = 'a', command = 'echo $WHO; [ -e fixed ]', env = { WHO = '{{ params.who }}' } }]");
    node.cis(["run", "d.toml", "-p", "who=somebody", "-j", "1"]).code(1);
    node.write("fixed", "");
    node.ok(["dag", "resume", "d"]);
    assert_eq!(node.logs("d", "a"), "somebody\n");
    let run = node.json(["status", "d"])["run"].clone();
    assert_eq!((&run["params"]["who"], &run["max_parallel"]), (&"somebody".into(), &1.into()), "{run}");
}

#[test]
fn a_changed_file_runs_as_a_new_revision() {
    let node = failed_once();
    node.write("fixed", "");
    node.dag("d", "tasks = [{ id = 'other', command = 'echo other >> ran' }]");
    node.ok(["run", "d.toml"]);
    assert_eq!(ran(&node), "other");
    assert_eq!(node.json(["status", "d"])["revision"], 2);
    // The earlier run is resumed with what it ran.
    node.ok(["dag", "resume", "d#1"]);
    assert_eq!(ran(&node), "b c");
    node.assert_sound();
}

#[test]
fn a_dry_run_runs_nothing() {
    let node = Node::new();
    node.dag("d", CHAIN);
    let dry = node.ok(["run", "d.toml", "--dry-run"]).tells("4 tasks would run; nothing was started");
    let order: Vec<&str> = dry.out.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(order, ["a", "e", "b", "c"]);
    let tasks = node.json(["run", "d.toml", "--dry-run", "--from", "b"])["tasks"].clone();
    assert_eq!(tasks, serde_json::json!([{"task_id": "b", "layer": 1}, {"task_id": "c", "layer": 2}]));
    assert!(!node.path("ran").exists());
    assert!(!node.data.exists(), "not even a data directory");
}

/// From anywhere, as it stands.
#[test]
fn the_command_a_failed_run_ends_with_works() {
    let node = Node::new();
    let skill = "---\nname: s\ndescription: d\ncommand: exit 3\n---\n";
    for place in ["one", "two"] {
        node.write(&format!("{place}/.cis/skills/s/SKILL.md"), skill);
        node.write(&format!("{place}/d.toml"), "tasks = [{ id = '-x', skill = 's' }]");
    }
    let run = |file: &str| {
        let mut command = node.bare();
        command.args(["run", file, "--data-dir"]).arg(&node.data);
        Running::start(command).wait().code(1)
    };
    run("one/d.toml");
    let mut told = run("two/d.toml");
    for _ in 0..2 {
        let hint = told.err.lines().find_map(|line| line.strip_prefix("hint: `cis ")).unwrap().to_owned();
        let (typed, _) = hint.split_once('`').unwrap();
        assert!(
            [" --data-dir ", " --scope ", " --skill-dir "].iter().all(|flag| typed.contains(flag)),
            "{typed}"
        );
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", &format!("{} {typed}", support::EXE)]);
        let bare = node.bare();
        shell.env_clear().envs(bare.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.current_dir(node.dir());
        told = Running::start(shell).wait().code(1).tells("exit 3");
    }
}
