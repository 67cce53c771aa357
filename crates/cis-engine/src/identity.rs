//! Who a node is: an Ed25519 key in its data directory, made at first use and never replaced, and the DID that
//! follows from it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cis_core::did::{Did, key_fingerprint};
use cis_core::error::{ErrorCode, Refusal};
use ed25519_dalek::SigningKey;

use crate::data_dir::{DataDir, hex, write_once};
use crate::system;

/// Who a node is, as far as anybody may know.
#[derive(Debug, Clone)]
pub struct Identity {
    pub did: Did,
    /// In hexadecimal.
    pub public_key: String,
    /// Where the private key is.
    pub path: PathBuf,
    /// Others of this machine may read it.
    pub is_exposed: bool,
}

impl Identity {
    /// The identity of a data directory, for a node of this name; its key is made if there is none.
    pub fn of(data_dir: &DataDir, name: &str) -> Result<Self, Refusal> {
        let path = data_dir.node_key();
        let key = match fs::read_to_string(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make(&path).map_err(|e| unable("write", &path, &e))?;
                fs::read_to_string(&path)
            }
            read => read,
        };
        let text = key.map_err(|e| unable("read", &path, &e))?;
        let public_key = public_key(&text).ok_or_else(|| broken(&path))?;
        let mode = fs::metadata(&path).map_err(|e| unable("read", &path, &e))?.permissions().mode();
        let did = Did::new(name, &key_fingerprint(&public_key))
            .map_err(|e| Refusal::new(ErrorCode::Internal, e.to_string()))?;
        Ok(Self { did, public_key: hex(&public_key), path, is_exposed: mode & 0o077 != 0 })
    }

    /// The private key, to sign with.
    pub(crate) fn signing_key(&self) -> Result<SigningKey, Refusal> {
        let text = fs::read_to_string(&self.path).map_err(|e| unable("read", &self.path, &e))?;
        let private = text.lines().next().and_then(from_hex).ok_or_else(|| broken(&self.path))?;
        Ok(SigningKey::from_bytes(&private))
    }
}

/// What a node is called that was given no name: its machine's.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn make(path: &Path) -> io::Result<()> {
    let key = SigningKey::from_bytes(&system::secret()?);
    write_once(path, &format!("{}\n{}\n", hex(&key.to_bytes()), hex(key.verifying_key().as_bytes())))
}

/// The public key of a key file: the private key and the public one, which must belong together. One changed digit
/// would otherwise be another identity.
fn public_key(text: &str) -> Option<[u8; 32]> {
    let (private, public) = text.trim_end().split_once('\n')?;
    let derived = SigningKey::from_bytes(&from_hex(private)?).verifying_key().to_bytes();
    (from_hex(public)? == derived).then_some(derived)
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

fn unable(what: &str, path: &Path, e: &io::Error) -> Refusal {
    let why = format!("cannot {what} the node's key `{}`: {e}", path.display());
    Refusal::new(ErrorCode::Unavailable, why)
}

fn broken(path: &Path) -> Refusal {
    let why = format!("`{}` does not hold a node's key, or not all of it", path.display());
    Refusal::new(ErrorCode::Unavailable, why)
        .hint("put a copy of it back, or move it away to let the node become somebody else, with a new DID")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_never_replaced() {
        let dir = tempfile::TempDir::new().unwrap();
        let data = DataDir::create(&dir.path().join("data")).unwrap();
        let first = Identity::of(&data, "Büro 7").unwrap();
        assert!(first.did.as_str().starts_with("did:cis:B-ro-7:") && !first.is_exposed);
        make(&first.path).unwrap();
        assert_eq!(Identity::of(&data, "other").unwrap().public_key, first.public_key);
        let names: Vec<_> =
            fs::read_dir(data.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("node.key.")), "{names:?}");

        fs::set_permissions(&first.path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Identity::of(&data, "n").unwrap().is_exposed);

        let text = fs::read_to_string(&first.path).unwrap();
        let flipped =
            if text.starts_with('0') { text.replacen('0', "1", 1) } else { format!("0{}", &text[1..]) };
        for bad in ["", "x", &text[..64], &flipped, &"ä".repeat(64), &format!("{text}more")] {
            fs::write(&first.path, bad).unwrap();
            let refusal = Identity::of(&data, "n").unwrap_err();
            assert!(refusal.hint.unwrap().contains("put a copy of it back"), "{bad}");
            assert_eq!(fs::read_to_string(&first.path).unwrap(), bad);
        }
    }
}
