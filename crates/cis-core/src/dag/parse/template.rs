//! Checks templates before anything runs: their syntax, and that what they read can be there.

use std::collections::HashSet;

use minijinja::Environment;

use crate::template::{check_expression_length, check_length, is_template};

/// What templates see, as in [`crate::template`].
const ROOTS: [&str; 4] = ["params", "tasks", "dag", "run"];

/// Compiles templates to see whether they would.
pub(super) struct Templates<'t> {
    engine: Environment<'t>,
}

impl<'t> Templates<'t> {
    pub(super) fn new() -> Self {
        Self { engine: Environment::new() }
    }

    /// The tasks whose outputs `text` reads; the error says what is wrong with it.
    pub(super) fn template(&self, text: &'t str) -> Result<Vec<String>, String> {
        if !is_template(text) {
            return Ok(Vec::new());
        }
        check_length(text)?;
        let template = self.engine.template_from_str(text).map_err(|error| words(&error))?;
        self.tasks_read(template.undeclared_variables(true))
    }

    /// The same for an expression without braces.
    pub(super) fn expression(&self, text: &'t str) -> Result<Vec<String>, String> {
        check_expression_length(text)?;
        let expression = self.engine.compile_expression(text).map_err(|error| words(&error))?;
        self.tasks_read(expression.undeclared_variables(true))
    }

    /// `tasks.dump.outputs.key` reads `dump`.
    fn tasks_read(&self, names: HashSet<String>) -> Result<Vec<String>, String> {
        let mut read = Vec::new();
        let mut unknown: Vec<&str> = Vec::new();
        for name in &names {
            let mut steps = name.split('.');
            let root = steps.next().unwrap_or_default();
            if root == "tasks" {
                read.extend(steps.next().map(str::to_owned));
            } else if !ROOTS.contains(&root) && !self.engine.globals().any(|(global, _)| global == root) {
                unknown.push(root);
            }
        }
        // The smallest, so that the same file always says the same.
        if let Some(root) = unknown.into_iter().min() {
            return Err(format!("`{root}` is unknown; templates see {}", ROOTS.join(", ")));
        }
        read.sort_unstable();
        read.dedup();
        Ok(read)
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
