//! Reading a request into the parts of its call: what the path names, the query, the body, and who sends it.

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request as HttpRequest};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use cis_api::call::Body as _;
use cis_api::calls::{PublishDag, RunDefinition};
use cis_api::{Call, Request};
use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_engine::app::Sender;
use cis_engine::token::sha256_hex;
use cis_store::port::IdempotencyKey;
use serde::de::value::MapDeserializer;
use serde::{Deserialize, de};

use crate::State;
use crate::auth::{Session, no_token};
use crate::body;
use crate::limit::BodyRoom;
use crate::respond::{RefusedResponse, expected};

/// The longest name a caller may give a request.
pub(crate) const KEY_MAX: usize = 255;

/// A request of a call, with all that came with it.
pub(crate) struct ApiRequest<C: Call> {
    pub(crate) state: State,
    pub(crate) session: Session,
    pub(crate) sender: Sender,
    pub(crate) headers: HeaderMap,
    pub(crate) request: Request<C>,
    /// What the body takes up, for as long as it is there.
    _room: BodyRoom,
}

impl<C: Call> FromRequest<State> for ApiRequest<C> {
    type Rejection = Response;

    /// Kept short: it is compiled for each call, and what it calls once for all of them.
    async fn from_request(request: HttpRequest, state: &State) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let (session, names) = read_head(&mut parts, state).await?;
        let path = path::<C>(&names).map_err(refuse)?;
        let query = Query::<C::Query>::try_from_uri(&parts.uri).map_err(|e| {
            let why = format!("the query does not fit: {}", e.body_text());
            refuse(Refusal::new(ErrorCode::ValidationFailed, why))
        })?;
        let is_definition = C::PATH == PublishDag::PATH || C::NAME == RunDefinition::NAME;
        let bounds = if is_definition { body::DEFINITION } else { body::PLAIN };
        let mut room = state.limits.body(session.share.clone());
        let (bytes, key) = read_body(body, bounds, &mut room, &parts, &session.token.caller).await?;
        let body = C::Body::read_owned(bytes).map_err(refuse)?;
        let sender = session.sender(key);
        let request = Request::new(path, query.0, body);
        Ok(Self { state: state.clone(), session, sender, headers: parts.headers, request, _room: room })
    }
}

/// Who sends a request, and what its path names.
async fn read_head(parts: &mut Parts, state: &State) -> Result<(Session, RawPathParams), Response> {
    let Some(session) = parts.extensions.get::<Session>().cloned() else {
        return Err(expected(no_token()));
    };
    let names = RawPathParams::from_request_parts(parts, state).await;
    let names = names.map_err(|_| refuse(Refusal::new(ErrorCode::NotFound, "no such call")))?;
    Ok((session, names))
}

/// The body, and the caller's name for the request.
async fn read_body(
    body: Body,
    bounds: body::Bounds,
    room: &mut BodyRoom,
    parts: &Parts,
    caller: &Caller,
) -> Result<(Vec<u8>, Option<IdempotencyKey>), Response> {
    let bytes = body::read(body, bounds, room).await.map_err(expected)?;
    let key = key(&parts.method, &parts.uri, &parts.headers, &bytes, caller).map_err(refuse)?;
    if parts.method != Method::GET && parts.method != Method::HEAD {
        check_kind(&parts.headers).map_err(refuse)?;
    }
    Ok((bytes, key))
}

fn refuse(refusal: Refusal) -> Response {
    RefusedResponse::from(refusal).into_response()
}

/// What the path names.
fn path<C: Call>(names: &RawPathParams) -> Result<C::Path, Refusal> {
    let names = MapDeserializer::<_, de::value::Error>::new(names.iter());
    C::Path::deserialize(names).map_err(|e| Refusal::new(ErrorCode::NotFound, format!("no such call: {e}")))
}

/// The caller's name for a request, if it gave one.
fn key(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
    caller: &Caller,
) -> Result<Option<IdempotencyKey>, Refusal> {
    let given = ["idempotency-key", "x-idempotency-key"].iter().find_map(|name| headers.get(*name));
    let Some(given) = given.filter(|_| *method != Method::GET) else { return Ok(None) };
    let key = given.to_str().ok().filter(|key| (1..=KEY_MAX).contains(&key.len()));
    let Some(key) = key else {
        let why = format!("an `Idempotency-Key` is 1 to {KEY_MAX} visible characters");
        return Err(Refusal::new(ErrorCode::ValidationFailed, why));
    };
    // What a name means depends on what the caller may see.
    let head = format!("{method} {uri} {:?}", caller.scopes);
    let request = [head.as_bytes(), body].join(&0);
    Ok(Some(IdempotencyKey {
        caller: caller.identity.clone(),
        key: key.to_owned(),
        request_hash: sha256_hex(&request),
    }))
}

/// Is it a body that may be read? What comes from a browser must say that it is JSON.
fn check_kind(headers: &HeaderMap) -> Result<(), Refusal> {
    let from_browser = headers.contains_key(header::ORIGIN) || headers.contains_key(header::COOKIE);
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if from_browser && !kind.is_some_and(|kind| kind.starts_with("application/json")) {
        return Err(Refusal::new(ErrorCode::ValidationFailed, "send `Content-Type: application/json`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use cis_api::run::StartBody;
    use cis_core::access::Preset;

    use super::*;

    /// A name for a request is kept as it is or refused; the same request has the same hash, another has another.
    #[test]
    fn fuzz_requests() {
        let (uri, caller) = (Uri::from_static("/api/v1/tasks"), Caller::preset("ann", Preset::Owner, None));
        cis_fuzz::fuzz(&cis_fuzz::Corpus::of("request"), |bytes| {
            let (name, body) = bytes.split_at(bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len()));
            let Ok(value) = HeaderValue::from_bytes(name) else { return false };
            let headers = HeaderMap::from_iter([("idempotency-key".parse().unwrap(), value)]);
            let ask = |body: &[u8]| key(&Method::POST, &uri, &headers, body, &caller);
            let spaced = [body, b" "].concat();
            if let (Ok(Some(one)), Ok(Some(other))) = (ask(body), ask(&spaced)) {
                assert!(one.key.as_bytes() == name && (1..=KEY_MAX).contains(&name.len()));
                assert_eq!(ask(body).unwrap().unwrap().request_hash, one.request_hash);
                assert_ne!(other.request_hash, one.request_hash);
            }
            // Space after a body changes nothing of what it says.
            let read = StartBody::read(body);
            assert_eq!(StartBody::read(&spaced).is_ok(), read.is_ok());
            read.is_ok()
        });
    }
}
