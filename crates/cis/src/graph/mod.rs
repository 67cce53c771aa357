//! Drawing a DAG, for terminals, for documents and for other tools.
//!
//! | module | what lives there |
//! |---|---|
//! | [`ascii`] | lanes, as `git log --graph` draws them; a list by layer where that would be a tangle |
//! | [`mermaid`], [`dot`] | the graph in their languages |
//! | [`svg`] | a drawing that stands alone, on the layout of [`layered`] |
//!
//! Everything is linear in tasks and edges, or falls back to something that is.

mod ascii;
mod dot;
mod layered;
mod mermaid;
mod svg;

#[cfg(test)]
mod sample;

use std::borrow::Cow;

use cis_core::dag::{Dag, plan::Plan};
use cis_core::id::TaskIx;
use cis_core::task::TaskStatus;

use crate::term::text::{fit, thousands};
use crate::term::{Face, face, reveal};

/// What to draw it as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Ascii,
    Mermaid,
    Dot,
    Svg,
}

impl Format {
    /// Every format with its word.
    pub const WORDS: [(&'static str, Self); 4] =
        [("ascii", Self::Ascii), ("mermaid", Self::Mermaid), ("dot", Self::Dot), ("svg", Self::Svg)];
}

/// Draws `dag`; with `states` (by task), each task in the colours of its state. Ends with a line end.
pub fn render(dag: &Dag, plan: &Plan, states: Option<&[TaskStatus]>, format: Format) -> String {
    let subject = Subject { dag, plan, states };
    match format {
        Format::Ascii => ascii::render(&subject),
        Format::Mermaid => mermaid::render(&subject),
        Format::Dot => dot::render(&subject),
        Format::Svg => svg::render(&subject),
    }
}

/// What is being drawn.
struct Subject<'a> {
    dag: &'a Dag,
    plan: &'a Plan,
    states: Option<&'a [TaskStatus]>,
}

impl Subject<'_> {
    /// How the task's state looks, if states are drawn.
    fn face(&self, task: TaskIx) -> Option<Face> {
        self.states?.get(task.index()).map(|status| Face::from(*status))
    }

    /// What to call the task, in at most `width` columns.
    fn title(&self, task: TaskIx, width: usize) -> String {
        let title = self.dag.tasks.get(task.index()).map_or("?", |task| task.title());
        fit(&reveal(title), width).into_owned()
    }

    fn id(&self, task: TaskIx) -> &str {
        self.dag.tasks.get(task.index()).map_or("?", |task| task.id.as_str())
    }

    fn name(&self) -> Cow<'_, str> {
        reveal(self.dag.dag_id.as_str())
    }

    /// Every edge, from a task to one that waits for it.
    fn edges(&self) -> impl Iterator<Item = (TaskIx, TaskIx)> + '_ {
        self.plan.order().iter().flat_map(|to| self.plan.depends_on(*to).iter().map(|from| (*from, *to)))
    }

    /// The tasks of each layer, in file order.
    fn layers(&self) -> Vec<Vec<TaskIx>> {
        let layer_of = self.plan.layers();
        let count = layer_of.iter().max().map_or(0, |deepest| *deepest as usize + 1);
        let mut layers = vec![Vec::new(); count];
        for (task, layer) in (0..).map(TaskIx).zip(layer_of) {
            layers[layer as usize].push(task);
        }
        layers
    }

    /// `✓ 10 ✗ 1` for these tasks; empty without states.
    fn tally(&self, tasks: &[TaskIx], show: impl Fn(Face, &str) -> String) -> String {
        let faces: Vec<Face> = tasks.iter().filter_map(|task| self.face(*task)).collect();
        let count = |wanted: &Face| faces.iter().filter(|face| *face == wanted).count();
        let shown = face::TASK.iter().map(|face| (face, count(face))).filter(|(_, count)| *count > 0);
        shown
            .map(|(face, count)| show(*face, &format!("{} {}", face.glyph, thousands(count))))
            .collect::<Vec<_>>()
            .join(" ")
    }
}
