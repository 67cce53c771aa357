//! Asks for much, and reads none of it, or a byte at a time.

use std::time::Duration;

use super::Attacker;
use super::line::{Line, request};
use super::plan::{BIG_DEFINITION, BIG_OUTPUTS};
use crate::chance::Chance;
use crate::clock::pause;

/// Connections that ask for a giant answer each.
const SLOW: usize = 80;

/// Connections with many requests each, none of whose answers is read.
const PIPELINES: usize = 60;
const REQUESTS: usize = 40;

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Answers that are large, and the token that may ask for them.
pub(super) fn giants(attacker: &Attacker<'_>) -> Vec<Vec<u8>> {
    let material = &attacker.plan.material;
    let (outputs, log, definition) = (&material.big_outputs, &material.big_log, &material.big_definition);
    let paths = [
        format!("/api/v1/runs/{outputs}"),
        format!("/api/v1/dag/{BIG_OUTPUTS}/status"),
        format!("/api/v1/runs/{outputs}/tasks?limit=1000"),
        format!("/api/v1/runs/{log}/logs"),
        format!("/api/v1/runs/{log}/logs?follow=true&tail=10000"),
        format!("/api/v1/dag/{BIG_DEFINITION}"),
        format!("/api/v1/runs/{definition}"),
        format!("/api/v1/runs/{definition}/why?limit=1000"),
        format!("/api/v1/runs/{definition}/tasks?limit=1000"),
        "/api/v1/events?after=0".to_owned(),
        "/api/v1/pending?limit=1000".to_owned(),
        "/api/v1/openapi.json".to_owned(),
        "/metrics".to_owned(),
    ];
    paths.iter().map(|path| request("GET", path, &attacker.plan.reader, b"")).collect()
}

/// Half of them read a byte now and then, the others nothing.
pub(super) fn read_slowly(attacker: &Attacker<'_>, mut chance: Chance) {
    let giants = giants(attacker);
    hold_unread(
        attacker,
        SLOW,
        |nth| giants[nth % giants.len()].clone(),
        |line| {
            if chance.one_in(2) {
                line.sip(1);
            }
        },
    );
}

/// Many requests on each connection, with and without a token, and no reading.
pub(super) fn pipeline_without_reading(attacker: &Attacker<'_>, mut chance: Chance) {
    let giants = giants(attacker);
    let open = request("GET", "/api/v1/openapi.json", "", b"");
    let mut requests = move |nth: usize| match nth % 2 {
        0 => open.repeat(REQUESTS),
        _ => (0..REQUESTS).filter_map(|_| chance.pick(&giants)).flatten().copied().collect(),
    };
    hold_unread(attacker, PIPELINES, &mut requests, |_| ());
}

fn hold_unread(
    attacker: &Attacker<'_>,
    count: usize,
    mut requests: impl FnMut(usize) -> Vec<u8>,
    mut read: impl FnMut(&mut Line),
) {
    let mut held: Vec<Line> = Vec::new();
    let mut nth = 0;
    while attacker.goes_on() {
        held.retain(|line| !line.is_closed());
        held.iter_mut().for_each(&mut read);
        while held.len() < count && attacker.goes_on() {
            nth += 1;
            let Ok(mut line) = Line::open_narrow(attacker) else { break };
            if line.send_without_waiting(attacker, &requests(nth)).is_ok() {
                held.push(line);
            }
        }
        pause(LOOK_EVERY);
    }
}
