//! TLS with whom this machine trusts; `SSL_CERT_FILE` and `SSL_CERT_DIR` say who that is, where they are set.

use std::sync::Arc;

use cis_core::error::{ErrorCode, Refusal};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// Knows the other side by this machine's certificates.
pub fn connector() -> Result<TlsConnector, Refusal> {
    let mut roots = RootCertStore::empty();
    let (known, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if known == 0 {
        let why = "this machine has no certificates to know the other side by";
        return Err(Refusal::new(ErrorCode::Unavailable, why)
            .hint("install `ca-certificates`, or name a file of them in `SSL_CERT_FILE`"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Refusal::new(ErrorCode::Unavailable, format!("TLS cannot be used: {e}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// What a certificate must be for.
pub(crate) fn name(host: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
    ServerName::try_from(host.to_owned())
}
