//! What may stand beside a definition in the body that it is sent in. It is cut out of the text, and nothing else of the text
//! is taken apart: a definition may have millions of values, and only its parser says what is wrong with them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserializer as _;
use serde::de::{Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Beside {
    /// Other content under a name that is taken becomes a new revision.
    pub(super) revision: Option<bool>,
    /// The hashes of skills that the owner has kept, as JSON.
    pub(super) skills: Option<String>,
}

/// Takes out of `body` what stands beside the definition. Blanks are left there, so that the parser tells places as they
/// were sent. A body that cannot be read stays as it is: the parser knows what to say.
pub(super) fn cut_out(body: &mut [u8], from_owner: bool) -> Beside {
    let (beside, cuts) = match find(body, from_owner) {
        Ok(found) => found,
        Err(_) => return Beside::default(),
    };
    for cut in cuts {
        blank_member(body, cut);
    }
    beside
}

/// What is to be taken out, and where it stands.
fn find(body: &[u8], from_owner: bool) -> serde_json::Result<(Beside, Vec<Range<usize>>)> {
    let mut text = serde_json::Deserializer::from_slice(body);
    let Members { revision, skills } = text.deserialize_map(Members::default())?;
    text.end()?;
    let (mut beside, mut cuts) = (Beside::default(), Vec::new());
    let mut cut = |member: &Member<'_>| {
        // Both are borrowed from the body.
        let place = |text: &str| text.as_ptr().addr() - body.as_ptr().addr();
        let value = member.value.get();
        cuts.push(place(member.key.get())..place(value) + value.len());
    };
    if let Some(member) = revision {
        beside.revision = serde_json::from_str(member.value.get())?;
        if beside.revision.is_some() {
            cut(&member);
        }
    }
    if let Some(member) = skills.filter(|member| from_owner && member.value.get() != "null") {
        beside.skills = Some(member.value.get().to_owned());
        cut(&member);
    }
    Ok((beside, cuts))
}

/// Blanks a member and the comma that parted it from the next, or else from the one before.
fn blank_member(body: &mut [u8], member: Range<usize>) {
    let is_text = |byte: &u8| !byte.is_ascii_whitespace();
    let after = body[member.end..].iter().position(is_text).map(|at| member.end + at);
    let before = body[..member.start].iter().rposition(is_text);
    let comma = [after, before].into_iter().flatten().find(|at| body[*at] == b',');
    for at in member.chain(comma) {
        // Within a member there may be line ends.
        if body[at] != b'\n' {
            body[at] = b' ';
        }
    }
}

/// A member of an object, as it stands in the text.
struct Member<'b> {
    key: &'b RawValue,
    value: &'b RawValue,
}

#[derive(Default)]
struct Members<'b> {
    revision: Option<Member<'b>>,
    skills: Option<Member<'b>>,
}

impl<'b> Visitor<'b> for Members<'b> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'b>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
            let slot = match &*name(key).map_err(A::Error::custom)? {
                "revision" => &mut self.revision,
                "skills" => &mut self.skills,
                _ => continue,
            };
            if slot.replace(Member { key, value }).is_some() {
                return Err(A::Error::custom("it is there twice"));
            }
        }
        Ok(self)
    }
}

/// What a key says.
fn name(key: &RawValue) -> serde_json::Result<Cow<'_, str>> {
    let written = key.get();
    match written.contains('\\') {
        true => serde_json::from_str(written).map(Cow::Owned),
        false => Ok(written.trim_matches('"').into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(body: &str, from_owner: bool) -> (String, Option<bool>, Option<String>) {
        let mut body = body.as_bytes().to_vec();
        let Beside { revision, skills } = cut_out(&mut body, from_owner);
        (String::from_utf8(body).unwrap(), revision, skills)
    }

    #[test]
    fn a_revision_is_cut_out_and_the_rest_stays_in_place() {
        for (body, rest) in [
            (r#"{"revision":true,"a":1}"#, r#"{                "a":1}"#),
            (r#"{"a":1,"revision":true}"#, r#"{"a":1                }"#),
            (r#"{"a":1 , "revision" : true , "b":[]}"#, r#"{"a":1 ,                     "b":[]}"#),
            ("{\"a\":1,\n\"revision\":\n\ntrue\n}", "{\"a\":1 \n           \n\n    \n}"),
            (r#"{"revision":true}"#, r#"{               }"#),
            (r#"{"revisio\u006e":true}"#, r#"{                    }"#),
            (
                r#" {"x":"\"revision\":true","revision":true} "#,
                r#" {"x":"\"revision\":true"                } "#,
            ),
        ] {
            let (text, revision, skills) = split(body, false);
            assert_eq!((text.as_str(), revision, skills), (rest, Some(true), None), "{body}");
        }
    }

    #[test]
    fn skills_are_cut_out_for_the_owner_only() {
        let body = r#"{"a":1,"revision":false,"skills":{"s":"h"}}"#;
        let skills = Some(r#"{"s":"h"}"#.to_owned());
        assert_eq!(
            split(body, true),
            (format!("{{\"a\":1{}}}", " ".repeat(36)), Some(false), skills.clone())
        );
        let body = r#"{"skills":{"s":"h"},"revision":false,"a":1}"#;
        assert_eq!(split(body, true), (format!("{{{}\"a\":1}}", " ".repeat(36)), Some(false), skills));
        let body = r#"{"a":1,"skills":{"s":"h"}}"#;
        assert_eq!(split(body, false), (body.to_owned(), None, None));
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_parser() {
        for body in [
            "",
            "[true]",
            "true",
            r#"{"revision":true"#,
            r#"{"revision":true,}"#,
            r#"{"revision":true} x"#,
            r#"{"revision":"yes"}"#,
            r#"{"revision":null}"#,
            r#"{"revision":true,"revision":true}"#,
            "\u{feff}{\"revision\":true}",
            r#"{"dag":{"revision":true}}"#,
        ] {
            assert_eq!(split(body, true), (body.to_owned(), None, None), "{body}");
        }
    }
}
