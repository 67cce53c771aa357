//! `cis dag explain`: what a task will be given, and where each value comes from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cis_api::run::RunSummary;
use cis_core::dag::{Dag, Kind, Task};
use cis_core::template::is_template;
use cis_engine::select;
use cis_engine::skill::{KeptSkills, SkillPath};
use serde_json::{Value, json};

use super::find::Found;
use super::{Failure, Outcome, Setup, definition, fields, find, revision};
use crate::term::Sheet;

/// One fact about a task.
struct Fact {
    what: String,
    value: String,
    from: String,
}

/// Where a task starts, and who decided that.
struct Place {
    directory: PathBuf,
    from: &'static str,
    /// Who hands down the variables that nothing sets.
    inherits: &'static str,
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
    let pick = |dag: &Dag| Ok::<_, Failure>(select::named(dag, &[task.to_owned()])?[0].index());
    let (dag, ix, skills, place) = if definition::is_file(target) {
        let loaded = definition::load(setup, Path::new(target), skill_dirs)?;
        let (dag, ix) = (loaded.dag.clone(), pick(&loaded.dag)?);
        let place = Place::caller(fields::directory(&here, &dag, &dag.tasks[ix]), &dag, ix);
        (dag, ix, Some(SkillPath::new(loaded.skill_dirs)), place)
    } else {
        let found = find::find(setup, target, scope)?;
        let run = found.run.as_ref().filter(|_| found.named);
        let dag = Arc::new(match run {
            Some(run) => found.source.definition_of(run)?,
            None => found.meant()?,
        });
        let ix = pick(&dag)?;
        let place = Place::of_known(setup, &found, run, &dag, ix)?;
        // A node finds its own.
        let here = found.source.is_here().then(|| setup.skill_dirs(skill_dirs, &here));
        (dag, ix, here.map(SkillPath::new), place)
    };
    let task = &dag.tasks[ix];
    let skills = skills.map(|path| Skills { path, kept: KeptSkills::of(&setup.data_dir()) });
    let mut facts = what_it_runs(&dag, task, skills.as_ref());
    facts.push(fact("directory", place.directory.to_string_lossy(), place.from));
    facts.extend(how_it_runs(setup, &dag, task, skills.is_some()));
    facts.extend(environment(&dag, task, place.inherits));
    if setup.json {
        let facts: Vec<Value> = facts
            .iter()
            .map(|fact| json!({"what": fact.what, "value": fact.value, "from": fact.from}))
            .collect();
        let told = json!({"success": true, "dag_id": dag.dag_id, "task_id": task.id, "facts": facts});
        say_json!(told);
        return Ok(0);
    }
    let mut sheet = Sheet::for_stdout();
    sheet.heading(task.title());
    for Fact { what, value, from } in facts {
        // Who decided it stands beside the name: below it, only the value does.
        let head = if from.is_empty() { what } else { format!("{what} ({from})") };
        if value.is_empty() { sheet.name(&head) } else { sheet.verbatim(&head, &value) }
    }
    sheet.print();
    Ok(0)
}

impl Place {
    fn caller(directory: PathBuf, dag: &Dag, ix: usize) -> Self {
        let from = match (&dag.workdir, &dag.tasks[ix].more().workdir) {
            (_, Some(_)) => "task",
            (Some(_), None) => "DAG",
            (None, None) => "the caller's",
        };
        Self { directory, from, inherits: "inherited from the caller" }
    }

    /// Of a published DAG: the run's own directory at the node, unless it is a run that its caller started with `cis run`.
    fn of_known(
        setup: &Setup,
        found: &Found,
        run: Option<&RunSummary>,
        dag: &Dag,
        ix: usize,
    ) -> Result<Self, Failure> {
        let task = &dag.tasks[ix];
        Ok(match run {
            Some(run) if !run.at_node => {
                Self::caller(revision::task_directory(setup, &found.source, run, dag, task)?, dag, ix)
            }
            _ => {
                let name = run.map(|run| run.run_id.to_string());
                let base = revision::node_directory(setup, &found.source, name.as_deref());
                let from = if run.is_some() {
                    "the run's own"
                } else {
                    "each run's own; `cis run` uses its caller's"
                };
                Self {
                    directory: fields::directory(&base, dag, task),
                    from,
                    inherits: "as the node passes them on",
                }
            }
        })
    }
}

fn fact(what: impl Into<String>, value: impl Into<String>, from: impl Into<String>) -> Fact {
    Fact { what: what.into(), value: value.into(), from: from.into() }
}

/// Where the skills of this machine are found.
struct Skills {
    path: SkillPath,
    kept: KeptSkills,
}

fn what_it_runs(dag: &Dag, task: &Task, skills: Option<&Skills>) -> Vec<Fact> {
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
            let pinned = dag.skills.get(&call.skill).map_or("", String::as_str);
            match skills.map(|skills| skills.path.find_pinned(&call.skill, pinned, &skills.kept)) {
                None => facts.push(fact("skill tree", pinned, "confirmed with the DAG")),
                Some(Ok(skill)) => {
                    let place =
                        skill.dir.as_ref().map_or("built in".to_owned(), |dir| dir.display().to_string());
                    facts.push(fact("skill tree", skill.tree_hash.clone(), place));
                    if let Ok(argv) = skill.argv() {
                        facts.push(fact("program", argv.join(" "), "skill"));
                    }
                }
                Some(Err(e)) => facts.push(fact("skill tree", e.to_string(), "not found")),
            }
            facts.push(fact("input", call.input.to_string(), "task; stdin and CIS_INPUT"));
            facts
        }
    }
}

fn how_it_runs(setup: &Setup, dag: &Dag, task: &Task, is_here: bool) -> Vec<Fact> {
    let more = task.more();
    let mut facts = Vec::new();
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
        Some(limit) => fact("timeout", fields::exact(limit), "task"),
        None => fact("timeout", "none", "default"),
    });
    facts.push(match more.grace {
        Some(grace) => fact("grace", fields::exact(grace), "task"),
        None if is_here => fact("grace", fields::exact(setup.config.grace.value), "settings"),
        None => fact("grace", "", "the node's settings"),
    });
    if let Some(retry) = &more.retry {
        facts.push(fact(
            "retry",
            format!("up to {} times, first after {}", retry.max, fields::exact(retry.initial)),
            "task",
        ));
    }
    facts
}

/// The variables set on top of what is inherited, in the order they win.
fn environment(dag: &Dag, task: &Task, inherits: &str) -> Vec<Fact> {
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
    facts.push(fact("env (all others)", "", inherits));
    facts
}
