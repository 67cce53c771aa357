//! Tokens: who may call.

use std::fmt;

use cis_core::access::{Caller, Preset, Role};
use cis_core::did::Did;
use cis_core::id::Scope;
use cis_core::source::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::call::object_body;

/// A token in a path.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct TokenPath {
    /// Its `token_id`.
    pub id: String,
}

/// A token, never its secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenSummary {
    pub token_id: String,
    #[serde(flatten)]
    pub caller: Caller,
    pub created_by: String,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

impl TokenSummary {
    /// May a caller still use it?
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| now < at)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    pub tokens: Vec<TokenSummary>,
}

/// A token that is wanted.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTokenBody {
    /// Whose it will be: a DID, or a name.
    #[schema(min_length = 1, max_length = 256)]
    pub identity: String,
    #[serde(rename = "as")]
    pub preset: Preset,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Scope>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_sec: Option<u64>,
    /// The same more exactly; it counts instead of `expires_sec`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

object_body!(CreateTokenBody, required);

/// A new token, told once.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    pub token_id: String,
    /// The secret.
    pub token: String,
    pub identity: String,
    pub roles: Vec<Role>,
    pub scopes: Option<Vec<Scope>>,
    pub expires_at: Option<Timestamp>,
}

impl fmt::Debug for NewToken {
    /// Without the secret: what is printed is read by others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewToken({})", self.token_id)
    }
}

/// A token that was taken back.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenRevoked {
    pub token_id: String,
    /// `revoked`.
    pub status: String,
}

/// Who calls, and which node says so.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Whoami {
    #[serde(flatten)]
    pub caller: Caller,
    pub node: Did,
}
