//! A node that is called over HTTP, as commands see it: the lines they show, and what they ask for.
//!
//! | module | what it knows |
//! |---|---|
//! | `read` | DAGs, runs, tasks, tokens, what holds a run: the same lines that the store gives |
//! | `write` | publish, decide, start, stop, approve, pause, drain, tokens |
//! | `follow` | what happens, as it happens; what tasks print |
//!
//! Lines from a node have no keys: whatever is asked about them is asked by the names they have.

mod follow;
mod read;
mod write;

use cis_client::Client;
use cis_core::error::{ErrorCode, Refusal};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use follow::News;

/// Lines of one page: as many as a node gives.
const PAGE: usize = 1_000;

/// A node, and somebody to it.
#[derive(Debug, Clone)]
pub struct Remote {
    client: Client,
}

impl Remote {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// One field of an answer.
    fn field<T: DeserializeOwned>(&self, path: &str, name: &str) -> Result<T, Refusal> {
        took(self.client.get(path)?[name].take())
    }

    /// A list, page by page, up to `limit` lines; and whether there are more.
    fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        name: &str,
        query: &[(&str, &str)],
        limit: usize,
    ) -> Result<(Vec<T>, bool), Refusal> {
        let (mut lines, mut cursor) = (Vec::new(), String::new());
        loop {
            let room = (limit - lines.len()).clamp(1, PAGE).to_string();
            let mut query = query.to_vec();
            query.extend([("limit", room.as_str()), ("cursor", &cursor)]);
            let mut answer = self.client.get(&with(path, &query))?;
            lines.extend(took::<Vec<T>>(answer[name].take())?);
            let next = answer["next_cursor"].as_str().filter(|_| lines.len() < limit);
            match next {
                Some(next) => next.clone_into(&mut cursor),
                None => {
                    let more = lines.len() > limit || answer["next_cursor"].is_string();
                    lines.truncate(limit);
                    return Ok((lines, more));
                }
            }
        }
    }
}

/// An answer as what it should be.
fn took<T: DeserializeOwned>(value: Value) -> Result<T, Refusal> {
    serde_json::from_value(value).map_err(misunderstood)
}

#[allow(clippy::needless_pass_by_value, reason = "handed to `map_err`")]
fn misunderstood(e: serde_json::Error) -> Refusal {
    Refusal::new(ErrorCode::Unavailable, format!("the node's answer is not understood: {e}"))
        .hint("its version and this one may be too far apart: `cis --version`")
}

/// `path?name=value&…`, without what is empty.
fn with(path: &str, query: &[(&str, &str)]) -> String {
    let mut text = path.to_owned();
    let given = query.iter().filter(|(_, value)| !value.is_empty());
    for (number, (name, value)) in given.enumerate() {
        text.push(if number == 0 { '?' } else { '&' });
        text += &format!("{name}={}", escaped(value));
    }
    text
}

/// As a part of a path or a query; what is not plain in both is spelled by its bytes.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_typed_stays_one_part_of_the_path() {
        assert_eq!(
            with(&format!("/dag/{}", escaped("a/../b?c#1 é")), &[]),
            "/dag/a%2F..%2Fb%3Fc%231%20%C3%A9"
        );
        assert_eq!(with("/dag", &[("a", ""), ("b", "x&y"), ("c", "1")]), "/dag?b=x%26y&c=1");
    }
}
