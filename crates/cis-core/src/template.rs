//! Values into `env` and skill input, and `when` expressions.
//!
//! A template sees `params`, `tasks.<id>.outputs`, `dag` and `run`. What it makes becomes the value of an
//! environment variable, never part of a command, so no output can become code.

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};
use serde_json::Value as Json;

/// How much work one template may do before it is stopped.
const FUEL: u64 = 100_000;

/// Longest expression, and longest `{{ … }}`, `{% … %}` or `{# … #}`. Reading code recurses, so its length bounds the stack.
const CODE_MAX: usize = 2_048;

/// Most code in one text, for the same reason: a chain of `elif` goes as deep as it is long.
const CODE_TOTAL_MAX: usize = 8_192;

/// How code begins and ends.
const BLOCKS: [(&str, &str); 3] = [("{{", "}}"), ("{%", "%}"), (COMMENT, "#}")];
const COMMENT: &str = "{#";

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
    BLOCKS.iter().any(|(begin, _)| text.contains(begin))
}

/// Is there no more code in `text` than can be read?
pub(crate) fn check_length(text: &str) -> Result<(), String> {
    let (mut rest, mut total) = (text, 0);
    while let Some((at, begin, end)) = next_block(rest) {
        rest = &rest[at + begin.len()..];
        let length = if begin == COMMENT { rest.find(end) } else { code_end(rest, end) };
        let length = length.unwrap_or(rest.len());
        total += length;
        if length > CODE_MAX {
            return Err(format!("template code of more than {CODE_MAX} bytes"));
        }
        if total > CODE_TOTAL_MAX {
            return Err(format!("template code of more than {CODE_TOTAL_MAX} bytes in one text"));
        }
        rest = rest.get(length + end.len()..).unwrap_or_default();
    }
    Ok(())
}

/// Can an expression of this length be read?
pub(crate) fn check_expression_length(expression: &str) -> Result<(), String> {
    if expression.len() > CODE_MAX {
        return Err(format!("an expression of more than {CODE_MAX} bytes"));
    }
    Ok(())
}

/// Where code begins next, and by what it begins and ends.
fn next_block(text: &str) -> Option<(usize, &'static str, &'static str)> {
    let block = |pair: &[u8]| BLOCKS.iter().find(|(begin, _)| begin.as_bytes() == pair);
    let mut found = text.as_bytes().windows(2).enumerate();
    found.find_map(|(at, pair)| block(pair).map(|(begin, end)| (at, *begin, *end)))
}

/// Where code ends: not within quotes, and not where it only closes a map. Wherever this and the engine's own reading
/// differ, it must be this that takes more for code.
fn code_end(code: &str, end: &str) -> Option<usize> {
    let (mut quote, mut escaped, mut maps) = (None, false, 0_usize);
    for (at, byte) in code.bytes().enumerate() {
        match (quote, byte) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), b'\\') => escaped = true,
            (Some(begun), _) if begun == byte => quote = None,
            (Some(_), _) => {}
            (None, _) if maps == 0 && code.as_bytes()[at..].starts_with(end.as_bytes()) => return Some(at),
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'{') => maps += 1,
            (None, b'}') => maps = maps.saturating_sub(1),
            (None, _) => {}
        }
    }
    None
}

/// Fills `text`. A value that does not exist is an error, not an empty string.
pub fn fill(text: &str, scene: &Scene) -> Result<String, TemplateError> {
    if !is_template(text) {
        return Ok(text.to_owned());
    }
    check_length(text).map_err(|why| TemplateError { template: text.to_owned(), why })?;
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
    check_expression_length(expression)
        .map_err(|why| TemplateError { template: expression.to_owned(), why })?;
    let env = environment();
    let compiled = env.compile_expression(expression).map_err(|e| broken(expression, &e))?;
    let value = compiled.eval(root(scene)).map_err(|e| broken(expression, &e))?;
    if value.is_undefined() {
        let why = "it names something that does not exist".to_owned();
        return Err(TemplateError { template: expression.to_owned(), why });
    }
    Ok(value.is_true())
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

    /// However code is hidden behind what looks like its end, it is not read any deeper than the stack reaches.
    #[test]
    fn code_that_would_overflow_the_stack_is_refused() {
        let chain = "~1".repeat(100_000);
        for begin in [
            "{{ 1",
            "{{ '}}'",
            "{{ \"\\\"}}\"",
            "{{ {'a': {'b': 1}}",
            "{# {{ #}{{ 1",
            "{% raw %}{#{% endraw %}{{ 1",
            "{% raw %}{{ '{% endraw %}{{ 1",
            "{% raw %}{{ { {% endraw %}{{ 1",
        ] {
            let error = fill(&format!("{begin}{chain} }}}}"), &scene()).unwrap_err();
            assert!(error.why.starts_with("template code of more than"), "{begin}: {}", error.why);
        }
        let set = fill(&format!("{{% set a = '%}}'{chain} %}}"), &scene()).unwrap_err();
        assert!(set.why.starts_with("template code of more than"), "{}", set.why);
        let elifs = format!("{{% if 1 %}}{}{{% endif %}}", "{%elif 1%}".repeat(100_000));
        assert!(fill(&elifs, &scene()).unwrap_err().why.ends_with("in one text"));
        assert!(holds(&format!("1{chain}"), &scene()).unwrap_err().why.starts_with("an expression of more"));
        let long = "x".repeat(100_000);
        assert_eq!(fill(&format!("{{{{ params.day }}}}{long}"), &scene()).unwrap(), format!("monday{long}"));
    }
}
