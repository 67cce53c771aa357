//! Coordinators are killed while tasks run: a background run notices nothing, a foreground one takes its tasks
//! with it.
//!
//! That an old coordinator's late messages start nothing is shown where they can be made: in the runner's own
//! tests, with half a message sent before and half after the next coordinator came.

mod support;

use std::collections::HashMap;
use std::fmt::Write;

use rustix::process::Signal;
use support::process::kill;
use support::{Fifo, Node, Running, eventually, wait_gone};

const SLOTS: usize = 20;
const KILLS: usize = 20;
/// Tasks that end around each kill: one while nobody coordinates, the others just before.
const ENDED_PER_KILL: usize = 3;
const TASKS: usize = SLOTS + KILLS * ENDED_PER_KILL;
/// What each task prints, a line for every time it is let through.
const LINES: usize = 4;

/// Tasks that say they are up, then print a line each time they are let through their gate.
struct Crowd {
    node: Node,
    up: Fifo,
    gates: HashMap<String, Fifo>,
    /// Those that run, the longest first.
    running: Vec<String>,
}

impl Crowd {
    fn new() -> Self {
        let node = Node::new().with("CIS_SLOTS", &SLOTS.to_string());
        let up = node.fifo("up");
        let mut text = String::new();
        let mut gates = HashMap::new();
        for task in 0..TASKS {
            let id = format!("t{task}");
            gates.insert(id.clone(), node.fifo(&format!("gate-{id}")));
            let command = format!(
                r#"
                echo "$CIS_TASK_ID attempt $CIS_ATTEMPT fence $CIS_FENCE" >> ran
                echo begin
                echo $CIS_TASK_ID > up
                for i in $(seq {LINES}); do read -r _ < gate-$CIS_TASK_ID; echo line $i; echo note $i >&2; done
                echo n=$CIS_TASK_ID > $CIS_OUTPUT"#
            );
            writeln!(text, "[[tasks]]\nid = '{id}'\ncommand = '''{command}'''").ok();
        }
        node.write("crowd.toml", text);
        Self { node, up, gates, running: Vec::new() }
    }

    fn wait_up(&mut self, count: usize) {
        self.running.extend((0..count).map(|_| self.up.line()));
    }

    /// How many tasks are claimed and not over.
    fn claimed(&self) -> usize {
        self.node.states("crowd").matches("=running").count()
    }

    /// Every running task prints another line.
    fn print(&self, lines: usize) {
        self.running.iter().for_each(|id| self.gates[id].let_through(lines));
    }

    /// Lets the longest running tasks end.
    fn finish(&mut self, count: usize) {
        for id in self.running.drain(..count) {
            self.gates[&id].let_through(LINES);
        }
    }
}

#[test]
fn every_task_of_a_background_run_runs_once_however_often_coordinators_are_killed() {
    let mut crowd = Crowd::new();
    crowd.node.ok(["run", "--detach", "crowd.toml"]);
    crowd.node.write("other.toml", "tasks = [{ id = 'a', command = 'true' }]");
    crowd.wait_up(SLOTS);
    // What each running task prints here is spread over several coordinators.
    crowd.print(1);
    let mut ours: Vec<Running> = Vec::new();
    for round in 0..KILLS {
        let victim = crowd.node.coordinator();
        let nobody_needed = round % 2 == 0;
        if nobody_needed {
            // More than can run is claimed: what ends is followed by the next whether anybody coordinates or not.
            let enough = SLOTS + ENDED_PER_KILL.min(TASKS - SLOTS - round * ENDED_PER_KILL);
            eventually("the claims", || (crowd.claimed() >= enough).then_some(()));
        }
        crowd.finish(ENDED_PER_KILL - 1);
        kill(victim);
        crowd.finish(1);
        if nobody_needed {
            crowd.wait_up(ENDED_PER_KILL);
        }
        match round % 3 {
            0 => ours.push(crowd.node.spawn(["coordinator"])),
            // Any command that writes takes over, and leaves the rest to a background coordinator.
            1 => drop(crowd.node.ok(["dag", "publish", "other.toml"])),
            _ => ours.extend((0..3).map(|_| crowd.node.spawn(["coordinator"]))),
        }
        assert_ne!(crowd.node.coordinator(), victim);
        if !nobody_needed {
            crowd.wait_up(ENDED_PER_KILL);
        }
        assert_eq!(crowd.running.len(), SLOTS);
    }
    crowd.finish(SLOTS);
    let node = &crowd.node;
    node.ok(["status", "crowd", "--watch"]);

    let mut ran: Vec<String> =
        node.read("ran").lines().map(|line| line.split(' ').next().unwrap_or("").into()).collect();
    let mut all: Vec<String> = (0..TASKS).map(|task| format!("t{task}")).collect();
    ran.sort();
    all.sort();
    assert_eq!(ran, all, "each once");
    let status = node.json(["status", "crowd"]);
    let expected: String = (1..=LINES).map(|i| format!("line {i}\n")).collect();
    for task in status["tasks"].as_array().into_iter().flatten() {
        let id = task["task_id"].as_str().unwrap_or_default();
        assert_eq!((&task["status"], &task["attempt"]), (&"completed".into(), &1.into()), "{task}");
        assert_eq!(task["outputs"]["n"], id, "{task}");
        assert_eq!(task["output"], format!("begin\n{expected}"), "{task}");
    }
    let logs = node.ok(["logs", "crowd", "--json"]).ndjson();
    for (id, stream, word) in all.iter().flat_map(|id| [(id, "stdout", "line"), (id, "stderr", "note")]) {
        let mine = logs.iter().filter(|line| line["task_id"] == **id && line["stream"] == stream);
        let mut texts: Vec<&str> = mine.filter_map(|line| line["text"].as_str()).collect();
        texts.retain(|text| *text != "begin");
        assert_eq!(texts, (1..=LINES).map(|i| format!("{word} {i}")).collect::<Vec<_>>(), "{id} {stream}");
    }
    node.assert_sound();
    node.assert_no_survivors();
    drop(ours);
    node.wait_idle();
}

#[test]
fn outcomes_wait_for_whoever_comes_next() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    let text = r#"
        [[tasks]]
        id = "works"
        command = "echo up > up; read -r _ < gate; echo result=42 > $CIS_OUTPUT"
        [[tasks]]
        id = "fails"
        command = "echo up > up; read -r _ < gate; exit 9"
        [[tasks]]
        id = "after"
        depends_on = ["works"]
        command = "echo the answer is $ANSWER"
        env = { ANSWER = "{{ tasks.works.outputs.result }}" }
    "#;
    node.write("d.toml", text);
    node.ok(["run", "-d", "d.toml"]);
    up.lines(2);
    kill(node.coordinator());
    gate.let_through(2);
    eventually("the tasks' end", || node.survivors().is_empty().then_some(()));
    assert_eq!(node.stored("d"), "works=running fails=running after=pending");
    node.ok(["coordinator"]);
    assert_eq!(node.states("d"), "works=completed fails=failed after=completed");
    assert_eq!(node.task("d", "fails")["exit_code"], 9);
    assert_eq!(node.logs("d", "after"), "the answer is 42\n");
    node.assert_sound();
}

#[test]
fn whoever_looks_at_an_abandoned_run_gives_it_a_coordinator() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.dag("d", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }, { id = 'b', deps = ['a'], command = 'true' }]");
    node.ok(["run", "-d", "d.toml"]);
    up.line();
    kill(node.coordinator());
    node.ok(["status", "d"]).says("running").tells("note: its coordinator was gone; a new one takes it up");
    gate.let_through(1);
    node.ok(["status", "d", "--watch"]);
    node.assert_sound();
}

#[test]
fn a_run_whose_start_was_cut_short_still_has_its_surroundings() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.dag("d", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }, { id = 'b', deps = ['a'], command = 'echo $HERE' }]");
    let mut command = node.command(["run", "-d", "d.toml"]);
    command.env("HERE", "as the caller had it");
    Running::start(command).wait().code(0);
    up.line();
    kill(node.coordinator());
    // As a kill between the store's commit and what follows it leaves things.
    let run_id = node.json(["dag", "runs", "d"])["runs"][0]["run_id"].as_str().unwrap_or_default().to_owned();
    let contexts = node.data.join("contexts");
    std::fs::rename(contexts.join("1.json"), contexts.join(format!("{run_id}.json")))
        .expect("the run's surroundings");
    gate.let_through(1);
    node.ok(["coordinator"]);
    assert_eq!(node.logs("d", "b"), "as the caller had it\n");
    assert_eq!(std::fs::read_dir(contexts).map(Iterator::count).ok(), Some(0), "and nothing is left of them");
}

#[test]
fn a_killed_foreground_run_takes_its_tasks_with_it() {
    let node = Node::new();
    let up = node.fifo("up");
    let stubborn = "trap '' TERM INT HUP; (setsid sleep 1000 &); sleep 1000 & echo up > up; wait; sleep 1000";
    node.write("d.toml", format!("[[tasks]]\nid = 'a'\ngrace = '20ms'\ncommand = \"{stubborn}\"\n[[tasks]]\nid = 'b'\ndepends_on = ['a']\ncommand = 'true'"));
    let run = node.spawn(["run", "d.toml"]);
    up.line();
    run.signal(Signal::KILL);
    run.wait();
    eventually("the tasks' end", || node.survivors().is_empty().then_some(()));
    // Any command that writes records what became of it.
    node.write("other.toml", "tasks = [{ id = 'x', command = 'true' }]");
    node.ok(["run", "other.toml"]);
    node.cis(["status", "d", "--watch"]).code(1);
    let status = node.json(["status", "d"]);
    assert_eq!(
        (&status["status"], &status["run"]["stop_reason"]),
        (&"cancelled".into(), &"owner_gone".into()),
        "{status}"
    );
    assert_eq!(node.states("d"), "a=cancelled b=cancelled");
    node.assert_sound();
}

#[test]
fn nothing_more_of_a_killed_foreground_run_starts() {
    let node = Node::new();
    let text = r#"
        [[tasks]]
        id = "fails"
        command = "echo $CIS_ATTEMPT >> ran; exit 1"
        retry = { max = 1, backoff = "fixed", initial = "1h" }
        [[tasks]]
        id = "after"
        depends_on = ["fails"]
        run_if = "all_done"
        command = "echo after >> ran"
    "#;
    node.dag("d", text);
    // Killed while nothing of it runs: it waits to try again.
    let mut run = node.spawn(["run", "d.toml", "--json"]);
    run.until("not_before");
    run.signal(Signal::KILL);
    run.wait();
    node.ok(["coordinator"]);
    let status = node.json(["status", "d"]);
    assert_eq!(
        (&status["status"], &status["run"]["stop_reason"]),
        (&"cancelled".into(), &"owner_gone".into())
    );
    assert_eq!(node.states("d"), "fails=cancelled after=cancelled");
    assert_eq!(node.read("ran"), "1\n");
    node.assert_sound();
}

#[test]
fn a_killed_foreground_run_on_anothers_coordinator_ends_too() {
    let node = Node::new();
    let up = node.fifo("up");
    node.write("host.toml", "tasks = [{ id = 'a', command = 'echo host > up; exec sleep 1000' }]");
    node.write("guest.toml", "tasks = [{ id = 'a', command = 'echo guest > up; exec sleep 1000' }]");
    let host = node.spawn(["run", "host.toml"]);
    assert_eq!(up.line(), "host");
    let guest = node.spawn(["run", "guest.toml"]);
    assert_eq!(up.line(), "guest");
    assert_eq!(node.coordinator(), host.pid());
    guest.signal(Signal::KILL);
    guest.wait();
    node.cis(["status", "guest", "--watch"]).code(1);
    assert_eq!(node.json(["status", "guest"])["run"]["stop_reason"], "owner_gone");
    assert_eq!(node.states("host"), "a=running");

    // And the other way round: the host goes, the guest carries on by itself.
    let mut guest = node.spawn(["run", "guest.toml", "--json"]);
    assert_eq!(up.line(), "guest");
    host.signal(Signal::KILL);
    host.wait();
    eventually("the next coordinator", || (node.coordinator() == guest.pid()).then_some(()));
    node.cis(["status", "host", "--watch"]).code(1);
    assert_eq!(node.json(["status", "host"])["run"]["stop_reason"], "owner_gone");
    assert_eq!(node.states("guest"), "a=running");
    node.ok(["dag", "cancel", "guest"]);
    guest.until("run.cancelled");
    let ended = guest.wait().code(1);
    assert_eq!(ended.summary()["status"], "cancelled", "{ended}");
    node.assert_no_survivors();
    node.assert_sound();
}

#[test]
fn a_coordinator_of_others_runs_hands_over_when_its_own_is_done() {
    let node = Node::new();
    let (up, gate, other) = (node.fifo("up"), node.fifo("gate"), node.fifo("other"));
    node.write("mine.toml", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }]");
    node.write("other.toml", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < other' }]");
    let mine = node.spawn(["run", "mine.toml"]);
    up.line();
    let first = node.coordinator();
    assert_eq!(first, mine.pid());
    let follower = node.spawn(["run", "other.toml"]);
    node.ok(["run", "--detach", "other.toml"]);
    up.lines(2);
    gate.let_through(1);
    mine.wait().code(0);
    assert!(wait_gone(first));
    assert_ne!(node.coordinator(), first);
    other.let_through(2);
    follower.wait().code(0);
    node.ok(["status", "other#2", "--watch"]);
    node.wait_idle();
    node.assert_sound();
}

#[test]
fn surroundings_of_runs_that_are_over_or_never_were_do_not_outlive_a_crash() {
    let node = Node::new();
    let (up, gate) = (node.fifo("up"), node.fifo("gate"));
    node.dag("d", "tasks = [{ id = 'a', command = 'echo up > up; read -r _ < gate' }, { id = 'b', deps = ['a'], command = 'echo $HERE' }]");
    let mut command = node.command(["run", "-d", "d.toml"]);
    command.env("HERE", "as the caller had it");
    Running::start(command).wait().code(0);
    up.line();
    kill(node.coordinator());
    // As a kill leaves things before a run is committed, and after its end is.
    let (contexts, unborn) = (node.data.join("contexts"), "01a1e332-3217-78bc-857d-df88e9c64232");
    for left in [unborn, "77"] {
        std::fs::copy(contexts.join("1.json"), contexts.join(format!("{left}.json"))).unwrap();
    }
    let coordinator = node.spawn(["coordinator"]);
    node.coordinator();
    let left = std::fs::read_dir(&contexts).unwrap().flatten().map(|entry| entry.file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["1.json"], "what is needed stays, and nothing else");
    gate.let_through(1);
    coordinator.wait().code(0);
    assert_eq!(node.logs("d", "b"), "as the caller had it\n");
}
