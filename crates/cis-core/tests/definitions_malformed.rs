//! Definitions that are refused: what is said, about which place, for more than 1,500 files.
//!
//! They are made: one fault, whose code, path and words are written down in a table, is put into a valid document, which is then wrapped in each of three ways and written in each of three formats. The expectation
//! comes from that table, never from the parser, and each file must be refused with exactly that one problem.

#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used)]

mod definitions_support;

use cis_core::dag::{Format, Problem, ProblemCode};
use definitions_support::{FORMATS, WRAPPERS, base, refused, render, wrap};
use serde_json::{Value, json};

const FAULTS: &str = include_str!("definitions_malformed_faults.txt");

#[derive(Debug)]
enum Change {
    Set(Value),
    Remove,
}

#[derive(Debug)]
struct Fault {
    /// Where in the document, as a JSON pointer.
    pointer: &'static str,
    change: Change,
    code: &'static str,
    path: &'static str,
    problem: &'static str,
}

fn faults() -> Vec<Fault> {
    let rows = FAULTS.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [pointer, change, code, path, problem] = cells[..] else { panic!("not a row: {row}") };
        let change = match change {
            "remove" => Change::Remove,
            value => Change::Set(serde_json::from_str(value).expect(row)),
        };
        Fault { pointer, change, code, path, problem }
    })
    .collect()
}

fn word(code: ProblemCode) -> String {
    format!("{code:?}")
}

fn apply(document: &mut Value, fault: &Fault) {
    let (parent, key) = fault.pointer.rsplit_once('/').unwrap();
    let parent = document.pointer_mut(parent).unwrap_or_else(|| panic!("{} is not there", fault.pointer));
    match (&fault.change, parent) {
        (Change::Set(value), Value::Object(map)) => drop(map.insert(key.to_owned(), value.clone())),
        (Change::Set(value), Value::Array(list)) => match key.parse::<usize>() {
            Ok(index) if index < list.len() => list[index] = value.clone(),
            _ => list.push(value.clone()),
        },
        (Change::Remove, Value::Object(map)) => drop(map.remove(key).unwrap()),
        (change, parent) => panic!("cannot {change:?} in {parent}"),
    }
}

/// TOML has no null.
fn can_be_written(fault: &Fault, format: Format) -> bool {
    let null = matches!(&fault.change, Change::Set(value) if value.to_string().contains("null"));
    format != Format::Toml || !null
}

fn prefixed(wrapper: &str, path: &str) -> String {
    match wrapper {
        "bare" => path.to_owned(),
        _ => format!("dag.{path}"),
    }
}

/// The line a problem names must show the key or the value it is about.
fn assert_place(text: &str, problem: &Problem, fault: &Fault, context: &str) {
    let line = problem.line.unwrap_or_else(|| panic!("no line: {context}")) as usize;
    assert!(problem.column.is_some(), "no column: {context}");
    if problem.code == ProblemCode::MissingKey {
        return;
    }
    let shown = text.lines().nth(line - 1).unwrap_or_else(|| panic!("no line {line}: {context}"));
    let last = fault.path.rsplit('.').next().unwrap();
    let needle = match (&fault.change, last.ends_with(']')) {
        (Change::Set(Value::String(value)), true) => value.clone(),
        (_, true) => return,
        _ => last.trim_matches('"').to_owned(),
    };
    let below = text.lines().nth(line.saturating_sub(2)).unwrap_or_default();
    assert!(
        shown.contains(&needle) || below.contains(&needle),
        "line {line} does not show `{needle}`: {context}"
    );
}

#[test]
fn the_document_without_fault_is_fine() {
    for wrapper in WRAPPERS {
        for format in FORMATS {
            let text = render(&wrap(wrapper, &base()), format);
            assert!(
                refused(&text, format).is_empty(),
                "{wrapper} {format:?}\n{text}\n{:?}",
                refused(&text, format)
            );
        }
    }
}

#[test]
fn each_fault_is_told_once_with_its_place_and_words() {
    let mut count = 0;
    for fault in faults() {
        let mut document = base();
        apply(&mut document, &fault);
        for wrapper in WRAPPERS {
            for format in FORMATS.into_iter().filter(|format| can_be_written(&fault, *format)) {
                let text = render(&wrap(wrapper, &document), format);
                let problems = refused(&text, format);
                let context = format!("{} {wrapper} {format:?}\n{text}\n{problems:#?}", fault.pointer);
                let [problem] = problems.as_slice() else { panic!("not one problem: {context}") };
                assert_eq!(word(problem.code), fault.code, "{context}");
                assert_eq!(problem.path, prefixed(wrapper, fault.path), "{context}");
                assert_eq!(problem.problem, fault.problem, "{context}");
                assert_place(&text, problem, &fault, &context);
                count += 1;
            }
        }
    }
    assert!(count >= 1_500, "only {count} files");
}

#[test]
fn three_faults_are_told_as_three() {
    let all = faults();
    let pick = |pointer: &str| all.iter().find(|fault| fault.pointer == pointer).unwrap();
    // Far enough apart not to touch each other.
    let triples = [
        ["/scope", "/tasks/0/timeout", "/tasks/2/depends_on/1"],
        ["/policy", "/tasks/1/command", "/tasks/3/id"],
        ["/env/1A", "/tasks/0/command", "/tasks/3/level/retry"],
        ["/max_parallel", "/tasks/0/retry/max", "/tasks/2/when"],
    ];
    for triple in triples {
        let mut document = base();
        for pointer in triple {
            apply(&mut document, pick(pointer));
        }
        for wrapper in WRAPPERS {
            for format in FORMATS {
                let text = render(&wrap(wrapper, &document), format);
                let mut told: Vec<(String, String)> = refused(&text, format)
                    .into_iter()
                    .map(|problem| (word(problem.code), problem.path))
                    .collect();
                let mut wanted: Vec<(String, String)> = triple
                    .iter()
                    .map(|pointer| (pick(pointer).code.to_owned(), prefixed(wrapper, pick(pointer).path)))
                    .collect();
                told.sort();
                wanted.sort();
                assert_eq!(told, wanted, "{wrapper} {format:?}\n{text}");
            }
        }
    }
}

#[test]
fn problems_come_in_file_order() {
    let text = "dag_id = \"a b\"\n[[tasks]]\nid = \"x\"\nfoo = 1\ncommand = \"\"\n[[tasks]]\nid = \"x\"\ncommand = \"y\"\n";
    let problems = refused(text, Format::Toml);
    let places: Vec<(Option<u32>, Option<u32>)> = problems.iter().map(|p| (p.line, p.column)).collect();
    assert_eq!(places, [(Some(1), Some(10)), (Some(4), Some(1)), (Some(5), Some(11)), (Some(7), Some(6))]);
}

#[test]
fn a_thousand_problems_are_told_and_the_rest_counted() {
    let tasks: Vec<Value> =
        (0..1_500).map(|ix| json!({"id": format!("t{ix}"), "command": "x", "zzz": 1})).collect();
    let problems = refused(&json!({"tasks": tasks}).to_string(), Format::Json);
    assert_eq!(problems.len(), 1_001);
    assert_eq!(problems[1_000].problem, "and 500 more problems");
}
