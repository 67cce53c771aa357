//! Checks templates before anything runs: their syntax, and that what they read can be there.

use std::collections::HashSet;

use minijinja::Environment;

use crate::template::{check_expression_length, check_length, is_template};

/// What templates see, as in [`crate::template`].
const ROOTS: [&str; 4] = ["params", "tasks", "dag", "run"];

/// What a template says that can do without a value.
const LENIENT: [&str; 3] = ["default", "defined", "|d"];

/// Compiles templates to see whether they would.
pub(super) struct Templates<'t> {
    engine: Environment<'t>,
    /// The parameters the DAG declares, once they are known: a run can set no others.
    params: Option<Vec<&'t str>>,
}

impl<'t> Templates<'t> {
    pub(super) fn new() -> Self {
        Self { engine: Environment::new(), params: None }
    }

    /// From now on no other parameters may be read.
    pub(super) fn declare(&mut self, params: Vec<&'t str>) {
        self.params = Some(params);
    }

    /// The tasks whose outputs `text` reads; the error says what is wrong with it.
    pub(super) fn template(&self, text: &'t str) -> Result<Vec<String>, String> {
        if !is_template(text) {
            return Ok(Vec::new());
        }
        check_length(text)?;
        let template = self.engine.template_from_str(text).map_err(|error| words(&error))?;
        self.tasks_read(text, template.undeclared_variables(true))
    }

    /// The same for an expression without braces.
    pub(super) fn expression(&self, text: &'t str) -> Result<Vec<String>, String> {
        check_expression_length(text)?;
        let expression = self.engine.compile_expression(text).map_err(|error| words(&error))?;
        self.tasks_read(text, expression.undeclared_variables(true))
    }

    /// `tasks.dump.outputs.key` reads `dump`.
    fn tasks_read(&self, text: &str, names: HashSet<String>) -> Result<Vec<String>, String> {
        let mut read = Vec::new();
        // The smallest, so that the same file always says the same.
        let mut wrong = names.iter().filter_map(|name| self.unreadable(text, name)).collect::<Vec<_>>();
        wrong.sort_unstable();
        if let Some(problem) = wrong.into_iter().next() {
            return Err(problem);
        }
        for name in &names {
            read.extend(
                name.strip_prefix("tasks.").and_then(|rest| rest.split('.').next()).map(str::to_owned),
            );
        }
        read.sort_unstable();
        read.dedup();
        Ok(read)
    }

    /// Why `name` can never be there.
    fn unreadable(&self, text: &str, name: &str) -> Option<String> {
        let mut steps = name.split('.');
        let root = steps.next().unwrap_or_default();
        if !ROOTS.contains(&root) {
            let known = self.engine.globals().any(|(global, _)| global == root);
            return (!known).then(|| format!("`{root}` is unknown; templates see {}", ROOTS.join(", ")));
        }
        // Who asks whether it is there, or calls what it can do, knows what to do if it is not.
        let called = text.contains(&format!("{name}("));
        if called || LENIENT.iter().any(|word| text.contains(word)) {
            return None;
        }
        match (root, steps.next(), steps.next()) {
            ("params", Some(param), _) => {
                let params = self.params.as_ref().filter(|params| !params.contains(&param))?;
                let declared = if params.is_empty() { "none".to_owned() } else { params.join(", ") };
                Some(format!("there is no parameter `{param}`; the `params` of the DAG declare {declared}"))
            }
            ("tasks", Some(task), Some(part)) if part != "outputs" => {
                Some(format!("a task has only `outputs`: `tasks.{task}.outputs`, not `tasks.{task}.{part}`"))
            }
            ("dag" | "run", Some(part), _) if part != "id" => {
                Some(format!("there is no `{root}.{part}`, only `{root}.id`"))
            }
            _ => None,
        }
    }
}

/// Does a command hold one of our templates? Other programs have braces of their own:
/// `docker ps --format '{{.Names}}'` is none of our business.
pub(super) fn is_ours(command: &str) -> bool {
    command.match_indices("{{").any(|(at, _)| {
        let inside = command[at + 2..].trim_start_matches('-').trim_start();
        ROOTS.iter().any(|root| {
            inside.strip_prefix(root).is_some_and(|rest| {
                rest.starts_with(['.', '['])
                    || rest.trim_start().starts_with("}}")
                    || rest.trim_start().starts_with('|')
            })
        })
    })
}

fn words(error: &minijinja::Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_read() {
        let templates = Templates::new();
        let read = templates
            .template("{{ tasks.a.outputs.x }} {{ params.day }} {% if tasks.b.outputs.y %}z{% endif %}");
        assert_eq!(read.unwrap(), ["a", "b"]);
        assert_eq!(templates.expression("tasks.a.outputs.n > 3 and params.go").unwrap(), ["a"]);
        assert!(templates.template("{{ range(3) }}{% set x = 1 %}{{ x }}").unwrap().is_empty());
        assert_eq!(
            templates.template("{{ zebra.a }}{{ ape }}").unwrap_err(),
            "`ape` is unknown; templates see params, tasks, dag, run"
        );
        assert!(templates.template("{{ params. }}").is_err());
        assert!(templates.expression("params.x ==").is_err());
        assert!(templates.template("no braces }}").unwrap().is_empty());
    }

    #[test]
    fn what_can_never_be_there_is_not_read() {
        let mut templates = Templates::new();
        assert!(templates.template("{{ params.whom }}").is_ok(), "nobody knows yet");
        templates.declare(vec!["day", "who"]);
        assert_eq!(
            templates.template("{{ params.whom }}").unwrap_err(),
            "there is no parameter `whom`; the `params` of the DAG declare day, who"
        );
        assert!(templates.expression("params.x == 1").is_err());
        for fine in
            ["{{ params.day }}", "{{ params.x | default('y') }}", "{{ params.get('x') }}", "{{ params }}"]
        {
            assert!(templates.template(fine).is_ok(), "{fine}");
        }
        assert!(templates.expression("params.x is defined and params.x").is_ok());
        assert_eq!(
            templates.template("{{ tasks.a.output.x }}").unwrap_err(),
            "a task has only `outputs`: `tasks.a.outputs`, not `tasks.a.output`"
        );
        assert!(templates.expression("tasks.a.status == 'failed'").is_err());
        assert_eq!(
            templates.template("{{ dag.name }}").unwrap_err(),
            "there is no `dag.name`, only `dag.id`"
        );
        assert!(templates.template("{{ dag.id }} {{ run.id }}").is_ok());
    }

    #[test]
    fn other_programs_braces_are_theirs() {
        for theirs in [
            "docker ps --format '{{.Names}}'",
            "echo '{{ .Env }}'",
            "helm '{{ include \"x\" . }}'",
            "echo ${{x}",
        ] {
            assert!(!is_ours(theirs), "{theirs}");
        }
        for ours in [
            "echo {{ params.day }}",
            "echo {{tasks.a.outputs.b}}",
            "echo {{- params['A'] }}",
            "echo {{ params }}",
        ] {
            assert!(is_ours(ours), "{ours}");
        }
    }

    #[test]
    fn long_expressions_do_not_eat_the_stack() {
        let templates = Templates::new();
        for piece in ["1+", "not ", "-", "a|b|", "a.", "(", "[", "{'a':", "a(", "a if b else "] {
            for count in [500, 100_000] {
                let code = piece.repeat(count);
                let text = format!("{{{{ {code}1 }}}}");
                let text: &'static str = text.leak();
                let _ = templates.template(text);
                let _ = templates.expression(code.leak());
            }
        }
        let branches = format!("{{% if a %}}{}{{% endif %}}", "{%elif a%}".repeat(1_500));
        let _ = templates.template(branches.leak());
        let nested = "{%if a%}".repeat(2_000);
        let _ = templates.template(nested.leak());
    }
}
