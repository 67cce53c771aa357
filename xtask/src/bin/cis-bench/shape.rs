//! The graphs that are measured, and how each tool's own file says them: every task is `/bin/sh -c true`.

use std::fmt::Write as _;

/// Tasks by number, each with the ones it waits for.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    waits_for: Vec<Vec<usize>>,
}

impl Shape {
    /// Nobody waits for anybody.
    pub(crate) fn wide(tasks: usize) -> Self {
        Self { waits_for: vec![Vec::new(); tasks] }
    }

    /// Each waits for the one before it.
    pub(crate) fn chain(tasks: usize) -> Self {
        Self { waits_for: (0..tasks).map(|task| task.checked_sub(1).into_iter().collect()).collect() }
    }

    /// Each waits for all of the layer before.
    pub(crate) fn layers(layers: usize, width: usize) -> Self {
        Self::layered(layers, width, |_| (0..width).collect())
    }

    /// Each waits for two of the layer before.
    pub(crate) fn mesh(layers: usize, width: usize) -> Self {
        Self::layered(layers, width, |place| vec![place, (place + 1) % width])
    }

    fn layered(layers: usize, width: usize, before: impl Fn(usize) -> Vec<usize>) -> Self {
        let waits = |layer: usize, place: usize| match layer.checked_sub(1) {
            Some(last) => before(place).into_iter().map(|place| last * width + place).collect(),
            None => Vec::new(),
        };
        let tasks = (0..layers).flat_map(|layer| (0..width).map(move |place| (layer, place)));
        Self { waits_for: tasks.map(|(layer, place)| waits(layer, place)).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.waits_for.len()
    }

    /// A definition of ours, as JSON.
    pub(crate) fn cis(&self, dag_id: &str, scope: &str) -> String {
        let mut text = format!("{{\"dag_id\":\"{dag_id}\",\"scope\":\"{scope}\",\"tasks\":[\n");
        for (task, waits_for) in self.waits_for.iter().enumerate() {
            let comma = if task == 0 { "" } else { ",\n" };
            let _ = write!(text, "{comma}{{\"id\":\"t{task}\",\"command\":\"true\"");
            if !waits_for.is_empty() {
                let names: Vec<String> = waits_for.iter().map(|other| format!("\"t{other}\"")).collect();
                let _ = write!(text, ",\"depends_on\":[{}]", names.join(","));
            }
            text.push('}');
        }
        text + "\n]}\n"
    }

    /// Ninja runs every command through `/bin/sh -c`.
    pub(crate) fn ninja(&self) -> String {
        let mut text = "rule task\n  command = true\n".to_owned();
        for (task, waits_for) in self.waits_for.iter().enumerate() {
            let _ = writeln!(text, "build t{task}: task{}", names(waits_for));
        }
        text
    }

    /// Make starts a plain `true` without a shell; the semicolon makes it use `/bin/sh -c` as the others do.
    pub(crate) fn make(&self) -> String {
        let all = names(&(0..self.len()).collect::<Vec<_>>());
        let mut text = format!(".PHONY: all{all}\nall:{all}\n");
        for (task, waits_for) in self.waits_for.iter().enumerate() {
            let _ = writeln!(text, "t{task}:{}\n\t@true;", names(waits_for));
        }
        text
    }
}

fn names(tasks: &[usize]) -> String {
    tasks.iter().fold(String::new(), |text, task| text + " t" + &task.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_wait_for_what_they_say() {
        assert_eq!(Shape::chain(3).waits_for, [vec![], vec![0], vec![1]]);
        assert_eq!(Shape::layers(2, 2).waits_for, [vec![], vec![], vec![0, 1], vec![0, 1]]);
        assert_eq!(Shape::mesh(2, 3).waits_for[5], [2, 0]);
        assert_eq!(Shape::mesh(1_000, 100).len(), 100_000);
    }

    #[test]
    fn three_files_say_the_same() {
        let shape = Shape::chain(2);
        assert_eq!(shape.ninja(), "rule task\n  command = true\nbuild t0: task\nbuild t1: task t0\n");
        assert_eq!(shape.make(), ".PHONY: all t0 t1\nall: t0 t1\nt0:\n\t@true;\nt1: t0\n\t@true;\n");
        let json: serde_json::Value = serde_json::from_str(&shape.cis("w", "global")).unwrap();
        assert_eq!(json["tasks"][1]["depends_on"][0], "t0");
    }
}
