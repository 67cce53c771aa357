//! `cis skill list`, `show` and `run`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cis_core::error::ErrorCode;
use cis_engine::skill::{KeptSkills, SkillError, SkillPath};
use serde_json::{Value, json};

use super::{Failure, Outcome, Setup, list};
use crate::cli::SkillCommand;
use crate::term::{Sheet, Table};

/// `cis skill …`.
pub(super) fn skill(setup: &Setup, command: SkillCommand) -> Outcome {
    match command {
        SkillCommand::List { skills } => list_skills(setup, &path(setup, &skills.dirs)),
        SkillCommand::Show { name, skills } => show(setup, &path(setup, &skills.dirs), &name),
        SkillCommand::Run { name, input, skills } => run(&path(setup, &skills.dirs), &name, &input),
    }
}

fn path(setup: &Setup, dirs: &[PathBuf]) -> SkillPath {
    SkillPath::new(setup.skill_dirs(dirs, &std::env::current_dir().unwrap_or_default()))
}

fn list_skills(setup: &Setup, path: &SkillPath) -> Outcome {
    let listed = path.list();
    if setup.json {
        let skills: Vec<Value> = listed
            .iter()
            .map(|listed| match &listed.skill {
                Ok(skill) => {
                    json!({"name": skill.name, "description": skill.description, "version": skill.version,
                                    "runnable": skill.argv().is_ok(), "dir": skill.dir, "tree_hash": skill.tree_hash})
                }
                Err(e) => json!({"name": listed.name, "error": e.to_string()}),
            })
            .collect();
        say_json!(json!({"success": true, "skills": skills}));
        return Ok(0);
    }
    let mut table = Table::new(&["SKILL", "VERSION", "DESCRIPTION", "WHERE"]);
    for listed in &listed {
        let (version, description, place) = match &listed.skill {
            Ok(skill) => (
                skill.version.clone().unwrap_or_default(),
                skill.description.clone().unwrap_or_default(),
                skill.dir.as_ref().map_or("built in".to_owned(), |dir| dir.display().to_string()),
            ),
            Err(e) => (String::new(), format!("broken: {e}"), String::new()),
        };
        table.row([listed.name.clone().into(), version.into(), description.into(), place.into()]);
    }
    list::print(&table);
    Ok(0)
}

fn show(setup: &Setup, path: &SkillPath, name: &str) -> Outcome {
    let skill = path.find(name)?;
    let program = skill.argv().map(|argv| argv.join(" "));
    let kept = KeptSkills::of(&setup.data_dir()).place(&skill.tree_hash).filter(|place| place.exists());
    if setup.json {
        let told = json!({"success": true, "name": skill.name, "description": skill.description,
                          "version": skill.version, "dir": skill.dir, "file": skill.file,
                          "program": program.ok(), "tree_hash": skill.tree_hash, "kept": kept});
        say_json!(told);
        return Ok(0);
    }
    // Not a table: nothing of it is cut, least of all the hash.
    let mut sheet = Sheet::for_stdout();
    let place = skill.dir.as_ref().map_or("built in".to_owned(), |dir| dir.display().to_string());
    let runs_from = match (&kept, &skill.dir) {
        (Some(kept), _) => kept.display().to_string(),
        (None, Some(_)) => {
            "a copy in the data directory, made when a DAG that names it is published".to_owned()
        }
        (None, None) => String::new(),
    };
    let facts = [
        ("name", skill.name.clone()),
        ("description", skill.description.clone().unwrap_or_default()),
        ("version", skill.version.clone().unwrap_or_default()),
        ("where", place),
        ("program", program.unwrap_or_else(|e| e.to_string())),
        ("tree hash", skill.tree_hash.clone()),
        ("runs from", runs_from),
    ];
    for (what, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
        sheet.field(what, &value);
    }
    sheet.print();
    Ok(0)
}

/// Runs a skill by itself, in the foreground, its output passed through.
fn run(path: &SkillPath, name: &str, input: &str) -> Outcome {
    let input: Value =
        serde_json::from_str(input).map_err(|e| Failure::usage(format!("`--input` is not JSON: {e}")))?;
    let skill = path.find(name)?;
    let argv = skill.argv()?;
    let text = input.to_string();
    let started = Command::new(&argv[0])
        .args(&argv[1..])
        .envs(skill.env())
        .env("CIS_TASK_NAME", name)
        .env("CIS_INPUT", &text)
        .stdin(Stdio::piped())
        .spawn();
    let failed = |e: std::io::Error| {
        Failure::new(ErrorCode::Unavailable, format!("skill `{name}` cannot be started: {e}"))
    };
    let mut child = started.map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A skill that does not read its input closes the pipe; it has CIS_INPUT as well.
        let _ = stdin.write_all(text.as_bytes());
    }
    let status = child.wait().map_err(failed)?;
    Ok(if status.success() { 0 } else { 1 })
}

impl From<SkillError> for Failure {
    fn from(e: SkillError) -> Self {
        let code = match &e {
            SkillError::NotFound { .. } => ErrorCode::NotFound,
            SkillError::Io { .. } => ErrorCode::Unavailable,
            _ => ErrorCode::ValidationFailed,
        };
        let (message, hint) = (e.to_string(), e.hint());
        let failure = Self::new(code, message);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}
