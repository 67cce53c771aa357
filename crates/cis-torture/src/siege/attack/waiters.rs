//! Long polls, claims that wait, followers of events and logs: as many as it gets, and each again when it is answered.

use std::time::Duration;

use serde_json::json;

use super::Attacker;
use super::line::{Line, request};
use super::plan::BIG_DEFINITION;
use crate::chance::Chance;
use crate::clock::pause;

/// Of these, most wait for a status, as a fleet of agents would.
const WAITERS: usize = 1_000;

/// What each claim that waits says it can do.
const CAPABILITIES: usize = 100;

/// New connections at each look, at most.
const OPEN_AT_ONCE: usize = 100;

const LOOK_EVERY: Duration = Duration::from_millis(200);

fn wait_request(attacker: &Attacker<'_>, chance: &mut Chance) -> Vec<u8> {
    let (plan, run) = (attacker.plan, &attacker.plan.material.big_definition);
    let version = plan.material.big_definition_version;
    let capabilities: Vec<String> = (0..CAPABILITIES).map(|nth| format!("not-needed-{nth}")).collect();
    let body = json!({"wait_secs": 60, "capabilities": capabilities}).to_string();
    match chance.below(10) {
        0 => request("GET", "/api/v1/events", &plan.reader, b""),
        1 => request("GET", &format!("/api/v1/runs/{run}/logs?follow=true"), &plan.reader, b""),
        2 | 3 => request("POST", "/api/v1/tasks/claim", &plan.agent, body.as_bytes()),
        _ => {
            let path = format!("/api/v1/dag/{BIG_DEFINITION}/status?wait=60s&after={version}");
            request("GET", &path, &plan.reader, b"")
        }
    }
}

pub(super) fn hoard(attacker: &Attacker<'_>, mut chance: Chance) {
    let mut held: Vec<Line> = Vec::new();
    while attacker.goes_on() {
        // An answer, or an end: either way the wait is over.
        held.retain_mut(|line| !line.is_closed() && !line.has_answer());
        for _ in 0..OPEN_AT_ONCE.min(WAITERS - held.len()) {
            let Ok(mut line) = Line::open(attacker) else { break };
            if line.send(attacker, &wait_request(attacker, &mut chance)).is_ok() {
                held.push(line);
            }
        }
        pause(LOOK_EVERY);
    }
}
