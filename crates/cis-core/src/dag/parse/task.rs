//! One task: its keys, and what they say it does.

use super::retry::Level;
use super::template::is_ours;
use super::tree::{Ix, Value};
use super::walk::{Fields, Walk};
use super::words::{Meaning, TASK, TaskKey, nearest};
use crate::dag::model::{Kind, More, RunIf, SkillCall, Task};
use crate::dag::problem::ProblemCode;
use crate::id::{BadName, TaskId, is_name};

/// What a task's text said about other tasks, to be settled when all of them are known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draft<'t> {
    pub(super) node: Ix,
    pub(super) id: Option<(Ix, &'t str)>,
    pub(super) depends_on: Option<Ix>,
}

/// A task's outputs that another task's template reads.
pub(super) struct Read {
    pub(super) reader: usize,
    /// Where the template stands.
    pub(super) at: Ix,
    pub(super) task: String,
}

/// What a task says it is.
#[derive(Clone, Copy, PartialEq)]
enum Type {
    Shell,
    Skill,
    External,
    Approval,
}

const DEBT: [(&str, bool); 2] = [("ignorable", true), ("blocking", false)];
const LATER_TYPES: [&str; 2] = ["agent", "dag"];
const TYPES: [&str; 6] = ["shell", "skill", "agent", "external", "approval", "dag"];

impl<'t> Walk<'t> {
    /// Understands the task `node`, without its dependencies. Whatever is wrong with it is reported.
    pub(super) fn task(
        &mut self,
        node: Ix,
        meanings: &[Meaning],
        number: usize,
        reads: &mut Vec<Read>,
    ) -> (Draft<'t>, Option<Task>) {
        let mut draft = Draft { node, id: None, depends_on: None };
        if !self.is_map(node) {
            return (draft, None);
        }
        let tree = self.tree;
        let fields = self.fields(node, &TASK, |child| {
            meanings.get(tree.symbol(child) as usize).copied().unwrap_or(Meaning::Unknown)
        });
        let get = |key: TaskKey| fields.get(key as u8);
        draft.depends_on = get(TaskKey::DependsOn);
        let id = match get(TaskKey::Id) {
            Some(ix) => {
                draft.id = self.text(ix).map(|text| (ix, text));
                draft.id.and_then(|(_, text)| self.task_id(ix, text))
            }
            None => {
                let hint = match get(TaskKey::Name) {
                    Some(_) => "`name` is for people; give it an `id` others can depend on",
                    None => "give it one that no other task has",
                };
                self.missing(node, "id", "a task", hint);
                None
            }
        };
        let kind = self.kind(node, &fields, number, reads);
        let mut more = self.more(&fields, number, reads);
        more.needs = get(TaskKey::Needs).map(|ix| self.needs(ix, kind.as_ref())).unwrap_or_default();
        let run_if = self.word(get(TaskKey::RunIf), &RunIf::WORDS).unwrap_or_default();
        let priority = self.priority(get(TaskKey::Priority));
        let idempotent = self.boolean(get(TaskKey::Idempotent));
        let detach = self.boolean(get(TaskKey::Detach));
        let debt_ignorable = self.word(get(TaskKey::Debt), &DEBT).unwrap_or(false);
        let task = id.zip(kind).map(|(id, kind)| Task {
            id,
            kind,
            depends_on: Box::default(),
            run_if,
            priority,
            idempotent,
            detach,
            debt_ignorable,
            more: (more != More::default()).then(|| Box::new(more)),
        });
        (draft, task)
    }

    fn task_id(&mut self, ix: Ix, text: &str) -> Option<TaskId> {
        match text.parse() {
            Ok(id) => Some(id),
            Err(BadName(_)) => {
                self.bad_name(ix, text);
                None
            }
        }
    }

    /// `text` at `ix` is not a name.
    pub(super) fn bad_name(&mut self, ix: Ix, text: &str) {
        let shown: String = text.chars().take(80).collect();
        self.problem_hint(
            ProblemCode::BadName,
            ix,
            format!("`{shown}` is not a name"),
            "use 1 to 128 of A-Z a-z 0-9 . _ -",
        );
    }

    fn more(&mut self, fields: &Fields, number: usize, reads: &mut Vec<Read>) -> More {
        let get = |key: TaskKey| fields.get(key as u8);
        let level = get(TaskKey::Level).and_then(|ix| self.level(ix));
        let env = self.env(get(TaskKey::Env));
        if let Some(ix) = get(TaskKey::Env) {
            self.templates_in(ix, number, reads);
        }
        More {
            name: self.remark(get(TaskKey::Name)),
            description: self.remark(get(TaskKey::Description)),
            when: get(TaskKey::When).and_then(|ix| self.when(ix, number, reads)),
            confirmed: level == Some(Level::Confirmed),
            retry: self.retries(get(TaskKey::Retry), level),
            timeout: self.duration(get(TaskKey::Timeout), false),
            queue_timeout: self.duration(get(TaskKey::QueueTimeout), false),
            grace: self.duration(get(TaskKey::Grace), true),
            env,
            workdir: self.owned_text(get(TaskKey::Workdir)),
            target_node: self.owned_text(get(TaskKey::TargetNode)),
            needs: Vec::new(),
        }
    }

    /// Capabilities: a list of names, or one.
    fn needs(&mut self, ix: Ix, kind: Option<&Kind>) -> Vec<String> {
        if kind.is_some_and(|kind| !matches!(kind, Kind::External { .. })) {
            let problem = "only `external` tasks have needs yet".to_owned();
            let hint = "capabilities of a worker are meant; dependencies are `depends_on`".to_owned();
            self.key_problem(ProblemCode::NotYetSupported, ix, problem, hint);
            return Vec::new();
        }
        let tree = self.tree;
        let names: Vec<Ix> = match tree.value(ix) {
            Value::List(..) => tree.children(ix).collect(),
            _ => vec![ix],
        };
        let mut needs = Vec::with_capacity(names.len());
        for ix in names {
            let Some(name) = self.text(ix) else { continue };
            if is_name(name) {
                needs.push(name.to_owned());
            } else {
                self.bad_name(ix, name);
            }
        }
        needs.sort_unstable();
        needs.dedup();
        needs
    }

    /// A string that says something, kept.
    pub(super) fn owned_text(&mut self, ix: Option<Ix>) -> Option<String> {
        ix.and_then(|ix| self.some_text(ix)).map(str::to_owned)
    }

    fn when(&mut self, ix: Ix, number: usize, reads: &mut Vec<Read>) -> Option<String> {
        let text = self.some_text(ix)?;
        match self.templates.expression(text) {
            Ok(tasks) => {
                reads.extend(tasks.into_iter().map(|task| Read { reader: number, at: ix, task }));
                Some(text.to_owned())
            }
            Err(problem) => {
                let hint = if text.trim_start().starts_with("{{") {
                    "`when` is an expression already: write it without {{ }}"
                } else {
                    "an expression such as `params.stage == \"prod\"`"
                };
                self.problem_hint(ProblemCode::BadTemplate, ix, problem, hint);
                None
            }
        }
    }

    /// Checks the templates in every string under `ix`. Recursion is bounded by the tree's depth.
    pub(super) fn templates_in(&mut self, ix: Ix, number: usize, reads: &mut Vec<Read>) {
        match self.tree.value(ix) {
            Value::Text(text) => match self.templates.template(self.tree.str(text)) {
                Ok(tasks) => {
                    reads.extend(tasks.into_iter().map(|task| Read { reader: number, at: ix, task }))
                }
                Err(problem) => {
                    let hint = "templates look like {{ params.day }} or {{ tasks.dump.outputs.key }}; literal braces are written {{ \"{{\" }}";
                    self.problem_hint(ProblemCode::BadTemplate, ix, problem, hint);
                }
            },
            Value::List(..) | Value::Map(..) => {
                let tree = self.tree;
                for child in tree.children(ix) {
                    self.templates_in(child, number, reads);
                }
            }
            _ => {}
        }
    }

    fn kind(&mut self, node: Ix, fields: &Fields, number: usize, reads: &mut Vec<Read>) -> Option<Kind> {
        let get = |key: TaskKey| fields.get(key as u8);
        let declared = match get(TaskKey::Type) {
            Some(ix) => Some(self.type_word(ix)?),
            None => None,
        };
        let command = get(TaskKey::Command);
        let skill = get(TaskKey::Skill);
        let skill_text = skill.map(|ix| (ix, self.some_text(ix)));
        let names_shell = matches!(skill_text, Some((_, Some("shell" | "shell-exec"))));
        let kind = match (declared, command, skill) {
            (Some(Type::Skill), Some(_), _) if names_shell => Type::Shell,
            (Some(kind), ..) => kind,
            (None, _, Some(_)) if names_shell => Type::Shell,
            (None, _, Some(_)) => Type::Skill,
            (None, Some(_), None) => Type::Shell,
            (None, None, None) => {
                self.missing(node, "command", "a task", "give it a `command`, or a `skill`");
                return None;
            }
        };
        if kind != Type::Approval {
            self.refuse_questions(fields);
        }
        match kind {
            Type::External => Some(self.external(fields, number, reads)),
            Type::Approval => Some(self.approval(fields)),
            Type::Shell => {
                if let Some(ix) = skill.filter(|_| !names_shell) {
                    let hint = "remove `skill`, or `type = \"shell\"` and `command`".to_owned();
                    self.key_problem(ProblemCode::BadValue, ix, "a shell task has no skill".to_owned(), hint);
                }
                if let Some(ix) = get(TaskKey::Input) {
                    let hint = "hand values over in `env`".to_owned();
                    let problem = format!("a shell task has no `{}`", self.tree.key(ix));
                    self.key_problem(ProblemCode::BadValue, ix, problem, hint);
                }
                self.shell(node, command)
            }
            Type::Skill => {
                if let Some(ix) = command {
                    let hint = "remove `command`, or `skill`".to_owned();
                    self.key_problem(
                        ProblemCode::BadValue,
                        ix,
                        "a skill task has no command".to_owned(),
                        hint,
                    );
                }
                if skill.is_none() {
                    self.missing(node, "skill", "a skill task", "name the skill to call");
                }
                let input = get(TaskKey::Input).map(|ix| {
                    self.templates_in(ix, number, reads);
                    self.json(ix)
                });
                let (ix, name) = skill_text?;
                let name = name?;
                if !is_name(name) {
                    self.bad_name(ix, name);
                    return None;
                }
                Some(Kind::Skill(Box::new(SkillCall {
                    skill: name.to_owned(),
                    input: input.unwrap_or_default(),
                })))
            }
        }
    }

    /// What an external task is given. Nobody here starts a process for it, so what describes one has no place.
    fn external(&mut self, fields: &Fields, number: usize, reads: &mut Vec<Read>) -> Kind {
        let get = |key: TaskKey| fields.get(key as u8);
        let foreign = [
            TaskKey::Command,
            TaskKey::Skill,
            TaskKey::Env,
            TaskKey::Workdir,
            TaskKey::Grace,
            TaskKey::Detach,
        ];
        let tree = self.tree;
        let says_nothing = |ix: Ix| match tree.value(ix) {
            Value::Bool(said) => !said,
            Value::Map(..) => tree.children(ix).next().is_none(),
            _ => false,
        };
        for ix in foreign.into_iter().filter_map(get).filter(|ix| !says_nothing(*ix)) {
            let problem = format!("an external task has no `{}`", self.tree.key(ix));
            let hint = "whoever claims it is given `input`".to_owned();
            self.key_problem(ProblemCode::BadValue, ix, problem, hint);
        }
        let input = get(TaskKey::Input).map(|ix| {
            self.templates_in(ix, number, reads);
            self.json(ix)
        });
        Kind::External { input: Box::new(input.unwrap_or_default()) }
    }

    fn type_word(&mut self, ix: Ix) -> Option<Type> {
        match self.text(ix)? {
            "shell" => Some(Type::Shell),
            "skill" => Some(Type::Skill),
            "external" => Some(Type::External),
            "approval" => Some(Type::Approval),
            word if LATER_TYPES.contains(&word) => {
                let problem = format!("tasks of type `{word}` are not supported yet");
                self.problem_hint(
                    ProblemCode::NotYetSupported,
                    ix,
                    problem,
                    "use `shell`, `skill`, `external` or `approval`",
                );
                None
            }
            word => {
                let shown: String = word.chars().take(80).collect();
                let hint = match nearest(word, TYPES.into_iter()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "use `shell`, `skill`, `external` or `approval`".to_owned(),
                };
                self.problem_hint(
                    ProblemCode::BadValue,
                    ix,
                    format!("`{shown}` is not a type of task"),
                    hint,
                );
                None
            }
        }
    }

    fn shell(&mut self, node: Ix, command: Option<Ix>) -> Option<Kind> {
        let Some(ix) = command else {
            self.missing(node, "command", "a shell task", "what /bin/sh is to run");
            return None;
        };
        if let Value::List(..) = self.tree.value(ix) {
            let hint = "`command` is one string, which /bin/sh runs: \"cp 'a file' b\"";
            self.problem_hint(ProblemCode::WrongType, ix, "expected a string, found a list", hint);
            return None;
        }
        let text = self.some_text(ix)?;
        if is_ours(text) {
            let hint = "put it in `env`, as in env = { DAY = \"{{ params.day }}\" }, and write \"$DAY\" in the command";
            self.problem_hint(ProblemCode::BadTemplate, ix, "templates are not filled in commands", hint);
            return None;
        }
        Some(Kind::Shell { command: text.into() })
    }
}
