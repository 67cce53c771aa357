//! Tokens: who may call, known by a hash of their secret.

use std::collections::HashSet;

use cis_api::token::TokenSummary;
use cis_core::access::Caller;
use cis_core::source::Timestamp;
use rusqlite::{OptionalExtension, Row, params};

use super::reader::Reader;
use super::tx::{Tx, parsed};
use crate::port::{Answer, NewToken, StoreError};

const TOKEN_SQL: &str =
    "SELECT token_id, identity, roles, scopes, self_confirm, created_by, created_at, expires_at,
                                revoked_at FROM tokens";

impl Reader {
    /// The token whose secret has this hash.
    pub fn token(&self, secret_hash: &str) -> Answer<Option<TokenSummary>> {
        let mut statement = self.conn.prepare_cached(&format!("{TOKEN_SQL} WHERE secret_hash = ?1"))?;
        Ok(statement.query_row([secret_hash], token_line).optional()?)
    }

    /// The hashes of all tokens that are good at `now`.
    pub fn good_token_hashes(&self, now: Timestamp) -> Answer<HashSet<Box<str>>> {
        let mut statement = self.conn.prepare_cached(
            "SELECT secret_hash FROM tokens INDEXED BY tokens_live
             WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?1)",
        )?;
        let hashes = statement.query_map([now.0], |row| Ok(row.get_ref(0)?.as_str()?.into()))?;
        Ok(hashes.collect::<Result<_, _>>()?)
    }

    /// Every token, the latest first.
    pub fn tokens(&self) -> Answer<Vec<TokenSummary>> {
        let mut statement =
            self.conn.prepare_cached(&format!("{TOKEN_SQL} ORDER BY created_at DESC, token_id"))?;
        Ok(statement.query_map([], token_line)?.collect::<Result<_, _>>()?)
    }
}

fn token_line(row: &Row<'_>) -> rusqlite::Result<TokenSummary> {
    let scopes = match row.get::<_, Option<String>>(3)? {
        Some(_) => Some(parsed(row, 3, |text| serde_json::from_str(text).ok())?),
        None => None,
    };
    Ok(TokenSummary {
        token_id: row.get(0)?,
        caller: Caller {
            identity: row.get(1)?,
            roles: parsed(row, 2, |text| serde_json::from_str(text).ok())?,
            scopes,
            self_confirm: row.get(4)?,
        },
        created_by: row.get(5)?,
        created_at: Timestamp(row.get(6)?),
        expires_at: row.get::<_, Option<i64>>(7)?.map(Timestamp),
        revoked_at: row.get::<_, Option<i64>>(8)?.map(Timestamp),
    })
}

/// See [`crate::Store::create_token`].
pub(super) fn create(tx: &mut Tx<'_>, token: &NewToken) -> Answer<()> {
    tx.room()?;
    let Caller { identity, roles, scopes, self_confirm } = &token.caller;
    let list = |value: serde_json::Result<String>| value.map_err(|e| StoreError::Database(e.to_string()));
    let roles = list(serde_json::to_string(roles))?;
    let scopes = scopes.as_ref().map(|scopes| list(serde_json::to_string(scopes))).transpose()?;
    tx.conn
        .prepare_cached(
            "INSERT INTO tokens (token_id, secret_hash, identity, roles, scopes, self_confirm, created_by, created_at,
                                 expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            token.token_id,
            token.secret_hash,
            identity,
            roles,
            scopes,
            self_confirm,
            token.by,
            tx.now.0,
            token.expires_at.map(|t| t.0)
        ])?;
    tx.memory.changed.tokens();
    Ok(())
}

/// See [`crate::Store::revoke_token`].
pub(super) fn revoke(tx: &mut Tx<'_>, token_id: &str) -> Answer<bool> {
    let changed = tx
        .conn
        .prepare_cached("UPDATE tokens SET revoked_at = ?2 WHERE token_id = ?1 AND revoked_at IS NULL")?
        .execute(params![token_id, tx.now.0])?;
    tx.memory.changed.tokens();
    Ok(changed == 1)
}
