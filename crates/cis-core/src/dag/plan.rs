//! The graph of a DAG, both ways: who depends on whom, and in what order that lets them run.
//!
//! Edges lie in two flat lists with offsets, so a million of them cost 8 MB, and everything here is linear in
//! tasks and edges, without recursion.

use super::model::Dag;
use crate::id::TaskIx;

/// Who depends on whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    depends_on: Edges,
    dependents: Edges,
    order: Vec<TaskIx>,
}

/// For each task a slice of others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edges {
    /// One longer than there are tasks.
    offsets: Vec<u32>,
    ends: Vec<TaskIx>,
}

impl Edges {
    fn of(&self, task: TaskIx) -> &[TaskIx] {
        let range = self.offsets.get(task.index()).zip(self.offsets.get(task.index() + 1));
        range.map_or(&[], |(from, to)| &self.ends[*from as usize..*to as usize])
    }
}

impl Plan {
    /// The graph of `dag`.
    pub fn new(dag: &Dag) -> Self {
        Self::of_dependencies(dag.tasks.iter().map(|task| &*task.depends_on))
    }

    /// The graph of what each task depends on. It may have cycles; then the order leaves out what is on them or
    /// behind them.
    pub(super) fn of_dependencies<'d>(tasks: impl Iterator<Item = &'d [TaskIx]> + Clone) -> Self {
        let depends_on = forwards(tasks);
        let dependents = backwards(&depends_on);
        let order = order(&depends_on, &dependents);
        Self { depends_on, dependents, order }
    }

    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.depends_on.offsets.len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tasks that `task` waits for, in file order.
    pub fn depends_on(&self, task: TaskIx) -> &[TaskIx] {
        self.depends_on.of(task)
    }

    /// The tasks that wait for `task`, in file order.
    pub fn dependents(&self, task: TaskIx) -> &[TaskIx] {
        self.dependents.of(task)
    }

    /// How many tasks `task` waits for.
    pub fn indegree(&self, task: TaskIx) -> usize {
        self.depends_on(task).len()
    }

    /// Every task, in file order.
    pub fn tasks(&self) -> impl Iterator<Item = TaskIx> + use<> {
        (0..u32::try_from(self.len()).unwrap_or(u32::MAX)).map(TaskIx)
    }

    /// Every task after all it depends on.
    pub fn order(&self) -> &[TaskIx] {
        &self.order
    }

    /// For each task the length of the longest way to it: 0 for roots.
    pub fn layers(&self) -> Vec<u32> {
        let mut layers = vec![0; self.len()];
        for task in &self.order {
            let below = self.depends_on(*task).iter().map(|before| layers[before.index()] + 1).max();
            layers[task.index()] = below.unwrap_or(0);
        }
        layers
    }

    /// Everything `task` waits for, directly or not, in file order, without `task` itself.
    pub fn upstream(&self, task: TaskIx) -> Vec<TaskIx> {
        let mut seen = vec![false; self.len()];
        let mut found = Vec::new();
        let mut todo = vec![task];
        while let Some(waiting) = todo.pop() {
            for before in self.depends_on(waiting) {
                if !std::mem::replace(&mut seen[before.index()], true) {
                    found.push(*before);
                    todo.push(*before);
                }
            }
        }
        found.retain(|before| *before != task);
        found.sort_unstable();
        found
    }
}

fn forwards<'d>(tasks: impl Iterator<Item = &'d [TaskIx]> + Clone) -> Edges {
    let mut offsets = Vec::with_capacity(tasks.size_hint().0 + 1);
    let mut ends = Vec::with_capacity(tasks.clone().map(<[TaskIx]>::len).sum());
    offsets.push(0);
    for depends_on in tasks {
        ends.extend_from_slice(depends_on);
        offsets.push(u32::try_from(ends.len()).unwrap_or(u32::MAX));
    }
    Edges { offsets, ends }
}

fn backwards(edges: &Edges) -> Edges {
    let count = edges.offsets.len() - 1;
    let mut offsets = vec![0u32; count + 1];
    for end in &edges.ends {
        offsets[end.index() + 1] += 1;
    }
    for ix in 0..count {
        offsets[ix + 1] += offsets[ix];
    }
    let mut free = offsets.clone();
    let mut ends = vec![TaskIx(0); edges.ends.len()];
    for ix in 0..count {
        let task = TaskIx(u32::try_from(ix).unwrap_or(u32::MAX));
        for end in edges.of(task) {
            let slot = &mut free[end.index()];
            ends[*slot as usize] = task;
            *slot += 1;
        }
    }
    Edges { offsets, ends }
}

/// Kahn's order: whoever has nobody left to wait for comes next.
fn order(depends_on: &Edges, dependents: &Edges) -> Vec<TaskIx> {
    let mut left: Vec<u32> = depends_on.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let free = left.iter().enumerate().filter(|(_, left)| **left == 0);
    let mut order: Vec<TaskIx> = Vec::with_capacity(left.len());
    order.extend(free.map(|(ix, _)| TaskIx(u32::try_from(ix).unwrap_or(u32::MAX))));
    let mut next = 0;
    while let Some(task) = order.get(next).copied() {
        next += 1;
        for waiting in dependents.of(task) {
            let left = &mut left[waiting.index()];
            *left -= 1;
            if *left == 0 {
                order.push(*waiting);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(edges: &[&[u32]]) -> Plan {
        let edges: Vec<Vec<TaskIx>> =
            edges.iter().map(|before| before.iter().map(|ix| TaskIx(*ix)).collect()).collect();
        Plan::of_dependencies(edges.iter().map(Vec::as_slice))
    }

    fn ixs(tasks: impl IntoIterator<Item = TaskIx>) -> Vec<u32> {
        tasks.into_iter().map(|task| task.0).collect()
    }

    #[test]
    fn a_diamond_with_a_tail() {
        //      1
        //  0 <   > 3 - 4      5
        //      2
        let plan = plan(&[&[], &[0], &[0], &[1, 2], &[3], &[]]);
        assert_eq!(ixs(plan.dependents(TaskIx(0)).to_vec()), [1, 2]);
        assert_eq!(ixs(plan.depends_on(TaskIx(3)).to_vec()), [1, 2]);
        assert_eq!(plan.indegree(TaskIx(3)), 2);
        assert_eq!(plan.layers(), [0, 1, 1, 2, 3, 0]);
        assert_eq!(ixs(plan.upstream(TaskIx(4))), [0, 1, 2, 3]);
        assert_eq!(ixs(plan.upstream(TaskIx(5))), [0; 0]);
        assert_eq!(plan.len(), 6);
        let place: Vec<usize> =
            plan.tasks().map(|task| plan.order().iter().position(|t| *t == task).unwrap()).collect();
        for task in plan.tasks() {
            assert!(plan.depends_on(task).iter().all(|before| place[before.index()] < place[task.index()]));
        }
    }

    #[test]
    fn cycles_are_left_out_of_the_order() {
        let plan = plan(&[&[], &[2], &[1], &[2]]);
        assert_eq!(ixs(plan.order().to_vec()), [0]);
        assert_eq!(ixs(plan.upstream(TaskIx(3))), [1, 2]);
        assert_eq!(ixs(plan.upstream(TaskIx(1))), [2]);
    }

    #[test]
    fn a_long_chain_needs_no_stack() {
        let before: Vec<Vec<u32>> =
            (0..100_000u32).map(|ix| if ix == 0 { vec![] } else { vec![ix - 1] }).collect();
        let edges: Vec<&[u32]> = before.iter().map(Vec::as_slice).collect();
        let plan = plan(&edges);
        assert_eq!(plan.order().len(), 100_000);
        assert_eq!(plan.layers().last(), Some(&99_999));
        assert_eq!(plan.upstream(TaskIx(99_999)).len(), 99_999);
    }

    #[test]
    fn nothing_is_a_plan_too() {
        let plan = plan(&[]);
        assert!(plan.is_empty() && plan.order().is_empty());
        assert_eq!(plan.depends_on(TaskIx(7)), &[]);
    }
}
