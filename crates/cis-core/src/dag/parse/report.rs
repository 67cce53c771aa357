//! Gathers problems with their places.

use std::cell::{Cell, OnceCell};

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
    /// The last place asked for and its column. Places come mostly in file order, so a file of one long line is
    /// read once and not once for each problem.
    last: Cell<(usize, u32)>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    untold: usize,
}

impl<'s> Report<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        Self {
            source,
            lines: OnceCell::new(),
            last: Cell::new((0, 1)),
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
        if self.is_full() {
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

    /// Will a further problem only be counted?
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() >= TOLD_MAX
    }

    /// `line 12`, for a message that names a second place.
    pub(super) fn line_of(&self, at: usize) -> u32 {
        u32::try_from(self.line_and_start(at).0).unwrap_or(u32::MAX)
    }

    /// The problems and the warnings, in file order.
    pub(super) fn finish(mut self) -> (Vec<Problem>, Vec<Problem>) {
        self.problems.sort_by_key(|problem| (problem.line, problem.column));
        if self.untold > 0 {
            let problem = format!("and {} more problems", self.untold);
            self.problems.push(Problem::new(ProblemCode::BadValue, "", problem));
        }
        (self.problems, self.warnings)
    }

    fn place(&self, problem: &mut Problem, at: usize) {
        let (line, column) = self.position(at);
        (problem.line, problem.column) = (Some(line), Some(column));
    }

    /// The line of a place, from 1, and where that line starts.
    fn line_and_start(&self, at: usize) -> (usize, usize) {
        let lines = self.lines.get_or_init(|| line_starts(self.source));
        let line = lines.partition_point(|start| *start as usize <= at).max(1);
        (line, lines.get(line - 1).map_or(0, |start| *start as usize))
    }

    /// Line and column, from 1; columns count characters.
    fn position(&self, at: usize) -> (u32, u32) {
        let at = at.min(self.source.len());
        let (line, start) = self.line_and_start(at);
        let (last, last_column) = self.last.get();
        let (from, before) = if (start..=at).contains(&last) { (last, last_column) } else { (start, 1) };
        let skipped = self.source.as_bytes().get(from..at).unwrap_or_default();
        // Counts the bytes that begin a character.
        let begun = skipped.iter().filter(|b| (**b).cast_signed() >= -0x40).count();
        let column = before.saturating_add(u32::try_from(begun).unwrap_or(u32::MAX));
        self.last.set((at, column));
        (u32::try_from(line).unwrap_or(u32::MAX), column)
    }
}

fn line_starts(source: &str) -> Vec<u32> {
    let after = source.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(after).map(|at| u32::try_from(at).unwrap_or(u32::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_depend_on_the_order_of_asking() {
        let text = "aä\nböc\n\n漢字";
        let ask = |order: &[usize]| -> Vec<(u32, u32)> {
            let report = Report::new(text);
            let mut answers: Vec<(usize, (u32, u32))> =
                order.iter().map(|at| (*at, report.position(*at))).collect();
            answers.sort_unstable();
            answers.into_iter().map(|(_, place)| place).collect()
        };
        let forwards = ask(&[0, 1, 3, 4, 5, 7, 9, 10, 13, 99]);
        assert_eq!(
            forwards,
            [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1), (4, 2), (4, 3)]
        );
        assert_eq!(ask(&[99, 13, 10, 9, 7, 5, 4, 3, 1, 0]), forwards);
        assert_eq!(ask(&[5, 0, 13, 9, 1, 99, 4, 10, 3, 7]), forwards);
    }
}
