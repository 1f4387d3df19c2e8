//! TLS (rustls, TLS 1.2 and 1.3) for listeners and for calls to other servers, with keys and
//! certificates from PEM files.

mod client;
mod read_ahead;
mod server;
mod slices;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use thiserror::Error;

pub use client::{AnyCertificate, ClientTls, Trust};
pub use read_ahead::ReadAhead;
pub use server::{ServerTls, TlsFiles};
pub use slices::Slices;

/// Reasons why certificates or keys cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    #[error("certificates and keys come in pairs: {certificates} and {keys} files are named")]
    Pairs { certificates: usize, keys: usize },
    #[error("{0:?} is no host name")]
    Name(String),
    #[error("TLS: {0}")]
    Other(String),
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        TlsError::Other(error.to_string())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn file_error(path: &Path, reason: impl ToString) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// All certificates in a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| file_error(path, error))?;
    match all.is_empty() {
        true => Err(file_error(path, "no certificate (PEM) in this file")),
        false => Ok(all),
    }
}

/// A chain of certificates, with the private key of its first.
fn certified_key(cert: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| file_error(key, error))?;
    CertifiedKey::from_der(chain, private, &provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            file_error(key, format!("not the key of {}", cert.display()))
        }
        error => file_error(cert, error),
    })
}

/// SHA-256 of the first certificate in a file, in the form of `openssl x509 -fingerprint`.
///
/// # Errors
/// `File` if the file cannot be read or has no certificate in PEM.
pub fn fingerprint(path: &Path) -> Result<String, TlsError> {
    let first = certificates(path)?;
    let hash = provider()
        .cipher_suites
        .iter()
        .find_map(|suite| match suite {
            rustls::SupportedCipherSuite::Tls13(suite)
                if suite.common.hash_provider.output_len() == 32 =>
            {
                Some(suite.common.hash_provider.hash(&first[0]))
            }
            _ => None,
        });
    let hash = hash.ok_or_else(|| TlsError::Other("no SHA-256".to_owned()))?;
    let bytes: Vec<String> = hash.as_ref().iter().map(|b| format!("{b:02X}")).collect();
    Ok(bytes.join(":"))
}

/// Certificate authorities that are trusted.
fn authorities(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| file_error(path, error))?;
    }
    Ok(Arc::new(roots))
}
