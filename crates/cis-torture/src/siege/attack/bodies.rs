//! Bodies that are cheap to send and dear to read: empty objects by the million, nested without end, as large as a definition
//! may be, and larger.

use serde_json::json;

use super::line::{Line, request};
use super::plan::{RELEASE_STOCK, SCOPE};
use super::{Attacker, breathe};
use crate::chance::Chance;

const BODY_MAX: usize = 8 << 20;
const DEFINITION_MAX: usize = 32 << 20;

pub(super) fn send_giants(attacker: &Attacker<'_>, mut chance: Chance) {
    let giants = giants(attacker);
    while attacker.goes_on() {
        breathe();
        let (Ok(mut line), Some(giant)) = (Line::open(attacker), chance.pick(&giants)) else { continue };
        if line.send(attacker, giant).is_ok() {
            let _ = line.answer();
        }
    }
}

fn giants(attacker: &Attacker<'_>) -> Vec<Vec<u8>> {
    let token = &attacker.plan.agent;
    let post = |path: &str, body: Vec<u8>| request("POST", path, token, &body);
    let objects = |bytes: usize| "{},".repeat(bytes / 3);
    let task_list =
        |bytes: usize| format!(r#"{{"dag_id":"x","scope":"{SCOPE}","tasks":[{}{{}}]}}"#, objects(bytes));
    let deep = |depth: usize| format!(r#"{{"input":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    let long = json!({"dag_id": "x", "scope": SCOPE,
        "tasks": [{"id": "t", "type": "external", "description": "x".repeat(DEFINITION_MAX - 1000)}]});
    let nested = |bytes: usize| {
        let level = format!("{}1{}", r#"{"a":"#.repeat(50), "}".repeat(50));
        let values = vec![level.as_str(); bytes / (level.len() + 1)].join(",");
        format!(r#"{{"dag_id":"x","scope":"{SCOPE}","revision":true,"tasks":[{values}]}}"#)
    };
    let params = json!({"params": {"p": "x".repeat(BODY_MAX - 1000)}});
    vec![
        post("/api/v1/dag/publish", nested(12 << 20).into_bytes()),
        post(&format!("/api/v1/dag/{RELEASE_STOCK}/runs"), params.to_string().into_bytes()),
        post("/api/v1/tasks", format!(r#"{{"input":[{}{{}}]}}"#, objects(BODY_MAX - 100)).into_bytes()),
        post(
            "/api/v1/tasks/claim",
            format!(r#"{{"capabilities":[{}""]}}"#, r#""","#.repeat(2 << 20)).into_bytes(),
        ),
        post("/api/v1/dag/publish", task_list(DEFINITION_MAX - 100).into_bytes()),
        post("/api/v1/dag/publish", long.to_string().into_bytes()),
        post("/api/v1/dag/publish", "[".repeat(DEFINITION_MAX).into_bytes()),
        post("/api/v1/dag/publish", task_list(DEFINITION_MAX + 1000).into_bytes()),
        post("/api/v1/tasks", deep(1_000_000).into_bytes()),
        post("/api/v1/tasks", deep(60).into_bytes()),
        // With a wrong token, and with none: nothing of it should be read.
        request("POST", "/api/v1/dag/publish", "cis_wrong", task_list(DEFINITION_MAX - 100).as_bytes()),
        request("POST", "/api/v1/dag/publish", "", task_list(BODY_MAX).as_bytes()),
    ]
}
