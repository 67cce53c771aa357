//! Connections that say nothing, that say half of it, and that come and go.

use std::time::Duration;

use super::line::{Line, request};
use super::{Attacker, breathe};
use crate::chance::Chance;
use crate::clock::pause;

/// More than a node with a usual limit of descriptors could hold.
const IDLE: usize = 1_200;
const HALF_OPEN: usize = 300;

/// So often every held connection is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// New connections at each look, at most.
const OPEN_AT_ONCE: usize = 100;

/// Keeps `count` connections open for as long as the attack lasts, and opens those anew that the node closes.
fn hold(
    attacker: &Attacker<'_>,
    count: usize,
    mut open: impl FnMut(usize) -> Option<Line>,
    mut tend: impl FnMut(&mut Line),
) {
    let mut held: Vec<Line> = Vec::new();
    let mut nth = 0;
    while attacker.goes_on() {
        held.retain(|line| !line.is_closed());
        held.iter_mut().for_each(&mut tend);
        for _ in 0..OPEN_AT_ONCE.min(count - held.len()) {
            nth += 1;
            held.extend(open(nth));
        }
        pause(LOOK_EVERY);
    }
}

/// Connections on which nothing is ever sent.
pub(super) fn hold_idle(attacker: &Attacker<'_>, _: Chance) {
    hold(attacker, IDLE, |_| Line::open(attacker).ok(), |_| ());
}

/// Requests whose head or body never ends: a byte now and then.
pub(super) fn hold_half_open(attacker: &Attacker<'_>, chance: Chance) {
    let token = &attacker.plan.agent;
    let halves = [
        "GET /api/v1/dag HTTP/1.1\r\nHost: localhost\r\nX-Filler: ".to_owned(),
        format!(
            "GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nX-Filler: "
        ),
        format!(
            "POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 8000000\r\n\r\n{{"
        ),
        format!(
            "POST /api/v1/dag/publish HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Transfer-Encoding: chunked\r\n\r\n1000\r\n{{"
        ),
        "POST /api/v1/dag/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 33000000\r\n\r\n{"
            .to_owned(),
    ];
    let open = |nth: usize| {
        let mut line = Line::open(attacker).ok()?;
        line.send(attacker, halves[nth % halves.len()].as_bytes()).ok()?;
        Some(line)
    };
    let mut chance = chance;
    hold(attacker, HALF_OPEN, open, |line| {
        if chance.one_in(25) {
            let _ = line.send_without_waiting(attacker, b" ");
        }
    });
}

/// Connects, asks for something or nothing, and is gone before the answer.
pub(super) fn reconnect(attacker: &Attacker<'_>, mut chance: Chance) {
    let plan = attacker.plan;
    while attacker.goes_on() {
        breathe();
        let Ok(mut line) = Line::open(attacker) else { continue };
        let _ = match chance.below(4) {
            0 => Ok(()),
            1 => line.send(attacker, &request("GET", "/api/v1/events", &plan.reader, b"")),
            2 => line.send(attacker, &request("GET", "/api/v1/dag?limit=1000", &plan.agent, b"")),
            _ => line.send(attacker, &request("GET", "/health", "", b"")),
        };
    }
}
