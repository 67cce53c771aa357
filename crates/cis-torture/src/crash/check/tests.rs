//! Records that were doctored: each lie is found, and the honest record is not accused.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::evidence::{Line, Revision};
use super::super::record::Kill;
use super::*;

fn entry(n: u64, ask: Ask, answer: Answer) -> Entry {
    let (sent, ended) = (Duration::from_millis(10 * n), Duration::from_millis(10 * n + 5));
    Entry { client: 0, life: 1, sent, ended, ask, answer }
}

fn yes(n: u64, ask: Ask, told: Value) -> Entry {
    entry(n, ask, Answer::Acknowledged(told))
}

fn task(execution: i64, id: &str, status: &str, attempt: u32) -> Task {
    Task { execution, id: id.into(), status: status.into(), attempt, outputs: None, cause: None }
}

fn line(began: bool, run: &str, task: &str, attempt: u32) -> Line {
    Line { began, run: run.into(), task: task.into(), attempt }
}

fn claim(n: u64, claim: &str, fence: i64) -> Entry {
    yes(n, Ask::Claim { claim: claim.into() }, json!({"tasks": [{"execution_id": 7, "fence": fence}]}))
}

/// A storm in which everything went well.
fn honest() -> Evidence {
    let (shell, external) = ("c0-0-shell".to_owned(), "c0-1-external".to_owned());
    let entries = vec![
        yes(0, Ask::Publish { dag: shell.clone() }, json!({"content_hash": "aa"})),
        entry(1, Ask::Confirm { dag: shell.clone() }, Answer::Unknown),
        yes(2, Ask::Confirm { dag: shell.clone() }, json!({"run_id": "r1"})),
        yes(3, Ask::Publish { dag: external.clone() }, json!({"content_hash": "bb"})),
        yes(4, Ask::Confirm { dag: external.clone() }, json!({"run_id": "r2"})),
        claim(5, "one", 100),
        yes(6, Ask::Release { execution: 7, fence: 100 }, json!({"status": "ready"})),
        claim(7, "two", 101),
        yes(8, Ask::Complete { execution: 7, fence: 101, outputs: json!({"by": 0}) }, json!({})),
        yes(9, Ask::Status { dag: shell.clone() }, json!({"status": "completed"})),
        yes(10, Ask::Status { dag: shell.clone() }, json!({"status": "completed"})),
    ];
    let claimed = Task { outputs: Some(json!({"by": 0})), ..task(7, "first", "completed", 1) };
    let shell_tasks = vec![task(5, "plain", "completed", 1), task(6, "retried", "completed", 2)];
    let run = |id: &str, dag: &str, tasks| Run {
        id: id.into(),
        dag: dag.into(),
        status: "completed".into(),
        tasks,
    };
    let revision =
        |dag: &str, content_hash: &str| Revision { dag: dag.into(), content_hash: content_hash.into() };
    Evidence {
        entries,
        kills: Vec::new(),
        lines: vec![
            line(true, "r1", "plain", 1),
            line(false, "r1", "plain", 1),
            line(true, "r1", "retried", 1),
            line(true, "r1", "retried", 2),
            line(false, "r1", "retried", 2),
        ],
        revisions: vec![revision(&shell, "aa"), revision(&external, "bb")],
        runs: vec![run("r1", &shell, shell_tasks), run("r2", &external, vec![claimed])],
    }
}

/// One lie, and what the judge must say of it.
#[track_caller]
fn finds(what: &str, doctor: impl FnOnce(&mut Evidence)) {
    let mut evidence = honest();
    doctor(&mut evidence);
    let found = violations(&evidence);
    assert!(found.iter().any(|told| told.starts_with(what)), "`{what}` is not in {found:#?}");
}

#[test]
fn an_honest_record_is_not_accused() {
    assert_eq!(violations(&honest()), Vec::<String>::new());
}

#[test]
fn lost_writes_are_found() {
    let lost = "an acknowledged write is lost";
    finds(lost, |storm| drop(storm.revisions.remove(0)));
    finds(lost, |storm| drop(storm.runs.remove(0)));
    finds(lost, |storm| storm.runs[1].tasks[0].outputs = Some(json!({"by": 1})));
    finds(lost, |storm| storm.runs[1].tasks[0].status = "ready".into());
    finds(lost, |storm| storm.entries.push(yes(11, Ask::Cancel { run: "r1".into() }, json!({}))));
    let input = json!({"n": 1});
    finds(lost, |storm| storm.entries.push(yes(11, Ask::Approve { run: "r1".into(), input }, json!({}))));
    finds("what was there is not found", |storm| {
        let gone = Answer::Refused { status: 404, code: "NotFound".into() };
        storm.entries.push(entry(11, Ask::Status { dag: "c0-0-shell".into() }, gone));
    });
    finds("what was over is not", |storm| {
        storm.entries.push(yes(11, Ask::Status { dag: "c0-0-shell".into() }, json!({"status": "running"})));
    });
}

#[test]
fn double_claims_are_found() {
    finds("fence 101 was won twice", |storm| storm.entries.push(claim(9, "three", 101)));
    finds("a later fence is not above 101", |storm| storm.entries.push(claim(9, "three", 99)));
    finds("a stale fence was heard", |storm| {
        let late = Ask::Heartbeat { execution: 7, fence: 100 };
        storm.entries.push(yes(9, late, json!({})));
    });
}

#[test]
fn what_ran_twice_is_found() {
    finds("one attempt was started twice", |storm| storm.lines.push(line(true, "r1", "plain", 1)));
    finds("an attempt is not recorded", |storm| storm.lines.push(line(true, "r1", "plain", 2)));
    finds("it ran more often than its policy allows", |storm| {
        storm.runs[0].tasks[0].attempt = 2;
        storm.lines.extend([line(true, "r1", "plain", 2), line(false, "r1", "plain", 2)]);
    });
    finds("a task ran that the store does not know", |storm| storm.lines.push(line(true, "r9", "plain", 1)));
    finds("`plain` of r1 completed without its end", |storm| drop(storm.lines.remove(1)));
    finds("one request, two runs", |storm| {
        storm.entries.push(yes(11, Ask::Confirm { dag: "c0-0-shell".into() }, json!({"run_id": "r2"})));
    });
    finds("2 runs, 1 were asked for", |storm| {
        let again = Run { id: "r3".into(), ..storm.runs[1].clone() };
        storm.runs.push(again);
    });
}

#[test]
fn what_does_not_end_or_ends_wrongly_is_found() {
    finds("stuck: r1 is running", |storm| storm.runs[0].status = "running".into());
    finds("r1 must not be failed", |storm| storm.runs[0].status = "failed".into());
    finds("refused without a reason", |storm| {
        let no = Answer::Refused { status: 409, code: "ContentConflict".into() };
        storm.entries.push(entry(11, Ask::Publish { dag: "c0-0-shell".into() }, no));
    });
    // A runner that was killed is a reason; without one, nothing is interrupted.
    let interrupt = |storm: &mut Evidence| {
        storm.runs[0].status = "failed".into();
        storm.runs[0].tasks[0] = Task { cause: Some(INTERRUPTED.into()), ..task(5, "plain", "failed", 1) };
    };
    finds("r1 must not be failed", interrupt);
    let mut storm = honest();
    interrupt(&mut storm);
    storm.kills.push(Kill { at: Duration::ZERO, life: 1, node: false, runner: true });
    assert_eq!(violations(&storm), Vec::<String>::new());
}

#[test]
fn a_kill_between_request_and_answer_is_told_from_one_that_was_not() {
    let kill = Kill { at: Duration::from_millis(12), life: 1, node: true, runner: false };
    let confirm = || Ask::Confirm { dag: "d".into() };
    assert!(entry(1, confirm(), Answer::Unknown).was_cut_by(&kill));
    assert!(!yes(1, confirm(), json!({})).was_cut_by(&kill), "it was answered");
    assert!(!entry(2, confirm(), Answer::Unknown).was_cut_by(&kill), "it was sent later");
    assert!(!entry(1, Ask::Status { dag: "d".into() }, Answer::Unknown).was_cut_by(&kill), "it only reads");
    let runner = Kill { node: false, runner: true, ..kill };
    assert!(yes(1, confirm(), json!({})).was_cut_by(&runner), "it was answered after that");
}
