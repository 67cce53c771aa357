//! `cis dag validate` and `cis dag graph`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cis_core::dag::plan::Plan;
use cis_core::task::TaskStatus;
use serde_json::json;

use super::{Outcome, Setup, definition, find};
use crate::cli::GraphFormat;
use crate::graph;
use crate::term::text;

/// `cis dag validate`: every problem at once, or the content hash.
pub(super) fn validate(setup: &Setup, file: &Path, skill_dirs: &[PathBuf]) -> Outcome {
    let loaded = definition::load(setup, file, skill_dirs)?;
    let (dag, plan) = (&loaded.dag, &loaded.plan);
    let edges: usize = plan.tasks().map(|ix| plan.indegree(ix)).sum();
    if setup.json {
        let told = json!({"success": true, "dag_id": dag.dag_id, "scope": dag.scope, "tasks": plan.len(),
                          "edges": edges, "content_hash": loaded.content_hash, "warnings": loaded.warnings});
        say_json!(told);
        return Ok(0);
    }
    for warning in &loaded.warnings {
        crate::term::report::warn(&warning.to_string());
    }
    say!("{}", loaded.content_hash);
    let (tasks, edges) = (
        text::count(plan.len(), "task"),
        text::count(edges, "dependency").replace("dependencys", "dependencies"),
    );
    tell!("`{}` is fine: {tasks}, {edges}, in {}", dag.dag_id, dag.scope);
    Ok(0)
}

/// `cis dag graph`: a file as it is, or a known DAG with the states of its latest run.
pub(super) fn graph(setup: &Setup, target: &str, format: GraphFormat, scope: Option<&str>) -> Outcome {
    let (format, word) = match format {
        GraphFormat::Ascii => (graph::Format::Ascii, "ascii"),
        GraphFormat::Mermaid => (graph::Format::Mermaid, "mermaid"),
        GraphFormat::Dot => (graph::Format::Dot, "dot"),
        GraphFormat::Svg => (graph::Format::Svg, "svg"),
    };
    let (dag, states): (_, Option<Vec<TaskStatus>>) = if definition::is_file(target) {
        (definition::load(setup, Path::new(target), &[])?.dag, None)
    } else {
        let found = find::find(setup, target, scope)?;
        match &found.run {
            Some(run) => {
                let states = found.source.statuses(run)?;
                (Arc::new(found.source.definition_of(run)?), Some(states))
            }
            None => (Arc::new(found.meant()?), None),
        }
    };
    let plan = Plan::new(&dag);
    let states = states.filter(|states| states.len() == plan.len());
    let drawn = graph::render(&dag, &plan, states.as_deref(), format);
    if setup.json {
        say_json!(json!({"success": true, "dag_id": dag.dag_id, "format": word, "graph": drawn}));
    } else {
        crate::term::out::put(format_args!("{drawn}"));
    }
    Ok(0)
}
