//! Files that people write and programs leave: settings, skills, outputs, surroundings.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::fs;

use cis::config::{Config, ConfigError, Flags, Surroundings};
use cis_core::dag::Problem;
use cis_engine::context::Context;
use cis_engine::report::parse_outputs;
use cis_engine::skill::{SkillError, SkillPath};
use cis_fuzz::{Corpus, fuzz};
use cis_store::Durability;
use support::{dir, put};

#[test]
fn fuzz_settings() {
    let dir = dir();
    let file = dir.path().join("config.toml");
    let flags = Flags { config: Some(file.clone()), ..Flags::default() };
    let around = Surroundings { cores: 2, ..Surroundings::default() };
    fuzz(&Corpus::of("config"), |text| {
        put(&file, text);
        match Config::load(&flags, &around) {
            Ok(config) => {
                assert!(config.slots.value > 0 && config.rate.value > 0);
                true
            }
            Err(ConfigError::Invalid { problems, .. }) => {
                check_problems(&problems, text);
                false
            }
            Err(ConfigError::Unreadable { .. }) => {
                assert!(std::str::from_utf8(text).is_err());
                false
            }
            Err(other) => panic!("{other}"),
        }
    });
}

/// What is wrong in a file has its line in it.
fn check_problems(problems: &[Problem], text: &[u8]) {
    let lines = text.iter().filter(|b| **b == b'\n').count() + 1;
    assert!(!problems.is_empty());
    for problem in problems {
        assert!(problem.line.is_some_and(|line| (1..=lines).contains(&(line as usize))), "{problem}");
        assert!(!problem.problem.is_empty());
    }
}

#[test]
fn fuzz_skill_front_matter() {
    skills("front-matter", "SKILL.md");
}

#[test]
fn fuzz_older_skill_files() {
    skills("skill-toml", "skill.toml");
}

fn skills(target: &'static str, file: &str) {
    let dir = dir();
    let home = dir.path().join("greet");
    fs::create_dir(&home).unwrap();
    let path = SkillPath::new([dir.path().to_owned()]);
    fuzz(&Corpus::of(target), |text| {
        put(&home.join(file), text);
        match path.find("greet") {
            Ok(skill) => {
                assert_eq!(skill.name, "greet");
                assert!(skill.argv().is_err() || !skill.argv().unwrap().is_empty());
                // Found by its name or by its whole path, never by where its caller happens to stand.
                let program = skill.program.iter().flatten().next();
                assert!(program.is_none_or(|program| program.starts_with('/') || !program.contains('/')));
                true
            }
            Err(error @ SkillError::Invalid { .. }) => {
                assert!(error.to_string().contains("greet"), "{error}");
                false
            }
            Err(other) => panic!("{other}"),
        }
    });
}

#[test]
fn fuzz_outputs() {
    fuzz(&Corpus::of("outputs"), |text| {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        match parse_outputs(text) {
            Ok(values) => {
                // As JSON it says the same.
                let again = parse_outputs(&serde_json::to_string(&values).unwrap());
                assert_eq!(again, Ok(values));
                true
            }
            Err(why) => {
                assert!(why.contains(" line "), "{why}");
                false
            }
        }
    });
}

#[test]
fn fuzz_surroundings() {
    let dir = dir();
    let (file, again) = (dir.path().join("1.json"), dir.path().join("2.json"));
    fuzz(&Corpus::of("surroundings"), |text| {
        put(&file, text);
        let Ok(context) = Context::load(&file) else { return false };
        let _ = fs::remove_file(&again);
        context.save(&again, Durability::Process).unwrap();
        let back = Context::load(&again).unwrap();
        assert_eq!((back.env, back.cwd, back.skill_dirs), (context.env, context.cwd, context.skill_dirs));
        true
    });
}
