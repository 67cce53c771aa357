//! `cis dag explain`: what a task will be given, and where each value comes from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cis_core::dag::{Dag, Kind, Task};
use cis_core::error::ErrorCode;
use cis_core::template::is_template;
use cis_engine::select;
use cis_engine::skill::SkillPath;
use serde_json::{Value, json};

use super::{Failure, Outcome, Setup, definition, find, list};
use crate::term::face::{BOLD, paint};
use crate::term::{Table, clean};

/// One fact about a task.
struct Fact {
    what: String,
    value: String,
    from: String,
}

/// `cis dag explain`.
pub(super) fn explain(
    setup: &Setup,
    target: &str,
    task: &str,
    scope: Option<&str>,
    skill_dirs: &[PathBuf],
) -> Outcome {
    let here = std::env::current_dir().unwrap_or_default();
    let (dag, dirs) = if definition::is_file(target) {
        let loaded = definition::load(setup, Path::new(target), skill_dirs)?;
        (loaded.dag, loaded.skill_dirs)
    } else {
        if setup.elsewhere()?.is_some() {
            let why = "what a task of a published DAG is given, its own node decides, and does not tell";
            return Err(
                Failure::new(ErrorCode::NotYetSupported, why).hint("`cis dag explain FILE TASK` works here")
            );
        }
        let found = find::find(setup, target, scope)?;
        (Arc::new(found.latest()?), setup.skill_dirs(skill_dirs, &here))
    };
    let ix = select::named(&dag, &[task.to_owned()])?[0];
    let task = &dag.tasks[ix.index()];
    let mut facts = what_it_runs(task, &SkillPath::new(dirs));
    facts.extend(how_it_runs(setup, &dag, task, &here));
    facts.extend(environment(&dag, task));
    if setup.json {
        let facts: Vec<Value> = facts
            .iter()
            .map(|fact| json!({"what": fact.what, "value": fact.value, "from": fact.from}))
            .collect();
        say!("{}", json!({"success": true, "dag_id": dag.dag_id, "task_id": task.id, "facts": facts}));
        return Ok(0);
    }
    say!("{}", paint(BOLD, &clean(task.title())));
    let mut table = Table::new(&["WHAT", "VALUE", "FROM"]);
    for fact in facts {
        table.row([fact.what.into(), clean(&fact.value).into_owned().into(), fact.from.into()]);
    }
    list::print(&table);
    Ok(0)
}

fn fact(what: impl Into<String>, value: impl Into<String>, from: impl Into<String>) -> Fact {
    Fact { what: what.into(), value: value.into(), from: from.into() }
}

fn what_it_runs(task: &Task, skills: &SkillPath) -> Vec<Fact> {
    match &task.kind {
        Kind::Shell { command } => vec![fact("command", command.to_string(), "/bin/sh -c")],
        Kind::External { input } => {
            let needs = task.more().needs.join(", ");
            let who = if needs.is_empty() { "anybody".to_owned() } else { format!("who has {needs}") };
            vec![fact("claimed by", who, "others, over a node"), fact("input", input.to_string(), "task")]
        }
        Kind::Approval(approval) => {
            let mut facts =
                vec![fact("question", approval.prompt.clone().unwrap_or_default(), "a person answers")];
            let asked = approval
                .input
                .iter()
                .map(|(name, kind)| fact(format!("input {name}"), kind.word(), "that person"));
            facts.extend(asked);
            facts.push(fact("on_timeout", approval.on_timeout.word(), "task"));
            facts
        }
        Kind::Skill(call) => {
            let mut facts = vec![fact("skill", call.skill.clone(), "task")];
            match skills.find(&call.skill) {
                Ok(skill) => {
                    let place =
                        skill.dir.as_ref().map_or("built in".to_owned(), |dir| dir.display().to_string());
                    facts.push(fact("skill tree", skill.tree_hash.clone(), place));
                    if let Ok(argv) = skill.argv() {
                        facts.push(fact("program", argv.join(" "), "skill"));
                    }
                }
                Err(e) => facts.push(fact("skill tree", e.to_string(), "not found")),
            }
            facts.push(fact("input", call.input.to_string(), "task; stdin and CIS_INPUT"));
            facts
        }
    }
}

fn how_it_runs(setup: &Setup, dag: &Dag, task: &Task, here: &Path) -> Vec<Fact> {
    let more = task.more();
    let dir = [dag.workdir.as_deref(), more.workdir.as_deref()]
        .into_iter()
        .flatten()
        .fold(here.to_owned(), |at, part| at.join(part));
    let from = match (&dag.workdir, &more.workdir) {
        (_, Some(_)) => "task",
        (Some(_), None) => "DAG",
        (None, None) => "the caller's",
    };
    let mut facts = vec![fact("directory", dir.display().to_string(), from)];
    let waits: Vec<&str> =
        task.depends_on.iter().map(|before| dag.tasks[before.index()].id.as_str()).collect();
    if !waits.is_empty() {
        facts.push(fact("waits for", waits.join(", "), format!("run_if = {}", task.run_if.word())));
    }
    if more.confirmed {
        facts.push(fact("level", "confirmed", "a person approves first"));
    }
    if let Some(when) = &more.when {
        facts.push(fact("when", when.clone(), "task"));
    }
    facts.push(match more.timeout {
        Some(limit) => fact("timeout", limit.to_string(), "task"),
        None => fact("timeout", "none", "default"),
    });
    facts.push(match more.grace {
        Some(grace) => fact("grace", grace.to_string(), "task"),
        None => fact("grace", setup.config.grace.value.to_string(), "settings"),
    });
    if let Some(retry) = &more.retry {
        facts.push(fact(
            "retry",
            format!("up to {} times, first after {}", retry.max, retry.initial),
            "task",
        ));
    }
    facts
}

/// The variables set on top of what is inherited, in the order they win.
fn environment(dag: &Dag, task: &Task) -> Vec<Fact> {
    let own = &task.more().env;
    let filled = |value: &str| if is_template(value) { ", filled when it starts" } else { "" };
    let from_dag = dag.env.iter().filter(|(name, _)| !own.contains_key(*name));
    let mut facts: Vec<Fact> = from_dag
        .map(|(name, value)| fact(format!("env {name}"), value.clone(), format!("DAG{}", filled(value))))
        .collect();
    facts.extend(
        own.iter().map(|(name, value)| {
            fact(format!("env {name}"), value.clone(), format!("task{}", filled(value)))
        }),
    );
    for name in [
        "CIS_DAG_ID",
        "CIS_RUN_ID",
        "CIS_RUN_NUMBER",
        "CIS_TASK_ID",
        "CIS_ATTEMPT",
        "CIS_FENCE",
        "CIS_OUTPUT",
        "CIS_DATA_DIR",
    ] {
        facts.push(fact(format!("env {name}"), "", "set by CIS"));
    }
    facts.push(fact("env (all others)", "", "inherited from the caller"));
    facts
}
