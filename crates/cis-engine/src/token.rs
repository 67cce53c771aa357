//! Tokens as they are made: a secret that is told once, and the hash the store knows it by.

use std::fmt;

use cis_core::access::Caller;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::source::Timestamp;
use cis_store::port::NewToken;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::data_dir::hex;
use crate::system;

/// What a secret begins with, so that it is known for one wherever it turns up.
const MARK: &str = "cis_";

/// Digits of a token's id: enough to tell tokens apart, and no part of the secret.
const ID_DIGITS: usize = 16;

/// A token that has just been made.
#[derive(Clone, Serialize, Deserialize)]
pub struct FreshToken {
    pub token_id: String,
    pub secret: String,
}

impl fmt::Debug for FreshToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FreshToken({})", self.token_id)
    }
}

/// Makes a token: what its owner gets, and what the store keeps. Refused where the machine has no randomness: a token
/// that can be guessed is none.
pub(crate) fn make(
    caller: Caller,
    by: String,
    now: Timestamp,
    expires_at: Option<Timestamp>,
) -> Result<(FreshToken, NewToken), Refusal> {
    let random = || {
        let why =
            |e| Refusal::new(ErrorCode::Unavailable, format!("the machine gives no random numbers: {e}"));
        system::secret().map(|bytes| hex(&bytes)).map_err(why)
    };
    let (id, secret) = (random()?, random()?);
    let fresh =
        FreshToken { token_id: format!("tok_{}", &id[..ID_DIGITS]), secret: format!("{MARK}{secret}") };
    let (token_id, secret_hash) = (fresh.token_id.clone(), secret_hash(&fresh.secret));
    Ok((fresh, NewToken { token_id, secret_hash, caller, by, now, expires_at }))
}

/// What the store knows a secret by.
pub fn secret_hash(secret: &str) -> String {
    sha256_hex(secret.as_bytes())
}

/// SHA-256, in hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}
