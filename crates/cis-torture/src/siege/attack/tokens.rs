//! Wrong tokens: made up, cut short, too long, of a kind that is not taken.

use super::line::{Line, request};
use super::{Attacker, breathe};
use crate::chance::Chance;

pub(super) fn guess(attacker: &Attacker<'_>, mut chance: Chance) {
    let mut kept = None;
    while attacker.goes_on() {
        breathe();
        let token = match chance.below(6) {
            0 => format!("did:cis:attacker:{:016x}", chance.bits()),
            1 => attacker.plan.agent[..attacker.plan.agent.len() - 1].to_owned(),
            2 => "x".repeat(chance.index(16_000)),
            3 => "\u{fffd}\t;=,".to_owned(),
            _ => format!("cis_{:016x}{:016x}{:016x}", chance.bits(), chance.bits(), chance.bits()),
        };
        // Now and then on a connection of its own.
        let line = kept.take().filter(|_| !chance.one_in(10)).map_or_else(|| Line::open(attacker), Ok);
        let Ok(mut line) = line else { continue };
        let asked = line.send(attacker, &request("GET", "/api/v1/whoami", &token, b""));
        if asked.and_then(|()| line.answer()).is_ok() {
            kept = Some(line);
        }
    }
}
