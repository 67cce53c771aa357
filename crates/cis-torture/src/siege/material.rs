//! What is there before the attack: large things to ask for, and tasks to claim. The owner has confirmed all of it.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::attack::plan::{
    BIG_DEFINITION, BIG_LOG, BIG_OUTPUTS, BIG_RUN, LOG_STOCK, Material, RELEASE_STOCK, SCOPE,
};
use crate::crash::victim::Victim;
use crate::crash::wire::{Request, Wire};

/// Where the attackers may read and nothing else.
const READ_ONLY_SCOPE: &str = "project-material";

const OUTPUTS: usize = 40;
const OUTPUT_BYTES: usize = 1_000_000;
const LINES: usize = 2_000_000;
const TASKS: usize = 20_000;

/// Tasks of each stock. What the attackers can write to logs is bounded by them.
const STOCK: usize = 24;

/// Makes it.
pub(super) fn make(victim: &Victim) -> Result<Material> {
    for stock in [LOG_STOCK, RELEASE_STOCK] {
        victim.run(&json!({"dag_id": stock, "scope": SCOPE, "tasks": tasks(STOCK, stock)}))?;
    }
    let log = json!({"dag_id": BIG_LOG, "scope": READ_ONLY_SCOPE,
        "tasks": [{"id": "t", "command": format!("head -c {LINES} /dev/zero | tr '\\0' '\\n'")}]});
    let big_log = victim.run(&log)?;
    victim.wait_over(BIG_LOG)?;
    let big_definition = large_run(victim, BIG_DEFINITION, READ_ONLY_SCOPE)?;
    let status = victim.ask(&Request::get(format!("/api/v1/dag/{BIG_DEFINITION}/status")))?;
    let big_definition_version = status["version"].as_i64().context("a status without a version")?;
    large_run(victim, BIG_RUN, SCOPE)?;
    let status = victim.ask(&Request::get(format!("/api/v1/dag/{BIG_RUN}/status")))?;
    let big_run_first = status["tasks"][0]["execution_id"].as_i64().context("a status without tasks")?;
    Ok(Material {
        big_outputs: big_outputs(victim)?,
        big_log,
        big_definition,
        big_definition_version,
        big_run_first,
        big_run_tasks: TASKS as u64,
    })
}

fn tasks(count: usize, needs: &str) -> Vec<Value> {
    (0..count).map(|nth| json!({"id": format!("t{nth}"), "type": "external", "needs": [needs]})).collect()
}

fn big_outputs(victim: &Victim) -> Result<String> {
    let run = victim.run(
        &json!({"dag_id": BIG_OUTPUTS, "scope": READ_ONLY_SCOPE, "tasks": tasks(OUTPUTS, BIG_OUTPUTS)}),
    )?;
    let token = victim
        .token_for(&json!({"identity": "maker of outputs", "as": "agent", "scopes": [READ_ONLY_SCOPE]}))?;
    let mut wire = Wire::open(victim.address()?)?;
    let claim = json!({"capabilities": [BIG_OUTPUTS], "limit": OUTPUTS});
    let claimed = wire.call(&token, &Request::post("/api/v1/tasks/claim", &claim))?;
    let output = "x".repeat(OUTPUT_BYTES);
    for task in claimed.body["tasks"].as_array().into_iter().flatten() {
        let path = format!("/api/v1/tasks/{}/complete", task["execution_id"]);
        let body = json!({"fence": task["fence"], "outputs": {"large": &output}});
        let done = wire.call(&token, &Request::post(path, &body))?;
        ensure!(done.status == 200, "a large output was not taken: {}", done.body);
    }
    Ok(run)
}

/// Its first task is for a worker that never comes.
fn large_run(victim: &Victim, dag_id: &str, scope: &str) -> Result<String> {
    let mut tasks = vec![json!({"id": "t0", "type": "external", "needs": ["never-comes"]})];
    tasks.extend((1..TASKS).map(|nth| {
        json!({"id": format!("t{nth}"), "command": "true", "depends_on": [format!("t{}", nth - 1), "t0"]})
    }));
    victim.run(&json!({"dag_id": dag_id, "scope": scope, "tasks": tasks}))
}
