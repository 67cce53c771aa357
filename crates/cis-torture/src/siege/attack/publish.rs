//! Publishes without end: small definitions, large ones, new revisions, single tasks.

use serde_json::{Value, json};

use super::line::{Line, request};
use super::plan::SCOPE;
use super::{Attacker, breathe};
use crate::chance::Chance;

/// Of a large definition, most is one string.
const LARGE_BYTES: usize = 1 << 20;

/// New revisions are of this many DAGs.
const NAMES: u64 = 5;

pub(super) fn publish(attacker: &Attacker<'_>, mut chance: Chance) {
    let large = "x".repeat(LARGE_BYTES);
    let mut kept = None;
    while attacker.goes_on() {
        breathe();
        let Ok(mut line) = kept.take().map_or_else(|| Line::open(attacker), Ok) else { continue };
        let (path, body) = definition(&mut chance, &large);
        let sent =
            line.send(attacker, &request("POST", path, &attacker.plan.agent, body.to_string().as_bytes()));
        if sent.and_then(|()| line.answer()).is_ok() {
            kept = Some(line);
        }
    }
}

fn definition(chance: &mut Chance, large: &str) -> (&'static str, Value) {
    let (made_up, name) = (chance.bits(), chance.below(NAMES));
    match chance.below(50) {
        0 => (
            "/api/v1/dag/publish",
            json!({"dag_id": format!("large-{made_up:x}"), "scope": SCOPE,
                   "tasks": [{"id": "t", "type": "external", "description": large}]}),
        ),
        1..10 => (
            "/api/v1/dag/publish",
            json!({"dag_id": format!("revised-{name}"), "scope": SCOPE, "revision": true,
                   "description": format!("{made_up}"), "tasks": [{"id": "t", "command": "true"}]}),
        ),
        10..20 => (
            "/api/v1/tasks",
            json!({"id": "t", "dag_id": format!("task-{made_up:x}"), "scope": SCOPE, "input": {"n": name}}),
        ),
        _ => (
            "/api/v1/dag/publish",
            json!({"dag_id": format!("small-{made_up:x}"), "scope": SCOPE,
                   "tasks": [{"id": "t", "command": "true"}]}),
        ),
    }
}
