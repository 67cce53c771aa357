//! Workers that keep their leases: what they hold is theirs until they complete it, whatever else the node has to do.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Answered, Caller, Notes};
use crate::chance::Chance;
use crate::clock::{Stopwatch, pause};
use crate::crash::wire::Request;

/// Short enough to notice a node that stands still for some seconds.
const LEASE: Duration = Duration::from_secs(10);

const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);

/// A task is held this long, at most.
const WORK_MS: u64 = 5_000;

pub(in crate::siege) fn run(mut caller: Caller<'_>, mut chance: Chance) -> Notes {
    while caller.course.needs_workers() {
        let body = json!({"lease_secs": LEASE.as_secs(), "wait_secs": 1, "scopes": ["global"]});
        let claimed = caller.call("claim, waiting up to 1 s", &Request::post("/api/v1/tasks/claim", &body));
        for task in claimed.iter().flat_map(|answer| answer["tasks"].as_array()).flatten() {
            work(&mut caller, task, Duration::from_millis(chance.below(WORK_MS)));
        }
        if claimed.is_none() {
            pause(Duration::from_millis(100));
        }
    }
    caller.notes
}

/// Holds a task for a while, and completes it.
fn work(caller: &mut Caller<'_>, task: &Value, time: Duration) {
    caller.notes.leases += 1;
    let (execution, fence) = (&task["execution_id"], &task["fence"]);
    let about = |what: &str, mut body: Value| {
        body["fence"] = fence.clone();
        Request::post(format!("/api/v1/tasks/{execution}/{what}"), &body)
    };
    let (watch, mut offset, mut sure) = (Stopwatch::start(), 0, Stopwatch::start());
    while watch.elapsed() < time {
        pause(HEARTBEAT_EVERY.min(time.saturating_sub(watch.elapsed())));
        let text = format!("{} works\n", caller.name);
        let piece = about("log", json!({"offset": offset, "text": text}));
        let asked = [("heartbeat", about("heartbeat", json!({}))), ("log piece", piece)];
        for (kind, request) in asked {
            if !say(caller, kind, &request, &mut sure) {
                return;
            }
        }
        offset += text.len();
    }
    say(caller, "complete", &about("complete", json!({"outputs": {"by": caller.name}})), &mut sure);
}

/// False if the lease is lost. That counts only where the caller itself was in time.
fn say(caller: &mut Caller<'_>, kind: &'static str, request: &Request, sure: &mut Stopwatch) -> bool {
    let asked = Stopwatch::start();
    let in_time = sure.elapsed() < LEASE;
    match caller.ask(kind, request) {
        Answered::Good(_) => {
            *sure = asked;
            true
        }
        Answered::Refused { code } if code == "LeaseExpired" => {
            let late = if in_time { "though it came in time" } else { "and came too late itself" };
            caller.notes.leases_lost.push(format!("{}: {kind}, {late}", caller.name));
            false
        }
        Answered::Refused { .. } => false,
        Answered::Lost => true,
    }
}
