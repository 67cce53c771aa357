//! Definitions that are fine: the spellings people have, and that spelling does not change meaning.

#![allow(clippy::panic, clippy::unwrap_used)]

use cis_core::dag::{Defaults, Format, Kind, Parsed, Problem, content_hash, from_stored, parse, to_stored};

fn read(format: Format, text: &str) -> Parsed {
    let defaults = Defaults { dag_id: Some("stem".to_owned()), scope: None };
    match parse(text.as_bytes(), format, &defaults) {
        Ok(parsed) => parsed,
        Err(problems) => panic!("{text}\n{}", shown(&problems)),
    }
}

fn shown(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{:?} {problem} ({:?})\n", problem.code, problem.hint)).collect()
}

const SIMPLE_JSON: &str =
    r#"{"tasks":[{"id":"task1","name":"Task 1","skill":"echo","level":{"type":"mechanical","retry":3}}]}"#;

const TEST_PIPELINE_TOML: &str = r#"
[skill]
name = "test-pipeline"     # becomes the dag_id; without it, the file stem
version = "1.0.0"
type = "dag"
[dag]
policy = "all_success"
[dag.env]
BUILD_TYPE = "release"
[[dag.tasks]]
id = "step1"
skill = "echo"
level = { type = "mechanical", retry = 3 }
[[dag.tasks]]
id = "step2"
skill = "echo"
deps = ["step1"]
"#;

const FULL_TOML: &str = r#"
dag_id = "backup_daily"
description = "Nightly backup"
scope = "project-a"
target_node = "node-1"
priority = 2
policy = "allow_debt"
max_parallel = 8
timeout = "1h"
queue_timeout = "10m"
workdir = "work"
env = { STAGE = "prod", COUNT = 3, RATIO = 1.10, ON = true }
params = { day = "today", deep = { list = [1, 2.5, "x"] } }

[[tasks]]
id = "dump"
name = "Dump the database"
type = "shell"
command = "pg_dump app > dump.sql"
timeout = "10m"
retry = { max = 3, backoff = "exponential", initial = "1s", cap = "1m" }
idempotent = true

[[tasks]]
id = "upload"
depends_on = ["dump"]
command = "upload dump.sql --label \"$LABEL\" --format '{{.Names}}'"
env = { LABEL = "{{ params.day }}", FROM = "{{ tasks.dump.outputs.key }}" }
when = "params.day != 'never'"
debt = "ignorable"
run_if = "all_done"
detach = true
grace = 0
"#;

const FULL_JSON: &str = r#"{"dag": {
  "tasks": [
    {"retries": 3, "idempotent": true, "timeout_secs": 600, "cmd": "pg_dump app > dump.sql", "kind": "shell",
     "name": "Dump the database", "id": "dump"},
    {"grace": "0s", "detach": true, "run_if": "all_done", "debt": "ignorable", "when": "params.day != 'never'",
     "env": {"FROM": "{{ tasks.dump.outputs.key }}", "LABEL": "{{ params.day }}"},
     "skill": "shell", "command": "upload dump.sql --label \"$LABEL\" --format '{{.Names}}'", "deps": "dump", "id": "upload"}
  ],
  "params": {"deep": {"list": [1.0, 25e-1, "x"]}, "day": "today"},
  "env": {"ON": "true", "RATIO": "1.10", "COUNT": "3", "STAGE": "prod"},
  "cwd": "work", "queue_timeout_secs": 600, "timeout": 3600, "max_concurrency": 8,
  "policy": "allow_debt", "priority": 2, "target_node": "node-1", "scope": "user-b", "description": "Nightly backup", "id": "other"
}}"#;

const FULL_YAML: &str = r#"
# the same again
skill: {name: third, version: 1.0.0, type: dag, author: someone}
dag:
  description: Nightly backup
  target_node: node-1
  priority: 2
  policy: allow_debt
  max_parallel: 8
  timeout: 60m
  queue_timeout: 600.0
  workdir: work
  env: {STAGE: prod, COUNT: 3, RATIO: 1.10, ON: true}
  params:
    day: today
    deep: {list: [1, 2.5, x]}
  tasks:
    - id: dump
      name: Dump the database
      command: pg_dump app > dump.sql
      timeout: 600
      level: {type: mechanical, retry: 3}
      idempotent: true
    - id: upload
      dependencies: [dump]
      command: upload dump.sql --label "$LABEL" --format '{{.Names}}'
      env: {LABEL: "{{ params.day }}", FROM: "{{ tasks.dump.outputs.key }}"}
      when: params.day != 'never'
      debt: ignorable
      run_if: all_done
      detach: true
      grace: 0
"#;

#[test]
fn the_seeds_are_read_as_they_are() {
    let simple = read(Format::Json, SIMPLE_JSON);
    assert_eq!(simple.dag.dag_id.as_str(), "stem");
    assert_eq!(simple.dag.tasks[0].more().retry.as_ref().map(|retry| retry.max), Some(3));
    assert!(matches!(&simple.dag.tasks[0].kind, Kind::Skill(call) if call.skill == "echo"));
    assert_eq!(simple.dag.tasks[0].title(), "Task 1");

    let pipeline = read(Format::Toml, TEST_PIPELINE_TOML);
    assert_eq!(pipeline.dag.dag_id.as_str(), "test-pipeline");
    assert_eq!(pipeline.dag.env["BUILD_TYPE"], "release");
    assert_eq!(pipeline.dag.tasks[1].depends_on.len(), 1);
    assert!(!pipeline.explicit_scope);
}

#[test]
fn spelling_does_not_change_meaning() {
    let toml = read(Format::Toml, FULL_TOML);
    let json = read(Format::Json, FULL_JSON);
    let yaml = read(Format::Yaml, FULL_YAML);
    assert_eq!(content_hash(&toml.dag), content_hash(&json.dag));
    assert_eq!(content_hash(&toml.dag), content_hash(&yaml.dag));
    assert_eq!(toml.dag.tasks, json.dag.tasks);
    assert_eq!(toml.dag.tasks, yaml.dag.tasks);
    assert_eq!((toml.dag.dag_id.as_str(), toml.dag.scope.as_str()), ("backup_daily", "project-a"));
    assert_eq!((json.dag.dag_id.as_str(), json.dag.scope.as_str()), ("other", "user-b"));
    assert_eq!((yaml.dag.dag_id.as_str(), yaml.dag.scope.as_str()), ("third", "global"));
    assert!(toml.explicit_scope && !yaml.explicit_scope);
}

const QUESTIONS_TOML: &str = r#"
[[tasks]]
id = "ask"
type = "approval"
prompt = "Ship it?"
input = { region = "string", share = "number" }
timeout = "1d"
on_timeout = "skip"

[[tasks]]
id = "ship"
deps = ["ask"]
command = 'ship --to "$REGION"'
env = { REGION = "{{ tasks.ask.outputs.region }}" }
level = "confirmed"
retry = 2
"#;

#[test]
fn questions_are_part_of_the_content() {
    let dag = read(Format::Toml, QUESTIONS_TOML).dag;
    assert!(dag.tasks.iter().all(|task| task.needs_person()));
    assert_eq!(dag.tasks[1].more().retry.as_ref().map(|retry| retry.max), Some(2));
    let hash = content_hash(&dag);
    let same = QUESTIONS_TOML.replace("\"confirmed\"", "{ type = \"confirmed\" }").replace("1d", "24h");
    assert_eq!(content_hash(&read(Format::Toml, &same).dag), hash);
    for (from, to) in [
        ("\"confirmed\"", "\"mechanical\""),
        ("Ship it?", "Really?"),
        ("on_timeout = \"skip\"", "on_timeout = \"fail\""),
        ("share = \"number\"", "share = \"integer\""),
        (", share = \"number\"", ""),
    ] {
        let other = QUESTIONS_TOML.replace(from, to);
        assert_ne!(other, QUESTIONS_TOML);
        assert_ne!(content_hash(&read(Format::Toml, &other).dag), hash, "{to}");
    }
}

#[test]
fn a_hash_that_was_given_out_stays() {
    let hash = content_hash(&read(Format::Toml, FULL_TOML).dag);
    assert_eq!(hash.as_str(), "57319ea4cd41deeec5433b744c3b419b0923dd1dd4133a5079a59fd8702face9");
}

#[test]
fn what_is_stored_comes_back() {
    for (format, text) in [FULL_TOML, TEST_PIPELINE_TOML, QUESTIONS_TOML]
        .map(|text| (Format::Toml, text))
        .into_iter()
        .chain([(Format::Json, SIMPLE_JSON)])
    {
        let dag = read(format, text).dag;
        assert_eq!(from_stored(&to_stored(&dag)).unwrap(), dag);
    }
}

#[test]
fn editors_leave_their_marks() {
    let plain = read(Format::Toml, FULL_TOML).dag;
    let marked = format!("\u{feff}{}", FULL_TOML.replace('\n', "\r\n"));
    assert_eq!(read(Format::Toml, &marked).dag, plain);
    let yaml = format!("\u{feff}{}", FULL_YAML.replace('\n', "\r\n"));
    assert_eq!(read(Format::Yaml, &yaml).dag.tasks, plain.tasks);
    let json = format!("\u{feff}{}", FULL_JSON.replace('\n', "\r\n"));
    assert_eq!(read(Format::Json, &json).dag.tasks, plain.tasks);
}

#[test]
fn yaml_has_more_ways_to_write() {
    let text = "\
version: 3
tasks:
  - &first
    id: a
    command: |
      set -e
      echo 'two lines'
    env: &env {A: 007, B: 1.10, C: 0x1F, D: yes, E: ~x}
  - id: b
    command: >-
      echo
      folded
    env: *env
    depends_on:
    - a
";
    let dag = read(Format::Yaml, text).dag;
    assert!(
        matches!(&dag.tasks[0].kind, Kind::Shell { command } if &**command == "set -e\necho 'two lines'\n")
    );
    assert!(matches!(&dag.tasks[1].kind, Kind::Shell { command } if &**command == "echo folded"));
    let env: Vec<&str> = dag.tasks[1].more().env.values().map(String::as_str).collect();
    assert_eq!(env, ["007", "1.10", "31", "yes", "~x"]);
    assert_eq!(dag.tasks[0].more().env, dag.tasks[1].more().env);
}

#[test]
fn a_name_is_an_id_where_it_can_be() {
    let task = r#""tasks":[{"id":"a","command":"x"}]"#;
    let named = |extra: &str| read(Format::Json, &format!("{{{extra}{task}}}")).dag;
    assert_eq!(named(r#""name":"nightly","#).dag_id.as_str(), "nightly");
    let described = named(r#""name":"The nightly backup","#);
    assert_eq!(described.dag_id.as_str(), "stem");
    assert_eq!(described.description.as_deref(), Some("The nightly backup"));
    let both = named(r#""name":"nightly","dag_id":"n1","#);
    assert_eq!((both.dag_id.as_str(), both.description.as_deref()), ("n1", Some("nightly")));
}

#[test]
fn a_long_first_wait_is_not_cut() {
    let text = r#"{"tasks":[{"id":"a","command":"x","retry":{"max":2,"backoff":"fixed","initial":"5m"}}]}"#;
    let dag = read(Format::Json, text).dag;
    let retry = dag.tasks[0].more().retry.clone().unwrap();
    assert_eq!((retry.initial.0, retry.cap.0), (300_000, 300_000));
}

#[test]
fn no_tries_is_no_retry() {
    for retry in ["0", r#"{"max":0,"on_exit_codes":[3]}"#] {
        let text = format!(r#"{{"tasks":[{{"id":"a","command":"x","retry":{retry}}}]}}"#);
        assert_eq!(read(Format::Json, &text).dag.tasks[0].more, None);
    }
}

#[test]
fn what_is_stored_wrong_is_refused() {
    let good = to_stored(&read(Format::Json, SIMPLE_JSON).dag);
    for (from, to) in [
        ("\"id\":\"task1\"", "\"id\":\"task1\",\"depends_on\":[7]"),
        ("\"skill\":\"echo\"", "\"skill\":\"echo\",\"command\":\"x\""),
        ("\"dag_id\":\"stem\"", "\"dag_id\":\"a b\""),
        ("\"dag_id\"", "\"new_key\":1,\"dag_id\""),
        ("{", ""),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good);
        assert!(from_stored(&bad).is_err(), "{bad}");
    }
}

/// Whichever editor wrote it: a shell would trip over the rest of a line end.
#[test]
fn lines_may_end_as_they_do_elsewhere() {
    let text =
        "[[tasks]]\nid = \"a\"\ncommand = '''\nif true; then\n  echo x\nfi\n'''\nname = \"kept \\r\\n\"\n";
    let (unix, other) = (read(Format::Toml, text), read(Format::Toml, &text.replace('\n', "\r\n")));
    assert_eq!(content_hash(&unix.dag), content_hash(&other.dag));
    assert_eq!(other.dag.tasks[0].more().name.as_deref(), unix.dag.tasks[0].more().name.as_deref());
    assert!(matches!(&other.dag.tasks[0].kind, Kind::Shell { command } if !command.contains('\r')));
}
