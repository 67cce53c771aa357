//! Small DAGs for the tests of the drawings.

use std::collections::BTreeMap;

use cis_core::dag::{Dag, Kind, More, Policy, RunIf, Task, plan::Plan};
use cis_core::id::{Scope, TaskIx};
use cis_core::task::TaskStatus;

use super::{Format, render};

/// A DAG of tasks, each an id and what it depends on.
pub(super) fn dag(tasks: &[(&str, &[&str])]) -> Dag {
    let index = |name: &str| TaskIx(tasks.iter().position(|(id, _)| *id == name).unwrap() as u32);
    numbered(
        tasks.iter().map(|(id, after)| ((*id).to_owned(), after.iter().map(|name| index(name)).collect())),
    )
}

/// The same from places.
pub(super) fn numbered(tasks: impl IntoIterator<Item = (String, Vec<TaskIx>)>) -> Dag {
    let task = |(id, mut after): (String, Vec<TaskIx>)| {
        after.sort();
        Task {
            id: id.parse().unwrap(),
            kind: Kind::Shell { command: "true".into() },
            depends_on: after.into(),
            run_if: RunIf::default(),
            priority: 0,
            idempotent: false,
            detach: false,
            debt_ignorable: false,
            more: None,
        }
    };
    Dag {
        dag_id: "sample".parse().unwrap(),
        scope: Scope::global(),
        description: None,
        target_node: None,
        priority: 0,
        policy: Policy::default(),
        max_parallel: None,
        timeout: None,
        queue_timeout: None,
        env: BTreeMap::new(),
        params: BTreeMap::new(),
        workdir: None,
        skills: BTreeMap::new(),
        tasks: tasks.into_iter().map(task).collect(),
    }
}

/// A task with a name nobody should trust.
pub(super) fn named(id: &str, name: &str) -> Dag {
    let mut dag = dag(&[(id, &[])]);
    dag.tasks[0].more = Some(Box::new(More { name: Some(name.to_owned()), ..More::default() }));
    dag
}

/// A layered graph: `layers` layers of `width` tasks, each waiting for `fan` of the layer before.
pub(super) fn wide(layers: u32, width: u32, fan: u32) -> Dag {
    numbered((0..layers * width).map(|i| {
        let (layer, place) = (i / width, i % width);
        let after = if layer == 0 {
            Vec::new()
        } else {
            let mut after: Vec<u32> = (0..fan).map(|k| (layer - 1) * width + (place + k) % width).collect();
            after.sort_unstable();
            after.dedup();
            after.into_iter().map(TaskIx).collect()
        };
        (format!("t{i}"), after)
    }))
}

/// Draws without styles.
pub(super) fn drawn(dag: &Dag, states: Option<&[TaskStatus]>, format: Format) -> String {
    let text = render(dag, &Plan::new(dag), states, format);
    if text.contains('\u{1b}') { anstream::adapter::strip_str(&text).to_string() } else { text }
}
