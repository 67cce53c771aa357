//! DAGs by chance, and what their author knows of them: the judge goes by this, not by what CIS made of them.

use std::fmt::Write as _;

use crate::chance::Chance;

/// A definition, and what it says.
#[derive(Debug)]
pub(super) struct Sketch {
    pub(super) dag_id: String,
    pub(super) tasks: Vec<Task>,
    pub(super) text: String,
}

/// One of its tasks.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) kind: Kind,
    /// Which tasks must have ended before it begins.
    pub(super) after: Vec<usize>,
    /// Tries after the first.
    pub(super) retries: u32,
    pub(super) idempotent: bool,
    pub(super) timeout_ms: Option<i64>,
}

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Shell,
    External,
    Approval,
}

impl Sketch {
    /// The `n`th DAG of a world.
    pub(super) fn by_chance(n: usize, chance: &mut Chance) -> Self {
        let count = 2 + chance.below(7) as usize;
        let tasks: Vec<Task> = (0..count).map(|ix| Task::by_chance(ix, chance)).collect();
        let dag_id = format!("dag-{n}");
        let mut text = format!("dag_id = '{dag_id}'\n");
        let policy = chance.pick(&["all_success", "all_success", "first_success", "allow_debt"]);
        put(&mut text, format_args!("policy = '{}'\n", policy.unwrap_or(&"all_success")));
        if chance.one_in(3) {
            put(&mut text, format_args!("max_parallel = {}\n", 1 + chance.below(3)));
        }
        if chance.one_in(4) {
            put(&mut text, format_args!("timeout = '{}s'\n", 20 + chance.below(100)));
        }
        text.push_str("tasks = [\n");
        tasks.iter().enumerate().for_each(|(ix, task)| task.write(ix, &mut text, chance));
        text.push_str("]\n");
        Self { dag_id, tasks, text }
    }
}

impl Task {
    fn by_chance(ix: usize, chance: &mut Chance) -> Self {
        let kind = match chance.below(8) {
            0 => Kind::Approval,
            1..4 => Kind::External,
            _ => Kind::Shell,
        };
        let after = (0..ix).filter(|_| chance.one_in(3)).collect();
        let works = kind != Kind::Approval;
        Self {
            kind,
            after,
            retries: if works && chance.one_in(3) { 1 + chance.below(2) as u32 } else { 0 },
            idempotent: kind == Kind::Shell && chance.one_in(3),
            timeout_ms: chance.one_in(4).then(|| 2_000 + 1_000 * chance.below(20) as i64),
        }
    }

    fn write(&self, ix: usize, text: &mut String, chance: &mut Chance) {
        let kind = match self.kind {
            Kind::Shell => "command = 'true'",
            Kind::External => "type = 'external'",
            Kind::Approval => "type = 'approval'",
        };
        put(text, format_args!("  {{ id = 't{ix}', {kind}"));
        if !self.after.is_empty() {
            let names: Vec<String> = self.after.iter().map(|ix| format!("'t{ix}'")).collect();
            put(text, format_args!(", depends_on = [{}]", names.join(", ")));
            if chance.one_in(3) {
                let rule = chance.pick(&["all_done", "one_failed", "none_failed"]);
                put(text, format_args!(", run_if = '{}'", rule.unwrap_or(&"all_done")));
            }
        }
        if self.retries > 0 {
            let initial = 100 * (1 + chance.below(30));
            put(text, format_args!(", retry = {{ max = {}, initial = '{initial}ms' }}", self.retries));
        }
        if self.idempotent {
            text.push_str(", idempotent = true");
        }
        if let Some(ms) = self.timeout_ms {
            put(text, format_args!(", timeout = '{ms}ms'"));
        }
        if chance.one_in(5) {
            text.push_str(", debt = 'ignorable'");
        }
        if self.kind == Kind::Approval && self.timeout_ms.is_some() && chance.one_in(2) {
            text.push_str(", on_timeout = 'skip'");
        }
        text.push_str(" },\n");
    }
}

fn put(text: &mut String, more: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = text.write_fmt(more);
}
