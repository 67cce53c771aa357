//! A node proves who it is: it signs what a client made up, together with the address that the client dialled.
//!
//! The address is what keeps another process from passing the question on to the node and the signature back: the node signs
//! none but its own addresses, and a client asks for the one it dialled.

use std::net::{IpAddr, SocketAddr};

use cis_api::node::{NodeProof, ProofQuery, proof_message};
use cis_core::did::Did;
use cis_core::error::{ErrorCode, Refusal};
use ed25519_dalek::{Signer, SigningKey};

use crate::data_dir::hex;
use crate::identity::Identity;

/// Digits of what a client makes up.
const NONCE_DIGITS: usize = 64;

/// Signs for a node.
#[derive(Debug)]
pub struct Prover {
    key: SigningKey,
    did: Did,
    bound: SocketAddr,
    hosts: Vec<String>,
}

impl Prover {
    /// For a node that listens at `bound` and is called by the names in `hosts` as well.
    pub fn new(identity: &Identity, bound: SocketAddr, hosts: Vec<String>) -> Result<Self, Refusal> {
        Ok(Self { key: identity.signing_key()?, did: identity.did.clone(), bound, hosts })
    }

    /// The proof that a client asks for.
    pub fn prove(&self, asked: &ProofQuery) -> Result<NodeProof, Refusal> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if asked.nonce.len() != NONCE_DIGITS || !asked.nonce.bytes().all(is_digit) {
            let why = format!("`nonce` has {NONCE_DIGITS} digits of 0-9 a-f");
            return Err(Refusal::new(ErrorCode::ValidationFailed, why));
        }
        if !self.is_own(&asked.address) {
            let why = format!("this node is not at `{}`", asked.address);
            return Err(Refusal::new(ErrorCode::WrongNode, why)
                .hint("call it by the address it listens at, or by a name of its setting `node.hosts`"));
        }
        let signature = self.key.sign(&proof_message(&asked.nonce, &asked.address));
        Ok(NodeProof {
            did: self.did.clone(),
            public_key: hex(self.key.verifying_key().as_bytes()),
            signature: hex(&signature.to_bytes()),
        })
    }

    /// Is the node called at this `HOST:PORT`? Behind a name there may be a proxy with another port.
    fn is_own(&self, address: &str) -> bool {
        let Some((host, port)) = address.rsplit_once(':') else { return false };
        let Ok(port) = port.parse::<u16>() else { return false };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host)) {
            return true;
        }
        let bound = self.bound.ip().to_canonical();
        let is_own_host = match host.parse::<IpAddr>() {
            Ok(ip) => {
                ip.to_canonical() == bound || (bound.is_unspecified() && ip.to_canonical().is_loopback())
            }
            Err(_) => {
                host.eq_ignore_ascii_case("localhost") && (bound.is_loopback() || bound.is_unspecified())
            }
        };
        is_own_host && port == self.bound.port()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dir::DataDir;

    #[test]
    fn none_but_the_nodes_own_addresses_are_signed() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::create(&dir.path().join("data")).unwrap();
        let identity = Identity::of(&data, "n").unwrap();
        let signs = |bound: &str, address: &str| {
            let prover =
                Prover::new(&identity, bound.parse().unwrap(), vec!["cis.example.org".into()]).unwrap();
            let asked = ProofQuery { nonce: "0".repeat(64), address: address.into() };
            match prover.prove(&asked) {
                Ok(_) => true,
                Err(refusal) => {
                    assert_eq!(refusal.code, ErrorCode::WrongNode);
                    false
                }
            }
        };
        for own in ["127.0.0.1:6767", "localhost:6767", "LOCALHOST:6767", "cis.example.org:443"] {
            assert!(signs("127.0.0.1:6767", own) && signs("0.0.0.0:6767", own), "{own}");
        }
        for other in
            ["127.0.0.1:6768", "127.0.0.2:6767", "10.0.0.9:6767", "evil.org:6767", "localhost", "", ":6767"]
        {
            assert!(!signs("127.0.0.1:6767", other), "{other}");
        }
        assert!(signs("10.0.0.5:1", "10.0.0.5:1") && !signs("10.0.0.5:1", "localhost:1"));
        assert!(signs("[::]:1", "[::1]:1") && !signs("[::]:1", "10.0.0.9:1"));
        let prover = Prover::new(&identity, "127.0.0.1:1".parse().unwrap(), Vec::new()).unwrap();
        for bad in ["", "abc", &"A".repeat(64), &"0".repeat(65)] {
            let asked = ProofQuery { nonce: bad.to_owned(), address: "127.0.0.1:1".into() };
            assert_eq!(prover.prove(&asked).unwrap_err().code, ErrorCode::ValidationFailed, "{bad}");
        }
    }
}
