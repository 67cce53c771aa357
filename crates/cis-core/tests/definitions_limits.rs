//! Definitions that are too large, too deep or too tangled are refused without eating memory or the stack.

#![allow(clippy::panic, clippy::unwrap_used, dead_code)]

mod definitions_support;

use cis_core::dag::Format::{self, Json, Toml, Yaml};
use cis_core::dag::ProblemCode::{self, *};
use cis_core::dag::{Defaults, parse};
use definitions_support::{FORMATS, refused};
use serde_json::json;

/// What stands in the way of `text`, as (code, path, line, column).
fn told(format: Format, text: &str) -> Vec<(ProblemCode, String, u32, u32)> {
    let problems = refused(text, format);
    assert!(!problems.is_empty(), "accepted: {text}");
    problems.into_iter().map(|p| (p.code, p.path, p.line.unwrap_or(0), p.column.unwrap_or(0))).collect()
}

fn one(format: Format, text: &str, code: ProblemCode, path: &str, line: u32, column: u32) {
    assert_eq!(
        told(format, text),
        [(code, path.to_owned(), line, column)],
        "{text}\n{:#?}",
        refused(text, format)
    );
}

#[test]
fn limits_hold() {
    let deep =
        |open: &str, close: &str, levels: usize| format!("{}1{}", open.repeat(levels), close.repeat(levels));
    for levels in [65, 1_000, 200_000] {
        assert_eq!(told(Json, &deep("[", "]", levels))[0].0, TooDeep);
        assert_eq!(told(Json, &deep("{\"a\":", "}", levels))[0].0, TooDeep);
        assert_eq!(told(Toml, &format!("a = {}", deep("[", "]", levels)))[0].0, TooDeep);
        assert_eq!(told(Toml, &format!("a = {}", deep("{a = ", "}", levels)))[0].0, TooDeep);
        assert_eq!(told(Toml, &format!("a{} = 1", ".a".repeat(levels)))[0].0, TooDeep);
        assert_eq!(told(Toml, &format!("[a{}]", ".a".repeat(levels)))[0].0, TooDeep);
        assert_eq!(told(Yaml, &deep("[", "]", levels))[0].0, TooDeep);
        assert_eq!(told(Yaml, &format!("{}a", "- ".repeat(levels)))[0].0, TooDeep);
    }
    assert_eq!(told(Json, &deep("[", "]", 64)), [(WrongType, String::new(), 1, 1)]);

    let bomb: String = (1..12)
        .map(|ix| format!("x{ix}: &x{ix} [{}]\n", vec![format!("*x{}", ix - 1); 9].join(",")))
        .collect();
    assert_eq!(told(Yaml, &format!("x0: &x0 lol\n{bomb}"))[0].0, TooDeep);

    let long = "y".repeat(1_000_000);
    for (open, close) in [("x: &x ", ""), ("? &x ", "\n: 1")] {
        let text = format!("{open}{long}{close}\nall: [{}]\n", vec!["*x"; 100].join(","));
        assert_eq!(told(Yaml, &text)[0].0, TooDeep);
    }

    for format in FORMATS {
        let problems = parse(&vec![b' '; 32 * 1024 * 1024 + 1], format, &Defaults::default()).unwrap_err();
        assert_eq!(problems[0].code, FileTooLarge);
    }

    let tasks = "{\"id\":\"a\",\"command\":\"x\"},".repeat(100_001);
    let text = format!("{{\"tasks\":[{}]}}", tasks.trim_end_matches(','));
    one(Json, &text, TooManyTasks, "tasks", 1, 10);
}

#[test]
fn too_many_edges() {
    let names: Vec<String> = (0..1_000).map(|ix| format!("t{ix}")).collect();
    let tasks: Vec<_> = names.iter().map(|name| json!({"id": name, "command": "x"})).collect();
    let more = (0..1_001).map(|ix| json!({"id": format!("u{ix}"), "command": "x", "depends_on": names}));
    let all: Vec<_> = tasks.into_iter().chain(more).collect();
    let told = told(Json, &json!({"tasks": all}).to_string());
    assert_eq!((told[0].0, told[0].1.as_str(), told.len()), (TooManyEdges, "tasks[2000].depends_on", 1));
}

#[test]
fn a_long_cycle_is_shortened() {
    let tasks: Vec<_> = (0..50_000)
        .map(|ix| json!({"id": format!("t{ix}"), "command": "x", "depends_on": [format!("t{}", (ix + 1) % 50_000)]}))
        .collect();
    let problems = refused(&json!({"tasks": tasks}).to_string(), Json);
    assert_eq!(problems.len(), 1);
    assert!(problems[0].problem.starts_with("a cycle: t0 -> t1 -> "), "{}", problems[0].problem);
    assert!(problems[0].problem.ends_with("… 49988 more … -> t0"), "{}", problems[0].problem);
}
