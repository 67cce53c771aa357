//! Any definition, written in any format and with any spelling, means and hashes the same.

#![allow(clippy::unwrap_used, dead_code)]

mod definitions_support;

use cis_core::dag::{
    Dag, Defaults, Kind, OnTimeout, Policy, RunIf, Task, canonical_json, content_hash, from_stored, parse,
    to_stored,
};
use cis_core::retry::{Backoff, Retry};
use cis_core::source::Millis;
use definitions_support::random::dag;
use definitions_support::{FORMATS, WRAPPERS, render, wrap};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// One of several spellings, chosen by the next bit of `coins`.
struct Spelling {
    coins: u64,
}

impl Spelling {
    fn pick<'w>(&mut self, words: &[&'w str]) -> &'w str {
        self.coins = self.coins.rotate_left(7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        words[(self.coins >> 33) as usize % words.len()]
    }

    fn flip(&mut self) -> bool {
        self.pick(&["", "x"]).is_empty()
    }

    /// A duration, and the key that goes with the way it is written.
    fn span(&mut self, map: &mut Map<String, Value>, key: &str, span: Option<Millis>) {
        let Some(Millis(ms)) = span else { return };
        let (key, value) = match self.pick(&["ms", "number", "parts", "secs"]) {
            "ms" => (key.to_owned(), json!(format!("{ms}ms"))),
            "parts" => (key.to_owned(), json!(format!("{}m{}ms", ms / 60_000, ms % 60_000))),
            "secs" if key.ends_with("timeout") => (format!("{key}_secs"), json!(ms as f64 / 1000.0)),
            _ => (key.to_owned(), json!(ms as f64 / 1000.0)),
        };
        map.insert(key, value);
    }

    fn dag(&mut self, dag: &Dag) -> Value {
        let mut map = Map::new();
        put(&mut map, "description", &dag.description);
        put(&mut map, "target_node", &dag.target_node);
        put(&mut map, self.pick(&["workdir", "cwd", "dir", "working_dir"]), &dag.workdir);
        put(&mut map, self.pick(&["max_parallel", "max_concurrency"]), &dag.max_parallel);
        self.default(&mut map, "priority", json!(dag.priority), dag.priority == 0);
        self.default(&mut map, "policy", json!(dag.policy.word()), dag.policy == Policy::default());
        self.span(&mut map, "timeout", dag.timeout);
        self.span(&mut map, "queue_timeout", dag.queue_timeout);
        self.default(&mut map, "env", json!(dag.env), dag.env.is_empty());
        self.default(&mut map, "params", json!(dag.params), dag.params.is_empty());
        let tasks = dag.tasks.iter().map(|task| self.task(task, dag)).collect();
        map.insert("tasks".to_owned(), Value::Array(tasks));
        Value::Object(map)
    }

    /// A default may be written or left out.
    fn default(&mut self, map: &mut Map<String, Value>, key: &str, value: Value, is_default: bool) {
        if !is_default || self.flip() {
            map.insert(key.to_owned(), value);
        }
    }

    fn task(&mut self, task: &Task, dag: &Dag) -> Value {
        let more = task.more();
        let mut map = Map::new();
        map.insert("id".to_owned(), json!(task.id.as_str()));
        match &task.kind {
            Kind::Shell { command } => {
                map.insert(self.pick(&["command", "cmd"]).to_owned(), json!(**command));
                match self.pick(&["none", "type", "skill"]) {
                    "type" => drop(map.insert(self.pick(&["type", "kind"]).to_owned(), json!("shell"))),
                    "skill" => {
                        drop(map.insert("skill".to_owned(), json!(self.pick(&["shell", "shell-exec"]))))
                    }
                    _ => {}
                }
            }
            Kind::External { input } => {
                map.insert(self.pick(&["type", "kind"]).to_owned(), json!("external"));
                if !input.is_null() {
                    map.insert(self.pick(&["input", "params", "with"]).to_owned(), (**input).clone());
                }
            }
            Kind::Approval(approval) => {
                map.insert(self.pick(&["type", "kind"]).to_owned(), json!("approval"));
                put(&mut map, "prompt", &approval.prompt);
                let input: Map<String, Value> =
                    approval.input.iter().map(|(name, kind)| (name.clone(), json!(kind.word()))).collect();
                self.default(&mut map, "input", json!(input), input.is_empty());
                let unsaid = approval.on_timeout == OnTimeout::Fail;
                if more.timeout.is_some() {
                    self.default(&mut map, "on_timeout", json!(approval.on_timeout.word()), unsaid);
                }
            }
            Kind::Skill(call) => {
                map.insert("skill".to_owned(), json!(call.skill));
                self.default(&mut map, "type", json!("skill"), true);
                if !call.input.is_null() {
                    map.insert(self.pick(&["input", "params", "with"]).to_owned(), call.input.clone());
                }
            }
        }
        let is_question = matches!(task.kind, Kind::Approval(_));
        let mut before: Vec<&str> =
            task.depends_on.iter().map(|ix| dag.tasks[ix.index()].id.as_str()).collect();
        if self.flip() {
            before.reverse();
        }
        let key = self.pick(&["depends_on", "deps", "dependencies"]);
        let value = if before.len() == 1 && self.flip() { json!(before[0]) } else { json!(before) };
        self.default(&mut map, key, value, before.is_empty());
        self.default(&mut map, "run_if", json!(task.run_if.word()), task.run_if == RunIf::default());
        self.default(&mut map, "priority", json!(task.priority), task.priority == 0);
        if !is_question {
            self.for_processes(&mut map, task);
        }
        let debt = if task.debt_ignorable { "ignorable" } else { "blocking" };
        self.default(&mut map, "debt", json!(debt), !task.debt_ignorable);
        put(&mut map, "name", &more.name);
        put(&mut map, "description", &more.description);
        put(&mut map, "when", &more.when);
        put(&mut map, self.pick(&["workdir", "cwd"]), &more.workdir);
        put(&mut map, "target_node", &more.target_node);
        if !more.needs.is_empty() {
            let needs = more.needs.iter().rev().chain(&more.needs).collect::<Vec<_>>();
            map.insert("needs".to_owned(), json!(needs));
        }
        self.span(&mut map, "timeout", more.timeout);
        self.span(&mut map, "queue_timeout", more.queue_timeout);
        self.span(&mut map, "grace", more.grace);
        Value::Object(map)
    }

    fn for_processes(&mut self, map: &mut Map<String, Value>, task: &Task) {
        let more = task.more();
        self.default(map, "idempotent", json!(task.idempotent), !task.idempotent);
        self.default(map, "detach", json!(task.detach), !task.detach);
        self.default(map, "env", json!(more.env), more.env.is_empty());
        if more.confirmed {
            let level = if self.flip() { json!("confirmed") } else { json!({"type": "confirmed"}) };
            map.insert("level".to_owned(), level);
        }
        self.retry(map, more.retry.as_ref());
    }

    fn retry(&mut self, map: &mut Map<String, Value>, retry: Option<&Retry>) {
        let Some(retry) = retry else {
            return self.default(map, "retry", json!(0), true);
        };
        if *retry == (Retry { max: retry.max, ..Retry::default() }) && self.flip() {
            match self.pick(&["retry", "retries", "level"]) {
                "level" if !map.contains_key("level") => {
                    map.insert("level".to_owned(), json!({"type": "mechanical", "retry": retry.max}))
                }
                "level" => map.insert("retry".to_owned(), json!(retry.max)),
                key => map.insert(key.to_owned(), json!(retry.max)),
            };
            return;
        }
        let mut table = Map::new();
        table.insert("max".to_owned(), json!(retry.max));
        let backoff = if retry.backoff == Backoff::Fixed { "fixed" } else { "exponential" };
        self.default(&mut table, "backoff", json!(backoff), retry.backoff == Backoff::default());
        self.default(&mut table, "jitter", json!(retry.jitter), retry.jitter);
        self.span(&mut table, "initial", Some(retry.initial));
        self.span(&mut table, "cap", Some(retry.cap));
        self.default(&mut table, "on_exit_codes", json!(retry.on_exit_codes), retry.on_exit_codes.is_empty());
        map.insert("retry".to_owned(), Value::Object(table));
    }
}

fn put<T: serde::Serialize>(map: &mut Map<String, Value>, key: &str, value: &Option<T>) {
    if let Some(value) = value {
        map.insert(key.to_owned(), json!(value));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_spelling_means_the_same(dag in dag(), coins in any::<u64>()) {
        let hash = content_hash(&dag);
        let mut spelling = Spelling { coins };
        for format in FORMATS {
            let wrapper = spelling.pick(&WRAPPERS);
            let text = render(&wrap(wrapper, &spelling.dag(&dag)), format);
            let defaults = Defaults { dag_id: Some("any".to_owned()), scope: None };
            let parsed = parse(text.as_bytes(), format, &defaults);
            prop_assert!(parsed.is_ok(), "{:?}\n{}\n{:#?}", format, text, parsed.err());
            let parsed = parsed.unwrap();
            prop_assert_eq!(&parsed.dag, &dag, "{:?}\n{}", format, text);
            prop_assert_eq!(content_hash(&parsed.dag), hash.clone());
        }
    }

    #[test]
    fn canonical_text_is_canonical(dag in dag()) {
        let text = canonical_json(&dag);
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(serde_json_canonicalizer::to_string(&value).unwrap(), text);
    }

    #[test]
    fn what_is_stored_comes_back(dag in dag()) {
        prop_assert_eq!(from_stored(&to_stored(&dag)).unwrap(), dag);
    }
}
