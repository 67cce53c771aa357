//! Who may call.

use axum::Extension;
use axum::extract::{Path, State as Has};
use axum::http::StatusCode;
use cis_core::access::{Caller, Preset};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::Scope;
use cis_core::source::Millis;
use serde::Deserialize;
use serde_json::json;

use super::Asked;
use crate::State;
use crate::say::{Said, not_found, yes};

/// `GET /api/v1/whoami`: who calls, and which node says so.
pub(super) async fn whoami(Has(state): Has<State>, Extension(caller): Extension<Caller>) -> Said {
    let mut told = json!(caller);
    told["node"] = json!(state.options.node.did);
    Ok(yes(StatusCode::OK, told))
}

/// `GET /api/v1/tokens`: never their secrets.
pub(super) async fn list(Has(state): Has<State>, Extension(caller): Extension<Caller>) -> Said {
    governs(&caller)?;
    let tokens = state.reads.read(|reader| Ok(reader.tokens()?)).await?;
    Ok(yes(StatusCode::OK, json!({"tokens": tokens})))
}

/// Tokens belong to the whole node: whoever may see only a part of it does not govern them.
fn governs(caller: &Caller) -> Result<(), Refusal> {
    match caller.scopes {
        None => Ok(()),
        Some(_) => Err(Refusal::new(ErrorCode::Forbidden, "a token for some scopes governs no tokens")),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    identity: String,
    #[serde(rename = "as")]
    preset: Preset,
    scopes: Option<Vec<Scope>>,
    expires_sec: Option<u64>,
}

/// `POST /api/v1/tokens`: the secret is in this answer and nowhere else, so the call takes no key.
pub(super) async fn create(Has(state): Has<State>, asked: Asked) -> Said {
    let caller = &asked.caller;
    governs(caller)?;
    let wanted: Wanted = asked.json()?;
    if asked.key()?.is_some() {
        let why = "a new token is told once: this call takes no `Idempotency-Key`";
        return Err(Refusal::new(ErrorCode::ValidationFailed, why).into());
    }
    if wanted.identity.is_empty() || wanted.identity.len() > 256 {
        return Err(Refusal::new(ErrorCode::ValidationFailed, "`identity` is 1 to 256 characters").into());
    }
    let expires_at = wanted.expires_sec.map(|sec| state.node.now().after(Millis(sec.saturating_mul(1_000))));
    let new = Caller::preset(wanted.identity, wanted.preset, wanted.scopes);
    let token = state.node.create_token(new.clone(), &caller.identity, expires_at).await?;
    let told = json!({"token_id": token.token_id, "token": token.secret, "identity": new.identity,
                      "roles": new.roles, "scopes": new.scopes, "expires_at": expires_at});
    Ok(yes(StatusCode::CREATED, told))
}

/// `DELETE /api/v1/tokens/{id}`.
pub(super) async fn revoke(Has(state): Has<State>, Path(id): Path<String>, asked: Asked) -> Said {
    asked.check_kind()?;
    governs(&asked.caller)?;
    if !state.node.revoke_token(&id).await? {
        return Err(not_found("token that is good", &id).into());
    }
    Ok(yes(StatusCode::OK, json!({"token_id": id, "status": "revoked"})))
}
