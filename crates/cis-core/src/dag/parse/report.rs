//! Gathers problems with their places.

use std::cell::OnceCell;

use super::tree::{Fault, Ix, Tree};
use crate::dag::problem::{Problem, ProblemCode};

/// Problems told one by one; of the rest only the number is told.
const TOLD_MAX: usize = 1_000;

/// Everything wrong with one file.
#[derive(Debug)]
pub(super) struct Report<'s> {
    source: &'s str,
    /// Byte offsets at which lines start; made when the first problem is.
    lines: OnceCell<Vec<u32>>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    untold: usize,
}

impl<'s> Report<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        Self {
            source,
            lines: OnceCell::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
            untold: 0,
        }
    }

    /// Something wrong with the value `ix`.
    pub(super) fn value(&mut self, tree: &Tree<'_>, code: ProblemCode, ix: Ix, problem: impl Into<String>) {
        self.add(tree, ix, tree.at(ix), Problem::new(code, "", problem));
    }

    /// Something wrong with the value `ix`, and what to do about it.
    pub(super) fn value_hint(
        &mut self,
        tree: &Tree<'_>,
        code: ProblemCode,
        ix: Ix,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.add(tree, ix, tree.at(ix), Problem::new(code, "", problem).hint(hint));
    }

    /// Something wrong with the key under which `ix` stands.
    pub(super) fn key(&mut self, tree: &Tree<'_>, ix: Ix, problem: Problem) {
        self.add(tree, ix, tree.key_at(ix), problem);
    }

    fn add(&mut self, tree: &Tree<'_>, ix: Ix, at: usize, mut problem: Problem) {
        if self.problems.len() >= TOLD_MAX {
            self.untold += 1;
            return;
        }
        problem.path.insert_str(0, &tree.path(ix));
        self.place(&mut problem, at);
        self.problems.push(problem);
    }

    /// Something to know about the value `ix` that stops nobody.
    pub(super) fn warn(&mut self, tree: &Tree<'_>, ix: Ix, mut problem: Problem) {
        if self.warnings.len() < TOLD_MAX {
            problem.path = tree.path(ix);
            self.place(&mut problem, tree.at(ix));
            self.warnings.push(problem);
        }
    }

    /// What stopped the reading.
    pub(super) fn fault(&mut self, fault: Fault) {
        let mut problem = Problem::new(fault.code, "", fault.problem);
        problem.hint = fault.hint;
        self.place(&mut problem, fault.at);
        self.problems.push(problem);
    }

    /// Something wrong with the file as a whole.
    pub(super) fn whole(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    pub(super) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// `line 12`, for a message that names a second place.
    pub(super) fn line_of(&self, at: usize) -> u32 {
        self.position(at).0
    }

    /// The problems and the warnings, in file order.
    pub(super) fn finish(mut self) -> (Vec<Problem>, Vec<Problem>) {
        self.problems
            .sort_by_key(|problem| (problem.line, problem.column));
        if self.untold > 0 {
            let problem = format!("and {} more problems", self.untold);
            self.problems
                .push(Problem::new(ProblemCode::BadValue, "", problem));
        }
        (self.problems, self.warnings)
    }

    fn place(&self, problem: &mut Problem, at: usize) {
        let (line, column) = self.position(at);
        (problem.line, problem.column) = (Some(line), Some(column));
    }

    /// Line and column, from 1; columns count characters.
    fn position(&self, at: usize) -> (u32, u32) {
        let at = at.min(self.source.len());
        let lines = self.lines.get_or_init(|| line_starts(self.source));
        let line = lines.partition_point(|start| *start as usize <= at).max(1);
        let start = lines.get(line - 1).map_or(0, |start| *start as usize);
        let before = self.source.as_bytes().get(start..at).unwrap_or_default();
        // Counts the bytes that begin a character.
        let column = before.iter().filter(|b| (**b).cast_signed() >= -0x40).count() + 1;
        (
            u32::try_from(line).unwrap_or(u32::MAX),
            u32::try_from(column).unwrap_or(u32::MAX),
        )
    }
}

fn line_starts(source: &str) -> Vec<u32> {
    let after = source
        .bytes()
        .enumerate()
        .filter(|(_, b)| *b == b'\n')
        .map(|(at, _)| at + 1);
    std::iter::once(0)
        .chain(after)
        .map(|at| u32::try_from(at).unwrap_or(u32::MAX))
        .collect()
}
