//! Knowing a node by its DID: before anything with a token goes out on a connection, the other side proves on that very
//! connection that it has the key the DID follows from, and that it is where the connection leads.

use std::io;
use std::net::SocketAddr;

use cis_api::calls::ProveNode;
use cis_api::error::Success;
use cis_api::node::{NodeProof, ProofQuery, proof_message};
use cis_api::{Call, Nothing, Request};
use cis_core::did::{Did, key_fingerprint};
use cis_core::error::{ErrorCode, Refusal};
use ed25519_dalek::{Signature, VerifyingKey};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{StatusCode, header};

use crate::connect::Node;
use crate::stream::Exchange;
use crate::target;

/// What an answer with a proof holds at most: a thief may send anything.
const PROOF_BYTES_MAX: usize = 4 << 10;

/// The node that a client means.
#[derive(Debug, Clone)]
pub struct NodePin {
    /// Its name does not count: it follows from no key.
    pub did: Did,
    /// Makes bytes that cannot be guessed, another time each.
    pub nonce: fn() -> io::Result<[u8; 32]>,
}

impl NodePin {
    /// Has the other side of a new connection prove that it is the node. The request carries no token.
    pub(crate) async fn check(
        &self,
        node: &Node,
        peer: Option<SocketAddr>,
        exchange: &mut Exchange,
    ) -> Result<(), PinError> {
        let nonce = (self.nonce)().map_err(|e| PinError::NoAnswer(format!("no random numbers: {e}")))?;
        let nonce: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        let asked = ProofQuery { nonce, address: node.proven_address(peer) };
        let request = Request::<ProveNode>::new(Nothing {}, asked.clone(), Nothing {});
        let prefix = node.base.path().trim_end_matches('/');
        let http = hyper::Request::builder()
            .method(ProveNode::METHOD.as_str())
            .uri(format!("{prefix}{}", target::of(&request)))
            .header(header::HOST, node.address())
            .body(Full::new(Bytes::new()))
            .map_err(|e| PinError::NoAnswer(e.to_string()))?;
        let (status, body) = exchange.ask(http, PROOF_BYTES_MAX).await.map_err(PinError::NoAnswer)?;
        if status == StatusCode::MISDIRECTED_REQUEST {
            return Err(self.refuse_address(&asked.address));
        }
        if !status.is_success() {
            return Err(self.refuse(&format!("it answers {} when asked to prove who it is", status.as_u16())));
        }
        let proof = serde_json::from_slice::<Success<NodeProof>>(&body)
            .map_err(|_| self.refuse("what it says when asked to prove who it is, is no proof"))?;
        self.verify(&asked, &proof.answer).map_err(|why| self.refuse(why))
    }

    fn verify(&self, asked: &ProofQuery, proof: &NodeProof) -> Result<(), &'static str> {
        let public_key: [u8; 32] = from_hex(&proof.public_key).ok_or("its key is malformed")?;
        if key_fingerprint(&public_key) != self.did.fingerprint() {
            return Err("its key is another one");
        }
        let signature: [u8; 64] = from_hex(&proof.signature).ok_or("its signature is malformed")?;
        let key = VerifyingKey::from_bytes(&public_key).map_err(|_| "its key is malformed")?;
        key.verify_strict(&proof_message(&asked.nonce, &asked.address), &Signature::from_bytes(&signature))
            .map_err(|_| "its signature is wrong")
    }

    /// The other side says that it is not at this address: the node behind another name, or another one.
    fn refuse_address(&self, address: &str) -> PinError {
        let message =
            format!("what answers at `{address}` does not sign for that address, and was sent no token");
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        PinError::WrongNode(Refusal::new(ErrorCode::WrongNode, message).hint(format!(
            "call the node by the address it listens at; where a proxy or a tunnel passes calls on, put `{}` into its setting \
             `node.hosts`",
            host.trim_start_matches('[').trim_end_matches(']')
        )))
    }

    fn refuse(&self, why: &str) -> PinError {
        let message = format!("this is not the node {}, and it was sent no token: {why}", self.did);
        PinError::WrongNode(Refusal::new(ErrorCode::WrongNode, message).hint(
            "`cis identity show` on the node's machine tells its DID, for `--node-did` or `CIS_NODE_DID`; a node signs for the \
             address it listens at and the names in its `node.hosts`",
        ))
    }
}

/// Why the other side is not known to be the node.
pub(crate) enum PinError {
    WrongNode(Refusal),
    NoAnswer(String),
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}
