//! Publishers: a DAG, the owner's confirmation, and a wait until its run is over; then the next one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Answered, Caller, GoodRun, Notes};
use crate::chance::Chance;
use crate::clock::{Stopwatch, pause};
use crate::crash::wire::Request;

/// No run of these takes this long; past it, it counts as one that does not end.
const RUN_MAX: Duration = Duration::from_secs(90);

/// Between two DAGs, at most.
const PAUSE_MS: u64 = 500;

pub(in crate::siege) fn run(mut caller: Caller<'_>, owner: &str, mut chance: Chance) -> Notes {
    for nth in 0.. {
        if !caller.course.goes_on() {
            break;
        }
        let dag = format!("{}-{nth}", caller.name);
        if let Some(run) = publish(&mut caller, owner, &dag, &mut chance) {
            follow(&mut caller, dag, run);
        }
        pause(Duration::from_millis(chance.below(PAUSE_MS)));
    }
    caller.course.publishers.fetch_sub(1, Ordering::Relaxed);
    caller.notes
}

/// Answers the run's id.
fn publish(caller: &mut Caller<'_>, owner: &str, dag: &str, chance: &mut Chance) -> Option<String> {
    let published =
        caller.call("publish", &Request::post("/api/v1/dag/publish", &definition(dag, chance)))?;
    let body = json!({"content_hash": published["content_hash"]});
    let confirm = Request::post(format!("/api/v1/dag/{dag}/confirm"), &body);
    match caller.ask_as(owner, "confirm", &confirm) {
        Answered::Good(confirmed) => confirmed["run_id"].as_str().map(str::to_owned),
        Answered::Refused { .. } | Answered::Lost => None,
    }
}

fn follow(caller: &mut Caller<'_>, dag: String, run: String) {
    let (watch, mut known) = (Stopwatch::start(), Value::Null);
    let mut status = "unknown".to_owned();
    while watch.elapsed() < RUN_MAX {
        let query = if known.is_null() { String::new() } else { format!("?wait=2s&after={known}") };
        let asked = Request::get(format!("/api/v1/dag/{dag}/status{query}"));
        let kind = if known.is_null() { "status" } else { "status, waiting up to 2 s" };
        match caller.call(kind, &asked) {
            Some(told) => {
                known = told["version"].clone();
                status = told["status"].as_str().unwrap_or_default().to_owned();
            }
            None => pause(Duration::from_millis(100)),
        }
        if ["completed", "failed", "cancelled", "timed_out"].contains(&status.as_str()) {
            break;
        }
    }
    caller.notes.runs.push(GoodRun { dag, run, status });
}

/// Commands that depend on each other; in every third DAG a worker has a part as well.
fn definition(dag: &str, chance: &mut Chance) -> Value {
    let mut tasks = vec![
        json!({"id": "first", "command": "echo first"}),
        json!({"id": "left", "command": "sleep 0.1; echo left", "depends_on": ["first"]}),
        json!({"id": "right", "command": "echo right", "depends_on": ["first"]}),
        json!({"id": "last", "command": "echo last", "depends_on": ["left", "right"]}),
    ];
    if chance.one_in(3) {
        tasks.push(json!({"id": "by-a-worker", "type": "external", "depends_on": ["first"]}));
    }
    json!({"dag_id": dag, "tasks": tasks})
}
