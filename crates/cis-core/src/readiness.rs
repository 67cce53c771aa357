//! When a task's dependencies let it go, and what its own end means to the tasks that depend on it.

use crate::dag::RunIf;
use crate::task::TaskStatus;

/// What the end of one dependency means to a dependent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impact {
    /// It completed, or it chose not to run: go on.
    Fine,
    /// It failed, timed out or was cancelled.
    Failed,
    /// It was skipped because of a failure before it.
    Blocked,
}

/// Why a task was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// Its own `when`, its own `run_if` with nothing gone wrong, or the caller's selection: dependents go on.
    ByChoice,
    /// Something before it went wrong.
    ByFailure,
}

/// How a task's dependencies ended, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dependencies {
    pub left: u32,
    pub failed: u32,
    pub blocked: u32,
}

/// What follows once no dependency is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Wait,
    Go,
    Skip(Skip),
}

/// What `status` (with `skip` if it is `Skipped`) means to dependents.
pub fn impact(status: TaskStatus, skip: Option<Skip>) -> Impact {
    match (status, skip) {
        (TaskStatus::Completed, _) | (TaskStatus::Skipped, Some(Skip::ByChoice)) => Impact::Fine,
        (TaskStatus::Skipped, _) => Impact::Blocked,
        _ => Impact::Failed,
    }
}

/// May a task go, given its rule and how its dependencies ended?
pub fn verdict(rule: RunIf, deps: Dependencies) -> Verdict {
    if deps.left > 0 {
        return Verdict::Wait;
    }
    let go = match rule {
        RunIf::AllSuccess => deps.failed == 0 && deps.blocked == 0,
        RunIf::AllDone => true,
        RunIf::OneFailed => deps.failed > 0,
        RunIf::NoneFailed => deps.failed == 0,
    };
    match (go, deps.failed + deps.blocked) {
        (true, _) => Verdict::Go,
        (false, 0) => Verdict::Skip(Skip::ByChoice),
        (false, _) => Verdict::Skip(Skip::ByFailure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(failed: u32, blocked: u32) -> Dependencies {
        Dependencies { left: 0, failed, blocked }
    }

    #[test]
    fn rules_read_as_they_are_named() {
        use super::Skip::{ByChoice, ByFailure};
        use super::Verdict::{Go, Skip};
        let rows = [
            (RunIf::AllSuccess, [Go, Skip(ByFailure), Skip(ByFailure)]),
            (RunIf::AllDone, [Go, Go, Go]),
            (RunIf::OneFailed, [Skip(ByChoice), Go, Skip(ByFailure)]),
            (RunIf::NoneFailed, [Go, Skip(ByFailure), Go]),
        ];
        for (rule, expected) in rows {
            let got = [ended(0, 0), ended(1, 0), ended(0, 1)].map(|deps| verdict(rule, deps));
            assert_eq!(got, expected, "{rule:?}");
        }
        assert_eq!(verdict(RunIf::AllDone, Dependencies { left: 1, failed: 1, blocked: 0 }), Verdict::Wait);
    }

    #[test]
    fn a_chosen_skip_is_fine_a_caused_one_blocks() {
        assert_eq!(impact(TaskStatus::Skipped, Some(Skip::ByChoice)), Impact::Fine);
        assert_eq!(impact(TaskStatus::Skipped, Some(Skip::ByFailure)), Impact::Blocked);
        assert_eq!(impact(TaskStatus::Cancelled, None), Impact::Failed);
    }
}
