//! Who may call.

use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use cis_core::access::{Caller, Preset, check_identity};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Scope;
use cis_core::source::Millis;
use serde::Deserialize;
use utoipa::ToSchema;

use super::Asked;
use crate::State;
use crate::answer::{FreshToken, Revoked, Tokens, Whoami};
use crate::document::TOKENS;
use crate::door::By;
use crate::say::{Said, Yes, not_found, yes};

/// Who the token is, and which node says so.
#[utoipa::path(get, path = "/api/v1/whoami", tag = TOKENS,
    responses((status = 200, description = "whose it is, and what it may do", body = Yes<Whoami>)))]
pub(super) async fn whoami(Has(state): Has<State>, By(caller): By) -> Said {
    Ok(yes(StatusCode::OK, Whoami { caller, node: state.options.node.did.clone() }))
}

/// Tokens, never their secrets.
#[utoipa::path(get, path = "/api/v1/tokens", tag = TOKENS,
    responses((status = 200, description = "the latest first", body = Yes<Tokens>)))]
pub(super) async fn list(Has(state): Has<State>, By(caller): By) -> Said {
    governs(&caller)?;
    let tokens = state.reads.read(|reader| Ok(reader.tokens()?)).await?;
    Ok(yes(StatusCode::OK, Tokens { tokens }))
}

/// Tokens belong to the whole node: whoever may see only a part of it does not govern them.
fn governs(caller: &Caller) -> Result<(), Refusal> {
    match caller.scopes {
        None => Ok(()),
        Some(_) => Err(Refusal::new(ErrorCode::Forbidden, "a token for some scopes governs no tokens")),
    }
}

/// A token that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// Whose it will be: a DID, or a name.
    #[schema(min_length = 1, max_length = 256)]
    identity: String,
    #[serde(rename = "as")]
    preset: Preset,
    scopes: Option<Vec<Scope>>,
    expires_sec: Option<u64>,
}

/// Let somebody call.
///
/// The secret is in this answer and nowhere else, so the call takes no `Idempotency-Key`.
#[utoipa::path(post, path = "/api/v1/tokens", tag = TOKENS, request_body = Wanted,
    responses((status = 201, description = "the token", body = Yes<FreshToken>)))]
pub(super) async fn create(Has(state): Has<State>, asked: Asked) -> Said {
    let caller = &asked.caller;
    governs(caller)?;
    let wanted: Wanted = asked.json()?;
    if asked.key()?.is_some() {
        let why = "a new token is told once: this call takes no `Idempotency-Key`";
        return Err(Refusal::new(ErrorCode::ValidationFailed, why).into());
    }
    check_identity(&wanted.identity)?;
    let expires_at = wanted.expires_sec.map(|sec| state.node.now().after(Millis(sec.saturating_mul(1_000))));
    let new = Caller::preset(wanted.identity, wanted.preset, wanted.scopes);
    let token = state.node.create_token(new.clone(), &caller.identity, expires_at).await?;
    let told = FreshToken {
        token_id: token.token_id,
        token: token.secret,
        identity: new.identity,
        roles: new.roles,
        scopes: new.scopes,
        expires_at,
    };
    Ok(yes(StatusCode::CREATED, told))
}

/// Take a token back, at once.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = TOKENS,
    params(("id" = String, Path, description = "its `token_id`")),
    responses((status = 200, description = "nobody calls with it any more", body = Yes<Revoked>)))]
pub(super) async fn revoke(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    asked.check_kind()?;
    governs(&asked.caller)?;
    if !state.node.revoke_token(&id).await? {
        return Err(not_found("token that is good", &id).into());
    }
    Ok(yes(StatusCode::OK, Revoked { token_id: id, status: "revoked".to_owned() }))
}
