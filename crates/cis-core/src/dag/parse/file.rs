//! The whole file: its wrappers, and the settings of the DAG.

use super::graph::Graph;
use super::task::Draft;
use super::tree::{Ix, Value};
use super::walk::{Fields, Walk};
use super::words::{DAG, DagKey, Meaning, TASK, Words};
use super::{Defaults, Parsed};
use crate::dag::model::{Dag, Policy, Task};
use crate::dag::problem::{Problem, ProblemCode};
use crate::id::{DagId, Scope, is_name};
use crate::review::ReviewId;

/// Most tasks in one DAG.
pub const TASKS_MAX: usize = 100_000;

/// The keys of a `[skill]` table that say nothing about the DAG.
const SKILL_REMARKS: [&str; 9] =
    ["version", "author", "authors", "license", "homepage", "repository", "tags", "keywords", "category"];

/// What a `[skill]` table says about the DAG beside it.
#[derive(Default)]
struct Skill<'t> {
    name: Option<(Ix, &'t str)>,
    description: Option<String>,
}

impl<'t> Walk<'t> {
    /// Understands the file. `None` means there were problems.
    pub(super) fn file(&mut self, defaults: &Defaults) -> Option<Parsed> {
        let nothing = self.tree.len() == 0 || matches!(self.tree.value(0), Value::Null);
        if nothing || (matches!(self.tree.value(0), Value::Map(..)) && self.tree.len() == 1) {
            let hint = "a DAG has `tasks`, each with an `id` and a `command`";
            self.report.whole(Problem::new(ProblemCode::EmptyDag, "", "the file is empty").hint(hint));
            return None;
        }
        self.check_numbers_and_repeats();
        let root = 0;
        if !matches!(self.tree.value(root), Value::Map(..)) {
            let problem = format!("expected a table, found {}", self.tree.value(root).word());
            let hint = match self.tree.value(root) {
                Value::List(..) => "put the list under `tasks`",
                _ => "this does not look like a DAG; is it the right file?",
            };
            self.problem_hint(ProblemCode::WrongType, root, problem, hint);
            return None;
        }
        let tree = self.tree;
        let child = |key: &str| tree.children(root).find(|child| tree.key(*child) == key);
        match (child("skill"), child("dag")) {
            (None, None) => self.dag(root, Skill::default(), defaults),
            (skill, dag) => {
                for other in tree.children(root).filter(|ix| !matches!(tree.key(*ix), "skill" | "dag")) {
                    let hint = match DAG.meaning(tree.key(other)) {
                        Meaning::Known(_) | Meaning::Later(_) => {
                            format!("move it under `dag`: `dag.{}`", tree.key(other))
                        }
                        _ => "beside `dag` there may be `skill`, nothing else".to_owned(),
                    };
                    self.unknown_key(other, hint);
                }
                let skill = skill.map(|ix| self.skill(ix)).unwrap_or_default();
                let Some(dag) = dag else {
                    self.missing(root, "dag", "a skill that is a DAG", "put the tasks under `dag`");
                    return None;
                };
                if !self.is_map(dag) {
                    return None;
                }
                self.dag(dag, skill, defaults)
            }
        }
    }

    /// The `[skill]` table of an existing skill file.
    fn skill(&mut self, ix: Ix) -> Skill<'t> {
        let mut skill = Skill::default();
        if !self.is_map(ix) {
            return skill;
        }
        let tree = self.tree;
        for child in tree.children(ix) {
            match tree.key(child) {
                "name" => skill.name = self.text(child).map(|text| (child, text)),
                "description" => skill.description = self.remark(Some(child)),
                "type" => match self.text(child) {
                    Some("dag") | None => {}
                    Some(other) => {
                        let shown: String = other.chars().take(80).collect();
                        let problem = format!("a skill of type `{shown}` is not a DAG");
                        self.problem_hint(
                            ProblemCode::BadValue,
                            child,
                            problem,
                            "a DAG has `type = \"dag\"`",
                        );
                    }
                },
                key if SKILL_REMARKS.contains(&key) => {}
                _ => {
                    let hint = "a skill has `name`, `version`, `type`, `description`, `author`".to_owned();
                    self.unknown_key(child, hint);
                }
            }
        }
        skill
    }

    fn dag(&mut self, map: Ix, skill: Skill<'t>, defaults: &Defaults) -> Option<Parsed> {
        let tree = self.tree;
        let fields = self.fields(map, &DAG, |child| DAG.meaning(tree.key(child)));
        let get = |key: DagKey| fields.get(key as u8);
        let (dag_id, title) = self.dag_id(map, &fields, &skill, defaults);
        let scope = get(DagKey::Scope).and_then(|ix| self.scope(ix));
        let max_parallel = get(DagKey::MaxParallel).and_then(|ix| self.integer(ix, 1, TASKS_MAX as i64));
        if let Some(ix) = get(DagKey::Version)
            && !matches!(self.tree.value(ix), Value::Text(_) | Value::Int(_) | Value::Float(_))
        {
            self.wrong_type(ix, "a string or a number");
        }
        let params = get(DagKey::Params);
        // Where something is wrong already, it may be with what they are called.
        if self.report.is_clean() && params.is_none_or(|ix| matches!(tree.value(ix), Value::Map(..))) {
            let declared = params.into_iter().flat_map(|ix| tree.children(ix));
            self.templates.declare(declared.map(|ix| tree.key(ix)).collect());
        }
        let env = self.env(get(DagKey::Env));
        let mut reads = Vec::new();
        if let Some(ix) = get(DagKey::Env) {
            // It holds for every task, so there is no task whose outputs it could read.
            self.templates_in(ix, usize::MAX, &mut reads);
        }
        for read in reads.drain(..) {
            let problem = "the env of the DAG cannot read a task's outputs";
            self.problem_hint(ProblemCode::BadTemplate, read.at, problem, "move it to the `env` of a task");
        }
        let description = self.remark(get(DagKey::Description)).or(title).or(skill.description);
        let policy = self.word(get(DagKey::Policy), &Policy::WORDS).unwrap_or_default();
        let dag = (
            self.owned_text(get(DagKey::TargetNode)),
            self.priority(get(DagKey::Priority)),
            self.duration(get(DagKey::Timeout), false),
            self.duration(get(DagKey::QueueTimeout), false),
            self.values(get(DagKey::Params)),
            self.owned_text(get(DagKey::Workdir)),
        );
        let tasks = self.tasks(map, &fields);
        let (target_node, priority, timeout, queue_timeout, params, workdir) = dag;
        let explicit_scope = scope.is_some();
        let dag = Dag {
            dag_id: dag_id?,
            scope: scope.or_else(|| defaults.scope.clone()).unwrap_or_else(Scope::global),
            description,
            target_node,
            priority,
            policy,
            max_parallel: max_parallel.and_then(|count| u32::try_from(count).ok()),
            timeout,
            queue_timeout,
            env,
            params,
            workdir,
            skills: std::collections::BTreeMap::new(),
            tasks: tasks?,
        };
        Some(Parsed { dag, warnings: Vec::new(), explicit_scope })
    }

    /// The DAG's id, and its `name` where that turned out to be a description.
    fn dag_id(
        &mut self,
        map: Ix,
        fields: &Fields,
        skill: &Skill<'t>,
        defaults: &Defaults,
    ) -> (Option<DagId>, Option<String>) {
        let get = |key: DagKey| fields.get(key as u8);
        let own = get(DagKey::DagId).map(|ix| (ix, self.text(ix)));
        let name = get(DagKey::Name).and_then(|ix| self.text(ix).map(|text| (ix, text)));
        if let (Some((ix, Some(own))), Some((_, skill))) = (own, skill.name)
            && own != skill
        {
            let problem = "`skill.name` names another DAG".to_owned();
            self.key_problem(ProblemCode::DuplicateKey, ix, problem, "keep one of the two".to_owned());
        }
        let named = match (own, skill.name) {
            (Some((_, None)), _) => return (None, None),
            (Some((ix, Some(text))), _) => Some((ix, text)),
            (None, skill) => skill,
        };
        let is_id = named.is_none() && name.is_some_and(|(_, text)| is_name(text));
        let title = name.filter(|_| !is_id).map(|(_, text)| text.to_owned());
        if let (Some(_), Some((ix, _)), Some(_)) = (&title, name, get(DagKey::Description)) {
            let problem = "`name` and `description` both describe the DAG".to_owned();
            self.key_problem(ProblemCode::DuplicateKey, ix, problem, "keep `description`".to_owned());
        }
        let id: Option<DagId> = match (named, name, &defaults.dag_id) {
            (Some((ix, text)), ..) => {
                let id = text.parse().ok();
                if id.is_none() {
                    self.bad_name(ix, text);
                }
                id
            }
            (None, Some((_, text)), _) if is_id => text.parse().ok(),
            (None, _, Some(stem)) => {
                let id = stem.parse().ok();
                if id.is_none() {
                    let problem = format!("the file's name `{stem}` cannot be its `dag_id`");
                    let hint = "give the DAG a `dag_id` of A-Z a-z 0-9 . _ -";
                    self.report.whole(Problem::new(ProblemCode::BadName, "", problem).hint(hint));
                }
                id
            }
            (None, _, None) => {
                self.missing(map, "dag_id", "a DAG", "give it a name that no other DAG has");
                None
            }
        };
        if let Some(id) = &id {
            self.refuse_review_id(named.or(name.filter(|_| is_id)).map(|(ix, _)| ix), id);
        }
        (id, title)
    }

    /// A DAG that is called like a review id would be shown in place of what the review is about. A stored one is read
    /// without this: earlier versions took such names.
    fn refuse_review_id(&mut self, at: Option<Ix>, id: &DagId) {
        if id.as_str().parse::<ReviewId>().is_err() {
            return;
        }
        let problem = format!("`{id}` reads as a review id");
        let hint = "give the DAG a `dag_id` that is not `r-` and 12 letters or digits";
        match at {
            Some(ix) => self.problem_hint(ProblemCode::BadName, ix, problem, hint),
            None => self.report.whole(Problem::new(ProblemCode::BadName, "dag_id", problem).hint(hint)),
        }
    }

    fn scope(&mut self, ix: Ix) -> Option<Scope> {
        let text = self.text(ix)?;
        if Scope::is_well_formed(text) {
            return text.parse().ok();
        }
        let shown: String = text.chars().take(80).collect();
        let problem = format!("`{shown}` is not a scope");
        self.problem_hint(ProblemCode::BadName, ix, problem, "use `global`, `project-NAME` or `user-NAME`");
        None
    }

    fn tasks(&mut self, map: Ix, fields: &Fields) -> Option<Vec<Task>> {
        let Some(list) = fields.get(DagKey::Tasks as u8) else {
            if !fields.foreign_tasks {
                self.missing(map, "tasks", "a DAG", "a list of tasks, each with an `id` and a `command`");
            }
            return None;
        };
        match self.tree.value(list) {
            Value::List(..) => {}
            Value::Map(..) => {
                let problem = "expected a list, found a table";
                let hint = "write the tasks as a list, each with its `id` inside";
                self.problem_hint(ProblemCode::WrongType, list, problem, hint);
                return None;
            }
            _ => {
                self.wrong_type(list, "a list of tasks");
                return None;
            }
        }
        let count = self.tree.children(list).count();
        if count == 0 {
            self.problem_hint(ProblemCode::EmptyDag, list, "no tasks", "a DAG has at least one");
            return None;
        }
        if count > TASKS_MAX {
            let problem = format!("{count} tasks, more than {TASKS_MAX}");
            self.problem_hint(ProblemCode::TooManyTasks, list, problem, "split it into several DAGs");
            return None;
        }
        self.all_tasks(list, count)
    }

    fn all_tasks(&mut self, list: Ix, count: usize) -> Option<Vec<Task>> {
        let meanings = meanings(self, &TASK);
        let tree = self.tree;
        let mut drafts: Vec<Draft<'t>> = Vec::with_capacity(count);
        let mut tasks = Vec::with_capacity(count);
        let mut reads = Vec::new();
        for (number, node) in tree.children(list).enumerate() {
            let (draft, task) = self.task(node, &meanings, number, &mut reads);
            drafts.push(draft);
            tasks.extend(task);
        }
        let Graph { depends_on, .. } = self.graph(&drafts, &reads);
        // Fewer means that something was reported.
        if tasks.len() < count || depends_on.len() < count {
            return None;
        }
        for (task, depends_on) in tasks.iter_mut().zip(depends_on) {
            task.depends_on = depends_on;
        }
        Some(tasks)
    }
}

/// What each key of the file means among `words`, looked up once.
fn meanings(walk: &Walk<'_>, words: &Words) -> Vec<Meaning> {
    walk.tree.all_keys().map(|key| words.meaning(key)).collect()
}
