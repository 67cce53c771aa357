//! A DAG in Graphviz's language.

use std::fmt::Write as _;

use super::Subject;
use super::mermaid::colours;

/// Longest name shown.
const TITLE_WIDTH: usize = 120;

pub(super) fn render(subject: &Subject<'_>) -> String {
    // Writing to a string cannot fail.
    let mut text = format!("digraph {} {{\n", quote(&subject.name()));
    text.push_str(
        "  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=Helvetica];\n",
    );
    for task in subject.plan.tasks() {
        let title = subject.title(task, TITLE_WIDTH);
        let _ = match subject.face(task) {
            None => writeln!(text, "  t{task} [label={}];", quote(&title)),
            Some(face) => {
                let (fill, border) = colours(face.tone);
                let label = quote(&format!("{} {title}", face.glyph));
                writeln!(
                    text,
                    "  t{task} [label={label}, fillcolor=\"{fill}\", color=\"{border}\", tooltip=\"{}\"];",
                    face.word
                )
            }
        };
    }
    for (from, to) in subject.edges() {
        let _ = writeln!(text, "  t{from} -> t{to};");
    }
    text.push_str("}\n");
    text
}

/// A quoted string: `"` would end it, `\` would begin an escape.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use cis_core::task::TaskStatus;

    use super::super::Format;
    use super::super::sample::{dag, drawn, named};

    #[test]
    fn tasks_edges_and_states() {
        let text = drawn(&dag(&[("a", &[]), ("b", &["a"])]), Some(&[TaskStatus::Running; 2]), Format::Dot);
        assert!(text.starts_with("digraph \"sample\" {\n"), "{text}");
        assert!(text.contains("t0 [label=\"● a\", fillcolor=\"#ddf4ff\""), "{text}");
        assert!(text.ends_with("  t0 -> t1;\n}\n"), "{text}");
    }

    #[test]
    fn names_stay_inside_their_quotes() {
        let text = drawn(&named("x", "a\"]; b\\N\n[日本]"), None, Format::Dot);
        assert!(text.contains("t0 [label=\"a\\\"]; b\\\\N\\\\u{a}[日本]\"];"), "{text}");
    }
}
