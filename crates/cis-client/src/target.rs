//! The target of a request, in HTTP's sense: the path of a call with its names filled in, and the query.

use cis_api::{Call, Request};
use serde::Serialize;
use serde_json::Value;

/// `path?name=value&…` of a request.
pub(crate) fn of<C: Call>(request: &Request<C>) -> String {
    let mut target = C::PATH.to_owned();
    for (name, value) in fields(&request.path) {
        target = target.replace(&format!("{{{name}}}"), &escape(&value));
    }
    for (number, (name, value)) in fields(&request.query).into_iter().enumerate() {
        target.push(if number == 0 { '?' } else { '&' });
        target += &format!("{name}={}", escape(&value));
    }
    target
}

/// The fields of a part of a request as text, without those that are `null`.
fn fields(part: &impl Serialize) -> Vec<(String, String)> {
    let Ok(Value::Object(fields)) = serde_json::to_value(part) else { return Vec::new() };
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    given
        .map(|(name, value)| match value {
            Value::String(text) => (name, text),
            other => (name, other.to_string()),
        })
        .collect()
}

/// As one part of a path or a query: what is not plain in both is spelled by its bytes.
fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use cis_api::Nothing;
    use cis_api::calls::{ApproveTask, DagStatus, ListDags, RunLogs, ShowReady};
    use cis_api::dag::{DagPath, DagQuery, StatusQuery};
    use cis_api::log::LogQuery;
    use cis_api::run::RunPath;
    use cis_api::task::{TaskDecision, TaskPath};

    use super::*;

    #[test]
    fn names_with_special_characters_stay_one_part_of_the_path() {
        let path = DagPath { id: "a/../b?c#1 é".into() };
        let request = Request::<DagStatus>::new(path, StatusQuery::default(), Nothing {});
        assert_eq!(of(&request), "/api/v1/dag/a%2F..%2Fb%3Fc%231%20%C3%A9/status");
        let path = TaskPath { run: "1".into(), task: "{run}".into() };
        let request = Request::<ApproveTask>::new(path, Nothing {}, TaskDecision::default());
        assert_eq!(of(&request), "/api/v1/runs/1/tasks/%7Brun%7D/approve");
    }

    #[test]
    fn query_holds_what_is_given_and_nothing_else() {
        let query = DagQuery { q: Some("x&y".into()), limit: Some(7), ..DagQuery::default() };
        let request = Request::<ListDags>::new(Nothing {}, query, Nothing {});
        assert_eq!(of(&request), "/api/v1/dag?limit=7&order=created&q=x%26y");
        let query = LogQuery { follow: true, ..LogQuery::default() };
        let request = Request::<RunLogs>::new(RunPath { run: "1".into() }, query, Nothing {});
        assert_eq!(of(&request), "/api/v1/runs/1/logs?follow=true");
        assert_eq!(of(&Request::<ShowReady>::new(Nothing {}, Nothing {}, Nothing {})), "/ready");
    }
}
