//! The parameters a run is given: the definition's defaults, overridden by what its caller says.

use std::io;

use serde_json::{Map, Value, json};

use super::model::Dag;
use super::parse::words::nearest;
use crate::error::{ErrorCode, Refusal};

/// How long all parameters of a run may be together, as JSON. The store's writer keeps them in memory while the run goes on,
/// and every list of runs tells them.
pub const PARAMS_BYTES_MAX: usize = 256 << 10;

/// Beyond this, integers share their floating-point values: 2^53.
const EXACT_MAX: u64 = 1 << 53;

/// What is wrong with one parameter.
struct Wrong<'p> {
    name: &'p str,
    problem: String,
    hint: String,
}

/// Every parameter with its value; all that does not fit is told at once.
pub fn filled(dag: &Dag, given: &Map<String, Value>) -> Result<Value, Refusal> {
    let wrong: Vec<Wrong<'_>> = given.iter().filter_map(|(name, value)| wrong(dag, name, value)).collect();
    if !wrong.is_empty() {
        return Err(refusal(&wrong));
    }
    let mut params: Map<String, Value> = dag.params.clone().into_iter().collect();
    params.extend(given.clone());
    check_size(&params)?;
    Ok(Value::Object(params))
}

/// Refuses parameters that are too long together. The defaults of a definition alone may be.
pub fn check_size<'p>(params: impl IntoIterator<Item = (&'p String, &'p Value)>) -> Result<(), Refusal> {
    // Quotes, colon and comma, and the braces around all.
    let sizes = params.into_iter().map(|(name, value)| (name, name.len() + json_bytes(value) + 4));
    let (mut all, mut largest) = (1_usize, None);
    for (name, bytes) in sizes {
        all = all.saturating_add(bytes);
        largest = largest.max(Some((bytes, name)));
    }
    match largest {
        Some((bytes, name)) if all > PARAMS_BYTES_MAX => Err(refusal(&[Wrong {
            name,
            problem: format!(
                "the parameters have {all} bytes as JSON, and may have {PARAMS_BYTES_MAX}; the largest is `{name}`, with {bytes}"
            ),
            hint: "hand large values on in files, and give their paths".to_owned(),
        }])),
        _ => Ok(()),
    }
}

/// How long a value is as JSON, without writing it.
fn json_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Neither a value nor a count can fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

fn wrong<'p>(dag: &Dag, name: &'p str, value: &Value) -> Option<Wrong<'p>> {
    let wrong = |problem, hint| Some(Wrong { name, problem, hint });
    let Some(default) = dag.params.get(name) else {
        let hint = match nearest(name, dag.params.keys().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "a DAG declares its parameters under `params`, with their defaults".to_owned(),
        };
        return wrong(format!("`{}` has no parameter `{name}`", dag.dag_id), hint);
    };
    if default.is_string() && !value.is_string() {
        return wrong(format!("`{name}` is a string"), format!("its default is `{default}`"));
    }
    if !is_exact(value) {
        let problem = format!("`{name}` is beyond 2^53, where numbers stop being exact");
        return wrong(problem, "write it as a string".to_owned());
    }
    None
}

fn is_exact(value: &Value) -> bool {
    match value {
        // Integers as integers: the first one beyond would be rounded to the last one that is exact.
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => integer.unsigned_abs() <= EXACT_MAX,
            (None, number) => number.is_some_and(|number| number.abs() <= EXACT_MAX as f64),
        },
        Value::Array(values) => values.iter().all(is_exact),
        Value::Object(values) => values.values().all(is_exact),
        _ => true,
    }
}

fn refusal(wrong: &[Wrong<'_>]) -> Refusal {
    let tell = |Wrong { name, problem, hint }: &Wrong<'_>| json!({"path": format!("params.{name}"), "problem": problem, "hint": hint});
    let details = wrong.iter().map(tell).collect();
    let refusal = match wrong {
        [only] => Refusal::new(ErrorCode::ValidationFailed, only.problem.clone()).hint(only.hint.clone()),
        all => Refusal::new(ErrorCode::ValidationFailed, format!("{} parameters do not fit", all.len())),
    };
    refusal.details(details)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::{Defaults, Format, parse};

    fn given(value: Value) -> Result<Value, Refusal> {
        let text = r#"{"dag_id": "d", "params": {"day": "today", "count": 3}, "tasks": [{"id": "a", "command": "true"}]}"#;
        let dag = parse(text.as_bytes(), Format::Json, &Defaults::default()).unwrap().dag;
        filled(&dag, value.as_object().unwrap())
    }

    #[test]
    fn what_is_given_stands_before_the_default() {
        assert_eq!(given(json!({})).unwrap(), json!({"day": "today", "count": 3}));
        assert_eq!(given(json!({"count": [1]})).unwrap(), json!({"day": "today", "count": [1]}));
    }

    #[test]
    fn all_that_does_not_fit_is_told() {
        let refusal = given(json!({"dya": "x"})).unwrap_err();
        assert_eq!(refusal.message, "`d` has no parameter `dya`");
        assert_eq!(refusal.hint.as_deref(), Some("did you mean `day`?"));
        let refusal = given(json!({"zzzzz": 1, "day": 2, "count": {"a": [9_007_199_254_740_993_u64 * 2]}}));
        let paths: Vec<Value> =
            refusal.unwrap_err().details.as_array().unwrap().iter().map(|d| d["path"].clone()).collect();
        assert_eq!(paths, ["params.count", "params.day", "params.zzzzz"]);
    }

    #[test]
    fn parameters_that_are_too_long_together_are_refused() {
        // `{"count":"…","day":"…"}`: 21 bytes beside the values.
        let half = "x".repeat(PARAMS_BYTES_MAX / 2);
        let rest = "y".repeat(PARAMS_BYTES_MAX - half.len() - 21);
        let fits = given(json!({"count": half, "day": rest})).unwrap();
        assert_eq!(fits.to_string().len(), PARAMS_BYTES_MAX);
        let refusal = given(json!({"count": half, "day": format!("{rest}y")})).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::ValidationFailed);
        assert_eq!(refusal.details[0]["path"], "params.count");
        assert!(refusal.message.contains("`count`"), "{}", refusal.message);
        assert!(refusal.hint.unwrap().contains("files"));
        // What is escaped counts as it is written.
        assert!(given(json!({"day": "\u{1}".repeat(PARAMS_BYTES_MAX / 6)})).is_err());
    }

    #[test]
    fn integers_beyond_2_to_the_53_are_refused() {
        for exact in [EXACT_MAX.cast_signed(), -EXACT_MAX.cast_signed()] {
            assert!(given(json!({"count": exact})).is_ok(), "{exact}");
            let beyond = exact + exact.signum();
            assert_eq!(given(json!({"count": beyond})).unwrap_err().code, ErrorCode::ValidationFailed);
        }
    }
}
