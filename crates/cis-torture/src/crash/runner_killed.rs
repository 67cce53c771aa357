//! The runner is killed under tasks of every policy, alone or together with the node: nothing of them survives, and each
//! task's own policy decides what becomes of it.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::fifo::Fifo;
use super::victim::{PATIENCE, Victim};
use super::wire::Request;
use super::{conclude, count, wrong_in_the_end};
use crate::chance::Chance;
use crate::clock::Stopwatch;
use crate::{Dose, Finding};

/// Tasks of each policy.
const EACH: usize = 4;

/// Policies, what becomes of a task when its runner is killed, and the attempt that decides.
const POLICIES: [(&str, &str, u64); 3] =
    [("repeatable", "completed", 2), ("retried", "completed", 2), ("plain", "failed", 1)];

/// Kills the runner `rounds` times, or until the time is over.
pub fn run(dose: &Dose) -> Result<Finding> {
    let slots = u32::try_from(EACH * POLICIES.len())?;
    let mut victim = Victim::start(slots)?;
    let (watch, mut chance) = (Stopwatch::start(), Chance::new(dose.seed));
    let (mut wrong, mut kills, mut with_node) = (Vec::new(), 0, 0);
    while wrong.is_empty() && watch.lets(kills as u64, dose) {
        let (dag, both) = (format!("round-{kills}"), chance.percent(30));
        let told = round(&mut victim, &dag, both);
        wrong.extend(told.unwrap_or_else(|e| vec![format!("{dag}: {e:#}")]));
        kills += 1;
        with_node += usize::from(both);
    }
    if wrong.is_empty() {
        wrong = wrong_in_the_end(&mut victim)?;
    }
    let mut finding = Finding::default();
    count(&mut finding, "runner killed under live tasks", kills);
    count(&mut finding, "… together with the node", with_node);
    count(&mut finding, "attempts interrupted", kills * EACH * POLICIES.len());
    conclude(&mut finding, dose.seed, wrong, &mut victim);
    Ok(finding)
}

/// One run, killed; answers what is wrong with it.
fn round(victim: &mut Victim, dag: &str, both: bool) -> Result<Vec<String>> {
    let fifo = victim.path(&format!("{dag}.up"));
    let up = Fifo::new(&fifo)?;
    let run = victim.run(&definition(dag, &fifo.display().to_string()))?;
    up.lines(EACH * POLICIES.len(), PATIENCE).context("tasks that are up")?;
    ensure!(victim.kill_runner(), "there is no runner");
    if both {
        victim.fall()?;
        victim.rise()?;
    }
    victim.wait_over(dag)?;
    let told = victim.ask(&Request::get(format!("/api/v1/runs/{run}")))?;
    let tasks = told["tasks"].as_array().with_context(|| format!("no tasks in {told}"))?;
    let mut wrong: Vec<String> = tasks.iter().filter_map(|task| misled(dag, task)).collect();
    // What stayed behind of the killed runner was ended before the attempt was called interrupted.
    wrong.extend(victim.strays().into_iter().map(|process| format!("{dag}: a stray: {process:?}")));
    std::fs::remove_file(fifo)?;
    Ok(wrong)
}

/// Tasks that ignore SIGTERM and leave somebody behind who has left their group.
fn definition(dag: &str, up: &str) -> Value {
    let command = format!(
        "echo $CIS_TASK_ID $CIS_ATTEMPT > '{up}'; trap '' TERM; [ $CIS_ATTEMPT = 2 ] && exit; (setsid sleep 1000 &); sleep 1000"
    );
    let tasks =
        POLICIES.iter().flat_map(|(policy, ..)| (0..EACH).map(move |n| (*policy, n))).map(|(policy, n)| {
            let mut task = json!({"id": format!("{policy}-{n}"), "command": command});
            match policy {
                "repeatable" => task["idempotent"] = json!(true),
                "retried" => task["retry"] = json!({"max": 1, "initial": "1ms"}),
                _ => {}
            }
            task
        });
    json!({"dag_id": dag, "tasks": tasks.collect::<Vec<_>>()})
}

/// What is wrong with what became of a task, if anything is.
fn misled(dag: &str, task: &Value) -> Option<String> {
    let policy = POLICIES
        .iter()
        .find(|(policy, ..)| task["task_id"].as_str().is_some_and(|id| id.starts_with(policy)));
    let followed =
        policy.is_some_and(|(_, status, attempt)| task["status"] == *status && task["attempt"] == *attempt);
    let why = task["status"] != "failed" || task["cause"] == "the runner was killed";
    (!followed || !why).then(|| format!("{dag}: its policy was not followed: {task}"))
}
