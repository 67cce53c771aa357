//! Which tasks a new run runs, carries over from an earlier one, or leaves.

use cis_core::dag::Dag;
use cis_core::dag::plan::Plan;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::TaskIx;
use cis_core::task::TaskStatus;

pub use cis_store::port::Fate;

/// How much two names must have in common for one to be suggested for the other.
const LIKENESS_MIN: f64 = 0.75;

/// The places of the tasks called `names`.
pub fn named(dag: &Dag, names: &[String]) -> Result<Vec<TaskIx>, Refusal> {
    names
        .iter()
        .map(|name| {
            let found = dag.tasks.iter().position(|task| task.id.as_str() == name);
            let ix = found.and_then(|index| u32::try_from(index).ok()).map(TaskIx);
            ix.ok_or_else(|| {
                let refusal =
                    Refusal::new(ErrorCode::NotFound, format!("`{}` has no task `{name}`", dag.dag_id));
                match nearest(name, dag.tasks.iter().map(|task| task.id.as_str())) {
                    Some(near) => refusal.hint(format!("did you mean `{near}`?")),
                    None => refusal,
                }
            })
        })
        .collect()
}

/// The candidate most like `word`, if any is.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Only `tasks`: what they depend on is carried over where it has completed before, and left out otherwise.
pub fn only(plan: &Plan, tasks: &[TaskIx], before: Option<&[TaskStatus]>) -> Vec<Fate> {
    fates(plan, before, |ix| tasks.contains(&ix))
}

/// `tasks` and everything that depends on them.
pub fn from(plan: &Plan, tasks: &[TaskIx], before: Option<&[TaskStatus]>) -> Vec<Fate> {
    let mut run = vec![false; plan.len()];
    tasks.iter().for_each(|ix| include_downstream(plan, *ix, &mut run));
    fates(plan, before, |ix| run[ix.index()])
}

/// The tasks that did not complete.
pub fn incomplete(plan: &Plan, before: &[TaskStatus]) -> Vec<TaskIx> {
    plan.tasks().filter(|ix| !completed(before, *ix)).collect()
}

/// The tasks that completed after a person had approved them.
pub fn approved(dag: &Dag, before: &[TaskStatus]) -> Vec<TaskIx> {
    let tasks = (0..).map(TaskIx).zip(&dag.tasks);
    tasks.filter(|(ix, task)| task.needs_person() && completed(before, *ix)).map(|(ix, _)| ix).collect()
}

/// `tasks` and everything that depends on them, and whatever those need that has not completed either.
pub fn rerun(plan: &Plan, tasks: &[TaskIx], before: &[TaskStatus]) -> Vec<Fate> {
    let mut run = vec![false; plan.len()];
    tasks.iter().for_each(|ix| include_downstream(plan, *ix, &mut run));
    // Against the order of the graph, so that what one task pulls in is itself looked at.
    for ix in plan.order().iter().rev() {
        if run[ix.index()] {
            for needed in plan.depends_on(*ix) {
                if !completed(before, *needed) {
                    run[needed.index()] = true;
                }
            }
        }
    }
    fates(plan, Some(before), |ix| run[ix.index()])
}

/// A run that was stopped while it was being created knows nothing of its last tasks.
fn completed(before: &[TaskStatus], ix: TaskIx) -> bool {
    before.get(ix.index()) == Some(&TaskStatus::Completed)
}

fn include_downstream(plan: &Plan, ix: TaskIx, run: &mut [bool]) {
    let mut stack = vec![ix];
    while let Some(ix) = stack.pop() {
        if !std::mem::replace(&mut run[ix.index()], true) {
            stack.extend_from_slice(plan.dependents(ix));
        }
    }
}

fn fates(plan: &Plan, before: Option<&[TaskStatus]>, runs: impl Fn(TaskIx) -> bool) -> Vec<Fate> {
    plan.tasks()
        .map(|ix| match before {
            _ if runs(ix) => Fate::Run,
            Some(before) if completed(before, ix) => Fate::Carry,
            _ => Fate::Leave,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fate::{Carry, Leave, Run};
    use TaskStatus::{Completed, Failed, Skipped};
    use cis_core::dag::parse::{Defaults, Format, parse};

    fn resume(plan: &Plan, before: &[TaskStatus]) -> Vec<Fate> {
        rerun(plan, &incomplete(plan, before), before)
    }

    /// a, b ─► c ─► d, and e alone.
    fn plan() -> Plan {
        let text = r#"{"dag_id": "x", "tasks": [
            {"id": "a", "command": "true"}, {"id": "b", "command": "true"},
            {"id": "c", "command": "true", "depends_on": ["a", "b"]},
            {"id": "d", "command": "true", "depends_on": ["c"]}, {"id": "e", "command": "true"}]}"#;
        Plan::new(&parse(text.as_bytes(), Format::Json, &Defaults::default()).unwrap().dag)
    }

    #[test]
    fn only_and_from_leave_or_carry_the_rest() {
        let c = [TaskIx(2)];
        assert_eq!(only(&plan(), &c, None), [Leave, Leave, Run, Leave, Leave]);
        assert_eq!(from(&plan(), &c, None), [Leave, Leave, Run, Run, Leave]);
        let before = [Completed, Failed, Skipped, Skipped, Completed];
        assert_eq!(from(&plan(), &c, Some(&before)), [Carry, Leave, Run, Run, Carry]);
    }

    #[test]
    fn resume_runs_what_did_not_complete_and_what_follows() {
        let before = [Completed, Failed, Skipped, Skipped, Completed];
        assert_eq!(resume(&plan(), &before), [Carry, Run, Run, Run, Carry]);
        // Completed in spite of a failure before it (`run_if`): it saw the failure, so it runs again.
        let odd = [Completed, Failed, Completed, Completed, Completed];
        assert_eq!(resume(&plan(), &odd), [Carry, Run, Run, Run, Carry]);
    }

    #[test]
    fn retry_takes_along_what_its_dependents_still_need() {
        let before = [Failed, Failed, Skipped, Skipped, Failed];
        assert_eq!(rerun(&plan(), &[TaskIx(0)], &before), [Run, Run, Run, Run, Leave]);
        assert_eq!(
            resume(&plan(), &[Completed]),
            [Carry, Run, Run, Run, Run],
            "cut short while it was created"
        );
        let done = [Completed; 5];
        assert_eq!(rerun(&plan(), &[TaskIx(2)], &done), [Carry, Carry, Run, Run, Carry]);
    }

    #[test]
    fn approved_tasks_are_approvals_and_confirmed_tasks_that_completed() {
        let text = r#"{"dag_id": "x", "tasks": [{"id": "a", "type": "approval"}, {"id": "b", "command": "true"},
            {"id": "c", "command": "true", "level": {"type": "confirmed"}}, {"id": "d", "type": "approval"}]}"#;
        let dag = parse(text.as_bytes(), Format::Json, &Defaults::default()).unwrap().dag;
        assert_eq!(approved(&dag, &[Completed, Completed, Completed, Failed]), [TaskIx(0), TaskIx(2)]);
    }
}
