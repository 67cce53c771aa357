//! A node proves who it is: it signs what a client made up, together with the address that the client has reached.
//!
//! The address is what keeps another process from passing the question on to the node and the signature back: a client asks for
//! the address that its connection leads to, and the node signs none but the one that the question came in at. Two processes do
//! not have one address and port. Names are signed where the node's settings say that it is called by them.

use std::net::SocketAddr;

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
    hosts: Vec<String>,
}

impl Prover {
    /// For a node that is called by the names in `hosts`, beside its addresses.
    pub fn new(identity: &Identity, hosts: Vec<String>) -> Result<Self, Refusal> {
        Ok(Self { key: identity.signing_key()?, did: identity.did.clone(), hosts })
    }

    /// The proof that a client asks for on a connection to `local`, if that has an address.
    pub fn prove(&self, asked: &ProofQuery, local: Option<SocketAddr>) -> Result<NodeProof, Refusal> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if asked.nonce.len() != NONCE_DIGITS || !asked.nonce.bytes().all(is_digit) {
            let why = format!("`nonce` has {NONCE_DIGITS} digits of 0-9 a-f");
            return Err(Refusal::new(ErrorCode::ValidationFailed, why));
        }
        if !self.is_own(&asked.address, local) {
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

    /// Is this `HOST:PORT` where the question came in, or a name of the node's? Behind a name there may be a proxy with another
    /// port.
    fn is_own(&self, address: &str, local: Option<SocketAddr>) -> bool {
        if let (Ok(asked), Some(local)) = (address.parse::<SocketAddr>(), local)
            && (asked.ip().to_canonical(), asked.port()) == (local.ip().to_canonical(), local.port())
        {
            return true;
        }
        let Some((host, port)) = address.rsplit_once(':') else { return false };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // Every machine is called that, and its processes share the name.
        let is_shared = host.eq_ignore_ascii_case("localhost");
        !is_shared
            && port.parse::<u16>().is_ok()
            && self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host))
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
        let prover = Prover::new(&identity, vec!["cis.example.org".into(), "localhost".into()]).unwrap();
        let signs = |local: &str, address: &str| {
            let asked = ProofQuery { nonce: "0".repeat(64), address: address.into() };
            match prover.prove(&asked, local.parse().ok()) {
                Ok(_) => true,
                Err(refusal) => {
                    assert_eq!(refusal.code, ErrorCode::WrongNode);
                    false
                }
            }
        };
        let own = [
            ("127.0.0.1:6767", "127.0.0.1:6767"),
            ("[::ffff:127.0.0.1]:6767", "127.0.0.1:6767"),
            ("192.168.1.7:6767", "192.168.1.7:6767"),
            ("[::1]:6767", "[::1]:6767"),
            ("127.0.0.1:6767", "cis.example.org:443"),
            ("the socket", "CIS.example.org:443"),
        ];
        for (local, address) in own {
            assert!(signs(local, address), "{local}: {address}");
        }
        // Whatever else leads to the node: none but what the question came in at.
        let others = ["localhost:6767", "LOCALHOST:6767", "[::1]:6767", "127.0.0.1:6768", "127.0.0.2:6767"];
        let malformed =
            ["10.0.0.9:6767", "evil.org:6767", "localhost", "", ":6767", "127.0.0.1", "cis.example.org:x"];
        for other in others.into_iter().chain(malformed) {
            assert!(!signs("127.0.0.1:6767", other), "{other}");
        }
        assert!(!signs("[::1]:6767", "127.0.0.1:6767") && !signs("10.0.0.5:1", "127.0.0.1:1"));
        assert!(!signs("the socket", "127.0.0.1:6767"));
        for bad in ["", "abc", &"A".repeat(64), &"0".repeat(65)] {
            let asked = ProofQuery { nonce: bad.to_owned(), address: "127.0.0.1:1".into() };
            let told = prover.prove(&asked, "127.0.0.1:1".parse().ok());
            assert_eq!(told.unwrap_err().code, ErrorCode::ValidationFailed, "{bad}");
        }
    }
}
