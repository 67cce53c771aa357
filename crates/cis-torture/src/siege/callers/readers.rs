//! Readers of lists and statuses.

use std::time::Duration;

use serde_json::Value;

use super::{Caller, Notes};
use crate::chance::Chance;
use crate::clock::pause;
use crate::crash::wire::Request;

/// Between two calls, at most.
const PAUSE_MS: u64 = 100;

/// One that `connects_anew` has a new connection for each call.
pub(in crate::siege) fn run(mut caller: Caller<'_>, connects_anew: bool, mut chance: Chance) -> Notes {
    let mut dag = None;
    while caller.course.goes_on() {
        let read = match (chance.below(6), &dag) {
            (0, _) => ("list runs", "/api/v1/runs?limit=20".to_owned()),
            (1, _) => ("whoami", "/api/v1/whoami".to_owned()),
            (2, Some(dag)) => ("why", format!("/api/v1/dag/{dag}/why")),
            (3, Some(dag)) => ("show", format!("/api/v1/dag/{dag}")),
            (4 | 5, Some(dag)) => ("status", format!("/api/v1/dag/{dag}/status")),
            _ => ("list DAGs", "/api/v1/dag?scope=global&limit=20".to_owned()),
        };
        let told = caller.call(read.0, &Request::get(read.1));
        let listed = told.as_ref().and_then(|told| told["dags"].as_array());
        if let Some(one) = listed.and_then(|dags| chance.pick(dags)) {
            dag = one["dag_id"].as_str().map(str::to_owned).or(dag);
        }
        if connects_anew || told.as_ref().is_none_or(Value::is_null) {
            caller.hang_up();
        }
        pause(Duration::from_millis(chance.below(PAUSE_MS)));
    }
    caller.notes
}
