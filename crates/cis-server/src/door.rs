//! Who may come in: the right host, no foreign page, a good token, the role the route takes.

use axum::extract::{MatchedPath, Request, State as Has};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_engine::token::secret_hash;

use crate::State;
use crate::say::No;
use crate::table::{Access, access};

/// Lets a request pass, with its [`Caller`], or says why not.
pub(crate) async fn guard(Has(state): Has<State>, mut request: Request, next: Next) -> Result<Response, No> {
    check_browser(request.headers(), &state)?;
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let Some(access) = path.and_then(|path| access(request.method().as_str(), &path)) else {
        return Err(Refusal::new(ErrorCode::NotFound, "no such call").into());
    };
    if access == Access::Open {
        return Ok(next.run(request).await);
    }
    let caller = caller(request.headers(), &state).await?;
    if let Access::With(role) = access {
        caller.needs(role)?;
    }
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

/// A page of somebody else's, or a name of somebody else's that resolves to us, has no business here.
fn check_browser(headers: &HeaderMap, state: &State) -> Result<(), Refusal> {
    let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or_default());
    let ours = |host: &str| {
        let name = host
            .rsplit_once(':')
            .map_or(host, |(name, port)| if port.bytes().all(|b| b.is_ascii_digit()) { name } else { host });
        matches!(name, "localhost" | "127.0.0.1" | "[::1]") || host == state.bound.to_string()
    };
    if !text(header::HOST).is_some_and(ours) {
        return Err(Refusal::new(ErrorCode::Forbidden, "this `Host` is not one of this node's names"));
    }
    let foreign = |origin: &str| !origin.split_once("://").is_some_and(|(_, host)| ours(host));
    if text(header::ORIGIN).is_some_and(foreign) {
        return Err(Refusal::new(ErrorCode::Forbidden, "this `Origin` may not call this node"));
    }
    Ok(())
}

async fn caller(headers: &HeaderMap, state: &State) -> Result<Caller, Refusal> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let secret = given.and_then(|given| given.strip_prefix("Bearer ")).map(str::trim);
    let Some(hash) = secret.map(secret_hash) else {
        return Err(Refusal::new(ErrorCode::Unauthorized, "this takes a token")
            .hint("send `Authorization: Bearer cis_…`; `cis token create` makes one"));
    };
    let now = state.node.now();
    // Looked up by the hash of 256 random bits: how long that takes tells nobody anything about the secret.
    let token = state.reads.read(move |reader| Ok(reader.token(&hash)?)).await?;
    match token {
        Some(token) if token.is_good(now) => Ok(token.caller),
        Some(_) => Err(Refusal::new(ErrorCode::Unauthorized, "this token was revoked or has run out")),
        None => Err(Refusal::new(ErrorCode::Unauthorized, "nobody has this token")),
    }
}
