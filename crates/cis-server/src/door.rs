//! Who may come in: the right host, no foreign page, a good token, the role the route takes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cis_core::access::{Caller, Preset};
use cis_core::did::{BadDid, Did};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::Timestamp;
use cis_engine::token::secret_hash;
use cis_store::sqlite::TokenLine;
use tokio::time::Instant;
use tokio_stream::StreamExt;

use crate::State;
use crate::framing::Malformed;
use crate::limit::{Place, Share};
use crate::listen::Remote;
use crate::say::{No, expected};
use crate::table::{Access, ROUTES, find, methods};

/// Where a request wants to go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way<'r> {
    /// The path as the router names it, if it knows one.
    path: Option<&'r str>,
    /// Where that and the method stand in the table.
    pub(crate) route: Option<usize>,
    /// It may wait for something instead of doing something.
    pub(crate) waits: bool,
}

impl<'r> Way<'r> {
    pub(crate) fn of(path: Option<&'r str>, request: &Request) -> Self {
        let route = path.and_then(|path| find(request.method().as_str(), path));
        Self { path, route, waits: may_wait(path, request.uri()) }
    }
}

/// Lets a request pass, with its [`Holder`], or says why not.
pub(crate) async fn guard(
    state: &State,
    way: Way<'_>,
    request: Request,
    next: Next,
    now: Instant,
) -> Result<Response, No> {
    if let Some(Malformed(why)) = request.extensions().get() {
        return Ok(malformed(why));
    }
    check_browser(request.headers(), &state.options.hosts)?;
    let (mut parts, body) = request.into_parts();
    // Bytes that are no text name nothing.
    let names = RawPathParams::from_request_parts(&mut parts, &()).await;
    let Some(path) = way.path.filter(|_| names.is_ok()) else {
        return Err(Refusal::new(ErrorCode::NotFound, "no such call").into());
    };
    let Some((.., access)) = way.route.and_then(|route| ROUTES.get(route)) else {
        return Ok(wrong_method(path));
    };
    let mut request = Request::from_parts(parts, body);
    let open = *access == Access::Open || (state.options.open_metrics && path == "/metrics");
    if open {
        return Ok(next.run(request).await);
    }
    let from = request.extensions().get().map_or(IpAddr::from([0; 4]), |Remote(from)| *from);
    let (token, secret_hash) = token(request.headers(), from, state, now).await?;
    let share = state.limits.admit(&token.caller.identity, now)?;
    let place = match state.limits.place(&share, way.waits) {
        Ok(place) => place,
        Err(full) => return Ok(expected(full)),
    };
    if let Access::With(role) = access {
        token.caller.needs(*role)?;
    }
    request.extensions_mut().insert(Holder { secret_hash, token, share });
    Ok(keep_while_streaming(next.run(request).await, place))
}

/// Calls that mostly wait: for events, for work, for output, or, if the query says so, for a status.
fn may_wait(path: Option<&str>, uri: &Uri) -> bool {
    let asks = |query: &str| query.split('&').any(|arg| arg.starts_with("wait="));
    match path {
        Some("/api/v1/events" | "/api/v1/tasks/claim" | "/api/v1/runs/{run}/logs") => true,
        Some("/api/v1/dag/{id}/status") => uri.query().is_some_and(asks),
        _ => false,
    }
}

/// A stream is under way until it ends, whatever else is once it is answered.
fn keep_while_streaming(response: Response, place: Place) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |piece| {
            let _until_the_end = &place;
            piece
        }))
    })
}

fn wrong_method(path: &str) -> Response {
    let methods = methods(path).join(", ");
    let refusal = Refusal::new(ErrorCode::MethodNotAllowed, "it is not called with this method");
    let mut response = No::from(refusal.hint(format!("use {methods}"))).into_response();
    if let Ok(methods) = HeaderValue::from_str(&methods) {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// The answer to a request that HTTP itself does not allow.
fn malformed(why: &str) -> Response {
    let refusal = Refusal::new(ErrorCode::ValidationFailed, format!("the request is malformed: {why}"));
    let mut response = No::from(refusal).into_response();
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

/// A page of somebody else's, or a name of somebody else's that resolves to us, has no business here.
fn check_browser(headers: &HeaderMap, hosts: &[String]) -> Result<(), Refusal> {
    let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or_default());
    let is_ours = |host: &&str| {
        is_no_name(host) || hosts.iter().any(|name| name.eq_ignore_ascii_case(without_port(host)))
    };
    let Some(host) = text(header::HOST).filter(is_ours) else {
        return Err(Refusal::new(ErrorCode::Forbidden, "this `Host` is not one of this node's names")
            .hint("call it by `localhost` or its address, or add its name to `node.hosts`"));
    };
    let foreign = |origin: &str| origin.split_once("://").is_none_or(|(_, page)| page != host);
    if text(header::ORIGIN).is_some_and(foreign) {
        return Err(Refusal::new(ErrorCode::Forbidden, "this `Origin` may not call this node"));
    }
    Ok(())
}

/// An address, or `localhost`: nobody can make such a `Host` lead here from a name of their own.
fn is_no_name(host: &str) -> bool {
    let name = without_port(host);
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Who calls, and by what; asked again where an answer takes long.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    /// None for a caller that is taken at its word.
    secret_hash: Option<Arc<str>>,
    pub(crate) token: Arc<TokenLine>,
    /// How much of the node it uses.
    pub(crate) share: Arc<Share>,
}

/// Who calls, for a call that wants to know no more.
#[derive(Debug)]
pub(crate) struct By(pub(crate) Caller);

impl FromRequestParts<State> for By {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, Response> {
        let holder = parts.extensions.get::<Holder>().ok_or_else(|| expected(no_token()))?;
        Ok(Self(holder.token.caller.clone()))
    }
}

impl Holder {
    /// The same as the token stands now, if it is still good.
    pub(crate) async fn again(&self, state: &State) -> Result<Option<Self>, Refusal> {
        let Some(hash) = &self.secret_hash else { return Ok(Some(self.clone())) };
        let good = state.kept.good_token(hash, state.node.now(), &state.reads).await?;
        Ok(good.map(|token| Self { token, ..self.clone() }))
    }

    /// False: the caller only said who it is.
    pub(crate) fn is_proven(&self) -> bool {
        self.secret_hash.is_some()
    }

    /// Waits until the token is good no more, and says so: for those who wait meanwhile.
    pub(crate) async fn no_longer_good(&self, state: &State) -> Refusal {
        let mut tokens = state.kept.tokens_changed();
        tokens.mark_changed();
        let runs_out = runs_out(self.token.expires_at, state.node.now());
        tokio::pin!(runs_out);
        loop {
            tokio::select! {
                () = &mut runs_out => break,
                changed = tokens.changed() => if changed.is_err() { std::future::pending().await },
            }
            if !matches!(self.again(state).await, Ok(Some(_))) {
                break;
            }
        }
        not_good()
    }
}

/// Somebody who only says who they are: as good as a token that an agent would get, and nothing more.
fn at_its_word(did: &str, now: Timestamp) -> Result<TokenLine, Refusal> {
    let did: Did = did.parse().map_err(|e: BadDid| Refusal::new(ErrorCode::Unauthorized, e.to_string()))?;
    Ok(TokenLine {
        token_id: "trusted-local".to_owned(),
        caller: Caller::preset(did, Preset::Agent, None),
        created_by: "trusted-local".to_owned(),
        created_at: now,
        expires_at: None,
        revoked_at: None,
    })
}

/// A token, and the hash of its secret if it has one.
type Shown = (Arc<TokenLine>, Option<Arc<str>>);

/// The token a request came with.
async fn token(headers: &HeaderMap, from: IpAddr, state: &State, at: Instant) -> Result<Shown, Refusal> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = given
        .and_then(|given| given.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let secret = bearer.map(|(_, secret)| secret.trim());
    let now = state.node.now();
    if let Some(did) = secret.filter(|secret| state.options.trusts_local && secret.starts_with("did:")) {
        return Ok((Arc::new(at_its_word(did, now)?), None));
    }
    let Some(secret_hash) = secret.map(secret_hash) else { return Err(no_token()) };
    // Looked up by the hash of 256 random bits: how long that takes tells nothing about the secret.
    match state.kept.good_token(&secret_hash, now, &state.reads).await? {
        Some(token) => Ok((token, Some(secret_hash.into()))),
        None => {
            state.limits.count_failure(from, at)?;
            let why = "this token is unknown, was revoked or has run out";
            Err(Refusal::new(ErrorCode::Unauthorized, why)
                .hint("`cis token list` on the node's machine says which; `cis token create` makes one"))
        }
    }
}

pub(crate) fn no_token() -> Refusal {
    Refusal::new(ErrorCode::Unauthorized, "this takes a token")
        .hint("send `Authorization: Bearer cis_…`; `cis token create` makes one")
}

fn not_good() -> Refusal {
    Refusal::new(ErrorCode::Unauthorized, "this token was revoked or has run out")
}

/// Waits until `at`, if there is such a moment.
pub(crate) async fn runs_out(at: Option<Timestamp>, now: Timestamp) {
    match at {
        Some(at) => tokio::time::sleep(Duration::from_millis(at.since(now).0)).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_wait_is_counted_as_waiting() {
        let waits = |path, uri: &'static str| may_wait(Some(path), &Uri::from_static(uri));
        assert!(waits("/api/v1/dag/{id}/status", "/api/v1/dag/d/status?after=1&wait=5s"));
        assert!(!waits("/api/v1/dag/{id}/status", "/api/v1/dag/d/status?after=1"));
        assert!(waits("/api/v1/tasks/claim", "/api/v1/tasks/claim"));
        assert!(!waits("/api/v1/dag/publish", "/api/v1/dag/publish?wait=5s"));
    }

    /// No name but the node's own and `localhost` comes in, however it is written.
    #[test]
    fn fuzz_hosts() {
        let names = ["node.example".to_owned()];
        cis_fuzz::fuzz(&cis_fuzz::Corpus::of("host"), |bytes| {
            let Ok(value) = header::HeaderValue::from_bytes(bytes) else { return false };
            let headers =
                HeaderMap::from_iter([(header::HOST, value.clone()), (header::ORIGIN, value.clone())]);
            assert!(check_browser(&headers, &names).is_err(), "an origin has a scheme");
            let headers = HeaderMap::from_iter([(header::HOST, value)]);
            let comes_in = check_browser(&headers, &names).is_ok();
            let text = String::from_utf8_lossy(bytes).to_lowercase();
            let is_address =
                text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'.' | b':' | b'[' | b']'));
            assert!(
                !comes_in || is_address || text.starts_with("localhost") || text.starts_with("node.example")
            );
            comes_in
        });
    }
}
