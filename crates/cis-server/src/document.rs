//! The OpenAPI document. Each route says what it takes and what it answers when all is well, beside its code; what holds
//! for all of them is added here: who may call, from the table, and how they refuse, from the codes.

use cis_core::access::Role;
use cis_core::error::ErrorCode;
use utoipa::openapi::link::Link;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, OpenApi, PathItem, Ref, RefOr, Response, ResponseBuilder, Schema,
};
use utoipa::{PartialSchema, ToSchema};

use crate::say::{Refused, status};
use crate::table::{Access, ROUTES};

/// What calls are about.
pub(crate) const DAGS: &str = "DAGs";
pub(crate) const RUNS: &str = "Runs";
pub(crate) const TASKS: &str = "Tasks for others";
pub(crate) const EVENTS: &str = "Events";
pub(crate) const TOKENS: &str = "Tokens";
pub(crate) const NODE: &str = "Node";

/// In the order in which a reader wants to hear of them.
const TAGS: [&str; 6] = [DAGS, RUNS, TASKS, EVENTS, TOKENS, NODE];

/// What a caller proves who it is with.
const TOKEN: &str = "token";

/// What an answer names and other calls take: who names it, in which field, who takes it, as which parameter.
const LEADS: [(&str, &str, &str, &str); 4] = [
    ("/api/v1/dag/publish", "dag_id", "/api/v1/dag/{id}/", "id"),
    ("/api/v1/dag/{id}/confirm", "run_id", "/api/v1/runs/{run}", "run"),
    ("/api/v1/dag/publish", "review_id", "/api/v1/pending/{review}", "review"),
    ("/api/v1/tokens", "token_id", "/api/v1/tokens/{id}", "id"),
];

const ABOUT: &str = "Agents publish, a person confirms, everybody follows along. Every body is a JSON object with \
                     `success`; what is refused has a stable `code` and says what to do about it.";

/// The document, from what the routes say of themselves.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    document.info = InfoBuilder::new()
        .title("CIS node")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .build();
    document.tags = Some(TAGS.map(|name| TagBuilder::new().name(name).build()).into());
    let components = document.components.get_or_insert_default();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
        "`cis token create` makes one; the owner's is in `admin.token` in the data directory",
    ));
    components.add_security_scheme(TOKEN, SecurityScheme::Http(bearer.build()));
    let mut schemas = vec![(Refused::name().into_owned(), Refused::schema())];
    Refused::schemas(&mut schemas);
    components.schemas.extend(schemas);
    for (method, path, access) in ROUTES.iter().copied() {
        let item = document.paths.paths.get_mut(path);
        if let Some(operation) = item.and_then(|item| operation(item, method)) {
            operation.operation_id = Some(operation_id(method, path));
            add_links(operation, method, path);
            operation.security = Some(security(access));
            add_refusals(operation, method, path, access);
            if method == "HEAD" {
                drop_bodies(operation);
            }
        }
    }
    document
}

fn operation<'d>(item: &'d mut PathItem, method: &str) -> Option<&'d mut Operation> {
    match method {
        "GET" => item.get.as_mut(),
        "HEAD" => item.head.as_mut(),
        "POST" => item.post.as_mut(),
        "PUT" => item.put.as_mut(),
        "DELETE" => item.delete.as_mut(),
        _ => None,
    }
}

/// A name for programs: `get_dag_id_status`.
fn operation_id(method: &str, path: &str) -> String {
    let path = path.trim_start_matches("/api/v1");
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(method.to_ascii_lowercase(), |id, word| id + "_" + word)
}

/// Says what to do next with what was made.
fn add_links(operation: &mut Operation, method: &str, path: &str) {
    let good = operation.responses.responses.iter_mut().filter(|(status, _)| status.starts_with('2'));
    let responses: Vec<&mut Response> = good.filter_map(|(_, said)| as_response(said)).collect();
    let leads = LEADS.iter().filter(|(from, ..)| method == "POST" && *from == path);
    let links: Vec<(String, Link)> =
        leads.flat_map(|(_, field, to, parameter)| links(field, to, parameter)).collect();
    for response in responses {
        response.links.extend(links.iter().cloned().map(|(name, link)| (name, RefOr::T(link))));
    }
}

fn links(field: &str, to: &str, parameter: &str) -> Vec<(String, Link)> {
    let link = |id: &str| {
        let named = format!("$response.body#/{field}");
        Link::builder().operation_id(id).parameter(parameter, named).build()
    };
    let takers = ROUTES.iter().filter(|(_, path, _)| path.starts_with(to));
    takers.map(|(method, path, _)| operation_id(method, path)).map(|id| (id.clone(), link(&id))).collect()
}

fn as_response(said: &mut RefOr<Response>) -> Option<&mut Response> {
    match said {
        RefOr::T(response) => Some(response),
        RefOr::Ref(_) => None,
    }
}

fn security(access: Access) -> Vec<SecurityRequirement> {
    let token = |roles: &[Role]| vec![SecurityRequirement::new(TOKEN, roles.iter().map(|role| role.word()))];
    match access {
        Access::Open => Vec::new(),
        Access::Anyone => token(&[]),
        Access::With(role) => token(&[role]),
    }
}

/// Adds the refusals that follow from what a call takes. One that does not, such as a conflict, the route names itself,
/// by its number alone.
fn add_refusals(operation: &mut Operation, method: &str, path: &str, access: Access) {
    // A foreign `Host` or `Origin` is refused everywhere.
    let mut numbers = vec![403];
    if access != Access::Open {
        numbers.extend([401, 429, 503]);
    }
    if path.contains('{') {
        numbers.push(404);
    }
    // It may have been pruned.
    if path.contains("{run}") {
        numbers.push(410);
    }
    if !matches!(method, "GET" | "HEAD") {
        numbers.extend([408, 413, 422, 507]);
    }
    // What a path names wrongly is not found; anything else can be wrong in itself.
    let can_be_wrong = |given: &RefOr<Parameter>| matches!(given, RefOr::T(given) if given.parameter_in != ParameterIn::Path);
    if operation.parameters.iter().flatten().any(can_be_wrong) {
        numbers.push(422);
    }
    let all = &mut operation.responses.responses;
    numbers
        .extend(all.keys().filter_map(|number| number.parse::<u16>().ok()).filter(|number| *number >= 400));
    for number in numbers {
        let codes = codes(number);
        // Nothing is refused like that, yet.
        if !codes.is_empty() {
            all.insert(number.to_string(), RefOr::T(refusal(&codes)));
        }
    }
}

fn refusal(codes: &[String]) -> Response {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name(Refused::name()))).build();
    ResponseBuilder::new().description(codes.join(", ")).content("application/json", body).build()
}

/// The codes that are told with this status.
fn codes(number: u16) -> Vec<String> {
    // Asked of the schema, which knows every one there is.
    let RefOr::T(Schema::Object(all)) = ErrorCode::schema() else { return Vec::new() };
    let known = all.enum_values.into_iter().flatten();
    let codes = known.filter_map(|word| serde_json::from_value::<ErrorCode>(word).ok());
    codes.filter(|code| status(*code).as_u16() == number).map(|code| format!("`{code:?}`")).collect()
}

/// What is asked for its head alone has no body.
fn drop_bodies(operation: &mut Operation) {
    let all = operation.responses.responses.values_mut();
    all.filter_map(as_response).for_each(|response| response.content.clear());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;

    fn document() -> Value {
        json!(complete(crate::route::said()))
    }

    #[test]
    fn the_document_and_the_table_know_the_same_calls() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let told = paths.iter().flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(move |method| (method.to_uppercase(), path.clone()))
        });
        let served = ROUTES.iter().map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned()));
        assert_eq!(told.collect::<BTreeSet<_>>(), served.collect::<BTreeSet<_>>());
    }

    #[test]
    fn who_may_call_is_what_the_table_says() {
        let document = document();
        for (method, path, access) in ROUTES.iter().copied() {
            let operation = &document["paths"][path][method.to_lowercase()];
            let expected = match access {
                Access::Open => json!([]),
                Access::Anyone => json!([{"token": []}]),
                Access::With(role) => json!([{"token": [role.word()]}]),
            };
            assert_eq!(operation["security"], expected, "{method} {path}");
            assert_eq!(operation["responses"]["401"].is_null(), access == Access::Open, "{method} {path}");
        }
    }

    #[test]
    fn every_call_is_described_and_every_reference_leads_somewhere() {
        let document = document();
        let mut ids = BTreeSet::new();
        for (method, path, _) in ROUTES.iter().copied() {
            let operation = &document["paths"][path][method.to_lowercase()];
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
            let tag = operation["tags"][0].as_str().unwrap();
            assert!(TAGS.contains(&tag), "{method} {path}: `{tag}` is none of the tags");
            assert!(ids.insert(operation["operationId"].to_string()), "{method} {path}: its id is taken");
        }
        check_references(&document, &document);
    }

    fn check_references(part: &Value, document: &Value) {
        match part {
            Value::Object(map) => {
                if let Some(to) = map.get("$ref").and_then(Value::as_str) {
                    let found = document.pointer(to.trim_start_matches('#'));
                    assert!(found.is_some(), "`{to}` leads nowhere");
                }
                map.values().for_each(|part| check_references(part, document));
            }
            Value::Array(parts) => parts.iter().for_each(|part| check_references(part, document)),
            _ => {}
        }
    }

    #[test]
    fn a_status_tells_its_codes() {
        assert_eq!(codes(422), ["`ValidationFailed`", "`NotYetSupported`"]);
        assert!(codes(418).is_empty());
    }
}
