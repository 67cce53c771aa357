//! The OpenAPI document. What a call takes and answers stands in the table of calls; what holds for all of them is added here:
//! who may call, and how they refuse, from the codes.

use cis_api::call::{Access, Body as _, Method, Nothing, Tag};
use cis_api::dag::{DagStanding, Versioned};
use cis_api::error::ErrorBody;
use cis_api::run::{Run, RunProgress};
use cis_api::{Call, calls};
use cis_core::access::Role;
use cis_core::error::ErrorCode;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::link::Link;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathItem,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    Components, ContentBuilder, InfoBuilder, OpenApi, Ref, RefOr, Required, Response, ResponseBuilder, Schema,
};
use utoipa::{IntoParams, PartialSchema, ToSchema};

use crate::respond::status;
use crate::route::described_pages;
use crate::route::request::KEY_MAX;
use crate::table::network_routes;

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

/// The document: every call that is served over the network, and the pages.
pub(crate) fn complete() -> OpenApi {
    let mut document = described_pages();
    macro_rules! describe {
        ($($call:ident)*) => { $(describe_call::<calls::$call>(&mut document);)* };
    }
    cis_api::each_call!(describe);
    document.info = InfoBuilder::new()
        .title("CIS node")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .build();
    document.tags = Some(Tag::ALL.map(|tag| TagBuilder::new().name(tag.as_str()).build()).into());
    let components = document.components.get_or_insert_default();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
        "`cis token create` makes one; the owner's is in `admin.token` in the data directory",
    ));
    components.add_security_scheme(TOKEN, SecurityScheme::Http(bearer.build()));
    add_schema::<ErrorBody>(components);
    // What stands in a generic answer is not found through it.
    add_schema::<Run>(components);
    add_schema::<DagStanding>(components);
    add_schema::<RunProgress>(components);
    for route in network_routes() {
        let (method, path, access) = (route.method, route.path, route.access);
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

fn add_schema<T: ToSchema>(components: &mut Components) {
    let mut schemas = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut schemas);
    components.schemas.extend(schemas);
}

/// Adds what the table says of a call.
fn describe_call<C: Call>(document: &mut OpenApi) {
    if C::ACCESS == Access::Owner {
        return;
    }
    let components = document.components.get_or_insert_default();
    if C::STREAM.is_none() {
        add_schema::<C::Response>(components);
    }
    let mut lines = C::DOC.iter().map(|line| line.trim());
    let summary = lines.next().unwrap_or_default().trim_end_matches('.');
    let rest = lines.skip_while(|line| line.is_empty()).collect::<Vec<_>>().join(" ");
    let mut operation = OperationBuilder::new().tag(C::TAG.as_str()).summary(Some(summary));
    if !rest.is_empty() {
        operation = operation.description(Some(rest));
    }
    for parameter in parameters::<C>() {
        operation = operation.parameter(parameter);
    }
    if !is_nothing::<<C::Body as cis_api::call::Body>::Shown>() {
        add_schema::<<C::Body as cis_api::call::Body>::Shown>(components);
        operation = operation.request_body(Some(body::<C>()));
    }
    for (number, meaning) in C::SUCCESS {
        operation = operation.response(number.to_string(), good_response::<C>(meaning));
    }
    for number in C::REFUSALS {
        operation = operation.response(number.to_string(), Response::new(""));
    }
    if C::NAME == calls::DagStatus::NAME {
        operation = operation.response("304", Response::new("as the caller knows it"));
    }
    let method = match C::METHOD {
        Method::Get => HttpMethod::Get,
        Method::Head => HttpMethod::Head,
        Method::Post => HttpMethod::Post,
        Method::Delete => HttpMethod::Delete,
    };
    let item = PathItem::new(method, operation.build());
    match document.paths.paths.get_mut(C::PATH) {
        Some(known) => known.merge_operations(item),
        None => drop(document.paths.paths.insert(C::PATH.to_owned(), item)),
    }
}

fn is_nothing<T: ToSchema>() -> bool {
    T::name() == Nothing::name()
}

/// What the path, the query and the headers say.
fn parameters<C: Call>() -> Vec<Parameter> {
    let mut parameters = C::Path::into_params(|| Some(ParameterIn::Path));
    parameters.extend(C::Query::into_params(|| Some(ParameterIn::Query)));
    let header = |name: &str, about: &str, schema: ObjectBuilder| {
        ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(about.to_owned()))
            .schema(Some(schema))
            .build()
    };
    if C::IS_KEYED {
        let about = "the caller's own name for this request: with it, it is done once";
        let text = ObjectBuilder::new().schema_type(Type::String);
        let text = text.min_length(Some(1)).max_length(Some(KEY_MAX));
        parameters.push(header("Idempotency-Key", about, text));
    }
    match C::NAME {
        name if name == calls::DagStatus::NAME => {
            let text = ObjectBuilder::new().schema_type(Type::String);
            parameters.push(header("If-None-Match", "the `ETag` of what the caller knows", text));
        }
        name if name == calls::FollowEvents::NAME => {
            let number = ObjectBuilder::new().schema_type(Type::Integer);
            parameters.push(header("Last-Event-ID", "the last event that was heard", number));
        }
        _ => {}
    }
    parameters
}

fn body<C: Call>() -> utoipa::openapi::request_body::RequestBody {
    let name = <C::Body as cis_api::call::Body>::Shown::name();
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(name))).build();
    let required = if C::Body::IS_OPTIONAL { Required::False } else { Required::True };
    RequestBodyBuilder::new().content("application/json", content).required(Some(required)).build()
}

/// `success`, and what the answer holds. Written out: all answers of a generic type would have one name.
fn answer_schema<T: ToSchema>() -> Schema {
    let success = ObjectBuilder::new()
        .property("success", ObjectBuilder::new().schema_type(Type::Boolean).description(Some("`true`.")))
        .required("success");
    let answer = match T::name() == Versioned::<Run>::name() {
        true => T::schema(),
        false => RefOr::Ref(Ref::from_schema_name(T::name())),
    };
    Schema::AllOf(AllOfBuilder::new().item(answer).item(success).build())
}

fn good_response<C: Call>(meaning: &str) -> Response {
    let response = ResponseBuilder::new().description(meaning);
    let response = match C::STREAM {
        Some(kind) => {
            let text = ObjectBuilder::new().schema_type(Type::String);
            response.content(kind, ContentBuilder::new().schema(Some(text)).build())
        }
        None => {
            let content = ContentBuilder::new().schema(Some(answer_schema::<C::Response>())).build();
            response.content("application/json", content)
        }
    };
    if C::NAME == calls::DagStatus::NAME {
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        let tag = HeaderBuilder::new().schema(Some(text)).description(Some("its version")).build();
        return response.header("ETag", tag).build();
    }
    response.build()
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
    let takers = network_routes().filter(|route| route.path.starts_with(to));
    takers.map(|route| operation_id(route.method, route.path)).map(|id| (id.clone(), link(&id))).collect()
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
        Access::Open | Access::Owner => Vec::new(),
        Access::Anyone => token(&[]),
        Access::With(role) => token(&[role]),
    }
}

/// Adds the refusals that follow from what a call takes. Those that do not, such as a conflict, the table names.
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
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name(ErrorBody::name()))).build();
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
        json!(complete())
    }

    #[test]
    fn the_document_and_the_table_know_the_same_calls() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let told = paths.iter().flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(move |method| (method.to_uppercase(), path.clone()))
        });
        let served = network_routes().map(|route| (route.method.to_owned(), route.path.to_owned()));
        assert_eq!(told.collect::<BTreeSet<_>>(), served.collect::<BTreeSet<_>>());
    }

    #[test]
    fn who_may_call_is_what_the_table_says() {
        let document = document();
        for route in network_routes() {
            let (method, path, access) = (route.method, route.path, route.access);
            let operation = &document["paths"][path][method.to_lowercase()];
            let expected = match access {
                Access::Open | Access::Owner => json!([]),
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
        for route in network_routes() {
            let (method, path) = (route.method, route.path);
            let operation = &document["paths"][path][method.to_lowercase()];
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
            let tag = operation["tags"][0].as_str().unwrap();
            assert!(
                Tag::ALL.iter().any(|known| known.as_str() == tag),
                "{method} {path}: `{tag}` is none of the tags"
            );
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
