//! Definitions at random.

#![allow(dead_code, reason = "not every test needs them")]

use cis_core::dag::{Approval, Dag, InputType, Kind, More, OnTimeout, Policy, RunIf, SkillCall, Task};
use cis_core::id::{Scope, TaskIx};
use cis_core::retry::{Backoff, Retry};
use cis_core::source::Millis;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Strings that formats like to misread; no templates, which have rules of their own.
fn text() -> impl Strategy<Value = String> {
    let misread = vec![
        "null",
        "true",
        "no",
        "~",
        "1.10",
        "007",
        "0x1F",
        "- a",
        "a: b",
        "# x",
        "2020-01-01",
        " x ",
        "|",
        "1e3",
    ];
    prop_oneof![
        "[a-zA-Z0-9 _./-]{0,20}x",
        "[ -z|}~äß漢🦀\n\t\"'\\\\:#]{0,30}x",
        prop::sample::select(misread).prop_map(str::to_owned),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        (-(1_i64 << 53)..=1 << 53).prop_map(Value::from),
        // Fractions only: a whole float is the same number as the integer, and comes back as one.
        (-1_000_000_i64..1_000_000).prop_map(|n| json!(n as f64 + 0.123_456_789)),
        text().prop_map(Value::String),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::Array),
            btree_map(text(), inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn millis() -> impl Strategy<Value = Millis> {
    (1_u64..100_000_000).prop_map(Millis)
}

prop_compose! {
    fn retry()(
        max in 1_u32..=1_000, fixed in any::<bool>(), initial in 0_u64..10_000, longer in 0_u64..100_000,
        jitter in any::<bool>(), codes in proptest::collection::btree_set(1_i32..256, 0..4),
    ) -> Retry {
        let backoff = if fixed { Backoff::Fixed } else { Backoff::Exponential };
        let on_exit_codes = codes.into_iter().collect();
        Retry { max, backoff, initial: Millis(initial), cap: Millis(initial + longer), jitter, on_exit_codes }
    }
}

prop_compose! {
    fn more()(
        name in option::of(text()), description in option::of(text()), when in option::of(Just("dag.id == 'x'".to_owned())),
        retry in option::of(retry()), timeout in option::of(millis()), queue_timeout in option::of(millis()),
        grace in option::of(millis()), confirmed in prop::bool::weighted(0.2), env in btree_map("[A-BD-Z][A-Z0-9_]{0,6}", text(), 0..3),
        workdir in option::of("[a-z/]{1,9}"), target_node in option::of("[a-z]{1,9}"),
    ) -> More {
        let needs = Vec::new();
        More { name, description, when, confirmed, retry, timeout, queue_timeout, grace, env, workdir, target_node, needs }
    }
}

/// What belongs to processes has no place on a question.
fn ask(task: &mut Task, mut approval: Approval) {
    let more = task.more.take().map(|more| *more).unwrap_or_default();
    let More { name, description, when, timeout, .. } = more;
    if timeout.is_none() {
        approval.on_timeout = OnTimeout::Fail;
    }
    let more = More { name, description, when, timeout, ..More::default() };
    task.more = (more != More::default()).then(|| Box::new(more));
    (task.idempotent, task.detach, task.kind) = (false, false, Kind::Approval(Box::new(approval)));
}

prop_compose! {
    fn approval()(
        prompt in option::of(text()), input in btree_map("[a-z]{1,6}", prop::sample::select(InputType::WORDS.to_vec()), 0..3),
        on_timeout in prop::sample::select(OnTimeout::WORDS.to_vec()),
    ) -> Approval {
        let input = input.into_iter().map(|(name, kind)| (name, kind.1)).collect();
        let mut approval = Approval { prompt, input, on_timeout: on_timeout.1 };
        if approval.on_timeout == OnTimeout::Approve {
            approval.input.clear();
        }
        approval
    }
}

prop_compose! {
    fn task()(
        kind in 0..3_u8, command in text(), needs in btree_set("[a-z]{1,5}", 0..3), approval in option::weighted(0.2, approval()), skill in "[a-z]{3,9}x", input in option::of(value()),
        run_if in prop::sample::select(RunIf::WORDS.to_vec()), priority in -5_i32..5, idempotent in any::<bool>(),
        detach in any::<bool>(), debt_ignorable in any::<bool>(), mut more in more(),
    ) -> Task {
        let input = input.unwrap_or_default();
        let external = kind == 2;
        let kind = match kind {
            0 => Kind::Shell { command: command.into() },
            1 => Kind::Skill(Box::new(SkillCall { skill, input })),
            _ => Kind::External { input: Box::new(input) },
        };
        let detach = detach && !external;
        if external {
            more = More { needs: needs.into_iter().collect(), env: Default::default(), workdir: None, grace: None, ..more };
        }
        let more = (more != More::default()).then(|| Box::new(more));
        let mut task = Task {
            id: "later".parse().unwrap(), kind, depends_on: Box::default(), run_if: run_if.1, priority, idempotent, detach,
            debt_ignorable, more,
        };
        if let Some(approval) = approval {
            ask(&mut task, approval);
        }
        task
    }
}

prop_compose! {
    pub(crate) fn dag()(
        description in option::of(text()), target_node in option::of("[a-z]{1,9}"), priority in -5_i32..5,
        policy in prop::sample::select(Policy::WORDS.to_vec()), max_parallel in option::of(1_u32..99),
        timeout in option::of(millis()), queue_timeout in option::of(millis()),
        env in btree_map("[A-BD-Z][A-Z0-9_]{0,6}", text(), 0..3), params in btree_map(text(), value(), 0..4),
        workdir in option::of("[a-z/]{1,9}"), mut tasks in vec(task(), 1..6), edges in vec((0_u32..6, 0_u32..6), 0..8),
    ) -> Dag {
        for (ix, task) in tasks.iter_mut().enumerate() {
            task.id = format!("t-{ix}").parse().unwrap();
            let before = edges.iter().filter(|(from, to)| *to as usize == ix && from < to).map(|(from, _)| TaskIx(*from));
            let before: std::collections::BTreeSet<TaskIx> = before.collect();
            task.depends_on = before.into_iter().collect();
        }
        Dag {
            dag_id: "any".parse().unwrap(), scope: Scope::global(), description, target_node, priority, policy: policy.1,
            max_parallel, timeout, queue_timeout, env, params, workdir, skills: Default::default(), tasks,
        }
    }
}
