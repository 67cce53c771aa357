//! What runs when, how often, and how it ends: dependencies, parallelism, rules, policies, retries, time limits.

mod support;

use support::{Node, eventually};

#[test]
fn dependencies_are_met_and_the_rest_runs_at_once() {
    let node = Node::new();
    let _pipes = (node.fifo("from-b"), node.fifo("from-c"));
    // `b` and `c` can only end if both of them run.
    let text = r#"
        [[tasks]]
        id = "d"
        depends_on = ["b", "c"]
        command = "echo d >> order"
        [[tasks]]
        id = "b"
        depends_on = ["a"]
        command = "echo > from-b; read -r _ < from-c; echo b >> order"
        [[tasks]]
        id = "c"
        deps = ["a"]
        command = "echo > from-c; read -r _ < from-b; echo c >> order"
        [[tasks]]
        id = "a"
        command = "echo a >> order"
    "#;
    node.dag("d", text);
    node.ok(["run", "d.toml"]).tells("d#1 completed").tells("4 completed");
    let order = node.read("order");
    assert!(["a\nb\nc\nd\n", "a\nc\nb\nd\n"].contains(&order.as_str()), "{order}");
    node.assert_sound();
}

/// The most tasks that were between their `+` and their `-` at any time.
fn most_at_once(marks: &str) -> i32 {
    let mut now = 0;
    let counted = marks.lines().map(|mark| {
        now += if mark == "+" { 1 } else { -1 };
        now
    });
    counted.max().unwrap_or(0)
}

#[test]
fn no_more_run_at_once_than_allowed() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let task = |id: usize| {
        format!(
            "[[tasks]]\nid = 't{id}'\ncommand = 'echo + >> marks; echo up > up; read -r _ < gate; echo - >> marks'\n"
        )
    };
    let tasks: String = (0..6).map(task).collect();
    for (run, allowed, flags, limit) in [
        (1, 2, &[][..], "max_parallel = 2\n"),
        (2, 3, &["-j", "3"], ""),
        (3, 1, &["-j", "1"], "max_parallel = 4\n"),
    ] {
        node.write("marks", "");
        node.dag("d", &format!("{limit}{tasks}"));
        let running = node.spawn(["run", "d.toml"].iter().chain(flags));
        for started in 0..6 {
            up.line();
            if started + 1 >= allowed {
                let states = node.states(&format!("d#{run}"));
                assert_eq!(states.matches("=running").count(), allowed, "{states}");
                gate.let_through(1);
            }
        }
        gate.let_through(allowed - 1);
        running.wait().code(0);
        assert_eq!(most_at_once(&node.read("marks")), i32::try_from(allowed).unwrap());
    }
    node.assert_sound();
}

#[test]
fn higher_priorities_go_first() {
    let node = Node::new().with("CIS_SLOTS", "1");
    let task = |id: &str, priority: i32| {
        format!("[[tasks]]\nid = '{id}'\npriority = {priority}\ncommand = 'echo {id} >> order'\n")
    };
    node.dag(
        "d",
        &[task("low", -5), task("plain", 0), task("highest", 9), task("also-plain", 0), task("high", 3)]
            .concat(),
    );
    node.ok(["run", "d.toml"]);
    assert_eq!(node.read("order"), "highest\nhigh\nplain\nalso-plain\nlow\n");
}

#[test]
fn rules_decide_what_follows_a_failure() {
    let node = Node::new();
    let mut text =
        "tasks = [ { id = 'good', command = 'true' }, { id = 'bad', command = 'exit 4' },\n".to_owned();
    for rule in ["all_success", "all_done", "one_failed", "none_failed"] {
        for (name, before) in [("good", "'good'"), ("bad", "'bad'"), ("both", "'good', 'bad'")] {
            text += &format!(
                "{{ id = '{rule}-{name}', deps = [{before}], run_if = '{rule}', command = 'true' }},\n"
            );
        }
    }
    text += "{ id = 'after-skipped', deps = ['all_success-bad'], command = 'true' },\n";
    text += "{ id = 'all-done-after-skipped', deps = ['all_success-bad'], run_if = 'all_done', command = 'true' },\n";
    node.dag("d", &(text + "]"));
    node.cis(["run", "d.toml"]).code(1).tells("hint: `cis dag retry d#1 bad` tries it again");
    let states = node.states("d");
    let expected = "good=completed bad=failed \
        all_success-good=completed all_success-bad=skipped all_success-both=skipped \
        all_done-good=completed all_done-bad=completed all_done-both=completed \
        one_failed-good=skipped one_failed-bad=completed one_failed-both=completed \
        none_failed-good=completed none_failed-bad=skipped none_failed-both=skipped \
        after-skipped=skipped all-done-after-skipped=completed";
    assert_eq!(states, expected);
    assert_eq!(node.task("d", "all_success-bad")["cause"], "`bad` did not complete");
    node.assert_sound();
}

#[test]
fn the_first_success_stops_the_rest() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let text = r#"
        policy = "first_success"
        tasks = [
          { id = "slow", command = "trap '' TERM; echo up > up; (setsid sleep 1000 &); sleep 1000", grace = "10ms" },
          { id = "fast", command = "read -r _ < gate" },
          { id = "failing", command = "exit 1" },
          { id = "step", command = "exec sleep 1000" },
          { id = "never", deps = ["step"], command = "touch never" },
        ]
    "#;
    node.dag("d", text);
    let mut run = node.spawn(["run", "d.toml"]);
    up.line();
    // Whatever is still running when the first one succeeds is stopped.
    run.until("exit 1");
    gate.let_through(1);
    run.wait().code(0);
    assert_eq!(
        node.states("d"),
        "slow=cancelled fast=completed failing=failed step=cancelled never=cancelled"
    );
    node.assert_no_survivors();
    node.dag("e", "policy = 'first_success'\ntasks = [ { id = 'a', command = 'exit 1' }, { id = 'b', command = 'exit 2' } ]");
    node.cis(["run", "e.toml"]).code(1);
    node.assert_sound();
}

#[test]
fn ignorable_debt_does_not_fail_a_run() {
    let node = Node::new();
    let tasks = "tasks = [ { id = 'a', command = 'true' }, { id = 'lint', debt = 'ignorable', command = 'echo untidy; exit 1' } ]";
    node.dag("d", &format!("policy = 'allow_debt'\n{tasks}"));
    let ran = node.ok(["run", "d.toml", "--json"]);
    assert_eq!((&ran.summary()["failed"], &ran.summary()["status"]), (&1.into(), &"completed".into()));
    node.ok(["run", "d.toml"]).tells("lint: exit 1").tells("untidy");
    node.dag("e", tasks);
    node.cis(["run", "e.toml"]).code(1);
    node.dag("f", "policy = 'allow_debt'\ntasks = [ { id = 'a', command = 'false' } ]");
    node.cis(["run", "f.toml"]).code(1);
}

#[test]
fn attempts_are_retried_and_each_keeps_its_output() {
    let node = Node::new();
    let text = r#"
        [[tasks]]
        id = "third-time"
        command = 'echo this is attempt $CIS_ATTEMPT; [ $CIS_ATTEMPT = 3 ]'
        retry = { max = 5, backoff = "fixed", initial = "1ms" }
        [[tasks]]
        id = "gives-up"
        command = 'echo try; exit 7'
        retry = { max = 2, initial = "1ms", cap = "2ms" }
        [[tasks]]
        id = "not-worth-it"
        command = 'echo once; exit 8'
        retry = { max = 5, initial = "1ms", on_exit_codes = [75] }
    "#;
    node.dag("d", text);
    node.cis(["run", "d.toml"])
        .code(1)
        .says("third-time  exit 1 (attempt 1/6, retry in")
        .says("gives-up  exit 7 (attempt 3/3)");
    assert_eq!(node.states("d"), "third-time=completed gives-up=failed not-worth-it=failed");
    let attempts =
        ["third-time", "gives-up", "not-worth-it"].map(|task| node.task("d", task)["attempt"].clone());
    assert_eq!(attempts, [3, 3, 1]);
    for attempt in ["1", "2", "3"] {
        let ran = node.ok(["logs", "d", "-t", "third-time", "--attempt", attempt]);
        assert_eq!(ran.out, format!("this is attempt {attempt}\n"));
    }
    assert_eq!(node.logs("d", "third-time"), "this is attempt 3\n");
    assert_eq!(node.ok(["logs", "d", "-t", "third-time", "--attempt", "4"]).out, "");
    node.assert_sound();
}

#[test]
fn a_task_over_its_time_timed_out_even_if_it_then_ends_well() {
    let node = Node::new();
    let text = r#"
        [[tasks]]
        id = "polite"
        timeout = "500ms"
        command = "trap 'echo asked to stop; exit 0' TERM; while :; do sleep 0.01; done"
        [[tasks]]
        id = "stubborn"
        timeout = "500ms"
        grace = "10ms"
        command = "trap '' TERM; (setsid sleep 1000 &); while :; do sleep 0.01; done"
        [[tasks]]
        id = "second-try"
        timeout = "1s"
        retry = { max = 1, initial = "1ms" }
        command = '[ $CIS_ATTEMPT = 2 ] || exec sleep 1000'
        [[tasks]]
        id = "after"
        depends_on = ["polite"]
        command = "true"
        [[tasks]]
        id = "in-time"
        timeout = "1h"
        command = "true"
    "#;
    node.dag("d", text);
    node.cis(["run", "d.toml"]).code(1);
    assert_eq!(
        node.states("d"),
        "polite=timed_out stubborn=timed_out second-try=completed after=skipped in-time=completed"
    );
    assert!(node.logs("d", "polite").contains("asked to stop"));
    assert_eq!(node.json(["status", "d"])["status"], "failed");
    node.assert_no_survivors();
    node.assert_sound();
}

#[test]
fn a_run_over_its_time_is_stopped() {
    let node = Node::new();
    let text = r#"
        timeout = "1s"
        tasks = [
          { id = "quick", command = "true" },
          { id = "slow", command = "trap '' TERM; (setsid sleep 1000 &); sleep 1000", grace = "10ms" },
          { id = "after", deps = ["slow"], command = "touch after" },
        ]
    "#;
    node.dag("d", text);
    node.cis(["run", "d.toml"]).code(1).tells("d#1 timed_out");
    assert_eq!(node.json(["status", "d"])["status"], "timed_out");
    assert_eq!(node.states("d"), "quick=completed slow=cancelled after=cancelled");
    node.assert_no_survivors();
    node.ok(["run", "--detach", "d.toml"]);
    node.cis(["status", "d", "--watch"]).code(1);
    assert_eq!(node.json(["status", "d#2"])["status"], "timed_out");
    node.assert_sound();
}

#[test]
fn what_waits_too_long_in_the_queue_times_out() {
    let node = Node::new().with("CIS_SLOTS", "1");
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    // More than the runner is handed ahead of its slots, so that others wait in the store.
    let mut first =
        "tasks = [{ id = 'holds', priority = 9, command = 'echo up > up; read -r _ < gate' },".to_owned();
    (0..20).for_each(|n| first += &format!("{{ id = 't{n}', priority = 8, command = 'true' }},"));
    node.dag("first", &(first + "]"));
    let first = node.spawn(["run", "first.toml"]);
    up.line();
    node.dag("late", "queue_timeout = '50ms'\ntasks = [{ id = 'a', command = 'touch late' }]");
    node.cis(["run", "late.toml"]).code(1);
    assert_eq!(node.json(["status", "late"])["status"], "timed_out");
    let task = "tasks = [{ id = 'a', queue_timeout = '50ms', command = 'touch late' }, { id = 'b', deps = ['a'], command = 'true' }]";
    node.dag("task", task);
    node.cis(["run", "task.toml"]).code(1);
    assert_eq!(node.states("task"), "a=timed_out b=skipped");
    gate.let_through(1);
    first.wait().code(0);
    assert!(!node.path("late").exists());
    node.assert_sound();
}

#[test]
fn a_wide_and_a_deep_graph_run_to_the_end() {
    let node = Node::new();
    let mut text = "tasks = [{ id = 'root', command = 'true' }\n".to_owned();
    for n in 0..300 {
        let before = if n == 0 { "root".to_owned() } else { format!("deep{}", n - 1) };
        text += &format!(
            ", {{ id = 'deep{n}', deps = ['{before}'], command = 'true' }}, {{ id = 'wide{n}', deps = ['root'], command = 'true' }}\n"
        );
    }
    let all: Vec<String> = (0..300).map(|n| format!("'wide{n}'")).collect();
    text += &format!(", {{ id = 'join', deps = ['deep299', {}], command = 'echo joined' }}]", all.join(", "));
    node.dag("d", &text);
    let ran = node.ok(["run", "d.toml", "--json"]);
    assert_eq!(ran.summary()["completed"], 602);
    assert_eq!(node.logs("d", "join"), "joined\n");
    node.assert_sound();
}

#[test]
fn a_task_that_cannot_start_says_why() {
    let node = Node::new();
    let text = r#"
        tasks = [
          { id = "nowhere", workdir = "no/such/place", command = "true" },
          { id = "unknown", command = "no-such-program-anywhere" },
          { id = "killed", command = "kill -9 $$" },
        ]
    "#;
    node.dag("d", text);
    node.cis(["run", "d.toml"]).code(1).tells("no/such/place").tells("no-such-program-anywhere");
    assert_eq!(node.states("d"), "nowhere=failed unknown=failed killed=failed");
    assert_eq!(node.task("d", "unknown")["exit_code"], 127);
    assert_eq!(node.task("d", "killed")["exit_code"], 137);
    assert!(node.task("d", "nowhere")["cause"].as_str().unwrap().contains("no/such/place"));
}

#[test]
fn a_watched_run_is_seen_to_its_end_from_elsewhere() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.dag("d", "tasks = [{ id = 'a', command = 'echo one; echo up > up; read -r _ < gate; echo two' }]");
    node.ok(["run", "--detach", "d.toml"]).says("Started d#1 in the background (1 task)");
    up.line();
    let mut watch = node.spawn(["status", "d", "--watch", "--json"]);
    let mut follow = node.spawn(["logs", "d", "--follow"]);
    watch.until("task.claimed");
    follow.until("one");
    eventually("its start noted", || node.task("d", "a").get("started_at").map(|_| ()));
    gate.let_through(1);
    assert_eq!(watch.wait().code(0).summary()["status"], "completed");
    assert_eq!(follow.wait().code(0).out, "one\ntwo\n");
}
