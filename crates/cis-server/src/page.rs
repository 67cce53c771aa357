//! A page per error code, as it stands in `docs/errors`: what it means and what to do about it. The node serves them
//! itself, so that the link in an error leads somewhere whatever else can be reached.

use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use cis_core::error::ErrorCode;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error;

use crate::respond::{HandlerResult, not_found};

/// The page of a code. A code without one does not compile.
pub fn page(code: ErrorCode) -> &'static str {
    macro_rules! pages {
        ($($code:ident)*) => {
            match code {
                $(ErrorCode::$code => {
                    include_str!(concat!("../../../docs/errors/", stringify!($code), ".md"))
                })*
            }
        };
    }
    pages! {
        AlreadyClaimed
        AlreadyExists
        Ambiguous
        AwaitingConfirmation
        ContentConflict
        DatabaseDamaged
        DiskFull
        DuplicateIdempotencyKey
        Forbidden
        Gone
        Internal
        InvalidTransition
        LeaseExpired
        MethodNotAllowed
        NotFound
        NotYetSupported
        PayloadTooLarge
        QuotaExceeded
        RateLimited
        RequestTimeout
        Unauthorized
        Unavailable
        ValidationFailed
        WrongNode
    }
}

/// What an error code means, and what to do.
#[utoipa::path(get, path = "/docs/errors/{code}", tag = "Node", params(("code" = ErrorCode, Path)),
    responses((status = 200, description = "its page", body = String, content_type = "text/markdown")))]
pub(crate) async fn show(Path(name): Path<String>) -> HandlerResult {
    let code = named(&name).ok_or_else(|| not_found("error code", &name))?;
    Ok(markdown(page(code)))
}

fn named(name: &str) -> Option<ErrorCode> {
    let name: serde::de::value::StrDeserializer<'_, Error> = name.into_deserializer();
    ErrorCode::deserialize(name).ok()
}

fn markdown(text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], text).into_response()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::respond::status;

    /// Every code, by the files that are there: that none is missing, the compiler sees to.
    fn codes() -> Vec<(String, Option<ErrorCode>)> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors");
        let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        names
            .map(|name| name.into_string().unwrap().trim_end_matches(".md").to_owned())
            .map(|name| (name.clone(), named(&name)))
            .collect()
    }

    #[test]
    fn every_page_is_of_a_code_and_says_its_status_and_an_answer_with_it() {
        for (name, code) in codes() {
            let code = code.unwrap_or_else(|| panic!("docs/errors/{name}.md: no such code"));
            let page = page(code);
            assert!(page.starts_with(&format!("# `{name}`\n")), "{name}: its heading");
            let row = format!("| over HTTP | {} |", status(code).as_u16());
            assert!(page.contains(&row), "{name}: `{row}`");
            let answer = page.split("```json\n").nth(1).and_then(|rest| rest.split("\n```").next());
            let answer: Value = serde_json::from_str(answer.unwrap_or_default())
                .unwrap_or_else(|e| panic!("{name}: its example: {e}"));
            let is = |told: &Value| told["code"] == name.as_str();
            let problems = answer["error"]["details"].as_array();
            let told = is(&answer["error"]) || problems.is_some_and(|problems| problems.iter().any(is));
            assert!(told && answer["success"] == false, "{name}: its example is another's");
            assert!(page.contains("\n## What to do\n"), "{code:?}: what to do");
        }
    }

    #[test]
    fn a_name_that_is_no_code_has_no_page() {
        assert_eq!(named("ContentConflict"), Some(ErrorCode::ContentConflict));
        assert_eq!((named("contentconflict"), named("../README"), named("")), (None, None, None));
    }
}
