//! DIDs: `did:cis:<name>:<fingerprint>`. One is a name, not a secret: whoever says it has proved nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::id::is_name;

/// What every DID of ours begins with.
const PREFIX: &str = "did:cis:";

/// Longest readable part of a node's DID.
const NAME_MAX: usize = 63;

/// An identity's name in the world.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[schema(value_type = String, example = "did:cis:alice:0f1e2d3c")]
#[serde(try_from = "String", into = "String")]
pub struct Did(Box<str>);

/// Hexadecimal digits of a public key's hash in a DID: 128 bits, too many to meet by trying.
const FINGERPRINT_DIGITS: usize = 32;

/// What the DID of the holder of an Ed25519 key ends in.
pub fn key_fingerprint(public_key: &[u8; 32]) -> String {
    let hash = Sha256::digest(public_key);
    let mut digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(FINGERPRINT_DIGITS);
    digits
}

/// Not a DID of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no DID: write `did:cis:NAME:ID`, each part of A-Z a-z 0-9 . _ -")]
pub struct BadDid;

impl Did {
    /// The DID of whoever is called `name` and has a key with this fingerprint. What a DID cannot hold of the name
    /// becomes a dash.
    pub fn new(name: &str, fingerprint: &str) -> Result<Self, BadDid> {
        let clean = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
        let cleaned: String = name.chars().map(clean).take(NAME_MAX).collect();
        let name = match cleaned.trim_matches(['-', '.']) {
            "" => "node",
            name => name,
        };
        format!("{PREFIX}{name}:{fingerprint}").parse()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part that follows from a key, where there is one.
    pub fn fingerprint(&self) -> &str {
        self.0.rsplit(':').next().unwrap_or_default()
    }

    /// The part people read.
    pub fn name(&self) -> &str {
        self.0[PREFIX.len()..].split(':').next().unwrap_or_default()
    }
}

impl FromStr for Did {
    type Err = BadDid;

    fn from_str(text: &str) -> Result<Self, BadDid> {
        let (name, id) = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once(':')).ok_or(BadDid)?;
        if is_name(name) && is_name(id) { Ok(Self(text.into())) } else { Err(BadDid) }
    }
}

impl TryFrom<String> for Did {
    type Error = BadDid;

    fn try_from(text: String) -> Result<Self, BadDid> {
        text.parse()
    }
}

impl From<Did> for String {
    fn from(did: Did) -> String {
        did.0.into()
    }
}

impl fmt::Display for Did {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dids_keep_to_their_shape() {
        for good in ["did:cis:local:abc", "did:cis:node-1:abc123"] {
            assert_eq!(good.parse::<Did>().unwrap().as_str(), good);
        }
        let bad = ["", "did:cis:", "did:cis:a", "did:cis:a:", "did:cis::b", "did:web:a:b", "did:cis:a:b:c"];
        for bad in bad.into_iter().chain(["did:cis:a b:c", "did:cis:a:\n", "DID:cis:a:b", "did:cis:ä:b"]) {
            assert_eq!(bad.parse::<Did>(), Err(BadDid), "{bad}");
        }
    }

    #[test]
    fn any_name_makes_one() {
        let long = "x".repeat(300);
        for (name, told) in
            [("Büro", "B-ro"), ("host", "host"), ("..", "node"), ("日本", "node"), (&long, &long[..63])]
        {
            let did = Did::new(name, "00ff").unwrap();
            assert_eq!((did.name(), did.as_str()), (told, format!("did:cis:{told}:00ff").as_str()));
        }
    }
}
