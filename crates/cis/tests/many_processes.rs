//! Twenty `cis` processes at once on one data directory: none is refused, none sees another's lock, and what they
//! leave behind is sound.

mod support;

use support::{Node, Ran, eventually};

const PROCESSES: usize = 20;
const ROUNDS: usize = 4;

const BRIEF: &str = r#"
[[tasks]]
id = "a"
command = "echo a says hello"
[[tasks]]
id = "b"
command = "echo b says hello >&2"
[[tasks]]
id = "c"
depends_on = ["a", "b"]
command = "echo c says hello"
"#;

const FAILING: &str = r#"
[[tasks]]
id = "a"
command = "echo a is doomed; exit 7"
[[tasks]]
id = "b"
depends_on = ["a"]
command = "echo never"
"#;

const ENDLESS: &str = r#"
[[tasks]]
id = "a"
command = "exec sleep 1000"
grace = "10ms"
[[tasks]]
id = "b"
command = "trap '' TERM; sleep 1000 & wait; sleep 1000"
grace = "10ms"
"#;

/// What was said has nothing in it of locks, and no panic.
fn calm(ran: &Ran) {
    for word in ["locked", "busy", "BUSY", "panicked", "Internal"] {
        assert!(!ran.out.contains(word) && !ran.err.contains(word), "{ran}");
    }
}

fn expect(node: &Node, code: i32, args: &[&str]) -> Ran {
    let ran = node.cis(args).code(code);
    calm(&ran);
    ran
}

/// Runs a DAG of its own in the foreground.
fn run(node: &Node, me: &str) {
    node.write(&format!("{me}.toml"), BRIEF);
    expect(node, 0, &["run", &format!("{me}.toml")]);
    assert_eq!(node.states(me), "a=completed b=completed c=completed");
    assert_eq!(expect(node, 0, &["logs", me, "--task", "c"]).out, "c says hello\n");
}

/// Runs the DAG everybody runs.
fn run_shared(node: &Node, _me: &str) {
    let ran = expect(node, 0, &["run", "shared.toml", "--json"]);
    let summary = ran.summary();
    assert_eq!((&summary["status"], &summary["completed"]), (&"completed".into(), &3.into()), "{ran}");
}

fn fail(node: &Node, me: &str) {
    node.write(&format!("{me}.toml"), FAILING);
    expect(node, 1, &["run", &format!("{me}.toml")]).tells("a is doomed");
    assert_eq!(node.states(me), "a=failed b=skipped");
}

/// Publishes, confirms, and watches what that started.
fn publish(node: &Node, me: &str) {
    node.write(&format!("{me}.toml"), BRIEF);
    expect(node, 0, &["dag", "publish", &format!("{me}.toml")]);
    expect(node, 0, &["confirm", &node.review(me)]);
    expect(node, 0, &["status", me, "--watch"]);
    assert_eq!(node.states(me), "a=completed b=completed c=completed");
}

/// Starts something endless in the background and cancels it.
fn cancel(node: &Node, me: &str) {
    node.write(&format!("{me}.toml"), ENDLESS);
    expect(node, 0, &["run", "--detach", &format!("{me}.toml")]);
    expect(node, 0, &["dag", "cancel", me]);
    expect(node, 1, &["status", me, "--watch"]);
    assert_eq!(node.json(["status", me])["status"], "cancelled");
    // A run cancelled before it began is over at once; its tasks follow in chunks.
    eventually("its tasks' end", || (node.states(me) == "a=cancelled b=cancelled").then_some(()));
}

/// Reads all there is to read.
fn read(node: &Node, _me: &str) {
    for args in [
        &["dag", "list"][..],
        &["dag", "runs"],
        &["status", "shared"],
        &["status", "shared", "--json"],
        &["logs", "shared"],
        &["dag", "graph", "shared"],
        &["dag", "explain", "shared", "c"],
        &["dag", "list", "-s", "completed", "--json"],
    ] {
        expect(node, 0, args);
    }
}

#[test]
fn twenty_at_once_get_along() {
    let node = Node::new().with("CIS_DURABILITY", "power");
    node.write("shared.toml", BRIEF);
    node.ok(["run", "shared.toml"]);
    let roles: [fn(&Node, &str); 6] = [run, run_shared, fail, publish, cancel, read];
    for round in 0..ROUNDS {
        std::thread::scope(|scope| {
            for process in 0..PROCESSES {
                let (node, role) = (&node, roles[process % roles.len()]);
                scope.spawn(move || role(node, &format!("d{round}-{process}")));
            }
        });
        node.assert_no_survivors();
        node.assert_sound();
        if round % 2 == 1 {
            // The next round begins with nobody there, the others with a coordinator that lingers.
            node.wait_idle();
        }
    }
    // Everybody ran the shared DAG as a run of its own, of one and the same revision.
    let shared = node.json(["status", "shared"]);
    let runs = (0..PROCESSES).filter(|process| process % roles.len() == 1).count() * ROUNDS + 1;
    assert_eq!((&shared["runs"], &shared["revision"]), (&runs.into(), &1.into()));
    assert_eq!(node.complaints(), "");
}

#[test]
fn all_at_once_publish_confirm_and_run_the_same() {
    let node = Node::new();
    node.write("same.toml", BRIEF);
    let together = |args: &[&str]| -> Vec<Ran> {
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..PROCESSES).map(|_| scope.spawn(|| node.cis(args))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        })
    };
    let published = together(&["dag", "publish", "same.toml", "--json"]);
    let created = published.iter().filter(|ran| ran.json()["status"] == "created").count();
    assert_eq!(created, 1, "one content, one DAG");
    published.iter().for_each(calm);
    let confirmed = together(&["confirm", &node.review("same"), "--json"]);
    confirmed.into_iter().for_each(|ran| calm(&ran.code(0)));
    node.ok(["status", "same", "--watch"]);
    assert_eq!(
        node.json(["dag", "runs", "same"])["runs"].as_array().unwrap().len(),
        1,
        "confirmed twice, run once"
    );
    for ran in together(&["run", "same"]) {
        calm(&ran.code(0));
    }
    assert_eq!(node.json(["status", "same"])["runs"], PROCESSES + 1);
    node.wait_idle();
    node.assert_sound();
    assert_eq!(node.complaints(), "");
}
