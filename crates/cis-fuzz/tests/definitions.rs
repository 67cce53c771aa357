//! Definitions, in every form they are read in, and what people give beside them.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use cis_core::dag::approval::check_input;
use cis_core::dag::params::filled;
use cis_core::dag::{
    Dag, Defaults, Format, InputType, Plan, Problem, canonical_json, content_hash, from_stored, parse,
    to_stored,
};
use cis_core::error::Refusal;
use cis_fuzz::{Corpus, fuzz};
use serde_json::{Map, Value};

/// Problems told one by one, and one line for the rest.
const PROBLEMS_MAX: usize = 1_001;

#[test]
fn fuzz_definitions_in_toml() {
    fuzz(&Corpus::of("definition-toml"), |text| reads(text, Format::Toml));
}

#[test]
fn fuzz_definitions_in_json() {
    fuzz(&Corpus::of("definition-json"), |text| reads(text, Format::Json));
}

#[test]
fn fuzz_definitions_in_yaml() {
    fuzz(&Corpus::of("definition-yaml"), |text| reads(text, Format::Yaml));
}

fn reads(text: &[u8], format: Format) -> bool {
    // Whatever it looks like is a format as well.
    let _ = Format::guess(text);
    let defaults = Defaults { dag_id: Some("x".to_owned()), scope: None };
    match parse(text, format, &defaults) {
        Ok(parsed) => {
            check_definition(&parsed.dag);
            // What was accepted can be worked off: no task waits for itself, whichever way round.
            assert_eq!(Plan::new(&parsed.dag).order().len(), parsed.dag.tasks.len());
            true
        }
        Err(problems) => {
            check_problems(&problems, text);
            false
        }
    }
}

/// It survives being kept, its meaning is told in one way only, and its hash is that of what is told.
fn check_definition(dag: &Dag) {
    let back = from_stored(&to_stored(dag)).unwrap();
    assert_eq!(&back, dag);
    assert_eq!(content_hash(&back), content_hash(dag));
    let canonical = canonical_json(dag);
    let value: Value = serde_json::from_str(&canonical).unwrap();
    assert_eq!(serde_json_canonicalizer::to_string(&value).unwrap(), canonical);
}

fn check_problems(problems: &[Problem], text: &[u8]) {
    assert!((1..=PROBLEMS_MAX).contains(&problems.len()), "{}", problems.len());
    let lines = text.iter().filter(|b| **b == b'\n').count() + 1;
    for problem in problems {
        assert!(!problem.problem.is_empty());
        assert!(problem.line.is_none_or(|line| (1..=lines).contains(&(line as usize))), "{problem}");
        assert!(problem.column.is_none_or(|column| column as usize <= text.len() + 1), "{problem}");
        assert!(problem.to_string().len() <= 2 * text.len() + 1_000, "longer than what it is about");
    }
}

#[test]
fn fuzz_stored_definitions() {
    fuzz(&Corpus::of("stored"), |text| {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        let Ok(dag) = from_stored(text) else { return false };
        assert_eq!(from_stored(&to_stored(&dag)).unwrap(), dag);
        assert!(Plan::new(&dag).order().len() <= dag.tasks.len());
        true
    });
}

#[test]
fn fuzz_params() {
    let text = br#"{"dag_id": "d", "params": {"day": "today", "count": 3, "deep": {}}, "tasks": [{"id": "a", "command": "true"}]}"#;
    let dag = parse(text, Format::Json, &Defaults::default()).unwrap().dag;
    fuzz(&Corpus::of("params"), |given| {
        let Ok(given) = serde_json::from_slice::<Map<String, Value>>(given) else { return false };
        match filled(&dag, &given) {
            Ok(values) => {
                assert!(dag.params.keys().eq(values.as_object().unwrap().keys()), "{values}");
                assert!(given.iter().all(|(name, value)| values[name] == *value));
                true
            }
            Err(refusal) => {
                check_places(&refusal, "params.");
                false
            }
        }
    });
}

#[test]
fn fuzz_answers_to_questions() {
    let asked: BTreeMap<String, InputType> = ["reason", "share", "count", "sure"]
        .map(str::to_owned)
        .into_iter()
        .zip(InputType::WORDS.map(|(_, kind)| kind))
        .collect();
    fuzz(&Corpus::of("approval"), |given| {
        let Ok(given) = serde_json::from_slice::<Map<String, Value>>(given) else { return false };
        match check_input(&asked, &given) {
            Ok(()) => {
                assert!(asked.keys().eq(given.keys()));
                true
            }
            Err(refusal) => {
                check_places(&refusal, "input.");
                false
            }
        }
    });
}

/// Everything wrong has its place.
fn check_places(refusal: &Refusal, prefix: &str) {
    let details = refusal.details.as_array().unwrap();
    assert!(!details.is_empty());
    assert!(details.iter().all(|one| one["path"].as_str().unwrap().starts_with(prefix)), "{refusal:?}");
}
