//! Who may call.

use cis_api::Request;
use cis_api::calls::{CreateToken, RevokeToken, ShowCaller};
use cis_api::token::{CreateTokenBody, NewToken, TokenRevoked, Whoami};
use cis_core::access::{Caller, check_identity};
use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::{Millis, Timestamp};
use cis_store::port::Once;

use super::look::not_found;
use super::{Answer, App, Permit, Sender, changed, invalid};
use crate::coordinator::handle::News;
use crate::token::{self, FreshToken};

impl Answer<CreateToken> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<CreateToken>,
    ) -> Result<Once<NewToken>, Refusal> {
        check_governs_tokens(&sender.caller)?;
        if sender.key.is_some() {
            return Err(invalid("a new token is told once: this call takes no `Idempotency-Key`"));
        }
        let CreateTokenBody { identity, preset, scopes, expires_sec, expires_ms } = request.body;
        check_identity(&identity)?;
        let lasts = expires_ms.or(expires_sec.map(|sec| sec.saturating_mul(1_000)));
        let expires_at = lasts.map(|lasts| self.now().after(Millis(lasts)));
        let new = Caller::preset(identity, preset, scopes);
        let fresh = self.create_token(new.clone(), &sender.caller.identity, expires_at).await?;
        Ok(Once::new(NewToken {
            token_id: fresh.token_id,
            token: fresh.secret,
            identity: new.identity,
            roles: new.roles,
            scopes: new.scopes,
            expires_at,
        }))
    }
}

impl Answer<RevokeToken> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        request: Request<RevokeToken>,
    ) -> Result<Once<TokenRevoked>, Refusal> {
        check_governs_tokens(&sender.caller)?;
        let (id, now) = (request.path.id, self.now());
        let token_id = id.clone();
        let revoke = |store: cis_store::SqliteStore| async move { store.revoke_token(token_id, now).await };
        // Callers that still listen with it hear that something happened, and no more.
        if !self.write_plain("revoking", revoke, |_| changed()).await? {
            return Err(not_found("token that is good", &id));
        }
        Ok(Once::new(TokenRevoked { token_id: id, status: "revoked".to_owned() }))
    }
}

impl Answer<ShowCaller> for App {
    async fn answer(
        &self,
        _: Permit,
        sender: &Sender,
        _: Request<ShowCaller>,
    ) -> Result<Once<Whoami>, Refusal> {
        let node = self.node_info()?.did.clone();
        Ok(Once::new(Whoami { caller: sender.caller.clone(), node }))
    }
}

impl App {
    /// Makes a token for the node itself: its owner's.
    pub async fn create_token(
        &self,
        caller: Caller,
        by: &str,
        expires_at: Option<Timestamp>,
    ) -> Result<FreshToken, Refusal> {
        let (fresh, new) = token::make(caller, by.to_owned(), self.now(), expires_at)?;
        let create = |store: cis_store::SqliteStore| async move { store.create_token(new).await };
        self.write_plain("creating a token", create, |()| News::default()).await?;
        Ok(fresh)
    }
}

/// Tokens belong to the whole node: a caller that may see only a part of it does not govern them.
pub(super) fn check_governs_tokens(caller: &Caller) -> Result<(), Refusal> {
    match caller.scopes {
        None => Ok(()),
        Some(_) => Err(Refusal::new(ErrorCode::Forbidden, "a token for some scopes governs no tokens")),
    }
}
