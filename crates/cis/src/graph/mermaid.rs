//! A DAG as a Mermaid flowchart, for Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Subject;
use crate::term::Tone;

/// Longest name shown.
const TITLE_WIDTH: usize = 120;

pub(super) fn render(subject: &Subject<'_>) -> String {
    // Writing to a string cannot fail.
    let mut text = String::from("flowchart TD\n");
    let mut classes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for task in subject.plan.tasks() {
        let title = escape(&subject.title(task, TITLE_WIDTH));
        let title = match subject.face(task) {
            Some(face) => format!("{} {title}", face.glyph),
            None => title,
        };
        let _ = writeln!(text, "    t{task}[\"{title}\"]");
        if let Some(face) = subject.face(task) {
            classes.entry(face.tone.class()).or_default().push(format!("t{task}"));
        }
    }
    for (from, to) in subject.edges() {
        let _ = writeln!(text, "    t{from} --> t{to}");
    }
    for tone in Tone::ALL {
        if let Some(tasks) = classes.get(tone.class()) {
            let (fill, stroke) = colours(tone);
            let _ = writeln!(text, "    classDef {} fill:{fill},stroke:{stroke},color:#1f2328", tone.class());
            let _ = writeln!(text, "    class {} {}", tasks.join(","), tone.class());
        }
    }
    text
}

/// Fill and border, the same in every drawing.
pub(super) fn colours(tone: Tone) -> (&'static str, &'static str) {
    match tone {
        Tone::Quiet => ("#f6f8fa", "#afb8c1"),
        Tone::Waiting => ("#fff8c5", "#bf8700"),
        Tone::Active => ("#ddf4ff", "#0969da"),
        Tone::Good => ("#dafbe1", "#1a7f37"),
        Tone::Bad => ("#ffebe9", "#cf222e"),
        Tone::Stopped => ("#eaeef2", "#6e7781"),
    }
}

/// Everything Mermaid could take for markup, as its numeric entities; other letters stay as they are.
fn escape(title: &str) -> String {
    let mut text = String::with_capacity(title.len());
    for c in title.chars() {
        if c.is_alphanumeric() || matches!(c, ' ' | '.' | '_' | '-' | '…' | ',' | ':' | '/' | '+' | '=') {
            text.push(c);
        } else {
            let _ = write!(text, "#{};", u32::from(c));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use cis_core::task::TaskStatus;

    use super::super::Format;
    use super::super::sample::{dag, drawn, named};

    #[test]
    fn tasks_edges_and_states() {
        let dag = dag(&[("a", &[]), ("b", &["a"]), ("c", &["a"])]);
        let states = [TaskStatus::Completed, TaskStatus::Failed, TaskStatus::Completed];
        assert_eq!(
            drawn(&dag, Some(&states), Format::Mermaid),
            "flowchart TD\n    t0[\"✓ a\"]\n    t1[\"✗ b\"]\n    t2[\"✓ c\"]\n    t0 --> t1\n    t0 --> t2\n    \
             classDef good fill:#dafbe1,stroke:#1a7f37,color:#1f2328\n    class t0,t2 good\n    \
             classDef bad fill:#ffebe9,stroke:#cf222e,color:#1f2328\n    class t1 bad\n"
        );
    }

    #[test]
    fn names_cannot_become_markup() {
        let text = drawn(&named("x", "a\"] --> b[\"`<b>`#end\n日本"), None, Format::Mermaid);
        assert_eq!(
            text,
            "flowchart TD\n    t0[\"a#34;#93; --#62; b#91;#34;#96;#60;b#62;#96;#35;end#92;u#123;a#125;日本\"]\n"
        );
    }
}
