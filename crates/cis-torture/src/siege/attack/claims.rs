//! Claims tasks, and gives them back: with ten megabytes of log each, or at once and by the hundred.

use serde_json::{Value, json};

use super::line::{Line, request};
use super::plan::{RELEASE_STOCK, SCOPE};
use super::{Attacker, breathe};
use crate::chance::Chance;

const PIECE: usize = 5 << 20;
const PIECES: usize = 2;

/// A task that is held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) execution: i64,
    pub(super) fence: i64,
}

impl Held {
    /// A request about it.
    pub(super) fn request(self, attacker: &Attacker<'_>, what: &str, more: Value) -> Vec<u8> {
        let mut body = more;
        body["fence"] = json!(self.fence);
        let path = format!("/api/v1/tasks/{}/{what}", self.execution);
        request("POST", &path, &attacker.plan.agent, body.to_string().as_bytes())
    }
}

/// Claims up to `limit` tasks of one stock.
pub(super) fn claim(attacker: &Attacker<'_>, line: &mut Line, stock: &str, limit: u32) -> Option<Vec<Held>> {
    let body = json!({"capabilities": [stock], "scopes": [SCOPE], "limit": limit, "lease_secs": 600});
    let asked = request("POST", "/api/v1/tasks/claim", &attacker.plan.agent, body.to_string().as_bytes());
    line.send(attacker, &asked).ok()?;
    let (_, answer) = line.answer().ok()?;
    let answer: Value = serde_json::from_slice(&answer).ok()?;
    let held = |task: &Value| {
        Some(Held { execution: task["execution_id"].as_i64()?, fence: task["fence"].as_i64()? })
    };
    Some(answer["tasks"].as_array()?.iter().filter_map(held).collect())
}

pub(super) fn claim_and_release(attacker: &Attacker<'_>, mut chance: Chance) {
    let text = "x".repeat(PIECE);
    while attacker.goes_on() {
        let Ok(mut line) = Line::open(attacker) else { continue };
        while attacker.goes_on() {
            breathe();
            let limit = if chance.one_in(4) { 100 } else { 1 };
            let Some(held) = claim(attacker, &mut line, RELEASE_STOCK, limit) else { break };
            let writes = chance.one_in(3);
            let requests = held.iter().flat_map(|held| {
                let pieces = if writes { PIECES } else { 0 };
                let log = (0..pieces).map(|nth| json!({"offset": nth * PIECE, "text": &text}));
                let log = log.map(|piece| held.request(attacker, "log", piece));
                log.chain([held.request(attacker, "release", json!({}))]).collect::<Vec<_>>()
            });
            let done = requests
                .into_iter()
                .all(|request| line.send(attacker, &request).and_then(|()| line.answer()).is_ok());
            if !done {
                break;
            }
        }
    }
}

/// Sent before any answer is read.
const REPORTS_AT_ONCE: usize = 16;

/// Reports on tasks of a large run that it does not hold, each to be refused.
pub(super) fn report_wrongly(attacker: &Attacker<'_>, mut chance: Chance) {
    let material = &attacker.plan.material;
    while attacker.goes_on() {
        let Ok(mut line) = Line::open(attacker) else { continue };
        let mut answered = true;
        while attacker.goes_on() && answered {
            breathe();
            let what = ["heartbeat", "complete", "release", "progress"][chance.index(4)];
            let nth = chance.below(material.big_run_tasks).cast_signed();
            let held = Held { execution: material.big_run_first + nth, fence: 1 };
            let reports = held.request(attacker, what, json!({})).repeat(REPORTS_AT_ONCE);
            let sent = line.send(attacker, &reports);
            answered =
                sent.and_then(|()| (0..REPORTS_AT_ONCE).try_for_each(|_| line.answer().map(drop))).is_ok();
        }
    }
}
