//! The certificate of a store that this process serves, which its console shows and uses too.

use std::path::PathBuf;

use anyhow::Result;
use cairn_http::tls::fingerprint;

/// A store's TLS, for display at the start.
#[derive(Clone, Debug)]
pub struct StoreTls {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// SHA-256 of the certificate.
    pub fingerprint: String,
    /// Generated here, so that clients must be told to trust it.
    pub is_own: bool,
}

impl StoreTls {
    /// The TLS of a given certificate and its key.
    ///
    /// # Errors
    /// The certificate's file cannot be read, or has none. The key is not read here.
    pub fn given(cert: PathBuf, key: PathBuf) -> Result<StoreTls> {
        Ok(StoreTls {
            fingerprint: fingerprint(&cert)?,
            is_own: false,
            cert,
            key,
        })
    }
}
