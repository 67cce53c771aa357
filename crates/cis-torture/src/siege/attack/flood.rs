//! Every call of the table, again and again: with ids that exist and ids that do not, with bodies that fit and bodies that do not,
//! by whichever of the attackers' tokens. A call that is added to the table is called here without anything being done for it.

use cis_api::call::{CallInfo, Method};
use cis_api::calls::CALLS;
use serde_json::{Value, json};

use super::line::{Line, request};
use super::plan::{LOG_STOCK, RELEASE_STOCK, SCOPE};
use super::{Attacker, breathe};
use crate::chance::Chance;

/// Of an answer without an end.
const STREAM_BYTES: u64 = 4096;

/// Sent before any answer is read, at most.
const AT_ONCE: u64 = 8;

pub(super) fn make_every_call(attacker: &Attacker<'_>, mut chance: Chance) {
    let mut nth = chance.index(CALLS.len());
    while attacker.goes_on() {
        let Ok(mut line) = Line::open(attacker) else { continue };
        while attacker.goes_on() {
            breathe();
            nth = (nth + 1) % CALLS.len();
            let call = &CALLS[nth];
            attacker.count_call(call.name);
            let asked = ask(attacker, call, &mut chance);
            if is_stream(call) {
                let _ = line.send(attacker, &asked);
                line.drain(STREAM_BYTES);
                break;
            }
            let times = if chance.one_in(4) { AT_ONCE } else { 1 };
            let sent = line.send(attacker, &asked.repeat(usize::try_from(times).unwrap_or(1)));
            let read = sent.and_then(|()| (0..times).try_for_each(|_| line.answer().map(|_| ())));
            if read.is_err() {
                break;
            }
        }
    }
}

/// Its answer has no length.
fn is_stream(call: &CallInfo) -> bool {
    ["RunLogs", "FollowEvents", "FollowChanges", "AttachRun"].contains(&call.name)
}

fn ask(attacker: &Attacker<'_>, call: &CallInfo, chance: &mut Chance) -> Vec<u8> {
    let token = if chance.one_in(3) { &attacker.plan.reader } else { &attacker.plan.agent };
    let path: Vec<String> = call.path.split('/').map(|part| fill(attacker, part, chance)).collect();
    let mut path = path.join("/");
    if matches!(call.method, Method::Get) && chance.one_in(3) {
        path += ["?limit=1000", "?wait=1s", "?scope=project-attackers", "?nonsense=1", "?tail=10000"]
            [chance.index(5)];
    }
    let body = match call.method {
        Method::Post if chance.one_in(5) => "null".to_owned(),
        Method::Post => body(chance).to_string(),
        _ => String::new(),
    };
    let asked = request(call.method.as_str(), &path, token, body.as_bytes());
    match chance.one_in(8) {
        true => {
            let key = format!("\r\nIdempotency-Key: {:x}\r\n", chance.bits());
            String::from_utf8_lossy(&asked).replacen("\r\n", &key, 1).into_bytes()
        }
        false => asked,
    }
}

/// A part of a path, with something for what it leaves open.
fn fill(attacker: &Attacker<'_>, part: &str, chance: &mut Chance) -> String {
    let material = &attacker.plan.material;
    let one_of = |all: &[&str], chance: &mut Chance| all[chance.index(all.len())].to_owned();
    match part {
        "{id}" => one_of(&[LOG_STOCK, RELEASE_STOCK, "revised-1", "not-there"], chance),
        "{run}" => one_of(&[&material.big_outputs, &material.big_definition, "not-there"], chance),
        "{execution}" => (chance.below(100) + 1).to_string(),
        "{scope}" => SCOPE.to_owned(),
        "{task}" | "{review}" => format!("t{}", chance.below(10)),
        part => part.replace(['{', '}'], ""),
    }
}

fn body(chance: &mut Chance) -> Value {
    let fence = chance.below(1 << 40);
    match chance.below(6) {
        0 => json!({}),
        1 => json!({"fence": fence}),
        2 => json!({"fence": fence, "offset": 0, "text": "x"}),
        3 => json!({"fence": fence, "error": "x", "outputs": {"a": "x".repeat(1000)}}),
        4 => {
            json!({"dag_id": format!("flood-{fence:x}"), "scope": SCOPE, "tasks": [{"id": "t", "command": "true"}]})
        }
        _ => json!({"task": "t1", "note": "x".repeat(chance.index(10_000))}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_that_streams_is_known_as_one() {
        fn check<C: cis_api::call::Call>() {
            assert_eq!(is_stream(&CallInfo::of::<C>()), C::STREAM.is_some(), "{}", C::NAME);
        }
        macro_rules! check_all {
            ($($name:ident)*) => { $(check::<cis_api::calls::$name>();)* };
        }
        cis_api::each_call!(check_all);
    }
}
