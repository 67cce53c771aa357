//! A DAG as an SVG that stands alone: its own styles, light and dark, nothing fetched, every name escaped.

use std::fmt::Write as _;

use cis_core::id::TaskIx;

use super::layered::Layout;
use super::mermaid::colours;
use super::{Subject, layered};
use crate::term::Tone;
use crate::term::text::{columns, count, thousands};

/// Beyond these a drawing helps nobody: layers are drawn as one box each instead.
const TASKS_MAX: usize = 2_000;
const EDGES_MAX: usize = 10_000;
const BENDS_MAX: usize = 20_000;

/// So many boxes at most when layers are drawn as boxes.
const COLLAPSED_MAX: usize = 24;

/// Longest name in a box.
const TITLE_WIDTH: usize = 34;

/// Pixels.
const ROW: f32 = 46.0;
const BOX: f32 = 30.0;
const GAP: f32 = 56.0;
const MARGIN: f32 = 24.0;
const LETTER: f32 = 7.4;

pub(super) fn render(subject: &Subject<'_>) -> String {
    if subject.plan.len() > TASKS_MAX || subject.edges().nth(EDGES_MAX).is_some() {
        return collapsed(subject);
    }
    layered::layout(subject, BENDS_MAX)
        .map_or_else(|| collapsed(subject), |layout| detailed(subject, &layout))
}

/// Where lines touch what they pass: a box, or a bend as wide as its layer.
#[derive(Clone, Copy, Default)]
struct Port {
    left: f32,
    /// The right side of the box.
    right: f32,
    /// The right side of its layer; only beyond it may a line leave its height without crossing other boxes.
    clear: f32,
    y: f32,
}

/// A box to draw.
struct Node {
    x: f32,
    y: f32,
    width: f32,
    title: String,
    tip: String,
    class: &'static str,
}

fn detailed(subject: &Subject<'_>, layout: &Layout) -> String {
    let tasks = subject.plan.len();
    let mut nodes: Vec<Option<Node>> = (0..tasks).map(|_| None).collect();
    let mut ports = vec![Port::default(); layout.y.len()];
    let mut left = MARGIN;
    for layer in &layout.layers {
        let mut widest: f32 = 0.0;
        for place in layer.iter().filter(|place| **place < tasks) {
            let node =
                node(subject, TaskIx(u32::try_from(*place).unwrap_or(u32::MAX)), left, layout.y[*place]);
            widest = widest.max(node.width);
            nodes[*place] = Some(node);
        }
        for place in layer {
            let y = MARGIN + layout.y[*place] * ROW;
            let node = nodes.get(*place).and_then(Option::as_ref);
            let right = left + node.map_or(widest, |node| node.width);
            ports[*place] = Port { left, right, clear: left + widest, y };
        }
        left += widest + GAP;
    }
    let bottom = layout.y.iter().copied().fold(0.0, f32::max) + 0.5;
    let mut page = Page::new(subject, left - GAP + MARGIN, bottom * ROW + 2.0 * MARGIN);
    for route in &layout.routes {
        page.line(&route.iter().map(|place| ports[*place]).collect::<Vec<_>>());
    }
    nodes.iter().flatten().for_each(|node| page.node(node));
    page.end()
}

fn node(subject: &Subject<'_>, task: TaskIx, x: f32, y: f32) -> Node {
    let face = subject.face(task);
    let title = subject.title(task, TITLE_WIDTH);
    let title = face.map_or(title.clone(), |face| format!("{} {title}", face.glyph));
    Node {
        x,
        y: MARGIN + y * ROW,
        width: width(&title),
        title,
        tip: face.map_or_else(
            || subject.id(task).to_owned(),
            |face| format!("{}: {}", subject.id(task), face.word),
        ),
        class: face.map_or("plain", |face| face.tone.class()),
    }
}

impl Node {
    fn port(&self) -> Port {
        let right = self.x + self.width;
        Port { left: self.x, right, clear: right, y: self.y }
    }
}

fn width(title: &str) -> f32 {
    (columns(title) as f32 * LETTER + 26.0).max(60.0)
}

/// One box per layer, or per run of layers where there are many.
fn collapsed(subject: &Subject<'_>) -> String {
    let layers = subject.layers();
    let per_box = layers.len().div_ceil(COLLAPSED_MAX).max(1);
    let mut x = MARGIN;
    let mut nodes = Vec::new();
    for (i, chunk) in layers.chunks(per_box).enumerate() {
        let tasks: Vec<TaskIx> = chunk.iter().flatten().copied().collect();
        let (first, last) = (i * per_box + 1, i * per_box + chunk.len());
        let name = if first == last {
            format!("layer {first}")
        } else {
            format!("layers {}–{}", thousands(first), thousands(last))
        };
        let tally = subject.tally(&tasks, |_, text| text.to_owned());
        let title = format!("{name}: {} {tally}", count(tasks.len(), "task")).trim_end().to_owned();
        let node = Node {
            x,
            y: MARGIN + 1.3 * ROW,
            width: width(&title),
            title,
            tip: name,
            class: worst(subject, &tasks),
        };
        x += node.width + GAP;
        nodes.push(node);
    }
    let mut page = Page::new(subject, (x - GAP + MARGIN).max(480.0), 2.0 * ROW + 2.0 * MARGIN);
    page.note(&format!(
        "{} in {}: too many to draw one by one",
        count(subject.plan.len(), "task"),
        count(layers.len(), "layer")
    ));
    for pair in nodes.windows(2) {
        page.line(&[pair[0].port(), pair[1].port()]);
    }
    nodes.iter().for_each(|node| page.node(node));
    page.end()
}

/// The tone that matters most among these tasks.
fn worst(subject: &Subject<'_>, tasks: &[TaskIx]) -> &'static str {
    let tones = [Tone::Bad, Tone::Active, Tone::Waiting, Tone::Quiet, Tone::Stopped, Tone::Good];
    let has =
        |tone: &Tone| tasks.iter().any(|task| subject.face(*task).is_some_and(|face| face.tone == *tone));
    tones.iter().find(|tone| has(tone)).map_or("plain", |tone| tone.class())
}

/// The drawing being written.
struct Page {
    text: String,
}

impl Page {
    fn new(subject: &Subject<'_>, width: f32, height: f32) -> Self {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" role=\"img\" aria-label=\"{}\">",
            escape(&subject.name())
        );
        text.push_str(&style());
        text.push_str(concat!(
            "<defs><marker id=\"end\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" ",
            "orient=\"auto\"><path class=\"head\" d=\"M0 0 8 4 0 8Z\"/></marker></defs>\n",
            "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n"
        ));
        Self { text }
    }

    /// A line from box to box, straight across every layer it passes.
    fn line(&mut self, ports: &[Port]) {
        let mut path = String::new();
        for pair in ports.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            if path.is_empty() {
                let _ = write!(path, "M{:.1} {:.1}", from.right, from.y);
            }
            let middle = f32::midpoint(from.clear, to.left);
            let _ = write!(
                path,
                "H{:.1}C{middle:.1} {:.1} {middle:.1} {:.1} {:.1} {:.1}",
                from.clear, from.y, to.y, to.left, to.y
            );
        }
        let _ = writeln!(self.text, "<path class=\"edge\" d=\"{path}\" marker-end=\"url(#end)\"/>");
    }

    fn node(&mut self, node: &Node) {
        let (x, top) = (node.x, node.y - BOX / 2.0);
        let _ = writeln!(
            self.text,
            "<g class=\"{}\"><title>{}</title><rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BOX}\" rx=\"7\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            node.class,
            escape(&node.tip),
            node.width,
            x + node.width / 2.0,
            node.y,
            escape(&node.title)
        );
    }

    fn note(&mut self, note: &str) {
        let _ =
            writeln!(self.text, "<text class=\"note\" x=\"{MARGIN}\" y=\"{MARGIN}\">{}</text>", escape(note));
    }

    fn end(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

fn style() -> String {
    let mut text = String::from(concat!(
        "<style>\n",
        "text{font:13px ui-sans-serif,system-ui,sans-serif;fill:#1f2328;text-anchor:middle;dominant-baseline:central}\n",
        "text.note{text-anchor:start;fill:#656d76}\n",
        ".page{fill:#fff}.edge{fill:none;stroke:#8c959f;stroke-width:1.4}.head{fill:#8c959f}\n",
        "rect{fill:#fff;stroke:#8c959f;stroke-width:1.4}rect.page{stroke:none}\n"
    ));
    for tone in Tone::ALL {
        let (fill, stroke) = colours(tone);
        let _ = writeln!(text, ".{} rect{{fill:{fill};stroke:{stroke}}}", tone.class());
    }
    // In the dark the page turns, and plain boxes with it; coloured boxes keep their dark letters.
    text.push_str(concat!(
        "@media (prefers-color-scheme:dark){.page{fill:#0d1117}",
        ".plain rect{fill:#161b22;stroke:#6e7681}.plain text{fill:#e6edf3}text.note{fill:#8d96a0}}\n",
        "</style>\n"
    ));
    text
}

/// Text that cannot become markup, without what XML does not allow.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => safe.push(char::REPLACEMENT_CHARACTER),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use cis_core::task::TaskStatus;

    use super::super::Format;
    use super::super::sample::{dag, drawn, named, wide};

    #[test]
    fn boxes_lines_and_states() {
        let dag = dag(&[("a", &[]), ("b", &["a"]), ("c", &["a"]), ("d", &["a", "b", "c"])]);
        let states = [TaskStatus::Completed, TaskStatus::Running, TaskStatus::Failed, TaskStatus::Pending];
        let text = drawn(&dag, Some(&states), Format::Svg);
        assert_eq!(text.matches("<path class=\"edge\"").count(), 5);
        for class in ["good", "active", "bad", "quiet"] {
            assert_eq!(text.matches(&format!("<g class=\"{class}\">")).count(), 1, "{class}");
        }
        assert!(text.contains("<title>c: failed</title>") && text.contains(">✗ c</text>"), "{text}");
        assert!(text.starts_with("<svg xmlns=") && text.ends_with("</svg>\n"));
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn names_cannot_become_markup() {
        let text = drawn(&named("x", "</text><script>&\"'\u{ffff}"), None, Format::Svg);
        assert!(text.contains("&lt;/text&gt;&lt;script&gt;&amp;&quot;&#39;\\u{ffff}"), "{text}");
        assert!(!text.contains("<script>"));
    }

    #[test]
    fn a_hundred_thousand_tasks_are_drawn_as_layers() {
        for (layers, width) in [(10, 10_000), (100_000, 1)] {
            let dag = wide(layers, width, 3);
            let text = drawn(&dag, Some(&vec![TaskStatus::Completed; 100_000]), Format::Svg);
            assert!(text.contains("100,000 tasks in ") && text.contains("too many to draw one by one"));
            assert!(text.matches("<g class=\"good\">").count() <= 24 && text.len() < 20_000);
        }
        // The other formats stay linear.
        for format in [Format::Ascii, Format::Mermaid, Format::Dot] {
            assert!(!drawn(&wide(100, 1_000, 5), None, format).is_empty());
        }
    }

    #[test]
    fn two_thousand_tasks_are_drawn_one_by_one() {
        let text = drawn(&wide(40, 50, 4), None, Format::Svg);
        assert_eq!(text.matches("<g class=\"plain\">").count(), 2_000);
    }
}
