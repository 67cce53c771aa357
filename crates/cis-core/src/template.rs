//! Values into `env` and skill input, and `when` expressions.
//!
//! A template sees `params`, `tasks.<id>.outputs`, `dag` and `run`. What it makes becomes the value of an
//! environment variable, never part of a command, so no output can become code.

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};
use serde_json::Value as Json;

/// How much work one template may do before it is stopped.
const FUEL: u64 = 100_000;

/// What templates see.
#[derive(Debug, Clone, Default)]
pub struct Scene {
    pub params: Json,
    /// `{id: {"outputs": {…}}}` of the tasks before this one.
    pub tasks: Json,
    pub dag_id: String,
    pub run_id: String,
}

/// A template that cannot be filled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{template}`: {why}")]
pub struct TemplateError {
    pub template: String,
    pub why: String,
}

/// Is there anything to fill in `text`?
pub fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%") || text.contains("{#")
}

/// Fills `text`. A value that does not exist is an error, not an empty string.
pub fn fill(text: &str, scene: &Scene) -> Result<String, TemplateError> {
    if !is_template(text) {
        return Ok(text.to_owned());
    }
    environment().render_str(text, root(scene)).map_err(|e| broken(text, &e))
}

/// Fills every string inside `value`.
pub fn fill_json(value: &Json, scene: &Scene) -> Result<Json, TemplateError> {
    Ok(match value {
        Json::String(text) => Json::String(fill(text, scene)?),
        Json::Array(items) => {
            Json::Array(items.iter().map(|item| fill_json(item, scene)).collect::<Result<_, _>>()?)
        }
        Json::Object(map) => Json::Object(
            map.iter()
                .map(|(key, item)| Ok((key.clone(), fill_json(item, scene)?)))
                .collect::<Result<_, _>>()?,
        ),
        other => other.clone(),
    })
}

/// Is the `when` expression true?
pub fn holds(expression: &str, scene: &Scene) -> Result<bool, TemplateError> {
    let env = environment();
    let compiled = env.compile_expression(expression).map_err(|e| broken(expression, &e))?;
    let value = compiled.eval(root(scene)).map_err(|e| broken(expression, &e))?;
    if value.is_undefined() {
        let why = "it names something that does not exist".to_owned();
        return Err(TemplateError { template: expression.to_owned(), why });
    }
    Ok(value.is_true())
}

/// Does `text` read as a template?
pub fn check(text: &str) -> Result<(), TemplateError> {
    environment().template_from_str(text).map(|_| ()).map_err(|e| broken(text, &e))
}

/// Does `expression` read as a `when` expression?
pub fn check_expression(expression: &str) -> Result<(), TemplateError> {
    environment().compile_expression(expression).map(|_| ()).map_err(|e| broken(expression, &e))
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_fuel(Some(FUEL));
    // Everything but text is written as JSON: `true`, `null`, `[1,2]`, as programs and shells expect it.
    env.set_formatter(|out, state, value| match serde_json::to_string(value) {
        Ok(json) if value.as_str().is_none() && !value.is_undefined() => Ok(out.write_str(&json)?),
        _ => minijinja::escape_formatter(out, state, value),
    });
    env
}

fn root(scene: &Scene) -> Value {
    context! {
        params => Value::from(Serde(&scene.params)),
        tasks => Value::from(Serde(&scene.tasks)),
        dag => context! { id => scene.dag_id.as_str() },
        run => context! { id => scene.run_id.as_str() },
    }
}

fn broken(template: &str, error: &minijinja::Error) -> TemplateError {
    let why = error.detail().map_or_else(|| error.kind().to_string(), ToOwned::to_owned);
    TemplateError { template: template.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scene() -> Scene {
        Scene {
            params: json!({"day": "monday"}),
            tasks: json!({"dump": {"outputs": {"rows": 3, "evil": "$(rm -rf /)"}}}),
            dag_id: "backup".into(),
            run_id: "r1".into(),
        }
    }

    #[test]
    fn fills_params_and_outputs() {
        let text = "{{ params.day }}/{{ tasks.dump.outputs.rows }}/{{ dag.id }}";
        assert_eq!(fill(text, &scene()).unwrap(), "monday/3/backup");
        assert_eq!(fill("{{ tasks.dump.outputs.evil }}", &scene()).unwrap(), "$(rm -rf /)");
        assert_eq!(fill("plain { text }", &scene()).unwrap(), "plain { text }");
        assert_eq!(fill("{{ 1 == 1 }} {{ [1, 'a', none] }}", &scene()).unwrap(), "true [1,\"a\",null]");
        let input = json!({"a": ["{{ params.day }}", 1]});
        assert_eq!(fill_json(&input, &scene()).unwrap(), json!({"a": ["monday", 1]}));
    }

    #[test]
    fn what_does_not_exist_is_an_error() {
        for text in ["{{ params.nope }}", "{{ tasks.other.outputs.x }}", "{{ nope }}"] {
            assert!(fill(text, &scene()).is_err(), "{text}");
        }
    }

    #[test]
    fn when_is_an_expression() {
        assert!(holds("params.day == 'monday'", &scene()).unwrap());
        assert!(!holds("tasks.dump.outputs.rows > 3", &scene()).unwrap());
        assert!(holds("params.", &scene()).is_err());
        assert!(holds("params.typo", &scene()).is_err(), "a name that is not there is not merely false");
    }

    #[test]
    fn endless_templates_are_stopped() {
        let text = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(fill(text, &scene()).is_err());
    }
}
