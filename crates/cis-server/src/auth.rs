//! Authentication: the right host, no foreign page, a good token, the role the route takes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cis_api::calls::{AttachRun, ClaimTasks, DagStatus, FollowChanges, FollowEvents, RunLogs};
use cis_api::token::TokenSummary;
use cis_api::{Access, Call};
use cis_core::access::{Caller, Preset, check_identity};
use cis_core::did::{BadDid, Did};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::Timestamp;
use cis_engine::app::Sender;
use cis_engine::coordinator::Owner;
use cis_engine::token::secret_hash;
use cis_store::port::IdempotencyKey;
use tokio::time::Instant;
use tokio_stream::StreamExt;

use crate::State;
use crate::answer;
use crate::framing::Malformed;
use crate::limit::{Place, Share};
use crate::listen::{LastOnConnection, Peer};
use crate::observe::Given;
use crate::places;
use crate::respond::{RefusedResponse, expected};
use crate::table::{ROUTES, Route, find, methods};

/// What all callers count as that are taken at their word.
const UNPROVEN: &str = "callers without a token";

/// The header by which the owner on the socket says what name it is to be known by.
const USER: &str = "cis-user";

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

/// Lets a request pass, with its [`Session`], or says why not.
pub(crate) async fn guard(
    state: &State,
    way: Way<'_>,
    request: Request,
    next: Next,
    now: Instant,
) -> Result<Response, RefusedResponse> {
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
    let peer = parts.extensions.get().copied().unwrap_or(Peer::Address(IpAddr::from([0; 4])));
    let route = way.route.and_then(|route| ROUTES.get(route));
    // What only the owner calls is not there for the network.
    let served = route.filter(|route| route.access != Access::Owner || matches!(peer, Peer::Socket(_)));
    let Some(Route { access, .. }) = served else {
        return match methods(path).is_empty() {
            true => Err(Refusal::new(ErrorCode::NotFound, "no such call").into()),
            false => Ok(wrong_method(path)),
        };
    };
    let mut request = Request::from_parts(parts, body);
    let open = *access == Access::Open || (state.options.open_metrics && path == "/metrics");
    if open {
        return Ok(next.run(request).await);
    }
    let mut session = match peer {
        Peer::Address(from) => session(request.headers(), from, state, now).await?,
        Peer::Socket(connection) => owner_session(request.headers(), connection, state)?,
    };
    if let Err(full) = count_connection(&request, peer, &session) {
        let mut response = expected(full);
        response.extensions_mut().insert(LastOnConnection);
        return Ok(response);
    }
    let place = match state.limits.place(&session.share, way.waits) {
        Ok(place) => place,
        Err(full) => return Ok(expected(full)),
    };
    access.check(&session.token.caller)?;
    session.traceparent = request.extensions().get::<Given>().map(|Given(given)| given.clone());
    let share = session.share.clone();
    request.extensions_mut().insert(session);
    let method = request.method().clone();
    let response = next.run(request).await;
    let response = answer::count(&state.limits, &share, &method, response).await;
    // What turns out to be a stream does nothing any more but wait.
    let place = match is_stream(&response) && !way.waits {
        true => state.limits.place(&share, true).unwrap_or(place),
        false => place,
    };
    Ok(keep_while_streaming(response, place))
}

/// Has the connection of a request count toward its caller.
fn count_connection(request: &Request, peer: Peer, session: &Session) -> Result<(), Refusal> {
    match (request.extensions().get::<places::Place>(), peer) {
        (Some(place), Peer::Address(_)) => match &session.secret_hash {
            Some(_) => place.authenticate(&session.token.caller.identity),
            None => place.authenticate(UNPROVEN),
        },
        (Some(place), Peer::Socket(_)) => {
            place.authenticate_owner();
            Ok(())
        }
        (None, _) => Ok(()),
    }
}

/// Calls that mostly wait: for events, for work, for output, or, if the query says so, for a status.
fn may_wait(path: Option<&str>, uri: &Uri) -> bool {
    let asks = |query: &str| query.split('&').any(|arg| arg.starts_with("wait="));
    match path {
        Some(
            FollowEvents::PATH | FollowChanges::PATH | ClaimTasks::PATH | RunLogs::PATH | AttachRun::PATH,
        ) => true,
        Some(DagStatus::PATH) => uri.query().is_some_and(asks),
        _ => false,
    }
}

fn is_stream(response: &Response) -> bool {
    response.body().size_hint().exact().is_none()
}

/// A stream is under way until it ends, whatever else is once it is answered.
fn keep_while_streaming(response: Response, place: Place) -> Response {
    if !is_stream(&response) {
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
    let mut response = RefusedResponse::from(refusal.hint(format!("use {methods}"))).into_response();
    if let Ok(methods) = HeaderValue::from_str(&methods) {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// The answer to a request that HTTP itself does not allow.
fn malformed(why: &str) -> Response {
    let refusal = Refusal::new(ErrorCode::ValidationFailed, format!("the request is malformed: {why}"));
    let mut response = RefusedResponse::from(refusal).into_response();
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

/// An authenticated caller, and by what; asked again where an answer takes long.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// None for a caller that is taken at its word, and for the owner on the socket.
    secret_hash: Option<Arc<str>>,
    /// The connection of the owner on the data directory's socket.
    connection: Option<Owner>,
    pub(crate) token: Arc<TokenSummary>,
    /// How much of the node it uses.
    pub(crate) share: Arc<Share>,
    /// What the caller traces its request by.
    traceparent: Option<String>,
}

impl Session {
    /// Who sends the request, for the app.
    pub(crate) fn sender(&self, key: Option<IdempotencyKey>) -> Sender {
        Sender {
            caller: self.token.caller.clone(),
            is_proven: self.secret_hash.is_some() || self.connection.is_some(),
            key,
            traceparent: self.traceparent.clone(),
            connection: self.connection,
        }
    }

    /// The same as the token stands now, if it is still good.
    pub(crate) async fn again(&self, state: &State) -> Result<Option<Self>, Refusal> {
        let Some(hash) = &self.secret_hash else { return Ok(Some(self.clone())) };
        let good = state.kept.good_token(hash, state.app.now(), state.app.reads()).await?;
        Ok(good.map(|token| Self { token, ..self.clone() }))
    }

    /// Waits until the token is good no more, and says so: for those who wait meanwhile.
    pub(crate) async fn no_longer_good(&self, state: &State) -> Refusal {
        let mut tokens = state.kept.tokens_changed();
        tokens.mark_changed();
        let runs_out = runs_out(self.token.expires_at, state.app.now());
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
fn at_its_word(did: &str, now: Timestamp) -> Result<TokenSummary, Refusal> {
    let did: Did = did.parse().map_err(|e: BadDid| Refusal::new(ErrorCode::Unauthorized, e.to_string()))?;
    Ok(TokenSummary {
        token_id: "trusted-local".to_owned(),
        caller: Caller::preset(did, Preset::Agent, None),
        created_by: "trusted-local".to_owned(),
        created_at: now,
        expires_at: None,
        revoked_at: None,
    })
}

/// The session of a request over the network, by the token it came with.
async fn session(headers: &HeaderMap, from: IpAddr, state: &State, at: Instant) -> Result<Session, Refusal> {
    let secret = bearer(headers);
    let now = state.app.now();
    if let Some(did) = secret.filter(|secret| state.options.trusts_local && secret.starts_with("did:")) {
        return admit_unproven(state, at_its_word(did, now)?.into(), at);
    }
    let Some(secret_hash) = secret.map(secret_hash) else { return Err(no_token()) };
    // Looked up by the hash of 256 random bits: how long that takes tells nothing about the secret.
    match state.kept.good_token(&secret_hash, now, state.app.reads()).await? {
        Some(token) => admit(state, token, secret_hash.into(), at),
        None => {
            state.limits.count_failure(from, at)?;
            let why = "this token is unknown, was revoked or has run out";
            Err(Refusal::new(ErrorCode::Unauthorized, why)
                .hint("`cis token list` on the node's machine says which; `cis token create` makes one"))
        }
    }
}

fn admit(
    state: &State,
    token: Arc<TokenSummary>,
    secret_hash: Arc<str>,
    at: Instant,
) -> Result<Session, Refusal> {
    let share = state.limits.admit(&token.caller.identity, at)?;
    Ok(Session { secret_hash: Some(secret_hash), connection: None, token, share, traceparent: None })
}

/// A caller that is taken at its word could be another one with every request: all of them share what one may use.
fn admit_unproven(state: &State, token: Arc<TokenSummary>, at: Instant) -> Result<Session, Refusal> {
    let share = state.limits.admit(UNPROVEN, at)?;
    Ok(Session { secret_hash: None, connection: None, token, share, traceparent: None })
}

/// The session of the owner on the data directory's socket: a caller that knows the directory's key. It says by what name it
/// is to be known.
fn owner_session(headers: &HeaderMap, connection: Owner, state: &State) -> Result<Session, Refusal> {
    let given = bearer(headers).map(secret_hash);
    // By their hashes, so that how long it takes tells nothing.
    if state.key_hash.is_none() || given.as_deref() != state.key_hash.as_deref() {
        return Err(Refusal::new(ErrorCode::Unauthorized, "this socket takes the data directory's key"));
    }
    let user =
        headers.get(USER).and_then(|user| user.to_str().ok()).filter(|user| check_identity(user).is_ok());
    let caller = Caller::preset(user.unwrap_or("owner"), Preset::Owner, None);
    let share = state.limits.owner_share(&caller.identity);
    let token = TokenSummary {
        token_id: "owner".to_owned(),
        caller,
        created_by: "owner".to_owned(),
        created_at: state.app.now(),
        expires_at: None,
        revoked_at: None,
    };
    Ok(Session {
        secret_hash: None,
        connection: Some(connection),
        token: token.into(),
        share,
        traceparent: None,
    })
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = given
        .and_then(|given| given.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    bearer.map(|(_, secret)| secret.trim())
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
