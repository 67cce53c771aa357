//! A task of type `approval`: a question to a person, and the keys that make no sense on one.

use std::collections::BTreeMap;

use super::template::is_ours;
use super::tree::Ix;
use super::walk::{Fields, Walk};
use super::words::TaskKey;
use crate::dag::approval::{Approval, InputType, OnTimeout};
use crate::dag::model::Kind;
use crate::dag::problem::ProblemCode;
use crate::id::is_name;

/// What belongs to processes: nothing is started for an approval.
const FOR_PROCESSES: [TaskKey; 11] = [
    TaskKey::Command,
    TaskKey::Skill,
    TaskKey::Env,
    TaskKey::Workdir,
    TaskKey::QueueTimeout,
    TaskKey::Grace,
    TaskKey::Retry,
    TaskKey::Level,
    TaskKey::Idempotent,
    TaskKey::Detach,
    TaskKey::TargetNode,
];

impl Walk<'_> {
    /// What an approval asks.
    pub(super) fn approval(&mut self, fields: &Fields) -> Kind {
        let get = |key: TaskKey| fields.get(key as u8);
        for ix in FOR_PROCESSES.into_iter().filter_map(get) {
            let problem = format!("an approval has no `{}`", self.tree.key(ix));
            let hint = "remove it, or put it on a task that depends on this one".to_owned();
            self.key_problem(ProblemCode::BadValue, ix, problem, hint);
        }
        let prompt = get(TaskKey::Prompt).and_then(|ix| self.prompt(ix));
        let input = get(TaskKey::Input).map(|ix| self.input_types(ix)).unwrap_or_default();
        let on_timeout = self.on_timeout(get(TaskKey::OnTimeout), get(TaskKey::Timeout), input.is_empty());
        Kind::Approval(Box::new(Approval { prompt, input, on_timeout }))
    }

    /// Keys of approvals on a task that is none.
    pub(super) fn refuse_questions(&mut self, fields: &Fields) {
        for ix in [TaskKey::Prompt, TaskKey::OnTimeout].into_iter().filter_map(|key| fields.get(key as u8)) {
            let problem = format!("only an approval has `{}`", self.tree.key(ix));
            let hint = "give it to a task with `type = \"approval\"`".to_owned();
            self.key_problem(ProblemCode::BadValue, ix, problem, hint);
        }
    }

    fn prompt(&mut self, ix: Ix) -> Option<String> {
        let text = self.some_text(ix)?;
        if is_ours(text) {
            let hint = "say what to look at instead: `cis status` shows the outputs of the tasks before it";
            self.problem_hint(ProblemCode::BadTemplate, ix, "templates are not filled in prompts", hint);
            return None;
        }
        Some(text.to_owned())
    }

    /// `input = { region = "string", … }`.
    fn input_types(&mut self, ix: Ix) -> BTreeMap<String, InputType> {
        let mut input = BTreeMap::new();
        if !self.is_map(ix) {
            return input;
        }
        let tree = self.tree;
        for child in tree.children(ix) {
            let name = tree.key(child);
            if !is_name(name) {
                let problem = "not a name for an input".to_owned();
                let hint = "use 1 to 128 of A-Z a-z 0-9 . _ -".to_owned();
                self.key_problem(ProblemCode::BadName, child, problem, hint);
            }
            if let Some(kind) = self.input_type(child) {
                input.insert(name.to_owned(), kind);
            }
        }
        input
    }

    fn input_type(&mut self, ix: Ix) -> Option<InputType> {
        let text = self.text(ix)?;
        let known = InputType::WORDS.into_iter().find(|(word, _)| *word == text);
        if known.is_none() {
            let shown: String = text.chars().take(80).collect();
            let hint = "one of `string`, `number`, `integer`, `boolean`";
            self.problem_hint(ProblemCode::BadValue, ix, format!("`{shown}` is not a type of input"), hint);
        }
        known.map(|(_, kind)| kind)
    }

    fn on_timeout(&mut self, ix: Option<Ix>, timeout: Option<Ix>, takes_nothing: bool) -> OnTimeout {
        let action = self.word(ix, &OnTimeout::WORDS).unwrap_or_default();
        let Some(ix) = ix else { return action };
        if timeout.is_none() {
            let problem = "`on_timeout` without a `timeout`".to_owned();
            let hint = "say how long to wait, such as `timeout = \"1d\"`".to_owned();
            self.key_problem(ProblemCode::BadValue, ix, problem, hint);
        }
        if action == OnTimeout::Approve && !takes_nothing {
            let problem = "nobody gives the `input` when a timeout approves";
            self.problem_hint(
                ProblemCode::BadValue,
                ix,
                problem,
                "use `fail` or `skip`, or ask for no input",
            );
        }
        action
    }
}
