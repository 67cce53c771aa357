//! Settles what tasks say about each other: ids, dependencies, cycles, and whose outputs templates read.

use std::collections::{HashMap, VecDeque};

use super::task::{Draft, Read};
use super::tree::{Ix, Value};
use super::walk::Walk;
use super::words::nearest;
use crate::dag::plan::Plan;
use crate::dag::problem::{Problem, ProblemCode};
use crate::id::TaskIx;

/// Most dependencies in one DAG.
pub const EDGES_MAX: usize = 1_000_000;
/// Unknown dependencies for which the nearest id is looked up; each look reads every id.
const HINTS_MAX: usize = 20;
/// Tasks of a cycle that are printed.
const CYCLE_SHOWN: usize = 12;
/// Edges walked, in all, to see whether a template may read a task.
const READS_BUDGET: usize = 5_000_000;

/// What every task depends on, by index.
pub(super) struct Graph<'t> {
    pub(super) depends_on: Vec<Box<[TaskIx]>>,
    by_id: HashMap<&'t str, u32>,
    hints: usize,
}

fn ix(number: usize) -> TaskIx {
    TaskIx(u32::try_from(number).unwrap_or(u32::MAX))
}

impl<'t> Walk<'t> {
    /// Turns names into indices and checks the whole.
    pub(super) fn graph(&mut self, drafts: &[Draft<'t>], reads: &[Read]) -> Graph<'t> {
        let mut graph =
            Graph { depends_on: Vec::with_capacity(drafts.len()), by_id: self.index(drafts), hints: 0 };
        let mut edges = 0;
        for (number, draft) in drafts.iter().enumerate() {
            let depends_on = self.depends_on(&mut graph, number, draft);
            edges += depends_on.len();
            if edges > EDGES_MAX {
                let at = draft.depends_on.unwrap_or(draft.node);
                self.problem(ProblemCode::TooManyEdges, at, format!("more than {EDGES_MAX} dependencies"));
                return graph;
            }
            graph.depends_on.push(depends_on);
        }
        let plan = Plan::of_dependencies(graph.depends_on.iter().map(|before| &**before));
        if plan.order().len() < plan.len() {
            self.cycles(&plan, drafts);
        } else if !reads.is_empty() {
            self.check_reads(&plan, &mut graph, drafts, reads);
        }
        graph
    }

    fn index(&mut self, drafts: &[Draft<'t>]) -> HashMap<&'t str, u32> {
        let mut by_id: HashMap<&str, u32> = HashMap::with_capacity(drafts.len());
        for (number, draft) in drafts.iter().enumerate() {
            let Some((at, id)) = draft.id else { continue };
            let first = *by_id.entry(id).or_insert(ix(number).0) as usize;
            if first != number {
                let place = drafts[first].id.map_or(draft.node, |(at, _)| at);
                let line = self.report.line_of(self.tree.at(place));
                // By number, because a path counts its way along the list.
                let list = self.tree.parent(draft.node).map(|list| self.tree.path(list)).unwrap_or_default();
                let shown: String = id.chars().take(80).collect();
                let problem = format!("the id `{shown}` is taken by {list}[{first}] (line {line})");
                self.problem_hint(ProblemCode::DuplicateId, at, problem, "give one of them another id");
            }
        }
        by_id
    }

    /// The dependencies of one task, sorted, without repeats.
    fn depends_on(&mut self, graph: &mut Graph<'t>, number: usize, draft: &Draft<'t>) -> Box<[TaskIx]> {
        let Some(list) = draft.depends_on else {
            return Box::default();
        };
        let mut found: Vec<TaskIx> = Vec::new();
        match self.tree.value(list) {
            Value::Text(_) => found.extend(self.dependency(graph, number, list)),
            Value::List(..) => {
                let tree = self.tree;
                for item in tree.children(list) {
                    let Some(task) = self.dependency(graph, number, item) else {
                        continue;
                    };
                    found.push(task);
                }
            }
            _ => self.wrong_type(list, "a list of strings"),
        }
        let count = found.len();
        found.sort_unstable();
        found.dedup();
        if found.len() < count {
            let problem = "the same task more than once";
            let problem = Problem::new(ProblemCode::DuplicateKey, "", problem).hint("once is enough");
            self.report.warn(self.tree, list, problem);
        }
        found.into_boxed_slice()
    }

    fn dependency(&mut self, graph: &mut Graph<'t>, number: usize, at: Ix) -> Option<TaskIx> {
        let name = self.text(at)?;
        match graph.by_id.get(name) {
            Some(found) if *found as usize == number => {
                self.problem(ProblemCode::SelfDependency, at, "a task cannot depend on itself");
                None
            }
            Some(found) => Some(TaskIx(*found)),
            None => {
                let shown: String = name.chars().take(80).collect();
                let problem = format!("unknown task `{shown}`");
                graph.hints += 1;
                let near = (graph.hints <= HINTS_MAX).then(|| nearest_id(name, &graph.by_id)).flatten();
                match near {
                    Some(near) => {
                        let hint = format!("did you mean `{near}`?");
                        self.problem_hint(ProblemCode::UnknownDependency, at, problem, hint);
                    }
                    None => self.problem(ProblemCode::UnknownDependency, at, problem),
                }
                None
            }
        }
    }

    /// Reports every knot of tasks that wait for each other, once.
    fn cycles(&mut self, plan: &Plan, drafts: &[Draft<'t>]) {
        for knot in knots(plan) {
            let cycle = cycle_in(plan, &knot);
            let Some((first, second)) = cycle.first().zip(cycle.get(1)) else {
                continue;
            };
            let name = |task: &TaskIx| drafts[task.index()].id.map_or("?", |(_, id)| id);
            let mut names: Vec<&str> = cycle.iter().map(name).collect();
            let left_out = names.len().saturating_sub(CYCLE_SHOWN + 1);
            let middle = format!("… {left_out} more …");
            if left_out > 0 {
                let end = names.len() - 1;
                names.splice(CYCLE_SHOWN..end, [middle.as_str()]);
            }
            let problem = format!("a cycle: {}", names.join(" -> "));
            let draft = &drafts[first.index()];
            let second = name(second);
            let list = draft.depends_on.unwrap_or(draft.node);
            let tree = self.tree;
            let at = tree
                .children(list)
                .find(|item| matches!(tree.value(*item), Value::Text(text) if tree.str(text) == second))
                .unwrap_or(list);
            self.problem_hint(
                ProblemCode::Cycle,
                at,
                problem,
                "each waits for the next; remove one of these dependencies",
            );
        }
    }

    /// A template may only read tasks that are sure to have ended before.
    fn check_reads(&mut self, plan: &Plan, graph: &mut Graph<'t>, drafts: &[Draft<'t>], reads: &[Read]) {
        let layers = plan.layers();
        let mut seen: HashMap<usize, Vec<TaskIx>> = HashMap::new();
        let mut budget = READS_BUDGET;
        for read in reads {
            let shown: String = read.task.chars().take(80).collect();
            let Some(task) = graph.by_id.get(read.task.as_str()).map(|task| TaskIx(*task)) else {
                let problem = format!("reads the outputs of the unknown task `{shown}`");
                let problem = Problem::new(ProblemCode::BadTemplate, "", problem);
                graph.hints += 1;
                let hint = (graph.hints <= HINTS_MAX).then(|| read_hint(&read.task, &graph.by_id)).flatten();
                let problem = match hint {
                    Some(hint) => problem.hint(hint),
                    None => problem,
                };
                self.report.key(self.tree, read.at, problem);
                continue;
            };
            if read.reader >= drafts.len() {
                continue;
            }
            let reader = ix(read.reader);
            if graph.depends_on[read.reader].binary_search(&task).is_ok() {
                continue;
            }
            let earlier = layers[task.index()] < layers[read.reader];
            if earlier && !seen.contains_key(&read.reader) {
                if budget == 0 {
                    continue;
                }
                seen.clear();
                let upstream = plan.upstream(reader);
                // A walk also clears one mark per task, which counts for a fraction of an edge.
                let walked: usize = upstream.iter().map(|task| plan.indegree(*task) + 1).sum();
                budget = budget.saturating_sub(walked + plan.len() / 16 + 1);
                seen.insert(read.reader, upstream);
            }
            if !earlier
                || seen.get(&read.reader).is_none_or(|upstream| upstream.binary_search(&task).is_err())
            {
                let problem = format!("reads the outputs of `{shown}`, which may not have ended by then");
                let hint = format!("add `{shown}` to `depends_on`");
                self.problem_hint(ProblemCode::BadTemplate, read.at, problem, hint);
            }
        }
    }
}

/// What was probably meant by `tasks.name`.
fn read_hint(name: &str, by_id: &HashMap<&str, u32>) -> Option<String> {
    // `tasks.my-task` reads as `tasks.my` minus `task`.
    let dashed =
        by_id.keys().filter(|id| id.strip_prefix(name).is_some_and(|rest| rest.starts_with(['-', '.'])));
    if let Some(id) = dashed.min() {
        return Some(format!("an id with `-` or `.` in it is written tasks[\"{id}\"]"));
    }
    nearest_id(name, by_id).map(|near| format!("did you mean `{near}`?"))
}

fn nearest_id<'t>(name: &str, by_id: &HashMap<&'t str, u32>) -> Option<&'t str> {
    // In file order, so that the answer does not depend on the hash.
    let mut close: Vec<(&str, u32)> = by_id
        .iter()
        .filter(|(id, _)| id.len().abs_diff(name.len()) <= 3)
        .map(|(id, ix)| (*id, *ix))
        .collect();
    close.sort_unstable_by_key(|(_, ix)| *ix);
    nearest(name, close.into_iter().map(|(id, _)| id))
}

/// The strongly connected components of more than one task, in file order; Tarjan's algorithm with its own stack.
fn knots(plan: &Plan) -> Vec<Vec<TaskIx>> {
    const UNSEEN: u32 = u32::MAX;
    let mut number = vec![UNSEEN; plan.len()];
    let mut low = vec![0u32; plan.len()];
    let mut on_stack = vec![false; plan.len()];
    let mut stack: Vec<TaskIx> = Vec::new();
    let mut count = 0;
    let mut knots = Vec::new();
    for root in plan.tasks() {
        if number[root.index()] != UNSEEN {
            continue;
        }
        let mut calls: Vec<(TaskIx, usize)> = vec![(root, 0)];
        while let Some((task, edge)) = calls.last_mut() {
            let here = task.index();
            if *edge == 0 {
                (number[here], low[here]) = (count, count);
                count += 1;
                stack.push(*task);
                on_stack[here] = true;
            }
            if let Some(next) = plan.depends_on(*task).get(*edge) {
                *edge += 1;
                if number[next.index()] == UNSEEN {
                    calls.push((*next, 0));
                } else if on_stack[next.index()] {
                    low[here] = low[here].min(number[next.index()]);
                }
                continue;
            }
            let task = *task;
            calls.pop();
            if let Some((caller, _)) = calls.last() {
                low[caller.index()] = low[caller.index()].min(low[here]);
            }
            if low[here] == number[here] {
                let from = stack.iter().rposition(|member| *member == task).unwrap_or(0);
                let mut knot = stack.split_off(from);
                knot.iter().for_each(|member| on_stack[member.index()] = false);
                if knot.len() > 1 {
                    knot.sort_unstable();
                    knots.push(knot);
                }
            }
        }
    }
    knots.sort_unstable();
    knots
}

/// A shortest cycle through the first task of `knot`, which is sorted: `[a, b, a]`.
fn cycle_in(plan: &Plan, knot: &[TaskIx]) -> Vec<TaskIx> {
    let Some(start) = knot.first().copied() else {
        return Vec::new();
    };
    let mut came_from: HashMap<TaskIx, TaskIx> = HashMap::new();
    let mut todo = VecDeque::from([start]);
    while let Some(task) = todo.pop_front() {
        for next in plan.depends_on(task) {
            if *next == start {
                let mut cycle = vec![start, task];
                let mut here = task;
                while let Some(before) = came_from.get(&here) {
                    cycle.push(*before);
                    here = *before;
                }
                cycle.reverse();
                return cycle;
            }
            if knot.binary_search(next).is_ok() && !came_from.contains_key(next) {
                came_from.insert(*next, task);
                todo.push_back(*next);
            }
        }
    }
    Vec::new()
}
